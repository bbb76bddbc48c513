"""A rank in a space too large to walk, from numbers that the model itself draws.

What ranks before a canary is what the model finds likelier, so numbers drawn from the model's own law fall
there more often than numbers drawn uniformly.  With q the law they are drawn from, the mean of 1{p(t) > p(s)}
/ q(t) is the number of candidates before s, without bias and without any law for the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.tokenised import digit_tokens
from redactory.foundation.intervals import upper_bound
from redactory.foundation.stream import RandomStream

if TYPE_CHECKING:
    from redactory.training import LanguageModel

LEAST_HITS = 30
_BATCH = 2_000
_TWO_SIDED = 1.959964


@dataclass(frozen=True)
class DrawnNumbers:
    """Of each number drawn: the natural log of its probability under the model, and under the law it was
    drawn from."""

    log_p: NDArray[np.float64]
    log_q: NDArray[np.float64]


@dataclass(frozen=True)
class Before:
    """How many candidates are likelier than a canary: ``count``, at most ``most`` (one-sided), within
    ``low``-``high``.

    ``hits`` of the numbers drawn were; where they weigh as little as fewer than 30 equal ones, there are no
    two-sided bounds.
    """

    hits: int
    count: float
    most: float
    low: float | None
    high: float | None


def drawn_numbers(
    model: LanguageModel, before: str, digits: int, count: int, stream: RandomStream
) -> DrawnNumbers | None:
    """``count`` numbers of ``digits`` digits after ``before``, each digit drawn as the model has it among the
    ten.

    None where the tokenizer joins digits.
    """
    import torch

    single = digit_tokens(model.tokenizer.encode, before, digits)
    if single is None:
        return None
    head, columns = single
    network = model.network.eval()
    device = next(network.parameters()).device
    uniform = stream.uniform("numbers of the model", 0, count * digits).reshape(count, digits)
    log_p, log_q = np.zeros(count), np.zeros(count)
    with torch.inference_mode():
        state = network.initial_state(1)
        for token in (model.tokenizer.begin_id, *head):
            first, state = network.step(torch.tensor([token], device=device), state)
        for start in range(0, count, _BATCH):
            rows = np.arange(start, min(start + _BATCH, count))
            own = tuple(part.expand(len(rows), *part.shape[1:]).contiguous() for part in state)
            scores = first.expand(len(rows), -1)
            for place, column in enumerate(columns):
                of_digits = scores[:, column].double().cpu().numpy()
                drawn, log_share = _drawn(of_digits, uniform[rows, place])
                log_p[rows] += of_digits[np.arange(len(rows)), drawn]
                log_q[rows] += log_share
                if place + 1 < digits:
                    read = torch.from_numpy(np.asarray(column, np.int64)[drawn]).to(device)
                    scores, own = network.step(read, own)
    return DrawnNumbers(log_p, log_q)


def likelier(drawn: DrawnNumbers, score: float, confidence: float = 0.95) -> Before:
    """How many candidates are likelier than one with log probability ``score``.

    A number that is drawn and likelier weighs at most 1/p(s), as q is never below p: so many times the upper
    Clopper-Pearson bound of the share drawn is an upper bound, and 1/p(s) itself is one.
    """
    n = len(drawn.log_p)
    above = drawn.log_p > score
    hits = int(above.sum())
    weights = np.where(above, np.exp(-drawn.log_q), 0.0)
    count = float(weights.mean())
    most = min(1.0, upper_bound(hits, n, confidence)) * _exp(-score)
    # a few heavy draws among many light ones tell as little as few
    if weights.sum() ** 2 < LEAST_HITS * (weights**2).sum() or hits < LEAST_HITS:
        return Before(hits, count, most, None, None)
    error = _TWO_SIDED * float(weights.std()) / math.sqrt(n)
    return Before(hits, count, most, max(0.0, count - error), count + error)


def _drawn(
    log_probs: NDArray[np.float64], uniform: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A column of each row, and the natural log of its share."""
    shares = np.exp(log_probs - log_probs.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    drawn = (shares.cumsum(1) < uniform[:, None]).sum(1).clip(max=shares.shape[1] - 1)
    return drawn, np.log(shares[np.arange(len(drawn)), drawn])


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
