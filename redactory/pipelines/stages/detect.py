"""Detect: each distinct text of the corpus once, in the partition that holds it first."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from redactory.dedup import DuplicatePlan, ranges_of
from redactory.detectors import Detection, Detector, DetectSettings, TextDetector
from redactory.foundation.reports import StageReport
from redactory.pipelines.stages.spread import GROUP_ROWS
from redactory.pipelines.work import DETECTED, Job
from redactory.redaction import read_part, write_part

HEARD_EVERY = 64
"""Texts between two words of progress; their spans are then packed."""
Row = tuple[object, ...]


def detector_of(job: Job) -> TextDetector:
    """What detects in this job; engines are loaded once a process, configuration and state of its files."""
    return job.detector or loaded(job.config.detect.model_dump_json(), *job.policies)


def detect_part(job: Job, partition: int) -> StageReport:
    """Detect the texts that no earlier point has; what is found is written by hash range, then by point."""
    points = read_part(job.part("points", partition), columns=["point_id", "text"])
    ids = points["point_id"].to_numpy()
    own = DuplicatePlan(job.ranges("repeated-texts")).first_of(ids) == ids
    texts = points["text"].filter(pa.array(own)).to_pylist()
    ranges = _ranges(job, partition)[own].tolist()
    found: list[Row] = []
    tables = [DETECTED.empty_table()]
    detections = zip(ranges, ids[own].tolist(), detector_of(job).detect(texts), strict=True)
    for done, (number, point, detection) in enumerate(detections, 1):
        found += rows_of(number, point, detection)
        if done % HEARD_EVERY == 0 or done == len(texts):
            # as Python objects, a partition's spans would scatter over the heap and keep it large
            tables.append(table_of(found))
            found = []
            job.listener(f"detect, partition {partition}", done, len(texts), "texts")
    rows = pa.concat_tables(tables)
    rows = rows.take(pa.array(np.argsort(rows["range"].to_numpy(), kind="stable")))
    write_part(job.part("found", partition), rows, group_rows=GROUP_ROWS)
    characters = sum(map(len, texts))
    return StageReport("detect", Counter({"texts": len(texts), "characters": characters}))


def rows_of(number: int, point: int, detection: Detection) -> Iterator[Row]:
    """The rows of ``DETECTED`` that a detection is written as."""
    if detection.failure is not None:
        yield (number, point, *[None] * 6, detection.failure)
    for policy, spans in (("strict", detection.strict), ("conservative", detection.conservative)):
        for span in spans:
            yield (number, point, *span, policy, None)


def table_of(rows: list[Row]) -> pa.Table:
    """Rows of :func:`rows_of` as a table."""
    columns = zip(*rows, strict=True) if rows else [[] for _ in DETECTED]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, DETECTED, strict=True)]
    return pa.table(arrays, schema=DETECTED)


def _ranges(job: Job, partition: int) -> NDArray[np.int64]:
    """The hash range of the text of each point of a partition."""
    entries = np.load(job.digests("text-digests", partition))
    return ranges_of(entries, job.hash_ranges)[np.argsort(entries["id"])]


@functools.lru_cache(maxsize=1)
def loaded(settings: str, *policies: str) -> Detector:
    """The detector of detection settings, as JSON; another one for other hashes of the policies.

    The settings name models and lists by their paths alone: what lies there may have changed since the last
    run of this process.
    """
    return Detector(DetectSettings.model_validate_json(settings))
