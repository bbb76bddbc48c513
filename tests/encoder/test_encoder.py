"""The encoder: each text alone, every piece once, damaged files refused."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.encoder import DEFAULT_FOLDER, TextEncoder, load_encoder
from redactory.encoder.model import BLOCK, FILES, OVERLAP, plan_windows
from redactory.foundation.errors import ConfigurationError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300) | st.sampled_from(
    ["Mary Smith wohnt in São Paulo.", "привет, Anna", "東京のOlga", "a" * 700, "\u200b", " \n ", "e\u0301" * 40]
)


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return load_encoder()


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_vectors_depend_on_nothing_but_the_text(text: str, before: list[str]) -> None:
    encoder = load_encoder()
    first = encoder.encode(text)
    for other in before:
        encoder.encode(other)
    again = encoder.encode(text)
    assert first.vectors.tobytes() == again.vectors.tobytes()
    assert first.ranges.tobytes() == again.ranges.tobytes()


@settings(deadline=None, max_examples=60)
@given(TEXTS)
def test_every_letter_and_digit_is_in_a_piece(text: str) -> None:
    encoded = load_encoder().encode(text)
    covered = np.zeros(len(text) + 1, bool)
    for start, end in encoded.ranges:
        assert 0 <= start <= end <= len(text)
        covered[start:end] = True
    assert all(covered[place] for place, letter in enumerate(text) if letter.isalnum())


@given(st.integers(0, 3_000), st.integers(2 * OVERLAP, 400))
def test_windows_take_each_piece_once_and_never_from_an_edge(pieces: int, window: int) -> None:
    taken: list[int] = []
    for place, kept in plan_windows(pieces, window):
        assert 0 < place.stop - place.start <= window
        assert place.start <= kept.start < kept.stop <= place.stop
        assert place.start == 0 or kept.start - place.start >= OVERLAP // 2
        assert place.stop == pieces or place.stop - kept.stop >= OVERLAP // 2
        taken += range(kept.start, kept.stop)
    assert taken == list(range(pieces))


def test_a_text_of_one_window_is_not_cut(encoder: TextEncoder) -> None:
    words = " ".join(["Mary met John in Boston."] * 20)
    pieces = len(encoder.encode(words).ranges)
    assert pieces <= encoder.window
    assert [kept for _, kept in plan_windows(pieces, encoder.window)] == [slice(0, pieces)]


def test_a_long_text_reads_as_its_parts_do(encoder: TextEncoder) -> None:
    """Away from the seams, a window sees the same pieces whatever follows 300 pieces later."""
    line = "Mary met John in Boston on Friday. "
    long, longer = encoder.encode(line * 60), encoder.encode(line * 90)
    assert len(long.ranges) > encoder.window + OVERLAP
    shared = encoder.window - OVERLAP // 2
    assert long.vectors[:shared].tobytes() == longer.vectors[:shared].tobytes()


def test_embeddings_are_what_their_blocks_say(encoder: TextEncoder) -> None:
    """An independent reader of the 4-bit format."""
    width, stored = encoder.width, (DEFAULT_FOLDER / "embeddings.bin").read_bytes()
    row_bytes = width // 32 * BLOCK.itemsize
    numbers = [0, 3, 17, len(stored) // row_bytes - 1]
    vectors = encoder._look_up(np.array(numbers))
    for number, vector in zip(numbers, vectors, strict=True):
        expected: list[float] = []
        for place in range(number * row_bytes, (number + 1) * row_bytes, BLOCK.itemsize):
            scale, *halves = struct.unpack_from("<e16B", stored, place)
            expected += [scale * ((byte & 15) - 8) for byte in halves] + [scale * ((byte >> 4) - 8) for byte in halves]
        np.testing.assert_array_equal(vector, np.array(expected, np.float32))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(DEFAULT_FOLDER, tmp_path_factory.mktemp("encoder") / "copy")


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_with_both_digests(copied: Path, name: str) -> None:
    whole = (copied / name).read_bytes()
    recorded = json.loads((copied / "encoder.json").read_text(encoding="utf-8"))["files"][name]
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    try:
        (copied / name).write_bytes(damaged)
        with pytest.raises(
            ConfigurationError, match=rf"{name} is damaged: expected sha256 {recorded}, got [0-9a-f]{{64}}"
        ):
            TextEncoder(copied)
        (copied / name).unlink()
        with pytest.raises(ConfigurationError, match=f"{name} is damaged: .*no file"):
            TextEncoder(copied)
    finally:
        (copied / name).write_bytes(whole)
    TextEncoder(copied)
