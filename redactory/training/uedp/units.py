"""The units of every point: from plain columns, or from a finished run.

A point's users are its owner's keyed id, or those of all who hold a copy of it; its entities are what the
policies found and the client listed.  ``docs/explanation/uedp.md``, "Users, entities and points".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby
from operator import itemgetter
from typing import Any

from redactory.foundation.errors import CheckFailed, GuaranteeError, InputError
from redactory.foundation.keys import DigestKey
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import read_manifest
from redactory.redaction.shards import read_batches
from redactory.training.runinput import require_unchanged
from redactory.training.uedp.entities import EntityNames, Mention, known_user, lone_user
from redactory.training.uedp.incidence import Collector, Incidence

STRICT, CONSERVATIVE = "strict", "conservative"
_PRIORITY_DIGITS = 16
_VAULT = ["point_id", "text"]
_POINTS = ["point_id", "released_id", "user", "fate", "dup_of"]
_SPANS = ["point_id", "start", "end", "label", "policy"]
Row = tuple[Any, ...]


class Copies(Enum):
    """What becomes of the points that a run calls duplicates (condition (a))."""

    KEEP = "keep"
    """Each stays a point of its own user."""
    MERGE = "merge"
    """They are left out; the point that was kept lists every user who holds a copy."""


def incidence_of_columns(
    point_ids: Iterable[int],
    user_ids: Sequence[str | None],
    document_ids: Sequence[str] | None,
    spans: Iterable[tuple[int, str, bytes]],
    names: EntityNames,
    key: DigestKey,
) -> Incidence:
    """The hypergraph of plain columns, or of Arrow columns read out.

    ``spans``: (point id, label, digest of :meth:`EntityNames.digest`) in any order; a digest that does not
    count (category, allow-list) is left out.  A point without a user is its document's, or its own where
    ``document_ids`` is None.  ``InputError`` for a span of a point that is not there.
    """
    found: dict[int, list[Mention]] = {}
    for point, label, entity in spans:
        found.setdefault(point, []).append(Mention(entity, label))
    collector, seen = Collector(), 0
    for row, (point, user) in enumerate(zip(point_ids, user_ids, strict=True)):
        document = point if document_ids is None else document_ids[row]
        owner = lone_user(key, document) if user is None else known_user(key, user)
        mentions = found.get(point, [])
        seen += point in found
        collector.add(
            point, _priority(key.pseudonym("point", point)), [owner], filter(names.counts, mentions)
        )
    if seen != len(found):
        raise InputError("a span names a point that is not there")
    return collector.finish()


def read_incidence(
    run: RunFolder,
    names: EntityNames,
    copies: Copies = Copies.KEEP,
    policies: frozenset[str] = frozenset({STRICT}),
) -> Incidence:
    """The hypergraph of every point in a finished run's vault, in one pass over row groups.

    The vault has every point that is not quarantined, duplicates included, with its text; ``audit/points``
    its keyed owner and its fate; ``audit/spans`` the places of the hits of ``policies``.  Values are cut out
    of the text, normalised, and kept as keyed digests.  Memory: the hypergraph, one row group of each table
    and, for ``MERGE``, the duplicates.

    Raises ``CheckFailed`` where the tables are not what the run sealed or do not fit together,
    ``GuaranteeError`` where ``MERGE`` meets a deduplication that does not know every holder.
    """
    for folder in (run.vault, run.points, run.spans):
        require_unchanged(run, folder)
    holders = _holders(run) if copies is Copies.MERGE else {}
    owners, hits = InOrder(_rows(run, "points")), InOrder(hits_of(run, policies))
    collector = Collector()
    for point, text in _rows(run, "vault"):
        owner = owners.at(point)
        found = hits.at(point)
        if owner is None:
            raise CheckFailed(f"audit/points lacks point {point}, which the vault holds")
        _, released, user, fate, _ = owner
        if fate == "duplicate" and copies is Copies.MERGE:
            continue
        units = [bytes.fromhex(user), *holders.get(point, ())]
        collector.add(point, _priority(released), units, _mentions(names, point, text, found))
    return collector.finish()


def _mentions(names: EntityNames, point: int, text: str, hits: Row | None) -> Iterator[Mention]:
    for _, start, end, label, _ in hits[1] if hits is not None else ():
        if not 0 <= start < end <= len(text):
            raise CheckFailed(f"audit/spans: a hit in point {point} does not lie in its text")
        mention = names.mention(text[start:end], label)
        if mention is not None:
            yield mention
    yield from names.lookup(text)


def _holders(run: RunFolder) -> Mapping[int, list[bytes]]:
    """The keyed users of the copies of each kept point."""
    sides = read_manifest(run)["dedup"].get("sides", {})
    rules = {side["rule"] for side in sides.values()} or {read_manifest(run)["dedup"]["rule"]}
    unknown = rules - {"S1", "S2", "none"}
    if unknown:
        raise GuaranteeError(
            f"deduplication by rule {', '.join(sorted(unknown))} does not say who else holds a kept text: "
            "keep the copies, or curate with dedup.mode exact"
        )
    found: dict[int, list[bytes]] = {}
    for point, _, user, fate, original in _rows(run, "points"):
        if fate == "duplicate":
            if original is None:
                raise CheckFailed(f"audit/points does not say which point {point} repeats")
            found.setdefault(original, []).append(bytes.fromhex(user))
    return found


def hits_of(run: RunFolder, policies: frozenset[str] = frozenset({STRICT})) -> Iterator[Row]:
    """(point id, its hits) for every point with hits of ``policies``; a hit is a row of :data:`_SPANS`."""
    chosen = (row for row in _rows(run, "spans") if row[4] in policies)
    for point, rows in groupby(chosen, itemgetter(0)):
        yield point, list(rows)


def _rows(run: RunFolder, table: str) -> Iterator[Row]:
    folder, columns = {
        "vault": (run.vault, _VAULT),
        "points": (run.points, _POINTS),
        "spans": (run.spans, _SPANS),
    }[table]
    for batch in read_batches(folder, columns):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class InOrder:
    """Rows in the order of their point ids, asked for by rising ids."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._next = next(rows, None)

    def at(self, point: int) -> Row | None:
        """The row of ``point``; None where there is none.  Rows before it are passed over."""
        while self._next is not None and self._next[0] < point:
            self._advance()
        if self._next is None or self._next[0] != point:
            return None
        found = self._next
        self._advance()
        return found

    def _advance(self) -> None:
        last = self._next
        self._next = next(self._rows, None)
        if last is not None and self._next is not None and self._next[0] <= last[0]:
            raise CheckFailed("a table of the run is not in the order of its point ids")


def _priority(pseudonym: str) -> int:
    """The first 64 bits of a keyed id: an order that nothing but the id and the key decides."""
    return int(pseudonym[:_PRIORITY_DIGITS], 16)
