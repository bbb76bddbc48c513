"""Load and create the digest, encryption and signing keys.

An unkeyed hash of a phone number can be reversed with ten thousand million guesses, so every stored digest of text is
keyed, and the key itself is never stored. There are three keys for three groups of people: those who join runs, read
private parts, and release.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import logging
import multiprocessing
import os
import secrets
import stat
import unicodedata
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import PUBLIC_FILE, write_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


_log = logging.getLogger("redactory.events")
"""The logger of ``--log-json``; without it, a warning is a line on standard error."""
DIGEST_BYTES = 16
MINIMUM_KEY_BYTES = 16
MINIMUM_ENCRYPTION_KEY_BYTES = 32
KEY_VARIABLE = "REDACTORY_KEY"
ENCRYPTION_VARIABLE = "REDACTORY_ENCRYPTION_KEY"
SIGNING_VARIABLE = "REDACTORY_SIGNING_KEY"

_PUBLIC_KEY_FIX = "give the .pub file that redactory keys new signing wrote"
KeyKind = Literal["digest", "encryption", "signing"]


@dataclass(frozen=True)
class DigestKey:
    """A run's key for digests and pseudonyms.

    ``is_generated`` means that it was drawn for this process, so no other process can resume the run. Equal inputs give
    equal digests under one key and purpose; the probability of a collision among n inputs is at most n²/2¹²⁹
    (``docs/guarantees.md``, deduplication).
    """

    secret: bytes = field(repr=False)
    is_generated: bool = False

    def derive_subkey(self, purpose: str) -> bytes:
        """Return the 32-byte subkey of one purpose, so that digests of different purposes differ."""
        return hmac.digest(self.secret, b"redactory/" + purpose.encode(), "sha256")

    def compute_text_digest(self, purpose_key: bytes, data: bytes) -> bytes:
        """Return the 16-byte keyed BLAKE2b of ``data`` under a subkey from :meth:`derive_subkey`."""
        return hashlib.blake2b(data, digest_size=DIGEST_BYTES, key=purpose_key).digest()

    def compute_file_digest(self, blocks: Iterable[bytes]) -> str:
        """Return the 32 hex digit digest of an input file, given in blocks of any size.

        Without the key, nobody can test guesses of the file's content against a manifest or log.
        """
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES, key=self.derive_subkey("input"))
        for block in blocks:
            digest.update(block)
        return digest.hexdigest()

    def make_pseudonym(self, purpose: str, value: str | int) -> str:
        """Return 32 hex digits: HMAC-SHA256 of ``value`` under ``purpose``, cut to 16 bytes."""
        return self.make_pseudonyms(purpose, [value])[0]

    def make_pseudonyms(self, purpose: str, values: Iterable[str | int]) -> list[str]:
        """Return :meth:`make_pseudonym` of many values under one purpose."""
        subkey = self.derive_subkey(purpose)
        return [hmac.digest(subkey, str(v).encode(), "sha256")[:DIGEST_BYTES].hex() for v in values]

    @property
    def fingerprint(self) -> str:
        """Return 8 hex digits that distinguish keys without revealing them."""
        return self.make_pseudonym("fingerprint", "")[:8]


def load_digest_key() -> DigestKey:
    """Load the key of ``REDACTORY_KEY`` or of the file in ``REDACTORY_KEY_FILE``, else draw a fresh one.

    ``ConfigurationError`` for a key under 16 bytes, an unreadable key file, an empty variable, or both at once: a run
    meant to have a lasting key must not use a temporary one.
    """
    value = _read_key_setting(KEY_VARIABLE)
    return _generate_key() if value is None else DigestKey(_require_length(*value, MINIMUM_KEY_BYTES))


def load_encryption_key() -> bytes | None:
    """Load the secret of ``REDACTORY_ENCRYPTION_KEY`` or ``..._FILE``, at least 32 bytes; None without.

    ``ConfigurationError`` for a shorter or empty one, an unreadable file, or both at once: an empty variable must not
    disable encryption.
    """
    value = _read_key_setting(ENCRYPTION_VARIABLE)
    return None if value is None else _require_length(*value, MINIMUM_ENCRYPTION_KEY_BYTES)


def read_encryption_key(path: Path) -> bytes:
    """Read the secret of a key file; ``ConfigurationError`` for less than 32 bytes or an unreadable file."""
    return _require_length(_read_key_file(path), str(path), MINIMUM_ENCRYPTION_KEY_BYTES)


def load_signing_key() -> Ed25519PrivateKey | None:
    """Load the Ed25519 key of ``REDACTORY_SIGNING_KEY`` or ``..._FILE`` (PEM); None if neither is set.

    ``ConfigurationError`` for anything but an unencrypted Ed25519 private key in PEM.
    """
    value = _read_key_setting(SIGNING_VARIABLE)
    if value is None:
        return None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    secret, name = value
    try:
        key = load_pem_private_key(secret, password=None)
    except Exception:  # the message could quote the key
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(
            f"{name} is not an unencrypted Ed25519 key in PEM: run redactory keys new signing FILE"
        )
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read the Ed25519 public key of a PEM file; ``ConfigurationError`` if it contains none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}; {_PUBLIC_KEY_FIX}") from None
    except Exception:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError(f"{path} is not an Ed25519 public key in PEM; {_PUBLIC_KEY_FIX}")
    return key


def create_key_file(kind: KeyKind, path: Path) -> list[Path]:
    """Write a fresh key to the new file ``path``, mode 0600; return the written files.

    ``digest`` and ``encryption`` are 32 random bytes in hexadecimal, ``signing`` an Ed25519 private key in PEM with its
    public key beside it (``path`` with ``.pub`` added, mode 0644). ``ConfigurationError`` if a file exists: an
    overwritten key is lost for good.
    """
    public = path.with_name(path.name + ".pub")
    files = [path, public] if kind == "signing" else [path]
    for file in files:
        if file.exists() or file.is_symlink():
            raise ConfigurationError(f"{file} exists: a key is never overwritten; give another name")
    try:
        if kind == "signing":
            private_pem, public_pem = _generate_signing_pair()
            write_bytes(path, private_pem)
            write_bytes(public, public_pem, PUBLIC_FILE)
        else:
            write_bytes(path, secrets.token_hex(32).encode() + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    return files


def _generate_signing_pair() -> tuple[bytes, bytes]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, public


def unicode_variants(user: str) -> list[str]:
    """Return the distinct Unicode-equivalent spellings of a user id: NFC, then NFD, then as given.

    Ids are keyed in NFC, so that one person has one budget and one pseudonym; raw rows may use any form.
    """
    return list(dict.fromkeys((*(unicodedata.normalize(form, user) for form in ("NFC", "NFD")), user)))


@functools.cache
def _generate_key() -> DigestKey:
    """Draw a key, once per process, so that a process can verify its own output."""
    return DigestKey(secrets.token_bytes(32), is_generated=True)


def read_environment_variable(variable: str) -> str | None:
    """Return the environment's ``variable``; ``ConfigurationError`` if empty, usually a secret that failed to load."""
    value = os.environ.get(variable)
    if value is not None and not value.strip():
        raise ConfigurationError(f"{variable} is set but empty: give it a value, or unset it")
    return value


