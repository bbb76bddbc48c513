"""The digest key: digests and pseudonyms that cannot be brute-forced without it.

An unkeyed hash of a phone number is the phone number, ten thousand million guesses later; so every
digest of text that is written down is keyed, and the key itself is never written.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from redactory.foundation.errors import ConfigurationError

DIGEST_BYTES = 16
MINIMUM_KEY_BYTES = 16
KEY_VARIABLE = "REDACTORY_KEY"
ENCRYPTION_VARIABLE = "REDACTORY_ENCRYPTION_KEY"


@dataclass(frozen=True)
class DigestKey:
    """A run's key for digests and pseudonyms.

    ``fresh`` says that it was drawn for this process: such a run cannot be resumed by another one.
    Equal inputs give equal digests under one key and one purpose; a collision of two among n inputs
    has probability at most n²/2¹²⁹ (``docs/guarantees.md``, deduplication).
    """

    secret: bytes = field(repr=False)
    fresh: bool = False

    def purpose(self, name: str) -> bytes:
        """The 32-byte subkey of one purpose, so that digests of different purposes never meet."""
        return hmac.digest(self.secret, b"redactory/" + name.encode(), "sha256")

    def text_digest(self, purpose_key: bytes, data: bytes) -> bytes:
        """16-byte keyed BLAKE2b of ``data`` under a subkey from :meth:`purpose`."""
        return hashlib.blake2b(data, digest_size=DIGEST_BYTES, key=purpose_key).digest()

    def pseudonym(self, purpose: str, value: str | int) -> str:
        """32 hex digits: HMAC-SHA256 of ``value`` under ``purpose``, cut to 16 bytes."""
        return hmac.digest(self.purpose(purpose), str(value).encode(), "sha256")[:DIGEST_BYTES].hex()

    @property
    def fingerprint(self) -> str:
        """Tells two keys apart without giving either away (8 hex digits)."""
        return self.pseudonym("fingerprint", "")[:8]


def load_digest_key() -> DigestKey:
    """The key of ``REDACTORY_KEY`` or of the file that ``REDACTORY_KEY_FILE`` names, else a fresh one.

    Raises ``ConfigurationError`` for a key under 16 bytes, an unreadable key file, or both at once.
    """
    if os.environ.get(ENCRYPTION_VARIABLE) or os.environ.get(f"{ENCRYPTION_VARIABLE}_FILE"):
        raise ConfigurationError(
            f"{ENCRYPTION_VARIABLE} is set, but this version writes private files unencrypted (mode 0700). "
            "Unset it, or keep the run folder on an encrypted volume."
        )
    given, path = os.environ.get(KEY_VARIABLE), os.environ.get(f"{KEY_VARIABLE}_FILE")
    if given and path:
        raise ConfigurationError(f"both {KEY_VARIABLE} and {KEY_VARIABLE}_FILE are set: keep one of them")
    if path:
        return DigestKey(_checked(_read_key_file(Path(path)), f"{KEY_VARIABLE}_FILE"))
    if given:
        return DigestKey(_checked(os.fsencode(given), KEY_VARIABLE))
    return _fresh_key()


@functools.cache
def _fresh_key() -> DigestKey:
    """Drawn once a process, so that a process can verify what it has just written; then it is gone."""
    return DigestKey(secrets.token_bytes(32), fresh=True)


def _read_key_file(path: Path) -> bytes:
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"{KEY_VARIABLE}_FILE cannot be read: {error.strerror}") from None


def _checked(secret: bytes, name: str) -> bytes:
    if len(secret) < MINIMUM_KEY_BYTES:
        raise ConfigurationError(
            f"{name} holds {len(secret)} bytes, at least {MINIMUM_KEY_BYTES} are needed "
            "(for example the output of: openssl rand -hex 32)"
        )
    return secret
