"""The one random stream: ChaCha20(root key; purpose, step, index).

All randomness in training comes from it, so a resumed run equals an uninterrupted one bit for bit, and a draw can be
named. Each (purpose, step, index) selects its own ChaCha20 key, so no two draws share a keystream. The root key must be
fresh secret randomness wherever a guarantee is claimed (``docs/guarantees.md``, side channels 7, 15 and 22).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

ROOT_BYTES = 32


@dataclass(frozen=True)
class RandomStream:
    """Draws named by (purpose, step, index) under one 32-byte root key.

    ``seeded`` means that the root came from a seed (a test or demonstration): who knows the seed can subtract the
    noise, so a guarantee states it.
    """

    root: bytes = field(repr=False)
    seeded: bool = False

    @classmethod
    def from_entropy(cls) -> RandomStream:
        """Create a stream with a root from the operating system."""
        return cls(secrets.token_bytes(ROOT_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> RandomStream:
        """Create a stream whose root anybody can recompute from ``seed``: for tests."""
        return cls(hashlib.blake2b(str(seed).encode(), digest_size=ROOT_BYTES).digest(), seeded=True)

    def random_bytes(self, purpose: str, step: int, count: int, index: int = 0) -> bytes:
        """Return ``count`` bytes of keystream."""
        name = f"{purpose}\x00{step}\x00{index}".encode()
        key = hashlib.blake2b(name, digest_size=ROOT_BYTES, key=self.root).digest()
        return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(count))

    def uniform(self, purpose: str, step: int, count: int, index: int = 0) -> NDArray[np.float64]:
        """Return ``count`` uniform draws on the 2⁵² midpoints of (0, 1): never 0, never 1."""
        words = np.frombuffer(self.random_bytes(purpose, step, 8 * count, index), dtype="<u8")
        # 53 bits and the half would not fit a float64: the largest would round to 1
        return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def normal(self, purpose: str, step: int, count: int, index: int = 0) -> NDArray[np.float64]:
        """Return ``count`` independent N(0, 1) draws in float64, by the Box-Muller transform."""
        half = (count + 1) // 2
        u = self.uniform(purpose, step, 2 * half, index)
        radius, angle = np.sqrt(-2.0 * np.log(u[:half])), 2.0 * np.pi * u[half:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]

    def permutation(self, purpose: str, step: int, count: int, index: int = 0) -> NDArray[np.int64]:
        """Return a permutation of ``range(count)``, uniform up to ties of 64-bit words."""
        words = np.frombuffer(self.random_bytes(purpose, step, 8 * count, index), dtype="<u8")
        return np.argsort(words, kind="stable").astype(np.int64)
