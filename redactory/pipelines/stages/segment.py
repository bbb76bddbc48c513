"""Segment: documents into points, and the digests by which each distinct text is detected once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from redactory.dedup import DuplicatePlan, write_digests
from redactory.foundation.reports import StageReport
from redactory.pipelines.readers.documents import DUPLICATE_ID
from redactory.pipelines.segment import segmenter
from redactory.pipelines.work import REJECTED, Job, point_id
from redactory.redaction import read_part, write_part
from redactory.redaction.shards import CLASS


def segment_part(job: Job, partition: int) -> StageReport:
    """Cut the documents of one partition; a document whose id was seen before is rejected here."""
    documents = read_part(job.part("documents", partition)).to_pylist()
    ids = np.arange(len(documents), dtype=np.int64) + point_id(partition, 0)
    first = DuplicatePlan(job.ranges("repeated-documents")).first_of(ids)
    repeated = [d for d, own, seen in zip(documents, ids, first, strict=True) if own != seen]
    kept = [d for d, own, seen in zip(documents, ids, first, strict=True) if own == seen]
    points = _points(job, partition, kept)
    purpose = job.key.purpose("text")
    write_digests(
        job.digests("text-digests", partition),
        [job.key.text_digest(purpose, p["text"].encode()) for p in points],
        np.array([p["point_id"] for p in points], dtype=np.int64),
    )
    rejected = [
        {"reason": DUPLICATE_ID, "source": d["source"], "row": d["row"], "content": d["text"].encode()}
        for d in repeated
    ]
    write_part(job.part("repeated", partition), pa.Table.from_pylist(rejected, REJECTED))
    write_part(job.part("points", partition), pa.Table.from_pylist(points, job.points_schema))
    counts = Counter({"documents": len(kept), "points": len(points)})
    if repeated:
        counts[f"rejected/{DUPLICATE_ID}"] = len(repeated)
    return StageReport("segment", counts)


def _points(job: Job, partition: int, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cut = segmenter(job.config.segment)
    points: list[dict[str, Any]] = []
    for document in documents:
        for segment in cut(document["text"]):
            points.append(
                {
                    "point_id": point_id(partition, len(points)),
                    "doc_id": document["doc_id"],
                    "user_id": document["user_id"],
                    CLASS: document.get("label"),
                    **segment._asdict(),
                }
            )
    return points
