"""Text that a model wrote: is it worth having, beside real text, and what does it show of its training text?

``worth`` compares with held-out text; ``leaks`` attacks the texts alone, beside held-out text that nobody
trained on: chance then has a known law, and what is above it shows that something was learnt by heart.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.canary import canary_sets
from redactory.evaluation.linkage import ValueSearch
from redactory.evaluation.membership import separation
from redactory.evaluation.statistics import figure, percentiles
from redactory.foundation.errors import InputError
from redactory.foundation.stream import RandomStream

Features = NDArray[np.float64]
Row = tuple[str, str | None]
"""A text and its class, or None."""
LEAST, MOST = 10, 1_000
"""Texts of a kind below which nothing is said, and how many are compared at most."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_END = "\n"


def tokens_of(text: str) -> list[str]:
    """Words and signs, small letters alone."""
    return _TOKEN.findall(text.casefold())


# Simple models that learn in seconds: what they learn from is what is compared.


class Words:
    """A language model of counts: each order interpolated with the one below, discounted by ``DISCOUNT``.

    ``most`` is how many words it looks back.  A word that it never saw has a share of what is left.
    """

    DISCOUNT = 0.75

    def __init__(self, texts: Iterable[str], most: int = 2) -> None:
        self._counts: list[dict[tuple[str, ...], Counter[str]]] = [defaultdict(Counter) for _ in range(most + 1)]
        for text in texts:
            for before, word in _contexts(text, most):
                for order in range(most + 1):
                    self._counts[order][before[most - order :]][word] += 1
        self._most, self._known = most, len(self._counts[0][()]) + 1
        self._best: dict[tuple[str, ...], str] = {}

    def log_prob(self, text: str) -> float:
        """Mean natural log probability of a word of ``text``, its end being one."""
        found = [math.log(self._share(before, word)) for before, word in _contexts(text, self._most)]
        return sum(found) / len(found)

    def right(self, text: str) -> tuple[int, int]:
        """How many words of ``text``, its end being one, are its likeliest ones; and of how many."""
        found = [self._likeliest(before) == word for before, word in _contexts(text, self._most)]
        return sum(found), len(found)

    def _share(self, before: tuple[str, ...], word: str) -> float:
        share = 1.0 / self._known
        for order in range(self._most + 1):
            own = self._counts[order].get(before[self._most - order :])
            if own is None:
                break
            total = own.total()
            share = max(own[word] - self.DISCOUNT, 0.0) / total + share * self.DISCOUNT * len(own) / total
        return share

    def _likeliest(self, before: tuple[str, ...]) -> str:
        for order in range(self._most, -1, -1):
            context = before[self._most - order :]
            if own := self._counts[order].get(context):
                if context not in self._best:
                    self._best[context] = min(own, key=lambda word: (-own[word], word))
                return self._best[context]
        return _END


def _contexts(text: str, most: int) -> Iterator[tuple[tuple[str, ...], str]]:
    words = [*[_END] * most, *tokens_of(text), _END]
    return ((tuple(words[at - most : at]), words[at]) for at in range(most, len(words)))


