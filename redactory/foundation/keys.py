"""Keys: where the digest, the encryption and the signing key come from, and how new ones are made.

An unkeyed hash of a phone number is the phone number, ten thousand million guesses later; so every
digest of text that is written down is keyed, and the key itself is never written.  The three keys are
apart because three kinds of people hold them: who joins runs, who reads private parts, who releases.
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
"""That of ``--log-json``; without it, a warning is a line on standard error."""
DIGEST_BYTES = 16
MINIMUM_KEY_BYTES = 16
MINIMUM_ENCRYPTION_KEY_BYTES = 32
KEY_VARIABLE = "REDACTORY_KEY"
ENCRYPTION_VARIABLE = "REDACTORY_ENCRYPTION_KEY"
SIGNING_VARIABLE = "REDACTORY_SIGNING_KEY"

_PUBLIC_KEY_FIX = "give the .pub file that redactory keys new signing wrote"
Kind = Literal["digest", "encryption", "signing"]


@dataclass(frozen=True)
class DigestKey:
    """A run's key for digests and pseudonyms.

    ``fresh`` says that it was drawn for this process: such a run cannot be resumed by another one.
    Equal inputs give equal digests under one key and one purpose; a collision of two among n inputs
    has probability at most n²/2¹²⁹ (``docs/guarantees.md``, deduplication).
    """

    secret: bytes = field(repr=False)
    is_generated: bool = False

    def derive(self, name: str) -> bytes:
        """The 32-byte subkey of one purpose, so that digests of different purposes never meet."""
        return hmac.digest(self.secret, b"redactory/" + name.encode(), "sha256")

    def text_digest(self, purpose_key: bytes, data: bytes) -> bytes:
        """16-byte keyed BLAKE2b of ``data`` under a subkey from :meth:`derive`."""
        return hashlib.blake2b(data, digest_size=DIGEST_BYTES, key=purpose_key).digest()

    def file_digest(self, blocks: Iterable[bytes]) -> str:
        """32 hex digits of a file of an input, given in blocks of any size.

        Whoever has a manifest or a log, and not the key, cannot try out guesses of what the file held.
        """
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES, key=self.derive("input"))
        for block in blocks:
            digest.update(block)
        return digest.hexdigest()

    def pseudonym(self, purpose: str, value: str | int) -> str:
        """32 hex digits: HMAC-SHA256 of ``value`` under ``purpose``, cut to 16 bytes."""
        return hmac.digest(self.derive(purpose), str(value).encode(), "sha256")[:DIGEST_BYTES].hex()

    def pseudonyms(self, purpose: str, values: Iterable[str | int]) -> list[str]:
        """:meth:`pseudonym` of many values under one purpose."""
        subkey = self.derive(purpose)
        return [hmac.digest(subkey, str(v).encode(), "sha256")[:DIGEST_BYTES].hex() for v in values]

    @property
    def fingerprint(self) -> str:
        """Tells two keys apart without giving either away (8 hex digits)."""
        return self.pseudonym("fingerprint", "")[:8]


def load_digest_key() -> DigestKey:
    """The key of ``REDACTORY_KEY`` or of the file that ``REDACTORY_KEY_FILE`` names, else a fresh one.

    Raises ``ConfigurationError`` for a key under 16 bytes, an unreadable key file, a variable that is
    empty, or both at once: a run that was to have a lasting key never draws one that is gone with it.
    """
    value = _read_key_setting(KEY_VARIABLE)
    return _draw_key() if value is None else DigestKey(_require_length(*value, MINIMUM_KEY_BYTES))


def load_encryption_key() -> bytes | None:
    """The secret of ``REDACTORY_ENCRYPTION_KEY`` or ``..._FILE``, at least 32 bytes; None without.

    Raises ``ConfigurationError`` for a shorter or an empty one, an unreadable file, or both at once: a
    run that was to be encrypted never becomes an open one by a variable that was left empty.
    """
    value = _read_key_setting(ENCRYPTION_VARIABLE)
    return None if value is None else _require_length(*value, MINIMUM_ENCRYPTION_KEY_BYTES)


def read_encryption_key(path: Path) -> bytes:
    """The secret of a key file, at least 32 bytes; ``ConfigurationError`` for less or an unreadable file."""
    try:
        return _require_length(_read_key_file(path), str(path), MINIMUM_ENCRYPTION_KEY_BYTES)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None


def load_signing_key() -> Ed25519PrivateKey | None:
    """The Ed25519 key of ``REDACTORY_SIGNING_KEY`` or ``..._FILE`` (PEM); None where neither is set.

    Raises ``ConfigurationError`` for anything else than an unencrypted Ed25519 private key in PEM.
    """
    value = _read_key_setting(SIGNING_VARIABLE)
    if value is None:
        return None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    secret, name = value
    try:
        key = load_pem_private_key(secret, password=None)
    except Exception:  # its message could quote the key
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(
            f"{name} is not an unencrypted Ed25519 key in PEM: run redactory keys new signing FILE"
        )
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """The Ed25519 public key of a PEM file; ``ConfigurationError`` where it holds none."""
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


def new_key(kind: Kind, path: Path) -> list[Path]:
    """Write a fresh key to the new file ``path``, mode 0600; the files that were written.

    ``digest`` and ``encryption`` are 32 random bytes in hexadecimal, ``signing`` an Ed25519 private key
    in PEM with its public key beside it (``path`` with ``.pub`` added, mode 0644).  Raises
    ``ConfigurationError`` where a file is there already: an overwritten key is lost for good.
    """
    public = path.with_name(path.name + ".pub")
    files = [path, public] if kind == "signing" else [path]
    for file in files:
        if file.exists() or file.is_symlink():
            raise ConfigurationError(f"{file} exists: a key is never overwritten; give another name")
    try:
        if kind == "signing":
            private_pem, public_pem = _new_signing_pair()
            write_bytes(path, private_pem)
            write_bytes(public, public_pem, PUBLIC_FILE)
        else:
            write_bytes(path, secrets.token_hex(32).encode() + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    return files


def _new_signing_pair() -> tuple[bytes, bytes]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, public


def unicode_variants(user: str) -> list[str]:
    """The spellings of one user's id that Unicode calls the same, each once: NFC, then NFD, then as given.

    Ids are keyed in NFC, so that one person has one budget and one pseudonym; in raw rows they may stand in
    any of these forms.
    """
    return list(dict.fromkeys((*(unicodedata.normalize(form, user) for form in ("NFC", "NFD")), user)))


@functools.cache
def _draw_key() -> DigestKey:
    """Drawn once a process, so that a process can verify what it has just written; then it is gone."""
    return DigestKey(secrets.token_bytes(32), is_generated=True)


def read_variable(variable: str) -> str | None:
    """What the environment says under ``variable``; ``ConfigurationError`` where it is set and empty.

    An empty variable is mostly a secret that failed to load, and what it stood for was wanted.
    """
    value = os.environ.get(variable)
    if value is not None and not value.strip():
        raise ConfigurationError(f"{variable} is set but empty: give it a value, or unset it")
    return value


def _read_key_setting(variable: str) -> tuple[bytes, str] | None:
    """What ``variable``, or the file that its ``_FILE`` names, holds, and which of the two it was."""
    in_file = f"{variable}_FILE"
    value, path = read_variable(variable), read_variable(in_file)
    if value is not None and path is not None:
        raise ConfigurationError(f"both {variable} and {in_file} are set: keep one of them")
    if path is not None:
        try:
            return _read_key_file(Path(path)), f"{in_file} ({path})"
        except OSError as error:
            raise ConfigurationError(
                f"{in_file}: {path} cannot be read: {error.strerror}; give a key file that this user may read"
            ) from None
    return None if value is None else (os.fsencode(value), variable)


def _read_key_file(path: Path) -> bytes:
    """The key in the file; a file of this user's that others may read is warned about, and read."""
    secret = path.read_bytes().strip()
    if multiprocessing.parent_process() is None:
        _warn_if_world_readable(path)
    return secret


