"""The checks of what seals a run: digests, signature, layout, modes, journal, encryption, releases and log.

A check is a function that returns what it found in words, or None where there is nothing to say.  It raises
``CheckFailed`` where something does not hold, :class:`Unmade` where it could not be made, or not in full.
``verify.py`` has the others, and the tables that say which are made, in which order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redactory.foundation.errors import (
    CheckFailed,
    ConfigurationError,
    RedactoryError,
    RunStateError,
    SealedError,
    some,
)
from redactory.foundation.files import is_held, leaves
from redactory.foundation.keys import ENCRYPTION_VARIABLE, KEY_VARIABLE, load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.records import Record, chain_head, read_records
from redactory.pipelines.journal import FILES, REISSUE
from redactory.pipelines.keys import shredded, shredded_when
from redactory.pipelines.reissue import counts_without, pending
from redactory.pipelines.release_log import ANCHOR, MOVED, Event, cut_off, history, put_back
from redactory.pipelines.sealed import wordless
from redactory.redaction import (
    ModelFolder,
    RunFolder,
    SealedFolder,
    broken_files,
    content_of,
    is_encrypted,
    is_finished,
    key_of,
    part_rows,
    parts,
    read_manifest,
    read_part,
)
from redactory.redaction.encryption import configured_service
from redactory.redaction.folder import is_export_folder
from redactory.redaction.sealing import (
    SIGNED_BY,
    Release,
    check_signature,
    irregular_in,
    present_release,
    release_with,
    releases,
)
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


class Unmade(RedactoryError):
    """Nothing speaks against what is checked, because the check could not be made, or not in full."""


@dataclass
class Seen:
    """A folder that is verified, and what its checks have to share."""

    root: Path
    known: Ed25519PublicKey | None = None
    progress: Progress = silent
    signed: bool = False
    """Whether somebody who is known signed it."""
    readable: bool = False
    """Whether the private part can be read."""
    open_values: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What it says of itself."""
        return read_manifest(SealedFolder(self.root))

    @property
    def run(self) -> RunFolder:
        """It as a run."""
        return RunFolder(self.root)

    @property
    def models(self) -> list[str]:
        """The names of its finished models."""
        return list(self.manifest["models"]) if is_export_folder(self.root) else self.run.model_names()


Work = Callable[..., str | None]
PRIVATE = frozenset({"conservation", "point ids", "whole documents", "values masked elsewhere", "report"})
"""What reads the private part of a run."""


def checked(
    seen: Seen, registry: Mapping[str, Work], names: Collection[str] = (), private: Collection[str] = PRIVATE
) -> list[Check]:
    """Make every check of a registry, or those of ``names``; ``model`` once a model.

    Where the files are not those that were sealed, nothing but the signature is looked at any more.
    """
    found: list[Check] = []
    for name, work in registry.items():
        if names and name not in names:
            continue
        if name not in ("files", "signature") and any(c.name == "files" and not c.ok for c in found):
            break
        if name in private and not seen.readable:
            why = "skipped: the private part cannot be read (see 'encryption')"
            found.append(Check(name, True, why, made=False))
            continue
        of = [(f"{name} {one}", (one,)) for one in seen.models] if name == "model" else [(name, ())]
        made = (_made(seen, title, work, arguments) for title, arguments in of)
        found += [one for one in made if one is not None]
    return found


def _made(seen: Seen, name: str, work: Work, arguments: tuple[str, ...]) -> Check | None:
    """One check; an error that is not our own can quote text, and its kind alone is said."""
    try:
        detail = wordless("it was checked", work, seen, *arguments)
    except Unmade as why:
        return Check(name, True, str(why), made=False)
    except ConfigurationError as error:
        # of this machine's settings: it says nothing about the run
        return Check(name, False, str(error), made=False)
    except SealedError as error:
        for path in (path for folder in seen.run.data_folders for path in parts(folder)):
            try:
                wordless("a part was opened", part_rows, path)
            except RedactoryError:
                return Check(name, False, f"{_name(seen.root, path)} cannot be read")
        return Check(name, False, str(error))
    except RedactoryError as error:
        if name == "files" and isinstance(error, RunStateError):
            raise  # nothing finished lies there, or a version to come wrote it
        return Check(name, False, str(error))
    return None if detail is None else Check(name, True, detail)


