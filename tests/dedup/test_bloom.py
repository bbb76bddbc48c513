"""Bloom filters: nothing added is denied, a filter in front changes nothing, files hold to their head."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.dedup import write_digests
from redactory.dedup.plan import (
    SCREEN_ERROR_RATE,
    BloomFilter,
    BloomParameters,
    OnePass,
    as_numbers,
    load_bloom,
    save_bloom,
)
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.intervals import lower_bound, upper_bound

EDGES = [0, 1, 2**63, 2**64 - 1, 2**64, 2**122, 2**127 - 1, 2**127, 2**128 - 1]
DIGESTS = st.sampled_from([edge.to_bytes(16, "big") for edge in EDGES]) | st.binary(min_size=16, max_size=16)
PARTITIONS = st.lists(st.lists(DIGESTS, max_size=30), min_size=1, max_size=4)
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
@given(PARTITIONS)
def test_numbers_are_the_digests(partitions: list[list[bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path, digests in zip(written(Path(folder), partitions), partitions, strict=True):
            numbers = as_numbers(np.load(path))
            assert sorted(n.to_bytes(16, "big", signed=True) for n in numbers) == sorted(digests)


@settings(max_examples=60, deadline=None)
@given(st.lists(DIGESTS), st.integers(1, 50), st.sampled_from([1e-6, 0.01, 0.1]))
def test_what_was_added_is_never_denied(digests: list[bytes], capacity: int, rate: float) -> None:
    bloom = BloomFilter(capacity, rate)
    numbers = [int.from_bytes(digest, "big", signed=True) for digest in digests]
    for number in numbers:
        bloom.add(number)
        assert number in bloom
    again = BloomFilter.from_bytes(capacity, rate, bloom.to_bytes())
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
    bloom = BloomFilter(PARAMETERS.capacity, PARAMETERS.error_rate)
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
    bloom = BloomFilter(PARAMETERS.capacity, PARAMETERS.error_rate)
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
        with pytest.raises(CheckFailed, match="no Bloom filter"):
            load_bloom(tmp_path / "x", PARAMETERS)
