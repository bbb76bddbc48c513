"""Which point stands for which, by the plans of every mode; the steps that make those plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from redactory.dedup import DedupSettings, DuplicatePlan
from redactory.dedup.earlier_near import copy_signed, near_earlier
from redactory.dedup.index import (
    NOBODY,
    IndexFolder,
    SeenFiles,
    distinct,
    earlier_of,
    first_that_saw,
    write_earlier,
    write_seen,
)
from redactory.dedup.near import NEAR_RANGES
from redactory.dedup.plan import (
    PIECES,
    SCREEN_ERROR_RATE,
    WHOLE,
    BloomParameters,
    Entries,
    read_range,
    write_entries,
)
from redactory.dedup.signatures import SignedFiles
from redactory.foundation.errors import RunStateError
from redactory.foundation.progress import StageReport
from redactory.pipelines.stages import near, plans
from redactory.pipelines.stages.near import NUMBERS
from redactory.pipelines.stages.plans import purpose_of
from redactory.pipelines.work import Job, OpenIndex
from redactory.redaction import PRIVATE, PUBLIC, read_part

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
    if settings.index and modes & BY_DIGEST:
        yield DedupStep("recall", recall_part, partitions, "partitions")
    if settings.index and "minhash" in modes:
        yield DedupStep("recall near", recall_near, NEAR_RANGES, "ranges")
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
    if job.index is not None and settings.modes() & BY_DIGEST:
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


# What repeats an earlier run of the index: looked up by digest, or compared by bands; side by side.


BY_DIGEST = frozenset({"exact", "folded", "bloom"})
"""Modes that know a text of an earlier run by its digest; ``minhash`` compares, ``none`` does not ask."""


def recall_part(job: Job, partitions: int, number: int) -> StageReport:
    """Look one partition's texts up among what earlier runs saw, and write down what this one saw."""
    index = opened(job)
    columns = ["point_id", "side", "failure"]
    points = read_part(job.part("redacted", number), columns=columns).to_pydict()
    sides = np.array(points["side"], object)
    fine = np.array([failure is None for failure in points["failure"]], bool)
    entries: Entries = np.load(job.digests("redacted-digests", number))
    # of each entry, in the order of digests, which row of the points it is: look-ups in order are the fastest
    row = np.argsort(np.argsort(entries["id"], kind="stable"), kind="stable")
    pairs: list[tuple[int, int]] = []
    for side in sides_in(job, BY_DIGEST):
        own = entries[(fine & (sides == side))[row]]
        write_entries(job.digests(f"seen-{side}", number), distinct([own]))
        with _there(index):
            files = [seen_files(job, side, e.folder, e.body["filters"][side]) for e in index.runs]
            first = first_that_saw(files, own)
        known = first != NOBODY
        pairs += zip(own["id"][known].tolist(), first[known].tolist(), strict=True)
    found = write_earlier(job.digests("earlier", number), pairs)
    return StageReport("recall", Counter({"repeats": found}))


def recall_near(job: Job, partitions: int, number: int) -> StageReport:
    """Find the texts that nearly duplicate one that an earlier run kept, in one range of the buckets."""
    index, near = opened(job), job.config.dedup.near
    files = [job.signed(partition) for partition in range(partitions)]
    first: dict[int, int] = {}
    counts: Counter[str] = Counter()
    for side in sides_in(job, frozenset({"minhash"})):
        for place, entry in enumerate(index.runs):
            with _there(index):
                theirs = [
                    signed_files(entry.folder, side, partition)
                    for partition in range(entry.body["partitions"])
                ]
                found, more = near_earlier(files, theirs, NUMBERS[side], number, near.threshold)
            counts.update(more)
            for point in found:
                first.setdefault(point, place)
    write_earlier(job.range("near-earlier", number), first.items())
    return StageReport("recall near", Counter({f"near/{name}": count for name, count in counts.items()}))


def opened(job: Job) -> OpenIndex:
    """The index of a run that has one."""
    if job.index is None:
        raise RunStateError("this run has no index (dedup.index)")
    return job.index


