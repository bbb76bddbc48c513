"""AWS Key Management Service as key service: the key that wraps data keys never leaves it.

``REDACTORY_KEY_SERVICE=redactory.redaction.aws_kms:service``; ``REDACTORY_KMS_KEY`` is the id or ARN of a symmetric
key. boto3 finds region, credentials and endpoint (``AWS_DEFAULT_REGION``, a role, ...). The run's context is the
encryption context: every call's audit record shows it, and a key policy can require it. Only ``encrypt`` and
``decrypt`` are called.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag

from redactory.foundation.errors import ConfigurationError, RunStateError

KEY_VARIABLE, NEW_KEY_VARIABLE = "REDACTORY_KMS_KEY", "REDACTORY_KMS_NEW_KEY"
CONNECT_SECONDS, ANSWER_SECONDS, ATTEMPTS = 5, 10, 3
"""With pauses of at most two seconds between attempts, every call ends within a minute."""

_WRONG = ("InvalidCiphertextException", "IncorrectKeyException")
_WORDS = {
    "AccessDeniedException": "access to the key is denied: the credentials need kms:Encrypt and kms:Decrypt",
    "DisabledException": "the key is disabled",
    "KMSInvalidStateException": "the key cannot be used now: disabled, or pending deletion",
    "NotFoundException": "this key does not exist in this account and region",
    "ThrottlingException": "too many requests: try again later",
    "NoCredentialsError": "no credentials are configured (see boto3's documentation)",
    "NoRegionError": "no region is configured: set AWS_DEFAULT_REGION",
    "EndpointConnectionError": "its endpoint cannot be reached",
    "ReadTimeoutError": "it did not answer in time",
}
_KIND = re.compile(r"[A-Za-z]{1,64}")


@dataclass(frozen=True)
class KmsKey:
    """A :class:`~redactory.redaction.encryption.KeyService` over one KMS key."""

    key_id: str

    @property
    def name(self) -> str:
        """``aws-kms:`` and the key's id or ARN."""
        return f"aws-kms:{self.key_id}"

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        """Encrypt ``data_key`` with KMS; ``RunStateError`` if KMS refuses."""
        return self._call_kms("encrypt", "CiphertextBlob", context, Plaintext=data_key)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Decrypt the result of :meth:`wrap`.

        ``InvalidTag`` for a ciphertext of another key or run, or a changed one; ``RunStateError`` explains a refusal.
        """
        return self._call_kms("decrypt", "Plaintext", context, CiphertextBlob=wrapped)

    def _call_kms(self, operation: str, response_key: str, context: bytes, **parameters: bytes) -> bytes:
        """Call KMS and return ``response_key``; report only the kind of an error and do not chain it.

        The library's errors can contain what was sent.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        # name the key for decryption too: otherwise KMS uses any key that the ciphertext names
        named = {"KeyId": self.key_id, "EncryptionContext": _build_encryption_context(context)}
        try:
            return bytes(getattr(_create_client(os.getpid()), operation)(**named, **parameters)[response_key])
        except ClientError as error:
            kind = str(error.response.get("Error", {}).get("Code", ""))
        except BotoCoreError as error:
            kind = type(error).__name__
        if kind in _WRONG:
            raise InvalidTag
        code = kind if _KIND.fullmatch(kind) else "unknown"
        words = _WORDS.get(code, "see the code")
        raise RunStateError(f"the key service {self.name} refused: {words} ({code})")


def service() -> KmsKey:
    """Return the key of ``REDACTORY_KMS_KEY``; ``ConfigurationError`` if it is missing or an alias."""
    return _read_key(KEY_VARIABLE)


def new_service() -> KmsKey:
    """Return the key of ``REDACTORY_KMS_NEW_KEY`` to rotate to; same errors as :func:`service`."""
    return _read_key(NEW_KEY_VARIABLE)


def _read_key(variable: str) -> KmsKey:
    if importlib.util.find_spec("boto3") is None:
        raise ConfigurationError("AWS KMS needs boto3: pip install 'redactory[aws]'")
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigurationError(f"{variable} is not set: set it to the id or the ARN of the KMS key")
    if key.startswith("alias/") or ":alias/" in key:
        raise ConfigurationError(
            f"{variable} is an alias, which can be moved to another key: give the key's id or its ARN"
        )
    return KmsKey(key)


def _build_encryption_context(context: bytes) -> dict[str, str]:
    """Convert a context to KMS' name-value pairs; anything but a JSON object of strings becomes one value."""
    try:
        pairs = json.loads(context)
    except ValueError:
        pairs = None
    if isinstance(pairs, dict) and all(isinstance(value, str) for value in pairs.values()):
        return pairs
    return {"redactory": context.decode("utf-8", "backslashreplace")}


@functools.lru_cache(maxsize=1)
def _create_client(process: int) -> Any:
    """Return the client of this process; a fork must not share connections."""
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "total_max_attempts": ATTEMPTS}
    settings = Config(connect_timeout=CONNECT_SECONDS, read_timeout=ANSWER_SECONDS, retries=retries)
    return boto3.client("kms", config=settings)
