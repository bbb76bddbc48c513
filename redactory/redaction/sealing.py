"""Seal finished folders: file digests, signatures and earlier releases.

An Ed25519 signature of a folder's manifest covers every file that it lists. The manifest names its public key, so a
missing signature is noticed; the signature (64 bytes over the manifest's bytes) is a separate file. The folder alone
proves that the two match; that the key is the right one needs a public key from elsewhere.

The manifest of a rewritten run names the release that it ``supersedes``. That one is kept at ``releases/<n>/``, so
earlier trainings, measurements and signatures remain verifiable.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redactory.foundation.canonical import canonical_json, file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import (
    explain_irregular,
    list_irregular_paths,
    read_json,
    write_bytes,
    write_json,
    write_text,
)
from redactory.foundation.keys import DigestKey, load_signing_key
from redactory.redaction.folder import ModelFolder, RunFolder, SealedFolder
from redactory.redaction.shards import compute_keyed_digest, read_content_sha256

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


SIGNED_BY = "signed_by"
"""The manifest's key for :func:`describe_signer`."""


_SIGNATURE_BYTES = 64


class SignatureCheck(NamedTuple):
    """``good``: nothing is wrong; ``known``: the signer was compared with a separately given key."""

    good: bool
    known: bool
    detail: str


def describe_signer(public_key: Ed25519PublicKey) -> dict[str, str]:
    """Return a manifest's signer entry: algorithm, fingerprint and public key (base64, DER)."""
    return {
        "algorithm": "Ed25519",
        "fingerprint": compute_fingerprint(public_key),
        "public_key": base64.b64encode(_encode_der(public_key)).decode(),
    }


def compute_fingerprint(public_key: Ed25519PublicKey) -> str:
    """Return the hex sha256 of the key as written by ``openssl pkey -pubin -outform DER``."""
    return hashlib.sha256(_encode_der(public_key)).hexdigest()


def describe_configured_signer() -> dict[str, str] | None:
    """Apply :func:`describe_signer` to the configured key; None if there is none."""
    key = load_signing_key()
    return None if key is None else describe_signer(key.public_key())


def sign_manifest(folder: SealedFolder) -> None:
    """Write the manifest's signature; without a key, remove an earlier signature.

    ``RunStateError`` if the manifest names another signer than the configured key.
    """
    key, named = load_signing_key(), read_json(folder.manifest).get(SIGNED_BY)
    if named != (None if key is None else describe_signer(key.public_key())):
        raise RunStateError(f"the signing key was changed while {folder.root.name} was being written")
    if key is None:
        folder.signature.unlink(missing_ok=True)
    else:
        write_bytes(folder.signature, key.sign(folder.manifest.read_bytes()))


def check_signature(folder: SealedFolder, public_key: Ed25519PublicKey | None) -> SignatureCheck:
    """Check whether and by whom the manifest is signed; reports every problem of the folder instead of raising."""
    from cryptography.exceptions import InvalidSignature

    try:
        named = _parse_declared_key(read_json(folder.manifest).get(SIGNED_BY))
    except (OSError, ValueError, AttributeError):
        return SignatureCheck(False, False, "manifest.json does not name the key that signed it")
    expected = None if public_key is None else compute_fingerprint(public_key)
    if named is None:
        if folder.signature.exists():
            return SignatureCheck(False, False, f"{folder.signature.name} exists, but the manifest names no signer")
        if expected is not None:
            return SignatureCheck(False, True, f"not signed, so not by the given key {expected}")
        return SignatureCheck(True, False, "skipped: not signed, so the author is unknown")
    signer = compute_fingerprint(named)
    if expected not in (None, signer):
        return SignatureCheck(False, True, f"signed by the key {signer}, not by the given key {expected}")
    try:
        if folder.signature.stat().st_size != _SIGNATURE_BYTES:
            raise InvalidSignature
        named.verify(folder.signature.read_bytes(), folder.manifest.read_bytes())
    except (OSError, InvalidSignature):
        return SignatureCheck(False, expected is not None, f"{folder.signature.name} is not its signature by {signer}")
    if expected is None:
        open_ = "pass --public-key to verify the signer"
        return SignatureCheck(True, False, f"self-declared key {signer}; {open_}")
    return SignatureCheck(True, True, f"signed by the given key {signer}")


