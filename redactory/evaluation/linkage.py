"""Linkage attack: link private examples to public ones by phrases that few people use.

The adversary has both shards and no key: every public example as written, every private example with the strict
policy's masks. A run of words that occurs in a private example and in very few public ones links them; if one person
wrote both, what the public example reveals also applies to the private one. Nothing is trained or tuned. The module
also measures what an engine that was not used for masking still finds in the shards, and searches for known values.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import ahocorasick
import numpy as np

from redactory.detectors.engine import EngineOutput, Span
from redactory.detectors.settings import SUSPECTED_LABELS, get_kind
from redactory.evaluation.statistics import Bootstrap, divide_or_nan, estimate_proportion, make_estimate
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK
from redactory.redaction.values import is_identifying

MAX_PHRASE_WORDS = 3
MAX_RARE_HOLDERS = 2
MAX_LISTED_EXAMPLES = 100
_CHUNK_TEXTS = 256
_WORD = re.compile(rf"{re.escape(MASK)}|\w+(?:['’\-.@]\w+)*")


@dataclass(frozen=True)
class ReleasedExample:
    """One released example: its id, its released text, and its author (several, for a duplicate)."""

    example_id: str
    text: str
    authors: frozenset[str]


def run_linkage_attack(
    public: Sequence[ReleasedExample],
    private: Sequence[ReleasedExample],
    max_holders: int = MAX_RARE_HOLDERS,
    confidence: float = 0.95,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Measure how often the claimed public example is by an author of the private one, compared with chance.

    Returns {private, public, phrases, rare, claimed, linked, share, chance, excess, share_of_private, confidence},
    metrics {value, low, high}, null without a claim; no text. ``chance`` is the exact mean over all assignments of the
    same claims to the private examples. Intervals are bootstrapped over authors, and never narrower than the exact
    (Clopper-Pearson) ones over examples.
    """
    private_texts = (p.text for p in private)
    claims = list(find_linkage_claims([p.text for p in public], private_texts, max_holders, progress))
    # per author: claims, correct ones, those expected by chance, examples
    rows: dict[str, list[float]] = {}
    written: dict[str, set[int]] = defaultdict(set)
    for number, example in enumerate(private):
        rows.setdefault(min(example.authors, default=example.example_id), [0.0, 0.0, 0.0, 0.0])[3] += 1
        for author in example.authors:
            written[author].add(number)
    linked = 0
    for place, public_place in claims:
        example = private[place]
        right = not example.authors.isdisjoint(public[public_place].authors)
        linked += right
        row = rows[min(example.authors, default=example.example_id)]
        by_its_authors = set[int]().union(*(written.get(author, ()) for author in public[public_place].authors))
        row[:3] = row[0] + 1, row[1] + right, row[2] + len(by_its_authors) / len(private)
    bootstrap = Bootstrap(np.array(list(rows.values()), dtype=np.float64).reshape(-1, 4), confidence)

    def estimate_ratio(numerator: int, denominator: int, trials: int | None = None) -> dict[str, Any]:
        estimate = bootstrap.estimate(lambda sums: divide_or_nan(sums[:, numerator], sums[:, denominator]))
        if trials is None or estimate["value"] is None:
            return estimate
        # a bootstrap without successes has no width
        exact = estimate_proportion(linked, trials, confidence)
        return make_estimate(
            estimate["value"], min(estimate["low"], exact["low"]), max(estimate["high"], exact["high"])
        )

    share, chance = estimate_ratio(1, 0, len(claims)), estimate_ratio(2, 0)
    return {
        "private": len(private),
        "public": len(public),
        "phrases": MAX_PHRASE_WORDS,
        "rare": max_holders,
        "claimed": len(claims),
        "linked": linked,
        "share": share,
        "chance": chance,
        "excess": {k: None if v is None else v - chance["value"] for k, v in share.items()},
        "share_of_private": estimate_ratio(1, 3, len(private)),
        "confidence": confidence,
    }


def find_linkage_claims(
    public: Sequence[str],
    private: Iterable[str],
    max_holders: int = MAX_RARE_HOLDERS,
    progress: Progress = ignore_progress,
) -> Iterator[tuple[int, int]]:
    """Find for each private text the one public text with which it shares the rarest phrases, if unique.

    Yields the indices of both. A phrase of L words counts if at most ``max_holders`` public texts contain it and none
    of its parts is that rare, with
    log2(texts / texts that contain it) / L bits: a rare word says more than a rare order of common words, which two
    people may use by chance.
    """
    where: dict[str, list[int]] = {}
    for number, text in enumerate(public):
        for phrase in {phrase for *_, phrase in iter_phrases(text)}:
            holders = where.setdefault(phrase, [])
            if len(holders) <= max_holders:
                holders.append(number)
    where = {phrase: holders for phrase, holders in where.items() if len(holders) <= max_holders}
    for number, text in enumerate(private):
        weights: dict[int, float] = defaultdict(float)
        counted, met = set[tuple[int, int]](), set[str]()
        for start, end, phrase in iter_phrases(text):
            parts = ((a, b) for a in range(start, end) for b in range(a + 1, end + 1))
            if phrase not in where or any(part in counted for part in parts):
                continue
            counted.add((start, end))
            for holder in () if phrase in met else where[phrase]:
                weights[holder] += math.log2(max(len(public), 2) / len(where[phrase])) / (end - start)
            met.add(phrase)
        best = max(weights.values(), default=0.0)
        holding = [place for place, weight in weights.items() if weight >= best * (1 - 1e-12)]
        if len(holding) == 1:
            yield number, holding[0]
        if number % 1000 == 0:
            progress("linkage", number, None, "private examples")


