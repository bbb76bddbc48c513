"""A point's way: read, cut, detected, masked and routed, and put into the shard of its side."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from redactory.dedup import first_of, ranges_of, write_digests
from redactory.dedup.plan import Ids
from redactory.detectors import Detection, Detector, DetectSettings, Span, TextDetector, languages_of
from redactory.foundation.files import PUBLIC_FILE
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, StageReport
from redactory.pipelines.readers import Document, Rejection, Source
from redactory.pipelines.readers.documents import DUPLICATE_ID, RowCounts
from redactory.pipelines.segment import of_parts, segmenter
from redactory.pipelines.stages.carried import carried, counted_in, refuse_personal
from redactory.pipelines.stages.counting import contribute, named_by_text, write_fates
from redactory.pipelines.stages.dedup import UNKNOWN, across_rows, earlier_places, first_points
from redactory.pipelines.work import (
    DETECTED,
    DOCUMENTS,
    PARTITION_BITS,
    REJECTED,
    Job,
    column,
    kept,
    numbers,
    point_id,
    scalar,
    table_of,
)
from redactory.redaction import (
    PRIVATE,
    PUBLIC,
    Fate,
    ValueDigests,
    part_name,
    read_between,
    read_part,
    route,
    together,
    write_part,
)
from redactory.redaction import shards as tables
from redactory.redaction.known import known_hits
from redactory.redaction.shards import CLASS, DOCUMENT, ROLE, SPANS, USERS

SAMPLED = 200
"""Documents of a partition, or a few more, whose language is looked at."""
GROUP_ROWS = 2_048
"""Rows that are read at once of a table of which a part is looked for."""
HEARD_EVERY = 64
"""Texts between two words of progress; their spans are then packed."""
BINS = 20
"""Bins of the score histograms in the report."""
DUPLICATE, QUARANTINED = "duplicate", "quarantined"
NOTHING = Detection()


# Ingest: the one sequential stage; it cuts the input into partitions.


def ingest(job: Job, sources: list[Source], progress: Progress) -> Iterator[StageReport]:
    """Read the whole input and commit one partition after the other; a report each.

    A partition is closed at a fixed number of documents or of bytes, so the cut depends on the input
    and the configuration alone.  A bad row or file is quarantined; at the end the whole input is judged
    (:meth:`RowCounts.check`).  Files that a scheduled run reads, and a quarantine that is tried again, may
    have no usable row at all.
    """
    limits, counts = job.config.partition, RowCounts(job.config.input)
    current, size, number = list[Document | Rejection](), 0, 0
    for entry in chain.from_iterable(map(counts.read, sources)):
        current.append(entry)
        size += len(entry.text if isinstance(entry, Document) else entry.content)
        if len(current) >= limits.documents or size >= limits.bytes:
            yield _commit(job, number, current)
            current, size, number = [], 0, number + 1
            progress("ingest", counts.rows, None, "rows")
    if current or number == 0:
        yield _commit(job, number, current)
    progress("ingest", counts.rows, counts.rows, "rows")
    counts.check(any(source.may_be_unusable for source in sources))


def _commit(job: Job, number: int, entries: list[Document | Rejection]) -> StageReport:
    documents = [entry for entry in entries if isinstance(entry, Document)]
    rejections = [entry for entry in entries if isinstance(entry, Rejection)]
    purpose = job.key.purpose("document")
    digests = [job.key.text_digest(purpose, document.doc_id.encode()) for document in documents]
    ids = np.arange(len(documents), dtype=np.int64) + point_id(number, 0)
    write_digests(job.digests("document-ids", number), digests, ids)
    for name, own, schema in (("rejected", rejections, REJECTED), ("documents", documents, DOCUMENTS)):
        columns = {field.name: [getattr(entry, field.name) for entry in own] for field in schema}
        write_part(job.part(name, number), table_of(columns, schema))
    counts = Counter({"rows": len(entries)})
    counts.update(f"rejected/{rejection.reason}" for rejection in rejections)
    counts.update(f"source/{entry.source}" for entry in entries)
    return StageReport("ingest", counts + counted_in(documents, job.config.input))


# Segment: documents into points, and the digests by which each distinct text is detected once.


def segment_part(job: Job, partitions: int, partition: int) -> StageReport:
    """Cut the documents of one partition; a document whose id was seen before is rejected here."""
    documents = read_part(job.part("documents", partition))
    ids = np.arange(documents.num_rows, dtype=np.int64) + point_id(partition, 0)
    own = first_of(job.ranges("repeated-documents"), ids) == ids
    repeated, documents = kept(documents, ~own), kept(documents, own)
    texts, cut = documents["text"].to_pylist(), segmenter(job.config.segment)
    cut = of_parts(cut) if job.config.input.has_parts else cut
    segments = [cut(text) for text in texts]
    # of each point, which document it is of
    rows = np.repeat(np.arange(len(texts)), [len(found) for found in segments])
    owners = documents.select(["doc_id", "user_id", "label"]).take(column(rows, pa.int64()))
    prefix, text, suffix, speaker = zip(*chain(*segments), strict=True) if len(rows) else ((), (), (), ())
    points = table_of(
        {
            "point_id": np.arange(len(rows), dtype=np.int64) + point_id(partition, 0),
            "doc_id": owners["doc_id"],
            "user_id": owners["user_id"],
            CLASS: owners["label"],
            "prefix": prefix,
            "text": text,
            "suffix": suffix,
            "speaker": speaker,
            **carried(job.carried, job.config.input, documents["kept"].to_pylist(), segments),
        },
        pa.schema([*job.vault_schema, *job.carried]),
    )
    purpose = job.key.purpose("text")
    digests = [job.key.text_digest(purpose, one.encode()) for one in text]
    write_digests(job.digests("text-digests", partition), digests, numbers(points, "point_id"))
    again = {
        "reason": [DUPLICATE_ID] * repeated.num_rows,
        "source": repeated["source"],
        "row": repeated["row"],
        "content": repeated["text"],
    }
    write_part(job.part("repeated", partition), table_of(again, REJECTED))
    write_part(job.part("points", partition), points)
    counts = Counter({"documents": len(texts), "points": len(rows)})
    if ROLE in job.carried.names:
        counts["roles_left_out"] = (
            pc.sum(pc.and_(pc.is_null(points[ROLE]), pc.is_valid(points["speaker"]))).as_py() or 0
        )
    if repeated.num_rows:
        counts[f"rejected/{DUPLICATE_ID}"] = repeated.num_rows
    counts.update(f"language/{language}" for language in languages_of(texts[:: len(texts) // SAMPLED or 1]))
    return StageReport("segment", counts)


# Detect: each distinct text of the corpus once, in the partition that holds it first.


@functools.lru_cache(maxsize=1)
def loaded(settings: str, *policies: str) -> Detector:
    """The detector of detection settings, as JSON; another one for other hashes of the policies.

    The settings name models and lists by their paths alone: what lies there may have changed since the last
    run of this process.
    """
    return Detector(DetectSettings.model_validate_json(settings))


def detector_of(job: Job) -> TextDetector:
    """What detects in this job; engines are loaded once a process, configuration and state of its files."""
    return job.detector or loaded(job.config.detect.model_dump_json(), *job.policies)


def detect_part(job: Job, partitions: int, partition: int) -> StageReport:
    """Detect the texts that no earlier point has; what is found is written by hash range, then by point."""
    points = read_part(job.part("points", partition), columns=["point_id", "text"])
    if asked := job.config.input.metadata_columns:
        columns = read_part(job.part("points", partition), columns=list(asked)).select(asked)
        refuse_personal(job.config, zip(*(one.to_pylist() for one in columns), strict=True), detector_of(job))
    ids = numbers(points, "point_id")
    own = first_of(job.ranges("repeated-texts"), ids) == ids
    texts = kept(points, own)["text"].to_pylist()
    digests = np.load(job.digests("text-digests", partition))
    ranges = ranges_of(digests, job.hash_ranges)[np.argsort(digests["id"])][own].tolist()
    rows, packed = list[tuple[Any, ...]](), [pa.Table.from_batches([], DETECTED)]
    detections = zip(ranges, ids[own].tolist(), detector_of(job).detect(texts), strict=True)
    for done, (number, point, detection) in enumerate(detections, 1):
        rows += rows_of(number, point, detection)
        if done % HEARD_EVERY == 0 or done == len(texts):
            # as Python objects, a partition's spans would scatter over the heap and keep it large
            packed.append(_table(rows, DETECTED))
            rows = []
            job.listener(f"detect, partition {partition}", done, len(texts), "texts")
    found = pa.concat_tables(packed)
    order = np.argsort(numbers(found, "range"), kind="stable")
    write_part(job.part("found", partition), found.take(column(order, pa.int64())), group_rows=GROUP_ROWS)
    return StageReport("detect", Counter({"texts": len(texts), "characters": sum(map(len, texts))}))


def rows_of(number: int, point: int, detection: Detection) -> Iterator[tuple[Any, ...]]:
    """The rows of ``DETECTED`` that a detection is written as."""
    if detection.failure is not None:
        yield (number, point, *[None] * 6, detection.failure)
    for policy in ("strict", "conservative", "public"):
        for span in getattr(detection, policy):
            yield (number, point, *span, policy, None)


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return table_of(dict(zip(schema.names, columns, strict=True)), schema)


def spread_range(job: Job, partitions: int, number: int) -> StageReport:
    """Write what was found in the repeated texts of one hash range, by the points that repeat them.

    A barrier: if each partition looked its repeated texts up where they were detected, it would read nearly
    every earlier partition, and the time would grow with the square of the corpus.  Holds the pairs of the
    range's plan and the rows of its texts and repeats: about 100 bytes a row.
    """
    pairs = np.load(job.range("repeated-texts", number))
    firsts, found = np.unique(pairs["first"]), [pa.Table.from_batches([], DETECTED)]
    for mine in np.split(firsts, np.flatnonzero(np.diff(firsts >> PARTITION_BITS)) + 1) if len(firsts) else ():
        partition = int(mine[0]) >> PARTITION_BITS
        rows = read_between(job.part("found", partition), "range", number, number)
        found.append(kept(rows, np.isin(numbers(rows, "point_id"), mine)))
    texts = pa.concat_tables(found)
    owners = numbers(texts, "point_id")
    begin, end = (np.searchsorted(owners, pairs["first"], side) for side in ("left", "right"))
    counts = end - begin
    # the rows of each pair's first point, one pair after the other: in the order of the points that repeat
    places = np.arange(counts.sum()) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
    rows = texts.take(column(places, pa.int64()))
    repeats = column(np.repeat(pairs["id"], counts), pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("point_id"), "point_id", repeats)
    write_part(job.spread(number), rows, group_rows=GROUP_ROWS)
    return StageReport("spread")


# Know: what was found once in a document, wherever it stands in it (``release.known_values``).


def know_part(job: Job, partitions: int, partition: int) -> StageReport:
    """Write the hits of one partition whose values were found elsewhere in the same document, or declared.

    A stage of its own: a run that is written anew has them in its ledger already.
    """
    declared: dict[str, dict[str, str]] = {}
    for row in read_part(job.part("documents", partition), columns=["doc_id", "known"]).to_pylist():
        # of several documents with one id the first counts
        declared.setdefault(row["doc_id"], json.loads(row["known"] or "{}"))
    points = read_part(job.part("points", partition), columns=["point_id", "doc_id", "text"])
    ids, rows = numbers(points, "point_id"), list[tuple[Any, ...]]()
    known = detections_of(found_in(job, partition, ids))
    columns = (ids.tolist(), points["doc_id"].to_pylist(), points["text"].to_pylist())
    for doc_id, document in groupby(zip(*columns, strict=True), itemgetter(1)):
        own, _, texts = zip(*document, strict=True)
        found = [known.get(point, NOTHING) for point in own]
        hits = known_hits(texts, found, declared[doc_id], job.config.detect.language)
        rows += [row for p, more in zip(own, hits, strict=True) for row in rows_of(0, p, Detection(more))]
    write_part(job.part("known", partition), _table(rows, DETECTED))
    return StageReport("know")


# Redact: mask and route each point by the spans of its text, wherever that text was detected.


def redact_part(job: Job, partitions: int, partition: int) -> StageReport:
    """Write the fate, the redacted text, the ledger's spans and the digests of one partition's points.

    Where counts decide what is public, the fates of the policies wait for them.
    """
    points = read_part(job.part("points", partition))
    ids, texts = numbers(points, "point_id"), points["text"].to_pylist()
    of_documents, known_values = job.config.release.unit == "document", job.config.release.known_values
    found = found_in(job, partition, ids, [job.part("known", partition)] if known_values else [])
    known = detections_of(found)
    text_of = dict(zip(ids.tolist(), texts, strict=True))
    fates = [route(text, known.get(point, NOTHING)) for point, text in text_of.items()]
    if of_documents:
        pairs = zip(points["doc_id"].to_pylist(), fates, strict=True)
        fates = [fate for _, own in groupby(pairs, itemgetter(0)) for fate in together([one for _, one in own])]
    if job.selection is None:
        write_fates(job, partition, points, fates)
    else:
        contribute(job, partition, points, fates)
    spans = found.filter(pc.is_null(found["failure"]))
    write_part(job.run.spans / part_name(partition), _ledger(job.key, text_of, spans))
    return StageReport("redact", _counts(fates, spans))


def found_in(job: Job, partition: int, ids: Ids, more: Sequence[Path] = ()) -> pa.Table:
    """What was found in the texts of a partition's points (``DETECTED``), by point, and stands in ``more``.

    ``ids`` are sorted.  What was found in a text that an earlier point has was spread to this one.
    """
    if not len(ids):
        return pa.Table.from_batches([], DETECTED)
    first, last = int(ids[0]), int(ids[-1])
    spread = (read_between(job.spread(n), "point_id", first, last) for n in range(job.hash_ranges))
    own = (job.part("found", partition), *more)
    found = pa.concat_tables([*map(read_part, own), *spread])
    order = np.argsort(numbers(found, "point_id"), kind="stable")
    return found.take(column(order, pa.int64()))


def detections_of(found: pa.Table) -> dict[int, Detection]:
    """The detection of each point in whose text there was something to find."""
    spans: dict[int, dict[str, list[Span]]] = {}
    failures: dict[int, str] = {}
    columns = (one.to_pylist() for one in found.columns)
    for _, point, start, end, label, score, detector, policy, failure in zip(*columns, strict=True):
        own = spans.setdefault(point, {})
        if failure is not None:
            failures[point] = failure
        else:
            own.setdefault(policy, []).append(Span(start, end, label, score, detector))
    return {
        point: Detection(failure=failures.get(point), **{policy: tuple(found) for policy, found in own.items()})
        for point, own in spans.items()
    }


def _ledger(key: DigestKey, text_of: dict[int, str], spans: pa.Table) -> pa.Table:
    """The text-free span ledger: offsets, labels, scores and keyed digests of the masked values."""
    digest_of = functools.cache(ValueDigests(key).digest)
    columns = (spans[name].to_pylist() for name in ("point_id", "start", "end", "policy"))
    masked = [
        digest_of(text_of[point][start:end]) if policy == "strict" else (None, None)
        for point, start, end, policy in zip(*columns, strict=True)
    ]
    digests, tokens = zip(*masked, strict=True) if masked else ((), ())
    own = {name: spans[name] for name in spans.schema.names}
    return table_of({**own, "value_digest": digests, "tokens": tokens}, SPANS)


def _counts(fates: list[Fate], spans: pa.Table) -> Counter[str]:
    counts = Counter({"masks": sum(fate.masks for fate in fates)})
    counts.update(f"reason/{reason}" for fate in fates for reason in fate.reasons)
    columns = (spans[name].to_pylist() for name in ("policy", "detector", "label", "score"))
    hits = Counter((*kind, min(int(score * BINS), BINS - 1)) for *kind, score in zip(*columns, strict=True))
    counts.update({f"hit/{policy}/{by}/{label}/{bin_}": n for (policy, by, label, bin_), n in hits.items()})
    return counts


# Shard: each point to where its fate sends it; the parts that a release is made of.


def shard_part(job: Job, partitions: int, partition: int) -> StageReport:
    """Write one partition's parts of every data folder."""
    points, redacted = read_part(job.part("points", partition)), read_part(job.part("redacted", partition))
    records = _records(job, points, redacted, first_points(job, partition, redacted))
    if job.selection is not None:
        records = named_by_text(job, points, redacted, records)
    sides = {side: _side(job, records, redacted, side) for side in (PUBLIC, PRIVATE)}
    failures, run, name = redacted["failure"], job.run, part_name(partition)
    if job.selection is None:
        write_part(run.public / name, sides[PUBLIC], PUBLIC_FILE)
    else:
        write_part(job.part("held", partition), sides[PUBLIC])
    write_part(run.private / name, sides[PRIVATE])
    write_part(run.vault / name, points.filter(pc.is_null(failures)).select(job.vault_schema.names))
    write_part(run.points / name, records)
    across = across_rows(job, records)
    if job.config.dedup.report_cross_split:
        write_part(run.across / name, _table(across, tables.ACROSS))
    rows = pa.concat_tables(read_part(job.part(table, partition)) for table in ("rejected", "repeated"))
    failed = points.append_column("reason", failures).filter(pc.is_valid(failures))
    quarantined = [
        _quarantined("row", rows.num_rows, {field: rows[field] for field in rows.column_names}),
        _quarantined(
            "point",
            failed.num_rows,
            {
                "reason": failed["reason"],
                "source": failed["doc_id"],
                "point_id": failed["point_id"],
                "content": failed["text"],
            },
        ),
    ]
    write_part(run.quarantine / name, pa.concat_tables(quarantined))
    return StageReport("shard", _counts_shard(records, failures) + Counter({"across/points": len(across)}))


