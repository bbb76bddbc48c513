"""Prepare texts for near-duplicate search: words, shingles, MinHash signatures, and their files."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.plan import Entries, mark_changed_rows, sort_entries, write_entries
from redactory.dedup.settings import NearSettings
from redactory.foundation.keys import DigestKey

# Thai to Lao, kana, Han: written without spaces, so each character is a word
_UNSPACED_SCRIPTS = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_DIGITS = re.compile(r"\d+")


class WordTokenizer:
    """Splits texts into words; ``token`` (the mask) is always one word."""

    def __init__(self, token: str) -> None:
        self._token = token.casefold()
        self._pattern = re.compile(rf"{re.escape(self._token)}|[{_UNSPACED_SCRIPTS}]|[^\W{_UNSPACED_SCRIPTS}]+")

    def split_words(self, text: str) -> list[str]:
        """Return the case-folded words of ``text`` in order; none for punctuation only."""
        return self._pattern.findall(text.casefold())

    def split_comparable_words(self, text: str) -> list[str]:
        """Return the words for comparing near-duplicates; a text that is at least half masked is one single word.

        Otherwise little would be left to compare, and all texts in a language that the engines do not know would look
        alike. A text of punctuation alone is one word, too. A function of ``text`` alone.
        """
        words = self.split_words(text)
        return words if 2 * words.count(self._token) < len(words) else [f"\x00{text}"]

    def fold_text(self, text: str) -> str:
        """Return the local key of rule S2: fold case, compatible characters, punctuation, white space and digits.

        A function of ``text`` alone; each run of digits becomes ``#``. A text of punctuation alone is its own key.
        """
        words = self.split_words(unicodedata.normalize("NFKC", text))
        return " ".join(_DIGITS.sub("#", word) for word in words) if words else f"\x00{text}"


Hashes = NDArray[np.uint64]
_PAD = 0x9E3779B97F4A7C15
_ODD = np.uint64(0x9FB21C651E98DF25)


@dataclass(frozen=True)
class ShingleSets:
    """Sets of many texts: text i has ``values[offsets[i]:offsets[i + 1]]``, sorted, never empty."""

    values: Hashes
    offsets: NDArray[np.int64]


class Shingler:
    """Turns texts into sets of shingles of ``length`` words, each a keyed 64-bit hash.

    Words are hashed by keyed BLAKE2b, and a shingle mixes its words' hashes, so nobody without the key can look up a
    word or shingle. A text of fewer words is one shingle, near only to the same words. A text of punctuation alone, or
    at least half masked, is near only to itself.
    """

    def __init__(self, key: DigestKey, length: int, tokenizer: WordTokenizer) -> None:
        self._key, self._purpose = key, key.derive_subkey("dedup/shingle")
        self._length, self._words = length, tokenizer

    def make_shingle_sets(self, texts: Sequence[str]) -> ShingleSets:
        """Return the set of each text; two different shingles collide with probability 2⁻⁶⁴."""
        word_hashes: dict[str, int] = {}
        flat: list[int] = []
        lengths = np.empty(len(texts), np.int64)
        for number, text in enumerate(texts):
            words = self._words.split_comparable_words(text)
            for word in words:
                if (value := word_hashes.get(word)) is None:
                    digest = self._key.compute_text_digest(self._purpose, word.encode("utf-8", "surrogatepass"))
                    value = word_hashes[word] = int.from_bytes(digest[:8], "little")
                flat.append(value)
            missing = max(0, self._length - len(words))
            flat += [_PAD] * missing
            lengths[number] = len(words) + missing
        return _collect_distinct_shingles(np.array(flat, np.uint64), lengths, self._length)


def mix_bits(values: Hashes) -> Hashes:
    """Apply MurmurHash3's 64-bit finalizer: a bijection that spreads every bit over all."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


def combine_hashes(columns: Sequence[Hashes], seed: int) -> Hashes:
    """Hash the values at the same row of all columns, in their order."""
    hashes = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        hashes = mix_bits(hashes * _ODD + column)
    return hashes


