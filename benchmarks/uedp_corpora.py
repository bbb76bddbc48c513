"""The two corpora of the UeDP figures: split by user, labelled, and curated.

Every user lies in one part: donated (public from then on), private (trained on), validation (settings are
chosen there) or test.  Vocabulary and pretraining come from the donated part, never from another.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import redactory
from redactory.detectors.detector import Detection
from redactory.detectors.engine import Span
from redactory.evaluation.labelled import split_labelled_row
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.segment import make_segmenter
from redactory.redaction.folder import RunFolder

PARTS = ("donated", "validation", "test", "private")
_NO_NAME = re.compile(r"hereinafter|referred|each|together|collectively|[\"“”()]|\bparty\b|parties|, an? ", re.I)

Row = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A corpus in public: where it lies (below ``--data``) and how it is cut.

    ``shares`` of the users, in the order of :data:`PARTS` (the rest is private); ``words`` of a row and
    ``rows_of_user`` that are kept at most, None for all; donated text is kept whole.
    """

    name: str
    path: Path
    rows: int
    shares: tuple[float, float, float]
    words: int | None
    rows_of_user: int | None
    label: str | None


CUAD = Source("cuad", Path("cuad_clauses/clauses.jsonl"), 9434, (0.3, 0.08, 0.12), 16, 10, "label")
CUAD_45 = replace(CUAD, name="cuad-45", shares=(0.45, 0.08, 0.12))
"""The same contracts, with 45 in 100 of them donated instead of 30."""
CUSTOMERSIM = Source("customersim", Path("customersim/train.jsonl"), 2500, (0.2, 0.1, 0.15), None, None, None)


def rows_of(source: Source) -> list[Row]:
    """The rows of a corpus: id, user_id, text, spans and, where there is one, the class."""
    with source.path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line, _ in zip(file, range(source.rows), strict=False)]
    return rows if source.words is None else [*one_line_each(rows, source.words)]


def _drawn(rows: Sequence[Row], most: int | None) -> Sequence[Row]:
    """At most ``most`` rows of each user, drawn; in their order."""
    if most is None:
        return rows
    order = RandomStream.from_seed(2).permutation("rows", 0, len(rows))
    seen: Counter[str] = Counter()
    kept = set()
    for place in order:
        user = rows[place]["user_id"]
        seen[user] += 1
        if seen[user] <= most:
            kept.add(int(place))
    return [row for place, row in enumerate(rows) if place in kept]


def one_line_each(rows: Sequence[Row], words: int) -> Iterator[Row]:
    """Rows in one line each, cut to ``words``; PARTY is what the file labels, and a clause that is a name.

    The file's spans are the names of a contract found in its other clauses; the clauses labelled Parties have
    none of their own, so there the same names are looked up, and one that is nothing but a name is a span.
    """
    named: dict[str, set[str]] = {}
    for row in rows:
        values = named.setdefault(row["user_id"], set())
        values |= {row["text"][s["start"] : s["end"]] for s in row["spans"]}
        if row["label"] == "Parties" and not _NO_NAME.search(row["text"]) and len(row["text"].split()) < 9:
            values.add(row["text"].strip(" ,;."))
    for row in rows:
        found = list(re.finditer(r"\S+", row["text"]))[:words]
        text = row["text"][: found[-1].end()].replace("\n", " ").replace("\r", " ")
        spans = [s for s in row["spans"] if s["end"] <= len(text)]
        if row["label"] == "Parties":
            spans += [
                {"start": place, "end": place + len(value), "label": "PARTY"}
                for value in sorted(named[row["user_id"]])
                for place in [text.find(value)]
                if place >= 0
            ]
        yield {**row, "text": text, "spans": spans}


@dataclass(frozen=True)
class Recorded:
    """The detector of a labelled corpus: what the labels say of a text, by both policies."""

    spans: Mapping[str, tuple[Span, ...]]

    @classmethod
    def of(cls, points: Iterable[tuple[str, Sequence[Row]]]) -> Recorded:
        """The labels of ``points``, those of equal texts together."""
        found: dict[str, tuple[Span, ...]] = {}
        for text, spans in points:
            own = tuple(Span(s["start"], s["end"], s["label"], 1.0, "labels") for s in spans)
            found[text] = tuple(dict.fromkeys((*found.get(text, ()), *own)))
        return cls(found)

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """What the labels say."""
        for text in texts:
            yield Detection(self.spans.get(text, ()), self.spans.get(text, ()))


@dataclass(frozen=True)
class Corpus:
    """A split corpus with its curated run.  ``parts``: the rows of each part, by name."""

    source: Source
    folder: Path
    parts: Mapping[str, Sequence[Row]]

    @classmethod
    def prepared(cls, source: Source, folder: Path) -> Corpus:
        """The corpus in ``folder``; split, written and curated once."""
        rows = rows_of(source)
        users = sorted({row["user_id"] for row in rows})
        order = RandomStream.from_seed(1).permutation("split", 0, len(users))
        cuts = np.cumsum([round(share * len(users)) for share in source.shares])
        part = {users[u]: PARTS[int(np.searchsorted(cuts, rank, "right"))] for rank, u in enumerate(order)}
        parts: dict[str, list[Row]] = {name: [] for name in PARTS}
        for row in rows:
            parts[part[row["user_id"]]].append(row)
        for name in PARTS[1:]:
            parts[name] = [*_drawn(parts[name], source.rows_of_user)]
        found = cls(source, folder, parts)
        folder.mkdir(parents=True, exist_ok=True)
        if not found.run.success.exists():
            found.write()
            found.curate()
        return found

    @property
    def run(self) -> RunFolder:
        """The run that every training works on."""
        return RunFolder(self.folder / "run")

    @property
    def public(self) -> Path:
        """The donated points, one a line."""
        return self.folder / "donated.jsonl"

    def points(self, *names: str) -> Iterator[tuple[str, list[Row], str | None]]:
        """Text, spans and class of the points of some parts."""
        cut = make_segmenter(SegmentSettings(mode="turn"))
        for name in names:
            for row in self.parts[name]:
                for text, spans in split_labelled_row(row, cut):
                    yield text, spans, row.get(self.source.label) if self.source.label else None

    def write(self) -> None:
        """The private corpus and the donated points as files."""
        with self.public.open("w", encoding="utf-8") as file:
            for text, _, label in self.points("donated"):
                file.write(json.dumps({"text": text, "label": label}) + "\n")
        with (self.folder / "private.jsonl").open("w", encoding="utf-8") as file:
            for row in self.parts["private"]:
                kept = {key: row[key] for key in ("id", "user_id", "text", "label") if key in row}
                file.write(json.dumps(kept) + "\n")

    def curate(self) -> None:
        """The run."""
        columns = {"path": str(self.folder / "private.jsonl"), "user": "user_id"}
        if self.source.label:
            columns["label"] = self.source.label
        config = {
            "input": columns,
            "output": str(self.run.root),
            "segment": {"mode": "turn"},
            "dedup": {"mode": "none"},
            "detect": {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}},
        }
        spans = Recorded.of((text, own) for text, own, _ in self.points("private"))
        redactory.curate(config, detector=spans, resume=True)
