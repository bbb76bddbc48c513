"""The check of a run that was written anew: the record of every release before it still holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from redactory.foundation.errors import RedactoryError
from redactory.foundation.records import Record, read_records
from redactory.foundation.wording import some
from redactory.pipelines.journal import FILES, REISSUE
from redactory.pipelines.reissue.reissue import pending
from redactory.pipelines.releases.anchor import ANCHOR, MOVED, cut_off
from redactory.pipelines.releases.log import Event, history, put_back
from redactory.pipelines.takedown.manifest import counts_without
from redactory.pipelines.verify_seals import Check, not_made
from redactory.redaction import RunFolder
from redactory.redaction.releases import Release, present_release, releases
from redactory.redaction.signing import SIGNED_BY, check_signature

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
