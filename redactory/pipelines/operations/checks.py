"""The seal of a folder: digests, signature, layout, modes, journal, encryption, earlier releases and log.

A check returns its result in words, or None if there is nothing to report. It raises ``CheckFailed`` for a
violation and :class:`CheckSkipped` if it could not be made, or not completely. ``verify.py`` has the other
checks, and the table of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    pluralize,
)
from redactory.foundation.files import is_locked, list_leaf_paths
from redactory.foundation.keys import ENCRYPTION_VARIABLE, KEY_VARIABLE, load_digest_key
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.records import Record, compute_chain_head, read_records
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text
from redactory.pipelines.curation.journal import FILES, REISSUE
from redactory.pipelines.curation.keys import describe_shredding, find_shred_record
from redactory.pipelines.curation.reissue import is_reissue_pending
from redactory.pipelines.curation.release_log import (
    ANCHOR_KEY,
    NO_LOG_MESSAGE,
    Event,
    explain_rollback,
    explain_truncation,
    read_history,
)
from redactory.redaction import (
    ModelFolder,
    RunFolder,
    SealedFolder,
    count_part_rows,
    find_run_key,
    is_encrypted,
    is_finished,
    list_broken_files,
    list_parts,
    read_content_sha256,
    read_manifest,
    read_part,
)
from redactory.redaction.encryption import load_configured_service
from redactory.redaction.folder import FORMAT, SYNTHETIC, is_export_folder
from redactory.redaction.sealing import (
    SIGNED_BY,
    Release,
    check_signature,
    find_release,
    get_current_release,
    list_irregular_files,
    list_releases,
)
from redactory.redaction.shards import compute_keyed_digest, compute_table_digest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

RUN, EXPORT = "redactory-run/1", FORMAT
"""Kinds of verified folders, by the format of their manifest; the third is ``SYNTHETIC``."""
SHARED = (EXPORT, SYNTHETIC)


class CheckResult(NamedTuple):
    """The result of one check; ``detail`` never quotes a text.

    ``made`` is False if the check could not be made, or not completely: ``detail`` says why.
    """

    name: str
    ok: bool
    detail: str
    made: bool = True


class CheckSkipped(RedactoryError):
    """A check could not be made, or not completely; it found nothing wrong."""


@dataclass
class CheckContext:
    """A folder to verify, and the state that its checks share."""

    root: Path
    trusted_key: Ed25519PublicKey | None = None
    progress: Progress = ignore_progress
    is_signed: bool = False
    """Whether a trusted key signed it."""
    is_private_readable: bool = False
    """Whether the private part can be read."""
    unmasked_values: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Its manifest."""
        return read_manifest(SealedFolder(self.root))

    @cached_property
    def kind(self) -> str:
        """``RUN``, ``EXPORT`` or ``SYNTHETIC``."""
        return str(self.manifest["format"]) if is_export_folder(self.root) else RUN

    @property
    def run(self) -> RunFolder:
        """The folder as a run."""
        return RunFolder(self.root)

    @property
    def model_names(self) -> list[str]:
        """The names of the finished models."""
        return self.run.list_model_names() if self.kind == RUN else list(self.manifest.get("models", ()))


class Check(NamedTuple):
    """One row of the table of checks: its name, its function, and the kinds of folders that it is made for."""

    name: str
    make: Callable[..., str | None]
    kinds: tuple[str, ...] = (RUN,)
    needs_private: bool = False
    """Whether it reads the private part, if the folder is a run."""
    per_model: bool = False
    """Whether it is made once per model, whose name is its second argument."""


def make_checks(context: CheckContext, checks: Iterable[Check]) -> list[CheckResult]:
    """Make those of ``checks`` that are for this kind of folder.

    If files differ from those that were sealed, only the signature is checked after that.
    """
    results: list[CheckResult] = []
    for check in checks:
        if context.kind not in check.kinds:
            continue
        if results and not results[0].ok and results[0].name == "files" and check.name != "signature":
            break
        if check.needs_private and context.kind == RUN and not context.is_private_readable:
            detail = "skipped: the private part cannot be read (see 'encryption')"
            results.append(CheckResult(check.name, True, detail, made=False))
            continue
        for model in context.model_names if check.per_model else [None]:
            title, arguments = (check.name, ()) if model is None else (f"{check.name} {model}", (model,))
            if (result := _make_check(context, title, check, arguments)) is not None:
                results.append(result)
    return results