def _collect_distinct_shingles(words: Hashes, lengths: NDArray[np.int64], length: int) -> ShingleSets:
    """Return every run of ``length`` words within a text, once per text, sorted by text and value."""
    counts = lengths - length + 1
    text = np.repeat(np.arange(len(lengths)), counts)
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts - starts, counts)
    values = combine_hashes([words[positions + step] for step in range(length)], length)
    order = np.lexsort((values, text))
    values, text = values[order], text[order]
    is_first = mark_changed_rows(values, text)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(text[is_first], minlength=len(lengths)))])
    return ShingleSets(values[is_first], offsets.astype(np.int64))


MARGIN = 0.1
MAX_MISSED_SHARE = 0.01
"""Maximum share of pairs at the threshold + :data:`MARGIN` that share no band."""
SEED = 1
_GRID = 200
_CHUNK = 1 << 13


@dataclass(frozen=True)
class Banding:
    """``bands`` bands of ``rows`` hash values: two texts are compared if all values of a band agree.

    Two texts of Jaccard similarity s agree in one band with probability s^rows.
    """

    bands: int
    rows: int

    @property
    def permutations(self) -> int:
        """The number of hash values in a signature."""
        return self.bands * self.rows

    def compute_comparison_probability(self, similarity: float) -> float:
        """The probability that two texts of this similarity are compared."""
        return float(1.0 - (1.0 - similarity**self.rows) ** self.bands)