def _parse_declared_key(entry: Any) -> Ed25519PublicKey | None:
    """Return the public key that a manifest names; ``ValueError`` if it is invalid."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    if entry is None:
        return None
    try:
        key = load_der_public_key(base64.b64decode(entry["public_key"], validate=True))
    except Exception:  # any content; the library has its own errors for unknown key types
        raise ValueError from None
    if not isinstance(key, Ed25519PublicKey) or canonical_json(entry) != canonical_json(describe_signer(key)):
        raise ValueError
    return key


def _encode_der(public_key: Ed25519PublicKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


FORMAT_VERSION = 1
"""The highest supported ``format`` of a manifest, for any kind of folder."""
_LONGEST = 1 << 28
"""Maximum bytes of a manifest: about a million parts."""
Listing = dict[str, dict[str, Any]]
"""For each file, by its name in the folder: sha256, bytes and, for an encrypted part, ``content``."""


def seal_folder(folder: SealedFolder, body: dict[str, Any], files: Iterable[Path]) -> str:
    """Call :func:`write_manifest`, then write ``_SUCCESS``; return the manifest's sha256."""
    write_manifest(folder, body, list_files(folder, files))
    return write_success(folder)


def list_files(folder: SealedFolder, files: Iterable[Path], key: DigestKey | None = None) -> Listing:
    """Return the sha256 and size in bytes of each of ``files``.

    With ``key``, also the keyed content digest of an encrypted part, whose bytes differ each time it is written.
    """
    listed: Listing = {}
    for path in sorted(files):
        name = path.relative_to(folder.root).as_posix()
        listed[name] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        if key is not None and path.suffix == ".parquet" and (content := read_content_sha256(path)) is not None:
            listed[name]["content"] = compute_keyed_digest(key, name, content)
    return listed


def write_manifest(folder: SealedFolder, body: dict[str, Any], files: Mapping[str, dict[str, Any]]) -> None:
    """Write ``manifest.json``: ``body``, the configured signer, and the file listing."""
    signer = describe_configured_signer()
    signed = {} if signer is None else {SIGNED_BY: signer}
    write_json(folder.manifest, {**body, **signed, "files": files})


def write_success(folder: SealedFolder) -> str:
    """Sign and finish the folder: write the manifest's sha256 to ``_SUCCESS``, and return it."""
    sign_manifest(folder)
    digest = file_sha256(folder.manifest)
    write_text(folder.success, digest + "\n")
    return digest


def is_finished(folder: SealedFolder) -> bool:
    """Whether the folder has ``_SUCCESS``."""
    return folder.success.exists()


def read_manifest(folder: SealedFolder) -> dict[str, Any]:
    """Read the manifest of a finished folder; ``RunStateError`` if it is not finished."""
    if not is_finished(folder):
        raise _not_finished_error(folder)
    try:
        if explain_irregular(folder.root, folder.manifest.name) or folder.manifest.stat().st_size > _LONGEST:
            raise ValueError
        value: dict[str, Any] = read_json(folder.manifest)
        form = str(value.get("format", ""))
    except (OSError, ValueError, AttributeError):
        raise RunStateError(
            f"{folder.root} is not a folder that Redactory finished: it has no readable "
            f"{folder.manifest.name}; give another folder"
        ) from None
    version = form.rpartition("/")[2]
    if version.isdecimal() and int(version) > FORMAT_VERSION:
        raise RunStateError(
            f"{folder.root.name} has the format {form} of a newer version of Redactory: upgrade (pip "
            "install --upgrade redactory)"
        )
    return value