def iter_phrases(text: str, max_words: int = MAX_PHRASE_WORDS) -> Iterator[tuple[int, int, str]]:
    """Yield (first word, end, phrase) of every run of 1 to ``max_words`` words without a mask, shortest first."""
    words = _WORD.findall(text.casefold().replace(MASK.casefold(), MASK))
    for length in range(1, max_words + 1):
        for start in range(len(words) - length + 1):
            run = words[start : start + length]
            if MASK not in run:
                yield start, start + length, " ".join(run)


def count_residual_identifiers(
    run_engine: Callable[[Sequence[str]], Sequence[EngineOutput]],
    examples: Sequence[tuple[str, str]],
    max_examples: int = 5_000,
    seed: int = 0,
    progress: Progress = ignore_progress,
    common_words: Set[str] | None = None,
    public: Set[str] = frozenset(),
) -> dict[str, Any]:
    """Count what ``run_engine`` finds in ``examples`` ((id, released text)), on at most ``max_examples``.

    Ignored are spans that touch a mask, consist of ``common_words``, are of a ``public`` kind, or have a label that is
    only suspected by default (``SUSPECTED_LABELS``). Returns {points, looked_at, failed, held, share {value, low,
    high}, labels, listed}. ``listed`` names at most 100 examples, without their text. A text that could not be read
    counts in ``failed`` and in no share.
    """
    order = RandomStream.from_seed(seed).permutation("residual identifiers", 0, len(examples))[:max_examples]
    drawn = [examples[int(place)] for place in sorted(order)]
    labels: Counter[str] = Counter()
    listed: list[dict[str, Any]] = []
    held = failed = 0
    for start in range(0, len(drawn), _CHUNK_TEXTS):
        chunk = drawn[start : start + _CHUNK_TEXTS]
        for (example_id, text), reading in zip(chunk, run_engine([text for _, text in chunk]), strict=True):
            if reading.failure is not None:
                failed += 1
                continue
            telling = (span for span in reading.spans if _is_residual_identifier(text, span, common_words))
            label_counts = Counter(span.label for span in telling if get_kind(span.label) not in public)
            labels.update(label_counts)
            held += bool(label_counts)
            if label_counts and len(listed) < MAX_LISTED_EXAMPLES:
                listed.append({"example_id": example_id, "labels": dict(sorted(label_counts.items()))})
        progress("residual identifiers", min(start + _CHUNK_TEXTS, len(drawn)), len(drawn), "examples")
    readable_count = len(drawn) - failed
    return {
        "examples": len(examples),
        "looked_at": len(drawn),
        "failed": failed,
        "held": held,
        "share": estimate_proportion(held, readable_count) if readable_count else make_estimate(None),
        "labels": dict(labels.most_common()),
        "listed": listed,
    }


def _is_residual_identifier(text: str, span: Span, common_words: Set[str] | None) -> bool:
    mask_start = text.find(MASK, max(span.start - len(MASK) + 1, 0))
    if span.label in SUSPECTED_LABELS or (mask_start != -1 and mask_start < span.end):
        return False
    return common_words is None or is_identifying(text[span.start : span.end], common_words)


class ValueSearch:
    """Find whole occurrences of ``values``, ignoring case; a value is identified by its index.

    An occurrence is whole if no adjacent letter or digit continues a letter or digit of it. Values equal up to case are
    one, under the first index.
    """

    def __init__(self, values: Sequence[str]) -> None:
        self._automaton = ahocorasick.Automaton()
        for index, folded in enumerate(value.casefold() for value in values):
            if folded and folded not in self._automaton:
                self._automaton.add_word(folded, (index, len(folded)))
        if len(self._automaton):
            self._automaton.make_automaton()

    def find_value_indices(self, text: str) -> Iterator[int]:
        """The offset of each occurrence in ``text``, overlapping ones included."""
        if not len(self._automaton):
            return
        folded = text.casefold()
        for last, (index, length) in self._automaton.iter(folded):
            start, end = last + 1 - length, last + 1
            joins = ((folded[start - 1 : start], folded[start]), (folded[last], folded[end : end + 1]))
            if not any(left.isalnum() and right.isalnum() for left, right in joins):
                yield index

    def count_occurrences(self, texts: Iterable[str]) -> Counter[int]:
        """The number of occurrences of each value in all ``texts``."""
        return Counter(index for text in texts for index in self.find_value_indices(text))
