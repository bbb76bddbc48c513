"""A model that leaves: what its guarantee speaks about, and the ledger that proves it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, GuaranteeError, RunStateError
from redactory.foundation.files import make_private_folder, read_json, sync
from redactory.foundation.records import read_records
from redactory.pipelines.evaluations.audited import audited
from redactory.redaction import ModelFolder, RunFolder, broken_files, is_finished, read_manifest, seal


def copy_model(run: RunFolder, name: str, to: ModelFolder) -> str:
    """Copy model ``name`` of ``run``; the sha256 of its own manifest there.

    Weights, architecture, tokenizer, guarantee, ledger, card: its evaluations are releases of their own,
    and stay.  Raises ``RunStateError`` where the run has no such model, ``CheckFailed`` where it is not as it
    was sealed, ``GuaranteeError`` where nothing is guaranteed of it.
    """
    model = run.model(name)
    if not is_finished(model):
        known = ", ".join(run.model_names()) or "none"
        raise RunStateError(f"{run.root} has no finished model {name}; there are: {known}")
    broken = broken_files(model)
    if broken:
        raise CheckFailed(f"models/{name} is not as it was sealed: {'; '.join(broken)}")
    card, audit = read_json(model.guarantee), audited(run, name)
    if not card["holds"]:
        raise GuaranteeError(f"models/{name} stays: nothing is guaranteed of it ({card['holds_reason']})")
    if audit is not None and not audit["holds"]:
        raise GuaranteeError(f"models/{name} stays: an audit shows more than its guarantee states")
    for path in _what_leaves(model):
        copy_sealed(path, to.root / path.name, read_manifest(model)["files"][path.name]["sha256"])
    return seal(to, _body(model), [path for path in to.root.iterdir() if path.is_file()])


def _what_leaves(model: ModelFolder) -> list[Path]:
    """The files that the ledger's last record names, and those that say what is promised of them."""
    written = read_records(model.ledger)[-1].body["files"]
    return [*(model.root / name for name in written), model.ledger, model.guarantee, model.card]


def _body(model: ModelFolder) -> dict[str, Any]:
    """Of the model's manifest all but how long it took, and how much memory: no epsilon covers these."""
    manifest = read_manifest(model)
    return {key: manifest[key] for key in ("format", "parent", "settings", "versions")}


def copy_sealed(path: Path, to: Path, digest: str) -> None:
    """Copy one file; ``CheckFailed`` where the copy has not the sha256 that it was sealed with."""
    make_private_folder(to.parent)
    shutil.copyfile(path, to)
    sync(to)
    if file_sha256(to) != digest:
        raise CheckFailed(f"{path.parent.name}/{path.name} is not as it was sealed, and does not leave")
