"""Verify an export: what can be checked of it without the run, its keys, its models and the engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from redactory.foundation.canonical import file_sha256, version_of
from redactory.foundation.errors import RedactoryError, some
from redactory.foundation.files import irregular, leaves, read_json
from redactory.foundation.records import chain_head, read_records
from redactory.pipelines.export_card import croissant_text, export_card
from redactory.pipelines.publish import sums_text
from redactory.pipelines.verify_seals import Check, not_made
from redactory.pipelines.verify_strays import is_exactly, loose, told_of_modes
from redactory.redaction import (
    MASK,
    ModelFolder,
    RunFolder,
    broken_files,
    part_rows,
    parts,
    read_batches,
    read_manifest,
)
from redactory.redaction.folder import ExportFolder
from redactory.redaction.sealing import check_signature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


_OF_THE_RUN = (
    ("re-scan of public", "the configuration of the engines stays with the run"),
    ("conservation", "what was not made public stays with the run"),
    ("journal", "it stays with the run"),
    ("values masked elsewhere", "what was masked stays with the run, and so does its key"),
)
"""What ``verify`` checks of a run and cannot check of an export, and why."""


def verify_export(root: Path, known: Ed25519PublicKey | None) -> dict[str, Any]:
    """The result of ``verify`` on an export; ``known`` is the key that it must be signed by."""
    checks = check_export(ExportFolder(root), known)
    return {
        "run": str(root),
        "ok": all(check.ok for check in checks),
        "checks": [check._asdict() for check in checks],
        "open_values": [],
    }


def check_export(folder: ExportFolder, known: Ed25519PublicKey | None = None) -> list[Check]:
    """Every check; those of the content only where the files are the ones that were sealed."""
    if odd := [_name(folder, path) for path in irregular(folder.root)]:
        return [Check("files", False, f"{', '.join(odd)}: neither a folder nor a regular file")]
    broken = broken_files(folder)
    found = check_signature(folder, known)
    checks = [
        Check("files", not broken, "; ".join(broken) or "each file has the sha256 of the manifest"),
        Check("signature", found.good, found.detail, made=found.known or not found.good),
    ]
    if broken:
        # what is not as it was sealed cannot be read any further
        return checks
    manifest = read_manifest(folder)
    return [
        *checks,
        _no_strays(folder, manifest),
        told_of_modes(folder.root, [p for p in (folder.root, *folder.root.rglob("*")) if loose(p, False)]),
        _sums(folder, manifest),
        _said("card", folder.card, export_card, manifest),
        _said("croissant", folder.croissant, lambda said: croissant_text(said, said["files"]), manifest),
        _public(folder),
        _ids(folder, manifest),
        *_models(folder, manifest),
        *(not_made(name, why) for name, why in _OF_THE_RUN),
    ]


def _no_strays(folder: ExportFolder, manifest: dict[str, Any]) -> Check:
    """Nothing lies in it but what seals it and what the manifest lists, and that is what an export has."""
    own = {folder.manifest, folder.signature, folder.success, folder.sums}
    unlisted = {_name(folder, path) for path in leaves(folder.root) if path not in own} - set(
        manifest["files"]
    )
    # of a run without a public point there are no parts
    unlisted.discard(_name(folder, folder.public))
    strays = sorted(unlisted | {name for name in manifest["files"] if not _leaves(folder, manifest, name)})
    return Check("no stray files", not strays, ", ".join(strays) or "it holds nothing else")


def _sums(folder: ExportFolder, manifest: dict[str, Any]) -> Check:
    """``SHA256SUMS`` says of every file what the manifest says, and of the manifest what is so."""
    digests = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    for path in (folder.manifest, folder.signature):
        if path.exists():
            digests[path.name] = file_sha256(path)
    same = is_exactly(folder.sums, sums_text(digests).encode())
    return Check("sha256sums", same, "agrees with the manifest" if same else "differs from the manifest")


def _name(folder: ExportFolder, path: Path) -> str:
    return path.relative_to(folder.root).as_posix()


def _leaves(folder: ExportFolder, manifest: dict[str, Any], name: str) -> bool:
    """Whether a file of that name has a place in an export: a card, a public part, of a model it names."""
    path = folder.root / name
    if path.parent == folder.public:
        return path.match("part-*.parquet")
    models = RunFolder(folder.root).models
    return path in (folder.card, folder.croissant) or path.parent in {
        models / model for model in manifest["models"]
    }


def _said(name: str, path: Path, write: Callable[[dict[str, Any]], str], manifest: dict[str, Any]) -> Check:
    """The file at ``path`` says what the manifest says, as this version writes it."""
    if manifest["versions"]["redactory"] != version_of("redactory"):
        return not_made(name, "written by another version")
    same = is_exactly(path, write(manifest).encode())
    detail = "says what the manifest says" if same else "differs from what the manifest says"
    return Check(name, same, detail)


def _public(folder: ExportFolder) -> Check:
    """No point holds a mask."""
    found = sum(
        pc.sum(pc.match_substring(batch["text"], MASK)).as_py() or 0
        for batch in read_batches(folder.public, ["text"])
    )
    return Check("no mask in public", not found, f"{some(found, 'public point')} with {MASK}")


def _ids(folder: ExportFolder, manifest: dict[str, Any]) -> Check:
    """Ids are unique, and there are as many points as counted, with their columns and no other."""
    ids = [i for batch in read_batches(folder.public, ["point_id"]) for i in batch["point_id"].to_pylist()]
    due, problems = manifest["counts"]["public"], []
    columns = {name for batch in read_batches(folder.public) for name in batch.schema.names}
    if columns - {"point_id", "text"}:
        problems.append("there are more columns than point_id and text")
    if len(ids) != len(set(ids)):
        problems.append("an id occurs twice")
    rows = sum(map(part_rows, parts(folder.public)))
    if not len(ids) == rows == due:
        problems.append(f"{some(len(ids), 'point')}, not {due}")
    return Check(
        "point ids", not problems, "; ".join(problems) or f"{some(due, 'point')}, each with an id of its own"
    )


def _models(folder: ExportFolder, manifest: dict[str, Any]) -> Iterator[Check]:
    for name, digest in manifest["models"].items():
        try:
            problems = list(_problems(folder.model(name), digest))
        except (RedactoryError, OSError, KeyError, IndexError) as error:
            # a ledger or a card that is none
            problems = [f"its ledger or its guarantee cannot be read ({type(error).__name__})"]
        fine = "guarantee and weights are those of its ledger; deriving its figures again needs the run"
        yield Check(f"model {name}", not problems, "; ".join(problems) or fine, made=bool(problems))


def _problems(model: ModelFolder, digest: str) -> Iterator[str]:
    """What does not go together of a model: its files, its ledger, its guarantee."""
    yield from broken_files(model)
    if file_sha256(model.manifest) != digest:
        yield "its manifest is not the one that left"
    records, card = read_records(model.ledger), read_json(model.guarantee)
    head, end, steps = records[0].body, records[-1].body, len(records) - 2
    if end["weights"] != file_sha256(model.weights):
        yield "the ledger belongs to other weights"
    said = card["ledger"]
    if (said["head"], said["parent"]) != (chain_head(model.ledger), head["parent"]):
        yield "the guarantee belongs to another ledger"
    if not said["steps"] == head["steps"] == end["steps"] == steps:
        yield "the ledger lacks steps that were promised, or holds more"
    if not card["holds"]:
        yield f"nothing is guaranteed of it ({card['holds_reason']})"
