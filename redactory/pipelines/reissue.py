"""Reissue: the one way in which a finished run is changed, for a takedown and for a purge.

What is to go is staged beside its place and written down as a plan; then parts, journal, card, manifest,
index and log are brought to what the plan says, from wherever an interruption left them.
"""

from __future__ import annotations

import datetime
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from redactory.dedup import DedupSettings
from redactory.dedup.index import Entry, IndexFolder, SeenFiles, write_seen
from redactory.dedup.near import copy_signed
from redactory.dedup.plan import SCREEN_ERROR_RATE, BloomParameters, Entries, write_entries
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256, hash_of
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import (
    PRIVATE_FILE,
    PUBLIC_FILE,
    make_private_folder,
    only_one,
    read_json,
    remove,
    remove_leftovers,
    sync,
    write_bytes,
    write_json,
    write_text,
)
from redactory.foundation.keys import SIGNING_VARIABLE, DigestKey
from redactory.foundation.records import RecordLog, chain_head, read_records
from redactory.pipelines.index import index_of, promote_finished
from redactory.pipelines.journal import INDEX, REISSUE, Journal
from redactory.pipelines.release import dataset_card
from redactory.pipelines.release_log import ANCHOR, Event, anchor_of, enter, history
from redactory.pipelines.stages.dedup import BY_DIGEST, SIDES, purpose_of, signed_files
from redactory.redaction import (
    RunFolder,
    is_encrypted,
    is_finished,
    list_files,
    require_regular,
    succeed,
    write_manifest,
    write_part,
)
from redactory.redaction.folder import JobFolder, job_of
from redactory.redaction.releases import present_release
from redactory.redaction.sealing import SIGNED_BY, Listing, configured_signer
from redactory.redaction.shards import keyed_digest, table_digest

FORMAT = "redactory-reissue/1"


@dataclass(frozen=True)
class Change:
    """What becomes of a run besides its parts, none of it text.

    ``body`` replaces keys of the manifest; ``noted`` goes into its list of ``changes``, ``entered`` into the
    release log alone; ``forget`` are files and folders of ``state/``; ``index`` is what the index across
    runs shall not know any more: ``digests`` (hex) and ``points`` (ids) of each side.
    """

    why: str
    body: Mapping[str, Any]
    noted: Mapping[str, Any]
    entered: Mapping[str, Any]
    forget: tuple[Path, ...] = ()
    index: Mapping[str, Any] | None = None


@dataclass
class Staging:
    """The new parts of a run, beside their places; ``key`` digests what encrypted ones hold."""

    run: RunFolder
    key: DigestKey | None
    files: Listing = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)

    def put(self, place: Path, table: pa.Table) -> None:
        """Write what is to lie at ``place``, a part of the run; encrypted where the run is."""
        name = place.relative_to(self.run.root).as_posix()
        staged = self.run.reissue.files / name
        public = place.parent == self.run.public
        write_part(staged, table, PUBLIC_FILE if public else PRIVATE_FILE, place=place)
        entry: dict[str, Any] = {"sha256": file_sha256(staged), "bytes": staged.stat().st_size}
        if self.key is not None and is_encrypted(staged):
            entry["content"] = keyed_digest(self.key, name, table_digest(table.combine_chunks()))
        self.files[name] = entry

    def drop(self, place: Path) -> None:
        """Have the part at ``place`` removed."""
        self.gone.append(place.relative_to(self.run.root).as_posix())


def pending(run: RunFolder) -> bool:
    """Whether a takedown or a purge of ``run`` was begun and is not finished."""
    return run.reissue.plan.is_file()


@contextmanager
def alone(run: RunFolder) -> Iterator[None]:
    """Be the one that changes ``run``; a reissue that was interrupted is carried to its end first.

    ``RunStateError`` where another process is at work in it, and where it holds anything but regular files.
    """
    with only_one(run.lock, str(run.root)):
        remove_leftovers(run.root)
        if pending(run):
            _carry_out(run)
        elif run.reissue.root.exists():
            shutil.rmtree(run.reissue.root)
        require_regular(run)
        yield


@contextmanager
def alone_in_jobs(runs: list[RunFolder]) -> Iterator[None]:
    """Hold the jobs that ``runs`` belong to."""
    with ExitStack() as locks:
        jobs: dict[JobFolder, None] = dict.fromkeys(job for run in runs if (job := job_of(run)) is not None)
        for job in jobs:
            locks.enter_context(only_one(job.lock, str(job.root)))
        yield


def finish_reissue(run: RunFolder) -> str | None:
    """Carry an interrupted takedown or purge of ``run`` to its end; which it was, None without one."""
    if not pending(run):
        return None
    why: str = read_json(run.reissue.plan)["body"]["changes"][-1]["why"]
    with alone(run):
        return why


