"""Curate: raw corpus in, audited shards out.

documents → points → (distinct texts) → spans → sides → (duplicates, per side) → shards → manifest
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from redactory.detectors import TextDetector, policy_records
from redactory.detectors.recognizers import check_patterns
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import make_private_folder
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, StageReport, merge_reports, silent, waiting
from redactory.foundation.records import RecordLog
from redactory.pipelines import index as indexing
from redactory.pipelines import stages
from redactory.pipelines.config import Config
from redactory.pipelines.index import check_index
from redactory.pipelines.journal import Journal, check_made_of, difference
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.maps import StageMap, Task, peak_memory_mb, processes
from redactory.pipelines.output_folder import (
    check_apart,
    check_keys,
    check_output,
    check_sources,
    close,
    forget_holder,
    occupied,
)
from redactory.pipelines.publish import check_store, publish_configured
from redactory.pipelines.readers import Source, find_sources
from redactory.pipelines.release import finish, summary, versions
from redactory.pipelines.results import CurationSummary
from redactory.pipelines.sealed import sealed, wordless
from redactory.pipelines.segment import segmenter
from redactory.pipelines.track import check_tracking
from redactory.pipelines.work import Job
from redactory.redaction import RunFolder, RunKey, establish_key, is_finished


def curate(
    config: Given,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    stage_map: StageMap | None = None,
    detector: TextDetector | None = None,
    sources: list[Source] | None = None,
    progress: Progress = silent,
) -> CurationSummary:
    """Run one curation and return its summary (counts, seconds, where the run lies).

    ``resume`` goes on where an interrupted run stopped, starts where there is nothing, and returns at
    once where the run is finished.  Without it an existing run folder is refused, and with it a run that
    was begun, or made, of something else (``RunStateError``).
    ``stage_map`` replaces the processes, ``detector`` the configured engines, ``sources`` what is found at
    ``input.path``.  Where the output is a URL, the finished run is published there: ``published`` says what
    was done.
    """
    settings = load_config(config, output=output, workers=workers)
    check_keys()
    check_store(settings.store, RunFolder(Path(settings.output)))
    check_tracking(settings.track)
    done = _curate(settings, resume, stage_map, detector, sources, progress)
    return cast(CurationSummary, publish_configured(settings.store, done, progress))


def _curate(
    settings: Config,
    resume: bool,
    stage_map: StageMap | None,
    detector: TextDetector | None,
    sources: list[Source] | None,
    progress: Progress,
) -> dict[str, Any]:
    run = RunFolder(Path(settings.output))
    if is_finished(run) and resume:
        forget_holder(run)
        return sealed(run.state, _asked_again, run, settings, sources)
    check_output(run, resume)
    check_apart(settings)
    # before the engines: a mistyped path is told at once
    found = find_sources(settings.input.path, settings.input.format) if sources is None else sources
    wordless("checking the engines", _check_engines, settings, progress)
    check_index(settings, load_digest_key())
    check_sources(settings, found)
    return sealed(run.state, _run_alone, run, settings, resume, found, stage_map, detector, progress)


def _check_engines(config: Config, progress: Progress) -> None:
    with waiting(progress, "check engines"):
        check_before_reading(config)


def check_before_reading(config: Config) -> None:
    """Refuse what can be told wrong from the configuration alone (``ConfigurationError``)."""
    segmenter(config.segment)
    if config.detect.patterns:
        check_patterns(config.detect.patterns, config.detect.language)
    policy_records(config.detect)


def _asked_again(run: RunFolder, config: Config, sources: list[Source] | None) -> dict[str, Any]:
    check_made_of(run, config, sources)
    indexing.count_late(run, config)
    return summary(run)


def _run_alone(
    run: RunFolder, config: Config, resume: bool, sources: list[Source], *work: Any
) -> dict[str, Any]:
    with occupied(run, resume):
        if is_finished(run):
            return _asked_again(run, config, sources)
        _run(run, config, sources, *work)
        return summary(run)


def _run(
    run: RunFolder,
    config: Config,
    sources: list[Source],
    stage_map: StageMap | None,
    detector: TextDetector | None,
    progress: Progress,
) -> None:
    start = time.perf_counter()
    here = stage_map is None and config.workers == 1
    policies = policy_records(config.detect)
    hashes = tuple(record["hash"] for record in policies.values())
    job = Job(run, config, load_digest_key(), detector, hashes, progress if here else silent)
    for folder in (run.spans.parent, *run.data_folders):
        make_private_folder(folder)
    with RecordLog(run.journal) as log, _map(stage_map, config.workers) as spread:
        journal = Journal(log)
        run_key = establish_key(run, journal.begun)
        inputs = [source.fingerprint() for source in sources]
        journal.begin(_identity(job, policies, inputs, run_key))
        job = indexing.begin(job, journal)
        reports = list(_stages(job, sources, inputs, journal, spread, progress))
        close(run, journal.parts("ingest") or 0)
        finish(job, inputs, reports, journal, time.perf_counter() - start)


def _stages(
    job: Job,
    sources: list[Source],
    inputs: list[dict[str, Any]],
    journal: Journal,
    spread: StageMap,
    progress: Progress,
) -> Iterator[StageReport]:
    """Every stage in turn; each one's merged report."""
    yield _ingest(job, sources, inputs, journal, progress)
    partitions = journal.parts("ingest") or 0

    def over(name: str, task: Task, numbers: int, unit: str) -> StageReport:
        total = StageReport(name)
        for done, report in enumerate(journal.stage(name, task, range(numbers), spread), 1):
            total = merge_reports(name, (total, report))
            progress(name, done, numbers, unit)
        return total

    def each(task: Any, *fixed: Any) -> Task:
        return functools.partial(task, job, *fixed)

    ranges = job.hash_ranges
    yield over("index documents", each(stages.plan_documents, partitions), ranges, "ranges")
    yield over("segment", each(stages.segment_part), partitions, "partitions")
    if job.config.dedup.filter == "bloom":
        yield over("screen texts", each(stages.screen_texts, partitions), 1, "filters")
    yield over("index texts", each(stages.plan_texts, partitions), ranges, "ranges")
    yield over("detect", each(stages.detect_part), partitions, "partitions")
    yield over("spread", each(stages.spread_range, partitions), ranges, "ranges")
    yield over("redact", each(stages.redact_part), partitions, "partitions")
    for step in stages.dedup_steps(job, partitions):
        yield over(step.name, each(step.task, partitions), step.numbers, step.unit)
    yield over("shard", each(stages.shard_part), partitions, "partitions")
    for step in stages.memory_steps(job.config.dedup, partitions):
        yield over(step.name, each(step.task, partitions), step.numbers, step.unit)


