"""The stages of an example: read, segment, detect, mask and route it, and write it to the shard of its split."""

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

from redactory.dedup import compute_hash_ranges, lookup_replacements, write_digests
from redactory.dedup.plan import Ids
from redactory.detectors import Detection, Detector, DetectSettings, Span, TextDetector, detect_languages
from redactory.foundation.files import PUBLIC_FILE
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, StageReport
from redactory.pipelines.curation.segment import Segment, make_segmenter
from redactory.pipelines.curation.stage_context import (
    DETECTED,
    DOCUMENTS,
    PARTITION_BITS,
    REJECTED,
    CurationJob,
    example_id,
    read_integer_column,
)
from redactory.pipelines.curation.stages.counting import assign_text_based_ids, write_user_contributions
from redactory.pipelines.curation.stages.dedup import (
    UNKNOWN_EXAMPLE,
    decode_earlier_runs,
    find_cross_split_duplicates,
    find_representatives,
    write_decisions,
)
from redactory.pipelines.curation.stages.metadata_columns import (
    build_metadata_columns,
    count_metadata_types,
    require_no_personal_columns,
)
from redactory.pipelines.readers import Document, Rejection, Source
from redactory.pipelines.readers.documents import DUPLICATE_ID, RowCounts
from redactory.redaction import (
    PRIVATE,
    PUBLIC,
    ValueDigests,
    format_part_name,
    merge_document_decisions,
    read_id_range,
    read_part,
    route_example,
    write_part,
)
from redactory.redaction import shards as tables
from redactory.redaction.known_values import find_known_spans
from redactory.redaction.shards import CLASS, DOCUMENT, ROLE, SPANS, USERS

LANGUAGE_SAMPLE = 200
"""Approximate number of documents per partition whose language is detected."""
ROW_GROUP_SIZE = 2_048
"""Rows per row group in tables that are read in part."""
PROGRESS_INTERVAL = 64
"""Texts between two progress reports; their spans are then packed."""
SCORE_BINS = 20
"""Bins of the score histograms in the report."""
DUPLICATE, QUARANTINED = "duplicate", "quarantined"
NO_DETECTION = Detection()


# Ingest: the only sequential stage; it cuts the input into partitions.


def ingest_documents(job: CurationJob, sources: list[Source], progress: Progress) -> Iterator[StageReport]:
    """Read the whole input and commit it in partitions, sequentially; yield a report each.

    A partition is closed at a fixed number of documents or bytes, so partitions depend only on the input and the
    configuration. A bad row or file is quarantined; the whole input is checked at the end
    (:meth:`RowCounts.check_totals`). Files of a scheduled run, and a quarantine that is tried again, may have no usable
    row.
    """
    limits, counts = job.config.partition, RowCounts(job.config.input)
    current, size, number = list[Document | Rejection](), 0, 0
    for entry in chain.from_iterable(map(counts.read_and_count, sources)):
        current.append(entry)
        size += len(entry.text if isinstance(entry, Document) else entry.content)
        if len(current) >= limits.documents or size >= limits.bytes:
            yield _commit_partition(job, number, current)
            current, size, number = [], 0, number + 1
            progress("ingest", counts.rows, None, "rows")
    if current or number == 0:
        yield _commit_partition(job, number, current)
    progress("ingest", counts.rows, counts.rows, "rows")
    counts.check_totals(any(source.may_be_unusable for source in sources))


def _commit_partition(job: CurationJob, number: int, entries: list[Document | Rejection]) -> StageReport:
    documents = [entry for entry in entries if isinstance(entry, Document)]
    rejections = [entry for entry in entries if isinstance(entry, Rejection)]
    purpose = job.key.derive_subkey("document")
    digests = [job.key.compute_text_digest(purpose, document.doc_id.encode()) for document in documents]
    ids = np.arange(len(documents), dtype=np.int64) + example_id(number, 0)
    write_digests(job.digests_path("document-ids", number), digests, ids)
    for name, rows, schema in (("rejected", rejections, REJECTED), ("documents", documents, DOCUMENTS)):
        columns = {field.name: [getattr(entry, field.name) for entry in rows] for field in schema}
        write_part(job.part_path(name, number), pa.Table.from_pydict(columns, schema))
    counts = Counter({"rows": len(entries)})
    counts.update(f"rejected/{rejection.reason}" for rejection in rejections)
    counts.update(f"source/{entry.source}" for entry in entries)
    return StageReport("ingest", counts + count_metadata_types(documents, job.config.input))


