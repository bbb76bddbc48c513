"""Values of the same form as given ones that stand nowhere in a corpus: what finding one by chance is worth.

Digits are drawn anew.  Words are those of other values with the same label and form, each at its own place
("Ann Smith" and "Bob Jones" give "Ann Jones"); where these give nothing new, public lists of names.
"""

from __future__ import annotations

import functools
import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

_PIECE = re.compile(r"[^\W\d_]+|\d+|[\W_]+")
_ROUNDS, _OF_CORPUS = 8, 4

Pools = dict[tuple[str, tuple[str, ...], int], list[str]]


def control_values(
    values: Sequence[tuple[str, str]], present: Callable[[list[str]], Collection[str]], seed: int = 0
) -> list[str | None]:
    """For each (label, value) another value of its form, all different; None where none was found.

    ``present`` tells which of many strings stand in the corpus (whatever their case), and is asked a few
    times.  The same values, corpus and seed give the same controls.  They are made of pieces of secrets, and
    are as private as these.
    """
    draw = random.Random(f"control values {seed}")
    pools = _pools(values)
    taken = {value.casefold() for _, value in values}
    found: list[str | None] = [None] * len(values)
    for attempt in range(_ROUNDS):
        proposed: dict[str, int] = {}
        for index, (label, value) in enumerate(values):
            if found[index] is None:
                other = _like(value, label, pools if attempt < _OF_CORPUS else {}, draw)
                if other.casefold() not in taken and other.casefold() not in proposed:
                    proposed[other.casefold()] = index
                    found[index] = other
        standing = {value.casefold() for value in present([str(found[i]) for i in proposed.values()])}
        for folded, index in proposed.items():
            if folded in standing:
                found[index] = None
            else:
                taken.add(folded)
        if None not in found:
            break
    return found


def _pools(values: Sequence[tuple[str, str]]) -> Pools:
    """The words of each label, form and place."""
    pools: Pools = defaultdict(list)
    for label, value in values:
        pieces = _PIECE.findall(value)
        form = _form(pieces)
        for place, piece in enumerate(pieces):
            if piece.isalpha():
                pools[label, form, place].append(piece)
    return pools


def _form(pieces: Sequence[str]) -> tuple[str, ...]:
    return tuple("w" if piece.isalpha() else "d" if piece.isdecimal() else piece for piece in pieces)


def _like(value: str, label: str, pools: Pools, draw: random.Random) -> str:
    pieces = _PIECE.findall(value)
    form = _form(pieces)
    return "".join(
        _digits(piece, draw)
        if piece.isdecimal()
        else _word(piece, pools.get((label, form, place), ()), draw)
        if piece.isalpha()
        else piece
        for place, piece in enumerate(pieces)
    )


def _digits(piece: str, draw: random.Random) -> str:
    """As many digits; none begins with 0 unless the value's own did."""
    first = draw.choice("123456789") if piece[0] != "0" else "0"
    return first + "".join(draw.choice("0123456789") for _ in piece[1:])


def _word(piece: str, pool: Sequence[str], draw: random.Random) -> str:
    if pool:
        return draw.choice(pool)
    word = draw.choice(_public_names())
    return word.upper() if piece.isupper() and len(piece) > 1 else word.lower() if piece.islower() else word


@functools.cache
def _public_names() -> tuple[str, ...]:
    """Given names and surnames of Faker's public English lists that are letters only."""
    from faker.providers.person.en_GB import Provider as British
    from faker.providers.person.en_US import Provider as American

    names: set[str] = set()
    for provider in (American, British):
        names.update(provider.first_names, provider.last_names)
    return tuple(sorted(name for name in names if name.isalpha()))
