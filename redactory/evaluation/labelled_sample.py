"""A sample of a run's points for people to label: by stratum, and written so that tools can read it.

A point is the unit, and every copy of a text is a point: copies count as often as they occur, because what
is bounded is the share of the *corpus's* secrets that is missed (``redactory/evaluation/sample_bounds.py``).
But a text is labelled once, however many of its copies are drawn.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from redactory.evaluation.sample_bounds import MASKED, PUBLIC, STRATA, SUSPECTED, Plan, Unmeasured
from redactory.foundation.keys import DigestKey
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import merge_intervals
from redactory.redaction.shards import read_batches

_QUARANTINED, _STRICT, _LIST = "quarantined", "strict", "list"
_SPAN = ("start", "end", "label", "score", "detector")
_COLUMNS = ("id", "point_id", "stratum", "text", "spans")
Ids = NDArray[np.int64]


class Marked(NamedTuple):
    """One span: code points [start, end) and a label."""

    start: int
    end: int
    label: str


class Copies(NamedTuple):
    """How often a text was drawn, or in a stratum that is labelled whole, occurs; the least of the ids."""

    times: int
    point_id: int


@dataclass(frozen=True)
class Frame:
    """What is drawn from: the point ids of each stratum, ascending, and how many points are left out."""

    points: Mapping[str, Ids]
    quarantined: int
    unmeasured: Unmeasured

    def sizes(self) -> dict[str, int]:
        """N_h."""
        return {name: len(self.points[name]) for name in STRATA}


@dataclass(frozen=True)
class SampledText:
    """A distinct text of the sample, under one of its points' ids.

    ``times`` is how often it was drawn, or occurs where its stratum is labelled whole; ``prefilled`` are the
    spans that the labeller is shown, ``masked`` the places that π masks.  The record of a draw holds a keyed
    ``digest`` and no word of the text; people's labels give the ``text`` and its ``secrets``, in order and
    each once; measuring says of each secret whether π ``missed`` it.
    """

    point_id: int
    stratum: str
    times: int
    prefilled: tuple[Marked, ...] = ()
    masked: tuple[tuple[int, int], ...] = ()
    digest: str = ""
    text: str = field(default="", repr=False)
    secrets: tuple[Marked, ...] = ()
    missed: tuple[bool, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the labeller left anything else than was filled in."""
        return set(self.secrets) != set(self.prefilled)

    def record(self, key: DigestKey) -> dict[str, Any]:
        """What the record of the draw keeps."""
        kept = {name: getattr(self, name) for name in ("point_id", "stratum", "times", "prefilled", "masked")}
        return {**kept, "digest": text_digest(self.text, key)}

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> SampledText:
        """The reverse of :meth:`record`."""
        prefilled = tuple(Marked(*span) for span in record["prefilled"])
        masked = tuple((start, end) for start, end in record["masked"])
        return cls(**{**record, "prefilled": prefilled, "masked": masked})


def text_digest(text: str, key: DigestKey) -> str:
    """The keyed digest by which a text is recognised again."""
    return key.text_digest(key.purpose("audit sample"), text.encode()).hex()


def frame_of(run: RunFolder, held_back: Ids | None = None) -> Frame:
    """The strata of a finished run, without quarantined points and those of ``held_back`` (ascending ids)."""
    found = [np.empty(0, np.int64)]
    for batch in read_batches(run.spans, ["point_id", "policy"]):
        found.append(np.unique(batch["point_id"].filter(pc.equal(batch["policy"], _STRICT)).to_numpy()))
    caught = np.unique(np.concatenate(found))
    kept: dict[str, list[Ids]] = {name: [np.empty(0, np.int64)] for name in STRATA}
    quarantined, left_out = 0, Counter[str]()
    for batch in read_batches(run.points, ["point_id", "side", "fate"]):
        ids = batch["point_id"].to_numpy()
        public = pc.equal(batch["side"], PUBLIC).to_numpy(zero_copy_only=False)
        failed = pc.equal(batch["fate"], _QUARANTINED).to_numpy(zero_copy_only=False)
        held = ~failed & (_among(ids, held_back) if held_back is not None else np.zeros_like(failed))
        masked, open_ = ~public & _among(ids, caught), ~failed & ~held
        for name, own in ((PUBLIC, public), (MASKED, masked), (SUSPECTED, ~public & ~masked)):
            kept[name].append(ids[own & open_])
        quarantined += int(failed.sum())
        left_out += Counter(public=int((held & public).sum()), private=int((held & ~public).sum()))
    return Frame(
        {name: np.concatenate(ids) for name, ids in kept.items()},
        quarantined,
        Unmeasured(left_out["public"], left_out["private"] + quarantined),
    )


