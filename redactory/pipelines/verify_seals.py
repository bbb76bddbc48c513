"""The checks of what seals a run: digests, the journal's chain, the signature, the encryption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redactory.foundation.errors import RedactoryError
from redactory.foundation.keys import ENCRYPTION_VARIABLE, KEY_VARIABLE, load_digest_key
from redactory.foundation.records import chain_head, read_records
from redactory.foundation.wording import some
from redactory.pipelines.journal import FILES
from redactory.pipelines.keys.shredding import shredded, told_of
from redactory.redaction import (
    RunFolder,
    broken_files,
    content_of,
    is_encrypted,
    is_finished,
    key_of,
    parts,
    read_manifest,
    read_part,
)
from redactory.redaction.content import keyed_digest, table_digest
from redactory.redaction.keyservice import configured_service
from redactory.redaction.releases import release_with
from redactory.redaction.sealing import irregular_in
from redactory.redaction.signing import check_signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


class Check(NamedTuple):
    """One thing that was checked; ``detail`` says what was found, never a text.

    ``made`` is False where the check could not be made, or not in full: ``detail`` then says why.
    """

    name: str
    ok: bool
    detail: str
    made: bool = True


def not_made(name: str, why: str) -> Check:
    """A check that nothing speaks against, because it could not be made."""
    return Check(name, True, f"not made: {why}", made=False)


def files(run: RunFolder) -> Check:
    """Every file is the one that the manifest lists, and the manifest the one that was finished.

    A link, a pipe or a device anywhere ends the verification: it leads out of the run, or to no end.
    """
    if odd := irregular_in(run):
        return Check("files", False, f"{', '.join(odd)}: neither a folder nor a regular file")
    if broken := broken_files(run):
        return Check("files", False, "; ".join(broken))
    manifest, name = read_manifest(run), run.root.resolve().name
    known = f" of the run {manifest['id']}" if "id" in manifest else ""
    # to be compared with what an export or the maker says: another run of the same signer fits together too
    other = f"; it was made as '{manifest['run']}'" if manifest["run"] != name else ""
    return Check("files", True, f"each file has the sha256 of the manifest{known}{other}")


def journal(run: RunFolder, manifest: dict[str, Any]) -> Check:
    """The journal's chain holds, ends as the manifest says, and binds ledger and shards to each other."""
    try:
        records, head = read_records(run.journal), chain_head(run.journal)
    except (RedactoryError, OSError) as error:
        return Check("journal", False, str(error))
    if head != manifest["journal"]:
        return Check("journal", False, "it does not end as the manifest says")
    folders = tuple(f"{folder.relative_to(run.root).as_posix()}/" for folder in run.data_folders)
    listed = {n: e["sha256"] for n, e in manifest["files"].items() if n.startswith(folders)}
    bound = [record.body for record in records if record.type == FILES]
    if bound[-1:] != [listed]:
        return Check("journal", False, "it binds other ledgers and shards than the manifest lists")
    return Check(
        "journal",
        True,
        f"{some(len(records), 'record')} in an unbroken chain, bound to {some(len(listed), 'part')}",
    )


def signature(run: RunFolder, known: Ed25519PublicKey | None) -> Check:
    """The manifest is signed by the key that is ``known``, or by the one that it names itself."""
    found = check_signature(run, known)
    return Check("signature", found.good, found.detail, made=found.known or not found.good)


def measured(run: RunFolder, known: Ed25519PublicKey | None) -> Iterator[Check]:
    """What was measured of the shards is as it was sealed, and of this run; nothing where nothing was."""
    there = [folder for folder in (run.recall, run.redaction, run.gate) if is_finished(folder)]
    problems = []
    for folder in there:
        wrong = broken_files(folder)
        found = check_signature(folder, known)
        wrong += [] if wrong or found.good else [found.detail]
        if not wrong and release_with(run, str(read_manifest(folder).get("parent"))) is None:
            wrong = ["it was measured of another run"]
        problems += [f"state/{folder.root.name}: {problem}" for problem in wrong]
    names = ", ".join(folder.root.name for folder in there)
    if there:
        yield Check("measured", not problems, "; ".join(problems) or f"{names}: as it was sealed")


def encryption(run: RunFolder, manifest: dict[str, Any]) -> Check:
    """The private parts are encrypted where the manifest says so, and decrypt to what was written."""
    encrypted, name = manifest["encrypted"], "encryption"
    private = [path for folder in run.data_folders if folder != run.public for path in parts(folder)]
    wrong = [_name(path) for path in private if is_encrypted(path) != encrypted]
    if wrong:
        said = "not encrypted" if encrypted else "encrypted, unlike the manifest says"
        return Check(name, False, f"{', '.join(wrong)}: {said}")
    if (told := _data_key(run, encrypted)) is not None:
        return told
    if not encrypted:
        return Check(name, True, "not encrypted: file permissions alone guard the private part")
    if configured_service() is None:
        return not_made(name, f"set {ENCRYPTION_VARIABLE} to the run's key")
    try:
        return _decrypted(run, manifest, private)
    except RedactoryError as error:
        return Check(name, False, str(error))


def _data_key(run: RunFolder, encrypted: bool) -> Check | None:
    """What is to be told of a data key that is not where manifest and log have it, or that was shredded."""
    name, there, file = "encryption", run.data_key.exists(), f"state/{run.data_key.name}"
    if not encrypted:
        return Check(name, False, f"{file} does not go with the manifest") if there else None
    try:
        record = shredded(run)
    except RedactoryError as error:
        return Check(name, False, str(error))
    if record is None:
        gone = Check(name, False, f"{file} is gone: nobody can read the private part", made=False)
        return None if there else gone
    if there:
        return Check(name, False, f"{file} is there, though it {told_of(record)}: redactory keys shred")
    return not_made(name, f"the private part {told_of(record)}: nobody can read it any more")


def _decrypted(run: RunFolder, manifest: dict[str, Any], private: list[Path]) -> Check:
    key, digest_key = key_of(run.vault / "part"), load_digest_key()
    keyed = digest_key.fingerprint == manifest["key"]["fingerprint"]
    named = manifest["encryption"]
    if key is None or (key.run_id, key.fingerprint) != (named["run_id"], named["data_key"]):
        return Check("encryption", False, "the data key in state/ is not the one that the manifest names")
    for path in private:
        name, content = path.relative_to(run.root).as_posix(), table_digest(read_part(path))
        listed = manifest["files"][name].get("content")
        if content != content_of(path) or (keyed and listed != keyed_digest(digest_key, name, content)):
            return Check("encryption", False, f"{name} does not hold what was written")
    by = "their keyed digests agree" if keyed else f"keyed digests not compared: set the run's {KEY_VARIABLE}"
    return Check("encryption", True, f"{some(len(private), 'part')} decrypted to what was written; {by}")


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