def sides_in(job: Job, modes: frozenset[str]) -> list[str]:
    """The sides that are deduplicated by one of ``modes``."""
    return [side for side in NUMBERS if job.config.dedup.mode_of(side) in modes]


def seen_files(job: Job, side: str, folder: Path, capacity: int) -> SeenFiles:
    """Where an entry holds the digests of one side; the filter is bound to key, side and policies."""
    settings = job.config.dedup
    alone = settings.mode_of(side) == "bloom"
    rate = settings.bloom.error_rate if alone else SCREEN_ERROR_RATE
    bound = BloomParameters(
        capacity, rate, purpose_of(settings, side), job.key.fingerprint, side, opened(job).policy
    )
    return SeenFiles(folder / f"{side}.bloom", bound, None if alone else folder / f"{side}.digests.npy")


def signed_files(folder: Path, side: str, partition: int) -> SignedFiles:
    """Where an entry holds the signed texts that one partition of its run kept on a side."""
    below = folder / f"near-{side}"
    buckets, rows, shingles = (
        below / f"part-{partition:05d}-{name}.npy" for name in ("buckets", "rows", "shingles")
    )
    return SignedFiles(buckets, rows, shingles)


@contextmanager
def _there(index: OpenIndex) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise gone(index.folder, "an entry") from None


def gone(index: IndexFolder, what: str) -> RunStateError:
    """What is told where an earlier run was forgotten that this run goes by."""
    return RunStateError(
        f"{index.root}: {what} that this run goes by was removed meanwhile (keep_runs, keep_days or "
        "redactory index prune), and without it the run would become another one: start a new run in another "
        "folder, and keep more runs in the index than are at work at a time"
    )


# What later runs shall know of this one: its entry of the index, all but the file that seals it.


def memory_steps(settings: DedupSettings, partitions: int) -> Iterator[DedupStep]:
    """The stages after shard that an index needs."""
    if settings.index and settings.modes() & BY_DIGEST:
        yield DedupStep("remember", remember_texts, 1, "entries")
    if settings.index and "minhash" in settings.modes():
        yield DedupStep("remember near", remember_signed, partitions, "partitions")


def remember_texts(job: Job, partitions: int, number: int) -> StageReport:
    """Write the digests of all texts that a side has, kept or not, and the filter in front of them.

    Of all of them: with those alone that were kept, and old entries removed, one point exchanged could
    exchange two texts of a later run (``docs/guarantees.md``, "Earlier runs").
    """
    counts: Counter[str] = Counter()
    for side in sides_in(job, BY_DIGEST):
        files = [job.digests(f"seen-{side}", partition) for partition in range(partitions)]
        held = sum(len(np.load(path, mmap_mode="r")) for path in files)
        ranges = [
            job.range(f"seen-{side}", n) for n in range(job.hash_ranges * (PIECES if held > WHOLE else 1))
        ]
        for n, path in enumerate(ranges):
            seen = distinct([read_range(one, n, len(ranges)) for one in files])
            write_entries(path, seen)
            counts[f"index/{side}"] += len(seen)
        out = seen_files(job, side, opened(job).draft, capacity_of(job, side, counts))
        write_seen(out, ranges, counts[f"index/{side}"])
    return StageReport("remember", counts)


def remember_signed(job: Job, partitions: int, number: int) -> StageReport:
    """Copy what near-duplicates are found by, of the texts that one partition keeps."""
    redacted = read_part(job.part("redacted", number))
    ids = redacted["point_id"].to_numpy()
    kept = ids[first_points(job, number, redacted) == ids]
    counts: Counter[str] = Counter()
    for side in sides_in(job, frozenset({"minhash"})):
        out = signed_files(opened(job).draft, side, number)
        counts[f"index/{side}"] += copy_signed(job.signed(number), kept, NUMBERS[side], out)
    return StageReport("remember near", counts)


def capacity_of(job: Job, side: str, counts: Counter[str]) -> int:
    """How many texts a side's filter is made for."""
    settings = job.config.dedup
    asked = settings.bloom.capacity if settings.mode_of(side) == "bloom" else None
    return max(1, asked or counts[f"index/{side}"])
