"""Duplicates of what is taken out: somebody else's point takes the place of hers in the shard.

Of the points that hers stood for, the one is chosen that a curation without her would have kept: by rule S1
the first, by rule S2 the one whose text has the smallest rank, and then the first.  Of near-duplicates the
one of the smallest rank takes her place and stands for the others, though it need not be near to all of
them: a curation without her might keep more of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from redactory.dedup import DedupSettings
from redactory.foundation.keys import DigestKey
from redactory.pipelines.stages.shard import DUPLICATE
from redactory.pipelines.takedown.person import Row, others_of
from redactory.pipelines.takedown.texts import Told, fates_of, has_vault
from redactory.pipelines.work import PARTITION_BITS
from redactory.redaction import PRIVATE, PUBLIC, RunFolder, part_name, read_batches, read_part

SIDES = (PUBLIC, PRIVATE)
OWN_TEXT = frozenset({"folded", "minhash"})
"""Modes in which a duplicate has another text than the point that stands for it."""


@dataclass
class Heirs:
    """``texts``: of each point that moves up, its redacted text; ``replaces``: hers, by it.

    ``originals``: the new ``dup_of`` of the other duplicates.  ``lost``: points of others whose text nobody
    knows any more, because the vault was purged: they go as well.  ``unknown`` says that more may have
    repeated her (mode ``bloom``, vault purged).
    """

    texts: dict[int, str] = field(default_factory=dict)
    replaces: dict[int, int] = field(default_factory=dict)
    originals: dict[int, int] = field(default_factory=dict)
    lost: dict[int, Row] = field(default_factory=dict)
    unknown: bool = False


def heirs_of(run: RunFolder, settings: DedupSettings, key: DigestKey, points: dict[int, Row]) -> Heirs:
    """Who takes the places of ``points``, which are taken out; deduplicated by ``settings`` under ``key``."""
    kept = {point: row["side"] for point, row in points.items() if row["fate"] in SIDES}
    found, texts = Heirs(), shard_texts(run, {points[point]["released_id"]: point for point in kept})
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in others_of(run, set(points), set(kept)):
        groups[row["dup_of"]].append(row)
    vault = has_vault(run)
    for side in SIDES:
        if settings.mode_of(side) == "bloom":
            own = {texts[point]: point for point, of in sorted(kept.items(), reverse=True) if of == side}
            found.unknown |= bool(own) and not vault
            for hers, row in _repeats(run, side, own, points, settings.scope) if vault else ():
                groups[hers].append(row)
    for hers, rows in sorted(groups.items()):
        _inherit(run, settings, key, hers, kept[hers], rows, texts[hers], found)
    return found


def shard_texts(run: RunFolder, released: dict[str, int]) -> dict[int, str]:
    """The text in the shards of each point, by its id; ``released`` has the ids of both kinds."""
    by_folder: dict[Any, set[str]] = defaultdict(set)
    for name, point in released.items():
        for folder in (run.public, run.private):
            by_folder[folder / part_name(point >> PARTITION_BITS)].add(name)
    found = {}
    for path, names in sorted(by_folder.items()):
        table = read_part(path, ["point_id", "text"])
        table = table.filter(pc.is_in(table["point_id"], pa.array(sorted(names), pa.string())))
        found.update({released[row["point_id"]]: row["text"] for row in table.to_pylist()})
    return found


def _inherit(
    run: RunFolder,
    settings: DedupSettings,
    key: DigestKey,
    hers: int,
    side: str,
    rows: list[Row],
    text: str,
    found: Heirs,
) -> None:
    """Choose among the ``rows`` that repeat the point ``hers``, and write down what becomes of each."""
    by_id = {row["point_id"]: row for row in rows}
    if settings.mode_of(side) not in OWN_TEXT:
        heir = min(by_id)
        found.texts[heir] = text
    elif has_vault(run):
        told = fates_of(run, by_id)
        heir = min(by_id, key=lambda point: (_rank(settings, key, side, told[point]), point))
        found.texts[heir] = told[heir].fate.text
    else:
        found.lost.update(by_id)
        return
    found.replaces[heir] = hers
    # a Bloom filter has never said which point a duplicate repeats
    found.originals.update({p: heir for p, row in by_id.items() if p != heir and row["dup_of"] is not None})


def _rank(settings: DedupSettings, key: DigestKey, side: str, told: Told) -> bytes:
    """What decides within a group which text stays (``stages/fate_digests.py``, ``stages/near.py``)."""
    if settings.mode_of(side) == "minhash":
        return key.text_digest(key.purpose("dedup/rank"), told.fate.text.encode())[:8][::-1]
    owner = f"{told.owner}\x00" if settings.scope == "user" else ""
    return key.text_digest(key.purpose(f"dedup/{side}"), (owner + told.fate.text).encode())


def _repeats(
    run: RunFolder, side: str, own: dict[str, int], points: dict[int, Row], scope: str
) -> Iterable[tuple[int, Row]]:
    """(her point, a row that has its text) of the duplicates of which nobody wrote down what they repeat."""
    for path in sorted(run.points.glob("part-*.parquet")):
        rows = [
            row
            for row in read_part(path).to_pylist()
            if (row["side"], row["fate"], row["dup_of"], row["earlier_run"]) == (side, DUPLICATE, None, None)
            and row["point_id"] not in points
        ]
        told = fates_of(run, (row["point_id"] for row in rows))
        for row in rows:
            hers = own.get(told[row["point_id"]].fate.text)
            if hers is not None and (scope == "corpus" or row["user"] == points[hers]["user"]):
                yield hers, row


def remaining_texts(run: RunFolder, gone: set[int], side: str) -> Iterable[tuple[Row, Told]]:
    """(row, what it was) of every point of a side that stays and repeats an earlier run of the index."""
    wanted = pa.array(sorted(gone), pa.int64())
    for batch in read_batches(run.points):
        stays = pc.invert(pc.is_in(batch["point_id"], wanted))
        mine = pc.and_(pc.and_(stays, pc.is_valid(batch["earlier_run"])), pc.equal(batch["side"], side))
        rows = batch.filter(mine).to_pylist()
        told = fates_of(run, (row["point_id"] for row in rows))
        yield from ((row, told[row["point_id"]]) for row in rows)
