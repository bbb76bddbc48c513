"""How often detection misses a secret, with exact bounds, and which labelled secrets a run left standing.

"γ belongs to the slot": a recall of 0.9 over all secrets can hide a kind that is always missed, so misses are
counted by stratum too (``docs/guarantees.md``, "Amplification by redaction").
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

from redactory.foundation.errors import CheckFailed
from redactory.foundation.intervals import upper_bound
from redactory.foundation.progress import Progress, silent
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import mask, merge_intervals
from redactory.redaction.shards import read_batches, read_column
from redactory.redaction.sides import PRIVATE

Fate = tuple[str, str]
DetectFate = Callable[[Sequence[str]], Sequence[Fate]]
"""F: texts of points -> (side or "quarantined", redacted text) of each."""

TEMPLATE = "template_id"
"""The key of a labelled span that names the template its text was made from, where there is one."""

_CHUNK_TEXTS = 1024
_LETTERS = re.compile(r"[^\W\d_]+")
_EVERY = ("", "")


def fates_of_secrets(
    detect_fate: DetectFate,
    rows: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    progress: Progress = silent,
) -> Iterator[tuple[Fate, list[Fate]]]:
    """F of each text, and F of it with each of its secrets (start, end) masked alone."""
    done, total = 0, sum(len(places) for _, places in rows)
    for start in range(0, len(rows), _CHUNK_TEXTS):
        chunk = rows[start : start + _CHUNK_TEXTS]
        masked = [mask(text, [place]) for text, places in chunk for place in places]
        whole, without = detect_fate([text for text, _ in chunk]), iter(detect_fate(masked))
        done += len(masked)
        progress("recall", done, total, "secrets")
        for (side, text), (_, places) in zip(whole, chunk, strict=True):
            yield (side, text), list(islice(without, len(places)))


def measure_misses(
    detect_fate: DetectFate,
    texts: Sequence[str],
    spans: Sequence[Sequence[Mapping[str, Any]]],
    confidence: float = 0.95,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Misses of γ and δ₂ over every labelled secret of ``texts``, in all, by label and by stratum.

    ``texts`` are points; ``spans[i]`` the labelled secrets of ``texts[i]``, {start, end, label} each, in code
    points, and ``template_id`` where it is known.  With s the text and s' the text in which that one secret
    is ``<MASK>``: a **γ miss** is F(s) ≠ F(s'), a **δ₂ miss** is a different fate of the two, a quarantined
    point counting as private (CRT, Theorem 8.3, as corrected in ``docs/guarantees.md``, "Amplification by
    redaction").  Each bound holds at ``confidence``, both together at 2·confidence - 1, for secrets drawn
    like these, which were not used to tune the policies (``docs/guarantees.md``, "Coverage failure").

    Returns {n, confidence, joint_confidence, gamma, delta_2, labels: {label: {n, gamma, delta_2}},
    highest_gamma: {label, upper} or null, strata: {casing, label, template: {stratum: {n, gamma, delta_2}}},
    highest_gamma_of_strata: {stratification, stratum, n, misses, rate, upper} or null}, where gamma and
    delta_2 are {misses, rate, upper}.
    """
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    labelled = [(text, own) for text, own in zip(texts, spans, strict=True) if own]
    places = [(text, [(int(s["start"]), int(s["end"])) for s in own]) for text, own in labelled]
    for (text, own), fates in zip(labelled, fates_of_secrets(detect_fate, places, progress), strict=True):
        for span, without in zip(own, fates[1], strict=True):
            secret = text[int(span["start"]) : int(span["end"])]
            for key in (_EVERY, *_strata_of(secret, span)):
                counts[key]["n"] += 1
                counts[key]["gamma"] += fates[0] != tuple(without)
                counts[key]["delta_2"] += _side(fates[0]) != _side(without)
    every = _shares(counts.pop(_EVERY, Counter()), confidence)
    strata: dict[str, dict[str, Any]] = {}
    for (stratification, stratum), count in sorted(counts.items()):
        strata.setdefault(stratification, {})[stratum] = _shares(count, confidence)
    return {
        **every,
        **by_label(strata.get("label", {}), confidence),
        "strata": strata,
        "highest_gamma_of_strata": _highest(strata),
    }


def by_label(labels: Mapping[str, Mapping[str, Any]], confidence: float) -> dict[str, Any]:
    """What stands beside the figures of all secrets: those of each label, and what they hold together."""
    worst = max(labels, key=lambda label: labels[label]["gamma"]["upper"], default=None)
    return {
        "confidence": confidence,
        "joint_confidence": max(0.0, 2 * confidence - 1),
        "labels": labels,
        "highest_gamma": worst and {"label": worst, "upper": labels[worst]["gamma"]["upper"]},
    }


def casing(secret: str) -> str:
    """digits (it holds one), or of its letters: lower, upper, title or mixed; uncased where none has a case.

    In title case every word begins with a capital and none of several letters is all capitals.
    """
    if any(sign.isdigit() for sign in secret):
        return "digits"
    if secret.islower():
        return "lower"
    if secret.isupper():
        return "upper"
    words = ["".join(_LETTERS.findall(word)) for word in secret.split()]
    cased = [word for word in words if word.lower() != word.upper()]
    if not cased:
        return "uncased"
    title = all(word[0].isupper() and not (len(word) > 1 and word.isupper()) for word in cased)
    return "title" if title else "mixed"