def begin(run: RunFolder, key: DigestKey | None) -> Staging:
    """Room for the new parts of a finished run, while :func:`alone` is held.

    ``RunStateError`` where it is not finished, or was signed and no signing key is configured.
    """
    _require_signer(run, present_release(run).manifest)
    make_private_folder(run.reissue.root)
    return Staging(run, key)


def _require_signer(run: RunFolder, manifest: Mapping[str, Any]) -> None:
    # read where the run is unsigned too: a broken key must not be found when half is written
    if configured_signer() is None and manifest.get(SIGNED_BY) is not None:
        raise RunStateError(
            f"{run.root.name} is signed, and written anew it must be again: set {SIGNING_VARIABLE}_FILE "
            f"(or {SIGNING_VARIABLE})"
        )


def reissue(staging: Staging, change: Change) -> int:
    """Write a finished run anew, as staged; the number of the new release.

    Called while :func:`alone` is held.  ``CheckFailed`` where the run's parts are not those of its manifest.
    """
    run, old = staging.run, present_release(staging.run)
    strange = sorted({*staging.files, *staging.gone} - set(old.manifest["files"]))
    if strange:
        raise CheckFailed(f"{strange[0]} is not listed in the manifest: run redactory verify {run.root}")
    change_entry = {
        "release": old.number + 1,
        "why": change.why,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **change.noted,
        "files": {"replaced": sorted(staging.files), "removed": sorted(staging.gone)},
    }
    kept = {k: v for k, v in old.manifest.items() if k not in ("files", "journal", SIGNED_BY, ANCHOR)}
    body = {
        **kept,
        **anchor_of(run),
        **change.body,
        "release": old.number + 1,
        "supersedes": old.digest,
        "changes": [*old.manifest.get("changes", ()), change_entry],
    }
    plan = {
        "format": FORMAT,
        "body": body,
        "files": {n: e for n, e in old.manifest["files"].items() if n not in staging.gone} | staging.files,
        "forget": [path.relative_to(run.root).as_posix() for path in change.forget],
        "index": change.index,
        "entered": {"why": change.why, "release": old.number + 1, **change.entered},
    }
    write_json(run.reissue.plan, plan)
    _carry_out(run)
    return old.number + 1


def _carry_out(run: RunFolder) -> None:
    """Bring ``run`` to what its plan says, from wherever it was left."""
    plan = read_json(run.reissue.plan)
    if plan.get("format") != FORMAT:
        raise RunStateError(f"{run.root.name}: another version began to write it anew: finish with that one")
    # whoever finishes it may be another process than the one that began
    _require_signer(run, read_json(run.manifest))
    carry_out(run, plan)
    shutil.rmtree(run.reissue.root)
    assert is_finished(run)


def carry_out(run: RunFolder, plan: Mapping[str, Any]) -> None:
    """The steps of a reissue, each of which can be repeated."""
    body = plan["body"]
    if read_json(run.manifest).get("release", 1) < body["release"]:
        # from here on it is no run, nor what was fetched
        for path in (run.success, run.sums):
            path.unlink(missing_ok=True)
        sync(run.root)
        _keep_old(run, body)
        _swap(run, plan)
        _write_down(run, plan)
    if not is_finished(run):
        for name in plan["forget"]:
            remove(run.root / name)
        forget(run, body, plan["index"])
        write_report(run)
        succeed(run)
    digest = file_sha256(run.manifest)
    if not any(r.type == Event.REISSUED and r.body.get("manifest") == digest for r in history(run)):
        enter(run, Event.REISSUED, manifest=digest, supersedes=body["supersedes"], **plan["entered"])


def _keep_old(run: RunFolder, body: Mapping[str, Any]) -> None:
    """Copy the manifest and its signature to ``releases/<n>/``."""
    if file_sha256(run.manifest) != body["supersedes"]:
        raise CheckFailed(f"{run.root.name}/manifest.json is not the superseded one: restore it")
    old = run.release(body["release"] - 1)
    make_private_folder(run.releases)
    make_private_folder(old.root)
    remove_leftovers(old.root)
    for source, kept in ((run.manifest, old.manifest), (run.signature, old.signature)):
        if source.is_file():
            write_bytes(kept, source.read_bytes())


def _swap(run: RunFolder, plan: Mapping[str, Any]) -> None:
    """Move the staged parts to their places, and remove those that go."""
    change = plan["body"]["changes"][-1]["files"]
    for name in change["replaced"]:
        staged, place = run.reissue.files / name, run.root / name
        if staged.is_file():
            staged.replace(place)
        # what is not staged any more must lie in its place
        if file_sha256(place) != plan["files"][name]["sha256"]:
            raise CheckFailed(f"{name} is not what was staged: restore the run from a backup")
    for name in change["removed"]:
        (run.root / name).unlink(missing_ok=True)
    for folder in {(run.root / name).parent for name in (*change["replaced"], *change["removed"])}:
        sync(folder)


