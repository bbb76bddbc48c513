"""What a training reads of a finished run, checked against the run's manifest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.canonical import file_blocks, file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError
from redactory.foundation.keys import load_digest_key
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK, PUBLIC
from redactory.redaction.sealing import read_manifest
from redactory.redaction.shards import parts, read_batches, require_there


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


# Text that is no part of the corpus: donated, or public anyway.


KEY = "train.public_text"
_JSON_LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class PublicText:
    """Rows of ``path``, a point each: JSON lines with the columns ``text`` and ``label``, or plain lines."""

    path: Path
    text: str = "text"
    label: str = "label"

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise ConfigurationError(f"{KEY}: there is no file {self.path.name}")

    @property
    def sha256(self) -> str:
        """Digest of the file: what was learnt from it is a function of it."""
        return file_sha256(self.path)

    def texts(self) -> Iterator[str]:
        """Every text, in order; ``InputError`` names file and row where one is missing."""
        return (text for text, _ in self.rows())

    def rows(self) -> Iterator[tuple[str, str | None]]:
        """Every text with its class, None where it has none; rows of white space alone are passed over."""
        parse = self._parsed if self.path.suffix in _JSON_LINES else _plain
        with self.path.open(encoding="utf-8", newline="\n") as lines:
            try:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield parse(number, line)
            except UnicodeDecodeError:
                raise InputError(f"{KEY}: {self.path.name} is not UTF-8") from None

    def _parsed(self, number: int, line: str) -> tuple[str, str | None]:
        try:
            row: Any = json.loads(line)
        except ValueError:
            row = None
        text = row.get(self.text) if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise InputError(f"{KEY}: row {number} of {self.path.name} has no text in column {self.text!r}")
        label = row.get(self.label)
        return text, None if label is None else str(label)


def public_text_of(run: RunFolder, path: Path | None) -> PublicText | None:
    """The public text at ``path``, in the columns of the run's own input; None without one.

    ``ConfigurationError`` where it lies in the run, or is one of the files that the run was made of; under
    another key than the run's, which cannot tell, also where it is as long as one of them.
    """
    if path is None:
        return None
    manifest = read_manifest(run)
    columns = manifest.get("configuration", {}).get("input", {})
    found = PublicText(path, columns.get("text", "text"), columns.get("label") or "label")
    within = path.resolve().is_relative_to(run.root.resolve())
    if within or any(_may_be(found, entry, manifest) for entry in manifest.get("inputs", ())):
        raise ConfigurationError(
            f"{KEY}: {path.name} is part of the corpus; give text that is public and no part of it"
        )
    return found


def _may_be(public: PublicText, entry: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether the file is that input: by its digest in ``entry``, or by its size where the key is another."""
    if "sha256" in entry:
        # of a version that keyed no digest of an input
        return bool(public.sha256 == entry["sha256"])
    if public.path.stat().st_size != entry["bytes"]:
        return False
    key = load_digest_key()
    if key.fingerprint != manifest["key"]["fingerprint"]:
        return True
    return bool(key.file_digest(file_blocks(public.path)) == entry["digest"])


def _plain(number: int, line: str) -> tuple[str, str | None]:
    return line.rstrip("\r\n"), None
