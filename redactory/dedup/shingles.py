"""Shingles: a text as the set of its runs of words, each run a keyed 64-bit hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.words import Words
from redactory.foundation.keys import DigestKey

Hashes = NDArray[np.uint64]
_PAD = 0x9E3779B97F4A7C15
_ODD = np.uint64(0x9FB21C651E98DF25)


@dataclass(frozen=True)
class ShingleSets:
    """Sets of many texts: that of text i is ``values[offsets[i]:offsets[i + 1]]``, sorted, never empty."""

    values: Hashes
    offsets: NDArray[np.int64]


class Shingler:
    """Texts into sets of shingles of ``length`` words.

    A word is hashed by keyed BLAKE2b, a shingle mixes its words' hashes, so that nobody without the key
    can look a word or a shingle up.  A text of fewer words is one shingle, and one of signs alone is
    itself: they are near-duplicates of nothing but the same words, or the same signs.
    """

    def __init__(self, key: DigestKey, length: int, words: Words) -> None:
        self._key, self._purpose = key, key.purpose("dedup/shingle")
        self._length, self._words = length, words

    def sets(self, texts: Sequence[str]) -> ShingleSets:
        """The set of each text.  Two different shingles have one hash with probability 2⁻⁶⁴."""
        known: dict[str, int] = {}
        flat: list[int] = []
        lengths = np.empty(len(texts), np.int64)
        for number, text in enumerate(texts):
            words = self._words.of(text) or [f"\x00{text}"]
            for word in words:
                if (value := known.get(word)) is None:
                    value = known[word] = self._hash(word)
                flat.append(value)
            missing = max(0, self._length - len(words))
            flat += [_PAD] * missing
            lengths[number] = len(words) + missing
        return _distinct(np.array(flat, np.uint64), lengths, self._length)

    def _hash(self, word: str) -> int:
        return int.from_bytes(
            self._key.text_digest(self._purpose, word.encode("utf-8", "surrogatepass"))[:8], "little"
        )


def mixed(values: Hashes) -> Hashes:
    """MurmurHash3's 64-bit finalizer: a bijection that spreads every bit over all."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


def joined(columns: Sequence[Hashes], seed: int) -> Hashes:
    """One hash of the values that stand at the same place of every column, in their order."""
    out = np.full(len(columns[0]), seed, np.uint64)
    for column in columns:
        out = mixed(out * _ODD + column)
    return out


def _distinct(words: Hashes, lengths: NDArray[np.int64], length: int) -> ShingleSets:
    """Every run of ``length`` words within a text, once a text, in the order of texts and values."""
    counts = lengths - length + 1
    text = np.repeat(np.arange(len(lengths)), counts)
    begin = np.cumsum(lengths) - lengths
    place = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts - begin, counts)
    values = joined([words[place + step] for step in range(length)], length)
    order = np.lexsort((values, text))
    values, text = values[order], text[order]
    new = np.ones(len(values), bool)
    new[1:] = (values[1:] != values[:-1]) | (text[1:] != text[:-1])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(text[new], minlength=len(lengths)))])
    return ShingleSets(values[new], offsets.astype(np.int64))