@functools.cache
def _warn_if_world_readable(path: Path) -> None:
    """Warn, once a process, that others can open the file, and say how that is mended.

    Not where another user owns it, nor where a folder above it is closed to others: in a container, secrets
    are mounted as they are, and whoever reads them cannot change that.  Nor is it refused, for that reason.
    """
    if os.name != "posix":
        return
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    reached = all(folder.stat().st_mode & 0o011 for folder in path.resolve().parents)
    if status.st_uid == os.geteuid() and mode & 0o077 and reached:
        _log.warning(f"{path}: other users can read this key file (mode {mode:04o}): run chmod 600 on it")


def _require_length(secret: bytes, name: str, least: int) -> bytes:
    if len(secret) < least:
        raise ConfigurationError(
            f"{name} has {len(secret)} bytes, but needs at least {least} (for example the output of: "
            "openssl rand -hex 32)"
        )
    return secret


# What may be sent where: text and keys go over a network encrypted, or not at all.


SECURE, OPEN = "tls", "tcp"


def require_secure_address(address: str, where: str) -> None:
    """``ConfigurationError`` unless ``address`` is ``tls://HOST:PORT``, or ``tcp://`` to this machine.

    ``where`` is the setting or option that holds the address.  No name is looked up: of names only
    ``localhost`` is taken for this machine.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        whole = bool(parts.hostname and parts.port)
    except ValueError:
        whole = False
    if not whole or parts.scheme not in (SECURE, OPEN):
        raise ConfigurationError(
            f"{where}: '{address}' is not a scheduler address; write tls://HOST:PORT, or tcp://127.0.0.1:PORT"
        )
    if parts.scheme == OPEN and not _is_local_host(parts.hostname or ""):
        raise ConfigurationError(
            f"{where}: '{address}' is another machine, so what is sent there (text, keys) would cross the "
            "network unencrypted; give scheduler and workers certificates, and write tls://HOST:PORT"
        )


def _is_local_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
