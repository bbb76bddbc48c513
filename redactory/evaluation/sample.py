"""A sample of a run's points by stratum, for people to label; and γ and δ₂ from what they labelled.

A point is the unit, and every copy of a text is a point: copies count as often as they occur, because what
is bounded is the share of the *corpus's* secrets that is missed (``redactory/evaluation/sample_bounds.py``).
But a text is labelled once, however many of its copies are drawn.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from redactory.detectors.settings import kind_of
from redactory.evaluation.labelled import labelled_rows
from redactory.evaluation.recall import COUNTS, DetectFate, by_label, fates_of_secrets
from redactory.evaluation.sample_bounds import (
    EMPTY,
    MASKED,
    PUBLIC,
    STRATA,
    SUSPECTED,
    Plan,
    Stratum,
    Unmeasured,
    estimates,
    plan_sample,
    public_draws_needed,
    upper_bounds,
)
from redactory.evaluation.statistics import secrets_needed
from redactory.foundation.bounds import round_up
from redactory.foundation.errors import CheckFailed, InputError, some
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import PRIVATE, mask, merge_intervals
from redactory.redaction.shards import read_batches

_COMMON_GOAL = 1e-3
_NAMED = 5
Ids = NDArray[np.int64]
Draw = Mapping[str, Any]
"""The record of a draw, as ``draw.json`` holds it."""


class Marked(NamedTuple):
    """One span: code points [start, end) and a label."""

    start: int
    end: int
    label: str


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

    def but(self, kinds: Collection[str]) -> SampledText:
        """The same without the secrets of ``kinds``."""
        return replace(self, secrets=tuple(one for one in self.secrets if kind_of(one.label) not in kinds))

    def record(self, key: DigestKey) -> dict[str, Any]:
        """What the record of the draw keeps."""
        kept = {name: getattr(self, name) for name in ("point_id", "stratum", "times", "prefilled", "masked")}
        return {**kept, "digest": _digest(self.text, key)}

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> SampledText:
        """The reverse of :meth:`record`."""
        prefilled = tuple(Marked(*span) for span in record["prefilled"])
        masked = tuple((start, end) for start, end in record["masked"])
        return cls(**{**record, "prefilled": prefilled, "masked": masked})


def _digest(text: str, key: DigestKey) -> str:
    return key.text_digest(key.purpose("audit sample"), text.encode()).hex()


# The draw.


@dataclass(frozen=True)
class Frame:
    """What is drawn from: all points by ascending id, the stratum of each (its place in STRATA, or -1)."""

    ids: Ids
    strata: NDArray[np.int8]
    quarantined: int
    fitted_on: Unmeasured

    def points(self, name: str) -> Ids:
        """The points of a stratum."""
        found: Ids = self.ids[self.strata == STRATA.index(name)]
        return found

    def strata_of(self, ids: Ids) -> NDArray[np.int8]:
        """The stratum of each of ``ids``; -1 also for one that is no point of the run."""
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[places] == ids, self.strata[places], np.int8(-1))


def frame_of(run: RunFolder, fitted_on: Ids | None = None) -> Frame:
    """The strata of a finished run, without quarantined points and those that a policy was ``fitted_on``."""
    caught = [np.empty(0, np.int64)]
    for batch in read_batches(run.spans, ["point_id", "policy"]):
        caught.append(np.unique(batch["point_id"].filter(pc.equal(batch["policy"], "strict")).to_numpy()))
    read = [(np.empty(0, np.int64), np.empty(0, bool), np.empty(0, bool))]
    for batch in read_batches(run.points, ["point_id", "side", "fate"]):
        flags = (pc.equal(batch["side"], PUBLIC), pc.equal(batch["fate"], "quarantined"))
        read.append((batch["point_id"].to_numpy(), *(own.to_numpy(zero_copy_only=False) for own in flags)))
    ids, public, failed = (np.concatenate(own) for own in zip(*read, strict=True))
    order = ids.argsort()
    ids, public, failed = ids[order], public[order], failed[order]
    held = ~failed & np.isin(ids, np.empty(0, np.int64) if fitted_on is None else fitted_on)
    private = np.where(np.isin(ids, np.concatenate(caught)), STRATA.index(MASKED), STRATA.index(SUSPECTED))
    strata = np.where(public, STRATA.index(PUBLIC), private)
    return Frame(
        ids,
        np.where(failed | held, -1, strata).astype(np.int8),
        int(failed.sum()),
        Unmeasured(int((held & public).sum()), int((held & ~public).sum())),
    )


def draw_sample(run: RunFolder, frame: Frame, n: int, public_share: float, seed: int) -> tuple[Plan, list[SampledText]]:
    """At most ``n`` texts: of the strata that are labelled whole all, of others independent uniform draws.

    ``ValueError`` as :func:`~redactory.evaluation.sample_bounds.plan_sample`.
    """
    stream, known = RandomStream.from_seed(seed), _distinct_texts(run, frame, n)
    sizes = {name: len(frame.points(name)) for name in STRATA}
    plan = plan_sample(sizes, {name: len(own) for name, own in known.items()}, n, public_share)
    # by stratum and text: how often it was drawn (or occurs), and the least of the ids
    chosen = {name: known[name] for name in plan.whole}
    times = Counter[int]()
    for name, draws in plan.draws.items():
        chosen[name] = {}
        coins = stream.uniform(f"draws of {name} points", 0, draws)
        times.update(frame.points(name)[(coins * sizes[name]).astype(np.int64)].tolist())
    for point_id, text in _rows_of(run.vault, ("point_id", "text"), times):
        own = chosen[STRATA[frame.strata_of(np.array([point_id]))[0]]]
        count, first = own.get(text, (0, point_id))
        own[text] = count + times[point_id], first
    spans = defaultdict[int, list[Any]](list)
    columns = ("point_id", "policy", "score", "detector", "start", "end", "label")
    for point_id, policy, score, detector, *place in _rows_of(
        run.spans, columns, {first for own in chosen.values() for _, first in own.values()}
    ):
        if policy == "strict":
            # the surest first: higher score, a list that somebody wrote, place
            spans[point_id].append((-score, detector != "list", Marked(*place)))
    sample = []
    for name in STRATA:
        for text, (count, point_id) in chosen.get(name, {}).items():
            strict = [mark for *_, mark in sorted(spans[point_id])]
            masked = tuple(merge_intervals(text, ((mark.start, mark.end) for mark in strict)))
            sample.append(SampledText(point_id, name, count, prefilled(strict), masked, text=text))
    return plan, [sample[i] for i in stream.permutation("order of the sample", 0, len(sample)).tolist()]


def _distinct_texts(run: RunFolder, frame: Frame, most: int) -> dict[str, dict[str, tuple[int, int]]]:
    """Each stratum's texts with copies and least id; where there are more than ``most``, any ``most`` + 1."""
    found: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in STRATA}
    for batch in read_batches(run.vault, ["point_id", "text"]):
        if all(len(known) > most for known in found.values()):
            break
        strata = frame.strata_of(batch["point_id"].to_numpy())
        for number, known in enumerate(found.values()):
            if len(known) <= most:
                own = pa.table(batch.filter(pa.array(strata == number))).group_by("text")
                for row in own.aggregate([("point_id", "count"), ("point_id", "min")]).to_pylist():
                    count, first = known.get(row["text"], (0, row["point_id_min"]))
                    known[row["text"]] = count + row["point_id_count"], first
    return found


