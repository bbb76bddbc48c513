"""Membership inference: distinguish sentences whose secrets were trained on from similar ones.

Every attack scores each sentence (larger means more likely a member) and chooses a threshold on one half of the
sentences; its accuracy is that on the other half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory import training
from redactory.evaluation.statistics import RESAMPLES, compute_percentile_interval, estimate_proportion, make_estimate
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream

Scores = NDArray[np.float64]

GROUPS, GROUP_SIZE = 1_000, 20
"""Appendix A.5: a thousand groups of each kind, twenty sentences in each."""
FALSE_POSITIVE_RATES = (0.001, 0.01)
_MIN_TEXTS, _CHUNK_TEXTS = 4, 2_048
_MAX_CURVE_POINTS, _GROUP_RESAMPLES = 400, 200


def run_membership_attack(
    model: training.LanguageModel,
    members: Sequence[str],
    non_members: Sequence[str],
    *,
    reference: training.LanguageModel | None = None,
    progress: Progress = ignore_progress,
    **options: Any,
) -> dict[str, Any]:
    """Attack ``model`` with ``members``, which were trained on, and as many ``non_members`` of the same form.

    ``individual`` uses a sentence's perplexity, ``group`` the sum over ``group_size`` sentences. With a ``reference``
    model, ``reference`` and ``rmia`` use how much likelier ``model`` finds the sentence, and ``reference_alone`` is
    ``individual`` against the reference. Options: ``groups``, ``group_size``, ``confidence`` and ``seed``. Returns
    {members, others, confidence} and for each attack {accuracy, scored, auc, tpr, roc} with metrics {value, low, high}
    at ``confidence`` (pass 1 - 0.05 / k for k comparisons), or None. ``InputError`` for fewer than four sentences of a
    kind.
    """

    def score(scored_model: training.LanguageModel, texts: Sequence[str]) -> tuple[Scores, Scores]:
        tokens = _compute_token_log_probs(scored_model, texts, progress)
        # a float cannot hold a larger perplexity; only the order of sentences matters
        perplexities = np.exp(np.minimum([-log_probs.mean() for log_probs in tokens], 700.0))
        return -perplexities, np.array([log_probs.sum() for log_probs in tokens])

    return _run_attacks(score, model, reference, members, non_members, **options)


def run_class_membership_attack(
    model: training.model.TextClassifier,
    members: Sequence[tuple[str, str]],
    non_members: Sequence[tuple[str, str]],
    *,
    reference: training.model.TextClassifier | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Attack a classifier like :func:`run_membership_attack`, by the log probability of each text's class.

    ``members`` and ``non_members`` are texts with a class of ``model``.
    """

    def score(classifier: training.model.TextClassifier, rows: Sequence[tuple[str, str]]) -> tuple[Scores, Scores]:
        log_probs = classifier.compute_class_log_probs([text for text, _ in rows])
        scores = log_probs[np.arange(len(rows)), [classifier.classes.index(name) for _, name in rows]]
        return scores, scores

    return _run_attacks(score, model, reference, members, non_members, **options)


