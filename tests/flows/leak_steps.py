"""Every command that meets text, and every place in which it is made to fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from tests.flows.leak_bench import Step
from tests.flows.leak_sabotage import ERRORS

OWN = "our own"
_KINDS = cycle(ERRORS)
"""One kind of error after the other, over all steps."""
CURATION = (
    "redactory.pipelines.readers.sources:fingerprint",
    "redactory.pipelines.readers.documents:read_documents",
    "redactory.pipelines.stages.ingest:ingest",
    "redactory.pipelines.stages.plans:plan_documents",
    "redactory.pipelines.stages.segment:segment_part",
    "redactory.pipelines.stages.plans:plan_texts",
    "redactory.pipelines.stages.detect:detect_part",
    "redactory.detectors.detector:Detector.detect",
    "redactory.pipelines.stages.redact:redact_part",
    "redactory.redaction.sides:route",
    "redactory.pipelines.stages.plans:plan_duplicates",
    "redactory.pipelines.stages.shard:shard_part",
    "redactory.redaction.shards:write_part",
    "redactory.pipelines.release:check_conservation",
    "redactory.evaluation.report:render_report",
)
LATER = {
    "fit": ("redactory.pipelines.labelled:labelled_rows",),
    "fit-policy": ("redactory.pipelines.labelled:labelled_rows",),
    "train": ("redactory.training.train:train_model", "redactory.training.runinput:public_texts"),
    "perplexity": ("redactory.evaluation.perplexity:perplexity",),
    "apply": ("redactory.training.model:load_model",),
    "extraction": ("redactory.evaluation.extraction:extraction",),
    "membership": (
        "redactory.evaluation.member_texts:member_texts",
        "redactory.evaluation.membership:log_probs",
    ),
    "redaction": (
        "redactory.evaluation.linkage:linkage",
        "redactory.evaluation.residual:residual_identifiers",
    ),
    "plant": ("redactory.evaluation.audit_canaries:plant",),
    "ldp-train": (
        "redactory.training.ldp.encoder:SentenceEncoder.represent",
        "redactory.training.ldp.layer:DPLayer.forward",
    ),
    "ldp-evaluate": ("redactory.training.ldp.encoder:SentenceEncoder.represent",),
    "reproduce": (
        "redactory.pipelines.labelled:labelled_rows",
        "redactory.redaction.sides:route",
        "redactory.evaluation.canary:canary_exposure",
    ),
    "recall": ("redactory.evaluation.recall:measure_misses", "redactory.evaluation.leaks:secrets_left"),
    "detect": ("redactory.pipelines.labelled:labelled_rows",),
    "guarantee": ("redactory.training.guarantee:guarantee_card",),
    "verify": ("redactory.redaction.sides:route", "redactory.redaction.shards:read_batches"),
    "sample": ("redactory.evaluation.labelled_sample:draw_sample",),
    "score": ("redactory.evaluation.sample_misses:measure_sample",),
    "describe": ("redactory.pipelines.readers.documents:first_bad_rows",),
    "explain": ("redactory.redaction.sides:route",),
}
"""For each command what is made to fail in it."""


def whole_job(config: Path, run: str, *flags: str) -> list[Step]:
    """Every command on one run, each of which succeeds."""
    labelled = str(config.with_name("labelled.jsonl"))
    planted = str(config.with_name("held-out.jsonl"))
    sample = f"{run}/state/samples/sample/sample.jsonl"
    small = ("--rows", "30", "--seeds", "1", "--gammas", "0", "--trainers", "crt", "--width", "8")
    paths = ("--data", labelled, "--test", labelled, "--out", f"{run}-figures")
    reproduction = ("reproduce", "crt", "--figure", "3", *paths, *small, "--set", "sampling_rate=0.5")
    return [
        Step("fit", ("fit", labelled, "--out", "tagger", "--epochs", "1")),
        Step("fit-policy", ("fit-policy", "--labelled", labelled, "--miss-rate", "0.2"), codes=(0, 1)),
        Step("describe", ("describe", str(config))),
        Step("describe-json", ("describe", str(config), "--json")),
        Step("curate", ("curate", str(config), "--out", run, *flags)),
        Step("against", ("describe", str(config), "--against", run)),
        Step("recall", ("evaluate", "recall", str(config), "--out", run)),
        Step("train", ("train", str(config), "--out", run, *flags)),
        Step("perplexity", ("evaluate", "perplexity", run, "--json")),
        # its model foretells words, and is refused
        Step("accuracy", ("evaluate", "accuracy", run), codes=(2,)),
        Step("apply", ("apply", f"{run}/models/crt", "--text", "Hello, how can I")),
        Step("extraction", ("evaluate", "extraction", run, "--samples", "20", "--tokens", "8")),
        Step("membership", ("evaluate", "membership", run, "--secrets", labelled, "--group-size", "2")),
        Step("redaction", ("evaluate", "redaction", run)),
        Step("plant", ("audit", "plant", planted, "--out", f"{planted}.copy.jsonl", "--canaries", "4")),
        # no coin was thrown for this run
        Step("audit", ("evaluate", "audit", run), codes=(2,)),
        Step("plan", ("plan", "CONFIG", str(config), "--out", run)),
        Step("reproduce", reproduction),
        *_local_privacy(config),
        Step("detect", ("evaluate", "detect", "--labelled", labelled, "--config", str(config))),
        Step("guarantee", ("guarantee", run)),
        # labels that nobody looked at leave secrets in public points unseen: they are the rows' own
        Step("verify", ("verify", run), codes=(0, 1)),
        Step("verify-json", ("verify", run, "--json"), codes=(0, 1)),
        Step("sample", ("audit", "sample", run, "-n", "40", "--seed", "1")),
        Step("score", ("audit", "score", run, sample, "--unchanged")),
        Step("explain", ("explain", "-", "--config", str(config)), shows_text=True),
        Step("again", ("curate", str(config), "--out", run), codes=(2,)),
        Step("resumed", ("curate", str(config), "--out", run, "--resume")),
    ]


def _local_privacy(config: Path) -> list[Step]:
    """Both sides of local privacy in one process, and a user whose server is not there."""
    public, spoken = (str(config.with_name(f"{name}.jsonl")) for name in ("public", "spoken"))
    small = ("--set", "epochs=1", "--set", "model={kind: bilstm, embedding_size: 4, hidden_size: 4}")
    encoded = ("--encoder", "encoder")
    nobody = ("--url", "http://127.0.0.1:9")
    return [
        Step("ldp-encoder", ("ldp", "encoder", "--public", public, "--out", "encoder", *small)),
        Step(
            "ldp-train",
            ("ldp", "train", spoken, *encoded, "--out", "service", "--budget", "budgets", "--limit", "200"),
        ),
        Step("ldp-evaluate", ("ldp", "evaluate", "service", *encoded, "--test", spoken)),
        Step("ldp-send", ("ldp", "send", spoken, *encoded, *nobody), codes=(1, 2)),
        Step("ldp-ask", ("ldp", "ask", spoken, *encoded, *nobody), codes=(1, 2)),
    ]


def failing_first(steps: Sequence[Step]) -> list[Step]:
    """The same steps, and before each what it does when something in it fails."""
    return [one for step in steps for one in (*failing(step, LATER.get(step.name, ())), step)]


def failing_curations(config: Path, *flags: str, run: str = "broken") -> list[Step]:
    """A curation for each place in it that fails."""
    step = Step(run, ("curate", str(config), *flags))
    return [
        replace(failing, arguments=(*failing.arguments, "--out", failing.name))
        for failing in failing(step, CURATION)
    ]


def failing(step: Step, places: Sequence[str]) -> list[Step]:
    """The step once for each place that fails in it, with one kind of error after the other."""
    return [
        replace(step, name=f"{step.name}-{n}", fails=f"{place}={kind}", codes=(2,) if kind == OWN else (1,))
        for n, (place, kind) in enumerate(zip(places, _KINDS))  # noqa: B905 (the kinds go on without an end)
    ]
