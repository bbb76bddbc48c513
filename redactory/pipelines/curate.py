"""Curate: raw corpus in, audited shards out.

documents → points → (distinct texts) → spans → sides → (duplicates, per side) → shards → manifest
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redactory.dedup import RANGES
from redactory.detectors import TextDetector, policies_of, policy_record
from redactory.detectors.chosen import check_patterns
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import make_private_folder
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.records import RecordLog
from redactory.foundation.reports import StageReport, merge_reports
from redactory.pipelines import stages
from redactory.pipelines.config import Config
from redactory.pipelines.journal import Journal
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.maps import StageMap, Task, peak_memory_mb, processes
from redactory.pipelines.readers import Source, find_sources, fingerprint
from redactory.pipelines.release import finish, summary
from redactory.pipelines.sealed import sealed
from redactory.pipelines.segment import segmenter
from redactory.pipelines.work import Job
from redactory.redaction import RunFolder, is_finished


def curate(
    config: Given,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    stage_map: StageMap | None = None,
    detector: TextDetector | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Run one curation and return its summary (counts, seconds, where the run lies).

    ``resume`` goes on where an interrupted run stopped, starts where there is nothing, and returns at
    once where the run is finished.  Without it an existing run folder is refused (``RunStateError``).
    ``stage_map`` replaces the processes, ``detector`` the configured engines.
    """
    settings = load_config(config, output=output, workers=workers)
    run = RunFolder(Path(settings.output))
    if is_finished(run) and resume:
        return summary(run)
    check_output(run, resume)
    check_before_reading(settings)
    sources = find_sources(settings.input.path, settings.input.format)
    return sealed(run.state, _run, run, settings, sources, stage_map, detector, progress)


def check_output(run: RunFolder, resume: bool) -> None:
    """Refuse a folder that a new run would disturb (``RunStateError``)."""
    if resume:
        return
    if is_finished(run):
        raise RunStateError(f"{run.root} holds a finished run; give another output folder")
    # the orchestrator may have settled in state/ before the run begins
    if run.journal.exists() or (run.root.is_dir() and set(run.root.iterdir()) - {run.state}):
        raise RunStateError(
            f"{run.root} is not empty: resume the run in it (--resume), or give another folder"
        )
    if run.root.exists() and not run.root.is_dir():
        raise RunStateError(f"{run.root} is a file; give another output folder")


def check_before_reading(config: Config) -> None:
    """Refuse what can be told wrong from the configuration alone (``ConfigurationError``)."""
    segmenter(config.segment)
    if config.detect.patterns:
        check_patterns(config.detect.patterns, config.detect.language)
    for policy in policies_of(config.detect):
        policy_record(config.detect, policy)


def _run(
    run: RunFolder,
    config: Config,
    sources: list[Source],
    stage_map: StageMap | None,
    detector: TextDetector | None,
    progress: Progress,
) -> dict[str, Any]:
    start = time.perf_counter()
    here = stage_map is None and config.workers == 1
    job = Job(run, config, load_digest_key(), detector, progress if here else silent)
    for folder in (run.root, run.state, *run.data_folders):
        make_private_folder(folder)
    make_private_folder(run.spans.parent)
    inputs = [fingerprint(source) for source in sources]
    with RecordLog(run.journal) as log, _map(stage_map, config.workers) as spread:
        journal = Journal(log)
        journal.begin(_identity(job, inputs))
        reports = list(_stages(job, sources, journal, spread, progress))
        finish(job, inputs, reports, time.perf_counter() - start)
    shutil.rmtree(run.work, ignore_errors=True)
    return summary(run)


def _stages(
    job: Job, sources: list[Source], journal: Journal, spread: StageMap, progress: Progress
) -> Iterator[StageReport]:
    """Every stage in turn; each one's merged report."""
    ingested = _ingest(job, sources, journal, progress)
    yield merge_reports("ingest", ingested)
    partitions = len(ingested)

    def over(name: str, task: Task, numbers: int, unit: str) -> StageReport:
        done = []
        for report in journal.stage(name, task, range(numbers), spread):
            done.append(report)
            progress(name, len(done), numbers, unit)
        return merge_reports(name, done)

    def each(task: Any, *fixed: Any) -> Task:
        return functools.partial(task, job, *fixed)

    yield over("index documents", each(stages.plan_documents, partitions), RANGES, "ranges")
    yield over("segment", each(stages.segment_part), partitions, "partitions")
    yield over("index texts", each(stages.plan_texts, partitions), RANGES, "ranges")
    yield over("detect", each(stages.detect_part), partitions, "partitions")
    yield over("redact", each(stages.redact_part), partitions, "partitions")
    if job.config.dedup.mode == "exact":
        yield over("dedup", each(stages.plan_duplicates, partitions), RANGES, "ranges")
    yield over("shard", each(stages.shard_part), partitions, "partitions")


def _ingest(job: Job, sources: list[Source], journal: Journal, progress: Progress) -> list[StageReport]:
    """The one stage that is not known by parts beforehand: it is whole in the journal, or done again."""
    done = journal.reports("ingest")
    if done is not None:
        return done
    reports, start = [], time.perf_counter()
    for number, report in enumerate(stages.ingest(job, sources, progress)):
        now = time.perf_counter()
        report = StageReport(report.stage, report.counts, now - start, peak_memory_mb())
        journal.record("ingest", number, report)
        reports.append(report)
        start = now
    journal.complete("ingest")
    return reports


@contextmanager
def _map(given: StageMap | None, workers: int) -> Iterator[StageMap]:
    if given is not None:
        yield given
        return
    with processes(workers) as spread:
        yield spread


def _identity(job: Job, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    strict, conservative = (
        policy_record(job.config.detect, p)["hash"] for p in policies_of(job.config.detect)
    )
    return {
        "configuration": job.config.curation_hash(),
        "strict_policy": strict,
        "conservative_policy": conservative,
        "input": inputs,
        "key": job.key.fingerprint,
    }
