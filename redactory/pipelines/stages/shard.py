"""Shard: each point to where its fate sends it; the parts that a release is made of."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from redactory.foundation.files import PUBLIC_FILE
from redactory.foundation.keys import DigestKey
from redactory.foundation.reports import StageReport
from redactory.pipelines.stages.duplicates import Ids, earlier_places, first_points
from redactory.pipelines.stages.near import across_rows
from redactory.pipelines.stages.plans import UNKNOWN
from redactory.pipelines.work import Job
from redactory.redaction import PRIVATE, PUBLIC, part_name, read_part, write_part
from redactory.redaction import shards as tables

DUPLICATE, QUARANTINED = "duplicate", "quarantined"


def shard_part(job: Job, partition: int) -> StageReport:
    """Write one partition's parts of every data folder."""
    points = read_part(job.part("points", partition))
    redacted = read_part(job.part("redacted", partition))
    records = _records(job, points, redacted, first_points(job, partition, redacted))
    failures = redacted["failure"]

    run, name = job.run, part_name(partition)
    write_part(run.public / name, _side(records, redacted, PUBLIC, tables.PUBLIC), PUBLIC_FILE)
    write_part(run.private / name, _side(records, redacted, PRIVATE, tables.PRIVATE))
    write_part(run.vault / name, points.filter(pc.is_null(failures)))
    write_part(run.points / name, records)
    across = across_rows(job, records)
    if job.config.dedup.across:
        write_part(run.across / name, pa.Table.from_pylist(across, tables.ACROSS))
    quarantined = [_rejected_rows(job, partition), _quarantined_points(points, failures)]
    write_part(run.quarantine / name, pa.concat_tables(quarantined))
    return StageReport("shard", _counts(records, failures) + Counter({"across/points": len(across)}))


def _records(job: Job, points: pa.Table, redacted: pa.Table, first: Ids) -> pa.Table:
    """``audit/points``: each point's fate, and ids that only the key's holder can undo."""
    ids, side, key = points["point_id"].to_numpy(), redacted["side"], job.key
    duplicate = first != ids
    kept_or_not = pc.if_else(pa.array(duplicate), DUPLICATE, side)
    runs = [entry.name for entry in job.index.runs] if job.index is not None else []
    places = earlier_places(first)
    return pa.table(
        {
            "point_id": ids,
            "released_id": pa.array(key.pseudonyms("point", ids.tolist()), pa.string()),
            "document": _pseudonyms(key, "document", points["doc_id"]),
            "user": _users(key, points),
            "side": side,
            "fate": pc.if_else(pc.is_valid(redacted["failure"]), QUARANTINED, kept_or_not),
            "dup_of": pa.array(first, pa.int64(), mask=~duplicate | (first <= UNKNOWN)),
            "earlier_run": pa.array(runs, pa.string()).take(pa.array(places, mask=places < 0)),
            "reasons": redacted["reasons"],
        },
        tables.POINTS,
    )


def _users(key: DigestKey, points: pa.Table) -> pa.ChunkedArray:
    users = _pseudonyms(key, "user", points["user_id"])
    if not points["user_id"].null_count:
        return users
    # a row without a user is its own user
    return pc.coalesce(users, _pseudonyms(key, "lone-user", points["doc_id"]))


def _pseudonyms(key: DigestKey, purpose: str, column: pa.ChunkedArray) -> pa.Array:
    """The pseudonym of each value, worked out once a distinct value; null stays null."""
    encoded = column.combine_chunks().dictionary_encode()
    names = key.pseudonyms(purpose, encoded.dictionary.to_pylist())
    return pa.array(names, pa.string()).take(encoded.indices)


def _side(records: pa.Table, redacted: pa.Table, fate: str, schema: pa.Schema) -> pa.Table:
    """What leaves on one side, under released ids."""
    own = records.append_column("text", redacted["text"]).filter(pc.equal(records["fate"], fate))
    columns = {name: own["released_id" if name == "point_id" else name] for name in schema.names}
    return pa.table(columns, schema)


def _rejected_rows(job: Job, partition: int) -> pa.Table:
    rows = pa.concat_tables(read_part(job.part(table, partition)) for table in ("rejected", "repeated"))
    return _quarantined("row", rows.num_rows, {name: rows[name] for name in rows.column_names})


def _quarantined_points(points: pa.Table, failures: pa.ChunkedArray) -> pa.Table:
    failed = points.append_column("reason", failures).filter(pc.is_valid(failures))
    columns = {"reason": failed["reason"], "source": failed["doc_id"], "point_id": failed["point_id"]}
    return _quarantined("point", failed.num_rows, {**columns, "content": failed["text"].cast(pa.binary())})


def _quarantined(kind: str, rows: int, given: dict[str, pa.ChunkedArray]) -> pa.Table:
    columns = {"kind": pa.array([kind] * rows, pa.string()), **given}
    absent = {field.name: pa.nulls(rows, field.type) for field in tables.QUARANTINE}
    return pa.table({**absent, **columns}, tables.QUARANTINE)


def _counts(records: pa.Table, failures: pa.ChunkedArray) -> Counter[str]:
    counts: Counter[str] = Counter()
    duplicates = records.filter(pc.equal(records["fate"], DUPLICATE))
    earlier = records.filter(pc.is_valid(records["earlier_run"]))
    for prefix, column in (
        ("", records["fate"]),
        ("duplicate/", duplicates["side"]),
        ("duplicate_earlier/", earlier["side"]),
        ("quarantined/", failures.drop_null()),
    ):
        for one in pc.value_counts(column).to_pylist():
            counts[f"{prefix}{one['values']}"] += one["counts"]
    return counts
