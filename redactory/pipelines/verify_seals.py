"""The checks of what seals a run: digests, the journal's chain, the signature, the encryption."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redactory.foundation.errors import RedactoryError, some
from redactory.foundation.keys import ENCRYPTION_VARIABLE, KEY_VARIABLE, load_digest_key
from redactory.foundation.records import Record, chain_head, read_records
from redactory.pipelines.journal import FILES, REISSUE
from redactory.pipelines.keys import shredded, told_of
from redactory.pipelines.reissue import pending
from redactory.pipelines.release_log import ANCHOR, MOVED, Event, cut_off, history, put_back
from redactory.pipelines.takedown.parts import counts_without
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
from redactory.redaction.keyservice import configured_service
from redactory.redaction.releases import Release, present_release, release_with, releases
from redactory.redaction.sealing import SIGNED_BY, check_signature, irregular_in
from redactory.redaction.shards import keyed_digest, table_digest

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


# The check of a run that was written anew: the record of every release before it still holds.


KEPT = (
    "format",
    "run",
    "id",
    "created",
    "configuration_hash",
    "policies",
    "key",
    "encrypted",
    "inputs",
    "stages",
)
"""Keys of the manifest that no reissue changes."""
_NAME, _LOG = "earlier releases", "release log"


def superseded(run: RunFolder, manifest: Mapping[str, Any]) -> Iterator[Check]:
    """Nothing for a run that is as it was curated; else one check of all that came before."""
    if "supersedes" not in manifest and not run.releases.exists():
        return
    try:
        known = releases(run)
        problems = [*_strays(run, known), *_signatures(run, known), *_journal(run, known)]
    except (RedactoryError, OSError, ValueError, KeyError) as error:
        why = str(error) if isinstance(error, RedactoryError) else "a kept manifest cannot be read"
        yield Check(_NAME, False, why)
        return
    for old, new in pairwise(known):
        problems += [f"release {new.number}: {problem}" for problem in _step(old, new)]
    told = "; ".join(
        f"{change['release']} superseded {change['release'] - 1} ({change['why']})"
        for change in manifest.get("changes", ())
    )
    fine = f"{told}; what no change touched is as it was"
    yield Check(_NAME, not problems, "; ".join(problems) or fine)


def purged(manifest: Mapping[str, Any]) -> Iterator[Check]:
    """What was purged, as a note; nothing where nothing was."""
    if manifest.get("purged"):
        yield Check("purged", True, f"{', '.join(manifest['purged'])}: taken away on purpose")


def _strays(run: RunFolder, known: list[Release]) -> Iterator[str]:
    due = {str(release.number) for release in known[:-1]}
    there = {path.name for path in run.releases.iterdir()} if run.releases.is_dir() else set()
    if there != due:
        yield f"releases/ holds {', '.join(sorted(there ^ due))} besides what was superseded, or lacks it"
    for number in sorted(there & due):
        old = run.release(int(number))
        if strange := {p.name for p in old.root.iterdir()} - {old.manifest.name, old.signature.name}:
            yield f"releases/{number}/{min(strange)} was not written by a reissue"


def _signatures(run: RunFolder, known: list[Release]) -> Iterator[str]:
    """A superseded manifest is signed as it says; by which key follows from the release that names it."""
    for release in known[:-1]:
        found = check_signature(run.release(release.number), None)
        if not found.good:
            yield f"release {release.number}: {found.detail}"


def _journal(run: RunFolder, known: list[Release]) -> Iterator[str]:
    """Each reissue has its record, right after the old journal's end; each release's files are bound."""
    records = read_records(run.journal)
    # line by line, the hash of all that came before
    heads = [json.loads(line)["prev"] for line in run.journal.read_bytes().splitlines()[: len(records)]]
    marks = [record for record in records if record.type == REISSUE]
    if len(marks) != len(known) - 1:
        yield f"the journal has {some(len(marks), 'record')} of reissues, not {len(known) - 1}"
        return
    for mark, (old, new) in zip(marks, pairwise(known), strict=True):
        named = {"release": new.number, "supersedes": old.digest}
        if mark.body != named or heads[mark.seq] != old.manifest["journal"]:
            yield f"the journal's record of release {new.number} does not follow release {old.number}"
        if _bound(records[: mark.seq]) != _parts(run, old):
            yield f"the journal binds other files than those of release {old.number}"


def _bound(records: list[Record]) -> dict[str, str]:
    """The files that were bound last."""
    return next((record.body for record in reversed(records) if record.type == FILES), {})


def _parts(run: RunFolder, release: Release) -> dict[str, str]:
    card = run.card.relative_to(run.root).as_posix()
    return {name: entry["sha256"] for name, entry in release.manifest["files"].items() if name != card}


def _step(old: Release, new: Release) -> Iterator[str]:
    """What of a release does not follow from the one before it and the change between them."""
    if new.number != old.number + 1 or new.manifest["changes"][:-1] != old.manifest.get("changes", []):
        yield "it tells another history than the one before it"
        return
    yield from (f"{key} was changed" for key in KEPT if new.manifest.get(key) != old.manifest.get(key))
    if SIGNED_BY in old.manifest and SIGNED_BY not in new.manifest:
        yield "it is not signed, and the one before it was"
    change, before, after = new.manifest["changes"][-1], old.manifest["files"], new.manifest["files"]
    replaced, removed = set(change["files"]["replaced"]), set(change["files"]["removed"])
    if set(after) != set(before) - removed or not replaced <= set(before):
        yield "it has other files than those before and the change make"
    # the card names the release, and so is always another one
    same = set(before) & set(after) - replaced - {"README.md"}
    touched = sorted(name for name in same if before[name] != after[name])
    if touched:
        yield f"{touched[0]} is another file, and the change does not say so"
    expected = counts_without(old.manifest["counts"], change.get("removed", {}), change.get("moved_up", {}))
    if new.manifest["counts"] != expected:
        yield "its counts are not those before it, less what was removed"


def logged(run: RunFolder, manifest: dict[str, Any]) -> Iterator[Check]:
    """Nothing for a run that no log knows, or knew when it was sealed; else one check of that log."""
    try:
        if older := put_back(run):
            yield Check(_LOG, False, older)
        elif lost := cut_off(run, manifest) or _another(run):
            yield Check(_LOG, False, lost)
        elif ANCHOR in manifest or "supersedes" in manifest:
            yield _entered(run, _known(run))
    except LookupError as moved:
        yield not_made(_LOG, str(moved))
    except (RedactoryError, OSError) as error:
        yield Check(_LOG, False, str(error) if isinstance(error, RedactoryError) else "it cannot be read")


def _another(run: RunFolder) -> str | None:
    """What is told where the log judged a run of this name, and it is not the one that lies here."""
    judged = [r.body.get("manifest") for r in history(run) if r.type in (Event.RELEASED, Event.HELD)]
    first = _known(run)[0]
    if not judged or first.number > 1 or first.digest in judged:
        return None
    return f"the log knows another run by this name, with the manifest {judged[-1]}"


def _known(run: RunFolder) -> list[Release]:
    """Every release; the present one alone where an earlier one is gone, which is told by that check."""
    try:
        return releases(run)
    except (RedactoryError, OSError, ValueError, KeyError):
        return [present_release(run)]


def _entered(run: RunFolder, known: list[Release]) -> Check:
    """The release log has a record of each reissue; a run that was moved has left its log behind."""
    records = history(run)
    if not records:
        return not_made(_LOG, MOVED)
    told = [r.body.get("manifest") for r in records if r.type == Event.REISSUED]
    missing = [release.number for release in known if release.number > 1 and release.digest not in told]
    if missing and pending(run):
        return not_made(_LOG, "the last reissue is not finished, ask for it again")
    if missing:
        numbers = {r.body.get("release") for r in records if r.type == Event.REISSUED}
        named = ", ".join(map(str, missing))
        if numbers.issuperset(missing):
            return Check(_LOG, False, f"the log has no record of this manifest (release {named})")
        return Check(_LOG, False, f"no record of release {named}: the log was shortened")
    entered = f"{some(known[-1].number - 1, 'reissue')} entered; " if known[-1].number > 1 else ""
    return Check(_LOG, True, f"{entered}an unbroken chain, no shorter than when the run was sealed")
