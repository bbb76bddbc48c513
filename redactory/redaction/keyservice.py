"""What wraps the data key of a run: a local key, or a client of a key management service."""

from __future__ import annotations

import functools
import importlib
import secrets
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.keys import ENCRYPTION_VARIABLE, load_encryption_key, setting

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
        return f"local:{derived(self.secret, 'name')[:4].hex()}"

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """Nonce, ciphertext and tag of ``data_key``."""
        return encrypt(derived(self.secret, "wrap"), data_key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """What :meth:`wrap` was given; ``InvalidTag`` for another secret, context or ciphertext."""
        return decrypt(derived(self.secret, "wrap"), wrapped, context)


def configured_service() -> KeyService | None:
    """The key service of this process; None where none is configured.

    ``REDACTORY_ENCRYPTION_KEY`` or ``..._FILE`` gives a :class:`LocalKey`; ``REDACTORY_KEY_SERVICE``
    names a function ``package.module:function`` without arguments that returns a :class:`KeyService`.
    Raises ``ConfigurationError`` for both at once, for one that is empty, and for whatever is no key or no
    service.
    """
    secret, function = load_encryption_key(), setting(SERVICE_VARIABLE)
    if function is None:
        return None if secret is None else LocalKey(secret)
    if secret is not None:
        raise ConfigurationError(
            f"both {ENCRYPTION_VARIABLE} and {SERVICE_VARIABLE} are set: keep one of them"
        )
    return service_of(function, SERVICE_VARIABLE)


@functools.cache
def service_of(function: str, given_in: str) -> KeyService:
    """What ``package.module:function`` returns, asked once a process; ``given_in`` names the setting.

    Raises ``ConfigurationError`` where that is no service, or what the function itself refuses with.
    """
    module, _, name = function.partition(":")
    try:
        service = getattr(importlib.import_module(module), name)()
    except RedactoryError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{given_in}: {_what_is_missing(module, error.name)}") from None
    except Exception as error:
        raise ConfigurationError(f"{given_in}: {function} failed ({type(error).__name__})") from None
    if not isinstance(service, KeyService):
        raise ConfigurationError(f"{given_in}: {function} returned no key service (name, wrap, unwrap)")
    return service


def _what_is_missing(module: str, missing: str | None) -> str:
    """Whether it is the ``module`` that was named, or one that this needs itself."""
    if missing is None or f"{module}.".startswith(f"{missing}."):
        return f"there is no module '{module}' to import; write package.module:function"
    return f"{module} needs the module '{missing}', which is not installed here"


def refusal(service: KeyService, error: Exception) -> RedactoryError:
    """What is told of a service that failed: its name and the kind of its error, which may quote anything.

    An error of ours says by itself what is wrong, and quotes nothing.
    """
    if isinstance(error, RedactoryError):
        return error
    return RunStateError(f"the key service {service.name} refused ({type(error).__name__})")


def derived(secret: bytes, purpose: str) -> bytes:
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
