"""What a training reads of a finished run, checked against the run's manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.purged import require_there
from redactory.redaction.sealing import read_manifest
from redactory.redaction.shards import parts, read_batches
from redactory.redaction.sides import PUBLIC


def parent_digest(run: RunFolder) -> str:
    """The sha256 of the run's manifest, which every model names; ``RunStateError`` where unfinished."""
    read_manifest(run)
    return file_sha256(run.manifest)


def require_unchanged(run: RunFolder, folder: Path) -> None:
    """``CheckFailed`` unless the parts of ``folder`` are exactly those that the manifest sealed.

    ``RunStateError`` where it was purged.
    """
    require_there(folder)
    prefix = folder.relative_to(run.root).as_posix() + "/part-"
    sealed = {n: entry["sha256"] for n, entry in read_manifest(run)["files"].items() if n.startswith(prefix)}
    found = {path.relative_to(run.root).as_posix(): file_sha256(path) for path in parts(folder)}
    if sealed != found:
        raise CheckFailed(f"the parts of {folder.name}/ are not those that manifest.json lists")


def texts(folder: Path) -> Iterator[str]:
    """The text of every row of a data folder, in order, a row group at a time."""
    for batch in read_batches(folder, ["text"]):
        yield from batch.column(0).to_pylist()


def public_occurrences(run: RunFolder) -> NDArray[np.int64]:
    """How many points of the corpus each row of ``public/`` stands for, itself and its duplicates.

    A point that repeats an earlier run of an index has no row here.
    ``CheckFailed`` where a duplicate's original is not known.
    """
    own: dict[int, str] = {}
    copies: Counter[int] = Counter()
    columns = ["point_id", "released_id", "side", "fate", "dup_of", "earlier_run"]
    for batch in read_batches(run.points, columns):
        for point, released, side, fate, original, earlier in zip(
            *(c.to_pylist() for c in batch.columns), strict=True
        ):
            if fate == PUBLIC:
                own[point] = released
            elif fate == "duplicate" and side == PUBLIC and earlier is None:
                if original is None:
                    raise CheckFailed(
                        "a Bloom filter does not say which point a duplicate repeats (dedup.mode bloom): "
                        "train with public_epoch: distinct"
                    )
                copies[original] += 1
    counts = {released: 1 + copies[point] for point, released in own.items()}
    rows = (i for batch in read_batches(run.public, ["point_id"]) for i in batch.column(0).to_pylist())
    return np.fromiter((counts[released] for released in rows), np.int64)


def public_texts(run: RunFolder) -> Iterator[str]:
    """The public texts; ``CheckFailed`` where one holds the mask, which belongs to the private side only."""
    for row, text in enumerate(texts(run.public)):
        if MASK in text:
            raise CheckFailed(f"row {row} of public/ holds the mask: such a point must be private")
        yield text
