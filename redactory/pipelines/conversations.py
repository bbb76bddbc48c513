"""Conversations: a run or an export read back turn by turn, each with its role and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from redactory.foundation.errors import ConfigurationError, RunStateError, listed
from redactory.pipelines.release_log import check_released
from redactory.pipelines.sealed import sealed
from redactory.redaction import PRIVATE, PUBLIC, RunFolder, read_batches, read_manifest
from redactory.redaction.folder import is_export
from redactory.redaction.shards import DOCUMENT, ORDER, POINTS, ROLE

Row = dict[str, Any]
SIDES = {"public": (PUBLIC,), "private": (PUBLIC, PRIVATE)}
"""The folders whose texts are shown."""


def conversations(run: str | Path, side: Literal["public", "private"] = "public") -> list[dict[str, Any]]:
    """The documents of a finished run, or of an export, as conversations, in the order of the input.

    Each is ``{"document_id", "turns": [{"turn", "role", "text", "fates"}]}`` with the columns of
    ``input.keep``; a document that is no conversation is one turn without a role.  ``fates`` says of each
    example of a turn ``public``, ``private``, ``duplicate`` or ``quarantined``.  ``text`` is what may be seen
    of it, with a space between two examples, None where that is nothing: of side ``public`` the public ones,
    of ``private`` those of both sides, masked.  A duplicate has the text of the example that stands for it.
    A turn that said nothing is not there, but counted in the numbers of the others.

    An export has its public examples alone.  ``ConfigurationError`` for one whose run was made without
    ``input.keep_order``; ``RunStateError`` for its private side, and for a run that is not finished, or is
    held or rejected.
    """
    if side not in SIDES:
        raise ConfigurationError(f"side: one of {listed(SIDES)}")
    folder = RunFolder(Path(run))
    manifest = read_manifest(folder)
    check_released(folder)
    if not is_export(manifest):
        return sealed(folder.state, _read, _of_run(folder, side))
    if side == "private":
        raise RunStateError(f"{folder.root.name} is an export, and holds the public side alone")
    if DOCUMENT not in manifest.get("columns", ()):
        raise ConfigurationError(f"{folder.root.name}: its run was made without input.keep_order")
    return _read({**row, "fate": PUBLIC} for row in _rows(folder, PUBLIC))


def _read(examples: Iterator[Row]) -> list[Row]:
    """The conversations of ``examples``, which come in their order."""
    found: list[Row] = []
    own = {"point_id", "text", "fate", DOCUMENT, ROLE, *ORDER.names}
    for document, of_it in groupby(examples, itemgetter(DOCUMENT)):
        rows = list(of_it)
        turns = [_turn(turn, list(said)) for turn, said in groupby(rows, lambda row: row.get("turn", 0))]
        kept = {name: value for name, value in rows[0].items() if name not in own}
        found.append({DOCUMENT: document, **kept, "turns": turns})
    return found


def _turn(number: int, examples: list[Row]) -> Row:
    said = " ".join(one["text"] for one in examples if one["text"] is not None)
    fates = [one["fate"] for one in examples]
    return {"turn": number, ROLE: examples[0].get(ROLE), "text": said or None, "fates": fates}


def _of_run(run: RunFolder, side: str) -> Iterator[Row]:
    """Every point of a run, seen or not."""
    texts = {row["point_id"]: row["text"] for folder in SIDES[side] for row in _rows(run, folder)}
    stands: dict[int, str] = {}
    for row in _rows(run, "points"):
        if row["fate"] in (PUBLIC, PRIVATE):
            stands[row["point_id"]] = row["released_id"]
    for row in _rows(run, "points"):
        shown = texts.get(stands.get(row["point_id"] if row["dup_of"] is None else row["dup_of"], ""))
        carried = {name: value for name, value in row.items() if name not in POINTS.names}
        yield {DOCUMENT: row["document"], **carried, "fate": row["fate"], "text": shown}


def _rows(run: RunFolder, folder: str) -> Iterator[Row]:
    for batch in read_batches(getattr(run, folder)):
        yield from batch.to_pylist()
