"""Ingest: the one sequential stage; it cuts the input into partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from redactory.dedup import DuplicatePlan, write_digests
from redactory.detectors import languages_of
from redactory.foundation.errors import CheckFailed, some
from redactory.foundation.progress import Progress, StageReport
from redactory.pipelines.curated_hints import rejected_as
from redactory.pipelines.readers import Document, Rejection, Source, read_documents
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.segment import Segment, segmenter
from redactory.pipelines.work import DOCUMENTS, REJECTED, Job, point_id
from redactory.redaction import read_part, write_part
from redactory.redaction.shards import CLASS

_SHARE_CHECK_ROWS = 1_000


@dataclass
class _Partition:
    documents: list[Document] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    bytes: int = 0

    def add(self, entry: Document | Rejection) -> None:
        if isinstance(entry, Document):
            self.documents.append(entry)
            self.bytes += len(entry.text)
        else:
            self.rejections.append(entry)
            self.bytes += len(entry.content)


def ingest(job: Job, sources: list[Source], progress: Progress) -> Iterator[StageReport]:
    """Read the whole input and commit one partition after the other; a report each.

    A partition is closed at a fixed number of documents or of bytes, so the cut depends on the input
    and the configuration alone.  Raises ``CheckFailed`` once more than the allowed share of rows is
    rejected (judged from the first thousand rows on, and at the end), and for a table no row of which can
    be used, and for files no row of all of which can: other files than were meant, or other columns.  What a
    night adds to a file, and a quarantine that is tried again, are judged by whoever asked for them.
    """
    limits = job.config.partition
    current, number, rows, rejected = _Partition(), 0, 0, Counter[str]()
    for source in sources:
        before, bad = rows, Counter[str]()
        for entry in read_documents(source, job.config.input):
            current.add(entry)
            rows += 1
            bad.update([entry.reason] if isinstance(entry, Rejection) else [])
            if (
                len(current.documents) + len(current.rejections) >= limits.documents
                or current.bytes >= limits.bytes
            ):
                yield _commit(job, number, current)
                current, number = _Partition(), number + 1
                progress("ingest", rows, None, "rows")
                if rows >= _SHARE_CHECK_ROWS:
                    _check_share(job, rows, rejected.total() + bad.total())
        rejected += bad
        if source.format != "text" and _is_file(source):
            _check_usable(source.name, rows - before, bad)
    if current.documents or current.rejections or number == 0:
        yield _commit(job, number, current)
    progress("ingest", rows, rows, "rows")
    _check_share(job, rows, rejected.total())
    if all(map(_is_file, sources)):
        _check_usable("the input", rows, rejected)


def _commit(job: Job, number: int, partition: _Partition) -> StageReport:
    documents, rejections = partition.documents, partition.rejections
    purpose = job.key.purpose("document")
    write_digests(
        job.digests("document-ids", number),
        [job.key.text_digest(purpose, d.doc_id.encode()) for d in documents],
        np.arange(len(documents), dtype=np.int64) + point_id(number, 0),
    )
    write_part(job.part("rejected", number), _table(rejections, REJECTED))
    write_part(job.part("documents", number), _table(documents, DOCUMENTS))
    counts = Counter({"rows": len(documents) + len(rejections)})
    counts.update({f"rejected/{reason}": n for reason, n in Counter(r.reason for r in rejections).items()})
    read = Counter(d.source for d in documents)
    read.update(r.source for r in rejections)
    counts.update({f"source/{source}": n for source, n in read.items()})
    return StageReport("ingest", counts)


def _table(entries: Sequence[Document | Rejection], schema: pa.Schema) -> pa.Table:
    """``entries`` as a table: they have a field for each column of ``schema``."""
    columns = [[getattr(entry, field.name) for entry in entries] for field in schema]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _is_file(source: Source) -> bool:
    return not source.slices and not source.url.startswith("memory:")


def _check_usable(name: str, rows: int, bad: Counter[str]) -> None:
    if rows and bad.total() == rows:
        raise CheckFailed(
            f"{name}: none of its {some(rows, 'row')} can be used. {rejected_as(*bad.most_common(1)[0])} "
            "'redactory curate --dry-run' shows the first bad rows"
        )


def _check_share(job: Job, rows: int, rejected: int) -> None:
    allowed = job.config.input.max_rejected_share
    if rows and rejected / rows > allowed:
        raise CheckFailed(
            f"{rejected} of {rows} rows were rejected, more than input.max_rejected_share: {allowed} allows; "
            "'redactory curate --dry-run' shows the first bad rows"
        )


# Segment: documents into points, and the digests by which each distinct text is detected once.


SAMPLED = 200
"""Documents of a partition, or a few more, whose language is looked at."""


def segment_part(job: Job, partitions: int, partition: int) -> StageReport:
    """Cut the documents of one partition; a document whose id was seen before is rejected here."""
    documents = read_part(job.part("documents", partition))
    ids = np.arange(documents.num_rows, dtype=np.int64) + point_id(partition, 0)
    own = DuplicatePlan(job.ranges("repeated-documents")).first_of(ids) == ids
    kept, repeated = documents.filter(pa.array(own)), documents.filter(pa.array(~own))
    points = _points(job, partition, kept)
    purpose = job.key.purpose("text")
    write_digests(
        job.digests("text-digests", partition),
        [job.key.text_digest(purpose, text.encode()) for text in points["text"].to_pylist()],
        points["point_id"].to_numpy(),
    )
    write_part(job.part("repeated", partition), _rejected(repeated))
    write_part(job.part("points", partition), points)
    counts = Counter({"documents": kept.num_rows, "points": points.num_rows})
    if repeated.num_rows:
        counts[f"rejected/{DUPLICATE_ID}"] = repeated.num_rows
    sampled = kept["text"].to_pylist()[:: max(1, kept.num_rows // SAMPLED)]
    counts.update(f"language/{language}" for language in languages_of(sampled))
    return StageReport("segment", counts)


def _points(job: Job, partition: int, documents: pa.Table) -> pa.Table:
    cut = segmenter(job.config.segment)
    segments: list[Segment] = []
    # of each point, which document it is of
    rows: list[int] = []
    for row, text in enumerate(documents["text"].to_pylist()):
        found = cut(text)
        segments += found
        rows += [row] * len(found)
    owners = documents.select(["doc_id", "user_id", "label"]).take(pa.array(rows, pa.int64()))
    prefix, text, suffix, speaker = zip(*segments, strict=True) if segments else ((), (), (), ())
    columns = {
        "point_id": np.arange(len(rows), dtype=np.int64) + point_id(partition, 0),
        "doc_id": owners["doc_id"],
        "user_id": owners["user_id"],
        CLASS: owners["label"],
        "prefix": prefix,
        "text": text,
        "suffix": suffix,
        "speaker": speaker,
    }
    schema = job.points_schema
    return pa.table({name: columns[name] for name in schema.names}, schema)


def _rejected(repeated: pa.Table) -> pa.Table:
    """Documents as rejected rows."""
    columns = {
        "reason": pa.array([DUPLICATE_ID] * repeated.num_rows, pa.string()),
        "source": repeated["source"],
        "row": repeated["row"],
        "content": pc.cast(repeated["text"], pa.binary()),
    }
    return pa.table(columns, REJECTED)