def _run_attacks(
    score: Callable[[Any, Sequence[Any]], tuple[Scores, Scores]],
    model: Any,
    reference: Any,
    members: Sequence[Any],
    non_members: Sequence[Any],
    groups: int = GROUPS,
    group_size: int = GROUP_SIZE,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Any]:
    """Run every attack; ``score`` returns a score and the log likelihood of each row under a model."""
    count = min(len(members), len(non_members))
    if count < _MIN_TEXTS:
        raise InputError(
            f"membership needs at least {_MIN_TEXTS} texts that were trained on, and as many that were not: got "
            f"{len(members)} and {len(non_members)}"
        )
    rows = [*members[:count], *non_members[:count]]
    # [2, n]: members, then others
    scores, likelihoods = (values.reshape(2, count) for values in score(model, rows))
    compared: dict[str, Any] = dict.fromkeys(("reference", "rmia", "reference_alone"))
    if reference is not None:
        reference_scores, reference_likelihoods = (values.reshape(2, count) for values in score(reference, rows))
        ratios = likelihoods - reference_likelihoods
        compared = {
            "reference": _run_score_attack(ratios, confidence, seed),
            "rmia": _run_rmia_attack(ratios, confidence, seed),
            "reference_alone": _run_score_attack(reference_scores, confidence, seed),
        }
    return {
        "members": count,
        "others": count,
        "confidence": confidence,
        "individual": _run_score_attack(scores, confidence, seed),
        "group": _run_group_attack(scores, groups // 2, group_size, confidence, seed),
        **compared,
    }


def _compute_token_log_probs(model: training.LanguageModel, texts: Sequence[str], progress: Progress) -> list[Scores]:
    log_probs: list[Scores] = []
    for start in range(0, len(texts), _CHUNK_TEXTS):
        log_probs += model.compute_token_log_probs(texts[start : start + _CHUNK_TEXTS])
        progress("membership", len(log_probs), len(texts), "sentences")
    return log_probs


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
    """Return the label with the most distinct values, the first on ties."""
    counts = Counter(label for label, _ in {(sentence.label, sentence.value) for sentence in sentences})
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


def split_halves(scores: Scores, seed: int) -> tuple[Scores, Scores]:
    """Split ``scores`` [2, n] of members and others at random: to choose a threshold, and to be scored."""
    stream, count = RandomStream.from_seed(seed), scores.shape[1]
    order = np.stack([stream.permutation("halves", kind, count) for kind in range(2)])
    shuffled = np.take_along_axis(scores, order, axis=1)
    return shuffled[:, : count // 2], shuffled[:, count // 2 :]


def _run_score_attack(scores: Scores, confidence: float, seed: int) -> dict[str, Any]:
    chosen, (ours, theirs) = split_halves(scores, seed)
    accuracy = measure_threshold_accuracy(ours, theirs, find_best_threshold(*chosen), confidence)
    return {**accuracy, **measure_roc_metrics(scores[0], scores[1], confidence, seed)}


def _run_rmia_attack(ratios: Scores, confidence: float, seed: int) -> dict[str, Any]:
    """Run RMIA: the population is the others of the threshold half; everything else is the scored half."""
    chosen, scored = split_halves(ratios, seed)
    threshold = find_best_threshold(*(compute_rmia_scores(part, chosen[1]) for part in chosen))
    ours, theirs = (compute_rmia_scores(part, chosen[1]) for part in scored)
    accuracy = measure_threshold_accuracy(ours, theirs, threshold, confidence)
    return {**accuracy, **measure_roc_metrics(ours, theirs, confidence, seed)}


def _run_group_attack(scores: Scores, groups: int, size: int, confidence: float, seed: int) -> dict[str, Any]:
    """Distinguish ``groups`` groups of ``size`` members from as many of others, in each half of the sentences.

    Groups are drawn with replacement from the sentences of one half, so they are not independent. The intervals are
    percentiles over draws of the sentences, and of groups from each draw.
    """
    rng = np.random.default_rng(seed)

    def sum_groups(pool: Scores) -> Scores:
        return np.asarray(rng.choice(pool, (groups, size)).sum(1))

    chosen, scored = split_halves(scores, seed)
    threshold = find_best_threshold(*map(sum_groups, chosen))

    def compute_metrics(members: Scores, non_members: Scores) -> list[float]:
        ours, theirs = sum_groups(members), sum_groups(non_members)
        right = (ours > threshold).mean() + (theirs <= threshold).mean()
        return [float(right / 2.0), compute_auc(ours, theirs)]

    accuracy, auc = _bootstrap_statistics(compute_metrics, scored, rng, confidence, _GROUP_RESAMPLES)
    return {
        "accuracy": accuracy,
        "auc": auc,
        "scored": 2 * groups,
        "groups": groups,
        "group_size": size,
        "sentences": scored.size,
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

    rng = np.random.default_rng(seed)
    auc, *rates = _bootstrap_statistics(compute_metrics, (positives, negatives), rng, confidence, resamples)
    tpr = {f"{rate:g}": rate_estimate for rate, rate_estimate in zip(FALSE_POSITIVE_RATES, rates, strict=True)}
    return {"auc": auc, "tpr": tpr, "roc": compute_roc(positives, negatives)}


def _bootstrap_statistics(
    statistic: Callable[..., list[float]],
    groups: Iterable[Scores],
    rng: np.random.Generator,
    confidence: float,
    resamples: int,
) -> list[dict[str, Any]]:
    observed = statistic(*groups)
    resampled = [statistic(*(rng.choice(group, len(group)) for group in groups)) for _ in range(resamples)]
    ends = compute_percentile_interval(resampled, confidence)
    return [make_estimate(value, float(low), float(high)) for value, low, high in zip(observed, *ends, strict=True)]


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
    from sklearn.metrics import roc_curve

    is_positive = np.repeat([1, 0], [len(positives), len(negatives)])
    curve = np.stack(roc_curve(is_positive, np.concatenate([positives, negatives]))[:2], axis=1)
    if len(curve) > _MAX_CURVE_POINTS:
        curve = curve[np.unique(np.geomspace(1.0, len(curve), _MAX_CURVE_POINTS).astype(np.int64) - 1)]
    return [[float(false), float(true)] for false, true in curve]
