"""Who is to be taken out, and which points of a run are theirs: told by keyed pseudonyms alone."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from redactory.detectors import Detection, Span
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import KEY_VARIABLE, DigestKey, forms_of
from redactory.pipelines.readers import InputSettings
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.stages.dedup import users_of
from redactory.pipelines.work import PARTITION_BITS
from redactory.redaction import Fate, RunFolder, part_name, parts, read_batches, read_part, route
from redactory.redaction.shards import require_there

Row = dict[str, Any]


@dataclass(frozen=True)
class Person:
    """The ids that were asked for, as they stand in the input."""

    doc_ids: frozenset[str]
    user_ids: frozenset[str]

    def pseudonyms(self, key: DigestKey) -> list[dict[str, str]]:
        """What the release log says of them: ``kind`` and ``pseudonym`` each."""
        # two spellings of a user's name are one person
        kinds = (("document", self.doc_ids), ("user", {forms_of(user)[0] for user in self.user_ids}))
        return [{"kind": k, "pseudonym": key.pseudonym(k, i)} for k, ids in kinds for i in sorted(ids)]

    def among(self, ids: Set[str]) -> Person:
        """Those of the ids that are among ``ids``."""
        return Person(self.doc_ids & ids, self.user_ids & ids)


@dataclass(frozen=True)
class Hers:
    """The rows of ``audit/points`` that are hers, by point id.

    ``lone`` counts documents without a user whose own id was asked for as a user's: nobody knows whether
    that is she, and they are left.
    """

    points: dict[int, Row]
    lone: int

    @property
    def pseudonyms(self) -> set[str]:
        """Of the documents and the users of these points."""
        return {row[kind] for row in self.points.values() for kind in ("document", "user")}

    @property
    def documents(self) -> int:
        """How many documents these points make up."""
        return len({row["document"] for row in self.points.values()})


def require_key(manifest: dict[str, Any], key: DigestKey) -> None:
    """``ConfigurationError`` where ``key`` is not the run's: nobody could be found by it."""
    own = manifest["key"]
    if own["fingerprint"] == key.fingerprint:
        return
    if own["fresh"]:
        raise ConfigurationError(
            "the run drew a key of its own, which is gone: nobody can tell whose its points are. Remove "
            f"the run, or curate its input anew, without the person and with {KEY_VARIABLE} set"
        )
    # without one, this process drew its own
    set_now = "no key is set" if key.fresh else "another key than the run's is set"
    raise ConfigurationError(
        f"{set_now}: set {KEY_VARIABLE} (or {KEY_VARIABLE}_FILE) to the one whose "
        f"fingerprint is {own['fingerprint']}"
    )


def hers(run: RunFolder, person: Person, key: DigestKey) -> Hers:
    """Find the points of ``person`` in a run of this ``key``: of these documents, and of these users."""
    documents = _pseudonyms(key, "document", person.doc_ids)
    users = _pseudonyms(key, "user", frozenset(form for user in person.user_ids for form in forms_of(user)))
    alone = _pseudonyms(key, "lone-user", person.user_ids - person.doc_ids)
    found: dict[int, Row] = {}
    lone: set[str] = set()
    for batch in read_batches(run.points):
        mine = pc.or_(pc.is_in(batch["document"], documents), pc.is_in(batch["user"], users))
        found.update((row["point_id"], row) for row in batch.filter(mine).to_pylist())
        lone.update(batch.filter(pc.is_in(batch["user"], alone))["document"].to_pylist())
    return Hers(found, len(lone - {row["document"] for row in found.values()}))


def others_of(run: RunFolder, gone: set[int], originals: set[int]) -> Iterator[Row]:
    """The duplicates of ``originals`` that are not among ``gone``, in the order of their ids."""
    wanted, without = pa.array(sorted(originals), pa.int64()), pa.array(sorted(gone), pa.int64())
    for batch in read_batches(run.points):
        mine = pc.and_(pc.is_in(batch["dup_of"], wanted), pc.invert(pc.is_in(batch["point_id"], without)))
        yield from batch.filter(mine).to_pylist()


def _pseudonyms(key: DigestKey, kind: str, ids: frozenset[str]) -> pa.Array:
    return pa.array([key.pseudonym(kind, value) for value in sorted(ids)], pa.string())


# The redacted text of a point that is in no shard: its original and its spans, masked again.


class Told(NamedTuple):
    """A point's fate, and whose it is within the run (as deduplication by user has it)."""

    fate: Fate
    owner: str


def has_vault(run: RunFolder) -> bool:
    """Whether the originals are still there."""
    return any(run.vault.glob("part-*.parquet"))


