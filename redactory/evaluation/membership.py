"""Membership inference: can sentences whose secrets were trained on be told from others like them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.statistics import RESAMPLES, figure, percentiles, proportion
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream

if TYPE_CHECKING:
    from redactory.training import LanguageModel

Scores = NDArray[np.float64]

GROUPS, GROUP_SIZE = 1_000, 20
"""Appendix A.5: a thousand groups of each kind, twenty sentences in each."""
_LEAST_TEXTS = 4
_CHUNK_TEXTS = 2_048


def membership(
    model: LanguageModel,
    members: Sequence[str],
    others: Sequence[str],
    *,
    reference: LanguageModel | None = None,
    groups: int = GROUPS,
    group_size: int = GROUP_SIZE,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Attack ``model`` on ``members``, sentences that were trained on, and ``others`` of the same form.

    As many of each are used; the result says how many.  ``individual`` takes a sentence of low perplexity
    for a member, ``group`` a group of ``group_size`` by the sum of its perplexities; with a ``reference``
    model, ``reference`` and ``rmia`` take the sentences that ``model`` finds likelier than that
    (:mod:`redactory.evaluation.membership`), and ``reference_alone`` is ``individual`` against the
    reference: what the sentences give away without any model that learnt them.

    Each attack is {accuracy, scored, auc, tpr: {"0.001", "0.01"}, roc} with figures {value, low, high}, or
    None; an accuracy is of the half that chose no threshold, with an exact interval, the others are over
    all sentences, with percentiles of the bootstrap.  Intervals have ``confidence``; for the Bonferroni
    correction of k comparisons give 1 - 0.05 / k.  Returns {members, others, confidence, individual, group,
    reference, rmia, reference_alone}.

    Raises ``InputError`` where fewer than four sentences of a kind are given.
    """
    count = min(len(members), len(others))
    if count < _LEAST_TEXTS:
        raise InputError(
            f"membership needs at least {_LEAST_TEXTS} sentences of each kind; there are {count}"
        )
    halves = Halves.of(count, seed)
    texts = [*members[:count], *others[:count]]
    tokens = log_probs(model, texts, progress)
    found = _perplexities(tokens)
    alone, compared = None, {"reference": None, "rmia": None}
    if reference is not None:
        theirs = log_probs(reference, texts, progress)
        alone = attack(-_perplexities(theirs), halves, confidence, seed)
        ratios = np.array([t.sum() - r.sum() for t, r in zip(tokens, theirs, strict=True)])
        compared = reference_attacks(ratios, halves, confidence, seed)
    return {
        "members": count,
        "others": count,
        "confidence": confidence,
        "individual": attack(-found, halves, confidence, seed),
        "group": group_attack(found, halves, groups // 2, group_size, confidence, seed),
        **compared,
        "reference_alone": alone,
    }


def log_probs(model: LanguageModel, texts: Sequence[str], progress: Progress = silent) -> list[Scores]:
    """Natural log probability of every token of every text, its end included."""
    found: list[Scores] = []
    for start in range(0, len(texts), _CHUNK_TEXTS):
        found += model.token_log_probs(texts[start : start + _CHUNK_TEXTS])
        progress("membership", len(found), len(texts), "sentences")
    return found


def _perplexities(tokens: Sequence[Scores]) -> Scores:
    # beyond that a float holds no perplexity; the order of sentences is all that counts
    return np.exp(np.minimum([-one.mean() for one in tokens], 700.0))


# The sentences of an attack: a thousand with their own secrets, a thousand with others.
#
# CRT, appendix A.5: half are protected secrets that were trained on, half "of similar format" that were not.
# Here both halves are sentences of the corpus, drawn alike; in one half the secret is replaced by a value
# that stands nowhere in the corpus.  What tells the halves apart is the value, not the sentence around it.


@dataclass(frozen=True)
class SecretSentence:
    """A point and the one secret in it that the attack is about, ``text[start:end]``."""

    text: str = field(repr=False)
    start: int
    end: int
    label: str

    @property
    def value(self) -> str:
        """The secret."""
        return self.text[self.start : self.end]

    def with_value(self, value: str) -> str:
        """The sentence with another secret."""
        return self.text[: self.start] + value + self.text[self.end :]


def commonest_label(sentences: Iterable[SecretSentence]) -> str:
    """The label with the most different values, of equal ones the first; ``InputError`` without any."""
    values = {(one.label, one.value) for one in sentences}
    counts = Counter(label for label, _ in values)
    if not counts:
        raise InputError("membership: no labelled secret lies whole in a point of the corpus")
    return min(counts, key=lambda label: (-counts[label], label))


def member_texts(
    sentences: Iterable[SecretSentence],
    fresh: Callable[[Sequence[SecretSentence]], Sequence[str | None]],
    count: int = 1_000,
    seed: int = 0,
) -> tuple[list[str], list[str]]:
    """``count`` sentences as they are and ``count`` with another value, or as many of each as there are.

    No two of the sentences have the same secret.  ``fresh`` gives for each sentence a value of the same form
    that stands nowhere in the corpus, or None; a sentence without one is left out.

    Returns (members, others), of equal number.
    """
    of_value: dict[str, SecretSentence] = {}
    for one in sentences:
        of_value.setdefault(one.value, one)
    apart = list(of_value.values())
    order = RandomStream.from_seed(seed).permutation("members", 0, len(apart))
    drawn = [apart[i] for i in order[: 2 * count]]
    # alternately, so that both halves are as large where there are few
    kept, exchanged = drawn[0::2], drawn[1::2]
    given = fresh(exchanged)
    others = [one.with_value(v) for one, v in zip(exchanged, given, strict=True) if v is not None]
    number = min(len(kept), len(others))
    return [one.text for one in kept[:number]], others[:number]


# How well scores tell two groups apart, at every threshold: ROC, area, true positives at few false ones.


FALSE_POSITIVE_RATES = (0.001, 0.01)
_MOST_POINTS = 400
_BLOCK = 100


def separation(
    positives: Scores, negatives: Scores, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Any]:
    """Figures of scores [n] of ``positives`` and [m] of ``negatives``, the larger the likelier positive.

    Returns {auc, tpr: {"0.001": F, "0.01": F}, roc: [[false, true], ...]}, F = {value, low, high}: percentile
    intervals over ``resamples`` draws of both groups with replacement.  With m negatives no rate of false
    positives between 0 and 1/m can be told from 0: the true positives at it are those over every negative.
    """
    drawn = _again(positives, negatives, RandomStream.from_seed(seed), resamples)
    figures = _figures(_of_groups(positives, negatives), drawn, confidence)
    return {
        "auc": figures[0],
        "tpr": {f"{rate:g}": one for rate, one in zip(FALSE_POSITIVE_RATES, figures[1:], strict=True)},
        "roc": roc(positives, negatives),
    }


def _figures(found: Sequence[float], drawn: Scores, confidence: float) -> list[dict[str, Any]]:
    """Figures with the percentile intervals of their resamples [resamples, figures]."""
    ends = percentiles(drawn, confidence)
    return [figure(v, float(low), float(high)) for v, low, high in zip(found, *ends, strict=True)]


def area(positives: Scores, negatives: Scores) -> float:
    """The probability that a positive scores over a negative, equal scores counting half."""
    ordered = np.sort(negatives)
    below = np.searchsorted(ordered, positives, "left") + np.searchsorted(ordered, positives, "right")
    return float(below.mean() / (2 * len(negatives)))


def true_positives(positives: Scores, negatives: Scores, rate: float) -> float:
    """The share of positives over a threshold that at most ``rate`` of the negatives pass."""
    allowed = int(rate * len(negatives))
    threshold = np.sort(negatives)[::-1][allowed] if allowed < len(negatives) else -np.inf
    return float((positives > threshold).mean())


def _of_groups(positives: Scores, negatives: Scores) -> list[float]:
    rates = [true_positives(positives, negatives, rate) for rate in FALSE_POSITIVE_RATES]
    return [area(positives, negatives), *rates]


def roc(positives: Scores, negatives: Scores) -> list[list[float]]:
    """[share of negatives, share of positives] at or over every threshold, rising from [0, 0] to [1, 1].

    Of many points, those are kept that a curve over the logarithm of the first share needs.
    """
    thresholds = np.unique(np.concatenate([positives, negatives]))[::-1]
    ups, downs = np.sort(positives), np.sort(negatives)
    true = 1.0 - np.searchsorted(ups, thresholds, "left") / len(ups)
    false = 1.0 - np.searchsorted(downs, thresholds, "left") / len(downs)
    kept = _corners(false, true)
    return [[0.0, 0.0], *([float(false[i]), float(true[i])] for i in kept)]


def _corners(false: Scores, true: Scores) -> Sequence[int]:
    last = np.flatnonzero(np.diff(false, append=2.0) > 0)  # the highest point of each vertical step
    if len(last) <= _MOST_POINTS:
        return [int(i) for i in last]
    wanted = np.geomspace(1.0, len(last), _MOST_POINTS).astype(np.int64) - 1
    return [int(last[i]) for i in np.unique(wanted)]


def _again(positives: Scores, negatives: Scores, stream: RandomStream, resamples: int) -> Scores:
    """The area and the true positives of each draw of both groups with replacement: [resamples, 3]."""
    drawn = []
    for first in range(0, resamples, _BLOCK):
        size = min(_BLOCK, resamples - first)
        groups = (
            group[(stream.uniform(f"group {kind}", first, size * len(group)) * len(group)).astype(np.int64)]
            for kind, group in enumerate((positives, negatives))
        )
        drawn += [
            _of_groups(ups, downs) for ups, downs in zip(*(g.reshape(size, -1) for g in groups), strict=True)
        ]
    return np.array(drawn)


# A threshold on scores, chosen on one half of the sentences and scored on the other.


@dataclass(frozen=True)
class Halves:
    """Which sentences choose the threshold and which are scored; of 2n, the first n are members."""

    chosen: NDArray[np.int64]
    scored: NDArray[np.int64]
    count: int

    @classmethod
    def of(cls, count: int, seed: int) -> Halves:
        """A fair cut of the members, and another of the others."""
        stream = RandomStream.from_seed(seed)
        parts = [stream.permutation("halves", kind, count) + kind * count for kind in range(2)]
        cut = count // 2
        chosen, scored = (
            np.concatenate(both) for both in zip(*((p[:cut], p[cut:]) for p in parts), strict=True)
        )
        return cls(np.sort(chosen), np.sort(scored), count)

    def split(self, scores: Scores, places: NDArray[np.int64]) -> tuple[Scores, Scores]:
        """The scores at ``places`` of members and of others."""
        return scores[places[places < self.count]], scores[places[places >= self.count]]


def attack(scores: Scores, halves: Halves, confidence: float, seed: int) -> dict[str, Any]:
    """The figures of one attack; the larger a score, the likelier a member."""
    threshold = best_threshold(*halves.split(scores, halves.chosen))
    accuracy = scored_accuracy(*halves.split(scores, halves.scored), threshold, confidence)
    return {**accuracy, **separation(scores[: halves.count], scores[halves.count :], confidence, seed)}


def best_threshold(members: Scores, others: Scores) -> float:
    """The threshold over which most are members and under which most are not; of equal ones the middle."""
    every = np.unique(np.concatenate([members, others]))
    cuts = np.concatenate([[-np.inf], (every[1:] + every[:-1]) / 2.0, [np.inf]])
    over = 1.0 - np.searchsorted(np.sort(members), cuts) / len(members)
    under = np.searchsorted(np.sort(others), cuts) / len(others)
    right = over + under
    best = np.flatnonzero(right >= right.max() - 1e-12)
    return float(cuts[best[len(best) // 2]])


def scored_accuracy(members: Scores, others: Scores, threshold: float, confidence: float) -> dict[str, Any]:
    """{accuracy, scored}: the share that ``threshold`` tells right, with its Clopper-Pearson interval."""
    right = int((members > threshold).sum() + (others <= threshold).sum())
    scored = len(members) + len(others)
    return {"accuracy": proportion(right, scored, confidence), "scored": scored}


# Group membership inference (CRT, appendix A.5): twenty sentences together, by the sum of perplexities.


_RESAMPLES = 200


def group_attack(
    perplexities: Scores, halves: Halves, groups: int, size: int, confidence: float, seed: int
) -> dict[str, Any]:
    """Tell ``groups`` groups of ``size`` members from as many of others, in each half of the sentences.

    A group is drawn, with replacement, from the sentences of one half, so that none is in a group that
    chooses the threshold and in one that is scored.  Groups share sentences and are not independent: the
    intervals are percentiles over draws of the sentences themselves, and of groups from each draw.

    Returns {accuracy, auc, scored, groups, group_size, sentences}: of the half that is scored.
    """
    stream = RandomStream.from_seed(seed)

    def again(pool: Scores, purpose: str, number: int, count: int) -> Scores:
        drawn = stream.uniform(purpose, number, count)
        return np.asarray(pool[(drawn * len(pool)).astype(np.int64)])

    def sums(purpose: str, pool: Scores, number: int = 0) -> Scores:
        drawn = again(pool, f"groups, {purpose} {len(pool)}", number, groups * size)
        return np.asarray(-drawn.reshape(groups, size).sum(1))

    threshold = best_threshold(*(sums("chosen", s) for s in halves.split(perplexities, halves.chosen)))
    pools = halves.split(perplexities, halves.scored)

    def measured(purpose: str, number: int, drawn: Sequence[Scores]) -> tuple[float, float]:
        members, others = (sums(f"{purpose} {kind}", pool, number) for kind, pool in enumerate(drawn))
        right = (members > threshold).mean() + (others <= threshold).mean()
        return float(right / 2.0), area(members, others)

    found = measured("scored", 0, pools)
    resampled = np.array(
        [
            measured("again", n, [again(p, f"sentences {kind}", n, len(p)) for kind, p in enumerate(pools)])
            for n in range(_RESAMPLES)
        ]
    )
    accuracy, auc = _figures(found, resampled, confidence)
    return {
        "accuracy": accuracy,
        "auc": auc,
        "scored": 2 * groups,
        "groups": groups,
        "group_size": size,
        "sentences": sum(map(len, pools)),
    }


# Membership inference with one reference model: what a model finds likelier than another that never saw
# it.


def rmia_scores(ratios: Scores, population: Scores, gamma: float = 1.0) -> Scores:
    """For each of ``ratios`` (natural logs, [n]) the share of ``population`` that it is ``gamma`` times: [n].

    P_z[ratio(x) / ratio(z) >= γ] (Zarifzadeh et al. 2024, equation 2), z of the population; equal ones
    count half.  1 less a threshold on it is about the rate of false positives to be borne.
    """
    ordered, asked = np.sort(population), ratios - np.log(gamma)
    both = np.searchsorted(ordered, asked, "left") + np.searchsorted(ordered, asked, "right")
    return np.asarray(both / (2 * len(ordered)))


def reference_attacks(ratios: Scores, halves: Halves, confidence: float, seed: int) -> dict[str, Any]:
    """{reference, rmia}: the figures of both attacks, ``ratios`` [2n] those of n members and n others.

    The population of RMIA is the others of the half that is not scored, and all its figures are of the
    other half.  Its curve is that of the ratio on these sentences, in steps of the population.
    """
    members, population = halves.split(ratios, halves.chosen)
    threshold = best_threshold(rmia_scores(members, population), rmia_scores(population, population))
    scored = [rmia_scores(part, population) for part in halves.split(ratios, halves.scored)]
    return {
        "reference": attack(ratios, halves, confidence, seed),
        "rmia": {
            **scored_accuracy(scored[0], scored[1], threshold, confidence),
            **separation(scored[0], scored[1], confidence, seed),
        },
    }
