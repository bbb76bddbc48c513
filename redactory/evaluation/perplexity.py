"""How well a model foretells a text: corpus perplexity, by token and by word."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, silent

if TYPE_CHECKING:
    from redactory.training import LanguageModel

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
    log_prob, tokens, words = 0.0, 0, 0
    done = 0
    for chunk in _chunks(texts):
        for scores in model.token_log_probs(chunk, batch_size=_BATCH_TEXTS):
            log_prob += float(scores.sum())
            tokens += len(scores)
        words += sum(len(text.split()) for text in chunk)
        done += len(chunk)
        progress("perplexity", done, len(texts), "texts")
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


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while chunk := list(islice(stream, _CHUNK_TEXTS)):
        yield chunk


def _exponential(log_prob: float, count: int) -> float | None:
    """exp(-log_prob / count), or None where that is no number."""
    if not count or not -log_prob / count < _LARGEST_EXPONENT:
        return None
    return math.exp(-log_prob / count)
