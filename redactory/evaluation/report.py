"""``report.html``: what a run did, for people, in one page that needs no network and no script."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

from redactory.dedup.rules import told
from redactory.detectors import blind_of, blind_words
from redactory.evaluation.drift import METRICS
from redactory.evaluation.model_report import ModelReport, model_report, said, template
from redactory.evaluation.sample_labels import resting_on_labellers
from redactory.evaluation.simulator import CANARY_DIGITS
from redactory.foundation.files import read_json, write_text
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import is_finished
from redactory.redaction.shards import read_batches

_POLICIES = ("strict", "conservative")
_BLOCK, _MORE = "▇▇", "…"
_LONGEST_TEXT, _LONGEST_SKELETON = 320, 24
_WORD_OR_MASK = re.compile(rf"{re.escape(MASK)}|\w+(?:['’\-.@]\w+)*")


def render_report(run: RunFolder) -> str:
    """The page of a finished run and its finished models, the same for the same run folder.

    It quotes some public points, shows private ones as skeletons only, and loads nothing.
    """
    manifest = read_json(run.manifest)
    counts, missed = manifest["counts"], _result(run.recall)
    shards = _result(run.redaction)
    return template("report.html.j2").render(
        manifest=manifest,
        counts=counts,
        blind=blind_words(blind_of(manifest)),
        flow=flow(counts),
        laws=conservation(manifest),
        found=_hits(manifest["hits"]),
        dedup=told(manifest["dedup"]),
        missed=missed,
        resting=resting_on_labellers(missed) if missed and "sample" in missed else [],
        shards=said("shards", shards) if shards else [],
        drift=_result(run.gate),
        metrics={name: words.split(", by ")[0] for name, words in METRICS.items()},
        models=[model_report(run.model(name)) for name in run.model_names()],
        public=[_shortened(text) for text in _first(run.public)],
        skeletons=[skeleton(text) for text in _first(run.private)],
        canary_digits=CANARY_DIGITS,
        mask=MASK,
    )


def render_model(report: ModelReport) -> str:
    """The page of one model: how good it is, what is promised, what attacks found; it loads nothing."""
    return template("model.html.j2").render(model=report)


def pages_of(run: RunFolder) -> Iterator[tuple[Path, str]]:
    """Each page of a finished run and what stands on it: its finished models', and then its own report.

    A model has its page as HTML and as Markdown.
    """
    for name in run.model_names():
        folder = run.model(name)
        report = model_report(folder)
        yield folder.report, render_model(report)
        yield folder.measured, template("model.md.j2").render(model=report).replace(MASK, f"`{MASK}`")
    yield run.report, render_report(run)


def write_report(run: RunFolder) -> Path:
    """Commit :func:`pages_of` the run, mode 0600, and return the path of ``RUN/report.html``."""
    for path, page in pages_of(run):
        write_text(path, page)
    return run.report


def _result(folder: Any) -> Any:
    """The result of a finished measurement; None where it was not made."""
    return read_json(folder.root / "result.json") if is_finished(folder) else None


# What became of the rows, and the sums that must hold.


class Law(NamedTuple):
    """A sum that must hold: ``whole`` is ``parts`` together."""

    whole: tuple[str, int]
    parts: list[tuple[str, int]]

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.whole[1] == sum(count for _, count in self.parts)


def conservation(manifest: Mapping[str, Any]) -> list[Law]:
    """The laws of conservation of a run, each to be shown with whether it holds."""
    counts = manifest["counts"]

    def law(whole: str, *parts: str) -> Law:
        return Law((whole, counts[whole]), [(part, counts[part]) for part in parts])

    parts = [
        law("duplicate", "public_duplicate", "private_duplicate"),
        *(Law((name, counts[name]), sorted(manifest[name].items())) for name in ("rejected", "quarantined")),
    ]
    return [
        law("rows", "documents", "rejected"),
        law("points", "public", "private", "duplicate", "quarantined"),
        # "0 = 0" says nothing, unless something should have been there
        *(law for law in parts if law.whole[1] or any(count for _, count in law.parts)),
    ]


@dataclass(frozen=True)
class Bar:
    """A bar of the flow: the class that colours it, what its share is of, and what it divides into."""

    name: str
    count: int
    kind: str
    whole: int = 0
    parts: tuple[Bar, ...] = ()


def flow(counts: Mapping[str, int]) -> Bar:
    """Rows into documents, points, sides and shards; what has no count has no bar."""

    def bar(name: str, count: int, kind: str, *parts: Bar, whole: int = counts["points"]) -> Bar:
        return Bar(name, count, kind, whole, tuple(part for part in parts if part.count))

    public, private = (
        (
            bar(f"{side.capitalize()} shards", counts[side], side),
            bar("Duplicates", counts[f"{side}_duplicate"], "duplicate"),
        )
        for side in ("public", "private")
    )
    sides = (
        bar("Public side", sum(part.count for part in public), "public", *public),
        bar("Private side", sum(part.count for part in private), "private", *private[::-1]),
        bar("Quarantined", counts["quarantined"], "quarantined"),
    )
    points = bar("Points", counts["points"], "neutral", *sides, whole=0)
    documents = bar("Documents", counts["documents"], "neutral", points, whole=0)
    rejected = bar("Rejected", counts["rejected"], "rejected", whole=counts["rows"])
    return bar("Rows", counts["rows"], "neutral", documents, rejected, whole=0)


def _hits(hits: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The hits by policy, most frequent first, counted before overlapping spans are merged."""
    ordered = sorted(hits, key=lambda hit: (-hit["count"], hit["label"]))
    tables = [(name, [hit for hit in ordered if hit["policy"] == name]) for name in _POLICIES]
    return [table for table in tables if table[1]]


# Examples: public points as they are, private ones as skeletons without a word.


def skeleton(text: str) -> list[str]:
    """What may be seen of a private point: ``<MASK>`` where a mask is, one same block for any word.

    A masked text can still hold what π missed, so neither letters nor lengths of words are shown.
    """
    pieces = [MASK if piece == MASK else _BLOCK for piece in _WORD_OR_MASK.findall(text)]
    return pieces if len(pieces) <= _LONGEST_SKELETON else [*pieces[:_LONGEST_SKELETON], _MORE]


def _first(folder: Path, count: int = 8) -> list[str]:
    """The texts of the ``count`` points whose released ids come first.

    Released ids are keyed pseudonyms, so the pick is random over the points and the same in each rendering.
    """
    rows: list[tuple[str, str]] = []
    for batch in read_batches(folder, ["point_id", "text"]):
        # few of millions of points become Python objects
        least = batch.take(pc.select_k_unstable(batch, count, [("point_id", "ascending")]))
        rows = heapq.nsmallest(count, [*rows, *zip(*(c.to_pylist() for c in least.columns), strict=True)])
    return [text for _, text in rows]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + _MORE