def _ingest(
    job: Job, sources: list[Source], inputs: list[dict[str, Any]], journal: Journal, progress: Progress
) -> StageReport:
    """The one stage that is not known by parts beforehand: it is whole in the journal, or done again."""
    if journal.parts("ingest") is not None:
        return merge_reports("ingest", journal.reports("ingest"))
    total, parts, start = StageReport("ingest"), 0, time.perf_counter()
    for parts, report in enumerate(stages.ingest(job, sources, progress), 1):
        now = time.perf_counter()
        report = StageReport(report.stage, report.counts, now - start, peak_memory_mb())
        journal.record("ingest", parts - 1, report)
        total = merge_reports("ingest", (total, report))
        start = now
    changed = difference({"input": inputs}, {"input": [source.fingerprint() for source in sources]})
    if changed is not None:
        raise RunStateError(
            f"while it was read, the {changed}: start a new run elsewhere, on files that nobody writes"
        )
    journal.complete("ingest", parts)
    return total


@contextmanager
def _map(given: StageMap | None, workers: int) -> Iterator[StageMap]:
    if given is not None:
        yield given
        return
    with processes(workers) as spread:
        yield spread


def _identity(
    job: Job, policies: dict[str, dict[str, Any]], inputs: list[dict[str, Any]], run_key: RunKey | None
) -> dict[str, Any]:
    """What the shards follow from."""
    return {
        "configuration": job.config.curation(),
        # no byte of the shards, but the work files that a resumed run goes on with
        "hash ranges": job.hash_ranges,
        "policies": policies,
        "versions": versions(),
        "input": inputs,
        "key": job.key.fingerprint,
        # not who wraps it: that may change while the run waits to be resumed
        "encryption": None if run_key is None else run_key.fingerprint,
    }
