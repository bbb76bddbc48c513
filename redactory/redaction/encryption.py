"""Encryption: one data key a run, wrapped by a key that lies elsewhere.

The run's data key encrypts its private parts (Parquet modular encryption, AES-256-GCM, footer and all
columns) and its other files that can hold text.  It lies in ``state/data-key.json`` alone, wrapped by a
local key or a client of a key management service: whoever deletes that file has shredded the private part.

What is encrypted says, under the same authentication, which file of which run it is, so that no file can
stand in for another.  That name stands in the encrypted footer and not in the AAD prefix that the Parquet
format has for it: DuckDB refuses files with a prefix, and a GCM tag over the one says what a tag over the
other would.  (A random nonce of 96 bits allows some 2³² encrypted modules a key; a part has under a hundred.)
"""

from __future__ import annotations

import base64
import functools
import importlib
import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from redactory.foundation.canonical import canonical_json
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError, shorten
from redactory.foundation.files import open_no_follow, sync_to_disk, write_bytes, write_json
from redactory.foundation.keys import ENCRYPTION_VARIABLE, load_encryption_key, read_variable
from redactory.redaction.folder import RunFolder

# What wraps the data key of a run: a local key, or a client of a key management service.


SERVICE_VARIABLE = "REDACTORY_KEY_SERVICE"
KEY_BYTES, _NONCE_BYTES = 32, 12


@runtime_checkable
class KeyService(Protocol):
    """What wraps a run's data key: a local key, or a client of a key management service.

    ``name`` stands in the run folder and tells one wrapping key from another without giving it away.
    ``context`` names the run; what was wrapped for one run must not unwrap for another (a service
    calls it encryption context or additional data).  Any exception means that the service refuses.
    """

    @property
    def name(self) -> str: ...
    def wrap(self, data_key: bytes, context: bytes) -> bytes: ...
    def unwrap(self, wrapped: bytes, context: bytes) -> bytes: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class LocalKey:
    """A :class:`KeyService` on this machine: AES-256-GCM under HKDF-SHA256 of a configured secret."""

    secret: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """``local`` and 8 hex digits that tell two secrets apart."""
        return f"local:{derive_key(self.secret, 'name')[:4].hex()}"

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """Nonce, ciphertext and tag of ``data_key``."""
        return encrypt(derive_key(self.secret, "wrap"), data_key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """What :meth:`wrap` was given; ``InvalidTag`` for another secret, context or ciphertext."""
        return decrypt(derive_key(self.secret, "wrap"), wrapped, context)


def configured_service() -> KeyService | None:
    """The key service of this process; None where none is configured.

    ``REDACTORY_ENCRYPTION_KEY`` or ``..._FILE`` gives a :class:`LocalKey`; ``REDACTORY_KEY_SERVICE`` names a function
    ``package.module:function`` without arguments that returns a :class:`KeyService`. Raises ``ConfigurationError`` for
    both at once, for one that is empty, and for whatever is no key or no service.
    """
    secret, function = load_encryption_key(), read_variable(SERVICE_VARIABLE)
    if function is None:
        return None if secret is None else LocalKey(secret)
    if secret is not None:
        raise ConfigurationError(f"both {ENCRYPTION_VARIABLE} and {SERVICE_VARIABLE} are set: keep one of them")
    return load_key_service(function, SERVICE_VARIABLE)


@functools.cache
def load_key_service(function: str, given_in: str) -> KeyService:
    """What ``package.module:function`` returns, asked once a process; ``given_in`` names the setting.

    Raises ``ConfigurationError`` where that is no service, or what the function itself refuses with.
    """
    module, _, name = function.partition(":")
    try:
        service = getattr(importlib.import_module(module), name)()
    except RedactoryError:
        raise
    except ModuleNotFoundError as error:
        # whether it is the module that was named, or one that this needs itself
        missing = error.name
        why = f"{module} needs the module '{missing}', which is not installed"
        if missing is None or f"{module}.".startswith(f"{missing}."):
            why = f"there is no module '{shorten(module)}' to import; write package.module:function"
        raise ConfigurationError(f"{given_in}: {why}") from None
    except Exception as error:
        raise ConfigurationError(f"{given_in}: {function} failed ({type(error).__name__})") from None
    if not isinstance(service, KeyService):
        raise ConfigurationError(f"{given_in}: {function} returned no key service (name, wrap, unwrap)")
    return service


def service_error(service: KeyService, error: Exception) -> RedactoryError:
    """The error for a service that failed: its name and the kind of its error, which may quote anything.

    An error of ours says by itself what is wrong, and quotes nothing.
    """
    refused = RunStateError(f"the key service {service.name} refused ({type(error).__name__})")
    return error if isinstance(error, RedactoryError) else refused


def derive_key(secret: bytes, purpose: str) -> bytes:
    """The 32-byte subkey of one purpose (HKDF-SHA256)."""
    hkdf = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"redactory/encryption/" + purpose.encode())
    return hkdf.derive(secret)


