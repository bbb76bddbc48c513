"""Digest files and the duplicate plan, against a dictionary in memory."""

from __future__ import annotations

import dataclasses
import json
import operator
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rbloom import Bloom

from redactory.dedup import RANGES, DuplicatePlan, plan_range, read_range, write_digests
from redactory.dedup import plan as plan_module
from redactory.dedup.plan import (
    SCREEN_ERROR_RATE,
    BloomParameters,
    OnePass,
    as_numbers,
    bloom_filter,
    load_bloom,
    save_bloom,
)
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.intervals import lower_bound, upper_bound

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


# Bloom filters: nothing added is denied, a filter in front changes nothing, files hold to their head.


MANY_DIGESTS = st.lists(st.lists(DIGESTS, max_size=30), min_size=1, max_size=4)
PARAMETERS = BloomParameters(500, 0.01, "dedup/public", "0a1b2c3d", "public", "f" * 64)


def random_digests(count: int, seed: int) -> list[int]:
    content = np.random.default_rng(seed).bytes(16 * count)
    return [int.from_bytes(content[i : i + 16], "big", signed=True) for i in range(0, len(content), 16)]


def written(folder: Path, partitions: list[list[bytes]]) -> list[Path]:
    files = []
    for number, digests in enumerate(partitions):
        files.append(folder / f"digests-{number}.npy")
        write_digests(files[-1], digests, np.arange(len(digests), dtype=np.int64) + (number << 32))
    return files


@settings(max_examples=40, deadline=None)
@given(MANY_DIGESTS)
def test_numbers_are_the_digests(partitions: list[list[bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path, digests in zip(written(Path(folder), partitions), partitions, strict=True):
            numbers = as_numbers(np.load(path))
            assert sorted(n.to_bytes(16, "big", signed=True) for n in numbers) == sorted(digests)


@settings(max_examples=60, deadline=None)
@given(st.lists(DIGESTS), st.integers(1, 50), st.sampled_from([1e-6, 0.01, 0.1]))
def test_what_was_added_is_never_denied(digests: list[bytes], capacity: int, rate: float) -> None:
    bloom = bloom_filter(capacity, rate)
    numbers = [int.from_bytes(digest, "big", signed=True) for digest in digests]
    for number in numbers:
        bloom.add(number)
        assert number in bloom
    again = Bloom.load_bytes(bloom.save_bytes(), operator.index)
    assert all(number in again for number in numbers)


def test_one_pass_keeps_each_text_once_and_loses_no_more_than_it_says() -> None:
    capacity, rate = 20_000, 0.01
    new = random_digests(capacity, 1)
    one_pass = OnePass(capacity, rate)
    first, again = one_pass.repeats(new), one_pass.repeats(new)
    assert all(again), "never a false negative: nothing is kept twice"
    lost = sum(first)
    assert (one_pass.tracked_new, one_pass.tracked_lost) == (capacity, lost), "few texts are all remembered"
    assert one_pass.added == capacity - lost
    assert lost / capacity < rate, "the filter fills up only at the end"


def test_the_loss_is_measured_on_a_part_as_it_is_on_the_whole() -> None:
    """At three times its capacity a filter loses much: the tracked part must tell how much, unbiased."""
    capacity, count = 1_000, 3_000
    new = random_digests(count, 2)
    one_pass = OnePass(capacity, 0.02)
    one_pass._limit = (1 << 32) // 4
    lost = sum(one_pass.repeats(new))
    part, part_lost = one_pass.tracked_new, one_pass.tracked_lost
    assert 0.2 < part / count < 0.3
    assert lower_bound(part_lost, part, 0.999) < lost / count < upper_bound(part_lost, part, 0.999)
    assert lost / count > 0.02


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    bloom = bloom_filter(PARAMETERS.capacity, PARAMETERS.error_rate)
    for number in random_digests(300, 3):
        bloom.add(number)
    save_bloom(tmp_path / "seen.bloom", bloom, PARAMETERS, added=300)
    return tmp_path / "seen.bloom"


def test_a_file_gives_the_filter_back_and_says_how_it_was_made(saved: Path) -> None:
    bloom = load_bloom(saved, PARAMETERS)
    assert all(number in bloom for number in random_digests(300, 3))
    assert sum(number in bloom for number in random_digests(2_000, 4)) < 2_000 * SCREEN_ERROR_RATE * 3
    head = json.loads(saved.read_bytes().partition(b"\n")[0])
    assert head["added"] == 300
    assert {name: head[name] for name in dataclasses.asdict(PARAMETERS)} == dataclasses.asdict(PARAMETERS)
    assert saved.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("capacity", 501),
        ("error_rate", 0.02),
        ("purpose", "text"),
        ("key", "ffffffff"),
        ("side", "private"),
        ("policy", "e" * 64),
    ],
)
def test_another_parameter_is_refused_with_both_values(saved: Path, name: str, other: object) -> None:
    asked = dataclasses.replace(PARAMETERS, **{name: other})  # type: ignore[arg-type]
    with pytest.raises(RunStateError, match=f"{name} ") as error:
        load_bloom(saved, asked)
    assert str(getattr(PARAMETERS, name)) in str(error.value)
    assert str(other) in str(error.value)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_torn_or_changed_file_is_refused(data: st.DataObject) -> None:
    bloom = bloom_filter(PARAMETERS.capacity, PARAMETERS.error_rate)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seen.bloom"
        save_bloom(path, bloom, PARAMETERS, added=0)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[place] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[place:]
        path.write_bytes(bytes(content))
        with pytest.raises((RunStateError, CheckFailed)):
            load_bloom(path, PARAMETERS)


def test_a_file_that_is_no_filter_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"\x00\xff" * 40, b"[]\n", b"{}\n", '{"é"'.encode("latin-1")):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(CheckFailed, match="not one of Redactory's Bloom filters"):
            load_bloom(tmp_path / "x", PARAMETERS)
