"""Reissue: the one way in which a finished run is changed, for a takedown and for a purge.

What is new is staged below ``state/reissue/``, and the plan of it comes last: until then the run is what it
was, from then on it is carried to its end, by whoever asks next (:func:`finish_reissue`).  In between there
is no ``_SUCCESS``, so that nobody takes half of it for a run::

    stage parts ─ plan ─ _SUCCESS away ─ old manifest kept ─ parts swapped ─ journal ─ card, manifest
    ─ state, index, report ─ _SUCCESS ─ release log ─ staging away

Every step finds out whether it is done already; what it writes follows from the plan alone.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import (
    PRIVATE_FILE,
    PUBLIC_FILE,
    make_private_folder,
    read_json,
    remove_leftovers,
    write_json,
)
from redactory.foundation.keys import SIGNING_VARIABLE, DigestKey
from redactory.foundation.locks import only_one
from redactory.pipelines.reissue.steps import carry_out
from redactory.pipelines.releases.anchor import ANCHOR, anchor_of
from redactory.redaction import RunFolder, is_encrypted, is_finished, require_regular, write_part
from redactory.redaction.content import keyed_digest, table_digest
from redactory.redaction.releases import present_release
from redactory.redaction.sealing import Listing
from redactory.redaction.signing import SIGNED_BY, configured_signer

FORMAT = "redactory-reissue/1"


@dataclass(frozen=True)
class Change:
    """What becomes of a run besides its parts, none of it text.

    ``body`` replaces keys of the manifest; ``told`` goes into its list of ``changes``, ``entered`` into the
    release log alone; ``forget`` are files and folders of ``state/``; ``index`` is what the index across
    runs shall not know any more (``pipelines/reissue/index.py``).
    """

    why: str
    body: Mapping[str, Any]
    told: Mapping[str, Any]
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
    # read where the run is unsigned too: a key that is none must not be found when half is written
    if configured_signer() is None and manifest.get(SIGNED_BY) is not None:
        raise RunStateError(
            f"{run.root.name} is signed, and written anew it must be again: set {SIGNING_VARIABLE}_FILE "
            f"(or {SIGNING_VARIABLE})"
        )


def reissue(staging: Staging, change: Change) -> dict[str, Any]:
    """Write a finished run anew, as staged: ``{"release", "manifest", "supersedes"}``.

    Called while :func:`alone` is held.  ``CheckFailed`` where the run's parts are not those of its manifest.
    """
    run, old = staging.run, present_release(staging.run)
    strange = sorted({*staging.files, *staging.gone} - set(old.manifest["files"]))
    if strange:
        raise CheckFailed(f"{strange[0]} is not listed in the manifest: run redactory verify {run.root}")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    told = {
        "release": old.number + 1,
        "why": change.why,
        "time": now,
        **change.told,
        "files": {"replaced": sorted(staging.files), "removed": sorted(staging.gone)},
    }
    kept = {k: v for k, v in old.manifest.items() if k not in ("files", "journal", SIGNED_BY, ANCHOR)}
    body = {
        **kept,
        **anchor_of(run),
        **change.body,
        "release": old.number + 1,
        "supersedes": old.digest,
        "changes": [*old.manifest.get("changes", ()), told],
    }
    listing = {n: e for n, e in old.manifest["files"].items() if n not in staging.gone} | staging.files
    plan = {
        "format": FORMAT,
        "body": body,
        "files": listing,
        "forget": [path.relative_to(run.root).as_posix() for path in change.forget],
        "index": change.index,
        "entered": {"why": change.why, "release": old.number + 1, **change.entered},
    }
    write_json(run.reissue.plan, plan)
    return {"release": old.number + 1, "manifest": _carry_out(run), "supersedes": old.digest}


def _carry_out(run: RunFolder) -> str:
    plan = read_json(run.reissue.plan)
    if plan.get("format") != FORMAT:
        raise RunStateError(f"{run.root.name}: another version began to write it anew: finish with that one")
    # whoever finishes it may be another process than the one that began
    _require_signer(run, read_json(run.manifest))
    digest = carry_out(run, plan)
    shutil.rmtree(run.reissue.root)
    assert is_finished(run)
    return digest
