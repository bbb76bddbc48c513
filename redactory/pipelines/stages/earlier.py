"""What repeats an earlier run of the index: looked up by digest, or compared by bands; side by side.

Each side asks what earlier runs saw on that side: a private text never decides about a public one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from redactory.dedup.bloom import SCREEN_ERROR_RATE
from redactory.dedup.bloom_file import BloomParameters
from redactory.dedup.digests import Entries, write_entries
from redactory.dedup.earlier import NOBODY, SeenFiles, distinct, first_that_saw, write_earlier
from redactory.dedup.earlier_near import near_earlier
from redactory.dedup.index_folder import IndexFolder
from redactory.dedup.signed import SignedFiles
from redactory.foundation.errors import RunStateError
from redactory.foundation.reports import StageReport
from redactory.pipelines.stages.fate_digests import purpose_of
from redactory.pipelines.stages.near import NUMBERS
from redactory.pipelines.work import Job, OpenIndex
from redactory.redaction import read_part

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
