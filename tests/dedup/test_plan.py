"""Digest files and the duplicate plan, against a dictionary in memory; Bloom filters."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from redactory.dedup import compute_hash_ranges, find_repeats_in_range, lookup_replacements, plan, write_digests
from redactory.dedup.plan import (
    ENTRY,
    BloomPass,
    collect_distinct_digests,
    digests_to_ints,
    make_bloom_filter,
    mark_known_digests,
    merge_digests,
    read_bloom_filter,
    read_range,
    write_entries,
    write_pairs,
)
from redactory.foundation.intervals import clopper_pearson_lower, clopper_pearson_upper

RANGES = 16
EDGES = [0, 1, 2**64 - 1, 2**64, 2**122 - 1, 2**122, 2**127, 2**128 - 2**122, 2**128 - 1]
FEW = st.sampled_from([edge.to_bytes(16, "big") for edge in EDGES])
DIGESTS = FEW | st.binary(min_size=16, max_size=16)
Partition = dict[int, bytes]
PARTITIONS = st.lists(st.dictionaries(st.integers(0, 2**32 - 1), FEW, max_size=12), min_size=1, max_size=6).map(
    lambda partitions: [{(p << 32) + row: d for row, d in held.items()} for p, held in enumerate(partitions)]
)
"""Each partition as {point id: digest}."""


def planned(folder: Path, partitions: list[Partition]) -> tuple[list[Path], int]:
    """The real plan of these partitions, and how many repeats it counted."""
    files = []
    for number, held in enumerate(partitions):
        files.append(folder / f"digests-{number}.npy")
        write_digests(files[-1], list(held.values()), np.array(list(held), np.int64))
    ranges = [folder / f"range-{number}.npy" for number in range(RANGES)]
    return ranges, sum(find_repeats_in_range(files, number, out, RANGES) for number, out in enumerate(ranges))


def oracle(partitions: list[Partition]) -> dict[int, int]:
    """{point id: lowest point id with the same digest}."""
    pairs = [pair for held in partitions for pair in held.items()]
    first = {digest: point for point, digest in sorted(pairs, reverse=True)}
    return {point: first[digest] for point, digest in pairs}


def array(ids: list[int]) -> NDArray[np.int64]:
    return np.array(ids, np.int64)


@settings(max_examples=15, deadline=None)
@given(PARTITIONS, st.data())
def test_the_plan_is_the_dictionary_in_any_order(partitions: list[Partition], data: st.DataObject) -> None:
    expected = oracle(partitions)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        ranges, repeats = planned(Path(one), partitions)
        assert repeats == sum(first != point for point, first in expected.items())
        for digests in partitions:
            # points without a digest (quarantined ones) may be asked for as well
            asked = [*data.draw(st.permutations(list(digests))), 2**40]
            assert lookup_replacements(ranges, array(asked)).tolist() == [expected.get(i, i) for i in asked]
        again, _ = planned(Path(other), data.draw(st.permutations(partitions)))
        assert [path.read_bytes() for path in ranges] == [path.read_bytes() for path in again]


@pytest.mark.parametrize("whole", [plan.MAX_UNDIVIDED_DIGESTS, 0])
def test_many_points_with_few_texts(tmp_path: Path, whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges in one piece and in many."""
    monkeypatch.setattr(plan, "MAX_UNDIVIDED_DIGESTS", whole)
    chance = np.random.default_rng(3)
    pool = [chance.bytes(16) for _ in range(500)]
    held = [{(p << 32) + row: pool[chance.integers(500)] for row in range(3000)} for p in range(4)]
    expected = oracle(held)
    ranges, repeats = planned(tmp_path, held)
    assert repeats == 12_000 - len(set(expected.values()))
    for digests in held:
        assert lookup_replacements(ranges, array(list(digests))).tolist() == [expected[i] for i in digests]


