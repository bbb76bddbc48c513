"""Strings as a tokenizer cuts them, in an order in which equal beginnings stand together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import CheckFailed

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
