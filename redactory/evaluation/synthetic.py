"""Measure how useful a model's text is compared with real text, and what it reveals of its training text.

``measure_text_quality`` compares with held-out text. ``measure_leakage`` attacks only the texts, with held-out text
that was not trained on: then chance has a known distribution, and a larger result shows memorisation.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from redactory.detectors.spacy_model import find_model_folder, find_pipeline, import_lean_spacy
from redactory.evaluation.canary import parse_canary_sets
from redactory.evaluation.linkage import ValueSearch
from redactory.evaluation.membership import measure_roc_metrics
from redactory.evaluation.statistics import compute_fisher_p_value, compute_percentile_interval, make_estimate
from redactory.foundation.errors import InputError
from redactory.foundation.stream import RandomStream

FeatureMatrix = NDArray[np.float64]
ClassedText = tuple[str, str | None]
"""A text and its class, or None."""
MIN_TEXTS, MAX_TEXTS = 10, 1_000
"""The fewest texts of a kind for a result, and the most that are compared."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_END = "\n"


def tokenize_words(text: str) -> list[str]:
    """Lower-case words and punctuation marks."""
    return _TOKEN.findall(text.casefold())


# Simple models that train in seconds, to compare their training texts.


class NgramModel:
    """A language model of counts: each order interpolated with the one below, discounted by ``DISCOUNT``.

    It looks back at most ``MAX_ORDER`` words. Unseen words share the remaining probability.
    """

    DISCOUNT, MAX_ORDER = 0.75, 2

    def __init__(self, texts: Iterable[str]) -> None:
        # by the preceding words, of every number up to MAX_ORDER
        self._counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for text in texts:
            for context, word in self._iter_contexts(text):
                for start in range(len(context) + 1):
                    self._counts[context[start:]][word] += 1
        self._vocabulary_size = len(self._counts[()]) + 1
        self._predictions: dict[tuple[str, ...], str] = {}

    def compute_mean_log_prob(self, text: str) -> float:
        """Return the mean natural log probability of a word of ``text``, with its end as a word."""
        log_probs = [math.log(self._compute_probability(*pair)) for pair in self._iter_contexts(text)]
        return sum(log_probs) / len(log_probs)

    def count_correct_predictions(self, text: str) -> tuple[int, int]:
        """Return how many words of ``text``, with its end as a word, are the likeliest ones; and the total."""
        is_correct = [self._predict_word(context) == word for context, word in self._iter_contexts(text)]
        return sum(is_correct), len(is_correct)

    def _compute_probability(self, context: tuple[str, ...], word: str) -> float:
        share = 1.0 / self._vocabulary_size
        for start in range(len(context), -1, -1):
            word_counts = self._counts.get(context[start:])
            if word_counts is None:
                break
            total = word_counts.total()
            discounted = max(word_counts[word] - self.DISCOUNT, 0.0)
            share = discounted / total + share * self.DISCOUNT * len(word_counts) / total
        return share

    def _predict_word(self, preceding: tuple[str, ...]) -> str:
        for start in range(len(preceding) + 1):
            context = preceding[start:]
            if word_counts := self._counts.get(context):
                if context not in self._predictions:
                    self._predictions[context] = min(word_counts, key=lambda word: (-word_counts[word], word))
                return self._predictions[context]
        return _END

    def _iter_contexts(self, text: str) -> Iterator[tuple[tuple[str, ...], str]]:
        words = [*[_END] * self.MAX_ORDER, *tokenize_words(text), _END]
        return ((tuple(words[i - self.MAX_ORDER : i]), words[i]) for i in range(self.MAX_ORDER, len(words)))


def _count_ngrams(texts: Iterable[str], size: int) -> Counter[tuple[str, ...]]:
    words = map(tokenize_words, texts)
    return Counter(chain.from_iterable(zip(*(each[start:] for start in range(size)), strict=False) for each in words))