def list_broken_files(folder: SealedFolder) -> list[str]:
    """List differences of a finished folder from its sealed state: name and reason, in name order.

    If the manifest itself differs, only that is reported, since nothing else can be checked. Follows no link, reads
    nothing outside the folder, and no more of a file than its stated size. ``RunStateError`` if the folder is not
    finished.
    """
    if not is_finished(folder):
        raise _not_finished_error(folder)
    for path in (folder.manifest, folder.success):
        if problem := explain_irregular(folder.root, path.name):
            return [f"{path.name}: {problem}"]
    seal = f"{file_sha256(folder.manifest)}\n".encode()
    if folder.success.stat().st_size != len(seal) or folder.success.read_bytes() != seal:
        return ["manifest.json: differs from the digest in _SUCCESS"]
    problems = []
    for name, entry in read_manifest(folder)["files"].items():
        path, problem = folder.root / name, explain_irregular(folder.root, name)
        # a file of another size is not read
        if not problem and (path.stat().st_size != entry["bytes"] or file_sha256(path) != entry["sha256"]):
            problem = "sha256 differs"
        problems += [f"{name}: {problem}"] if problem else []
    return problems


def require_regular_files(run: RunFolder) -> None:
    """Raise ``RunStateError`` if ``run`` contains anything but folders and regular files.

    A linked part has its text elsewhere, where an erasure would not reach it.
    """
    if odd := list_irregular_files(run):
        raise RunStateError(
            f"{run.root} contains items that are neither folders nor regular files: {', '.join(odd)}. "
            "Replace them with the files themselves"
        )


def list_irregular_files(run: RunFolder) -> list[str]:
    """List irregular files in ``run``, except in folders of Prefect, Dask and labelling."""
    kept = (run.orchestrator, run.cluster, run.samples)
    # not a folder, so not a finished run, which is refused elsewhere
    odd = list_irregular_paths(run.root, kept) if run.root.is_dir() else []
    return [path.relative_to(run.root).as_posix() for path in odd]


def _not_finished_error(folder: SealedFolder) -> RunStateError:
    if not folder.root.exists():
        return RunStateError(
            f"{folder.root} is not a finished folder: it does not exist; curate first, or give the right folder"
        )
    mend = (
        "give a finished one, or resume the interrupted one (redactory curate --resume)"
        if folder.root.is_dir()
        else "expected a folder, got a file"
    )
    return RunStateError(f"{folder.root} is not a finished folder: {folder.success.name} is missing; {mend}")


def read_result(model: ModelFolder, evaluation: str) -> dict[str, Any] | None:
    """Read the sealed result of ``evaluation`` on the finished ``model``; None if it is of another model."""
    folder = model.get_result_folder(evaluation)
    if not is_finished(folder) or not is_result_for(model, folder):
        return None
    result: dict[str, Any] = read_json(folder.root / "result.json")
    return result


def is_result_for(model: ModelFolder, result: SealedFolder) -> bool:
    """Return whether a sealed ``result`` names this ``model`` and the evaluation of its folder."""
    manifest = read_manifest(result)
    is_evaluated_run = manifest.get("evaluation", result.root.name) == result.root.name
    return bool(is_evaluated_run and manifest.get("parent") == file_sha256(model.manifest))


class Release(NamedTuple):
    """One release: its number from 1, the sha256 of its manifest, and the manifest."""

    number: int
    digest: str
    manifest: dict[str, Any]


def get_current_release(run: RunFolder) -> Release:
    """Return the current release; ``RunStateError`` if the run is not finished."""
    manifest = read_manifest(run)
    return Release(manifest.get("release", 1), file_sha256(run.manifest), manifest)


def list_releases(run: RunFolder) -> list[Release]:
    """List a run's releases, oldest first; ``CheckFailed`` if one is missing or its successor names another."""
    releases = [get_current_release(run)]
    while (digest := releases[-1].manifest.get("supersedes")) is not None:
        number = releases[-1].number - 1
        kept = run.get_release_folder(number)
        if number < 1 or not kept.manifest.is_file() or file_sha256(kept.manifest) != digest:
            raise CheckFailed(f"releases/{number}/manifest.json is not the one that release {number + 1} names")
        releases.append(Release(number, digest, read_json(kept.manifest)))
    return releases[::-1]


def find_release(run: RunFolder, digest: str) -> Release | None:
    """Return the release with manifest sha256 ``digest``; None if the run never had it."""
    present = get_current_release(run)
    if present.digest == digest or "supersedes" not in present.manifest:
        return present if present.digest == digest else None
    return next((release for release in list_releases(run) if release.digest == digest), None)
