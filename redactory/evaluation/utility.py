"""Measure how well a model predicts unseen texts: perplexity, or a classifier's error rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory import training
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, ignore_progress
from redactory.training.chat import ChatCodec

_CHUNK_TEXTS = 2048
_MAX_EXPONENT = 700.0


def measure_perplexity(
    model: training.LanguageModel,
    texts: Sequence[str],
    progress: Progress = ignore_progress,
    chat: ChatCodec | None = None,
) -> dict[str, Any]:
    """Return exp(- mean natural log probability of a word): the sum over all tokens of ``texts``, over their words.

    Words are separated by white space, characters are code points, and the end of each text counts as one of both. They
    are counted in the original texts, so models with different tokenizers can be compared, best by
    ``bits_per_character``. ``perplexity`` is per token (CRT, section 5.1), including the end of a text. With ``chat``
    texts are conversations in its template, and only trained turns count. Returns {perplexity_per_word, perplexity,
    bits_per_character, log_prob, words, tokens, characters, texts}; a metric too large for a float is null, with a
    ``reason``. ``InputError`` if there is no text.
    """
    if not texts:
        raise InputError("the held-out corpus (evaluate.test, --test) has no examples to measure on; give another")
    scored_parts = [part for text in texts for part in ([text] if chat is None else chat.extract_turns_in_loss(text))]
    log_prob, tokens, words = 0.0, 0, sum(len(part.split()) for part in scored_parts)
    characters = sum(len(part) + 1 for part in scored_parts)
    for start in range(0, len(texts), _CHUNK_TEXTS):
        chunk = texts[start : start + _CHUNK_TEXTS]
        every = model.compute_token_log_probs(chunk)
        for text, scores in zip(chunk, every, strict=True):
            if chat is not None:
                # a conversation has one more end, which is not trained on
                scores = scores[[*chat.encode_with_loss_mask(text)[1], False]]
            log_prob += float(scores.sum())
            tokens += len(scores)
        progress("perplexity", start + len(chunk), len(texts), "texts")

    def compute_perplexity(count: int) -> float | None:
        fits = count and -log_prob / count < _MAX_EXPONENT
        return math.exp(-log_prob / count) if fits else None

    result: dict[str, Any] = {
        "perplexity_per_word": compute_perplexity(words),
        "perplexity": compute_perplexity(tokens),
        "bits_per_character": -log_prob / characters / math.log(2) if characters and math.isfinite(log_prob) else None,
        "log_prob": log_prob if math.isfinite(log_prob) else None,
        "words": words,
        "tokens": tokens,
        "characters": characters,
        "texts": len(texts),
    }
    if None in result.values():
        result["reason"] = "a token has a probability too small for a float, or there is no word"
    return result


def measure_accuracy(
    model: training.model.TextClassifier,
    texts: Sequence[str],
    classes: Sequence[str | None],
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Return the share of ``texts`` whose class in ``classes`` the model predicts wrongly: UeDP's test error rate.

    Only texts with one of the model's classes count; ``left_out`` is the number of others. Returns {error_rate, errors,
    texts, majority_error_rate (of always predicting the most frequent class), log_loss (nats), f1 and auc (macro
    averages: of each class that occurs against the rest), classes, confusion ([i][j]: of class i predicted as j),
    by_class, left_out}; a value over nothing is null. ``InputError`` if no text has one of the classes.
    """
    numbers = {name: number for number, name in enumerate(model.classes)}
    counted = [row for row, name in enumerate(classes) if name in numbers]
    if not counted:
        raise InputError("no held-out text has any of the model's classes")
    true = np.array([numbers[str(classes[row])] for row in counted])
    score_batches = []
    for start in range(0, len(counted), _CHUNK_TEXTS):
        chunk = [texts[row] for row in counted[start : start + _CHUNK_TEXTS]]
        score_batches.append(model.compute_class_log_probs(chunk))
        progress("accuracy", start + len(chunk), len(counted), "texts")
    scores = np.concatenate(score_batches)
    confusion = np.zeros((len(numbers), len(numbers)), np.int64)
    np.add.at(confusion, (true, scores.argmax(1)), 1)
    class_counts, taken = confusion.sum(1).tolist(), confusion.sum(0).tolist()
    wrong = (confusion.sum(1) - confusion.diagonal()).tolist()
    without, by_class = sum(name is None for name in classes), _measure_classes(true, scores)
    known = {metric: [value for row in by_class if (value := row[metric]) is not None] for metric in ("f1", "auc")}
    return {
        "error_rate": sum(wrong) / len(counted),
        "errors": sum(wrong),
        "texts": len(counted),
        "majority_error_rate": 1.0 - max(class_counts) / len(counted),
        "log_loss": float(-scores[np.arange(len(true)), true].mean()),
        **{metric: fmean(values) if values else None for metric, values in known.items()},
        "classes": list(model.classes),
        "confusion": confusion.tolist(),
        "by_class": [
            {
                "class": name,
                "texts": n,
                "errors": errors,
                "error_rate": errors / n if n else None,
                "predicted": predicted,
                **metrics,
            }
            for name, n, errors, predicted, metrics in zip(numbers, class_counts, wrong, taken, by_class, strict=True)
        ],
        "left_out": {"without_class": without, "other_class": len(classes) - without - len(counted)},
    }


def _measure_classes(true: NDArray[np.int64], scores: NDArray[np.float64]) -> list[dict[str, float | None]]:
    """Return F1 and AUC of each class against the rest, from class numbers [n] and scores [n, classes].

    None for a class that no text has; no AUC if all texts have it.
    """
    from sklearn.metrics import f1_score, roc_auc_score

    numbers = range(scores.shape[1])
    f1 = f1_score(true, scores.argmax(1), labels=numbers, average=None, zero_division=0.0)
    metrics = list[dict[str, float | None]]()
    for number in numbers:
        is_class = true == number
        auc = float(roc_auc_score(is_class, scores[:, number])) if 0 < is_class.sum() < len(true) else None
        metrics.append({"f1": float(f1[number]) if is_class.any() else None, "auc": auc})
    return metrics