def _records(job: Job, points: pa.Table, redacted: pa.Table, first: Ids) -> pa.Table:
    """``audit/points``: each point's fate, and ids that only the key's holder can undo."""
    ids, key = numbers(points, "point_id"), job.key
    duplicate = first != ids
    users = _pseudonyms(key, "user", points["user_id"])
    if points["user_id"].null_count:
        # a row without a user is its own user
        users = pc.coalesce(users, _pseudonyms(key, "lone-user", points["doc_id"]))
    runs = [entry.name for entry in job.index.runs] if job.index is not None else []
    places = [place if place >= 0 else None for place in earlier_places(first).tolist()]
    kept_or_not = pc.if_else(column(duplicate, pa.bool_()), scalar(DUPLICATE), redacted["side"])
    dropped_for = [int(one) if one > UNKNOWN and again else None for one, again in zip(first, duplicate, strict=True)]
    return table_of(
        {
            "point_id": ids,
            "released_id": key.pseudonyms("point", ids.tolist()),
            "document": _pseudonyms(key, "document", points["doc_id"]),
            "user": users,
            "side": redacted["side"],
            "fate": pc.if_else(pc.is_valid(redacted["failure"]), scalar(QUARANTINED), kept_or_not),
            "dup_of": dropped_for,
            "earlier_run": column(runs, pa.string()).take(column(places, pa.int64())),
            "reasons": redacted["reasons"],
            **{name: points[name] for name in job.carried.names},
        },
        pa.schema([*tables.POINTS, *job.carried]),
    )