def measure_classifier_error(train: Sequence[ClassedText], test: Sequence[ClassedText]) -> float | None:
    """Return the error rate on ``test`` of naive Bayes over words and word pairs trained on ``train``."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline

    known_train, known_test = ([row for row in rows if row[1] is not None] for rows in (train, test))
    if not known_train or not known_test:
        return None
    words = CountVectorizer(tokenizer=tokenize_words, token_pattern=None, ngram_range=(1, 2))
    classifier = make_pipeline(words, MultinomialNB()).fit(*zip(*known_train, strict=True))
    return float(1.0 - classifier.score(*zip(*known_test, strict=True)))


def measure_text_quality(
    generated: Sequence[ClassedText],
    real: Sequence[ClassedText],
    held_out: Sequence[ClassedText],
    labels: Sequence[str] = (),
    features: Callable[[Sequence[str]], FeatureMatrix] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare ``generated`` rows with as many ``real`` rows, both against ``held_out`` ones.

    Each of {next_word_accuracy, classifier_error, unigram_distance, bigram_distance (Jensen-Shannon, bits),
    length_distance (Wasserstein, words), distinct_2, mauve} is {written, real}; ``coverage`` is the generated share of
    ``labels``. ``real`` is the best achievable value; unknown ones are null. ``features`` [n, d] are those of a model
    of public text (``embed_texts``).
    """
    order = RandomStream.from_seed(seed).permutation("real", 0, len(real))[: len(generated)]
    sides = {"written": list(generated), "real": [real[i] for i in order.tolist()]}
    test = [text for text, _ in held_out]
    theirs = None if features is None else features(test)

    def score_rows(rows: Sequence[ClassedText]) -> dict[str, float | None]:
        texts = [text for text, _ in rows]
        words, lengths = NgramModel(texts), ([len(text.split()) for text in text_list] for text_list in (texts, test))
        right = np.array([words.count_correct_predictions(text) for text in test]).sum(0)
        pairs = _count_ngrams(texts, 2)
        return {
            "next_word_accuracy": float(right[0] / right[1]),
            "classifier_error": measure_classifier_error(rows, held_out),
            "unigram_distance": _compute_ngram_divergence(texts, test, 1),
            "bigram_distance": _compute_ngram_divergence(texts, test, 2),
            "length_distance": float(scipy.stats.wasserstein_distance(*lengths)),
            "distinct_2": len(pairs) / pairs.total() if pairs else None,
            "mauve": None if features is None or theirs is None else compute_mauve(features(texts), theirs, seed),
        }

    metrics = {source: score_rows(rows) for source, rows in sides.items()}
    covered = {label for _, label in generated} & set(labels)
    return {
        **{name: {source: figures[name] for source, figures in metrics.items()} for name in metrics["real"]},
        "coverage": len(covered) / len(labels) if labels else None,
    }


def _compute_ngram_divergence(texts: Iterable[str], other_texts: Iterable[str], size: int) -> float | None:
    """Return the Jensen-Shannon divergence of the n-grams, in bits: 0 if equal, 1 if none is shared."""
    first, second = _count_ngrams(texts, size), _count_ngrams(other_texts, size)
    if not first or not second:
        return None
    keys = list(first | second)
    p, q = (np.array([ngram_counts[key] for key in keys]) / ngram_counts.total() for ngram_counts in (first, second))
    return float(scipy.spatial.distance.jensenshannon(p, q, base=2) ** 2)


