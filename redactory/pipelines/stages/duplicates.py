"""Which point stands for which, by the plans of every mode; the steps that make those plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from redactory.dedup import DuplicatePlan
from redactory.dedup.earlier import NOBODY, earlier_of
from redactory.dedup.near import NEAR_RANGES
from redactory.foundation.reports import StageReport
from redactory.pipelines.stages import earlier, near, plans
from redactory.pipelines.work import Job
from redactory.redaction import PRIVATE, PUBLIC

Ids = NDArray[np.int64]


class DedupStep(NamedTuple):
    """One stage of deduplication: ``task(job, partitions, number)`` for each of ``numbers`` numbers."""

    name: str
    task: Callable[[Job, int, int], StageReport]
    numbers: int
    unit: str


def dedup_steps(job: Job, partitions: int) -> Iterator[DedupStep]:
    """The stages between redact and shard that the settings of ``job`` need, in order."""
    settings = job.config.dedup
    modes = settings.modes()
    # with nothing dropped, a text that occurs a million times is still looked for across the split once
    if modes & plans.PLANNED or (settings.across and "none" in modes):
        if plans.screened(settings):
            yield DedupStep("screen redacted texts", plans.screen_redacted, 1, "filters")
        yield DedupStep("dedup", plans.plan_duplicates, job.hash_ranges, "ranges")
    if "bloom" in modes:
        yield DedupStep("dedup in one pass", plans.pass_side, len(plans.SIDES), "sides")
    if "minhash" in modes or settings.across:
        yield DedupStep("sign", near.sign_part, partitions, "partitions")
        yield DedupStep("compare", near.compare_range, NEAR_RANGES, "ranges")
    if settings.index and modes & earlier.BY_DIGEST:
        yield DedupStep("recall", earlier.recall_part, partitions, "partitions")
    if settings.index and "minhash" in modes:
        yield DedupStep("recall near", earlier.recall_near, NEAR_RANGES, "ranges")
    if "minhash" in modes:
        yield DedupStep("group", near.join_all, 1, "plans")
        yield DedupStep("choose", near.choose, NEAR_RANGES, "ranges")


def first_points(job: Job, partition: int, redacted: pa.Table) -> Ids:
    """For each point of a partition the point that stands for it; itself, or ``plans.UNKNOWN``.

    A point that repeats an earlier run is given below ``UNKNOWN`` (:func:`earlier_places`).
    """
    first = near.distinct_points(job, partition, redacted)
    settings = job.config.dedup
    for side in (PUBLIC, PRIVATE):
        if settings.mode_of(side) == "minhash":
            mine = np.array(redacted["side"].to_pylist(), object) == side
            plan = DuplicatePlan(near.near_ranges(job, "near-duplicates"))
            recalled = [] if job.index is None else near.near_ranges(job, "near-earlier")
            places = earlier_of(recalled, first[mine])
            first[mine] = _or_earlier(places, plan.first_of_any(first[mine]))
    if job.index is not None and settings.modes() & earlier.BY_DIGEST:
        ids = redacted["point_id"].to_numpy()
        first = _or_earlier(earlier_of([job.digests("earlier", partition)], ids), first)
    return first


def earlier_places(first: Ids) -> Ids:
    """The places of the earlier runs, among those that the index was opened with, that points repeat.

    ``NOBODY`` where a point repeats none.
    """
    return np.where(first < plans.UNKNOWN, plans.UNKNOWN - 1 - first, NOBODY)


def _or_earlier(places: Ids, first: Ids) -> Ids:
    """Below ``plans.UNKNOWN`` where a point repeats an earlier run, which no point of this one stands for."""
    return np.where(places == NOBODY, first, plans.UNKNOWN - 1 - places)
