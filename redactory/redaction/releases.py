"""The releases of a run: the present one and those before it, each named by the one that followed.

A run that was written anew, without a person or without its vault, says in its manifest which one it
``supersedes``; that one is kept at ``releases/<n>/``.  So what was trained, measured or signed before
can still be proved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import read_json
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import read_manifest


class Release(NamedTuple):
    """One release: its number from 1, the sha256 of its manifest, and the manifest."""

    number: int
    digest: str
    manifest: dict[str, Any]


def present_release(run: RunFolder) -> Release:
    """The release that the folder holds now; ``RunStateError`` where the run is not finished."""
    manifest = read_manifest(run)
    return Release(manifest.get("release", 1), file_sha256(run.manifest), manifest)


def releases(run: RunFolder) -> list[Release]:
    """Every release of a finished run, the oldest first.

    ``CheckFailed`` where one is missing, or is not the one that the next one names.
    """
    found = [present_release(run)]
    while (digest := found[-1].manifest.get("supersedes")) is not None:
        number = found[-1].number - 1
        kept = run.release(number)
        if number < 1 or not kept.manifest.is_file() or file_sha256(kept.manifest) != digest:
            raise CheckFailed(f"releases/{number}/manifest.json is not what release {number + 1} names")
        found.append(Release(number, digest, read_json(kept.manifest)))
    return found[::-1]


def release_with(run: RunFolder, digest: str) -> Release | None:
    """The release whose manifest has the sha256 ``digest``; None where the run never had it."""
    present = present_release(run)
    if present.digest == digest or "supersedes" not in present.manifest:
        return present if present.digest == digest else None
    return next((release for release in releases(run) if release.digest == digest), None)