def fates_of(run: RunFolder, points: Iterable[int]) -> dict[int, Told]:
    """F of each of ``points``, as the curation had it: mask and route are functions of text and spans.

    Points that were quarantined have no entry.  ``RunStateError`` where the vault was purged.
    """
    by_partition: dict[int, list[int]] = defaultdict(list)
    for point in points:
        by_partition[point >> PARTITION_BITS].append(point)
    if by_partition:
        require_there(run.vault)
    found: dict[int, Told] = {}
    for partition, ids in sorted(by_partition.items()):
        wanted = pa.array(ids, pa.int64())
        name = part_name(partition)
        vault, ledger = (_some(read_part(folder / name), wanted) for folder in (run.vault, run.spans))
        spans = spans_of(ledger)
        rows = zip(vault["point_id"].to_pylist(), vault["text"].to_pylist(), users_of(vault), strict=True)
        for point, text, owner in rows:
            own = spans.get(point, {})
            detection = Detection(tuple(own.get("strict", ())), tuple(own.get("conservative", ())))
            found[point] = Told(route(text, detection), owner)
    return found


def spans_of(ledger: pa.Table) -> dict[int, dict[str, list[Span]]]:
    """The spans of each point by policy."""
    found: dict[int, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    names = ("point_id", "policy", "start", "end", "label", "score", "detector")
    for point, policy, *span in zip(*(ledger[name].to_pylist() for name in names), strict=True):
        found[point][policy].append(Span(*span))
    return found


def _some(table: pa.Table, wanted: pa.Array) -> pa.Table:
    return table.filter(pc.is_in(table["point_id"], wanted))


# Rejected rows in the quarantine: hers by the ids that stand in them, where they can be read at all.


_TABLES = {".csv": ",", ".tsv": "\t"}


@dataclass
class Rejected:
    """``rows``: the places of her rows in each part, by its name; ``reasons``: why they had been rejected.

    ``ids``: those of hers that stand in them.  ``unsearched`` counts the rows that say nothing of whom they
    are: broken ones, and texts whose id is another document's.
    """

    rows: dict[str, list[int]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    ids: set[str] = field(default_factory=set)
    unsearched: int = 0


def rejected_rows(run: RunFolder, person: Person, columns: InputSettings) -> Rejected:
    """Search the rejected rows of a run for the ids of ``person``."""
    found = Rejected()
    for path in parts(run.quarantine):
        mine = []
        for place, row in enumerate(read_part(path).to_pylist()):
            if row["kind"] != "row":
                continue
            own = _hers(row, person, columns)
            found.unsearched += own is None
            if own:
                found.ids |= own
                mine.append(place)
                found.reasons[row["reason"]] += 1
        if mine:
            found.rows[path.name] = mine
    return found


def without_rows(table: pa.Table, places: list[int]) -> pa.Table:
    """``table`` without the rows at ``places``."""
    kept = sorted(set(range(table.num_rows)) - set(places))
    return table.take(pa.array(kept, pa.int64()))


def _hers(row: dict[str, Any], person: Person, columns: InputSettings) -> frozenset[str] | None:
    """Which of her ids a rejected row names; None where nothing in it can say so.

    What cannot be read as a row is hers where one of the ids stands in it as a word.
    """
    content: bytes = row["content"] or b""
    named = None if row["reason"] == DUPLICATE_ID else _names(content, row["source"] or "", columns)
    if named is not None:
        documents, users = named
        return documents & person.doc_ids | {u for u in person.user_ids if users & set(forms_of(u))}
    spelled = {form: user for user in person.user_ids for form in forms_of(user)}
    words = "|".join(map(re.escape, sorted({*person.doc_ids, *spelled})))
    said = re.findall(rf"(?<![\w-])(?:{words})(?![\w-])", content.decode("utf-8", "replace"))
    return frozenset(word if word in person.doc_ids else spelled[word] for word in said) or None


def _names(
    content: bytes, source: str, columns: InputSettings
) -> tuple[frozenset[str], frozenset[str]] | None:
    """The ids of document and user that a row can name; None where it is no row that can be read."""
    text = content.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return frozenset([str(value.get(columns.id))]), frozenset([str(value.get(columns.user))])
    # a compressed table is a table as well
    ending = next((e for e in _TABLES if e in source.rsplit("/", 1)[-1].lower()), None)
    if ending is None:
        return None
    try:
        lines = csv.reader(io.StringIO(text), delimiter=_TABLES[ending])
        cells = frozenset(cell for line in lines for cell in line)
    except csv.Error:
        return None
    return cells, cells
