"""Linkage: whose private points can be told from the public ones by a phrase that few people use.

The adversary holds both shards and no key: every public point as it was written, every private point with
π's hits masked.  A run of words that stands in a private point and in hardly any public one ties the two
together; if one person wrote both, what the public point says of them is said of the private one too.
Nothing is learnt and nothing tuned.  Beside it: what an engine that had no part in masking still finds in the
shards, and the search for known values.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import ahocorasick
import numpy as np

from redactory.detectors.engine import Reading, Span
from redactory.detectors.settings import SUSPECTED_LABELS, kind_of
from redactory.evaluation.statistics import Bootstrap, figure, proportion, quotient
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK
from redactory.redaction.values import tells

LONGEST_PHRASE = 3
RARE = 2
MOST_LISTED = 100
_CHUNK = 256
_WORD = re.compile(rf"{re.escape(MASK)}|\w+(?:['’\-.@]\w+)*")


@dataclass(frozen=True)
class Shown:
    """One released point: its id, its text as released, and who wrote it (several, for a duplicate)."""

    point_id: str
    text: str
    authors: frozenset[str]


@dataclass(frozen=True)
class Claim:
    """``private`` and ``public`` (places in their lists) share the rarest phrases, of this weight (bits)."""

    private: int
    public: int
    bits: float


def linkage(
    public: Sequence[Shown],
    private: Sequence[Shown],
    rare: int = RARE,
    longest: int = LONGEST_PHRASE,
    confidence: float = 0.95,
    progress: Progress = silent,
) -> dict[str, Any]:
    """How often the claimed public point is by an author of the private one, against claims dealt at random.

    Returns {private, public, phrases, rare, claimed, linked, share, chance, excess, share_of_private,
    confidence}, figures {value, low, high}, null where there is no claim; no text.  ``chance`` is the exact
    mean over all ways of dealing the same claims out among the private points.  Intervals are bootstrapped
    over authors, and never narrower than the exact (Clopper-Pearson) ones over points.
    """
    made = list(claims([p.text for p in public], (p.text for p in private), rare, longest, progress))
    expected = _chances(public, private)
    # of each author: claims, right ones, those expected by chance, points
    rows: dict[str, list[float]] = {}
    for point in private:
        rows.setdefault(min(point.authors, default=point.point_id), [0.0, 0.0, 0.0, 0.0])[3] += 1
    linked = 0
    for claim in made:
        own, shown = private[claim.private], public[claim.public]
        right = not own.authors.isdisjoint(shown.authors)
        linked += right
        row = rows[min(own.authors, default=own.point_id)]
        row[:3] = row[0] + 1, row[1] + right, row[2] + expected[claim.public]
    figures = Bootstrap(np.array(list(rows.values()), dtype=np.float64).reshape(-1, 4), confidence)

    def ratio(over: int, under: int, n: int | None = None) -> dict[str, Any]:
        found = figures.figure(lambda sums: quotient(sums[:, over], sums[:, under]))
        if n is None or found["value"] is None:
            return found
        # a bootstrap of no success has no width
        exact = proportion(linked, n, confidence)
        return figure(found["value"], min(found["low"], exact["low"]), max(found["high"], exact["high"]))

    share, chance = ratio(1, 0, len(made)), ratio(2, 0)
    return {
        "private": len(private),
        "public": len(public),
        "phrases": longest,
        "rare": rare,
        "claimed": len(made),
        "linked": linked,
        "share": share,
        "chance": chance,
        "excess": {k: None if v is None else v - chance["value"] for k, v in share.items()},
        "share_of_private": ratio(1, 3, len(private)),
        "confidence": confidence,
    }


def claims(
    public: Sequence[str],
    private: Iterable[str],
    rare: int = RARE,
    longest: int = LONGEST_PHRASE,
    progress: Progress = silent,
) -> Iterator[Claim]:
    """For each private text the public one that it shares the rarest phrases with, if there is one alone.

    A phrase of L words counts where at most ``rare`` public texts hold it and none of its parts is that rare,
    with log2(texts / those that hold it) / L bits: a rare word says more than a rare order of common words,
    which two people hit upon by chance.
    """
    where: dict[int, list[int]] = {}
    for number, text in enumerate(public):
        for phrase in phrases(text, longest):
            holders = where.setdefault(phrase, [])
            if len(holders) <= rare:
                holders.append(number)
    where = {phrase: holders for phrase, holders in where.items() if len(holders) <= rare}
    for number, text in enumerate(private):
        weights: dict[int, float] = defaultdict(float)
        counted, met = set[tuple[int, int]](), set[int]()
        for start, end, digest in _runs(text, longest):
            parts = ((a, b) for a in range(start, end) for b in range(a + 1, end + 1))
            if digest not in where or any(part in counted for part in parts):
                continue
            counted.add((start, end))
            for holder in () if digest in met else where[digest]:
                weights[holder] += math.log2(max(len(public), 2) / len(where[digest])) / (end - start)
            met.add(digest)
        best = max(weights.values(), default=0.0)
        holding = [place for place, weight in weights.items() if weight >= best * (1 - 1e-12)]
        if len(holding) == 1:
            yield Claim(number, holding[0], best)
        if number % 1000 == 0:
            progress("linkage", number, None, "private examples")


def phrases(text: str, longest: int = LONGEST_PHRASE) -> set[int]:
    """The runs of 1 to ``longest`` words of ``text``, as 64-bit digests; none reaches over a mask."""
    return {digest for _, _, digest in _runs(text, longest)}


def _runs(text: str, longest: int) -> Iterator[tuple[int, int, int]]:
    """(first word, end, digest) of every run of words that holds no mask, the shortest first."""
    words = _WORD.findall(text.casefold().replace(MASK.casefold(), MASK))
    for length in range(1, longest + 1):
        for start in range(len(words) - length + 1):
            run = words[start : start + length]
            if MASK not in run:
                whole = "\0".join(run).encode("utf-8", "surrogatepass")
                digest = hashlib.blake2b(whole, digest_size=8).digest()
                yield start, start + length, int.from_bytes(digest, "big")


def _chances(public: Sequence[Shown], private: Sequence[Shown]) -> list[float]:
    """For each public point the share of private points that one of its authors wrote."""
    written: dict[str, set[int]] = defaultdict(set)
    for number, point in enumerate(private):
        for author in point.authors:
            written[author].add(number)
    shared = (set().union(*(written.get(author, set()) for author in point.authors)) for point in public)
    return [len(own) / max(len(private), 1) for own in shared]


def residual_identifiers(
    read: Callable[[Sequence[str]], Sequence[Reading]],
    points: Sequence[tuple[str, str]],
    most: int = 5_000,
    seed: int = 0,
    progress: Progress = silent,
    words: Set[str] | None = None,
    public: Set[str] = frozenset(),
) -> dict[str, Any]:
    """What ``read`` finds in ``points`` ((point id, text as released)), on a sample of at most ``most``.

    A hit that touches a mask is none, nor is one of ordinary ``words``, of a kind that is ``public``, or of a
    label that is only suspected by default (``SUSPECTED_LABELS``).  Returns {points, looked_at, failed, held,
    share {value, low, high}, labels, listed}; ``listed`` names at most 100 points, without their text, and a
    text that could not be read counts in ``failed`` and in no share.
    """
    order = RandomStream.from_seed(seed).permutation("residual identifiers", 0, len(points))[:most]
    drawn = [points[int(place)] for place in sorted(order)]
    labels: Counter[str] = Counter()
    listed: list[dict[str, Any]] = []
    held = failed = 0
    for start in range(0, len(drawn), _CHUNK):
        some = drawn[start : start + _CHUNK]
        for (point_id, text), reading in zip(some, read([text for _, text in some]), strict=True):
            if reading.failure is not None:
                failed += 1
                continue
            telling = (span for span in reading.spans if _is_telling(text, span, words))
            found = Counter(span.label for span in telling if kind_of(span.label) not in public)
            labels.update(found)
            held += bool(found)
            if found and len(listed) < MOST_LISTED:
                listed.append({"point_id": point_id, "labels": dict(sorted(found.items()))})
        progress("residual identifiers", min(start + _CHUNK, len(drawn)), len(drawn), "points")
    read_at_all = len(drawn) - failed
    return {
        "points": len(points),
        "looked_at": len(drawn),
        "failed": failed,
        "held": held,
        "share": proportion(held, read_at_all) if read_at_all else figure(None),
        "labels": dict(labels.most_common()),
        "listed": listed,
    }


def _is_telling(text: str, span: Span, words: Set[str] | None) -> bool:
    place = text.find(MASK, max(span.start - len(MASK) + 1, 0))
    if span.label in SUSPECTED_LABELS or (place != -1 and place < span.end):
        return False
    return words is None or tells(text[span.start : span.end], words)


class ValueSearch:
    """Finds whole occurrences of ``values`` whatever their case; a value is named by its index.

    An occurrence is whole where no letter or digit that touches it on either side would continue a letter
    or digit of it.  Equal values (but for their case) are one, under the first one's index.
    """

    def __init__(self, values: Sequence[str]) -> None:
        self._automaton = ahocorasick.Automaton()
        self._lengths = [len(value.casefold()) for value in values]
        for index, folded in enumerate(value.casefold() for value in values):
            if folded and folded not in self._automaton:
                self._automaton.add_word(folded, index)
        if len(self._automaton):
            self._automaton.make_automaton()

    def in_text(self, text: str) -> Iterator[int]:
        """The index of each occurrence in ``text``, overlapping ones too."""
        if not len(self._automaton):
            return
        folded = text.casefold()
        for last, index in self._automaton.iter(folded):
            start, end = last + 1 - self._lengths[index], last + 1
            joins = ((folded[start - 1 : start], folded[start]), (folded[last], folded[end : end + 1]))
            if not any(left.isalnum() and right.isalnum() for left, right in joins):
                yield index

    def count(self, texts: Iterable[str]) -> Counter[int]:
        """How often each value stands in all of ``texts``."""
        return Counter(index for text in texts for index in self.in_text(text))
