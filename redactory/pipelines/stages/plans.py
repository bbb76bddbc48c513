"""The three barriers: repeated documents, repeated texts, repeated redacted texts."""

from __future__ import annotations

from collections import Counter

from redactory.dedup import plan_range
from redactory.foundation.reports import StageReport
from redactory.pipelines.work import Job


def plan_documents(job: Job, partitions: int, number: int) -> StageReport:
    """Find documents whose id an earlier one has, in one hash range."""
    return _plan(job, "document-ids", "repeated-documents", partitions, number)


def plan_texts(job: Job, partitions: int, number: int) -> StageReport:
    """Find texts that occurred before, in one hash range: each distinct text is detected once."""
    return _plan(job, "text-digests", "repeated-texts", partitions, number)


def plan_duplicates(job: Job, partitions: int, number: int) -> StageReport:
    """Find redacted texts that an earlier point of their side has, in one hash range (rule S1)."""
    return _plan(job, "redacted-digests", "duplicates", partitions, number)


def _plan(job: Job, table: str, plan: str, partitions: int, number: int) -> StageReport:
    files = [job.digests(table, partition) for partition in range(partitions)]
    repeats = plan_range(files, number, job.range(plan, number))
    return StageReport(plan, Counter({"repeats": repeats}))
