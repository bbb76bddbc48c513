"""Small corpora through the real files of every mode, and the same rules in a line or two of Python."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from redactory.dedup import RANGES, DedupSettings, DuplicatePlan, plan_range, write_digests
from redactory.dedup.near import NEAR_RANGES, Comparison, choose_range, compare_buckets, join_groups
from redactory.dedup.settings import Mode
from redactory.dedup.signatures import (
    Shingler,
    SignedFiles,
    TextFacts,
    Words,
    banding_for,
    jaccard,
    write_signed,
)
from redactory.foundation.keys import DigestKey
from redactory.pipelines.stages.dedup import fate_digests
from redactory.redaction import MASK, PRIVATE, Fate

KEY = DigestKey(b"a key for tests only")
WORDS = Words(MASK)
Text = tuple[str, int]
"""A text and its side: 0 public, 1 private."""


def planned(folder: Path, texts: list[str], mode: Mode, key: DigestKey = KEY) -> list[str]:
    """What the exact or the folded mode keeps of one side: the real digests, ranges and plan."""
    folder.mkdir(parents=True, exist_ok=True)
    fates = [Fate(PRIVATE, text, ()) for text in texts]
    ids = np.arange(len(texts), dtype=np.int64)
    digests, ranks = fate_digests(key, DedupSettings(mode=mode), ids.tolist(), fates, None)
    half = len(texts) // 2
    files = [folder / "a", folder / "b"]
    for path, own in zip(files, (slice(None, half), slice(half, None)), strict=True):
        write_digests(path, digests[own], ids[own], ranks and ranks[own])
    ranges = [folder / str(number) for number in range(RANGES)]
    for number, out in enumerate(ranges):
        plan_range(files, number, out)
    first = DuplicatePlan(ranges).first_of(ids)
    return [text for text, i, f in zip(texts, ids, first, strict=True) if i == f]


class NearWorld:
    """Distinct texts signed in partitions of a few, and what is found among them."""

    def __init__(
        self,
        folder: Path,
        partitions: list[list[Text]],
        threshold: float,
        key: DigestKey = KEY,
        shingle: int = 2,
        permutations: int = 128,
    ) -> None:
        self.folder, self.threshold = folder, threshold
        self.files: list[SignedFiles] = []
        self.texts: dict[int, Text] = {}
        self.sets: dict[int, frozenset[int]] = {}
        banding = banding_for(threshold, permutations)
        rank = key.purpose("dedup/rank")
        for number, texts in enumerate(partitions):
            ids = np.arange(len(texts), dtype=np.int64) + (number << 32)
            sets = Shingler(key, shingle, WORDS).sets([text for text, _ in texts])
            ranks = [int.from_bytes(key.text_digest(rank, t.encode())[:8], "little") for t, _ in texts]
            sides = np.array([side for _, side in texts], np.uint8)
            facts = TextFacts(ids, sides, np.zeros(len(ids), np.uint64), np.array(ranks, np.uint64))
            names = [folder / f"{name}-{number}.npy" for name in ("buckets", "rows", "shingles")]
            self.files.append(SignedFiles(*names))
            write_signed(self.files[-1], facts, sets, banding)
            for place, point in enumerate(ids.tolist()):
                values = sets.values[sets.offsets[place] : sets.offsets[place + 1]]
                self.sets[point] = frozenset(values.tolist())
                self.texts[point] = texts[place]
        self.counts: Counter[str] = Counter()

    def compare(self, within: frozenset[int] = frozenset({0, 1}), across: bool = True) -> None:
        """The stages compare, group and choose."""
        for number in range(NEAR_RANGES):
            asked = Comparison(
                self.threshold, within, across, self._range("pairs", number), self._range("across", number)
            )
            self.counts += compare_buckets(self.files, number, asked)
        if within:
            pairs, groups = (self._ranges(name) for name in ("pairs", "groups"))
            self.grouped, self.largest = join_groups(pairs, groups)
            for number in range(NEAR_RANGES):
                out = self._range("near", number)
                choose_range(self.files, self._range("groups", number), self.threshold, out)

    def dropped(self) -> dict[int, int]:
        """{dropped point: the one that stays for it}."""
        return {int(i): int(f) for path in self._ranges("near") for i, f in np.load(path)}

    def kept(self) -> list[str]:
        """The texts that stay."""
        dropped = self.dropped()
        return [text for point, (text, _) in self.texts.items() if point not in dropped]

    def across(self) -> dict[int, tuple[int, float]]:
        """{public point: (nearest private point, similarity)}, the best of all ranges."""
        best: dict[int, tuple[int, float]] = {}
        for path in self._ranges("across"):
            for public, private, similarity in np.load(path).tolist():
                if (similarity, -private) > (best.get(public, (0, 0.0))[1], -best.get(public, (0, 0.0))[0]):
                    best[public] = (private, similarity)
        return best

    def similarity(self, one: int, other: int) -> float:
        """The true Jaccard similarity of two points."""
        return jaccard(self.sets[one], self.sets[other])

    def similar(self, least: float) -> set[tuple[int, int]]:
        """Brute force: every pair within a side from this similarity on."""
        points = sorted(self.texts)
        return {
            (one, other)
            for place, one in enumerate(points)
            for other in points[place + 1 :]
            if self.texts[one][1] == self.texts[other][1] and self.similarity(one, other) >= least
        }

    def _range(self, name: str, number: int) -> Path:
        return self.folder / f"{name}-range-{number}.npy"

    def _ranges(self, name: str) -> list[Path]:
        return [self._range(name, number) for number in range(NEAR_RANGES)]


def substitutions(one: list[str], other: list[str]) -> int:
    """How many texts of the multiset ``one`` must be exchanged, added or removed to get ``other``."""
    lost, gained = Counter(one) - Counter(other), Counter(other) - Counter(one)
    return max(lost.total(), gained.total())