def classifier_error(train: Sequence[Row], test: Sequence[Row]) -> float | None:
    """Error rate on ``test`` of naive Bayes over words and pairs of words learnt from ``train``."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    rows = Counter(label for _, label in train if label is not None)
    for text, label in train:
        if label is not None:
            counts[label].update(_pieces(text))
    known = [row for row in test if row[1] is not None]
    if not rows or not known:
        return None
    size = len(set().union(*counts.values())) + 1
    totals = {label: own.total() + size for label, own in counts.items()}

    def said(text: str) -> str:
        pieces = list(_pieces(text))

        def score(label: str) -> float:
            likely = sum(math.log((counts[label][piece] + 1) / totals[label]) for piece in pieces)
            return math.log(rows[label]) + likely

        return max(sorted(rows), key=score)

    return sum(said(text) != label for text, label in known) / len(known)


def _pieces(text: str) -> Iterator[str]:
    words = tokens_of(text)
    yield from words
    yield from (" ".join(pair) for pair in pairwise(words))


# What it is worth.


def worth(
    written: Sequence[Row],
    real: Sequence[Row],
    held_out: Sequence[Row],
    labels: Sequence[str] = (),
    features: Callable[[Sequence[str]], Features] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """What was ``written`` beside as many ``real`` rows, both against ``held_out`` ones.

    Each of {next_word_accuracy, classifier_error, unigram_distance, bigram_distance (Jensen-Shannon, bits),
    length_distance (Wasserstein, words), distinct_2, mauve} is {written, real}; ``coverage`` the share of
    ``labels`` that were written.  ``real`` is the most that can be hoped for; null where nothing is known.
    ``features`` [n, d] are those of a model of public text (``public_features``).
    """
    from scipy.stats import wasserstein_distance

    order = RandomStream.from_seed(seed).permutation("real", 0, len(real))[: len(written)]
    sides = {"written": list(written), "real": [real[i] for i in order.tolist()]}
    test = [text for text, _ in held_out]
    theirs = None if features is None else features(test)

    def of(rows: Sequence[Row]) -> dict[str, float | None]:
        texts = [text for text, _ in rows]
        words, lengths = Words(texts), ([len(text.split()) for text in own] for own in (texts, test))
        right = np.array([words.right(text) for text in test]).sum(0)
        pairs = _grams(texts, 2)
        return {
            "next_word_accuracy": float(right[0] / right[1]),
            "classifier_error": classifier_error(rows, held_out),
            "unigram_distance": _distance(texts, test, 1),
            "bigram_distance": _distance(texts, test, 2),
            "length_distance": float(wasserstein_distance(*lengths)),
            "distinct_2": len(pairs) / pairs.total() if pairs else None,
            "mauve": None if features is None or theirs is None else mauve(features(texts), theirs, seed),
        }

    found = {side: of(rows) for side, rows in sides.items()}
    names = found["real"]
    covered = {label for _, label in written} & set(labels)
    return {
        **{name: {side: figures[name] for side, figures in found.items()} for name in names},
        "coverage": len(covered) / len(labels) if labels else None,
    }


def _grams(texts: Iterable[str], size: int) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        words = tokens_of(text)
        found.update(zip(*(words[start:] for start in range(size)), strict=False))
    return found


def _distance(ours: Iterable[str], theirs: Iterable[str], size: int) -> float | None:
    """Jensen-Shannon divergence of the n-grams, in bits: 0 for equal ones, 1 where none is shared."""
    from scipy.spatial.distance import jensenshannon

    first, second = _grams(ours, size), _grams(theirs, size)
    if not first or not second:
        return None
    keys = list(first | second)
    p, q = (np.array([one[key] for key in keys]) / one.total() for one in (first, second))
    return float(jensenshannon(p, q, base=2) ** 2)


def mauve(ours: Features, theirs: Features, seed: int = 0, scale: float = 5.0) -> float:
    """Area under the divergence curve of two sets of features, in (0, 1], 1 for equal ones.

    Both are cut into clusters together, a tenth as many as points (Pillutla et al. 2021, section 2).
    """
    from scipy.cluster.vq import kmeans2, whiten
    from scipy.stats import entropy

    both = whiten(np.concatenate([ours, theirs]), check_finite=False)
    clusters = max(2, min(len(ours), len(theirs)) // 10)
    _, place = kmeans2(both, clusters, minit="++", seed=seed, missing="warn")
    cut = np.split(place, [len(ours)])
    # smoothed by a half: an empty cluster is no proof of anything
    p, q = ((np.bincount(own, minlength=clusters) + 0.5) / (len(own) + clusters / 2) for own in cut)
    mixed = [share * p + (1.0 - share) * q for share in np.linspace(0.01, 0.99, 99)]
    points = sorted([(math.exp(-scale * entropy(q, r)), math.exp(-scale * entropy(p, r))) for r in mixed])
    x, y = np.array([(0.0, 1.0), *points, (1.0, 0.0)]).T
    return float(np.trapezoid(y, x))


def public_features(texts: Sequence[str], language: str) -> Features:
    """The mean vector of each text from the installed spaCy pipeline of ``language``: float64 [n, d].

    Its weights were learnt from public text.  ``ConfigurationError`` where none is installed.
    """
    from redactory.detectors.spacy_model import lean_spacy, model_folder, pipeline_of

    spacy: Any = lean_spacy()
    folder = model_folder(pipeline_of(language))
    every = spacy.util.load_config(folder / "config.cfg").get("components", {})
    pipeline = spacy.load(folder, exclude=[name for name in every if name != "tok2vec"])
    return np.array([doc.tensor.mean(0) for doc in pipeline.pipe(text or "." for text in texts)], np.float64)


# What it shows of the training text.


def leaks(
    written: Sequence[str],
    members: Sequence[str],
    others: Sequence[str],
    canaries: Mapping[str, Any] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Any]:
    """Three attacks on the texts alone: ``members`` were trained on, as many ``others`` of the kind were not.

    ``nearest``: the share of written texts nearer to a member than to any other, {value, low, high, p_value},
    between what chance gives; ``membership``: can a member be told by how likely it is to a model of the
    written texts (Meeus et al. 2025), {auc, tpr}; ``canaries``: planted numbers in the texts, beside such as
    were never planted, {inserted, inserted_found, control, control_found, p_value} or null.  ``above_chance``
    are those that show more than chance, all at ``confidence`` together.  ``InputError`` for few texts.
    """
    count = min(len(members), len(others), MOST)
    if count < LEAST or len(written) < LEAST:
        raise InputError(
            f"synthetic: needs at least {LEAST} generated texts, training texts and held-out texts, got "
            f"{len(written)}, {len(members)} and {len(others)}"
        )
    stream = RandomStream.from_seed(seed)
    ours, theirs = (
        [texts[i] for i in stream.permutation(kind, 0, len(texts))[:count].tolist()]
        for kind, texts in (("members", members), ("others", others))
    )
    planted = None if canaries is None else _canaries(written, canaries)
    tests = 2 if planted is None else 3
    level = (1.0 - confidence) / tests
    nearest = nearest_neighbours(written, ours, theirs, 1.0 - level, stream)
    words = Words(written)
    ups, downs = (np.array([words.log_prob(text) for text in texts]) for texts in (ours, theirs))
    membership = {k: one for k, one in separation(ups, downs, 1.0 - level, seed).items() if k != "roc"}
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
        "above_chance": [name for name, found in above.items() if found],
        "holds": not any(above.values()),
    }


def nearest_neighbours(
    written: Sequence[str],
    members: Sequence[str],
    others: Sequence[str],
    confidence: float,
    stream: RandomStream,
    draws: int = 4_000,
) -> dict[str, Any]:
    """{value, low, high, p_value, to_members, to_others}: whom written texts are nearest to.

    ``value`` is the share whose nearest text is a member, ties divided; ``low`` and ``high`` hold it, at
    ``confidence``, where members and others are exchangeable (a permutation test, which holds whatever the
    texts have in common); ``to_members`` and ``to_others`` are mean distances, 1 less the cosine of the
    character 5-grams.
    """
    near = _cosines(written, [*members, *others])
    best = near.max(1, keepdims=True)
    shares = (near >= best - 1e-6).astype(np.float64)
    weights = (shares / shares.sum(1, keepdims=True)).mean(0)
    value = float(weights[: len(members)].sum())
    orders = (stream.permutation("chance", draw, len(weights)) for draw in range(draws))
    chance = np.array([weights[order[: len(members)]].sum() for order in orders])
    low, high = percentiles(chance, confidence)
    halves = np.split(near, [len(members)], axis=1)
    to_members, to_others = (float(1.0 - half.max(1).mean()) for half in halves)
    p_value = float((1 + (chance >= value - 1e-12).sum()) / (1 + draws))
    distances = {"to_members": to_members, "to_others": to_others}
    return {**figure(value, float(low), float(high)), "p_value": p_value, **distances}


def _cosines(ours: Sequence[str], theirs: Sequence[str], size: int = 5) -> NDArray[np.float64]:
    """The cosine of the character n-grams of each of ``ours`` with each of ``theirs``."""
    from scipy.sparse import csr_matrix

    places: dict[str, int] = {}

    def table(texts: Sequence[str]) -> Any:
        rows, columns = list[int](), list[int]()
        for row, text in enumerate(texts):
            folded = f"{' '.join(text.casefold().split()):<{size}}"
            own = {folded[at : at + size] for at in range(len(folded) - size + 1)}
            columns += [places.setdefault(gram, len(places)) for gram in sorted(own)]
            rows += [row] * len(own)
        return csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(texts), len(places)))

    second, first = table(theirs), table(ours)
    theirs_long, ours_long = (np.sqrt(np.maximum(np.asarray(one.sum(1)).ravel(), 1.0)) for one in (second, first))
    # n-grams that only ours have come last, and meet nothing
    shared = (first[:, : second.shape[1]] @ second.T).toarray()
    return np.asarray(shared / ours_long[:, None] / theirs_long[None, :])


def _canaries(written: Sequence[str], canaries: Mapping[str, Any]) -> dict[str, Any]:
    from scipy.stats import fisher_exact

    sets = canary_sets(canaries)
    inserted = [number for one in sets for number in one.inserted]
    control = [number for one in sets for number in one.control]
    hits = ValueSearch([*inserted, *control]).count(written)
    found = sum(index < len(inserted) for index in hits)
    chance = len(hits) - found
    table = ((found, len(inserted) - found), (chance, len(control) - chance))
    return {
        "inserted": len(inserted),
        "inserted_found": found,
        "control": len(control),
        "control_found": chance,
        "p_value": float(fisher_exact(table, alternative="greater").pvalue),
    }