def compute_mauve(features: FeatureMatrix, other_features: FeatureMatrix, seed: int = 0, scale: float = 5.0) -> float:
    """Return the area under the divergence curve of two sets of features, in (0, 1], 1 if equal.

    Both are clustered together, with a tenth as many clusters as points (Pillutla et al. 2021, section 2).
    """
    whitened = scipy.cluster.vq.whiten(np.concatenate([features, other_features]), check_finite=False)
    clusters = max(2, min(len(features), len(other_features)) // 10)
    _, place = scipy.cluster.vq.kmeans2(whitened, clusters, minit="++", seed=seed, missing="warn")
    cut = np.split(place, [len(features)])
    # smooth by a half: an empty cluster proves nothing
    p, q = ((np.bincount(group, minlength=clusters) + 0.5) / (len(group) + clusters / 2) for group in cut)
    mixed = [share * p + (1.0 - share) * q for share in np.linspace(0.01, 0.99, 99)]
    points = sorted(
        [(math.exp(-scale * scipy.stats.entropy(q, r)), math.exp(-scale * scipy.stats.entropy(p, r))) for r in mixed]
    )
    x, y = np.array([(0.0, 1.0), *points, (1.0, 0.0)]).T
    return float(np.trapezoid(y, x))


def embed_texts(texts: Sequence[str], language: str) -> FeatureMatrix:
    """Return the mean vector of each text from the installed spaCy pipeline of ``language``: float64 [n, d].

    It was trained on public text. ``ConfigurationError`` if none is installed.
    """
    spacy: Any = import_lean_spacy()
    folder = find_model_folder(find_pipeline(language))
    every = spacy.util.load_config(folder / "config.cfg").get("components", {})
    pipeline = spacy.load(folder, exclude=[name for name in every if name != "tok2vec"])
    return np.array([doc.tensor.mean(0) for doc in pipeline.pipe(text or "." for text in texts)], np.float64)


def measure_leakage(
    generated: Sequence[str],
    members: Sequence[str],
    non_members: Sequence[str],
    canaries: Mapping[str, Any] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Any]:
    """Run three attacks on the texts alone: ``members`` were trained on, as many ``non_members`` were not.

    ``nearest``: the share of generated texts nearer to a member than to any other, {value, low, high, p_value}, with
    chance limits. ``membership``: recognise a member by its likelihood under a model of the generated texts (Meeus et
    al. 2025), {auc, tpr}. ``canaries``: planted numbers in the texts, and never planted ones, {inserted,
    inserted_found, control, control_found, p_value} or null. ``above_chance`` lists those above chance, all at
    ``confidence`` jointly. ``InputError`` for few texts.
    """
    count = min(len(members), len(non_members), MAX_TEXTS)
    if count < MIN_TEXTS or len(generated) < MIN_TEXTS:
        raise InputError(
            f"synthetic: needs at least {MIN_TEXTS} generated texts, training texts and held-out texts, got "
            f"{len(generated)}, {len(members)} and {len(non_members)}"
        )
    stream = RandomStream.from_seed(seed)
    ours, theirs = (
        [texts[i] for i in stream.permutation(kind, 0, len(texts))[:count].tolist()]
        for kind, texts in (("members", members), ("others", non_members))
    )
    planted = None if canaries is None else _count_canaries(generated, canaries)
    tests = 2 if planted is None else 3
    level = (1.0 - confidence) / tests
    nearest = compare_nearest_neighbours(generated, ours, theirs, 1.0 - level, seed)
    words = NgramModel(generated)
    ups, downs = (np.array([words.compute_mean_log_prob(text) for text in texts]) for texts in (ours, theirs))
    membership = measure_roc_metrics(ups, downs, 1.0 - level, seed)
    del membership["roc"]
    above = {
        "nearest": nearest["p_value"] < level,
        "membership": membership["auc"]["low"] > 0.5,
        "canaries": planted is not None and planted["p_value"] < level,
    }
    return {
        "compared": count,
        "confidence": confidence,
        "nearest": nearest,
        "membership": membership,
        "canaries": planted,
        "above_chance": [name for name, is_above in above.items() if is_above],
        "holds": not any(above.values()),
    }


def compare_nearest_neighbours(
    generated: Sequence[str],
    members: Sequence[str],
    non_members: Sequence[str],
    confidence: float,
    seed: int = 0,
    draws: int = 4_000,
) -> dict[str, Any]:
    """Return {value, low, high, p_value, to_members, to_others} of generated texts' nearest neighbours.

    ``value`` is the share whose nearest text is a member, ties divided. ``low`` and ``high`` contain it, at
    ``confidence``, if members and others are exchangeable (a permutation test, valid for any dependence of the texts).
    ``to_members`` and ``to_others`` are mean distances, 1 minus the cosine of the character 5-grams.
    """
    near = _compute_ngram_cosines(generated, [*members, *non_members])
    best = near.max(1, keepdims=True)
    shares = (near >= best - 1e-6).astype(np.float64)
    weights = (shares / shares.sum(1, keepdims=True)).mean(0)
    value = float(weights[: len(members)].sum())
    test = scipy.stats.permutation_test(
        np.split(weights, [len(members)]),
        lambda ours, _, axis: ours.sum(axis),
        vectorized=True,
        n_resamples=draws,
        alternative="greater",
        random_state=np.random.default_rng(seed),
    )
    low, high = compute_percentile_interval(test.null_distribution, confidence)
    to_members, to_others = (float(1.0 - half.max(1).mean()) for half in np.split(near, [len(members)], axis=1))
    distances = {"to_members": to_members, "to_others": to_others}
    return {**make_estimate(value, float(low), float(high)), "p_value": float(test.pvalue), **distances}


def _compute_ngram_cosines(texts: Sequence[str], other_texts: Sequence[str], size: int = 5) -> NDArray[np.float64]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    def fold(text: str) -> str:
        return f"{' '.join(text.casefold().split()):<{size}}"

    # without inverse document frequencies: the rows are the n-grams of each text, as unit vectors
    ngrams = TfidfVectorizer(analyzer="char", ngram_range=(size, size), binary=True, use_idf=False, preprocessor=fold)
    vectors = ngrams.fit_transform([*texts, *other_texts])
    return np.asarray((vectors[: len(texts)] @ vectors[len(texts) :].T).toarray())


def _count_canaries(generated: Sequence[str], canaries: Mapping[str, Any]) -> dict[str, Any]:
    counts = dict[str, int]()
    for kind in ("inserted", "control"):
        numbers = [number for canary_set in parse_canary_sets(canaries) for number in getattr(canary_set, kind)]
        counts |= {kind: len(numbers), f"{kind}_found": len(ValueSearch(numbers).count_occurrences(generated))}
    return {**counts, "p_value": compute_fisher_p_value(*counts.values())}
