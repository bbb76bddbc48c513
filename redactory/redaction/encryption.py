"""Encrypt a run with one data key, which is wrapped by an external key.

The data key encrypts private parts (Parquet modular encryption, AES-256-GCM, footer and all columns) and other files
that can contain text. It is stored only in ``state/data-key.json``, wrapped by a local key or a key management service:
deleting that file shreds the private part.

The authenticated content names its file and run, so no file can replace another. The name is in the encrypted footer
and not in Parquet's AAD prefix, because DuckDB refuses files with a prefix; the GCM tag covers it either way. (A random
nonce of 96 bits allows about 2³² encrypted modules per key; a part has fewer than a hundred.)
"""

from __future__ import annotations

import base64
import functools
import importlib
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from redactory.foundation.canonical import canonical_json
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError, shorten_name
from redactory.foundation.files import open_no_follow, sync_to_disk, write_bytes, write_json
from redactory.foundation.keys import ENCRYPTION_VARIABLE, load_encryption_key, read_environment_variable
from redactory.redaction.folder import RunFolder

SERVICE_VARIABLE = "REDACTORY_KEY_SERVICE"
KEY_BYTES, _NONCE_BYTES = 32, 12


@runtime_checkable
class KeyService(Protocol):
    """Wraps a run's data key: a local key or a client of a key management service.

    ``name`` is stored in the run folder; it identifies the wrapping key without revealing it. ``context`` names the
    run: a key wrapped for one run must not unwrap for another (services call it encryption context or additional data).
    Any exception means a refusal.
    """

    @property
    def name(self) -> str: ...
    def wrap(self, data_key: bytes, context: bytes) -> bytes: ...
    def unwrap(self, wrapped: bytes, context: bytes) -> bytes: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class LocalKey:
    """A local :class:`KeyService`: AES-256-GCM under HKDF-SHA256 of a configured secret."""

    secret: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """``local`` and 8 hex digits that distinguish secrets."""
        return f"local:{derive_key(self.secret, 'name')[:4].hex()}"

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """Encrypt ``data_key``: nonce, ciphertext and tag."""
        return encrypt(derive_key(self.secret, "wrap"), data_key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Reverse :meth:`wrap`; ``InvalidTag`` for another secret, context or ciphertext."""
        return decrypt(derive_key(self.secret, "wrap"), wrapped, context)


def load_configured_service() -> KeyService | None:
    """Return the configured key service; None if there is none.

    ``REDACTORY_ENCRYPTION_KEY`` or ``..._FILE`` gives a :class:`LocalKey`; ``REDACTORY_KEY_SERVICE`` names a function
    ``package.module:function`` without arguments that returns a :class:`KeyService`. ``ConfigurationError`` for both at
    once, an empty variable, or an invalid key or service.
    """
    secret, function = load_encryption_key(), read_environment_variable(SERVICE_VARIABLE)
    if function is None:
        return None if secret is None else LocalKey(secret)
    if secret is not None:
        raise ConfigurationError(f"both {ENCRYPTION_VARIABLE} and {SERVICE_VARIABLE} are set: keep one of them")
    return load_key_service(function, SERVICE_VARIABLE)


@functools.cache
def load_key_service(function: str, setting: str) -> KeyService:
    """Call ``package.module:function`` once per process; ``setting`` names the setting.

    ``ConfigurationError`` if the result is not a service, or with the function's own refusal.
    """
    module, _, name = function.partition(":")
    try:
        service = getattr(importlib.import_module(module), name)()
    except RedactoryError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name
        why = f"{module} needs the module '{missing}', which is not installed"
        if missing is None or f"{module}.".startswith(f"{missing}."):
            why = f"there is no module '{shorten_name(module)}' to import; write package.module:function"
        raise ConfigurationError(f"{setting}: {why}") from None
    except Exception as error:
        raise ConfigurationError(f"{setting}: {function} failed ({type(error).__name__})") from None
    if not isinstance(service, KeyService):
        raise ConfigurationError(f"{setting}: {function} returned no key service (name, wrap, unwrap)")
    return service


def derive_key(secret: bytes, purpose: str) -> bytes:
    """Derive the 32-byte subkey of one purpose (HKDF-SHA256)."""
    hkdf = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"redactory/encryption/" + purpose.encode())
    return hkdf.derive(secret)


def encrypt(key: bytes, data: bytes, associated_data: bytes) -> bytes:
    """Return nonce, AES-256-GCM ciphertext and tag of ``data``; the tag covers ``associated_data`` too."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, data, associated_data)


def decrypt(key: bytes, data: bytes, associated_data: bytes) -> bytes:
    """Reverse :func:`encrypt`; ``InvalidTag`` or ``ValueError`` for other ``data``."""
    return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], associated_data)


