"""Segment: documents into points, and the digests by which each distinct text is detected once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from redactory.dedup import DuplicatePlan, write_digests
from redactory.detectors import languages_of
from redactory.foundation.reports import StageReport
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.segment import Segment, segmenter
from redactory.pipelines.work import REJECTED, Job, point_id
from redactory.redaction import read_part, write_part
from redactory.redaction.shards import CLASS

SAMPLED = 200
"""Documents of a partition, or a few more, whose language is looked at."""


def segment_part(job: Job, partition: int) -> StageReport:
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
