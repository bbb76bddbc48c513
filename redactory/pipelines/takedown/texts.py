"""The redacted text of a point that is in no shard: its original and its spans, masked again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from redactory.detectors import Detection, Span
from redactory.pipelines.stages.fate_digests import users_of
from redactory.pipelines.work import PARTITION_BITS
from redactory.redaction import Fate, RunFolder, part_name, read_part, route
from redactory.redaction.purged import require_there


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
