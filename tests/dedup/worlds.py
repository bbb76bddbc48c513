"""Small corpora through the real files of every mode, and the same rules in a line or two of Python."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from redactory.dedup import DedupSettings, find_repeats_in_range, lookup_replacements, write_digests
from redactory.dedup.near import (
    NEAR_RANGES,
    compare_buckets,
    join_groups,
    select_duplicates_to_drop,
    select_nearest_pairs,
)
from redactory.dedup.plan import write_entries
from redactory.dedup.settings import Mode
from redactory.dedup.signatures import (
    ROW,
    Shingler,
    SignedFiles,
    WordTokenizer,
    choose_banding,
    compute_jaccard,
    write_signed_texts,
)
from redactory.foundation.keys import DigestKey
from redactory.pipelines.curation.stages.dedup import compute_decision_digests
from redactory.redaction import MASK, PRIVATE, RoutingDecision

KEY = DigestKey(b"a key for tests only")
WORDS = WordTokenizer(MASK)
RANGES = 16
Text = tuple[str, int]
"""A text and its side: 0 public, 1 private."""


def planned(folder: Path, texts: list[str], mode: Mode, key: DigestKey = KEY) -> list[str]:
    """What the exact or the folded mode keeps of one side: the real digests, ranges and plan."""
    folder.mkdir(parents=True, exist_ok=True)
    decisions = [RoutingDecision(PRIVATE, text, ()) for text in texts]
    ids = np.arange(len(texts), dtype=np.int64)
    digests, ranks = compute_decision_digests(key, DedupSettings(mode=mode), ids.tolist(), decisions, None)
    half = len(texts) // 2
    files = [folder / "a", folder / "b"]
    for path, own in zip(files, (slice(None, half), slice(half, None)), strict=True):
        write_digests(path, digests[own], ids[own], ranks and ranks[own])
    ranges = [folder / str(number) for number in range(RANGES)]
    for number, out in enumerate(ranges):
        find_repeats_in_range(files, number, out, RANGES)
    first = lookup_replacements(ranges, ids)
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
        banding = choose_banding(threshold, permutations)
        rank = key.derive_subkey("dedup/rank")
        for number, texts in enumerate(partitions):
            ids = np.arange(len(texts), dtype=np.int64) + (number << 32)
            sets = Shingler(key, shingle, WORDS).make_shingle_sets([text for text, _ in texts])
            rows = np.zeros(len(ids), ROW)
            rows["id"], rows["split"] = ids, [side for _, side in texts]
            rows["rank"] = [int.from_bytes(key.compute_text_digest(rank, t.encode())[:8], "little") for t, _ in texts]
            self.files.append(SignedFiles(folder, number))
            write_signed_texts(self.files[-1], rows, sets, banding)
            for place, point in enumerate(ids.tolist()):
                values = sets.values[sets.offsets[place] : sets.offsets[place + 1]]
                self.sets[point] = frozenset(values.tolist())
                self.texts[point] = texts[place]
        self.counts: Counter[str] = Counter()

    def compare(self, within: frozenset[int] = frozenset({0, 1}), across: bool = True) -> None:
        """The stages compare, group and choose."""
        forests, groups = (self.ranges(name) for name in ("pairs", "groups"))
        found = []
        for number, path in enumerate(forests):
            pairs, near, counts = compare_buckets(self.files, number, self.threshold, within, across)
            write_entries(path, pairs)
            found.append(near)
            self.counts += counts
        best = select_nearest_pairs(np.concatenate(found)).tolist()
        self.across = {public: (private, similarity) for public, private, similarity in best}
        self.grouped, self.largest = join_groups(forests, groups)
        chosen = (select_duplicates_to_drop(self.files, np.load(path), self.threshold).tolist() for path in groups)
        self.dropped = {point: own for pairs in chosen for point, own in pairs}

    def kept(self) -> list[str]:
        """The texts that stay."""
        return [text for point, (text, _) in self.texts.items() if point not in self.dropped]

    def similarity(self, one: int, other: int) -> float:
        """The true Jaccard similarity of two points."""
        return compute_jaccard(self.sets[one], self.sets[other])

    def similar(self, least: float) -> set[tuple[int, int]]:
        """Brute force: every pair within a side from this similarity on."""
        points = sorted(self.texts)
        return {
            (one, other)
            for place, one in enumerate(points)
            for other in points[place + 1 :]
            if self.texts[one][1] == self.texts[other][1] and self.similarity(one, other) >= least
        }

    def ranges(self, name: str) -> list[Path]:
        """The files of a table, one a hash range."""
        return [self.folder / f"{name}-range-{number}.npy" for number in range(NEAR_RANGES)]


def substitutions(one: list[str], other: list[str]) -> int:
    """How many texts of the multiset ``one`` must be exchanged, added or removed to get ``other``."""
    lost, gained = Counter(one) - Counter(other), Counter(other) - Counter(one)
    return max(lost.total(), gained.total())
