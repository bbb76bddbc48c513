"""Signing: an Ed25519 signature of a folder's manifest, and through it of every file that it lists.

The manifest names the public key that it is signed with, so that a signature cannot just be taken away;
the signature, 64 bytes over the manifest's bytes, lies beside it.  Who holds only the folder can check
that the two fit; that the key is the right one can be told by a public key from elsewhere alone.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from redactory.foundation.canonical import canonical_json
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import read_json, write_bytes
from redactory.foundation.keys import load_signing_key
from redactory.redaction.folder import SealedFolder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SIGNED_BY = "signed_by"
"""The manifest's key for :func:`signer_of`."""


_SIGNATURE_BYTES = 64


class Finding(NamedTuple):
    """``good`` is False where something is wrong, ``known`` where no signer was compared with a key."""

    good: bool
    known: bool
    detail: str


def signer_of(public_key: Ed25519PublicKey) -> dict[str, str]:
    """What a manifest says of its signer: algorithm, fingerprint and the public key (base64, DER)."""
    return {
        "algorithm": "Ed25519",
        "fingerprint": fingerprint(public_key),
        "public_key": base64.b64encode(_der(public_key)).decode(),
    }


def fingerprint(public_key: Ed25519PublicKey) -> str:
    """Hex sha256 of the key as ``openssl pkey -pubin -outform DER`` writes it."""
    return hashlib.sha256(_der(public_key)).hexdigest()


def configured_signer() -> dict[str, str] | None:
    """:func:`signer_of` the key of this process; None where none is configured."""
    key = load_signing_key()
    return None if key is None else signer_of(key.public_key())


def sign(folder: SealedFolder) -> None:
    """Write the signature of the manifest; remove what is left of an earlier one where there is no key.

    ``RunStateError`` where the manifest names another signer than the key that is configured now.
    """
    key, named = load_signing_key(), read_json(folder.manifest).get(SIGNED_BY)
    if named != (None if key is None else signer_of(key.public_key())):
        raise RunStateError(f"the signing key was changed while {folder.root.name} was being written")
    if key is None:
        folder.signature.unlink(missing_ok=True)
    else:
        write_bytes(folder.signature, key.sign(folder.manifest.read_bytes()))


def check_signature(folder: SealedFolder, public_key: Ed25519PublicKey | None) -> Finding:
    """Whether the manifest of ``folder`` is signed, and by whom.

    Never raises for what the folder holds: everything wrong with it is a finding.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        named = _named_key(read_json(folder.manifest).get(SIGNED_BY))
    except (OSError, ValueError, AttributeError):
        return Finding(False, False, "manifest.json does not say by which key it is signed")
    given = None if public_key is None else fingerprint(public_key)
    if named is None:
        if folder.signature.exists():
            return Finding(
                False, False, f"{folder.signature.name} lies beside a manifest that names no signer"
            )
        if given is not None:
            return Finding(False, True, f"not signed, and so not by the given key {given}")
        return Finding(True, False, "not made: it is not signed, and nobody can tell who wrote it")
    own = fingerprint(named)
    if given not in (None, own):
        return Finding(False, True, f"signed by the key {own}, not by the given one, {given}")
    try:
        if folder.signature.stat().st_size != _SIGNATURE_BYTES:
            raise InvalidSignature
        named.verify(folder.signature.read_bytes(), folder.manifest.read_bytes())
    except (OSError, InvalidSignature):
        return Finding(False, given is not None, f"{folder.signature.name} is no signature of it by {own}")
    if given is None:
        told = "whose key that is was not checked: give --public-key"
        return Finding(True, False, f"signed by the key {own}, which it names itself; {told}")
    return Finding(True, True, f"signed by the given key {own}")


def _named_key(entry: Any) -> Ed25519PublicKey | None:
    """The public key that a manifest names; ``ValueError`` where that is none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    if entry is None:
        return None
    try:
        key = load_der_public_key(base64.b64decode(entry["public_key"], validate=True))
    except Exception:  # whatever stands there; the library has errors of its own for unknown kinds of keys
        raise ValueError from None
    if not isinstance(key, Ed25519PublicKey) or canonical_json(entry) != canonical_json(signer_of(key)):
        raise ValueError
    return key


def _der(public_key: Ed25519PublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
