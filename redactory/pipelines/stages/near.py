"""Near-duplicates, within each side and across the split: sign, compare, group, choose."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from redactory.dedup import DuplicatePlan
from redactory.dedup.earlier_near import choose_range
from redactory.dedup.near import (
    NEAR_RANGES,
    PRIVATE_SIDE,
    PUBLIC_SIDE,
    Comparison,
    compare_buckets,
    join_groups,
    nearest,
)
from redactory.dedup.signatures import Shingler, TextFacts, Words, banding_for, write_signed
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import StageReport
from redactory.pipelines.stages import plans
from redactory.pipelines.stages.plans import users_of
from redactory.pipelines.work import Job
from redactory.redaction import MASK, PRIVATE, PUBLIC, read_part

NUMBERS = {PUBLIC: PUBLIC_SIDE, PRIVATE: PRIVATE_SIDE}


def distinct_points(
    job: Job, partition: int, redacted: pa.Table, also: str | None = None
) -> NDArray[np.int64]:
    """As ``first_points``, before near-duplicates are dropped; mode ``also`` too goes by the plan here."""
    ids: NDArray[np.int64] = redacted["point_id"].to_numpy()
    sides = np.array(redacted["side"].to_pylist(), object)
    first, settings = ids.copy(), job.config.dedup
    by_plan = [side for side in NUMBERS if settings.mode_of(side) in plans.PLANNED | {also}]
    planned = np.isin(sides, by_plan)
    if planned.any():
        first = np.where(planned, DuplicatePlan(job.ranges("duplicates")).first_of(ids), ids)
    for side in NUMBERS:
        if settings.mode_of(side) == "bloom":
            first[np.isin(ids, np.load(job.passed(side, partition)))] = plans.UNKNOWN
    return first


def sign_part(job: Job, partitions: int, number: int) -> StageReport:
    """Write the buckets, rows and shingles of the distinct redacted texts of one partition."""
    settings = job.config.dedup
    redacted = read_part(job.part("redacted", number))
    wanted = [s for s in NUMBERS if settings.across or settings.mode_of(s) == "minhash"]
    own = distinct_points(job, number, redacted, also="none") == redacted["point_id"].to_numpy()
    own &= np.isin(np.array(redacted["side"].to_pylist(), object), wanted)
    own &= ~redacted["failure"].is_valid().to_numpy(zero_copy_only=False)
    kept = redacted.filter(pa.array(own))
    texts = kept["text"].to_pylist()
    facts = TextFacts(
        kept["point_id"].to_numpy(),
        np.array([NUMBERS[side] for side in kept["side"].to_pylist()], np.uint8),
        _groups(job, number, own),
        _hashes(job.key, "dedup/rank", texts),
    )
    sets = Shingler(job.key, settings.near.shingle, Words(MASK)).sets(texts)
    banding = banding_for(settings.near.threshold, settings.near.permutations)
    write_signed(job.signed(number), facts, sets, banding)
    return StageReport("sign", Counter({"signed": len(texts)}))


def compare_range(job: Job, partitions: int, number: int) -> StageReport:
    """Compare the texts that share a bucket of one hash range: within sides, and across the split."""
    settings = job.config.dedup
    asked = Comparison(
        settings.near.threshold,
        frozenset(n for side, n in NUMBERS.items() if settings.mode_of(side) == "minhash"),
        settings.across,
        job.range("near-pairs", number),
        job.range("near-across", number),
    )
    counts = compare_buckets([job.signed(partition) for partition in range(partitions)], number, asked)
    return StageReport("compare", Counter({f"near/{name}": count for name, count in counts.items()}))


def join_all(job: Job, partitions: int, number: int) -> StageReport:
    """Join the near pairs of all ranges to groups."""
    joined, largest = join_groups(near_ranges(job, "near-pairs"), near_ranges(job, "near-groups"))
    return StageReport("group", Counter({"near/grouped": joined, "near/largest_group": largest}))


def choose(job: Job, partitions: int, number: int) -> StageReport:
    """Choose which texts of each group stay."""
    files = [job.signed(partition) for partition in range(partitions)]
    threshold = job.config.dedup.near.threshold
    out = job.range("near-duplicates", number)
    # without an index nothing was recalled
    earlier = [] if job.index is None else near_ranges(job, "near-earlier")
    dropped = choose_range(files, job.range("near-groups", number), threshold, out, earlier)
    return StageReport("choose", Counter({"near/dropped": dropped}))


def near_ranges(job: Job, table: str) -> list[Path]:
    """All hash ranges of a table about near-duplicates."""
    return [job.range(table, number) for number in range(NEAR_RANGES)]


def across_rows(job: Job, records: pa.Table) -> list[dict[str, Any]]:
    """The released public points of a partition that nearly duplicate a private one, with one such."""
    if not job.config.dedup.across:
        return []
    public = records.select(["point_id", "released_id"]).filter(pc.equal(records["fate"], PUBLIC))
    released = dict(zip(*(column.to_pylist() for column in public.columns), strict=True))
    if not released:
        return []
    first, last = min(released), max(released)
    found = []
    for path in near_ranges(job, "near-across"):
        pairs = np.load(path, mmap_mode="r")
        low, high = np.searchsorted(pairs["public"], [first, last + 1])
        found.append(np.array(pairs[low:high]))
    return [
        {"point_id": p, "released_id": released[p], "private_point": q, "similarity": s}
        for p, q, s in nearest(np.concatenate(found)).tolist()
        if p in released
    ]


def _groups(job: Job, partition: int, own: NDArray[np.bool_]) -> NDArray[np.uint64]:
    if job.config.dedup.scope == "corpus":
        return np.zeros(int(own.sum()), np.uint64)
    points = read_part(job.part("points", partition), columns=["user_id", "doc_id"])
    return _hashes(job.key, "dedup/user", users_of(points.filter(pa.array(own))))


def _hashes(key: DigestKey, purpose: str, values: list[str]) -> NDArray[np.uint64]:
    subkey = key.purpose(purpose)
    digests = b"".join(key.text_digest(subkey, value.encode())[:8] for value in values)
    return np.frombuffer(digests, "<u8")
