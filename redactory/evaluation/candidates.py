"""Strings as a tokenizer cuts them, in an order in which equal beginnings stand together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.utility import resampled_sums
from redactory.foundation.errors import CheckFailed
from redactory.foundation.intervals import lower_bound, upper_bound
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream

if TYPE_CHECKING:
    from redactory.training import LanguageModel


DIGITS = "0123456789"
_ENDED = -1

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Tokenised:
    """``head`` is what all strings begin with; string ``order[i]`` goes on with ``tokens[i, :lengths[i]]``.

    ``tokens`` int32 [n, L], filled up with -1; rows with the same beginning stand together.
    """

    head: list[int]
    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]
    order: NDArray[np.int64]


def every_number(encode: Encode, before: str, digits: int) -> Tokenised:
    """All 10^digits numbers after ``before``, with leading zeros; ``CheckFailed`` as :func:`of_strings`."""
    single = digit_tokens(encode, before, digits)
    if single is None:
        return of_strings(encode, before, [f"{number:0{digits}d}" for number in range(10**digits)])
    head, columns = single
    numbers = np.arange(10**digits)
    powers = 10 ** np.arange(digits - 1, -1, -1)
    tokens = np.empty((len(numbers), digits), np.int32)
    for place, power in enumerate(powers):
        tokens[:, place] = np.asarray(columns[place], np.int32)[numbers // power % 10]
    return Tokenised(head, tokens, np.full(len(numbers), digits), numbers)


def of_strings(encode: Encode, before: str, strings: Sequence[str]) -> Tokenised:
    """``strings`` after ``before``.  Equal strings are allowed.

    ``CheckFailed`` where the tokenizer gives two different strings the same tokens, or where one's tokens
    are no more than those that all share: no probability would tell them apart.
    """
    encoded = [encode(before + string) for string in strings]
    shared = _shared(encoded, encode(before))
    lengths = np.asarray([len(ids) - shared for ids in encoded], np.int64)
    tokens = np.full((len(strings), int(lengths.max(initial=1))), _ENDED, np.int32)
    for row, ids in enumerate(encoded):
        tokens[row, : lengths[row]] = ids[shared:]
    # shorter ones first among those with an equal beginning: -1 is below every token
    order = np.lexsort(tokens.T[::-1])
    twins = (tokens[order][1:] == tokens[order][:-1]).all(axis=1)
    named = np.asarray(strings, dtype=object)[order]
    if (lengths < 1).any() or any(twins & (named[1:] != named[:-1])):
        raise CheckFailed("canaries: the model's tokenizer gives different candidates the same tokens")
    return Tokenised(encoded[0][:shared] if encoded else [], tokens[order], lengths[order], order)


def _shared(encoded: Sequence[list[int]], before: list[int]) -> int:
    """How many tokens all of ``encoded`` begin with, at most as many as ``before`` has of its own."""
    columns: Iterable[tuple[int, ...]] = zip(before, *encoded, strict=False)
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, columns))


def digit_tokens(encode: Encode, before: str, digits: int) -> tuple[list[int], list[list[int]]] | None:
    """Tokens of ``before``, and the token of each digit at each place: [digits][10].

    None where the tokenizer does not give every digit its own token after ``before``, in every three digits
    at every place: a tokenizer that joins digits joins some two or three of them.
    """
    encoded = [encode(before + digit * digits) for digit in DIGITS]
    head = encoded[0][:-digits]
    if not all(len(ids) == len(head) + digits and ids[: len(head)] == head for ids in encoded):
        return None
    tokens = [list(place) for place in zip(*(ids[-digits:] for ids in encoded), strict=True)]
    spelled = all(
        encode(before + number) == head + [tokens[place][int(digit)] for place, digit in enumerate(number)]
        for number in _probes(digits)
    )
    apart = all(len(set(place)) == len(DIGITS) for place in tokens)
    return (head, tokens) if spelled and apart else None


def _probes(digits: int) -> Iterator[str]:
    """Numbers in which every three digits stand at every place."""
    width = min(digits, 3)
    for number in range(10**width):
        three = f"{number:0{width}d}"
        for place in range(digits - width + 1):
            yield (three[:1] * place + three).ljust(digits, three[-1])


# A rank in a space too large to walk, from numbers that the model itself draws.


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


# The log probability of many strings after one text: a walk over their tokens as a trie.


_LOGITS_AT_ONCE = 1 << 23
_STATE_BYTES_AT_ONCE = 1 << 28
_SMALLEST_BATCH, _LARGEST_BATCH = 50, 5000
_WORK = "canary exposure"


def continuation_log_probs(
    model: LanguageModel, before: str, digits: int, progress: Progress = silent
) -> NDArray[np.float64]:
    """Natural log probability of each string of ``digits`` digits after ``before``: float64[10^digits].

    Entry i is the string of i with leading zeros.  Added up in float64 from the network's own log
    probabilities of the tokens that the tokenizer gives, whatever it makes of a number; of tokens that all
    the strings begin with, none is added.  ``CheckFailed`` where the tokenizer gives two numbers the same
    tokens, or where they do not fit the network's context.
    """
    return _log_probs(model, every_number(model.tokenizer.encode, before, digits), progress)


def given_log_probs(
    model: LanguageModel, before: str, strings: Sequence[str], progress: Progress = silent
) -> NDArray[np.float64]:
    """Natural log probability of each of ``strings`` after ``before``: float64[n], in their order.

    Added up as by :func:`continuation_log_probs`; refused as there.  Scores of two calls may be compared
    where the strings' common tokens are those of ``before``.
    """
    return _log_probs(model, of_strings(model.tokenizer.encode, before, strings), progress)


def _log_probs(model: LanguageModel, strings: Tokenised, progress: Progress) -> NDArray[np.float64]:
    import torch

    network = model.network
    head = [model.tokenizer.begin_id, *strings.head]
    context = getattr(network, "context", None)
    if context is not None and len(head) + strings.tokens.shape[1] - 1 > context:
        raise CheckFailed(f"canaries: template and number do not fit the model's context of {context} tokens")
    network.eval()
    device = next(network.parameters()).device
    with torch.inference_mode():
        state = network.initial_state(1)
        for token in head:
            log_probs, state = network.step(torch.tensor([token], device=device), state)
        batch = _batch(log_probs.shape[-1], state, len(head), strings.tokens.shape[1])
        walk = _Walk(network.step, strings, np.zeros(len(strings.tokens)), batch, progress, device)
        rows = np.arange(len(strings.tokens))
        walk.descend(0, rows, np.zeros(len(rows), np.int64), log_probs, state)
    found = np.empty_like(walk.scores)
    found[strings.order] = walk.scores
    return found


def _batch(vocabulary: int, state: Sequence[Any], read: int, more: int) -> int:
    """Prefixes that are read at once: neither their logits nor their states may fill the memory."""
    row: int = sum(math.prod(part.shape[1:]) * part.element_size() for part in state)
    # a cache has grown by `more` places at the deepest prefixes
    row = max(row * (read + more) // read, 1)
    fitting: int = min(_LARGEST_BATCH, _LOGITS_AT_ONCE // vocabulary, _STATE_BYTES_AT_ONCE // row)
    return max(_SMALLEST_BATCH, fitting)


@dataclass
class _Walk:
    """``step`` of the network; ``scores`` [n] are added to, in the order of ``strings.tokens``."""

    step: Callable[..., Any]
    strings: Tokenised
    scores: NDArray[np.float64]
    batch: int
    progress: Progress
    device: Any
    done: int = 0

    def descend(
        self, depth: int, rows: NDArray[np.int64], prefix: NDArray[np.int64], log_probs: Any, state: Any
    ) -> None:
        """Add the token at ``depth`` of the strings ``rows``, and all behind it.

        ``prefix`` [rows] says which row of ``log_probs`` [B, V] and of ``state`` stands for the tokens
        before; the rows of one prefix stand together, and so do those of one token under it.
        """
        column = self.strings.tokens[rows, depth]
        places = self._on_device(prefix), self._on_device(column)
        self.scores[rows] += log_probs[places].double().cpu().numpy()
        longer = self.strings.lengths[rows] > depth + 1
        self._told(len(rows) - int(longer.sum()))
        rows, prefix, column = rows[longer], prefix[longer], column[longer]
        if not len(rows):
            return
        new = np.append(True, (prefix[1:] != prefix[:-1]) | (column[1:] != column[:-1]))
        first, child = np.flatnonzero(new), np.cumsum(new) - 1
        ends = np.append(first, len(rows))
        for start in range(0, len(first), self.batch):
            some = first[start : start + self.batch]
            below = slice(some[0], ends[start + len(some)])
            parents = self._on_device(prefix[some])
            after = self.step(self._on_device(column[some]), tuple(part[parents] for part in state))
            self.descend(depth + 1, rows[below], child[below] - start, *after)

    def _on_device(self, values: NDArray[Any]) -> Any:
        import torch

        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(self.device)

    def _told(self, done: int) -> None:
        self.done += done
        if done:
            self.progress(_WORK, self.done, len(self.scores), "candidates")


# Exposure in a space that is too large to rank whole: from a sample, and beyond it by a skew-normal fit.


SAMPLED, WEIGHTED, EXTRAPOLATED = "sampled", "weighted", "extrapolated"
LEAST_ABOVE = 30
"""So many of the sample must score higher than a canary for its share to be the estimate."""
LEAST_SAMPLE = 2_000
_LARGEST_MISFIT = 0.5
_RESAMPLES = 200
_LARGEST_SKEWNESS = 0.99
_FEW = "the sample has fewer than {least:,} candidates: too few to fit a law to"
_FLAT = "all candidates of the sample have the same score"
_MISFIT = (
    "the upper tail of the sample is not skew-normal: the fit is off by {bits:.1f} bits where {above} lie"
)


class SkewNormal(NamedTuple):
    """Location, scale and shape."""

    location: float
    scale: float
    shape: float

    def exposure(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """-log2 P(a draw is at least as high), for each of ``scores``."""
        from scipy.stats import skewnorm

        tail = skewnorm.sf(scores, self.shape, self.location, self.scale)
        with np.errstate(divide="ignore"):
            return np.asarray(-np.log2(np.clip(tail, 0.0, 1.0)))


@dataclass(frozen=True)
class Extrapolation:
    """A law for the scores of all candidates; ``law`` is None where none may be used, and ``reason`` says
    why.

    ``misfit`` is the largest distance (bits) between fit and sample over the sample's upper tail.
    """

    law: SkewNormal | None
    others: tuple[SkewNormal, ...]
    misfit: float | None
    reason: str | None


def fitted(sample: NDArray[np.float64]) -> Extrapolation:
    """A skew-normal law of ``sample`` [n] by its first three moments, checked on a half it has not seen.

    It may not be used where the two halves' tails disagree: at the scores that 30, 100, 300, ... of the
    checked half reach, the fit to the other half must give the exposure within half a bit and twice the
    sampling error.  What lies further out than the sample is not checked by anything.
    """
    if len(sample) < LEAST_SAMPLE:
        return Extrapolation(None, (), None, _FEW.format(least=LEAST_SAMPLE))
    if float(np.ptp(sample)) == 0.0:
        return Extrapolation(None, (), None, _FLAT)
    half = len(sample) // 2
    misfit, above, allowed = _misfit(_by_moments(sample[:half]), np.sort(sample[half:])[::-1])
    if not misfit <= allowed:
        return Extrapolation(None, (), misfit, _MISFIT.format(bits=misfit, above=above))
    others = tuple(_of_sums(sums, sample) for sums in resampled_sums(_powers(sample), _RESAMPLES))
    return Extrapolation(_by_moments(sample), others, misfit, None)


def extrapolated_exposure(
    sample: NDArray[np.float64],
    scores: NDArray[np.float64],
    candidates: int,
    drawn: DrawnNumbers | None = None,
    confidence: float = 0.95,
) -> list[dict[str, Any]]:
    """Exposure (bits) of canaries with these ``scores`` [K] among ``candidates``, which are all equally long.

    Scores are natural log probabilities.  ``sample`` [n] are those of candidates drawn uniformly with
    replacement, ``drawn`` those of candidates that the model drew.  Each canary is {exposure, low, high,
    at_least, method, rank, reason}; ``method`` is the first of these that can be used:

    - "sampled": at least 30 of ``sample`` score higher; their share (ties half), with its Clopper-Pearson
      interval;
    - "weighted": at least 30 of ``drawn`` do, weighted by how probable it was to draw them, from
      ``at_least`` to a normal bound; or fewer, but ``at_least`` is within a bit of the largest possible;
    - "extrapolated": the fitted law's, at most log2 of ``candidates``, with a percentile bootstrap of it;
    - null, where the law does not fit, with the reason.

    ``at_least`` is what holds without any law, one-sided at ``confidence`` for each of its sources.

    An extrapolated figure is rough: nothing checks the law beyond the sample, and its interval holds the
    fit's error alone, not the law's.  It may not be used to show that a model keeps a secret, nor to compare
    models that differ by a few bits; and it places a canary against the bulk of the candidates: other
    numbers known by heart, which a rank would count, it does not see.
    """
    ordered = np.sort(sample)
    law = fitted(sample)
    return [_one(ordered, float(score), candidates, drawn, law, confidence) for score in scores]


def _one(
    ordered: NDArray[np.float64],
    score: float,
    candidates: int,
    drawn: DrawnNumbers | None,
    law: Extrapolation,
    confidence: float,
) -> dict[str, Any]:
    n, most = len(ordered), math.log2(candidates)
    above = n - int(np.searchsorted(ordered, score, "right"))
    reached = n - int(np.searchsorted(ordered, score, "left"))
    before = None if drawn is None else likelier(drawn, score, confidence)
    at_least = _bits(upper_bound(reached, n, confidence), most)
    # no more candidates than 1/p can have a probability of p
    at_least = max(at_least, _bits(math.exp(min(-score, 700.0)) / candidates, most))
    if before is not None:
        at_least = max(at_least, _bits((1.0 + before.most) / candidates, most))
    found: dict[str, Any] = dict.fromkeys(("exposure", "low", "high", "method", "rank"))
    found["at_least"] = at_least
    if above >= LEAST_ABOVE or reached == n:
        sides = 1.0 - (1.0 - confidence) / 2.0
        low, high = upper_bound(reached, n, sides), lower_bound(above, n, sides)
        value = _bits((above + reached) / 2.0 / n, most)
        found |= {"exposure": value, "low": _bits(low, most), "high": _bits(high, most), "method": SAMPLED}
    elif before is not None and (before.high is not None or at_least >= most - 1.0):
        value = _bits((1.0 + before.count) / candidates, most)
        # candidates that are seldom drawn weigh much: a low end from the draws' own spread would be too high
        low = at_least
        high = most if before.low is None else _bits((1.0 + before.low) / candidates, most)
        found |= {"exposure": max(value, low), "low": low, "high": high, "method": WEIGHTED}
    elif law.law is not None:
        found |= _by_law(law, law.law, score, at_least, most, confidence)
    return {**found, "reason": law.reason if found["exposure"] is None else None}


def _by_law(
    law: Extrapolation, main: SkewNormal, score: float, at_least: float, most: float, confidence: float
) -> dict[str, Any]:
    """The law's figures, none of them below what holds without it."""
    every = [float(one.exposure(np.asarray([score]))[0]) for one in (main, *law.others)]
    within = [min(most, max(at_least, figure)) for figure in every]
    tail = 100.0 * (1.0 - confidence) / 2.0
    low, high = (float(figure) for figure in np.percentile(within[1:], [tail, 100.0 - tail]))
    value = within[0]
    return {"exposure": value, "low": low, "high": high, "method": EXTRAPOLATED}


