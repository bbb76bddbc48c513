"""Spread: what was found in a text that occurs again, to each point that has it.

One barrier, by hash range: if each partition looked its repeated texts up where they were detected, it
would read nearly every earlier partition, and the time would grow with the square of the corpus.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from redactory.dedup import DuplicatePlan, ranges_of
from redactory.detectors import Detection, Detector, DetectSettings, TextDetector
from redactory.foundation.progress import StageReport
from redactory.pipelines.work import DETECTED, PARTITION_BITS, Job
from redactory.redaction import read_between, read_part, write_part

GROUP_ROWS = 2_048
"""Rows that are read at once of a table of which a part is looked for."""


def spread_range(job: Job, partitions: int, number: int) -> StageReport:
    """Write what was found in the repeated texts of one hash range, by the points that repeat them.

    Holds the pairs of the range's plan and the rows of its texts and repeats: about 100 bytes a row.
    """
    pairs = np.load(job.range("repeated-texts", number))
    found = _found(job, number, np.unique(pairs["first"]))
    owners = found["point_id"].to_numpy()
    begin, end = (np.searchsorted(owners, pairs["first"], side) for side in ("left", "right"))
    counts = end - begin
    # the rows of each pair's first point, one pair after the other: in the order of the points that repeat
    places = np.arange(counts.sum()) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
    rows = found.take(pa.array(places))
    ids = pa.array(np.repeat(pairs["id"], counts), pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("point_id"), "point_id", ids)
    write_part(job.spread(number), rows, group_rows=GROUP_ROWS)
    return StageReport("spread")


def _found(job: Job, number: int, firsts: NDArray[np.int64]) -> pa.Table:
    """The rows of the points ``firsts``, by point: those of one hash range in each partition."""
    tables = [DETECTED.empty_table()]
    bounds = np.flatnonzero(np.diff(firsts >> PARTITION_BITS, prepend=-1))
    for mine in np.split(firsts, bounds)[1:]:
        partition = int(mine[0]) >> PARTITION_BITS
        rows = read_between(job.part("found", partition), "range", number, number)
        wanted = np.isin(rows["point_id"].to_numpy(), mine)
        tables.append(rows.filter(pa.array(wanted)))
    return pa.concat_tables(tables).combine_chunks()


# Detect: each distinct text of the corpus once, in the partition that holds it first.


HEARD_EVERY = 64
"""Texts between two words of progress; their spans are then packed."""
Row = tuple[object, ...]


def detector_of(job: Job) -> TextDetector:
    """What detects in this job; engines are loaded once a process, configuration and state of its files."""
    return job.detector or loaded(job.config.detect.model_dump_json(), *job.policies)


def detect_part(job: Job, partitions: int, partition: int) -> StageReport:
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
