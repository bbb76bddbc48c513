"""Earlier runs: one point exchanged moves every later run by one text at most; what breaks that is found.

``docs/guarantees.md``, "Earlier runs".  Every sequence of a small world is tried; then the real files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.dedup.index import (
    NOBODY,
    SeenFiles,
    distinct,
    earlier_of,
    first_that_saw,
    write_earlier,
    write_seen,
)
from redactory.dedup.plan import ENTRY, BloomParameters, write_entries
from tests.dedup.worlds import substitutions

Runs = Sequence[frozenset[str]]
Rule = Callable[[Runs, int], list[frozenset[str]]]
FEW, WIDE = 1, 1 << 20


def seen_rule(runs: Runs, window: int) -> list[frozenset[str]]:
    """What each run keeps, where it leaves out what the last ``window`` runs saw: the theorem's rule."""
    return [run - frozenset().union(*runs[max(0, t - window) : t]) for t, run in enumerate(runs)]


def kept_rule(runs: Runs, window: int) -> list[frozenset[str]]:
    """Sabotage: only what they kept."""
    kept: list[frozenset[str]] = []
    for run in runs:
        kept.append(run - frozenset().union(*kept[-window:]))
    return kept


def bloom_alone_rule(runs: Runs, window: int) -> list[frozenset[str]]:
    """Sabotage: a text counts as seen where a filter of two bits says so."""
    seen = [frozenset(bit for text in run for bit in (ord(text) % 3, ord(text) % 2 + 3)) for run in runs]
    return [
        frozenset(
            text
            for text in run
            if not any({ord(text) % 3, ord(text) % 2 + 3} <= bits for bits in seen[max(0, t - window) : t])
        )
        for t, run in enumerate(runs)
    ]


def worst(rule: Rule, texts: str, length: int, window: int) -> int:
    """The most substitutions in any run, when run 0 has one text exchanged, more or less."""
    subsets = [frozenset(some) for n in range(len(texts) + 1) for some in itertools.combinations(texts, n)]
    most = 0
    for later in itertools.product(subsets, repeat=length - 1):
        kept = {first: rule([first, *later], window) for first in subsets}
        for one, other in itertools.combinations(subsets, 2):
            if len(one - other) <= 1 and len(other - one) <= 1:
                pairs = zip(kept[one], kept[other], strict=True)
                most = max(most, *(substitutions(sorted(a), sorted(b)) for a, b in pairs))
    return most


@pytest.mark.parametrize(("length", "window"), [(3, 1), (4, 2), (5, 1), (5, 2), (5, 4)])
def test_one_text_exchanged_moves_one_text_of_every_run(length: int, window: int) -> None:
    assert worst(seen_rule, "ab", length, window) == 1


def test_of_three_texts_too() -> None:
    assert worst(seen_rule, "abc", 4, 2) == 1


def test_kept_texts_alone_would_do_while_nothing_is_forgotten_and_not_after() -> None:
    assert worst(kept_rule, "ab", 5, 4) == 1
    assert worst(kept_rule, "ab", 5, 2) == 2


def test_a_filter_alone_exceeds_the_claim() -> None:
    assert worst(bloom_alone_rule, "abcd", 2, 1) > 1
    assert worst(seen_rule, "abcd", 2, 1) == 1


# ------------------------------------------------------------------------------------- the real files


def entries_of(numbers: Sequence[int], begin: int = 0) -> np.ndarray:
    """Digests of few high words, so that these collide; ids from ``begin`` on."""
    entries = np.empty(len(numbers), ENTRY)
    entries["high"] = [number // 4 * 0x3FFFFFFFFFFFFFFF % (1 << 64) for number in numbers]
    entries["low"] = [number % 4 for number in numbers]
    entries["id"] = np.arange(begin, begin + len(numbers))
    return entries


def seen(folder: Path, numbers: Sequence[int], capacity: int = WIDE, digests: bool = True) -> SeenFiles:
    folder.mkdir(parents=True, exist_ok=True)
    bound = BloomParameters(capacity, 0.01, "dedup/public", "key", "public", "policy")
    files = SeenFiles(folder / "bloom", bound, folder / "digests.npy" if digests else None)
    table = distinct([entries_of(numbers[::2]), entries_of(numbers[1::2])])
    # two ranges, cut by the highest bit
    low = table["high"] < np.uint64(1 << 63)
    ranges = [folder / "range-0", folder / "range-1"]
    write_entries(ranges[0], table[low])
    write_entries(ranges[1], table[~low])
    write_seen(files, ranges, len(table))
    return files


NUMBERS = st.lists(st.integers(0, 15), max_size=12)


@settings(max_examples=25, deadline=None)
@given(st.lists(NUMBERS, max_size=3), NUMBERS, st.sampled_from([FEW, 64]))
def test_look_ups_are_exact_whatever_the_filter_lets_through(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[int]], asked: list[int], capacity: int
) -> None:
    folder = tmp_path_factory.mktemp("seen")
    files = [seen(folder / str(place), numbers, capacity) for place, numbers in enumerate(runs)]
    expected = [next((p for p, numbers in enumerate(runs) if n in numbers), NOBODY) for n in asked]
    assert first_that_saw(files, entries_of(asked)).tolist() == expected


def test_a_filter_alone_takes_texts_for_others(tmp_path: Path) -> None:
    crowd = list(range(200))
    files = seen(tmp_path, crowd, FEW, digests=False)
    new = entries_of(range(1000, 1100))
    assert (first_that_saw([files], new) == 0).any()
    assert (first_that_saw([seen(tmp_path / "exact", crowd, FEW)], new) == NOBODY).all()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(0, 20), st.integers(0, 3)), max_size=3),
    st.lists(st.integers(0, 22)),
)
def test_what_was_written_down_is_found_by_any_order_of_points(
    tmp_path_factory: pytest.TempPathFactory, tables: list[dict[int, int]], ids: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("earlier")
    files = [folder / str(number) for number in range(len(tables))]
    for path, table in zip(files, tables, strict=True):
        assert write_earlier(path, table.items()) == len(table)
    expected = [min((t[i] for t in tables if i in t), default=NOBODY) for i in ids]
    assert earlier_of(files, np.array(ids, np.int64)).tolist() == expected
