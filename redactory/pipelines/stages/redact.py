"""Redact: mask and route each point by the spans of its text, wherever that text was detected."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from redactory.dedup import DuplicatePlan, write_digests
from redactory.detectors import Detection, Span
from redactory.foundation.reports import StageReport
from redactory.pipelines.stages.fate_digests import fate_digests, users_of
from redactory.pipelines.work import PARTITION_BITS, REDACTED, Job
from redactory.redaction import Fate, ValueDigests, read_part, route, write_part
from redactory.redaction.shards import SPANS

BINS = 20
"""Bins of the score histograms in the report."""


def redact_part(job: Job, partition: int) -> StageReport:
    """Write the fate, the redacted text, the ledger's spans and the digests of one partition's points."""
    points = read_part(job.part("points", partition))
    ids, texts = points["point_id"].to_numpy(), points["text"].to_pylist()
    owners = DuplicatePlan(job.ranges("repeated-texts")).first_of(ids)
    detections = _detections(job, owners)
    fates = [route(text, detections[owner]) for text, owner in zip(texts, owners.tolist(), strict=True)]
    users = users_of(points) if job.config.dedup.scope == "user" else None
    digests, ranks = fate_digests(job.key, job.config.dedup, ids.tolist(), fates, users)
    write_digests(job.digests("redacted-digests", partition), digests, ids, ranks)
    rows = zip(ids.tolist(), texts, owners.tolist(), strict=True)
    ledger = _ledger(ValueDigests(job.key), ((i, t, detections[o]) for i, t, o in rows))
    write_part(job.run.spans / job.part("", partition).name, ledger)
    write_part(job.part("redacted", partition), _table(ids, fates))
    return StageReport("redact", _counts(fates, (detections[o] for o in owners.tolist())))


def _detections(job: Job, owners: NDArray[np.int64]) -> dict[int, Detection]:
    """The detection of each owner, read from the partition that detected it."""
    wanted = np.unique(owners)
    spans: dict[int, dict[str, list[Span]]] = defaultdict(lambda: {"strict": [], "conservative": []})
    failures: dict[int, str] = {}
    for partition in np.unique(wanted >> PARTITION_BITS).tolist():
        mine = pa.array(wanted[(wanted >> PARTITION_BITS) == partition])
        for point, start, end, label, score, detector, policy in _rows_of(job, "found", partition, mine):
            spans[point][policy].append(Span(start, end, label, score, detector))
        failures.update(dict(_rows_of(job, "failures", partition, mine)))
    nothing: dict[str, list[Span]] = {"strict": [], "conservative": []}
    return {
        point: Detection(
            tuple(spans.get(point, nothing)["strict"]),
            tuple(spans.get(point, nothing)["conservative"]),
            failures.get(point),
        )
        for point in wanted.tolist()
    }


def _rows_of(job: Job, table: str, partition: int, ids: pa.Array) -> Iterator[Any]:
    rows = read_part(job.part(table, partition))
    rows = rows.filter(pc.is_in(rows["point_id"], value_set=ids))
    return zip(*(column.to_pylist() for column in rows.columns), strict=True) if rows.num_rows else iter(())


def _ledger(values: ValueDigests, rows: Iterator[tuple[int, str, Detection]]) -> pa.Table:
    """The text-free span ledger: offsets, labels, scores and keyed digests of the masked values."""
    columns: dict[str, list[object]] = {name: [] for name in SPANS.names}
    known: dict[str, tuple[bytes, int]] = {}
    for point, text, detection in rows:
        for policy, spans in (("strict", detection.strict), ("conservative", detection.conservative)):
            for span in spans:
                digest, tokens = None, None
                if policy == "strict":
                    value = text[span.start : span.end]
                    if value not in known:
                        known[value] = values.digest(value)
                    digest, tokens = known[value]
                for name, item in zip(SPANS.names, (point, *span, policy, digest, tokens), strict=True):
                    columns[name].append(item)
    return pa.table({name: pa.array(columns[name], SPANS.field(name).type) for name in SPANS.names}, SPANS)


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


def _counts(fates: list[Fate], detections: Iterator[Detection]) -> Counter[str]:
    counts = Counter({"masks": sum(f.masks for f in fates)})
    for fate in fates:
        counts.update(f"reason/{reason}" for reason in fate.reasons)
    for detection in detections:
        for policy, spans in (("strict", detection.strict), ("conservative", detection.conservative)):
            for span in spans:
                counts[
                    f"hit/{policy}/{span.detector}/{span.label}/{min(int(span.score * BINS), BINS - 1)}"
                ] += 1
    return counts
