"""What later runs shall know of this one: its entry of the index, all but the file that seals it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from redactory.dedup import DedupSettings
from redactory.dedup.digests import read_range, write_entries
from redactory.dedup.earlier import distinct, write_seen
from redactory.dedup.earlier_near import copy_signed
from redactory.dedup.plan import PIECES, WHOLE
from redactory.foundation.reports import StageReport
from redactory.pipelines.stages.duplicates import DedupStep, first_points
from redactory.pipelines.stages.earlier import BY_DIGEST, opened, seen_files, sides_in, signed_files
from redactory.pipelines.stages.near import NUMBERS
from redactory.pipelines.work import Job
from redactory.redaction import read_part


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
