"""Describe: what a run would do, with nothing written."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import Any

from redactory.dedup.signatures import parameters
from redactory.detectors import Detector, blind_words, blindness, languages_of, policies_of, policy_records, who_finds
from redactory.foundation.errors import RedactoryError, some
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.config import Config
from redactory.pipelines.curate import check_before_reading, check_kept, choose_text
from redactory.pipelines.curated_hints import text_chosen
from redactory.pipelines.loading import Given, load_config, load_for_texts
from redactory.pipelines.personal import Hits, Judge
from redactory.pipelines.policy import Policy
from redactory.pipelines.readers import find_sources
from redactory.pipelines.readers.documents import RowCounts, first_rows
from redactory.pipelines.store import is_url
from redactory.pipelines.train import vocabulary_seen
from redactory.redaction import route
from redactory.training.settings import TRAINERS, TrainSettings

ROWS = 1_000
SHOWN = 10
SAMPLED = 100
"""Documents that the policies are tried on."""
TRIED_CHARS = 300_000
"""No further one is, once those before it are together as long as this."""


def describe(config: Given, *, progress: Progress = silent, **changes: Any) -> dict[str, Any]:
    """The stages, the policies and their hashes, the columns found, the first bad rows, and a trial.

    Reads at most the first thousand rows of each file, and tries the policies on a hundred of them; the rows
    themselves are not shown.
    """
    settings = load_config(config, **changes)
    found = find_sources(settings.input.path, settings.input.format)
    settings, chosen = choose_text(settings, found)
    check_before_reading(settings, progress)
    check_kept(settings, found)
    counts, policy = RowCounts(settings.input), Policy(settings)
    first = {source: first_rows(source, counts, ROWS) for source in found}
    bad = [
        {"source": one.source, "row": one.row, "reason": one.reason}
        for seen in first.values()
        for one in seen.rejections
    ]
    languages = Counter(language for seen in first.values() for language in languages_of(seen.texts))
    # who does not train may lack what a vocabulary is made with
    trains = settings.train.vocabulary_sources != TrainSettings().vocabulary_sources
    vocabulary, remarks = vocabulary_seen(settings) if trains else (None, list[str]())
    return {
        "blind": blind_words(blindness(settings.detect, languages, policy.masks_nothing())),
        "output": str(settings.output),
        "sources": [
            {"path": source.name, "format": source.format, "columns": _name_columns(seen.columns, settings, policy)}
            for source, seen in first.items()
        ],
        "bad_rows": bad[:SHOWN],
        "bad_rows_by_reason": dict(Counter(entry["reason"] for entry in bad)),
        "evaluation_files_missing": _missing(settings),
        "bad_rows_seen": len(bad),
        "columns_missing": [
            {
                "source": source.name,
                "key": f"input.{key}",
                "column": ", ".join(settings.input.fields.columns) if key == "text" else getattr(settings.input, key),
            }
            for source, seen in first.items()
            for key in seen.absent
        ],
        "rows_looked_at": ROWS,
        "refused": _verdict(counts),
        "stages": _stages(settings),
        "policies": policy_records(settings.detect),
        "labels": who_finds(settings.detect),
        "trial": _trial(policy, [text for seen in first.values() for text in seen.documents], progress),
        "languages": dict(languages.most_common()),
        "vocabulary": vocabulary,
        "remarks": [*([text_chosen(chosen)] if chosen else []), *remarks],
        "configuration_hash": settings.curation_hash(),
    }


def _verdict(counts: RowCounts) -> str | None:
    """The reason why a run of the rows looked at would fail."""
    try:
        counts.check()
    except RedactoryError as error:
        return str(error)
    return None


def _name_columns(columns: Sequence[str], settings: Config, policy: Policy) -> list[str]:
    """The columns' names; of one that looks personal only what it looks like, since it may be data."""

    def search(names: list[str]) -> list[Hits]:
        results: list[Hits] = []
        for examples in policy.split_many(names):
            failed = [example.failure for example in examples if example.failure is not None]
            hits = [hit for example in examples for hit in example.hits if hit.policy == "strict"]
            results.append(failed[0] if failed else hits)
        return results

    judge = Judge(settings.input.fields, (), search, settings.detect.language)
    looks = judge.personal_keys([dict.fromkeys(columns)])
    return [f"({looks[name]})" if name in looks else name for name in columns]


def _trial(policy: Policy, documents: list[str], progress: Progress) -> dict[str, Any]:
    """What would become of the examples of some documents, and why: counts alone.

    Of the first :data:`SAMPLED`, and of fewer once they are long.
    """
    sizes = accumulate(map(len, documents[:SAMPLED]), initial=0)
    texts = [text for text, before in zip(documents, sizes, strict=False) if before < TRIED_CHARS][:SAMPLED]
    sides, reasons, masked, public = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    with waiting(progress, "try the policies"):
        for points in policy.split_many(texts):
            for point in points:
                sides[point.side] += 1
                reasons.update(point.reasons)
                masked.update(hit.label for hit in point.hits if hit.policy == "strict")
                public.update(hit.label for hit in point.public)
    return {
        "documents": len(texts),
        "examples": sides.total(),
        **{side: sides[side] for side in ("public", "private", "quarantined")},
        "reasons": dict(reasons.most_common()),
        "masked": dict(masked.most_common()),
        "left_public": dict(public.most_common()),
    }


def _missing(settings: Config) -> list[str]:
    """Each file of ``evaluate`` that is not there; without this it is missed when the training is over."""
    evaluate = settings.evaluate
    named = [("test", path) for path in evaluate.test]
    named += [(key, path) for key in ("canaries", "labelled") if (path := getattr(evaluate, key))]
    return [
        f"evaluate.{key}: {path}"
        for key, path in named
        if not (is_url(path) or Path(path).exists() or any(glob.iglob(path)))
    ]


def _stages(config: Config) -> list[dict[str, str]]:
    """What each stage does, a line each."""
    from jinja2 import StrictUndefined, Template

    template = (files("redactory.pipelines") / "describe.j2").read_text(encoding="utf-8")
    written = Template(template, undefined=StrictUndefined, autoescape=False).render(
        config=config,
        masked=len(policies_of(config.detect)[0].bounds),
        rules=config.dedup.rules(),
        near=parameters(config.dedup.near),
        trainer=TRAINERS[config.train.trainer],
        some=some,
    )
    stages = (line.partition(": ") for line in written.splitlines() if line)
    return [{"stage": stage, "does": does} for stage, _, does in stages]


# Explain: which engine marked what in one text, and what each policy makes of it.


def explain(text: str, config: Given | None = None, *, progress: Progress = silent) -> dict[str, Any]:
    """What detection does to ``text``, as one point; **the answer quotes the text**.

    Returns {text, side, masked, failure, reasons, marks}; a mark is {start, end, value, label, score,
    detector, masks, makes_private, public}, those of the engines and of the rules alike, in text order.
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
            "public": span in detection.public,
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


def write_example(path: Path) -> None:
    """Write the example to a new file; ``FileExistsError`` where there is one."""
    with path.open("x", encoding="utf-8") as file:
        file.write((files("redactory.pipelines") / "example.yaml").read_text(encoding="utf-8"))
