"""Digest files and the duplicate plan, against a dictionary in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from redactory.dedup import RANGES, DuplicatePlan, plan_range, read_range, write_digests
from redactory.dedup import plan as plan_module

EDGES = [0, 1, 2**64 - 1, 2**64, 2**122 - 1, 2**122, 2**127, 2**128 - 2**122, 2**128 - 1]
DIGESTS = st.sampled_from([edge.to_bytes(16, "big") for edge in EDGES]) | st.binary(min_size=16, max_size=16)
FEW = st.sampled_from([edge.to_bytes(16, "big") for edge in EDGES])
Partition = list[tuple[int, bytes]]
PARTITIONS = st.lists(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), FEW), max_size=12), min_size=1, max_size=6
)


def id_of(partition: int, row: int) -> int:
    return (partition << 32) + row


def with_ids(partitions: list[Partition]) -> list[dict[int, bytes]]:
    """Each partition as {point id: digest}; a row that was drawn twice counts once."""
    return [{id_of(p, row): digest for row, digest in rows} for p, rows in enumerate(partitions)]


def plan_of(folder: Path, partitions: list[dict[int, bytes]]) -> tuple[DuplicatePlan, int]:
    """The real plan of these partitions, and how many repeats it counted."""
    files = []
    for number, held in enumerate(partitions):
        files.append(folder / f"digests-{number}.npy")
        write_digests(files[-1], list(held.values()), np.array(list(held), dtype=np.int64))
    ranges = [folder / f"range-{number}.npy" for number in range(RANGES)]
    repeats = sum(plan_range(files, number, out) for number, out in enumerate(ranges))
    return DuplicatePlan(ranges), repeats


def oracle(partitions: list[dict[int, bytes]]) -> dict[int, int]:
    """{point id: lowest point id with the same digest}."""
    first: dict[bytes, int] = {}
    pairs = [pair for held in partitions for pair in held.items()]
    for point, digest in pairs:
        first[digest] = min(point, first.get(digest, point))
    return {point: first[digest] for point, digest in pairs}


def array(ids: list[int]) -> NDArray[np.int64]:
    return np.array(sorted(ids), dtype=np.int64)


@settings(max_examples=15, deadline=None)
@given(PARTITIONS, st.data())
def test_the_plan_is_the_dictionary(partitions: list[Partition], data: st.DataObject) -> None:
    held = with_ids(partitions)
    expected = oracle(held)
    with tempfile.TemporaryDirectory() as folder:
        plan, repeats = plan_of(Path(folder), held)
        assert repeats == sum(first != point for point, first in expected.items())
        for number, digests in enumerate(held):
            # points without a digest (quarantined ones) may be asked for as well
            others = {
                id_of(number, row) for row in data.draw(st.lists(st.integers(0, 2**32 - 1), max_size=3))
            }
            asked = array(list(others | set(digests)))
            assert plan.first_of(asked).tolist() == [expected.get(i, i) for i in asked.tolist()]
            some = array([i for i in digests if data.draw(st.booleans())])
            assert plan.first_of(some).tolist() == [expected[i] for i in some.tolist()]


@settings(max_examples=5, deadline=None)
@given(PARTITIONS, st.randoms())
def test_the_order_of_rows_and_partitions_is_nothing(partitions: list[Partition], random: st.Random) -> None:
    held = with_ids(partitions)
    shuffled = [dict(random.sample(list(h.items()), len(h))) for h in random.sample(held, len(held))]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        plan_of(Path(one), held)
        plan_of(Path(other), shuffled)
        for number in range(RANGES):
            name = f"range-{number}.npy"
            assert (Path(one) / name).read_bytes() == (Path(other) / name).read_bytes()


@pytest.mark.parametrize("whole", [plan_module.WHOLE, 0])
def test_many_points_with_few_texts(tmp_path: Path, whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges in one piece and in many."""
    monkeypatch.setattr(plan_module, "WHOLE", whole)
    chance = np.random.default_rng(3)
    pool = [chance.bytes(16) for _ in range(500)]
    held = [{id_of(p, row): pool[chance.integers(500)] for row in range(3000)} for p in range(4)]
    expected = oracle(held)
    plan, repeats = plan_of(tmp_path, held)
    assert repeats == 12_000 - len(set(expected.values()))
    for digests in held:
        assert plan.first_of(array(list(digests))).tolist() == [expected[i] for i in sorted(digests)]


@settings(max_examples=30, deadline=None)
@given(st.lists(DIGESTS, max_size=40), st.sampled_from([1, 2, 64, 1024]))
def test_the_ranges_hold_each_digest_exactly_once(digests: list[bytes], ranges: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digests.npy"
        write_digests(path, digests, np.arange(len(digests), dtype=np.int64))
        seen: list[tuple[bytes, int]] = []
        for number in range(ranges):
            for entry in read_range(path, number, ranges):
                digest = int(entry["high"]).to_bytes(8, "big") + int(entry["low"]).to_bytes(8, "big")
                assert int.from_bytes(digest, "big") * ranges >> 128 == number
                seen.append((digest, int(entry["id"])))
    assert seen == sorted((digest, i) for i, digest in enumerate(digests)), "in order, nothing lost or twice"


@pytest.mark.parametrize(
    ("digests", "count"),
    [
        ([b"x" * 16], 2),
        ([b"x" * 16] * 2, 1),
        ([b"x" * 15], 1),
        ([b"x" * 17], 1),
        ([b"x" * 32], 2),
        ([b"x" * 32], 1),
        ([b"x" * 15, b"x" * 17], 2),
        ([], 1),
    ],
)
def test_a_wrong_number_or_size_is_refused(tmp_path: Path, digests: list[bytes], count: int) -> None:
    with pytest.raises(ValueError, match="do not go with"):
        write_digests(tmp_path / "digests.npy", digests, np.arange(count, dtype=np.int64))
    assert list(tmp_path.iterdir()) == []
