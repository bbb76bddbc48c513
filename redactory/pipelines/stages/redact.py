"""Redact: mask and route each point by the spans of its text, wherever that text was detected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from redactory.dedup import write_digests
from redactory.detectors import Detection, Span
from redactory.foundation.files import PUBLIC_FILE
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import StageReport
from redactory.pipelines.stages.dedup import (
    UNKNOWN,
    Ids,
    across_rows,
    earlier_places,
    fate_digests,
    first_points,
    users_of,
)
from redactory.pipelines.work import REDACTED, Job
from redactory.redaction import (
    PRIVATE,
    PUBLIC,
    Fate,
    ValueDigests,
    part_name,
    read_between,
    read_part,
    route,
    write_part,
)
from redactory.redaction import shards as tables
from redactory.redaction.shards import SPANS

BINS = 20
"""Bins of the score histograms in the report."""
NOTHING = Detection()


def redact_part(job: Job, partitions: int, partition: int) -> StageReport:
    """Write the fate, the redacted text, the ledger's spans and the digests of one partition's points."""
    points = read_part(job.part("points", partition))
    ids, texts = points["point_id"].to_numpy(), points["text"].to_pylist()
    known = detections_of(job, partition, ids)
    detections = [known.get(point, NOTHING) for point in ids.tolist()]
    fates = [route(text, detection) for text, detection in zip(texts, detections, strict=True)]
    users = users_of(points) if job.config.dedup.scope == "user" else None
    digests, ranks = fate_digests(job.key, job.config.dedup, ids.tolist(), fates, users)
    write_digests(job.digests("redacted-digests", partition), digests, ids, ranks)
    ledger = _ledger(ValueDigests(job.key), ids.tolist(), texts, known)
    write_part(job.run.spans / job.part("", partition).name, ledger)
    write_part(job.part("redacted", partition), _table(ids, fates))
    return StageReport("redact", _counts(fates, known.values()))


def detections_of(job: Job, partition: int, ids: NDArray[np.int64]) -> dict[int, Detection]:
    """The detection of each of a partition's points in whose text there was something to find.

    ``ids`` are sorted.  What was found in a text that an earlier point has was spread to this one.
    """
    if not len(ids):
        return {}
    first, last = int(ids[0]), int(ids[-1])
    spread = (read_between(job.spread(n), "point_id", first, last) for n in range(job.hash_ranges))
    found: dict[int, tuple[list[Span], list[Span]]] = {}
    failures: dict[int, str] = {}
    for table in (read_part(job.part("found", partition)), *spread):
        columns = (column.to_pylist() for column in table.columns)
        for _, point, start, end, label, score, detector, policy, failure in zip(*columns, strict=True):
            strict, conservative = found.setdefault(point, ([], []))
            if failure is not None:
                failures[point] = failure
                continue
            own = strict if policy == "strict" else conservative
            own.append(Span(start, end, label, score, detector))
    return {
        point: Detection(tuple(strict), tuple(conservative), failures.get(point))
        for point, (strict, conservative) in found.items()
    }


def _ledger(
    values: ValueDigests, ids: Sequence[int], texts: Sequence[str], detections: Mapping[int, Detection]
) -> pa.Table:
    """The text-free span ledger: offsets, labels, scores and keyed digests of the masked values."""
    rows: list[tuple[object, ...]] = []
    known: dict[str, tuple[bytes, int]] = {}
    for point, text in zip(ids, texts, strict=True):
        if (detection := detections.get(point)) is None:
            continue
        for span in detection.strict:
            value = text[span.start : span.end]
            if (digest := known.get(value)) is None:
                digest = known[value] = values.digest(value)
            rows.append((point, *span, "strict", *digest))
        rows += ((point, *span, "conservative", None, None) for span in detection.conservative)
    columns = zip(*rows, strict=True) if rows else [[] for _ in SPANS]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SPANS, strict=True)]
    return pa.table(arrays, schema=SPANS)


def _table(ids: NDArray[np.int64], fates: list[Fate]) -> pa.Table:
    return pa.table(
        {
            "point_id": ids,
            "side": [f.side for f in fates],
            "text": [f.text for f in fates],
            "reasons": pa.array([list(f.reasons) for f in fates], pa.list_(pa.string())),
            "failure": pa.array([f.failure for f in fates], pa.string()),
        },
        REDACTED,
    )


def _counts(fates: list[Fate], detections: Iterable[Detection]) -> Counter[str]:
    counts = Counter({"masks": sum(f.masks for f in fates)})
    counts.update(f"reason/{reason}" for fate in fates for reason in fate.reasons)
    hits: Counter[tuple[str, str, str, int]] = Counter()
    for detection in detections:
        for policy, spans in (("strict", detection.strict), ("conservative", detection.conservative)):
            for _, _, label, score, detector in spans:
                hits[policy, detector, label, min(int(score * BINS), BINS - 1)] += 1
    counts.update({f"hit/{policy}/{by}/{label}/{bin_}": n for (policy, by, label, bin_), n in hits.items()})
    return counts


# Shard: each point to where its fate sends it; the parts that a release is made of.


DUPLICATE, QUARANTINED = "duplicate", "quarantined"


def shard_part(job: Job, partitions: int, partition: int) -> StageReport:
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
    return StageReport("shard", _counts_shard(records, failures) + Counter({"across/points": len(across)}))


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


def _counts_shard(records: pa.Table, failures: pa.ChunkedArray) -> Counter[str]:
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
