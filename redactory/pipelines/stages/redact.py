"""Redact: mask and route each point by the spans of its text, wherever that text was detected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from redactory.dedup import write_digests
from redactory.detectors import Detection, Span
from redactory.foundation.reports import StageReport
from redactory.pipelines.stages.fate_digests import fate_digests, users_of
from redactory.pipelines.work import REDACTED, Job
from redactory.redaction import Fate, ValueDigests, read_between, read_part, route, write_part
from redactory.redaction.shards import SPANS

BINS = 20
"""Bins of the score histograms in the report."""
NOTHING = Detection()


def redact_part(job: Job, partition: int) -> StageReport:
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