def encrypt(key: bytes, data: bytes, about: bytes) -> bytes:
    """Nonce, AES-256-GCM ciphertext and tag of ``data``; the tag covers ``about`` too."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, data, about)


def decrypt(key: bytes, data: bytes, about: bytes) -> bytes:
    """What :func:`encrypt` was given; ``InvalidTag`` or ``ValueError`` where ``data`` is not that."""
    return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], about)


# Encryption: one data key a run, wrapped by a key that lies elsewhere.


FORMAT = "redactory-data-key/1"
ALGORITHM = "AES_GCM_V1, 256 bits, footer and all columns under the run's data key"
_RUN_ID_BYTES = 16
_MAGIC = b"redactory/encrypted/1\n"
_NO_KEY = f"set {ENCRYPTION_VARIABLE}_FILE (or {ENCRYPTION_VARIABLE}, or {SERVICE_VARIABLE}) to the run's key"


@dataclass(frozen=True)
class RunKey:
    """The data key of the run in ``root``, in the open: it is never written."""

    root: Path
    run_id: str
    service: str
    secret: bytes = field(repr=False)

    def identity(self, path: Path) -> bytes:
        """Which file of which run ``path`` is; it stays the same where the run folder is moved."""
        return f"{self.run_id}/{_name_in_run(RunFolder(self.root), path)}".encode()

    @property
    def fingerprint(self) -> str:
        """Tells two data keys apart without giving either away (16 hex digits)."""
        return derive_key(self.secret, "fingerprint")[:8].hex()

    def to_json(self) -> dict[str, str]:
        """What the manifest says of the encryption."""
        return {"algorithm": ALGORITHM, "run_id": self.run_id, "data_key": self.fingerprint, "wrapped_by": self.service}

    def parquet_encryption(self) -> Any:
        """pyarrow's properties for writing a part."""
        return _parquet().create_encryption_properties(self.secret)

    def parquet_decryption(self) -> Any:
        """pyarrow's properties for reading a part; a file in the open is refused."""
        return _parquet().create_decryption_properties(self.secret)


def establish_key(run: RunFolder, is_begun: bool) -> RunKey | None:
    """The data key of a run that is about to write parts; drawn and wrapped where there is none yet.

    None where no service is configured and the run has no key.  ``is_begun`` says that the run was begun
    before: a new key would then leave it half open, or half lost, and is refused (``RunStateError``).
    """
    if run.data_key.is_file():
        return key_for(run.vault / "part")
    service = configured_service()
    if service is None:
        return None
    if is_begun:
        raise RunStateError(
            f"{run.root.name} was started without encryption, or its state/{run.data_key.name} is missing: "
            "resume it with the original settings, or start a new run in another folder"
        )
    _parquet()
    run_id, secret = secrets.token_hex(_RUN_ID_BYTES), secrets.token_bytes(KEY_BYTES)
    write_json(run.data_key, _wrap_key(service, run_id, secret))
    return key_for(run.vault / "part")


def rewrap_key(run: RunFolder, new: KeyService) -> dict[str, str] | None:
    """The content of ``run``'s key file once ``new`` wraps its data key; None where it does already.

    To be written in one piece: it is the one copy of the key, and ``new`` has opened it.  Raises
    ``ConfigurationError`` where no service is configured, ``CheckFailed`` where one of the two does not
    open the key, ``RunStateError`` where it refuses.
    """
    content = run.data_key.read_bytes()
    run_id, by, _ = _parse_key_file(content)
    if by == new.name:
        _unwrap_key(content, new)
        return None
    service = configured_service()
    if service is None:
        raise ConfigurationError(f"{run.root.name} is encrypted: {_NO_KEY} (the current one)")
    secret = _unwrap_key(content, service)
    record = _wrap_key(new, run_id, secret)
    if _unwrap_key(json.dumps(record).encode(), new) != secret:
        raise CheckFailed(f"{new.name} cannot unwrap what it wrapped: nothing was changed")
    return {**record, "before": by}


def key_identity(run: RunFolder) -> str | None:
    """The id under which ``run``'s data key was wrapped; None where there is no key file."""
    return _parse_key_file(run.data_key.read_bytes())[0] if run.data_key.is_file() else None


def destroy(path: Path) -> None:
    """Write random bytes over a small file as well as the file system lets us, and remove it for good.

    ``RunStateError`` for a link, and for a file that has a second name.  What snapshots, copies and worn
    blocks of a drive keep, it cannot reach.
    """
    with os.fdopen(open_no_follow(path, os.O_RDWR), "r+b", buffering=0) as file:
        file.write(secrets.token_bytes(max(1, os.fstat(file.fileno()).st_size)))
        os.fsync(file.fileno())
    path.unlink()
    sync_to_disk(path.parent)
    # nor does this process remember what it has unwrapped
    _unwrap_key.cache_clear()