def unsealed(folder: SealedFolder, known: Ed25519PublicKey | None) -> list[str]:
    """What of a finished folder is not as it was sealed, or not signed as it must be."""
    found = check_signature(folder, known)
    signature = [] if found.good or not folder.manifest.is_file() else [found.detail]
    return [f"{folder.root.name}: {problem}" for problem in (*broken_files(folder), *signature)]


def require(problems: Iterable[str]) -> None:
    """``CheckFailed`` that names the problems, where there are any."""
    if text := "; ".join(problems):
        raise CheckFailed(text)


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def files(seen: Seen) -> str:
    """Every file is the one that the manifest lists, and the manifest the one that was finished.

    A link, a pipe or a device anywhere ends the verification: it leads out of the run, or to no end.
    """
    if odd := irregular_in(seen.run):
        raise CheckFailed(f"{', '.join(odd)}: neither a folder nor a regular file")
    require(broken_files(seen.run))
    name = seen.root.resolve().name
    # to be compared with what an export or the maker says: another run of the same signer fits together too
    known = f" of the run {seen.manifest['id']}" if "id" in seen.manifest else ""
    renamed = "redactory-run" in seen.manifest["format"] and seen.manifest["run"] != name
    other = f"; it was created as '{seen.manifest['run']}'" if renamed else ""
    return f"each file matches its sha256 in the manifest{known}{other}"


def signature(seen: Seen) -> str:
    """The manifest is signed by the key that is ``known``, or by the one that it names itself."""
    if irregular_in(seen.run):
        raise Unmade("skipped: see 'files'")
    found = check_signature(seen.run, seen.known)
    if not found.good:
        raise CheckFailed(found.detail)
    if not found.known:
        raise Unmade(found.detail)
    seen.signed = True
    return found.detail


# Nothing but what is declared: no file that could pass for the run's word.


def no_strays(seen: Seen) -> str:
    """Wherever a reader looks for the run's word, nothing lies but what is declared and sealed.

    ``state/`` holds no word of the run, but for what is measured and sealed there: what else lies there and
    is of no work that goes on is named, and leaves the check open.
    """
    run = seen.run
    begun = {path.parent.name for path in run.models.glob("*/ledger.jsonl")} - {*run.model_names()}
    strays, unknown = _undeclared(run, seen.manifest, begun)
    require(strays and [f"{', '.join(sorted(strays))}: does not belong to this run; check it, and remove it"])
    left_open = [f"models/{name} is not finished" for name in sorted(begun)]
    if unknown:
        left_open.append(f"{', '.join(sorted(unknown))} does not belong to any unfinished work")
    kept = _uncovered(run)
    if left_open:
        raise Unmade("; ".join([f"{'; '.join(left_open)}: not checked", *kept]))
    return "; ".join(["the run contains only declared files", *kept])