@functools.cache
def choose_banding(threshold: float, permutations: int) -> Banding:
    """Choose the banding with at most ``permutations`` values and the fewest useless comparisons.

    Candidates find a pair at the threshold + 0.1 (half way to 1 if that is nearer) with probability at least 0.99.
    Among them, take the least area under :meth:`Banding.compute_comparison_probability` below the threshold; without
    candidates, take the banding that misses the fewest pairs.
    """
    goal = min(threshold + MARGIN, (1.0 + threshold) / 2.0)
    grid = (np.arange(_GRID) + 0.5) / _GRID * threshold

    def rate(banding: Banding) -> tuple[float, float]:
        missed = max(0.0, 1.0 - banding.compute_comparison_probability(goal) - MAX_MISSED_SHARE)
        return missed, float(np.mean(1.0 - (1.0 - grid**banding.rows) ** banding.bands))

    row_counts = range(1, permutations + 1)
    return min((Banding(bands, rows) for rows in row_counts for bands in range(1, permutations // rows + 1)), key=rate)


def describe_near_parameters(settings: NearSettings) -> dict[str, Any]:
    """Describe the settings, the banding, and the share of pairs found at some similarities."""
    banding = choose_banding(settings.threshold, settings.permutations)
    similarities = sorted({round(min(1.0, settings.threshold + step), 4) for step in (-0.2, -0.1, 0.0, 0.1, 0.2)})
    return {
        "threshold": settings.threshold,
        "shingle": settings.shingle,
        **asdict(banding),
        "found_at": {
            f"{similarity:g}": round(banding.compute_comparison_probability(similarity), 4)
            for similarity in similarities
        },
    }


@functools.cache
def _draw_hash_constants(permutations: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    # drawn as datasketch does; importing it takes half a second
    generator, two, one = np.random.RandomState(SEED), np.uint32(2), np.uint32(1)
    multipliers: NDArray[np.uint32] = generator.randint(0, 1 << 31, permutations, dtype=np.uint32) * two + one
    return multipliers, generator.randint(0, 1 << 32, permutations, dtype=np.uint32)


def compute_signatures(sets: ShingleSets, permutations: int) -> NDArray[np.uint32]:
    """Compute uint32 [texts, permutations]: datasketch's MinHash (scheme ``affine32``) of many texts at once.

    Values equal those of ``MinHash.bulk`` on the highest 32 bits of the shingles, bit for bit. Processes a few thousand
    shingles at a time.
    """
    count, (multipliers, summands) = len(sets.offsets) - 1, _draw_hash_constants(permutations)
    signatures = np.empty((count, permutations), np.uint32)
    first = 0
    while first < count:
        last = int(np.searchsorted(sets.offsets, sets.offsets[first] + _CHUNK, side="right")) - 1
        last = min(count, max(first + 1, last))
        begin, end = sets.offsets[first], sets.offsets[last]
        values = (sets.values[begin:end] >> np.uint64(32)).astype(np.uint32)
        # MurmurHash3's finalizer, which datasketch applies before permuting
        values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        values = values ^ (values >> np.uint32(16))
        permuted = values[:, None] * multipliers + summands
        np.minimum.reduceat(permuted, sets.offsets[first:last] - begin, axis=0, out=signatures[first:last])
        first = last
    return signatures


def compute_buckets(signed: NDArray[np.uint32], banding: Banding) -> list[Hashes]:
    """Return one column per band: the 64-bit hash of its values, such that no two bands share a bucket."""
    wide = signed.astype(np.uint64)
    return [
        combine_hashes([wide[:, band * banding.rows + row] for row in range(banding.rows)], band + 1)
        for band in range(banding.bands)
    ]


# Signed texts: files for finding and verifying near-duplicates, without any text.


BUCKET = np.dtype([("high", "<u8"), ("id", "<i8")])
ROW = np.dtype([("id", "<i8"), ("start", "<i8"), ("count", "<i4"), ("split", "u1"), ("group", "<u8"), ("rank", "<u8")])
"""A signed text: its id, shingle offsets, split (0 or 1), comparison group and rank.

Of two near-duplicates, the one of lower rank is kept.
"""
PARTITION_BITS = 32
"""An example's id is its partition and, in this many low bits, its row in it."""
MAX_CACHED_SETS, MAX_MAPPED_FILES = 1 << 16, 256
"""Maximum shingle sets in memory, and maximum mapped files, each of which uses a descriptor."""


@dataclass(frozen=True)
class SignedFiles:
    """The files of one partition's signed texts."""

    folder: Path
    partition: int

    def get_path(self, kind: str) -> Path:
        """The file of the ``buckets``, ``rows`` or ``shingles``."""
        return self.folder / f"part-{self.partition:05d}-{kind}.npy"


def write_signed_texts(files: SignedFiles, rows: Entries, sets: ShingleSets, banding: Banding) -> None:
    """Commit the signed texts of one partition; ``rows`` (by id) lack only the offsets of the shingles."""
    columns = compute_buckets(compute_signatures(sets, banding.permutations), banding)
    buckets = np.empty(len(rows) * banding.bands, BUCKET)
    buckets["high"], buckets["id"] = np.concatenate(columns), np.tile(rows["id"], banding.bands)
    rows["start"], rows["count"] = sets.offsets[:-1], np.diff(sets.offsets)
    write_entries(files.get_path("buckets"), sort_entries(buckets))
    write_entries(files.get_path("shingles"), sets.values)
    write_entries(files.get_path("rows"), rows)


class SignedTexts:
    """The signed texts of ``ids``, each identified by its index: its row, and its shingles on demand."""

    def __init__(self, files: Sequence[SignedFiles], ids: NDArray[np.int64]) -> None:
        self.ids, self.rows = ids, np.empty(len(ids), ROW)
        order = np.argsort(ids, kind="stable")
        cuts = np.flatnonzero(np.diff(ids[order] >> PARTITION_BITS)) + 1
        for indices in np.split(order, cuts) if len(ids) else ():
            table = np.load(files[ids[indices[0]] >> PARTITION_BITS].get_path("rows"), mmap_mode="r")
            self.rows[indices] = table[np.searchsorted(table["id"], ids[indices])]
        slices = [self.rows["start"].tolist(), self.rows["count"].tolist()]
        partitions = (ids >> PARTITION_BITS).tolist()

        @lru_cache(MAX_MAPPED_FILES)
        def load_shingles(partition: int) -> NDArray[np.uint64]:
            return np.asarray(np.load(files[partition].get_path("shingles"), mmap_mode="r"))

        @lru_cache(MAX_CACHED_SETS)
        def get_shingles(index: int) -> frozenset[int]:
            start, count = slices[0][index], slices[1][index]
            return frozenset(load_shingles(partitions[index])[start : start + count].tolist())

        self.get_shingles = get_shingles


def compute_jaccard(one: frozenset[int], other: frozenset[int]) -> float:
    """Return |A ∩ B| / |A ∪ B| of two sets that are not both empty."""
    common = len(one & other)
    return common / (len(one) + len(other) - common)
