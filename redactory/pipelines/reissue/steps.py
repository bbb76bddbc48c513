"""The steps of a reissue, each of which can be asked for again (``pipelines/reissue/reissue.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import (
    make_private_folder,
    read_json,
    remove,
    remove_leftovers,
    sync,
    write_bytes,
    write_text,
)
from redactory.foundation.records import RecordLog, chain_head
from redactory.pipelines.card import dataset_card
from redactory.pipelines.journal import REISSUE, Journal
from redactory.pipelines.reissue import index as reissue_index
from redactory.pipelines.releases.log import Event, enter, history
from redactory.redaction import RunFolder, is_finished, list_files, succeed, write_manifest


def carry_out(run: RunFolder, plan: Mapping[str, Any]) -> str:
    """Bring ``run`` to what the plan says, from wherever it was left; the sha256 of its new manifest."""
    body = plan["body"]
    if read_json(run.manifest).get("release", 1) < body["release"]:
        _take_away_success(run)
        _keep_old(run, body)
        _swap(run, plan)
        _write_down(run, plan)
    if not is_finished(run):
        _forget(run, plan["forget"])
        reissue_index.forget(run, body, plan["index"])
        write_report(run)
        succeed(run)
    digest = file_sha256(run.manifest)
    if not any(r.type == Event.REISSUED and r.body.get("manifest") == digest for r in history(run)):
        enter(run, Event.REISSUED, manifest=digest, supersedes=body["supersedes"], **plan["entered"])
    return digest


def _take_away_success(run: RunFolder) -> None:
    """From here on it is no run, nor what was fetched."""
    for path in (run.success, run.sums):
        path.unlink(missing_ok=True)
    sync(run.root)


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
    folders = set()
    for name in change["replaced"]:
        staged, place = run.reissue.files / name, run.root / name
        if staged.is_file():
            staged.replace(place)
        # what is not staged any more must lie in its place
        if file_sha256(place) != plan["files"][name]["sha256"]:
            raise CheckFailed(f"{name} is not what was staged: restore the run from a backup")
        folders.add(place.parent)
    for name in change["removed"]:
        (run.root / name).unlink(missing_ok=True)
        folders.add((run.root / name).parent)
    for folder in folders:
        sync(folder)


def _write_down(run: RunFolder, plan: Mapping[str, Any]) -> None:
    """Journal, card and manifest: what the run is now."""
    body = plan["body"]
    card = run.card.relative_to(run.root).as_posix()
    files = {name: entry for name, entry in plan["files"].items() if name != card}
    mark = {key: body[key] for key in ("release", "supersedes")}
    with RecordLog(run.journal) as log:
        if not any(r.type == REISSUE and r.body == mark for r in log.records):
            log.append(REISSUE, mark)
        Journal(log).bind({name: entry["sha256"] for name, entry in files.items()})
    body = {**body, "journal": chain_head(run.journal)}
    write_text(run.card, dataset_card(body["run"], body))
    write_manifest(run, body, {**files, **list_files(run, [run.card])})


def _forget(run: RunFolder, names: list[str]) -> None:
    for name in names:
        remove(run.root / name)
