"""MinHash signatures in bulk, cut into bands; bands and rows chosen from the threshold."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.settings import NearSettings
from redactory.dedup.shingles import Hashes, ShingleSets, joined

MARGIN = 0.1
MISSED = 0.01
"""Share of the pairs at the threshold + :data:`MARGIN` that may share no band."""
SEED = 1
_GRID = 200
_CHUNK = 1 << 13


@dataclass(frozen=True)
class Banding:
    """``bands`` bands of ``rows`` hash values: two texts are compared when all values of a band agree.

    Two texts of Jaccard similarity s agree in all rows of one band with probability s^rows.
    """

    bands: int
    rows: int

    @property
    def permutations(self) -> int:
        """Hash values of a signature."""
        return self.bands * self.rows

    def found(self, similarity: float) -> float:
        """The probability that two texts of this similarity are compared."""
        return float(1.0 - (1.0 - similarity**self.rows) ** self.bands)


@functools.cache
def banding_for(threshold: float, permutations: int) -> Banding:
    """The banding of at most ``permutations`` values that compares the fewest pairs in vain.

    Among those that find a pair at the threshold + 0.1 (half way to 1 where that is nearer) with a
    probability of at least 0.99: least area under :meth:`Banding.found` below the threshold; where none
    does, the one that misses the fewest.
    """
    goal = min(threshold + MARGIN, (1.0 + threshold) / 2.0)
    grid = (np.arange(_GRID) + 0.5) / _GRID * threshold
    best: tuple[float, float, Banding] | None = None
    for rows in range(1, permutations + 1):
        for bands in range(1, permutations // rows + 1):
            banding = Banding(bands, rows)
            missed = max(0.0, 1.0 - banding.found(goal) - MISSED)
            vain = float(np.mean(1.0 - (1.0 - grid**rows) ** bands))
            if best is None or (missed, vain) < best[:2]:
                best = (missed, vain, banding)
            if not missed:
                break  # more bands of as many rows compare more in vain
    assert best is not None
    return best[2]


def parameters(settings: NearSettings) -> dict[str, Any]:
    """What is printed: the settings, the banding, and the share of pairs found at some similarities."""
    banding = banding_for(settings.threshold, settings.permutations)
    at = sorted({round(min(1.0, settings.threshold + step), 4) for step in (-0.2, -0.1, 0.0, 0.1, 0.2)})
    return {
        "threshold": settings.threshold,
        "shingle": settings.shingle,
        **asdict(banding),
        "found_at": {f"{similarity:g}": round(banding.found(similarity), 4) for similarity in at},
    }


class Signer:
    """Signatures of datasketch's MinHash (scheme ``affine32``), many texts at once.

    The values are bit for bit those of ``MinHash.bulk`` on the highest 32 bits of the shingles.
    """

    def __init__(self, permutations: int) -> None:
        from datasketch import MinHash

        multipliers, summands = MinHash(permutations, SEED, scheme="affine32").permutations
        self._multipliers: NDArray[np.uint32] = multipliers
        self._summands: NDArray[np.uint32] = summands

    def signatures(self, sets: ShingleSets) -> NDArray[np.uint32]:
        """uint32 [texts, permutations]; a few thousand shingles are in work at a time."""
        count = len(sets.offsets) - 1
        out = np.empty((count, len(self._multipliers)), np.uint32)
        first = 0
        while first < count:
            last = int(np.searchsorted(sets.offsets, sets.offsets[first] + _CHUNK, side="right")) - 1
            last = min(count, max(first + 1, last))
            begin, end = sets.offsets[first], sets.offsets[last]
            values = _mixed32((sets.values[begin:end] >> np.uint64(32)).astype(np.uint32))
            permuted = values[:, None] * self._multipliers + self._summands
            np.minimum.reduceat(permuted, sets.offsets[first:last] - begin, axis=0, out=out[first:last])
            first = last
        return out


def buckets(signatures: NDArray[np.uint32], banding: Banding) -> list[Hashes]:
    """One column a band: the 64-bit hash of the band's values, so that no two bands share a bucket."""
    wide = signatures.astype(np.uint64)
    return [
        joined([wide[:, band * banding.rows + row] for row in range(banding.rows)], band + 1)
        for band in range(banding.bands)
    ]


def _mixed32(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """MurmurHash3's 32-bit finalizer, with which datasketch mixes a hash before it is permuted."""
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return values ^ (values >> np.uint32(16))
