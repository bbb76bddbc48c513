"""How well a model predicts a text: corpus perplexity, by token and by word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, silent

if TYPE_CHECKING:
    from redactory.training import LanguageModel
    from redactory.training.model import TextClassifier


_CHUNK_TEXTS = 2048
_BATCH_TEXTS = 128
_LARGEST_EXPONENT = 700.0


def perplexity(model: LanguageModel, texts: Sequence[str], progress: Progress = silent) -> dict[str, Any]:
    """exp(- mean natural log probability of a token) over all tokens of ``texts`` (CRT, section 5.1).

    The end of a text is a token too, its begin is not scored, and nothing is carried from one text to
    the next.  ``perplexity_per_word`` divides the same sum by words (between white space) in place of tokens,
    so that models with different tokenizers can be compared.

    Returns {perplexity, perplexity_per_word, log_prob, tokens, words, texts}; a figure too large to be
    a number is null, and ``reason`` says so.  Raises ``InputError`` where there is no text.
    """
    if not texts:
        raise InputError(
            "the held-out corpus (evaluate.test, --test) has no points to measure on; give another"
        )
    log_prob, tokens, words = 0.0, 0, sum(len(text.split()) for text in texts)
    for start in range(0, len(texts), _CHUNK_TEXTS):
        chunk = texts[start : start + _CHUNK_TEXTS]
        for scores in model.token_log_probs(chunk, batch_size=_BATCH_TEXTS):
            log_prob += float(scores.sum())
            tokens += len(scores)
        progress("perplexity", start + len(chunk), len(texts), "texts")
    result: dict[str, Any] = {
        "perplexity": _exponential(log_prob, tokens),
        "perplexity_per_word": _exponential(log_prob, words),
        "log_prob": log_prob if math.isfinite(log_prob) else None,
        "tokens": tokens,
        "words": words,
        "texts": len(texts),
    }
    if None in result.values():
        result["reason"] = "some token has no probability that a float can hold, or there is no word"
    return result


def _exponential(log_prob: float, count: int) -> float | None:
    """exp(-log_prob / count), or None where that is no number."""
    if not count or not -log_prob / count < _LARGEST_EXPONENT:
        return None
    return math.exp(-log_prob / count)


# How often a classifier names the right class of a held-out text: error rate and confusion.


def accuracy(
    model: TextClassifier,
    texts: Sequence[str],
    classes: Sequence[str | None],
    progress: Progress = silent,
) -> dict[str, Any]:
    """The share of ``texts`` whose class, ``classes``, the model gets wrong: UeDP's test error rate.

    Only texts with one of the model's classes are counted; ``left_out`` says how many others there are,
    without naming their classes.  Where two classes are equally likely the model says the first.

    Returns {error_rate, errors, texts, majority_error_rate, log_loss, classes, confusion, by_class,
    left_out: {without_class, other_class}}.  ``confusion[i][j]`` counts texts of class i taken for class
    j; ``majority_error_rate`` is that of always saying the class which is most frequent among them;
    ``log_loss`` is the mean −log probability (nats) of the right class.  ``by_class`` has, for each class,
    {class, texts, errors, error_rate, said}, ``said`` the texts taken for it; a rate over nothing is null.
    Raises ``InputError`` where no text has one of the classes.
    """
    numbers = {name: number for number, name in enumerate(model.classes)}
    counted = [row for row, name in enumerate(classes) if name in numbers]
    if not counted:
        raise InputError("no held-out text has any of the model's classes")
    true = np.array([numbers[str(classes[row])] for row in counted])
    scores = _scores(model, [texts[row] for row in counted], progress)
    confusion = np.zeros((len(numbers), len(numbers)), np.int64)
    np.add.at(confusion, (true, scores.argmax(1)), 1)
    errors = len(counted) - int(confusion.trace())
    without = sum(name is None for name in classes)
    return {
        "error_rate": errors / len(counted),
        "errors": errors,
        "texts": len(counted),
        "majority_error_rate": 1.0 - int(confusion.sum(1).max()) / len(counted),
        "log_loss": float(-scores[np.arange(len(true)), true].mean()),
        "classes": list(model.classes),
        "confusion": confusion.tolist(),
        "by_class": [
            {
                "class": name,
                "texts": of_class,
                "errors": of_class - right,
                "error_rate": (of_class - right) / of_class if of_class else None,
                "said": taken,
            }
            for name, of_class, right, taken in zip(
                numbers,
                confusion.sum(1).tolist(),
                confusion.diagonal().tolist(),
                confusion.sum(0).tolist(),
                strict=True,
            )
        ],
        "left_out": {"without_class": without, "other_class": len(classes) - without - len(counted)},
    }


def _scores(model: TextClassifier, texts: Sequence[str], progress: Progress) -> NDArray[np.float64]:
    found = []
    for start in range(0, len(texts), _CHUNK_TEXTS):
        found.append(model.log_probs(texts[start : start + _CHUNK_TEXTS], batch_size=_BATCH_TEXTS))
        progress("accuracy", min(start + _CHUNK_TEXTS, len(texts)), len(texts), "texts")
    return np.concatenate(found)