def _undeclared(run: RunFolder, manifest: Mapping[str, Any], begun: set[str]) -> tuple[set[str], set[str]]:
    """What is no declared file of a run: where a reader looks, and in ``state/`` as far as nobody is at work.

    ``begun`` are models that are not finished.
    """
    folders = (*run.data_folders, run.spans.parent, run.models, run.state)
    pages = (run.manifest, run.signature, run.success, run.card, run.report)
    state = (run.lock, run.journal, run.data_key, run.release_log, run.exported, *run.tracebacks())
    listed = [run.root / name for name in manifest["files"]]
    own = (path for path in listed if path.parent in run.data_folders and path.match("part-*.parquet"))
    due = {*folders, *pages, *state, *own}
    sealed, results = _sealed_files(run), {folder.root for folder in run.measured}
    at_work = {of(name) for of in (run.root_key, run.checkpoint) for name in begun}
    if is_held(run.lock):
        at_work |= {run.work, run.cluster, run.staging, run.reissue.root, *run.state.glob("train-*")}
    strays, unknown = {_name(run.root, path) for path in listed if path not in due}, set[str]()
    for path in leaves(run.root, (run.orchestrator, run.samples)):
        name, (top, *below) = _name(run.root, path), path.relative_to(run.root).parts
        home = next((folder for folder in path.parents if folder in sealed), None)
        if path in due or (home is not None and _name(home, path) in sealed[home]):
            continue
        if top == run.models.name and below and below[0] in begun:
            # until it is finished, nothing that is said of it is sealed
            own_model = ModelFolder(run.models / below[0])
            if path in (own_model.guarantee, own_model.card, own_model.report, own_model.measured):
                strays.add(f"{name} (of a model that is not finished)")
        elif top != run.state.name:
            # what else lies in releases/N is another check's
            if top != run.releases.name or not below:
                strays.add(name)
        elif home is None and run.state / below[0] in results:
            strays.add(f"{name} (not sealed)")
        elif run.state / below[0] not in at_work:
            unknown.add(name)
    return strays, unknown


def _sealed_files(run: RunFolder) -> dict[Path, set[str]]:
    """Of each finished folder inside of the run what its manifest lists, and what seals it."""
    found = {}
    for folder in run.sealed_folders():
        found[folder.root] = {path.name for path in (folder.manifest, folder.signature, folder.success)}
        # what cannot be read is named by the check of the model
        with suppress(RedactoryError, KeyError):
            found[folder.root] |= set(read_manifest(folder)["files"])
        if isinstance(folder, ModelFolder):
            found[folder.root] |= {folder.report.name, folder.measured.name}
    return found


def _uncovered(run: RunFolder) -> list[str]:
    """What ``state/`` holds on purpose and no digest covers, in words; nothing where there is none."""
    samples = len(list(run.samples.iterdir())) if run.samples.is_dir() else 0
    tracebacks = len(run.tracebacks())
    held = [f"{some(samples, 'sample')} with original text"] if samples else []
    held += [f"{some(tracebacks, 'traceback')} that can quote it"] if tracebacks else []
    held += ["rows exported from the quarantine"] if run.exported.exists() else []
    held += ["the records of Prefect"] if run.orchestrator.exists() else []
    return [f"state/ holds {', '.join(held)}, which no digest covers"] if held else []


# The journal, and the encryption of the private part.


def journal(seen: Seen) -> str:
    """The journal's chain holds, ends as the manifest says, and binds ledger and shards to each other."""
    run, manifest = seen.run, seen.manifest
    records = read_records(run.journal)
    if chain_head(run.journal) != manifest["journal"]:
        raise CheckFailed("its end does not match the manifest")
    folders = tuple(f"{_name(run.root, folder)}/" for folder in run.data_folders)
    listed = {n: e["sha256"] for n, e in manifest["files"].items() if n.startswith(folders)}
    if _bound(records) != listed:
        raise CheckFailed("its ledgers and shards are not those in the manifest")
    return f"{some(len(records), 'record')} in an unbroken chain, bound to {some(len(listed), 'part')}"


def _bound(records: list[Record]) -> dict[str, str] | None:
    """The files that were bound last."""
    return next((record.body for record in reversed(records) if record.type == FILES), None)


def encryption(seen: Seen) -> str:
    """The private parts are encrypted where the manifest says so, and decrypt to what was written."""
    run, encrypted = seen.run, seen.manifest["encrypted"]
    private = [path for folder in run.data_folders if folder != run.public for path in parts(folder)]
    if wrong := [f"{p.parent.name}/{p.name}" for p in private if is_encrypted(p) != encrypted]:
        said = "not encrypted" if encrypted else "encrypted, but the manifest says otherwise"
        raise CheckFailed(f"{', '.join(wrong)}: {said}")
    there, file = run.data_key.exists(), f"state/{run.data_key.name}"
    if not encrypted:
        require([f"{file} does not match the manifest"] if there else [])
        seen.readable = True
        return "not encrypted: only file permissions protect the private part"
    record = shredded(run)
    if record is None and not there:
        raise ConfigurationError(f"{file} is missing: the private part is unreadable for everybody")
    if record is not None:
        when = shredded_when(record)
        require([f"{file} exists, although it {when}: run redactory keys shred"] if there else [])
        raise Unmade(f"skipped: the private part {when} and is unreadable for everybody")
    if configured_service() is None:
        raise Unmade(f"skipped: set {ENCRYPTION_VARIABLE} to the run's key")
    words = _decrypted(seen, private)
    seen.readable = True
    return words