def _pseudonyms(key: DigestKey, purpose: str, values: pa.ChunkedArray) -> pa.Array:
    """The pseudonym of each value, worked out once a distinct value; null stays null."""
    encoded = values.combine_chunks().dictionary_encode()
    names = key.pseudonyms(purpose, encoded.dictionary.to_pylist())
    return column(names, pa.string()).take(encoded.indices)


def _side(job: Job, records: pa.Table, redacted: pa.Table, side: str) -> pa.Table:
    """What leaves on one side, under released ids."""
    own = records.append_column("text", redacted["text"]).filter(pc.equal(records["fate"], scalar(side)))
    named = {"point_id": own["released_id"], DOCUMENT: own["document"]}
    schema = job.shard_schema(side)
    if side == PUBLIC and job.selection is not None:
        schema = schema.remove(schema.get_field_index(USERS))
    return table_of({**{n: own[n] for n in own.column_names}, **named}, schema)


def _quarantined(kind: str, rows: int, given: dict[str, pa.ChunkedArray]) -> pa.Table:
    absent = {field.name: pa.nulls(rows, field.type) for field in tables.QUARANTINE}
    return table_of({**absent, "kind": [kind] * rows, **given}, tables.QUARANTINE)


def _counts_shard(records: pa.Table, failures: pa.ChunkedArray) -> Counter[str]:
    counts: Counter[str] = Counter()
    duplicates = records.filter(pc.equal(records["fate"], scalar(DUPLICATE)))
    earlier = records.filter(pc.is_valid(records["earlier_run"]))
    columns: Iterable[tuple[str, pa.ChunkedArray]] = (
        ("", records["fate"]),
        ("duplicate/", duplicates["side"]),
        ("duplicate_earlier/", earlier["side"]),
        ("quarantined/", failures.drop_null()),
    )
    for prefix, values in columns:
        counts.update({f"{prefix}{value}": n for value, n in Counter(values.to_pylist()).items()})
    return counts
