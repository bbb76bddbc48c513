"""Shard: each point to where its fate sends it; the parts that a release is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from redactory.foundation.files import PUBLIC_FILE
from redactory.foundation.reports import StageReport
from redactory.pipelines.stages.duplicates import earlier_place, first_points
from redactory.pipelines.stages.near import across_rows
from redactory.pipelines.stages.plans import UNKNOWN
from redactory.pipelines.work import Job
from redactory.redaction import PRIVATE, PUBLIC, part_name, read_part, write_part
from redactory.redaction import shards as tables

DUPLICATE, QUARANTINED = "duplicate", "quarantined"
Row = dict[str, Any]


def shard_part(job: Job, partition: int) -> StageReport:
    """Write one partition's parts of every data folder."""
    points = read_part(job.part("points", partition)).to_pylist()
    table = read_part(job.part("redacted", partition))
    redacted = table.to_pylist()
    records = _records(job, points, redacted, first_points(job, partition, table).tolist())

    run, name = job.run, part_name(partition)
    public = (
        {"point_id": r["released_id"], "text": f["text"]}
        for r, f in zip(records, redacted, strict=True)
        if r["fate"] == PUBLIC
    )
    private = (
        {**r, "point_id": r["released_id"], "text": f["text"]}
        for r, f in zip(records, redacted, strict=True)
        if r["fate"] == PRIVATE
    )
    vault = (p for p, r in zip(points, records, strict=True) if r["fate"] != QUARANTINED)
    write_part(run.public / name, _table(public, tables.PUBLIC), PUBLIC_FILE)
    write_part(run.private / name, _table(private, tables.PRIVATE))
    write_part(run.vault / name, _table(vault, job.points_schema))
    write_part(run.points / name, _table(records, tables.POINTS))
    across = across_rows(job, records)
    if job.config.dedup.across:
        write_part(run.across / name, _table(across, tables.ACROSS))
    quarantined = [*_rejected_rows(job, partition), *_quarantined_points(points, redacted)]
    write_part(run.quarantine / name, _table(quarantined, tables.QUARANTINE))
    return StageReport("shard", _counts(records, redacted) + Counter({"across/points": len(across)}))


def _records(job: Job, points: list[Row], redacted: list[Row], first: list[int]) -> list[Row]:
    """Each point's entry in ``audit/points``: its fate, and ids that only the key's holder can undo."""
    records, key = [], job.key
    runs = [entry.name for entry in job.index.runs] if job.index is not None else []
    for point, fate, original in zip(points, redacted, first, strict=True):
        number, doc_id, user_id = point["point_id"], point["doc_id"], point["user_id"]
        duplicate, place = original != number, earlier_place(original)
        records.append(
            {
                "point_id": number,
                "released_id": key.pseudonym("point", number),
                "document": key.pseudonym("document", doc_id),
                # a row without a user is its own user
                "user": key.pseudonym("user", user_id)
                if user_id is not None
                else key.pseudonym("lone-user", doc_id),
                "side": fate["side"],
                "fate": QUARANTINED if fate["failure"] else DUPLICATE if duplicate else fate["side"],
                "dup_of": original if duplicate and original > UNKNOWN else None,
                "earlier_run": None if place is None else runs[place],
                "reasons": fate["reasons"],
            }
        )
    return records


def _rejected_rows(job: Job, partition: int) -> Iterable[Row]:
    for table in ("rejected", "repeated"):
        for row in read_part(job.part(table, partition)).to_pylist():
            yield {**row, "kind": "row"}


def _quarantined_points(points: list[Row], redacted: list[Row]) -> Iterable[Row]:
    for point, fate in zip(points, redacted, strict=True):
        if fate["failure"]:
            yield {
                "kind": "point",
                "reason": fate["failure"],
                "source": point["doc_id"],
                "point_id": point["point_id"],
                "content": point["text"].encode(),
            }


def _table(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for row in rows:
        for name, column in columns.items():
            column.append(row.get(name))
    return pa.table(
        {name: pa.array(column, schema.field(name).type) for name, column in columns.items()}, schema
    )


def _counts(records: list[Row], redacted: list[Row]) -> Counter[str]:
    counts = Counter(record["fate"] for record in records)
    counts.update(f"duplicate/{r['side']}" for r in records if r["fate"] == DUPLICATE)
    counts.update(f"duplicate_earlier/{r['side']}" for r in records if r["earlier_run"] is not None)
    counts.update(f"quarantined/{f['failure']}" for f in redacted if f["failure"])
    return counts