def _decrypted(seen: Seen, private: list[Path]) -> str:
    run, manifest = seen.run, seen.manifest
    key, digest_key, named = key_of(run.vault / "part"), load_digest_key(), manifest["encryption"]
    keyed = digest_key.fingerprint == manifest["key"]["fingerprint"]
    if key is None or (key.run_id, key.fingerprint) != (named["run_id"], named["data_key"]):
        raise CheckFailed("the data key in state/ does not match the manifest")
    for path in private:
        name, content = _name(run.root, path), table_digest(read_part(path))
        listed = manifest["files"][name].get("content")
        if content != content_of(path) or (keyed and listed != keyed_digest(digest_key, name, content)):
            raise CheckFailed(f"{name} does not contain what was written")
    by = "their keyed digests match" if keyed else f"keyed digests not compared: set the run's {KEY_VARIABLE}"
    return f"{some(len(private), 'part')} decrypted to what was written; {by}"


# Of a run that was written anew, the record of every release before it still holds; and the log knows each.


KEPT = (
    *("format", "run", "id", "created", "configuration_hash", "policies", "key", "encrypted", "inputs"),
    *("stages", "columns"),
)
"""Keys of the manifest that no reissue changes."""


def superseded(seen: Seen) -> str | None:
    """Nothing for a run that is as it was curated; else all that came before."""
    run, manifest = seen.run, seen.manifest
    if "supersedes" not in manifest and not run.releases.exists():
        return None
    known = releases(run)
    problems = [*_kept_releases(run, known), *_reissues(run, known)]
    for old, new in pairwise(known):
        problems += [f"release {new.number}: {problem}" for problem in _step(old, new)]
    require(problems)
    changes = (
        f"{change['release']} superseded {change['release'] - 1} ({change['why']})"
        for change in manifest.get("changes", ())
    )
    return f"{'; '.join(changes)}; everything else is unchanged"


def _kept_releases(run: RunFolder, known: list[Release]) -> Iterator[str]:
    """``releases/`` holds each superseded manifest and its signature, and nothing else."""
    due = {str(release.number) for release in known[:-1]}
    there = {path.name for path in run.releases.iterdir()} if run.releases.is_dir() else set()
    if there != due:
        yield (f"releases/ and the superseded releases differ in {', '.join(sorted(there ^ due))}")
    for number in sorted(there & due):
        old = run.release(int(number))
        if strange := {p.name for p in old.root.iterdir()} - {old.manifest.name, old.signature.name}:
            yield f"releases/{number}/{min(strange)} was not written by a reissue"
        # by which key it is signed follows from the release that names it
        if not (found := check_signature(old, None)).good:
            yield f"release {number}: {found.detail}"


def _reissues(run: RunFolder, known: list[Release]) -> Iterator[str]:
    """Each reissue has its record, right after the old journal's end; each release's files are bound."""
    records = read_records(run.journal)
    # line by line, the hash of all that came before
    heads = [json.loads(line)["prev"] for line in run.journal.read_bytes().splitlines()[: len(records)]]
    marks = [record for record in records if record.type == REISSUE]
    if len(marks) != len(known) - 1:
        yield f"the journal has {some(len(marks), 'record')} of reissues, expected {len(known) - 1}"
        return
    for mark, (old, new) in zip(marks, pairwise(known), strict=True):
        named = {"release": new.number, "supersedes": old.digest}
        if mark.body != named or heads[mark.seq] != old.manifest["journal"]:
            yield f"the journal's record of release {new.number} does not follow release {old.number}"
        listed = {n: e["sha256"] for n, e in old.manifest["files"].items() if n != run.card.name}
        if (_bound(records[: mark.seq]) or {}) != listed:
            yield f"the journal binds files that are not those of release {old.number}"