def _write_down(run: RunFolder, plan: Mapping[str, Any]) -> None:
    """Journal, card and manifest: what the run is now."""
    body = plan["body"]
    files = {name: entry for name, entry in plan["files"].items() if name != run.card.name}
    mark = {key: body[key] for key in ("release", "supersedes")}
    with RecordLog(run.journal) as log:
        if not any(r.type == REISSUE and r.body == mark for r in log.records):
            log.append(REISSUE, mark)
        Journal(log).bind({name: entry["sha256"] for name, entry in files.items()})
    body = {**body, "journal": chain_head(run.journal)}
    write_text(run.card, dataset_card(body["run"], body))
    write_manifest(run, body, {**files, **list_files(run, [run.card])})


def counts_without(
    counts: Mapping[str, int], removed: Mapping[str, int], moved_up: Mapping[str, int]
) -> dict[str, int]:
    """The manifest's ``counts`` after a change; also what ``verify`` holds a release against."""
    less = Counter(removed)
    less["rows"] = removed.get("documents", 0) + removed.get("rejected", 0)
    for side in ("public", "private"):
        up = moved_up.get(side, 0)
        less[side] -= up
        less["duplicate"] += up
        less[f"{side}_duplicate"] += up
    return {name: count - less[name] for name, count in counts.items()}


# Out of the index across runs too: what a run no longer holds is no reason to drop a stranger's text.


def forget(run: RunFolder, manifest: Mapping[str, Any], gone: Mapping[str, Any] | None) -> None:
    """Take ``gone`` out of the run's entry; nothing where there is no index, or the entry was removed.

    Asked again it changes nothing.
    """
    index = index_of(manifest)
    if index is None or not gone or not any((*gone["digests"].values(), *gone["points"].values())):
        return
    tokens = {record.body["token"] for record in read_records(run.journal) if record.type == INDEX}
    with index.alone():
        room = make_private_folder(index.root / "rewritten")
        for draft in sorted(room.iterdir()):
            # an entry that a crash left without its place: it was whole before the other one went
            place = index.runs / draft.name
            if place.exists() or not (draft / "entry.json").is_file():
                shutil.rmtree(draft)
            else:
                draft.replace(place)
        promote_finished(index)
        settings = DedupSettings.read_back(manifest["configuration"]["dedup"])
        for entry in index.entries():
            if entry.body["token"] in tokens:
                _rewrite(index, entry, room / entry.name, settings, gone)


def _rewrite(
    index: IndexFolder, entry: Entry, draft: Path, settings: DedupSettings, gone: Mapping[str, Any]
) -> None:
    # what seals it comes last: a draft without it counts for nothing
    skipped = shutil.ignore_patterns("entry.json")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(entry.folder, make_private_folder(draft), ignore=skipped, dirs_exist_ok=True)
    body, counts = entry.body, dict(entry.body["counts"])
    for side in SIDES:
        if settings.mode_of(side) in BY_DIGEST - {"bloom"}:
            counts[side] = _without_digests(index, draft, body, settings, side, gone["digests"][side])
        elif settings.mode_of(side) == "minhash":
            counts[side] = 0
            for number in range(body["partitions"]):
                own = signed_files(entry.folder, side, number)
                ids = np.load(own.rows)["id"]
                kept = ids[~np.isin(ids, np.array(gone["points"][side], np.int64))]
                counts[side] += copy_signed(own, kept, SIDES[side], signed_files(draft, side, number))
    files = {name: file_sha256(draft / name) for name in body["files"]}
    write_json(draft / "entry.json", {**body, "counts": counts, "files": files})
    index.remove(entry.folder)
    draft.replace(entry.folder)


def _without_digests(
    index: IndexFolder,
    draft: Path,
    body: Mapping[str, Any],
    settings: DedupSettings,
    side: str,
    gone: list[str],
) -> int:
    """Write one side's digests and their filter without ``gone``; how many are left."""
    parameters = index.read()["parameters"]
    purpose, policies = purpose_of(settings, side), hash_of(parameters["policies"])
    bound = BloomParameters(
        body["filters"][side], SCREEN_ERROR_RATE, purpose, parameters["key"], side, policies
    )
    digests, rest = draft / f"{side}.digests.npy", draft / "rest.npy"
    words = np.frombuffer(bytes.fromhex("".join(gone)), ">u8").reshape(-1, 2)
    held, out = _pairs(*np.load(digests)), _pairs(*words.T)
    kept = held[~np.isin(held, out)]
    write_entries(rest, kept)
    write_seen(SeenFiles(draft / f"{side}.bloom", bound, digests), [rest], len(kept))
    rest.unlink()
    return len(kept)


def _pairs(high: Any, low: Any) -> Entries:
    found: Entries = np.empty(len(high), np.dtype([("high", "<u8"), ("low", "<u8")]))
    found["high"], found["low"] = high, low
    return found
