"""Out of the index across runs too: what a run no longer holds is no reason to drop a stranger's text.

An entry is written anew beside the index' others and takes its place, under its name and number: runs that
go by it find it.  Only keyed digests of texts and signatures are there; what is taken out is a digest that no
point of the run has any more, and the signature of a point that is gone.  A Bloom filter alone (mode
``bloom``) can forget nothing: that is counted, and told.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from redactory.dedup import DedupSettings
from redactory.dedup.bloom import SCREEN_ERROR_RATE
from redactory.dedup.bloom_file import BloomParameters
from redactory.dedup.digests import Entries, write_entries
from redactory.dedup.earlier import SeenFiles, write_seen
from redactory.dedup.earlier_near import copy_signed
from redactory.dedup.index_folder import Entry, IndexFolder
from redactory.foundation.canonical import file_sha256, hash_of
from redactory.foundation.files import make_private_folder, write_json
from redactory.foundation.records import read_records
from redactory.pipelines.indexes.indexing import promote_finished
from redactory.pipelines.journal import INDEX
from redactory.pipelines.stages.earlier import BY_DIGEST, signed_files
from redactory.pipelines.stages.fate_digests import purpose_of
from redactory.pipelines.stages.near import NUMBERS
from redactory.redaction import RunFolder


def index_of(run: RunFolder, manifest: Mapping[str, Any]) -> IndexFolder | None:
    """The index that ``run`` went by, where it still lies where the run found it; else None."""
    settings = _dedup(manifest).index
    if settings is None:
        return None
    index = IndexFolder(Path(settings.path))
    return index if index.exists() else None


def forget(run: RunFolder, manifest: Mapping[str, Any], told: Mapping[str, Any] | None) -> None:
    """Take ``told`` out of the run's entry: ``digests`` (hex) and ``points`` (ids) of each side.

    Nothing where there is no index, or the entry was removed; asked again it changes nothing.
    """
    index = index_of(run, manifest)
    if index is None or not told or not any((*told["digests"].values(), *told["points"].values())):
        return
    tokens = {record.body["token"] for record in read_records(run.journal) if record.type == INDEX}
    with index.alone():
        _settle(index)
        promote_finished(index)
        for entry in index.entries():
            if entry.body["token"] in tokens:
                _rewrite(index, entry, _dedup(manifest), told)


def _rewrite(index: IndexFolder, entry: Entry, settings: DedupSettings, told: Mapping[str, Any]) -> None:
    draft = _room(index) / entry.name
    shutil.rmtree(draft, ignore_errors=True)
    # what seals it comes last: a draft without it is none
    shutil.copytree(
        entry.folder,
        make_private_folder(draft),
        ignore=shutil.ignore_patterns("entry.json"),
        dirs_exist_ok=True,
    )
    body = entry.body
    counts = dict(body["counts"])
    for side in NUMBERS:
        if settings.mode_of(side) in BY_DIGEST - {"bloom"}:
            counts[side] = _without_digests(index, draft, body, settings, side, told["digests"][side])
        elif settings.mode_of(side) == "minhash":
            counts[side] = sum(
                _without_points(entry.folder, draft, side, number, told["points"][side])
                for number in range(body["partitions"])
            )
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
    policies = index.read()["parameters"]
    bound = BloomParameters(
        body["filters"][side],
        SCREEN_ERROR_RATE,
        purpose_of(settings, side),
        policies["key"],
        side,
        hash_of(policies["policies"]),
    )
    digests = draft / f"{side}.digests.npy"
    high, low = np.load(digests)
    held: Entries = np.empty(len(high), np.dtype([("high", "<u8"), ("low", "<u8")]))
    held["high"], held["low"] = high, low
    words = np.frombuffer(bytes.fromhex("".join(gone)), ">u8").reshape(-1, 2)
    out = np.empty(len(words), held.dtype)
    out["high"], out["low"] = words[:, 0], words[:, 1]
    kept = held[~np.isin(held, out)]
    rest = draft / "rest.npy"
    write_entries(rest, kept)
    write_seen(SeenFiles(draft / f"{side}.bloom", bound, digests), [rest], len(kept))
    rest.unlink()
    return len(kept)


def _without_points(folder: Path, draft: Path, side: str, number: int, gone: list[int]) -> int:
    """Write the signed texts of one partition without those of the points ``gone``; how many are left."""
    own = signed_files(folder, side, number)
    ids = np.load(own.rows)["id"]
    kept = ids[~np.isin(ids, np.array(gone, np.int64))]
    return copy_signed(own, kept, NUMBERS[side], signed_files(draft, side, number))


def _room(index: IndexFolder) -> Path:
    return make_private_folder(index.root / "rewritten")


def _settle(index: IndexFolder) -> None:
    """Put an entry in its place that a crash left without one: it was whole before the other one went."""
    for draft in sorted(_room(index).iterdir()):
        place = index.runs / draft.name
        if place.exists() or not (draft / "entry.json").is_file():
            shutil.rmtree(draft)
        else:
            draft.replace(place)


def _dedup(manifest: Mapping[str, Any]) -> DedupSettings:
    return DedupSettings.model_validate(manifest["configuration"]["dedup"])