FORMAT = "redactory-data-key/1"
ALGORITHM = "AES_GCM_V1, 256 bits, footer and all columns under the run's data key"
_RUN_ID_BYTES = 16
_MAGIC = b"redactory/encrypted/1\n"
_NO_KEY = f"set {ENCRYPTION_VARIABLE}_FILE (or {ENCRYPTION_VARIABLE}, or {SERVICE_VARIABLE}) to the run's key"


@dataclass(frozen=True)
class RunKey:
    """The unwrapped data key of the run in ``root``; never written to disk."""

    root: Path
    run_id: str
    service: str
    secret: bytes = field(repr=False)

    def get_file_identity(self, path: Path) -> bytes:
        """Return the file and run that ``path`` belongs to, independent of where the run folder is."""
        return f"{self.run_id}/{_get_name_in_run(RunFolder(self.root), path)}".encode()

    @property
    def fingerprint(self) -> str:
        """16 hex digits that distinguish data keys without revealing them."""
        return derive_key(self.secret, "fingerprint")[:8].hex()

    def to_json(self) -> dict[str, str]:
        """What the manifest records about the encryption."""
        return {"algorithm": ALGORITHM, "run_id": self.run_id, "data_key": self.fingerprint, "wrapped_by": self.service}


def get_or_create_run_key(run: RunFolder, has_data: bool) -> RunKey | None:
    """Return the data key of a run that is about to write parts; draw and wrap one if there is none.

    None if no service is configured and the run has no key. ``has_data`` means that the run already has data: a new key
    would leave it partly open or partly lost, so it is refused (``RunStateError``).
    """
    if run.data_key.is_file():
        return find_run_key(run.vault / "part")
    service = load_configured_service()
    if service is None:
        return None
    if has_data:
        raise RunStateError(
            f"{run.root.name} was started without encryption, or its state/{run.data_key.name} is missing: "
            "resume it with the original settings, or start a new run in another folder"
        )
    run_id, secret = secrets.token_hex(_RUN_ID_BYTES), secrets.token_bytes(KEY_BYTES)
    write_json(run.data_key, _wrap_key(service, run_id, secret))
    return find_run_key(run.vault / "part")


def rewrap_key(run: RunFolder, new: KeyService) -> dict[str, str] | None:
    """Return the content of ``run``'s key file wrapped by ``new``; None if it already is.

    Write it atomically: it is the only copy of the key. ``new`` has already opened it once. ``ConfigurationError`` if
    no service is configured, ``CheckFailed`` if either service does not open the key, ``RunStateError`` if it refuses.
    """
    content = run.data_key.read_bytes()
    run_id, by, _ = _parse_key_file(content)
    if by == new.name:
        _unwrap_key(content, new)
        return None
    service = load_configured_service()
    if service is None:
        raise ConfigurationError(f"{run.root.name} is encrypted: {_NO_KEY} (the current one)")
    secret = _unwrap_key(content, service)
    record = _wrap_key(new, run_id, secret)
    if _unwrap_key(json.dumps(record).encode(), new) != secret:
        raise CheckFailed(f"{new.name} cannot unwrap what it wrapped: nothing was changed")
    return {**record, "before": by}


def read_key_id(run: RunFolder) -> str | None:
    """Return the id under which ``run``'s data key was wrapped; None without a key file."""
    return _parse_key_file(run.data_key.read_bytes())[0] if run.data_key.is_file() else None


def shred_file(path: Path) -> None:
    """Overwrite a small file with random bytes, as well as the file system allows, and remove it.

    ``RunStateError`` for a link or a file with a second name. Snapshots, copies and worn blocks of a drive may still
    hold the content.
    """
    with os.fdopen(open_no_follow(path, os.O_RDWR), "r+b", buffering=0) as file:
        file.write(secrets.token_bytes(max(1, os.fstat(file.fileno()).st_size)))
        os.fsync(file.fileno())
    path.unlink()
    sync_to_disk(path.parent)
    # forget unwrapped keys
    _unwrap_key.cache_clear()