def key_for(path: Path) -> RunKey | None:
    """The key that the file ``path`` of a run is encrypted with; None for a file that is in the open.

    In the open are files outside of any run, those of a run without a key, and ``public/``.  Raises
    ``ConfigurationError`` where the run has a key and no service is configured to unwrap it,
    ``CheckFailed`` where the configured one does not.
    """
    run = run_containing(path)
    if run is None or not run.data_key.is_file():
        return None
    if _name_in_run(run, path).startswith(f"{run.public.name}/"):
        return None
    service = configured_service()
    if service is None:
        raise ConfigurationError(f"the private part of {run.root.name} is encrypted: {_NO_KEY}")
    content = run.data_key.read_bytes()
    return RunKey(run.root, _parse_key_file(content)[0], service.name, _unwrap_key(content, service))


def run_containing(path: Path) -> RunFolder | None:
    """The run that ``path`` lies in: the nearest folder above it that has a ``state/``."""
    folders = (RunFolder(parent) for parent in path.absolute().parents)
    run = next((run for run in folders if run.state.is_dir()), None)
    if run is not None and run.root.parts[-3:] == run.reissue.files.parts[-3:]:
        # what is about to take the place of a run's parts is of that run
        return RunFolder(run.root.parents[2])
    return run


def _name_in_run(run: RunFolder, path: Path) -> str:
    """The name of ``path`` in ``run``; of what is staged there, the one that it will have."""
    path = path.absolute()
    staged = run.reissue.files
    return path.relative_to(staged if path.is_relative_to(staged) else run.root).as_posix()


def write_secret(path: Path, data: bytes) -> None:
    """Commit ``data`` to a private file of a run, encrypted where the run is."""
    key = key_for(path)
    if key is not None:
        data = _MAGIC + encrypt(derive_key(key.secret, "file"), data, key.identity(path))
    write_bytes(path, data)


def read_secret(path: Path) -> bytes:
    """What :func:`write_secret` was given; ``CheckFailed`` where the file is not what it wrote there."""
    key, data = key_for(path), path.read_bytes()
    if key is None:
        if data.startswith(_MAGIC):
            raise RunStateError(f"{path.name} is encrypted, but the data key of its run is missing")
        return data
    try:
        if not data.startswith(_MAGIC):
            raise InvalidTag
        return decrypt(derive_key(key.secret, "file"), data[len(_MAGIC) :], key.identity(path))
    except (InvalidTag, ValueError):
        raise CheckFailed(f"{path.name} was changed, or does not belong to this run") from None


def _parse_key_file(content: bytes) -> tuple[str, str, bytes]:
    """Run id, name of the service and wrapped key of a key file's content."""
    try:
        value = json.loads(content)
        run_id, by, wrapped = value["run_id"], value["wrapped_by"], value["wrapped"]
        if value["format"] == FORMAT and isinstance(run_id, str) and isinstance(by, str):
            return run_id, by, base64.b64decode(wrapped, validate=True)
    except (ValueError, KeyError, TypeError):
        pass
    raise CheckFailed("state/data-key.json is not a run's key file")


def _wrap_key(service: KeyService, run_id: str, secret: bytes) -> dict[str, str]:
    """The content of a key file."""
    try:
        wrapped = service.wrap(secret, _wrap_context(run_id))
    except Exception as error:
        raise service_error(service, error) from None
    record = {"format": FORMAT, "run_id": run_id, "wrapped_by": service.name}
    return {**record, "wrapped": base64.b64encode(wrapped).decode()}


@functools.lru_cache(maxsize=8)
def _unwrap_key(content: bytes, service: KeyService) -> bytes:
    """The data key of a key file's content; a service is asked once a process and run."""
    run_id, _, wrapped = _parse_key_file(content)
    try:
        secret = service.unwrap(wrapped, _wrap_context(run_id))
    except InvalidTag:
        raise CheckFailed("the encryption key is not the run's, or state/data-key.json was changed") from None
    except Exception as error:
        raise service_error(service, error) from None
    if len(secret) != KEY_BYTES:
        raise CheckFailed(f"{service.name} unwrapped {len(secret)} bytes, expected a data key of {KEY_BYTES}")
    return secret


def _parquet() -> Any:
    from pyarrow.parquet import encryption

    if not hasattr(encryption, "create_encryption_properties"):
        raise ConfigurationError("encrypted parts need a newer pyarrow: pip install 'pyarrow>=25'")
    return encryption


def _wrap_context(run_id: str) -> bytes:
    return canonical_json({"redactory": "data key", "run": run_id})