def _make_check(context: CheckContext, name: str, check: Check, arguments: tuple[str, ...]) -> CheckResult | None:
    """Make one check; of a foreign error, which can quote text, only the type is reported."""
    try:
        detail = run_with_hidden_error_text("it was checked", check.make, context, *arguments)
    except CheckSkipped as reason:
        return CheckResult(name, True, str(reason), made=False)
    except ConfigurationError as error:
        # a problem of this machine's settings says nothing about the run
        return CheckResult(name, False, str(error), made=False)
    except SealedError as error:
        for path in (path for folder in context.run.data_folders for path in list_parts(folder)):
            try:
                run_with_hidden_error_text("a part was opened", count_part_rows, path)
            except RedactoryError:
                return CheckResult(name, False, f"{_format_relative_path(context.root, path)} cannot be read")
        return CheckResult(name, False, str(error))
    except RedactoryError as error:
        if name == "files" and isinstance(error, RunStateError):
            raise  # no finished run, or one of a later version
        return CheckResult(name, False, str(error))
    return None if detail is None else CheckResult(name, True, detail)


def list_seal_problems(folder: SealedFolder, known: Ed25519PublicKey | None) -> list[str]:
    """List what changed in a finished folder since it was sealed, and what is wrong with its signature."""
    outcome = check_signature(folder, known)
    signature = [] if outcome.good or not folder.manifest.is_file() else [outcome.detail]
    return [f"{folder.root.name}: {problem}" for problem in (*list_broken_files(folder), *signature)]


def raise_on_problems(problems: Iterable[str]) -> None:
    """Raise ``CheckFailed`` with the problems, if there are any."""
    if text := "; ".join(problems):
        raise CheckFailed(text)