def find_run_key(path: Path) -> RunKey | None:
    """Return the key that encrypts the file ``path`` of a run; None for an unencrypted file.

    Unencrypted are files outside of any run, files of a run without a key, and ``public/``. ``ConfigurationError`` if
    the run has a key and no service is configured, ``CheckFailed`` if the configured service does not unwrap it.
    """
    run = find_containing_run(path)
    if run is None or not run.data_key.is_file():
        return None
    if _get_name_in_run(run, path).startswith(f"{run.public.name}/"):
        return None
    service = load_configured_service()
    if service is None:
        raise ConfigurationError(f"the private part of {run.root.name} is encrypted: {_NO_KEY}")
    content = run.data_key.read_bytes()
    return RunKey(run.root, _parse_key_file(content)[0], service.name, _unwrap_key(content, service))


def find_containing_run(path: Path) -> RunFolder | None:
    """Return the run that contains ``path``: the nearest parent folder with a ``state/``."""
    folders = (RunFolder(parent) for parent in path.absolute().parents)
    run = next((run for run in folders if run.state.is_dir()), None)
    if run is not None and run.root.parts[-3:] == run.reissue.files.parts[-3:]:
        # staged parts belong to the run that they will replace
        return RunFolder(run.root.parents[2])
    return run


def _get_name_in_run(run: RunFolder, path: Path) -> str:
    """Return the name of ``path`` in ``run``; for a staged file, its final name."""
    path = path.absolute()
    staged = run.reissue.files
    return path.relative_to(staged if path.is_relative_to(staged) else run.root).as_posix()


def write_secret(path: Path, data: bytes) -> None:
    """Commit ``data`` to a private file of a run, encrypted if the run is."""
    key = find_run_key(path)
    if key is not None:
        data = _MAGIC + encrypt(derive_key(key.secret, "file"), data, key.get_file_identity(path))
    write_bytes(path, data)


def read_secret(path: Path) -> bytes:
    """Read a file of :func:`write_secret`; ``CheckFailed`` if its content is not authentic."""
    key, data = find_run_key(path), path.read_bytes()
    if key is None:
        if data.startswith(_MAGIC):
            raise RunStateError(f"{path.name} is encrypted, but the data key of its run is missing")
        return data
    try:
        if not data.startswith(_MAGIC):
            raise InvalidTag
        return decrypt(derive_key(key.secret, "file"), data[len(_MAGIC) :], key.get_file_identity(path))
    except (InvalidTag, ValueError):
        raise CheckFailed(f"{path.name} was changed, or does not belong to this run") from None


def _parse_key_file(content: bytes) -> tuple[str, str, bytes]:
    try:
        value = json.loads(content)
        run_id, by, wrapped = value["run_id"], value["wrapped_by"], value["wrapped"]
        if value["format"] == FORMAT and isinstance(run_id, str) and isinstance(by, str):
            return run_id, by, base64.b64decode(wrapped, validate=True)
    except (ValueError, KeyError, TypeError):
        pass
    raise CheckFailed("state/data-key.json is not a run's key file")


def _wrap_key(service: KeyService, run_id: str, secret: bytes) -> dict[str, str]:
    wrapped = _call_service(service, service.wrap, secret, run_id)
    record = {"format": FORMAT, "run_id": run_id, "wrapped_by": service.name}
    return {**record, "wrapped": base64.b64encode(wrapped).decode()}


@functools.lru_cache(maxsize=8)
def _unwrap_key(content: bytes, service: KeyService) -> bytes:
    """Unwrap the data key of a key file; asks a service once per process and run."""
    run_id, _, wrapped = _parse_key_file(content)
    secret = _call_service(service, service.unwrap, wrapped, run_id)
    if len(secret) != KEY_BYTES:
        raise CheckFailed(f"{service.name} unwrapped {len(secret)} bytes, expected a data key of {KEY_BYTES}")
    return secret


def _call_service(service: KeyService, operation: Callable[[bytes, bytes], bytes], data: bytes, run_id: str) -> bytes:
    """Wrap or unwrap for one run; keep our own errors, and of others only the kind: a message may quote anything."""
    try:
        return operation(data, canonical_json({"redactory": "data key", "run": run_id}))
    except InvalidTag:
        raise CheckFailed("the encryption key is not the run's, or state/data-key.json was changed") from None
    except Exception as error:
        refused = RunStateError(f"the key service {service.name} refused ({type(error).__name__})")
        raise (error if isinstance(error, RedactoryError) else refused) from None
