"""The barriers over digests: repeated documents, repeated texts, repeated redacted texts."""

from __future__ import annotations

from collections import Counter

import numpy as np

from redactory.dedup import DedupSettings, plan_range
from redactory.dedup.bloom import SCREEN_ERROR_RATE, BloomFilter, OnePass, repeated_digests
from redactory.dedup.bloom_file import BloomParameters, load_bloom, save_bloom
from redactory.dedup.digests import as_numbers, write_entries
from redactory.foundation.reports import StageReport
from redactory.pipelines.work import Job
from redactory.redaction import PRIVATE, PUBLIC, read_part

SIDES = (PUBLIC, PRIVATE)
PLANNED = frozenset({"exact", "folded", "minhash"})
"""Modes that begin with a plan over digests."""
UNKNOWN = -1
"""Stands for a dropped point where nobody knows which does: a Bloom filter does not say what it repeats."""
_TEXTS, _REDACTED = "text-digests", "redacted-digests"


def plan_documents(job: Job, partitions: int, number: int) -> StageReport:
    """Find documents whose id an earlier one has, in one hash range."""
    return _plan(job, "document-ids", "repeated-documents", partitions, number)


def plan_texts(job: Job, partitions: int, number: int) -> StageReport:
    """Find texts that occurred before, in one hash range: each distinct text is detected once."""
    return _plan(job, _TEXTS, "repeated-texts", partitions, number, screened(job.config.dedup))


def plan_duplicates(job: Job, partitions: int, number: int) -> StageReport:
    """Find redacted texts (or, folded, their keys) that another point of their side stands for (S1, S2)."""
    return _plan(job, _REDACTED, "duplicates", partitions, number, screened(job.config.dedup))


def screen_texts(job: Job, partitions: int, number: int) -> StageReport:
    """Make the filter of the texts that may repeat; the others skip the digest table."""
    return _screen(job, _TEXTS, partitions)


def screen_redacted(job: Job, partitions: int, number: int) -> StageReport:
    """Make the filter of the redacted texts that may repeat; the others skip the digest table."""
    return _screen(job, _REDACTED, partitions)


def pass_side(job: Job, partitions: int, number: int) -> StageReport:
    """Mode ``bloom``: drop one side's repeats in a single pass over its points, in fixed memory.

    Each side has a filter of its own: what is public must not depend on private text.
    """
    side, settings = SIDES[number], job.config.dedup
    if settings.mode_of(side) != "bloom":
        return StageReport("dedup in one pass")
    sizes = [len(np.load(job.digests(_REDACTED, p), mmap_mode="r")) for p in range(partitions)]
    one_pass = OnePass(settings.bloom.capacity or sum(sizes), settings.bloom.error_rate)
    dropped = 0
    for partition in range(partitions):
        columns = ["point_id", "side", "failure"]
        points = read_part(job.part("redacted", partition), columns=columns).to_pydict()
        mine = [s == side and f is None for s, f in zip(points["side"], points["failure"], strict=True)]
        entries = np.load(job.digests(_REDACTED, partition))
        entries = entries[np.argsort(entries["id"], kind="stable")][np.array(mine, bool)]
        repeats = np.array(one_pass.repeats(as_numbers(entries)), bool)
        write_entries(job.passed(side, partition), np.array(entries["id"][repeats]))
        dropped += int(repeats.sum())
    facts = {
        "capacity": one_pass.filter.capacity,
        "added": one_pass.added,
        "dropped": dropped,
        "new": one_pass.tracked_new,
        "lost": one_pass.tracked_lost,
    }
    return StageReport("dedup in one pass", Counter({f"bloom/{side}/{n}": v for n, v in facts.items()}))


def screened(settings: DedupSettings) -> bool:
    """Whether a Bloom filter stands in front of the plans."""
    return settings.filter == "bloom"


def _plan(
    job: Job, table: str, plan: str, partitions: int, number: int, screened: bool = False
) -> StageReport:
    files = [job.digests(table, partition) for partition in range(partitions)]
    repeated = _filter(job, table, partitions) if screened else None
    repeats = plan_range(files, number, job.range(plan, number), repeated, job.hash_ranges)
    return StageReport(plan, Counter({"repeats": repeats}))


def _screen(job: Job, table: str, partitions: int) -> StageReport:
    repeated = repeated_digests([job.digests(table, partition) for partition in range(partitions)])
    parameters = _parameters(job, table, repeated.capacity)
    save_bloom(job.filter(table), repeated, parameters, added=round(repeated.size()))
    return StageReport(f"screen {table}")


def _filter(job: Job, table: str, partitions: int) -> BloomFilter:
    digests = sum(len(np.load(job.digests(table, p), mmap_mode="r")) for p in range(partitions))
    return load_bloom(job.filter(table), _parameters(job, table, digests))


def _parameters(job: Job, table: str, capacity: int) -> BloomParameters:
    return BloomParameters(
        capacity, SCREEN_ERROR_RATE, table, job.key.fingerprint, "both", job.config.curation_hash()
    )