def _rows_of(folder: Path, columns: Sequence[str], wanted: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    ids = pa.array(sorted(wanted), pa.int64())
    for batch in read_batches(folder, list(columns)):
        own = batch.filter(pc.is_in(batch["point_id"], ids))
        yield from zip(*(own[name].to_pylist() for name in columns), strict=True)


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


def as_csv(sample: Iterable[SampledText]) -> str:
    """The sample as a table to read; what a spreadsheet would take for a formula gets an apostrophe."""
    out = io.StringIO()
    table = csv.DictWriter(out, ("id", "point_id", "stratum", "text", "spans"), lineterminator="\n")
    table.writeheader()
    for row in as_rows(sample):
        spans = json.dumps([list(span.values()) for span in row["spans"]])
        text = f"'{row['text']}" if row["text"][:1] in "=+-@\t\r" else row["text"]
        table.writerow({**row, "spans": spans, "text": text})
    return out.getvalue()


# What people labelled: read, checked against the draw, measured.


def read_labels(path: Path, drawn: Sequence[SampledText], key: DigestKey) -> list[SampledText]:
    """The labelled sample of ``path`` in the order of ``drawn``.

    ``InputError``, with row and point id and without text, unless the rows are those of the draw, each once,
    with the text unchanged.
    """
    found: dict[int, SampledText | None] = {entry.point_id: None for entry in drawn}
    expected = {entry.point_id: entry for entry in drawn}
    for number, row in enumerate(labelled_rows(path), 1):
        given = row.get("point_id", row.get("id"))
        if not (isinstance(given, int) or (isinstance(given, str) and given.isascii() and given.isdigit())):
            raise InputError(
                f"{path.name}, row {number}: it has no 'point_id'; label the rows of the sample, and change "
                "only their spans"
            )
        point_id, where = int(given), f"{path.name}, row {number} (point {int(given)})"
        if point_id not in expected:
            raise InputError(f"{where}: this example is not in the sample")
        if found[point_id]:
            raise InputError(f"{where}: this example also occurs in an earlier row")
        if _digest(row["text"], key) != expected[point_id].digest:
            raise InputError(f"{where}: its text differs from the sample; only 'spans' may change")
        secrets = {Marked(span["start"], span["end"], span["label"]) for span in row["spans"]}
        found[point_id] = replace(expected[point_id], text=row["text"], secrets=tuple(sorted(secrets)))
    labelled = [entry for entry in found.values() if entry]
    if missing := [str(point_id) for point_id, entry in found.items() if not entry]:
        listed = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
        raise InputError(
            f"{path.name}: {len(missing)} of the sample's {some(len(drawn), 'text')} are missing (point "
            f"{listed}); a text without a secret is a row without spans"
        )
    return labelled


def measure_sample(
    rows: Sequence[SampledText], detect_fate: DetectFate, progress: Progress = silent
) -> list[SampledText]:
    """``rows`` with ``missed``: whether F(s) ≠ F(s') for each secret, s' being s with it as ``<MASK>``.

    ``CheckFailed`` unless F gives each text the side and the masks that the run gave it, and each s' the
    private side (a quarantined point counts as private): then both policies miss the secrets of public
    points and no others, on which the bounds of a sample rest.
    """
    places = [(row.text, [(secret.start, secret.end) for secret in row.secrets]) for row in rows]
    measured = []
    for row, (fate, without) in zip(rows, fates_of_secrets(detect_fate, places, progress), strict=True):
        side = PUBLIC if row.stratum == PUBLIC else PRIVATE
        if fate != (side, mask(row.text, row.masked)):
            raise CheckFailed(
                f"point {row.point_id}: its decision no longer matches the run, although the policies are "
                "the same; nothing is measured"
            )
        if any(other == PUBLIC for other, _ in without):
            raise CheckFailed(
                f"point {row.point_id}: it would be public with a secret masked, although everything with a "
                "mask is private; nothing is measured"
            )
        measured.append(replace(row, missed=tuple(fate != tuple(other) for other in without)))
    return measured


def secrets_left(texts: Sequence[SampledText]) -> dict[str, Any]:
    """How many labelled secrets stand open, by label and side: unweighted counts of the sample.

    As ``redactory.evaluation.recall.secrets_left``, which see for the keys.
    """
    labels: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
    for text in texts:
        for start, end, label in text.secrets:
            covered = any(low <= start and end <= high for low, high in text.masked)
            labels[label]["secrets"] += 1
            labels[label]["left_public"] += text.stratum == PUBLIC
            labels[label]["left_private"] += text.stratum != PUBLIC and not covered
    total = {name: sum(counts[name] for counts in labels.values()) for name in COUNTS}
    return {"documents": len(texts), **total, "labels": {label: labels[label] for label in sorted(labels)}}


# γ and δ₂ in all and by label, with their bounds, and what is still needed.


def figures(draw: Draw, texts: Sequence[SampledText], confidence: float, delta: float) -> dict[str, Any]:
    """``misses``, ``strata`` and ``needed`` of a score.

    ``misses`` has the keys of ``measure_misses``: plain counts, the weighted ``rate``, and as ``upper`` the
    bounds of :func:`upper_bounds` in three digits, which tell less of the counts behind them; a label's
    figures are of its secrets alone.
    ``needed`` says of ``delta`` and of 10⁻³ how many secrets drawn independently, or how many public draws of
    a sample like this one, would have to show no miss for δ₂ to be bounded by it.
    """
    fitted, quarantined = draw["fitted_on"], draw["quarantined"]
    unmeasured = Unmeasured(fitted["public"], fitted["private"] + quarantined)

    def shares(strata: Mapping[str, Stratum], label: str | None) -> dict[str, Any]:
        upper, rate = upper_bounds(strata, confidence, unmeasured), estimates(strata)
        asked = [(text.stratum, missed) for text in texts for missed in _missed(text, label)]
        misses = {"gamma": sum(missed for _, missed in asked), "delta_2": sum(name == PUBLIC for name, _ in asked)}
        return {
            "n": len(asked),
            **{
                name: {
                    "misses": count,
                    "rate": rate and getattr(rate, name),
                    "upper": round_up(getattr(upper, name), 3),
                }
                for name, count in misses.items()
            },
        }

    strata = _strata(draw, texts, None)
    known = sorted({secret.label for text in texts for secret in text.secrets})
    labels = {label: shares(_strata(draw, texts, label), label) for label in known}
    return {
        "misses": {**shares(strata, None), **by_label(labels, confidence)},
        "strata": {
            name: {
                "points": stratum.points,
                "texts": draw["strata"][name]["texts"],
                "whole": stratum.draws is None,
                "draws": stratum.points if stratum.draws is None else stratum.draws,
                "secrets": stratum.secrets,
                "missed_by_strict": stratum.missed,
                "missed_by_both": stratum.secrets if name == PUBLIC else 0,
            }
            for name, stratum in strata.items()
        },
        "needed": [
            {
                "delta_2": goal,
                "secrets": secrets_needed(goal, confidence),
                "public_draws": public_draws_needed(strata, goal, confidence, unmeasured),
            }
            for goal in sorted({delta, _COMMON_GOAL}, reverse=True)
        ],
    }


def secrets_drawn(row: SampledText, stream: RandomStream) -> Iterator[int]:
    """One secret, each alike, for every draw of a text that holds one: what makes draws independent units.

    Its place in ``row.secrets``.  The coins go with the point's id: neither the order of rows nor that of
    spans changes what is drawn.
    """
    if row.secrets:
        coins = stream.uniform("one secret of an example", 0, row.times, index=row.point_id)
        yield from (int(coin * len(row.secrets)) for coin in coins)


def _missed(text: SampledText, label: str | None) -> list[bool]:
    """Of each secret with ``label`` (of every one, where none is given) whether it is missed."""
    every = zip(text.secrets, text.missed, strict=True)
    return [missed for secret, missed in every if label in (None, secret.label)]


def _strata(draw: Draw, texts: Sequence[SampledText], label: str | None) -> dict[str, Stratum]:
    """What the sample says of each stratum; of the secrets with ``label`` alone where one is given."""
    stream, strata = RandomStream.from_seed(draw["seed"]), dict[str, Stratum]()
    for name in STRATA:
        own, points = [text for text in texts if text.stratum == name], draw["strata"][name]["points"]
        if not points:
            strata[name] = EMPTY
        elif draw["strata"][name]["whole"]:
            # a text's copies times the share of its secrets that are asked for, and that are missed of these
            asked = [(text.times / max(1, len(text.secrets)), _missed(text, label)) for text in own]
            holding, missing = (sum(each * count(m) for each, m in asked) for count in (len, sum))
            strata[name] = Stratum(points, None, holding, missing)
        else:
            units = [
                text.missed[place]
                for text in own
                for place in secrets_drawn(text, stream)
                if label in (None, text.secrets[place].label)
            ]
            strata[name] = Stratum(points, draw["strata"][name]["draws"], len(units), sum(units))
    return strata


def resting_on_labellers(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each bound of a score that is 0 since all that could hold a miss was labelled."""
    public = result["strata"]["public"]
    if not public["points"] or not public["whole"]:
        return []
    return [
        f"{symbol} is 0, because {texts} was labelled: it relies on the labellers having missed nothing."
        for name, symbol, texts in (
            ("gamma", "γ", "every text that could hold a miss"),
            ("delta_2", "δ₂", "every public text"),
        )
        if result["misses"][name]["upper"] == 0
    ]