# Segment: documents into examples, and digests to detect each distinct text once.


def segment_documents(job: CurationJob, partition: int) -> StageReport:
    """Cut the documents of one partition into examples; reject a document whose id occurred before."""
    documents = read_part(job.part_path("documents", partition))
    ids = np.arange(documents.num_rows, dtype=np.int64) + example_id(partition, 0)
    is_first = lookup_replacements(job.range_paths("repeated-document-ids"), ids) == ids
    repeated, documents = documents.filter(~is_first), documents.filter(is_first)
    segment_text = make_segmenter(job.config.segment, job.config.input.has_multiple_texts)
    texts = documents["text"].to_pylist()
    segments = [segment_text(text) for text in texts]
    # the document of each example
    document_indices = np.repeat(np.arange(len(texts)), [len(document_segments) for document_segments in segments])
    owners = documents.select(["doc_id", "user_id", "label"]).take(document_indices)
    values = zip(*chain(*segments), strict=True) if len(document_indices) else [()] * len(Segment._fields)
    columns = dict(zip(Segment._fields, values, strict=True))
    examples = pa.Table.from_pydict(
        {
            "example_id": np.arange(len(document_indices), dtype=np.int64) + example_id(partition, 0),
            "doc_id": owners["doc_id"],
            "user_id": owners["user_id"],
            CLASS: owners["label"],
            **columns,
            **build_metadata_columns(job.metadata_schema, job.config.input, documents["kept"].to_pylist(), segments),
        },
        pa.schema([*job.vault_schema, *job.metadata_schema]),
    )
    purpose = job.key.derive_subkey("text")
    digests = [job.key.compute_text_digest(purpose, text.encode()) for text in columns["text"]]
    write_digests(job.digests_path("text-digests", partition), digests, read_integer_column(examples, "example_id"))
    repeated_rows = {
        "reason": [DUPLICATE_ID] * repeated.num_rows,
        "source": repeated["source"],
        "row": repeated["row"],
        "content": repeated["text"],
    }
    write_part(job.part_path("repeated", partition), pa.Table.from_pydict(repeated_rows, REJECTED))
    write_part(job.part_path("examples", partition), examples)
    counts = Counter({"documents": len(texts), "examples": len(document_indices)})
    if ROLE in job.metadata_schema.names:
        counts["roles_left_out"] = (
            pc.sum(pc.and_(pc.is_null(examples[ROLE]), pc.is_valid(examples["speaker"]))).as_py() or 0
        )
    if repeated.num_rows:
        counts[f"rejected/{DUPLICATE_ID}"] = repeated.num_rows
    counts.update(f"language/{language}" for language in detect_languages(texts[:: len(texts) // LANGUAGE_SAMPLE or 1]))
    return StageReport("segment", counts)


# Detect: each distinct text of the corpus once, in the first partition that contains it.


@functools.lru_cache(maxsize=1)
def load_detector(settings: str, *policies: str) -> Detector:
    """Load the detector of detection settings, given as JSON; cached while the policies' hashes are the same.

    The settings alone do not identify it: files that they name may change between runs.
    """
    return Detector(DetectSettings.model_validate_json(settings))


def get_detector(job: CurationJob) -> TextDetector:
    """Return the detector of this job; engines are loaded once per process, configuration and state of its files."""
    return job.detector or load_detector(job.config.detect.model_dump_json(), *job.policy_hashes)


def detect_texts(job: CurationJob, partition: int) -> StageReport:
    """Detect the texts that no earlier example has; write the spans by hash range, then by example."""
    metadata_columns = job.config.input.metadata_columns
    columns = ["example_id", "text", *metadata_columns]
    examples = read_part(job.part_path("examples", partition), columns=columns)
    if metadata_columns:
        values = (examples[name].to_pylist() for name in metadata_columns)
        require_no_personal_columns(job.config, zip(*values, strict=True), get_detector(job))
    ids = read_integer_column(examples, "example_id")
    is_first = lookup_replacements(job.range_paths("repeated-text-digests"), ids) == ids
    texts = examples.filter(is_first)["text"].to_pylist()
    digests = np.load(job.digests_path("text-digests", partition))
    ranges = compute_hash_ranges(digests, job.hash_ranges)[np.argsort(digests["id"])][is_first].tolist()
    rows, packed = list[tuple[Any, ...]](), [pa.Table.from_batches([], DETECTED)]
    detections = zip(ranges, ids[is_first].tolist(), get_detector(job).detect(texts), strict=True)
    for done, (number, example, detection) in enumerate(detections, 1):
        rows += iterate_detection_rows(number, example, detection)
        if done % PROGRESS_INTERVAL == 0 or done == len(texts):
            # as Python objects, a partition's spans would scatter over the heap and keep it large
            packed.append(_build_table_from_rows(rows, DETECTED))
            rows = []
            job.progress(f"detect, partition {partition}", done, len(texts), "texts")
    detected = pa.concat_tables(packed)
    order = np.argsort(read_integer_column(detected, "range"), kind="stable")
    write_part(job.part_path("found", partition), detected.take(order), group_rows=ROW_GROUP_SIZE)
    return StageReport("detect", Counter({"texts": len(texts), "characters": sum(map(len, texts))}))


def iterate_detection_rows(number: int, example: int, detection: Detection) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``DETECTED`` for one detection."""
    if detection.failure is not None:
        yield (number, example, *[None] * 6, detection.failure)
    for policy in ("strict", "conservative", "public"):
        for span in getattr(detection, policy):
            yield (number, example, *span, policy, None)


def _build_table_from_rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.Table.from_pydict(dict(zip(schema.names, columns, strict=True)), schema)


def copy_spans_to_repeats(job: CurationJob, number: int) -> StageReport:
    """Copy the spans of the repeated texts of one hash range to the examples that repeat them.

    A barrier: if each partition looked up its repeated texts where they were detected, it would read nearly every
    earlier partition, and the time would grow with the square of the corpus. Holds the pairs of the range's plan and
    the rows of its texts and repeats: about 100 bytes per row.
    """
    pairs = np.load(job.range_path("repeated-text-digests", number))
    firsts, span_tables = np.unique(pairs["first"]), [pa.Table.from_batches([], DETECTED)]
    for partition_firsts in (
        np.split(firsts, np.flatnonzero(np.diff(firsts >> PARTITION_BITS)) + 1) if len(firsts) else ()
    ):
        partition = int(partition_firsts[0]) >> PARTITION_BITS
        rows = read_id_range(job.part_path("found", partition), "range", number, number)
        span_tables.append(rows.filter(np.isin(read_integer_column(rows, "example_id"), partition_firsts)))
    texts = pa.concat_tables(span_tables)
    owners = read_integer_column(texts, "example_id")
    starts, ends = (np.searchsorted(owners, pairs["first"], end_side) for end_side in ("left", "right"))
    counts = ends - starts
    # the rows of each pair's first example, pair by pair: in the order of the repeating examples
    row_indices = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    rows = texts.take(row_indices)
    repeats = pa.array(np.repeat(pairs["id"], counts))
    rows = rows.set_column(rows.schema.get_field_index("example_id"), "example_id", repeats)
    write_part(job.range_path("spread", number, ".parquet"), rows, group_rows=ROW_GROUP_SIZE)
    return StageReport("spread")


# Know: every occurrence in a document of a value found once in it (``release.known_values``).


def find_known_values(job: CurationJob, partition: int) -> StageReport:
    """Find the other occurrences of values found in, or declared for, the same document, in one partition.

    A separate stage: a reissued run has these spans in its ledger already.
    """
    declared: dict[str, dict[str, str]] = {}
    for row in read_part(job.part_path("documents", partition), columns=["doc_id", "known"]).to_pylist():
        # the first of several documents with the same id counts
        declared.setdefault(row["doc_id"], json.loads(row["known"] or "{}"))
    examples = read_part(job.part_path("examples", partition), columns=["example_id", "doc_id", "text"])
    ids, rows = read_integer_column(examples, "example_id"), list[tuple[Any, ...]]()
    detections_by_id = group_detections_by_example(read_detected_spans(job, partition, ids))
    columns = (ids.tolist(), examples["doc_id"].to_pylist(), examples["text"].to_pylist())
    for doc_id, document in groupby(zip(*columns, strict=True), itemgetter(1)):
        document_ids, _, texts = zip(*document, strict=True)
        detections = [detections_by_id.get(example, NO_DETECTION) for example in document_ids]
        spans_by_text = find_known_spans(texts, detections, declared[doc_id], job.config.detect.language)
        rows += [
            row
            for example_id, spans in zip(document_ids, spans_by_text, strict=True)
            for row in iterate_detection_rows(0, example_id, Detection(spans))
        ]
    write_part(job.part_path("known", partition), _build_table_from_rows(rows, DETECTED))
    return StageReport("know")


# Redact: mask and route each example by the spans of its text, wherever that text was detected.


def redact_examples(job: CurationJob, partition: int) -> StageReport:
    """Write the decisions, redacted texts, ledger spans and digests of one partition's examples.

    With a selection by counts, the decisions of the policies are kept for the later stage.
    """
    examples = read_part(job.part_path("examples", partition))
    ids, texts = read_integer_column(examples, "example_id"), examples["text"].to_pylist()
    is_by_document, known_values = job.config.release.unit == "document", job.config.release.known_values
    detected = read_detected_spans(job, partition, ids, [job.part_path("known", partition)] if known_values else [])
    detections_by_id = group_detections_by_example(detected)
    texts_by_id = dict(zip(ids.tolist(), texts, strict=True))
    decisions = [
        route_example(text, detections_by_id.get(example, NO_DETECTION)) for example, text in texts_by_id.items()
    ]
    if is_by_document:
        pairs = zip(examples["doc_id"].to_pylist(), decisions, strict=True)
        decisions = [
            decision
            for _, document_pairs in groupby(pairs, itemgetter(0))
            for decision in merge_document_decisions([pair_decision for _, pair_decision in document_pairs])
        ]
    if job.selection is None:
        write_decisions(job, partition, examples, decisions)
    else:
        write_user_contributions(job, partition, examples, decisions)
    spans = detected.filter(pc.is_null(detected["failure"]))
    write_part(job.run.spans / format_part_name(partition), _build_span_table(job.key, texts_by_id, spans))
    counts = Counter({"masks": sum(decision.masks for decision in decisions)})
    counts.update(f"reason/{reason}" for decision in decisions for reason in decision.reasons)
    counts.update(count_spans(spans))
    return StageReport("redact", counts)


def read_detected_spans(job: CurationJob, partition: int, ids: Ids, extra_parts: Sequence[Path] = ()) -> pa.Table:
    """Read the spans (``DETECTED``) of examples, also spread ones and ``extra_parts``, sorted like ``ids``."""
    if not len(ids):
        return pa.Table.from_batches([], DETECTED)
    first, last = int(ids[0]), int(ids[-1])
    copied = (
        read_id_range(job.range_path("spread", n, ".parquet"), "example_id", first, last)
        for n in range(job.hash_ranges)
    )
    parts = (job.part_path("found", partition), *extra_parts)
    detected = pa.concat_tables([*map(read_part, parts), *copied])
    order = np.argsort(read_integer_column(detected, "example_id"), kind="stable")
    return detected.take(order)


def group_detections_by_example(detected: pa.Table) -> dict[int, Detection]:
    """Return the detection of each example that has any span or failure."""
    spans: dict[int, dict[str, list[Span]]] = {}
    failures: dict[int, str] = {}
    columns = (column.to_pylist() for column in detected.columns)
    for _, example, start, end, label, score, detector, policy, failure in zip(*columns, strict=True):
        by_policy = spans.setdefault(example, {})
        if failure is not None:
            failures[example] = failure
        else:
            by_policy.setdefault(policy, []).append(Span(start, end, label, score, detector))
    return {
        example: Detection(
            failure=failures.get(example), **{policy: tuple(detected) for policy, detected in by_policy.items()}
        )
        for example, by_policy in spans.items()
    }


def _build_span_table(key: DigestKey, texts_by_id: dict[int, str], spans: pa.Table) -> pa.Table:
    """Build the text-free span ledger: offsets, labels, scores and keyed digests of the masked values."""
    digest_value = functools.cache(ValueDigests(key).digest_value)
    columns = (spans[name].to_pylist() for name in ("example_id", "start", "end", "policy"))
    masked = [
        digest_value(texts_by_id[example][start:end]) if policy == "strict" else (None, None)
        for example, start, end, policy in zip(*columns, strict=True)
    ]
    digests, tokens = zip(*masked, strict=True) if masked else ((), ())
    ledger_columns = {name: spans[name] for name in spans.schema.names}
    return pa.Table.from_pydict({**ledger_columns, "value_digest": digests, "tokens": tokens}, SPANS)


def count_spans(spans: pa.Table) -> Counter[str]:
    """Count the spans of a ledger by policy, detector, label and bin of the score."""
    columns = (spans[name].to_pylist() for name in ("policy", "detector", "label", "score"))
    return Counter(
        f"span/{policy}/{detector}/{label}/{min(int(score * SCORE_BINS), SCORE_BINS - 1)}"
        for policy, detector, label, score in zip(*columns, strict=True)
    )


# Shard: write each example to the folder of its decision, as parts of the release.


def write_shards(job: CurationJob, partition: int) -> StageReport:
    """Write one partition's parts of every data folder."""
    examples = read_part(job.part_path("examples", partition))
    redacted = read_part(job.part_path("redacted", partition))
    records = _build_example_records(job, examples, redacted, find_representatives(job, partition, redacted))
    if job.selection is not None:
        records = assign_text_based_ids(job, examples, redacted, records)
    splits = {split: select_split_rows(job, records, redacted, split) for split in (PUBLIC, PRIVATE)}
    failures, run, name = redacted["failure"], job.run, format_part_name(partition)
    if job.selection is None:
        write_part(run.public / name, splits[PUBLIC], PUBLIC_FILE)
    else:
        write_part(job.part_path("held", partition), splits[PUBLIC])
    write_part(run.private / name, splits[PRIVATE])
    write_part(run.vault / name, examples.filter(pc.is_null(failures)).select(job.vault_schema.names))
    write_part(run.examples / name, records)
    cross_split_rows = find_cross_split_duplicates(job, records)
    if job.config.dedup.report_cross_split:
        write_part(run.across / name, _build_table_from_rows(cross_split_rows, tables.ACROSS))
    rows = pa.concat_tables(read_part(job.part_path(table, partition)) for table in ("rejected", "repeated"))
    failed = examples.filter(pc.is_valid(failures))
    origins = {n: failed[n] for n in ("example_id", "user_id", tables.CLASS) if n in failed.column_names}
    origins |= {"source": failed["doc_id"], "content": failed["text"]}
    quarantined = [
        _build_quarantine_table("row", rows.num_rows, {field: rows[field] for field in rows.column_names}),
        _build_quarantine_table("example", failed.num_rows, {"reason": failures.drop_null(), **origins}),
    ]
    write_part(run.quarantine / name, pa.concat_tables(quarantined))
    return StageReport("shard", count_records(records, failures) + Counter({"across/examples": len(cross_split_rows)}))


def _build_example_records(job: CurationJob, examples: pa.Table, redacted: pa.Table, representatives: Ids) -> pa.Table:
    """Build ``audit/examples``: each example's decision, and pseudonyms that only the key's holder can reverse."""
    ids, key = read_integer_column(examples, "example_id"), job.key
    is_duplicate = representatives != ids
    if "document" in examples.column_names:
        # in a reissue they are known, and the ids of a quarantined example may have been purged
        documents, users = examples["document"], examples["user"]
    else:
        documents = _compute_pseudonyms(key, "document", examples["doc_id"])
        users = _compute_pseudonyms(key, "user", examples["user_id"])
        if examples["user_id"].null_count:
            # a row without a user is its own user
            users = pc.coalesce(users, _compute_pseudonyms(key, "lone-user", examples["doc_id"]))
    runs = [entry.name for entry in job.index.runs] if job.index is not None else []
    decisions = pc.if_else(is_duplicate, DUPLICATE, redacted["split"])
    dropped_for = [
        int(representative) if representative > UNKNOWN_EXAMPLE and repeats else None
        for representative, repeats in zip(representatives, is_duplicate, strict=True)
    ]
    return pa.Table.from_pydict(
        {
            "example_id": ids,
            "released_id": key.make_pseudonyms("point", ids.tolist()),
            "document": documents,
            "user": users,
            "split": redacted["split"],
            "decision": pc.if_else(pc.is_valid(redacted["failure"]), QUARANTINED, decisions),
            "dup_of": dropped_for,
            "earlier_run": [runs[i] if i >= 0 else None for i in decode_earlier_runs(representatives).tolist()],
            "reasons": redacted["reasons"],
            **{name: examples[name] for name in job.metadata_schema.names},
        },
        pa.schema([*tables.EXAMPLES, *job.metadata_schema]),
    )


def _compute_pseudonyms(key: DigestKey, purpose: str, values: pa.ChunkedArray) -> pa.Array:
    """Return the pseudonym of each value, computed once per distinct value; null stays null."""
    encoded = values.combine_chunks().dictionary_encode()
    names = key.make_pseudonyms(purpose, encoded.dictionary.to_pylist())
    return pa.array(names, pa.string()).take(encoded.indices)


def select_split_rows(job: CurationJob, records: pa.Table, redacted: pa.Table, split: str) -> pa.Table:
    """Return the rows of one split's shard, under released ids."""
    selected = records.append_column("text", redacted["text"]).filter(pc.equal(records["decision"], split))
    renamed = {"example_id": selected["released_id"], DOCUMENT: selected["document"]}
    schema = job.shard_schema(split)
    if split == PUBLIC and job.selection is not None:
        schema = schema.remove(schema.get_field_index(USERS))
    return pa.Table.from_pydict({**{n: selected[n] for n in selected.column_names}, **renamed}, schema)


def _build_quarantine_table(kind: str, rows: int, columns: dict[str, pa.ChunkedArray]) -> pa.Table:
    absent = {field.name: pa.nulls(rows, field.type) for field in tables.QUARANTINE}
    return pa.Table.from_pydict({**absent, "kind": [kind] * rows, **columns}, tables.QUARANTINE)


def count_records(records: pa.Table, failures: pa.ChunkedArray) -> Counter[str]:
    """Count the decisions of ``audit/examples``, and the reasons of ``failures``."""
    duplicates = records.filter(pc.equal(records["decision"], DUPLICATE))
    earlier = records.filter(pc.is_valid(records["earlier_run"]))
    columns: Iterable[tuple[str, pa.ChunkedArray]] = (
        ("", records["decision"]),
        ("duplicate/", duplicates["split"]),
        ("duplicate_earlier/", earlier["split"]),
        ("quarantined/", failures.drop_null()),
    )
    return Counter(f"{prefix}{value}" for prefix, values in columns for value in values.to_pylist())
