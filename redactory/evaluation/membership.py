"""Membership inference: distinguish sentences whose secrets were trained on from similar ones.

Every attack scores each sentence (larger means more likely a member) and chooses a threshold on one half of the
sentences; its accuracy is that on the other half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count as counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.statistics import RESAMPLES, compute_percentile_interval, estimate_proportion, make_estimate
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream

if TYPE_CHECKING:
    from redactory.training import LanguageModel
    from redactory.training.model import TextClassifier

Scores = NDArray[np.float64]

GROUPS, GROUP_SIZE = 1_000, 20
"""Appendix A.5: a thousand groups of each kind, twenty sentences in each."""
FALSE_POSITIVE_RATES = (0.001, 0.01)
_MIN_TEXTS, _CHUNK_TEXTS = 4, 2_048
_MAX_CURVE_POINTS, _GROUP_RESAMPLES = 400, 200


def run_membership_attack(
    model: LanguageModel,
    members: Sequence[str],
    non_members: Sequence[str],
    *,
    reference: LanguageModel | None = None,
    groups: int = GROUPS,
    group_size: int = GROUP_SIZE,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Attack ``model`` with ``members``, which were trained on, and as many ``non_members`` of the same form.

    ``individual`` uses a sentence's perplexity, ``group`` the sum over ``group_size`` sentences. With a ``reference``
    model, ``reference`` and ``rmia`` use how much likelier ``model`` finds the sentence, and ``reference_alone`` is
    ``individual`` against the reference. Returns {members, others, confidence} and for each attack {accuracy, scored,
    auc, tpr, roc} with metrics {value, low, high} at ``confidence`` (pass 1 - 0.05 / k for k comparisons), or None.
    ``InputError`` for fewer than four sentences of a kind.
    """
    count = min(len(members), len(non_members))
    if count < _MIN_TEXTS:
        raise InputError(f"membership needs at least {_MIN_TEXTS} sentences of each kind, got {count}")
    texts = [*members[:count], *non_members[:count]]
    tokens = _compute_token_log_probs(model, texts, progress)
    ratios = theirs = None
    if reference is not None:
        reference_tokens = _compute_token_log_probs(reference, texts, progress)
        theirs = -_compute_perplexities(reference_tokens)
        ratios = np.array([t.sum() - r.sum() for t, r in zip(tokens, reference_tokens, strict=True)])
    return _run_attacks(-_compute_perplexities(tokens), ratios, theirs, groups, group_size, confidence, seed)


def run_class_membership_attack(
    model: TextClassifier,
    members: Sequence[tuple[str, str]],
    non_members: Sequence[tuple[str, str]],
    *,
    reference: TextClassifier | None = None,
    groups: int = GROUPS,
    group_size: int = GROUP_SIZE,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Any]:
    """Attack a classifier like :func:`run_membership_attack`, by the log probability of each text's class.

    ``members`` and ``non_members`` are texts with a class of ``model``.
    """
    count = min(len(members), len(non_members))
    if count < _MIN_TEXTS:
        raise InputError(
            f"membership needs at least {_MIN_TEXTS} texts with a class that were trained on, and as many that were "
            f"not: got {len(members)} and {len(non_members)}"
        )
    rows = [*members[:count], *non_members[:count]]

    def score(classifier: TextClassifier) -> Scores:
        log_probs = classifier.compute_class_log_probs([text for text, _ in rows])
        return log_probs[np.arange(len(rows)), [classifier.classes.index(name) for _, name in rows]]

    scores, theirs = score(model), None if reference is None else score(reference)
    ratios = None if theirs is None else scores - theirs
    return _run_attacks(scores, ratios, theirs, groups, group_size, confidence, seed)