def _step(old: Release, new: Release) -> Iterator[str]:
    """What of a release does not follow from the one before it and the change between them."""
    if new.number != old.number + 1 or new.manifest["changes"][:-1] != old.manifest.get("changes", []):
        yield "its history differs from that of the previous release"
        return
    yield from (f"{key} was changed" for key in KEPT if new.manifest.get(key) != old.manifest.get(key))
    if SIGNED_BY in old.manifest and SIGNED_BY not in new.manifest:
        yield "it is not signed, but the previous release was"
    change, before, after = new.manifest["changes"][-1], old.manifest["files"], new.manifest["files"]
    replaced, removed = set(change["files"]["replaced"]), set(change["files"]["removed"])
    if set(after) != set(before) - removed or not replaced <= set(before):
        yield "its files are not those of the previous release plus the change"
    # the card names the release, and so is always another one
    same = set(before) & set(after) - replaced - {"README.md"}
    if touched := sorted(name for name in same if before[name] != after[name]):
        yield f"{touched[0]} changed, but the change does not list it"
    expected = counts_without(old.manifest["counts"], change.get("removed", {}), change.get("moved_up", {}))
    if new.manifest["counts"] != expected:
        yield "its counts do not match the previous counts minus what was removed"


def logged(seen: Seen) -> str | None:
    """The log is whole and knows the run; nothing where no log knows it, or knew it when it was sealed."""
    run, manifest = seen.run, seen.manifest
    if older := put_back(run):
        raise CheckFailed(older)
    try:
        lost = cut_off(run, manifest)
    except LookupError as moved:
        raise Unmade(f"skipped: {moved}") from None
    records = history(run)
    try:
        known = releases(run)
    except (RedactoryError, OSError, ValueError, KeyError):
        # an earlier one is gone, which is another check's to say
        known = [present_release(run)]
    judged = [r.body.get("manifest") for r in records if r.type in (Event.RELEASED, Event.HELD)]
    if not lost and judged and known[0].number == 1 and known[0].digest not in judged:
        lost = f"the log has another run with this name, with the manifest {judged[-1]}"
    require([lost] if lost else [])
    if ANCHOR not in manifest and "supersedes" not in manifest:
        return None
    if not records:
        raise Unmade(f"skipped: {MOVED}")
    entered = {r.body.get("manifest"): r.body.get("release") for r in records if r.type == Event.REISSUED}
    missing = [release.number for release in known if release.number > 1 and release.digest not in entered]
    if missing and pending(run):
        raise Unmade("skipped: the last reissue is unfinished; run it again")
    named = ", ".join(map(str, missing))
    if missing and set(entered.values()).issuperset(missing):
        raise CheckFailed(f"the log has no record of this manifest (release {named})")
    require([f"no record of release {named}: the log was truncated"] if missing else [])
    said = f"{some(known[-1].number - 1, 'reissue')} recorded; " if known[-1].number > 1 else ""
    return f"{said}an unbroken chain, at least as long as when the run was sealed"


def measured(seen: Seen) -> str | None:
    """What was measured of the shards is as it was sealed, and of this run; nothing where nothing was."""
    there = [folder for folder in seen.run.measured if is_finished(folder)]
    require(f"state/{problem}" for folder in there for problem in unsealed(folder, seen.known))
    of = [release_with(seen.run, str(read_manifest(folder).get("parent"))) for folder in there]
    strange = [folder.root.name for folder, release in zip(there, of, strict=True) if release is None]
    require(f"state/{name} was measured on another run" for name in strange)
    return f"{', '.join(folder.root.name for folder in there)}: unchanged since sealing" if there else None