def _bits(share: float, most: float) -> float:
    """-log2 of a share of the candidates; none ranks before the first."""
    return most if share <= 2.0**-most else max(0.0, -math.log2(share))


def _misfit(law: SkewNormal, tail: NDArray[np.float64]) -> tuple[float, int, float]:
    """The worst distance in bits over the upper tail of ``tail`` (highest first), where, and what is
    allowed."""
    counts = [k for k in (30, 100, 300, 1_000, 3_000, 10_000, 30_000) if k <= len(tail) // 10]
    exposures = law.exposure(tail[np.asarray(counts) - 1])
    rows = []
    for k, exposure in zip(counts, exposures, strict=True):
        distance = abs(float(exposure) - math.log2(len(tail) / k))
        rows.append((distance, k, _LARGEST_MISFIT + 2.0 / (math.sqrt(k) * math.log(2.0))))
    return max(rows, key=lambda row: row[0] - row[2])


def _powers(sample: NDArray[np.float64]) -> NDArray[np.float64]:
    """Count and powers of the standardised scores: sums over them give a fit."""
    z = (sample - sample.mean()) / sample.std()
    return np.stack([np.ones_like(z), z, z**2, z**3], 1)


def _by_moments(sample: NDArray[np.float64]) -> SkewNormal:
    return _of_sums(_powers(sample).sum(0), sample)


def _of_sums(sums: NDArray[np.float64], sample: NDArray[np.float64]) -> SkewNormal:
    """The law whose mean, variance and skewness are those that ``sums`` of the standardised scores give."""
    first, second, third = (sums[1:] / sums[0]).tolist()
    variance = max(second - first**2, 1e-12)
    skewness = (third - 3.0 * first * variance - first**3) / variance**1.5
    skewness = min(_LARGEST_SKEWNESS, max(-_LARGEST_SKEWNESS, skewness))
    root = abs(skewness) ** (2.0 / 3.0)
    delta = math.copysign(
        math.sqrt(math.pi / 2.0 * root / (root + (2.0 - math.pi / 2.0) ** (2.0 / 3.0))), skewness
    )
    delta = min(0.99999, max(-0.99999, delta))
    scale = math.sqrt(variance / (1.0 - 2.0 * delta**2 / math.pi))
    location = first - scale * delta * math.sqrt(2.0 / math.pi)
    spread, centre = float(sample.std()), float(sample.mean())
    return SkewNormal(centre + spread * location, spread * scale, delta / math.sqrt(1.0 - delta**2))