def _format_relative_path(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def check_files(context: CheckContext) -> str:
    """Check that every file matches the manifest, and that the manifest matches the success marker.

    A link, a pipe or a device ends the verification: it leads out of the run, or never ends.
    """
    if odd := list_irregular_files(context.run):
        raise CheckFailed(f"{', '.join(odd)}: neither a folder nor a regular file")
    raise_on_problems(list_broken_files(context.run))
    name = context.root.resolve().name
    # readers compare the id with the expected one: another run of the same signer is consistent too
    id_note = f" of the run {context.manifest['id']}" if "id" in context.manifest else ""
    is_renamed = context.kind == RUN and context.manifest["run"] != name
    name_note = f"; it was created as '{context.manifest['run']}'" if is_renamed else ""
    return f"each file matches its sha256 in the manifest{id_note}{name_note}"


def check_run_signature(context: CheckContext) -> str:
    """Check that the trusted key signed the manifest, or else the key that the manifest names itself."""
    if list_irregular_files(context.run):
        raise CheckSkipped("skipped: see 'files'")
    outcome = check_signature(context.run, context.trusted_key)
    if not outcome.good:
        raise CheckFailed(outcome.detail)
    if not outcome.known:
        raise CheckSkipped(outcome.detail)
    context.is_signed = True
    return outcome.detail


# No undeclared file that readers could take for a part of the run.


def check_unlisted_files(context: CheckContext) -> str:
    """Check that a run contains only declared and sealed files.

    In ``state/`` only the measurements are sealed. Files there that belong to no unfinished work are named, and
    the check counts as skipped.
    """
    run = context.run
    unfinished_models = {path.parent.name for path in run.models.glob("*/ledger.jsonl")} - {*run.list_model_names()}
    strays, unknown = _find_undeclared_files(run, context.manifest, unfinished_models)
    raise_on_problems(strays and [f"{', '.join(sorted(strays))}: does not belong to this run; check it, and remove it"])
    samples = len(list(run.samples.iterdir())) if run.samples.is_dir() else 0
    tracebacks = len(run.list_tracebacks())
    contents = {
        f"{pluralize(samples, 'sample')} with original text": samples,
        f"{pluralize(tracebacks, 'traceback')} that can quote it": tracebacks,
        "rows exported from the quarantine": run.exported.exists(),
        "the records of Prefect": run.orchestrator.exists(),
    }
    present = ", ".join(what for what, is_there in contents.items() if is_there)
    uncovered = [f"state/ holds {present}, which no digest covers"] if present else []
    left_open = [f"models/{name} is not finished" for name in sorted(unfinished_models)]
    if unknown:
        left_open.append(f"{', '.join(sorted(unknown))} does not belong to any unfinished work")
    if left_open:
        raise CheckSkipped("; ".join([f"{'; '.join(left_open)}: not checked", *uncovered]))
    return "; ".join(["the run contains only declared files", *uncovered])


def _find_undeclared_files(
    run: RunFolder, manifest: dict[str, Any], unfinished_models: set[str]
) -> tuple[set[str], set[str]]:
    """Return the undeclared files where readers look, and those in ``state/`` that belong to no running work."""
    listed = [run.root / name for name in manifest["files"]]
    declared = {
        *(*run.data_folders, run.spans.parent, run.models, run.state),
        *(run.manifest, run.signature, run.success, run.card, run.report, *run.list_tracebacks()),
        *(run.lock, run.journal, run.data_key, run.release_log, run.exported, run.text_vectors),
        *(path for path in listed if path.parent in run.data_folders and path.match("part-*.parquet")),
    }
    strays, unknown = {_format_relative_path(run.root, path) for path in listed if path not in declared}, set[str]()
    for folder in run.list_sealed_folders():
        declared |= {folder.manifest, folder.signature, folder.success}
        # the check of the model reports what cannot be read
        with suppress(RedactoryError, KeyError):
            sealed = (folder.root / name for name in read_manifest(folder)["files"])
            declared |= {path for path in sealed if path.is_relative_to(folder.root)}
        if isinstance(folder, ModelFolder):
            declared |= {folder.report, folder.measured}
    at_work = {of(name) for of in (run.get_root_key_path, run.get_checkpoint_path) for name in unfinished_models}
    if is_locked(run.lock):
        at_work |= {run.work, run.cluster, run.staging, run.reissue.root, *run.state.glob("train-*")}
    unsealed = {folder.root for folder in run.measurement_folders if not is_finished(folder)}
    models = [ModelFolder(run.models / name) for name in unfinished_models]
    # before a model is finished, no statement about it is sealed
    promises = {page for model in models for page in (model.guarantee, model.card, model.report, model.measured)}
    for path in list_leaf_paths(run.root, (run.orchestrator, run.samples, run.receipts)):
        name, (top, *inner) = _format_relative_path(run.root, path), path.relative_to(run.root).parts
        if path in declared:
            continue
        if path in promises:
            strays.add(f"{name} (of a model that is not finished)")
        elif top == run.state.name:
            if run.state / inner[0] in unsealed:
                strays.add(f"{name} (not sealed)")
            elif run.state / inner[0] not in at_work:
                unknown.add(name)
        # another check covers the files in releases/N
        elif not inner or (top != run.releases.name and not (top == run.models.name and inner[0] in unfinished_models)):
            strays.add(name)
    return strays, unknown


# The journal, and the encryption of the private part.


def check_journal(context: CheckContext) -> str:
    """Check that the journal's chain is unbroken, ends as the manifest says, and binds ledgers and shards."""
    run, manifest = context.run, context.manifest
    records = read_records(run.journal)
    if compute_chain_head(run.journal) != manifest["journal"]:
        raise CheckFailed("its end does not match the manifest")
    listed = _list_bound_files(run, manifest)
    if _find_last_bound_files(records) != listed:
        raise CheckFailed("its ledgers and shards are not those in the manifest")
    return f"{pluralize(len(records), 'record')} in an unbroken chain, bound to {pluralize(len(listed), 'part')}"


def _list_bound_files(run: RunFolder, manifest: dict[str, Any]) -> dict[str, str]:
    """Return the digests of the files in a release's manifest that the journal has to bind."""
    return {name: entry["sha256"] for name, entry in manifest["files"].items() if name != run.card.name}


def _find_last_bound_files(records: list[Record]) -> dict[str, str]:
    """Return the files that the last record binds."""
    return next((record.body for record in reversed(records) if record.type == FILES), {})


def check_encryption(context: CheckContext) -> str:
    """Check that the private parts are encrypted if the manifest says so, and decrypt to what was written."""
    run, encrypted = context.run, context.manifest["encrypted"]
    private = [path for folder in run.data_folders if folder != run.public for path in list_parts(folder)]
    if wrong := [f"{p.parent.name}/{p.name}" for p in private if is_encrypted(p) != encrypted]:
        problem = "not encrypted" if encrypted else "encrypted, but the manifest says otherwise"
        raise CheckFailed(f"{', '.join(wrong)}: {problem}")
    there, file = run.data_key.exists(), f"state/{run.data_key.name}"
    if not encrypted:
        raise_on_problems([f"{file} does not match the manifest"] if there else [])
        context.is_private_readable = True
        return "not encrypted: only file permissions protect the private part"
    record = find_shred_record(run)
    if record is None and not there:
        raise ConfigurationError(f"{file} is missing: the private part is unreadable for everybody")
    if record is not None:
        when = describe_shredding(record)
        raise_on_problems([f"{file} exists, although it {when}: run redactory keys shred"] if there else [])
        raise CheckSkipped(f"skipped: the private part {when} and is unreadable for everybody")
    if load_configured_service() is None:
        raise CheckSkipped(f"skipped: set {ENCRYPTION_VARIABLE} to the run's key")
    words = _check_decryption(context, private)
    context.is_private_readable = True
    return words


def _check_decryption(context: CheckContext, private: list[Path]) -> str:
    run, manifest = context.run, context.manifest
    key, digest_key, key_facts = find_run_key(run.vault / "part"), load_digest_key(), manifest["encryption"]
    keyed = digest_key.fingerprint == manifest["key"]["fingerprint"]
    if key is None or (key.run_id, key.fingerprint) != (key_facts["run_id"], key_facts["data_key"]):
        raise CheckFailed("the data key in state/ does not match the manifest")
    for path in private:
        name, content = _format_relative_path(run.root, path), compute_table_digest(read_part(path))
        listed = manifest["files"][name].get("content")
        if content != read_content_sha256(path) or (
            keyed and listed != compute_keyed_digest(digest_key, name, content)
        ):
            raise CheckFailed(f"{name} does not contain what was written")
    by = "their keyed digests match" if keyed else f"keyed digests not compared: set the run's {KEY_VARIABLE}"
    return f"{pluralize(len(private), 'part')} decrypted to what was written; {by}"


# Earlier releases of a rewritten run, and their records in the log.


IMMUTABLE_KEYS = (
    *("format", "run", "id", "created", "configuration_hash", "policies", "key", "encrypted", "inputs"),
    *("stages", "columns"),
)
"""Manifest keys that no reissue changes."""


def check_earlier_releases(context: CheckContext) -> str | None:
    """Check all earlier releases of a run; None for a run that was never rewritten."""
    run, manifest = context.run, context.manifest
    if "supersedes" not in manifest and not run.releases.exists():
        return None
    raise_on_problems(_find_history_problems(run, list_releases(run)))
    changes = (
        f"{change['release']} superseded {change['release'] - 1} ({change['why']})"
        for change in manifest.get("changes", ())
    )
    return f"{'; '.join(changes)}; everything else is unchanged"


def _find_history_problems(run: RunFolder, known_releases: list[Release]) -> Iterator[str]:
    """Find what is wrong in ``releases/``, in the journal's records of reissues, or between two releases."""
    due = {str(release.number) for release in known_releases[:-1]}
    present = {path.name for path in run.releases.iterdir()} if run.releases.is_dir() else set()
    if present != due:
        yield (f"releases/ and the superseded releases differ in {', '.join(sorted(present ^ due))}")
    for number in sorted(present & due):
        folder = run.get_release_folder(int(number))
        if strange := {p.name for p in folder.root.iterdir()} - {folder.manifest.name, folder.signature.name}:
            yield f"releases/{number}/{min(strange)} was not written by a reissue"
        # the release that names it determines the key
        if not (outcome := check_signature(folder, None)).good:
            yield f"release {number}: {outcome.detail}"
    records = read_records(run.journal)
    marks = [record for record in records if record.type == REISSUE]
    if len(marks) != len(known_releases) - 1:
        yield f"the journal has {pluralize(len(marks), 'record')} of reissues, expected {len(known_releases) - 1}"
        marks = []
    for mark, (old, new) in zip(marks, pairwise(known_releases), strict=False):
        # each reissue has its record after the old journal's end, and binds each file
        named, before = {"release": new.number, "supersedes": old.digest}, records[: mark.seq]
        if mark.body != named or not before or before[-1].digest != old.manifest["journal"]:
            yield f"the journal's record of release {new.number} does not follow release {old.number}"
        if _find_last_bound_files(before) != _list_bound_files(run, old.manifest):
            yield f"the journal binds files that are not those of release {old.number}"
    for old, new in pairwise(known_releases):
        yield from (f"release {new.number}: {problem}" for problem in _check_release_change(old, new))


def _check_release_change(old: Release, new: Release) -> Iterator[str]:
    """Find what in a release does not follow from the previous one and the change between them."""
    if new.number != old.number + 1 or new.manifest["changes"][:-1] != old.manifest.get("changes", []):
        yield "its history differs from that of the previous release"
        return
    yield from (f"{key} was changed" for key in IMMUTABLE_KEYS if new.manifest.get(key) != old.manifest.get(key))
    if SIGNED_BY in old.manifest and SIGNED_BY not in new.manifest:
        yield "it is not signed, but the previous release was"
    change, old_files, new_files = new.manifest["changes"][-1], old.manifest["files"], new.manifest["files"]
    replaced, removed = set(change["files"]["replaced"]), set(change["files"]["removed"])
    if set(new_files) != set(old_files) - removed or not replaced <= set(old_files):
        yield "its files are not those of the previous release plus the change"
    # the card names the release, so it always differs
    same = set(old_files) & set(new_files) - replaced - {"README.md"}
    if touched := sorted(name for name in same if old_files[name] != new_files[name]):
        yield f"{touched[0]} changed, but the change does not list it"
    removed = change.get("removed", {})
    if new.manifest["counts"] != {name: count - removed.get(name, 0) for name, count in old.manifest["counts"].items()}:
        yield "its counts do not match the previous counts minus what was removed"


def check_release_log(context: CheckContext) -> str | None:
    """Check that the log is complete and knows the run; None if there is no log, and was none at sealing."""
    run, manifest = context.run, context.manifest
    if older := explain_rollback(run):
        raise CheckFailed(older)
    try:
        problem = explain_truncation(run, manifest)
    except LookupError as error:
        raise CheckSkipped(f"skipped: {error}") from None
    records = read_history(run)
    try:
        known = list_releases(run)
    except (RedactoryError, OSError, ValueError, KeyError):
        # another check reports that an earlier one is missing
        known = [get_current_release(run)]
    judged = [r.body.get("manifest") for r in records if r.type in (Event.RELEASED, Event.HELD)]
    if not problem and judged and known[0].number == 1 and known[0].digest not in judged:
        problem = f"the log has another run with this name, with the manifest {judged[-1]}"
    raise_on_problems([problem] if problem else [])
    if ANCHOR_KEY not in manifest and "supersedes" not in manifest:
        return None
    if not records:
        raise CheckSkipped(f"skipped: {NO_LOG_MESSAGE}")
    entered = {r.body.get("manifest"): r.body.get("release") for r in records if r.type == Event.REISSUED}
    missing = [release.number for release in known if release.number > 1 and release.digest not in entered]
    if missing and is_reissue_pending(run):
        raise CheckSkipped("skipped: the last reissue is unfinished; run it again")
    numbers = ", ".join(map(str, missing))
    if missing and set(entered.values()).issuperset(missing):
        raise CheckFailed(f"the log has no record of this manifest (release {numbers})")
    raise_on_problems([f"no record of release {numbers}: the log was truncated"] if missing else [])
    prefix = f"{pluralize(known[-1].number - 1, 'reissue')} recorded; " if known[-1].number > 1 else ""
    return f"{prefix}an unbroken chain, at least as long as when the run was sealed"


def check_measurements(context: CheckContext) -> str | None:
    """Check that measurements of the shards are unchanged and belong to this run; None if there are none."""
    folders = [folder for folder in context.run.measurement_folders if is_finished(folder)]
    raise_on_problems(
        f"state/{problem}" for folder in folders for problem in list_seal_problems(folder, context.trusted_key)
    )
    of = [find_release(context.run, str(read_manifest(folder).get("parent"))) for folder in folders]
    foreign = [folder.root.name for folder, release in zip(folders, of, strict=True) if release is None]
    raise_on_problems(f"state/{name} was measured on another run" for name in foreign)
    return f"{', '.join(folder.root.name for folder in folders)}: unchanged since sealing" if folders else None
