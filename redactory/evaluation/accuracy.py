"""How often a classifier names the right class of a held-out text: error rate and confusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, silent

if TYPE_CHECKING:
    from redactory.training.model import TextClassifier

_CHUNK_TEXTS = 2048
_BATCH_TEXTS = 128


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
        "by_class": [_of_class(name, number, confusion) for name, number in numbers.items()],
        "left_out": {"without_class": without, "other_class": len(classes) - without - len(counted)},
    }


def _scores(model: TextClassifier, texts: Sequence[str], progress: Progress) -> NDArray[np.float64]:
    found = []
    for start in range(0, len(texts), _CHUNK_TEXTS):
        found.append(model.log_probs(texts[start : start + _CHUNK_TEXTS], batch_size=_BATCH_TEXTS))
        progress("accuracy", min(start + _CHUNK_TEXTS, len(texts)), len(texts), "texts")
    return np.concatenate(found)


def _of_class(name: str, number: int, confusion: NDArray[np.int64]) -> dict[str, Any]:
    texts = int(confusion[number].sum())
    errors = texts - int(confusion[number, number])
    return {
        "class": name,
        "texts": texts,
        "errors": errors,
        "error_rate": errors / texts if texts else None,
        "said": int(confusion[:, number].sum()),
    }