def _read_key_setting(variable: str) -> tuple[bytes, str] | None:
    """Return the value of ``variable``, or of the file in its ``_FILE`` variant, and which one was used."""
    file_variable = f"{variable}_FILE"
    value, path = read_environment_variable(variable), read_environment_variable(file_variable)
    if value is not None and path is not None:
        raise ConfigurationError(f"both {variable} and {file_variable} are set: keep one of them")
    if path is not None:
        return _read_key_file(Path(path), f"{file_variable}: "), f"{file_variable} ({path})"
    return None if value is None else (os.fsencode(value), variable)


def _read_key_file(path: Path, prefix: str = "") -> bytes:
    """Read the key in the file; warn if it is this user's and others may read it."""
    try:
        secret = path.read_bytes().strip()
        if multiprocessing.parent_process() is None:
            _warn_if_world_readable(path)
    except OSError as error:
        fix = "give a key file that this user may read"
        raise ConfigurationError(f"{prefix}{path} cannot be read: {error.strerror}; {fix}") from None
    return secret


@functools.cache
def _warn_if_world_readable(path: Path) -> None:
    """Warn, once per process, that others can open the file, and how to fix that.

    Not if another user owns it, or a parent folder is closed to others: in a container, secrets are mounted as they
    are, and their reader cannot change that. For the same reason it is only a warning.
    """
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    is_reachable = all(folder.stat().st_mode & 0o011 for folder in path.resolve().parents)
    if status.st_uid == os.geteuid() and mode & 0o077 and is_reachable:
        _log.warning(f"{path}: other users can read this key file (mode {mode:04o}): run chmod 600 on it")


def _require_length(secret: bytes, name: str, minimum: int) -> bytes:
    if len(secret) < minimum:
        raise ConfigurationError(
            f"{name} has {len(secret)} bytes, but needs at least {minimum} (for example the output of: "
            "openssl rand -hex 32)"
        )
    return secret


TLS_SCHEME, TCP_SCHEME = "tls", "tcp"


def require_secure_address(address: str, setting: str) -> None:
    """Raise ``ConfigurationError`` unless ``address`` is ``tls://HOST:PORT``, or ``tcp://`` to this machine.

    Text and keys must cross a network encrypted. ``setting`` is the setting or option with the address. Names are not
    looked up: only ``localhost`` counts as this machine.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        is_complete = bool(parts.hostname and parts.port)
    except ValueError:
        is_complete = False
    if not is_complete or parts.scheme not in (TLS_SCHEME, TCP_SCHEME):
        raise ConfigurationError(
            f"{setting}: '{address}' is not a scheduler address; write tls://HOST:PORT, or tcp://127.0.0.1:PORT"
        )
    if parts.scheme == TCP_SCHEME and not _is_local_host(parts.hostname or ""):
        raise ConfigurationError(
            f"{setting}: '{address}' is another machine, so what is sent there (text, keys) would cross the "
            "network unencrypted; give scheduler and workers certificates, and write tls://HOST:PORT"
        )


def _is_local_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
