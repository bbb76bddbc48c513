"""Detect: each distinct text of the corpus once, in the partition that holds it first."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator

import pyarrow as pa

from redactory.dedup import DuplicatePlan
from redactory.detectors import Detection, Detector, DetectSettings, TextDetector
from redactory.foundation.reports import StageReport
from redactory.pipelines.work import FAILURES, Job
from redactory.redaction import read_part, write_part
from redactory.redaction.shards import FOUND

HEARD_EVERY = 64
"""Texts between two words of progress; their spans are then packed."""


def detector_of(job: Job) -> TextDetector:
    """What detects in this job; engines are loaded once a process and configuration."""
    return job.detector or _loaded(job.config.detect.model_dump_json())


def detect_part(job: Job, partition: int) -> StageReport:
    """Detect the texts that no earlier point has."""
    points = read_part(job.part("points", partition), columns=["point_id", "text"])
    ids = points["point_id"].to_numpy()
    own = DuplicatePlan(job.ranges("repeated-texts")).first_of(ids) == ids
    texts = points["text"].filter(pa.array(own)).to_pylist()
    detections = detector_of(job).detect(texts)
    found: list[dict[str, object]] = []
    failures: list[dict[str, object]] = []
    tables = [FOUND.empty_table()]
    for done, (point, detection) in enumerate(zip(ids[own].tolist(), detections, strict=True), 1):
        if detection.failure is not None:
            failures.append({"point_id": point, "failure": detection.failure})
        found += _rows(point, detection)
        if done % HEARD_EVERY == 0 or done == len(texts):
            # as Python objects, a partition's spans would scatter over the heap and keep it large
            tables.append(pa.Table.from_pylist(found, FOUND))
            found = []
            job.listener(f"detect, partition {partition}", done, len(texts), "texts")
    write_part(job.part("failures", partition), pa.Table.from_pylist(failures, FAILURES))
    write_part(job.part("found", partition), pa.concat_tables(tables))
    characters = sum(map(len, texts))
    return StageReport("detect", Counter({"texts": len(texts), "characters": characters}))


def _rows(point: int, detection: Detection) -> Iterator[dict[str, object]]:
    policies: Iterable[tuple[str, Iterable[tuple[object, ...]]]] = (
        ("strict", detection.strict),
        ("conservative", detection.conservative),
    )
    for policy, spans in policies:
        for span in spans:
            start, end, label, score, detector = span
            yield {
                "point_id": point,
                "start": start,
                "end": end,
                "label": label,
                "score": score,
                "detector": detector,
                "policy": policy,
            }


@functools.lru_cache(maxsize=1)
def _loaded(settings: str) -> Detector:
    return Detector(DetectSettings.model_validate_json(settings))
