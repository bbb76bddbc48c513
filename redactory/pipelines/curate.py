"""Curate: raw corpus in, audited shards out.

documents → points → (distinct texts) → spans → sides → (duplicates, per side) → shards → manifest

:func:`stages_of` has every step in order, those of dedup and of the index across runs included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from redactory.detectors import TextDetector, policy_records
from redactory.detectors.recognizers import check_patterns
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import make_private_folder
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, StageReport, merge_reports, silent, waiting
from redactory.foundation.records import RecordLog
from redactory.pipelines import index as indexing
from redactory.pipelines.config import Config
from redactory.pipelines.journal import Journal, check_made_of, difference
from redactory.pipelines.loading import Given, check, load_config, nested
from redactory.pipelines.output_folder import (
    check_apart,
    check_keys,
    check_output,
    check_room,
    close,
    forget_holder,
    occupied,
)
from redactory.pipelines.readers import Document, Source, find_sources
from redactory.pipelines.readers.documents import CHATS, RowCounts
from redactory.pipelines.readers.files import expansion
from redactory.pipelines.readers.formats import DamagedFile
from redactory.pipelines.release import finish, summary, versions
from redactory.pipelines.sealed import sealed, wordless
from redactory.pipelines.segment import segmenter
from redactory.pipelines.share import check_store, publish_configured
from redactory.pipelines.stages import counting, dedup, points
from redactory.pipelines.stages.carried import carried_columns, refuse_personal, values_of
from redactory.pipelines.work import Job, StageMap, Task, peak_memory_mb, processes, ranges_for
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
) -> dict[str, Any]:
    """Run one curation and return its summary (counts, seconds, where the run lies).

    ``resume`` goes on where an interrupted run stopped, starts where there is nothing, and returns at
    once where the run is finished.  Without it an existing run folder is refused, and with it a run that
    was begun, or made, of something else (``RunStateError``).
    ``stage_map`` replaces the processes, ``detector`` the configured engines, ``sources`` what is found at
    ``input.path``.  Where the output is a URL, the finished run is published there: ``published`` says what
    was done.
    """
    settings = load_config(config, output=output, workers=workers)
    chosen = None
    if sources is None:
        there = list[Source]()
        # a finished run needs its input no more
        with suppress(ConfigurationError):
            there = find_sources(settings.input.path, settings.input.format)
        settings, chosen = wordless("looking for the column of the text", choose_text, settings, there)
    run = RunFolder(Path(settings.output))
    check_keys()
    check_store(settings.store, run)
    if is_finished(run) and resume:
        forget_holder(run)
        done = sealed(run.state, _asked_again, run, settings, sources)
    else:
        check_output(run, resume)
        check_apart(Path(settings.output), "output", settings.input.path)
        # before the engines: a mistyped path is reported at once
        found = find_sources(settings.input.path, settings.input.format) if sources is None else sources
        wordless("checking the engines", check_before_reading, settings, progress)
        wordless("looking at input.metadata_columns", check_kept, settings, found, detector)
        indexing.check_index(settings, load_digest_key())
        # one of unknown size counts as nothing
        check_room(settings, ((source.url, source.size() or 0) for source in found))
        done = sealed(run.state, _alone, run, settings, resume, found, stage_map, detector, progress)
    if chosen is not None:
        done["text_chosen"] = chosen
    return publish_configured(settings.store, done, progress)


def choose_text(config: Config, sources: list[Source]) -> tuple[Config, str | None]:
    """Choose a conversation where ``input.text`` is not set and no row has ``text``, as ``redact`` does.

    Returns the configuration with the column that was chosen by the first rows, and its name or None.
    """
    settings, names = config.input, set[str]()
    if "text" in settings.model_fields_set:
        return config, None
    for source in sources:
        if source.reader.is_text:
            continue
        with suppress(DamagedFile), source.open(expansion=settings.max_expansion) as file:
            reader = source.reader(file, source.name, settings.max_row_bytes)
            for row in islice(reader.records(), LOOKED_AT):
                names.update(row.cells)
        if settings.text in names:
            return config, None
    chosen = next((name for name in CHATS if name in names), None)
    if chosen is None:
        return config, None
    return check(nested({"input.text": chosen}, config.model_dump(exclude_unset=True))), chosen


def check_before_reading(config: Config, progress: Progress = silent) -> None:
    """Refuse what can be told wrong from the configuration alone (``ConfigurationError``)."""
    with waiting(progress, "check engines"):
        segmenter(config.segment)
        counting.check_countable(config)
        if config.detect.patterns:
            check_patterns(config.detect.patterns, config.detect.language)
        policy_records(config.detect)


LOOKED_AT = 1_000
"""Rows by which kept columns are judged before anything is written."""


def check_kept(config: Config, sources: list[Source], detector: TextDetector | None = None) -> None:
    """Refuse (``ConfigurationError``) a metadata column that looks personal by the first rows."""
    if set(config.input.metadata_columns) <= set(config.input.allow_personal_columns):
        return
    entries = chain.from_iterable(map(RowCounts(config.input).read, sources))
    rows = [values_of(one) for one in islice(entries, LOOKED_AT) if isinstance(one, Document) and one.kept]
    if detector is None:
        hashes = (record["hash"] for record in policy_records(config.detect).values())
        detector = points.loaded(config.detect.model_dump_json(), *hashes)
    refuse_personal(config, rows, detector)


def _asked_again(run: RunFolder, config: Config, sources: list[Source] | None) -> dict[str, Any]:
    check_made_of(run, config, sources)
    indexing.count(run, config)
    return summary(run)


def _alone(run: RunFolder, config: Config, resume: bool, sources: list[Source], *work: Any) -> dict[str, Any]:
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
    policies = policy_records(config.detect)
    hashes = tuple(record["hash"] for record in policies.values())
    ranges = ranges_for(sum((source.size() or 0) * expansion(source.url) for source in sources))
    heard = progress if stage_map is None and config.workers == 1 else silent
    job = Job(run, config, load_digest_key(), detector, hashes, heard, hash_ranges=ranges)
    for folder in (run.spans.parent, *run.data_folders):
        make_private_folder(folder)
    with (
        RecordLog(run.journal) as log,
        nullcontext(stage_map) if stage_map is not None else processes(config.workers) as spread,
    ):
        journal = Journal(log)
        run_key = establish_key(run, journal.begun)
        inputs = [source.fingerprint() for source in sources]
        journal.begin(_identity(job, policies, inputs, run_key))
        job = indexing.begin(job, journal)
        reports = [_ingest(job, sources, inputs, journal, progress)]
        whole = not any(source.may_be_unusable for source in sources)
        job = replace(job, carried=carried_columns(config.input, reports[0].counts, whole))
        job = counting.begin_selection(job, journal)
        partitions = journal.parts("ingest") or 0
        for stage in stages_of(job, partitions):
            total = StageReport(stage.name)
            parts = journal.stage(stage.name, stage.task, range(stage.numbers), spread)
            for done, report in enumerate(parts, 1):
                total = merge_reports(stage.name, (total, report))
                progress(stage.name, done, stage.numbers, stage.unit)
            reports.append(total)
        close(run, partitions, counted=job.selection is not None)
        finish(job, inputs, reports, journal, time.perf_counter() - start)


class Stage(NamedTuple):
    """One stage: ``task(number)`` for each of ``numbers`` numbers."""

    name: str
    task: Task
    numbers: int
    unit: str


def stages_of(job: Job, partitions: int) -> Iterator[Stage]:
    """Every stage after ingest that a run of so many partitions has, in order."""
    settings, rules = job.config.dedup, job.config.dedup.rules().values()
    near, by_digest = any(r.near for r in rules), any(r.by_digest for r in rules)
    sides, counted = len(dedup.SIDES), job.selection is not None
    # name, work(job, partitions, number), its numbers and their unit, whether the run has it
    table: list[tuple[str, Callable[[Job, int, int], StageReport], int, str, bool]] = [
        ("index documents", dedup.plan_documents, job.hash_ranges, "ranges", True),
        ("segment", points.segment_part, partitions, "partitions", True),
        ("index texts", dedup.plan_texts, job.hash_ranges, "ranges", True),
        ("detect", points.detect_part, partitions, "partitions", True),
        ("spread", points.spread_range, job.hash_ranges, "ranges", True),
        ("know", points.know_part, partitions, "partitions", job.config.release.known_values),
        ("redact", points.redact_part, partitions, "partitions", True),
        ("bound", counting.bound_users, job.hash_ranges, "ranges", counted),
        ("count", counting.count_texts, job.hash_ranges, "ranges", counted),
        ("route", counting.route_part, partitions, "partitions", counted),
        # with nothing dropped, a text that occurs a million times is still looked for across the split once
        (
            "dedup",
            dedup.plan_duplicates,
            job.hash_ranges,
            "ranges",
            any(r.planned or (settings.report_cross_split and not r.one_pass) for r in rules),
        ),
        ("dedup in one pass", dedup.pass_side, sides, "sides", any(r.one_pass for r in rules)),
        ("sign", dedup.sign_part, partitions, "partitions", near or settings.report_cross_split),
        ("compare", dedup.compare_range, job.near_count, "ranges", near or settings.report_cross_split),
        ("recall", dedup.recall_part, partitions, "partitions", bool(settings.index) and by_digest),
        ("recall near", dedup.recall_near, job.near_count, "ranges", bool(settings.index) and near),
        ("group", dedup.join_all, 1, "plans", near),
        ("choose", dedup.choose_range, job.near_count, "ranges", near),
        ("shard", points.shard_part, partitions, "partitions", True),
        ("publish", counting.publish, 1, "shards", counted),
        ("remember", dedup.remember_texts, 1, "entries", bool(settings.index) and by_digest),
        ("remember near", dedup.remember_signed, partitions, "partitions", bool(settings.index) and near),
    ]
    for name, work, numbers, unit, has_it in table:
        if has_it:
            yield Stage(name, partial(work, job, partitions), numbers, unit)


def _ingest(
    job: Job, sources: list[Source], inputs: list[dict[str, Any]], journal: Journal, progress: Progress
) -> StageReport:
    """The one stage that is not known by parts beforehand: it is whole in the journal, or done again."""
    if journal.parts("ingest") is not None:
        return merge_reports("ingest", journal.reports("ingest"))
    total, parts, start = StageReport("ingest"), 0, time.perf_counter()
    for parts, report in enumerate(points.ingest(job, sources, progress), 1):
        now = time.perf_counter()
        report = StageReport(report.stage, report.counts, now - start, peak_memory_mb())
        journal.record("ingest", parts - 1, report)
        total = merge_reports("ingest", (total, report))
        start = now
    changed = difference({"input": inputs}, {"input": [source.fingerprint() for source in sources]})
    if changed is not None:
        raise RunStateError(f"the {changed} while being read: start a new run elsewhere, on files that do not change")
    journal.complete("ingest", parts)
    return total


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