def texts_of(run: RunFolder, frame: Frame, most: int) -> dict[str, dict[str, Copies]]:
    """The distinct texts of each stratum; where there are more than ``most``, any ``most`` + 1 or more."""
    found: dict[str, dict[str, Copies]] = {name: {} for name in STRATA}
    for batch in read_batches(run.vault, ["point_id", "text"]):
        open_ = [name for name, known in found.items() if len(known) <= most]
        if not open_:
            break
        for name in open_:
            known = found[name]
            own = batch.filter(pa.array(_among(batch["point_id"].to_numpy(), frame.points[name])))
            counted = pa.table(own).group_by("text").aggregate([("point_id", "count"), ("point_id", "min")])
            for row in counted.to_pylist():
                before = known.get(row["text"], Copies(0, row["point_id_min"]))
                known[row["text"]] = Copies(before.times + row["point_id_count"], before.point_id)
    return found


def draw_sample(
    run: RunFolder, frame: Frame, plan: Plan, texts: Mapping[str, Mapping[str, Copies]], stream: RandomStream
) -> list[SampledText]:
    """The texts of the strata that are labelled whole, and those of independent uniform draws; shuffled."""
    chosen, drawn = {name: dict(texts[name]) for name in plan.whole}, dict[str, Counter[int]]()
    for name, draws in plan.draws.items():
        coins = stream.uniform(f"draws of {name} points", 0, draws)
        drawn[name] = Counter(frame.points[name][(coins * len(frame.points[name])).astype(np.int64)].tolist())
    for point_id, text in _texts(run, {i for ids in drawn.values() for i in ids}):
        name = next(name for name, ids in drawn.items() if point_id in ids)
        before = chosen.setdefault(name, {}).get(text, Copies(0, point_id))
        chosen[name][text] = Copies(before.times + drawn[name][point_id], before.point_id)
    strict = _strict_spans(run, {copies.point_id for own in chosen.values() for copies in own.values()})
    sample = []
    for name in STRATA:
        for text, (times, point_id) in chosen.get(name, {}).items():
            spans = strict.get(point_id, [])
            masked = tuple(merge_intervals(text, ((span.start, span.end) for span in spans)))
            sample.append(SampledText(point_id, name, times, prefilled(spans), masked, text=text))
    return [sample[i] for i in stream.permutation("order of the sample", 0, len(sample)).tolist()]


def prefilled(strict: Iterable[Marked]) -> tuple[Marked, ...]:
    """π's spans without those that overlap a longer one, or an equal one that stands before them."""
    kept: list[Marked] = []
    for span in sorted(strict, key=lambda s: (s.start - s.end, s.start)):
        if all(span.end <= other.start or other.end <= span.start for other in kept):
            kept.append(span)
    return tuple(sorted(kept))


def as_rows(sample: Iterable[SampledText]) -> list[dict[str, Any]]:
    """The sample in the span schema, π's spans filled in as ``spans``."""
    return [
        {
            "id": str(entry.point_id),
            "point_id": entry.point_id,
            "stratum": entry.stratum,
            "text": entry.text,
            "spans": [span._asdict() for span in entry.prefilled],
        }
        for entry in sample
    ]


def as_json_lines(sample: Iterable[SampledText]) -> str:
    """:func:`as_rows` as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in as_rows(sample))


def as_csv(sample: Iterable[SampledText]) -> str:
    """The sample as a table to read; what a spreadsheet would take for a formula gets an apostrophe."""
    out = io.StringIO()
    table = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
    table.writeheader()
    for row in as_rows(sample):
        spans = json.dumps([list(span.values()) for span in row["spans"]])
        text = f"'{row['text']}" if row["text"][:1] in "=+-@\t\r" else row["text"]
        table.writerow({**row, "spans": spans, "text": text})
    return out.getvalue()


def _among(ids: Ids, ascending: Ids) -> NDArray[np.bool_]:
    """Which of ``ids`` are in ``ascending``; fast where that is long."""
    if not len(ascending):
        return np.zeros(len(ids), dtype=bool)
    places = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[places] == ids
    return found


def _strict_spans(run: RunFolder, wanted: Iterable[int]) -> dict[int, list[Marked]]:
    """π's spans of the wanted points, the surest first: higher score, a list that somebody wrote, place."""
    ids, found = pa.array(sorted(wanted), pa.int64()), dict[int, list[tuple[float, bool, Marked]]]()
    for batch in read_batches(run.spans, ["point_id", "policy", *_SPAN]):
        chosen = pc.and_(pc.is_in(batch["point_id"], ids), pc.equal(batch["policy"], _STRICT))
        columns = (batch[name].filter(chosen).to_pylist() for name in ("point_id", *_SPAN))
        for point_id, start, end, label, score, detector in zip(*columns, strict=True):
            own = found.setdefault(point_id, [])
            own.append((-score, detector != _LIST, Marked(start, end, label)))
    return {point_id: [mark for *_, mark in sorted(own)] for point_id, own in found.items()}


def _texts(run: RunFolder, wanted: Iterable[int]) -> Iterator[tuple[int, str]]:
    """(id, text) of the wanted points, by id."""
    ids = pa.array(sorted(wanted), pa.int64())
    for batch in read_batches(run.vault, ["point_id", "text"]):
        chosen = batch.filter(pc.is_in(batch["point_id"], ids))
        yield from zip(chosen["point_id"].to_pylist(), chosen["text"].to_pylist(), strict=True)