@settings(max_examples=30, deadline=None)
@given(st.lists(DIGESTS, max_size=40), st.sampled_from([1, 2, 64, 1024]))
def test_the_ranges_hold_each_digest_exactly_once(digests: list[bytes], ranges: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digests.npy"
        write_digests(path, digests, np.arange(len(digests), dtype=np.int64))
        seen: list[tuple[bytes, int]] = []
        for number in range(ranges):
            entries = read_range(path, number, ranges)
            assert (compute_hash_ranges(entries, ranges) == number).all()
            for entry, value in zip(entries, digests_to_ints(entries), strict=True):
                digest = value.to_bytes(16, "big", signed=True)
                assert int.from_bytes(digest, "big") * ranges >> 128 == number
                seen.append((digest, int(entry["id"])))
    assert seen == sorted((digest, i) for i, digest in enumerate(digests)), "in order, nothing lost or twice"


@pytest.mark.parametrize(
    ("digests", "count"),
    [([b"x" * 16], 2), ([b"x" * 16] * 2, 1), ([b"x" * 15, b"x" * 17], 2), ([b"x" * 32], 2), ([], 1)],
)
def test_a_wrong_number_or_size_is_refused(tmp_path: Path, digests: list[bytes], count: int) -> None:
    with pytest.raises(ValueError, match="do not match"):
        write_digests(tmp_path / "digests.npy", digests, np.arange(count, dtype=np.int64))
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.dictionaries(st.integers(0, 20), st.integers(0, 3)), max_size=3), st.lists(st.integers(0, 22)))
def test_of_pairs_in_many_files_the_lowest_is_found(tables: list[dict[int, int]], ids: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(number) for number in range(len(tables))]
        for path, table in zip(files, tables, strict=True):
            assert write_pairs(path, table.items()) == len(table)
        expected = [min((t[i] for t in tables if i in t), default=-1) for i in ids]
        assert lookup_replacements(files, array(ids), -1).tolist() == expected


def entries_of(numbers: list[int]) -> np.ndarray:
    """Digests of few high words, so that these collide."""
    entries = np.zeros(len(numbers), ENTRY)
    entries["high"] = [number // 4 * 0x3FFFFFFFFFFFFFFF % (1 << 64) for number in numbers]
    entries["low"] = [number % 4 for number in numbers]
    return entries


NUMBERS = st.lists(st.integers(0, 15), max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(NUMBERS, max_size=3), NUMBERS, st.sampled_from([1, 4]))
def test_look_ups_among_the_digests_of_a_run_are_exact(parts: list[list[int]], asked: list[int], ranges: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(number) for number in range(len(parts))]
        for path, numbers in zip(files, parts, strict=True):
            write_entries(path, collect_distinct_digests([entries_of(numbers)]))
        out = Path(folder) / "all.npy"
        assert merge_digests(files, ranges, out) == len({n for part in parts for n in part})
        expected = [any(n in part for part in parts) for n in asked]
        assert mark_known_digests(out, entries_of(asked)).tolist() == expected


# Bloom filters: nothing added is denied; what is lost is measured.


def random_digests(count: int, seed: int) -> list[int]:
    content = np.random.default_rng(seed).bytes(16 * count)
    return [int.from_bytes(content[i : i + 16], "big", signed=True) for i in range(0, len(content), 16)]


@settings(max_examples=60, deadline=None)
@given(st.lists(DIGESTS), st.integers(1, 50), st.sampled_from([1e-6, 0.01, 0.1]))
def test_what_was_added_is_never_denied(digests: list[bytes], capacity: int, rate: float) -> None:
    bloom = make_bloom_filter(capacity, rate)
    numbers = [int.from_bytes(digest, "big", signed=True) for digest in digests]
    bloom.update(numbers)
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(bloom.save_bytes())
        assert all(number in held for held in (bloom, read_bloom_filter(Path(file.name))) for number in numbers)


def test_one_pass_keeps_each_text_once_and_loses_no_more_than_it_says() -> None:
    capacity, rate = 20_000, 0.01
    new = random_digests(capacity, 1)
    one_pass = BloomPass(capacity, rate)
    first, again = one_pass.mark_repeats(new), one_pass.mark_repeats(new)
    assert all(again), "never a false negative: nothing is kept twice"
    lost = sum(first)
    assert (one_pass.tracked_new, one_pass.tracked_lost) == (capacity, lost), "few texts are all remembered"
    assert one_pass.added == capacity - lost
    assert lost / capacity < rate, "the filter fills up only at the end"


def test_the_loss_is_measured_on_a_part_as_it_is_on_the_whole() -> None:
    """At three times its capacity a filter loses much: the tracked part must tell how much, unbiased."""
    capacity, count = 1_000, 3_000
    one_pass = BloomPass(capacity, 0.02)
    one_pass._tracked_below = (1 << 32) // 4
    lost = sum(one_pass.mark_repeats(random_digests(count, 2)))
    part, part_lost = one_pass.tracked_new, one_pass.tracked_lost
    assert 0.2 < part / count < 0.3
    assert clopper_pearson_lower(part_lost, part, 0.999) < lost / count < clopper_pearson_upper(part_lost, part, 0.999)
    assert lost / count > 0.02