def _run_attacks(
    scores: Scores,
    ratios: Scores | None,
    reference_scores: Scores | None,
    groups: int,
    group_size: int,
    confidence: float,
    seed: int,
) -> dict[str, Any]:
    """Run every attack on scores of n members and then n others; ``ratios`` are those to a reference model's."""
    count = len(scores) // 2
    split = SentenceSplit.draw_random(count, seed)
    compared: dict[str, Any] = {"reference": None, "rmia": None, "reference_alone": None}
    if ratios is not None and reference_scores is not None:
        compared = {
            "reference": _run_score_attack(ratios, split, confidence, seed),
            "rmia": _run_rmia_attack(ratios, split, confidence, seed),
            "reference_alone": _run_score_attack(reference_scores, split, confidence, seed),
        }
    return {
        "members": count,
        "others": count,
        "confidence": confidence,
        "individual": _run_score_attack(scores, split, confidence, seed),
        "group": _run_group_attack(scores, split, groups // 2, group_size, confidence, seed),
        **compared,
    }


def _compute_token_log_probs(model: LanguageModel, texts: Sequence[str], progress: Progress) -> list[Scores]:
    log_probs: list[Scores] = []
    for start in range(0, len(texts), _CHUNK_TEXTS):
        log_probs += model.compute_token_log_probs(texts[start : start + _CHUNK_TEXTS])
        progress("membership", len(log_probs), len(texts), "sentences")
    return log_probs


def _compute_perplexities(tokens: Sequence[Scores]) -> Scores:
    # a float cannot hold a larger perplexity; only the order of sentences matters
    return np.exp(np.minimum([-log_probs.mean() for log_probs in tokens], 700.0))


# The sentences (CRT, appendix A.5) are random sentences of the corpus; in one half of them the secret is
# replaced by a value that does not occur in the corpus, so that only the value distinguishes the halves.


@dataclass(frozen=True)
class SecretSentence:
    """An example and the attacked secret in it, ``text[start:end]``."""

    text: str = field(repr=False)
    start: int
    end: int
    label: str

    @property
    def value(self) -> str:
        """The secret."""
        return self.text[self.start : self.end]


def find_most_common_label(sentences: Iterable[SecretSentence]) -> str:
    """Return the label with the most distinct values, the first on ties; ``InputError`` if there is none."""
    counts = Counter(label for label, _ in {(sentence.label, sentence.value) for sentence in sentences})
    if not counts:
        raise InputError("membership: no labelled secret falls entirely within one example of the corpus")
    return min(counts, key=lambda label: (-counts[label], label))


def draw_member_texts(
    sentences: Iterable[SecretSentence],
    make_new_values: Callable[[Sequence[SecretSentence]], Sequence[str | None]],
    count: int = 1_000,
    seed: int = 0,
) -> tuple[list[str], list[str]]:
    """Draw ``count`` sentences unchanged and ``count`` with another value, or as many of each as possible.

    No two have the same secret. ``make_new_values`` returns for each sentence a value of the same form that does not
    occur in the corpus, or None to leave it out.
    """
    apart = list({sentence.value: sentence for sentence in reversed(list(sentences))}.values())[::-1]
    order = RandomStream.from_seed(seed).permutation("members", 0, len(apart))
    drawn = [apart[i] for i in order[: 2 * count]]
    # alternate, so that both halves have equal sizes if there are few
    member_sentences, exchanged = drawn[0::2], drawn[1::2]
    others = [
        sentence.text[: sentence.start] + value + sentence.text[sentence.end :]
        for sentence, value in zip(exchanged, make_new_values(exchanged), strict=True)
        if value is not None
    ]
    number = min(len(member_sentences), len(others))
    return [sentence.text for sentence in member_sentences[:number]], others[:number]


@dataclass(frozen=True)
class SentenceSplit:
    """Sentences that choose the threshold and those that are scored; of 2n, the first n are members."""

    threshold_indices: NDArray[np.int64]
    scoring_indices: NDArray[np.int64]
    count: int

    @classmethod
    def draw_random(cls, count: int, seed: int) -> SentenceSplit:
        """Split the members at random into two halves, and the non-members likewise."""
        stream = RandomStream.from_seed(seed)
        orders = [stream.permutation("halves", kind, count) + kind * count for kind in range(2)]
        chosen = np.concatenate([order[: count // 2] for order in orders])
        scored = np.concatenate([order[count // 2 :] for order in orders])
        return cls(np.sort(chosen), np.sort(scored), count)

    def split_scores(self, scores: Scores, indices: NDArray[np.int64]) -> tuple[Scores, Scores]:
        """The scores at ``indices`` of members and of non-members."""
        return scores[indices[indices < self.count]], scores[indices[indices >= self.count]]


def _run_score_attack(scores: Scores, split: SentenceSplit, confidence: float, seed: int) -> dict[str, Any]:
    threshold = find_best_threshold(*split.split_scores(scores, split.threshold_indices))
    accuracy = measure_threshold_accuracy(*split.split_scores(scores, split.scoring_indices), threshold, confidence)
    return {**accuracy, **measure_roc_metrics(scores[: split.count], scores[split.count :], confidence, seed)}


def _run_rmia_attack(ratios: Scores, split: SentenceSplit, confidence: float, seed: int) -> dict[str, Any]:
    """Run RMIA: the population is the others of the threshold half; everything else is the scored half."""
    members, population = split.split_scores(ratios, split.threshold_indices)
    threshold = find_best_threshold(
        compute_rmia_scores(members, population), compute_rmia_scores(population, population)
    )
    ours, theirs = (compute_rmia_scores(part, population) for part in split.split_scores(ratios, split.scoring_indices))
    accuracy = measure_threshold_accuracy(ours, theirs, threshold, confidence)
    return {**accuracy, **measure_roc_metrics(ours, theirs, confidence, seed)}


def _run_group_attack(
    scores: Scores, split: SentenceSplit, groups: int, size: int, confidence: float, seed: int
) -> dict[str, Any]:
    """Distinguish ``groups`` groups of ``size`` members from as many of others, in each half of the sentences.

    Groups are drawn with replacement from the sentences of one half, so they are not independent. The intervals are
    percentiles over draws of the sentences, and of groups from each draw.
    """
    stream, draws = RandomStream.from_seed(seed), counter()

    def sum_groups(pool: Scores) -> Scores:
        drawn = _resample_scores(pool, stream, "groups", next(draws), groups * size)
        return np.asarray(drawn.reshape(groups, size).sum(1))

    threshold = find_best_threshold(*map(sum_groups, split.split_scores(scores, split.threshold_indices)))
    pools = split.split_scores(scores, split.scoring_indices)

    def compute_metrics(members: Scores, non_members: Scores) -> list[float]:
        ours, theirs = sum_groups(members), sum_groups(non_members)
        right = (ours > threshold).mean() + (theirs <= threshold).mean()
        return [float(right / 2.0), compute_auc(ours, theirs)]

    accuracy, auc = _bootstrap_statistics(compute_metrics, pools, stream, confidence, _GROUP_RESAMPLES)
    return {
        "accuracy": accuracy,
        "auc": auc,
        "scored": 2 * groups,
        "groups": groups,
        "group_size": size,
        "sentences": sum(map(len, pools)),
    }


def compute_rmia_scores(ratios: Scores, population: Scores) -> Scores:
    """Return P_z[ratio(x) / ratio(z) >= 1] of each x (Zarifzadeh et al. 2024, equation 2), ties half: [n].

    ``ratios`` [n] and those of the ``population`` are natural logs. 1 minus a threshold on it is about the accepted
    rate of false positives.
    """
    ordered = np.sort(population)
    both = np.searchsorted(ordered, ratios, "left") + np.searchsorted(ordered, ratios, "right")
    return np.asarray(both / (2 * len(ordered)))


def find_best_threshold(members: Scores, non_members: Scores) -> float:
    """Return the threshold with the best accuracy; the middle one on ties."""
    every = np.unique(np.concatenate([members, non_members]))
    cuts = np.concatenate([[-np.inf], (every[1:] + every[:-1]) / 2.0, [np.inf]])
    over = 1.0 - np.searchsorted(np.sort(members), cuts) / len(members)
    right = over + np.searchsorted(np.sort(non_members), cuts) / len(non_members)
    best = np.flatnonzero(right >= right.max() - 1e-12)
    return float(cuts[best[len(best) // 2]])


def measure_threshold_accuracy(
    members: Scores, non_members: Scores, threshold: float, confidence: float
) -> dict[str, Any]:
    """Return {accuracy, scored}: the accuracy of ``threshold``, with its Clopper-Pearson interval."""
    right = int((members > threshold).sum() + (non_members <= threshold).sum())
    scored = len(members) + len(non_members)
    return {"accuracy": estimate_proportion(right, scored, confidence), "scored": scored}


# How well scores separate two groups, at every threshold.


def measure_roc_metrics(
    positives: Scores, negatives: Scores, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Any]:
    """Return {auc, tpr: {"0.001", "0.01"}, roc: [[false, true], ...]} of scores [n] and [m], larger is positive.

    Metrics {value, low, high} have percentile intervals over ``resamples`` draws of both groups with replacement. With
    m negatives, false positive rates between 0 and 1/m cannot be distinguished from 0.
    """

    def compute_metrics(positive_scores: Scores, negative_scores: Scores) -> list[float]:
        return [
            compute_auc(positive_scores, negative_scores),
            *(compute_true_positive_rate(positive_scores, negative_scores, rate) for rate in FALSE_POSITIVE_RATES),
        ]

    stream = RandomStream.from_seed(seed)
    auc, *rates = _bootstrap_statistics(compute_metrics, (positives, negatives), stream, confidence, resamples)
    tpr = {f"{rate:g}": rate_estimate for rate, rate_estimate in zip(FALSE_POSITIVE_RATES, rates, strict=True)}
    return {"auc": auc, "tpr": tpr, "roc": compute_roc(positives, negatives)}


def _bootstrap_statistics(
    statistic: Callable[[Scores, Scores], list[float]],
    groups: tuple[Scores, Scores],
    stream: RandomStream,
    confidence: float,
    resamples: int,
) -> list[dict[str, Any]]:
    observed = statistic(*groups)
    resampled = [
        statistic(*(_resample_scores(group, stream, f"group {kind}", number) for kind, group in enumerate(groups)))
        for number in range(resamples)
    ]
    ends = compute_percentile_interval(resampled, confidence)
    return [make_estimate(value, float(low), float(high)) for value, low, high in zip(observed, *ends, strict=True)]


def _resample_scores(pool: Scores, stream: RandomStream, purpose: str, number: int, count: int | None = None) -> Scores:
    coins = stream.uniform(purpose, number, len(pool) if count is None else count)
    return np.asarray(pool[(coins * len(pool)).astype(np.int64)])


def compute_auc(positives: Scores, negatives: Scores) -> float:
    """Return the probability that a positive scores above a negative, ties counting half."""
    return float(compute_rmia_scores(positives, negatives).mean())


def compute_true_positive_rate(positives: Scores, negatives: Scores, rate: float) -> float:
    """Return the share of positives above a threshold that at most ``rate`` of the negatives pass."""
    allowed = int(rate * len(negatives))
    threshold = np.sort(negatives)[::-1][allowed] if allowed < len(negatives) else -np.inf
    return float((positives > threshold).mean())


def compute_roc(positives: Scores, negatives: Scores) -> list[list[float]]:
    """Return [share of negatives, share of positives] at or above every threshold, from [0, 0] to [1, 1].

    Long curves are thinned for a logarithmic axis of the first share.
    """
    thresholds = np.unique(np.concatenate([positives, negatives]))[::-1]
    true = 1.0 - np.searchsorted(np.sort(positives), thresholds, "left") / len(positives)
    false = 1.0 - np.searchsorted(np.sort(negatives), thresholds, "left") / len(negatives)
    kept_indices = np.flatnonzero(np.diff(false, append=2.0) > 0)  # the highest point of each vertical step
    if len(kept_indices) > _MAX_CURVE_POINTS:
        kept_indices = kept_indices[
            np.unique(np.geomspace(1.0, len(kept_indices), _MAX_CURVE_POINTS).astype(np.int64) - 1)
        ]
    return [[0.0, 0.0], *np.stack([false[kept_indices], true[kept_indices]], 1).tolist()]