def _strata_of(secret: str, span: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The (stratification, stratum) pairs of one labelled secret: casing, label and, if known, template."""
    yield "casing", casing(secret)
    yield "label", str(span["label"])
    if span.get(TEMPLATE) is not None:
        yield "template", str(span[TEMPLATE])


def _side(fate: Fate) -> str:
    return PRIVATE if fate[0] == "quarantined" else fate[0]


def _shares(count: Counter[str], confidence: float) -> dict[str, Any]:
    n = count["n"]

    def share(misses: int) -> dict[str, Any]:
        rate = misses / n if n else None
        return {"misses": misses, "rate": rate, "upper": upper_bound(misses, n, confidence)}

    return {"n": n, "gamma": share(count["gamma"]), "delta_2": share(count["delta_2"])}


def _highest(strata: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The stratum whose γ has the highest upper bound; the higher rate, then the larger one, breaks ties."""
    every = [
        {"stratification": stratification, "stratum": name, "n": shares["n"], **shares["gamma"]}
        for stratification, own in strata.items()
        for name, shares in own.items()
    ]
    return max(every, key=lambda entry: (entry["upper"], entry["rate"], entry["n"]), default=None)


# Which labelled secrets still stand in a finished run's shards.
#
# The vault's points give a document back piece by piece, so a secret's place in the document is a place in
# one point or in several; its released id says in which shard it went, the span ledger what π covered.


STRICT = "strict"
_COUNTS = ("secrets", "left_public", "left_private", "withheld")


Piece = tuple[int, str, str, str]
"""A point in the vault: point_id, prefix, text, suffix."""
Covered = tuple[str, list[tuple[int, int]]]
"""What became of a point: the side of the shard that holds it, and what π covered of its text."""


class PlacedPoint(NamedTuple):
    """A point whose text is ``document[start:end]``."""

    point_id: int
    start: int
    end: int


def secrets_left(run: RunFolder, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the labelled secrets of ``rows`` ({id, text, spans}) that a finished run left standing.

    A secret is ``left_public`` when any character of it stands in a point that went public (both policies
    missed it) and ``left_private`` when π does not cover all of it in the points that went private; it is
    ``withheld`` when no point of a shard holds any of it (rejected row, quarantined point).  A duplicate
    counts where its first copy lies.  A row's ``id`` is its ``doc_id``.

    Returns {documents, secrets, left_public, left_private, withheld, labels: {label: the same counts}}:
    counts, no text.  Raises ``CheckFailed`` where the vault does not fit a row's text.
    """
    labelled = {str(row["id"]): row for row in rows}
    fates = _fates(run)
    labels: dict[str, Counter[str]] = defaultdict(Counter)
    met: set[str] = set()
    vault = (
        entry
        for batch in read_batches(run.vault, ["doc_id", "point_id", "prefix", "text", "suffix"])
        for entry in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for doc_id, group in groupby(vault, key=lambda entry: entry[0]):
        if doc_id in labelled:
            met.add(doc_id)
            row = labelled[doc_id]
            points = place_points(doc_id, row["text"], (entry[1:] for entry in group))
            _count(row, points, fates, labels)
    for doc_id in labelled.keys() - met:
        _count(labelled[doc_id], [], fates, labels)
    total = sum(labels.values(), Counter[str]())
    return {
        "documents": len(labelled),
        **{name: total[name] for name in _COUNTS},
        "labels": {label: {name: labels[label][name] for name in _COUNTS} for label in sorted(labels)},
    }


def place_points(doc_id: str, document: str, pieces: Iterable[Piece]) -> list[PlacedPoint]:
    """Where each point of a document stands in it.

    Points follow each other without a gap, except where a quarantined one is missing from the vault:
    there the point ids jump, and the next piece is looked for.
    """
    placed = []
    position, expected = 0, None
    for point_id, prefix, text, suffix in pieces:
        piece = prefix + text + suffix
        found = position if point_id == expected else document.find(piece, position)
        if found < 0 or not document.startswith(piece, found):
            raise CheckFailed(f"document {doc_id}: the vault's points do not give its text back")
        start = found + len(prefix)
        placed.append(PlacedPoint(point_id, start, start + len(text)))
        position, expected = found + len(piece), point_id + 1
    return placed


def _count(
    row: Mapping[str, Any],
    points: list[PlacedPoint],
    fates: dict[int, Covered],
    labels: dict[str, Counter[str]],
) -> None:
    for span in row["spans"]:
        standing, met = set(), False
        for point in points:
            low, high = max(point.start, span["start"]), min(point.end, span["end"])
            fate = fates.get(point.point_id)
            if low >= high or fate is None:
                continue
            met = True
            masked = merge_intervals(row["text"][point.start : point.end], fate[1])
            if not any(start <= low - point.start and high - point.start <= end for start, end in masked):
                standing.add(fate[0])
        counts = labels[str(span["label"])]
        counts["secrets"] += 1
        counts["left_public"] += "public" in standing
        counts["left_private"] += "private" in standing
        counts["withheld"] += not met


def _fates(run: RunFolder) -> dict[int, Covered]:
    """The fate of every point that stands in a shard, itself or as a duplicate of one that does."""
    shard_of = dict.fromkeys(read_column(run.public, "point_id"), "public")
    shard_of.update((released, "private") for released in read_column(run.private, "point_id"))
    own: dict[int, str] = {}
    copies: dict[int, int] = {}
    for batch in read_batches(run.points, ["point_id", "released_id", "dup_of"]):
        for point_id, released, dup_of in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if dup_of is not None:
                copies[point_id] = dup_of
            elif released in shard_of:
                own[point_id] = shard_of[released]
    own.update((copy, own[first]) for copy, first in copies.items() if first in own)
    fates: dict[int, Covered] = {point_id: (side, []) for point_id, side in own.items()}
    for batch in read_batches(run.spans, ["point_id", "start", "end", "policy"]):
        for point_id, start, end, policy in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if policy == STRICT and point_id in fates:
                fates[point_id][1].append((start, end))
    return fates
