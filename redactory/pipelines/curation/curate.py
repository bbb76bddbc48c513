"""Curate: turn a raw corpus into audited shards.

documents → examples → distinct texts → spans → splits → duplicates per split → shards → manifest

:func:`list_stages` lists every stage in order, including deduplication and the index across runs.
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

from redactory.detectors import TextDetector, build_policy_records
from redactory.detectors.recognizers import create_recognizers
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import make_private_folder
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress, StageReport, ignore_progress, merge_reports, report_start_and_end
from redactory.foundation.records import RecordLog
from redactory.pipelines.curation import index as indexing
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text, run_with_sealed_traceback
from redactory.pipelines.curation.finish import collect_versions, finish_run, summarize_run
from redactory.pipelines.curation.journal import IDENTITY, STAGE, RunJournal, check_same_run, describe_difference
from redactory.pipelines.curation.loading import ConfigLike, expand_dotted_keys, load_config, validate_config
from redactory.pipelines.curation.output_folder import (
    check_disk_space,
    check_environment_keys,
    check_not_inside_inputs,
    check_output_folder,
    finalize_run,
    lock_folders,
    lock_new_run,
)
from redactory.pipelines.curation.segment import make_segmenter
from redactory.pipelines.curation.share import check_store, publish_if_configured
from redactory.pipelines.curation.stage_context import (
    CurationJob,
    StageMap,
    Task,
    choose_range_count,
    measure_peak_memory_mb,
    open_process_map,
)
from redactory.pipelines.curation.stages import counting, dedup, examples
from redactory.pipelines.curation.stages.metadata_columns import (
    build_metadata_schema,
    parse_metadata_values,
    require_no_personal_columns,
)
from redactory.pipelines.readers import Document, Source, find_sources
from redactory.pipelines.readers.documents import CONVERSATION_COLUMNS, RowCounts
from redactory.pipelines.readers.files import estimate_expansion
from redactory.pipelines.readers.formats import DamagedFile, choose_reader
from redactory.redaction import RunFolder, RunKey, get_or_create_run_key, is_finished


def curate(
    config: ConfigLike,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    encoding: str | None = None,
    stage_map: StageMap | None = None,
    detector: TextDetector | None = None,
    sources: list[Source] | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Run one curation and return its summary: counts, seconds, the run folder.

    ``resume`` continues an interrupted run, starts a new run if there is none, and returns at once if the run is
    finished. ``RunStateError`` for an existing run folder without ``resume``, and for a run of another configuration or
    input with it. ``encoding`` replaces ``input.encoding``, ``stage_map`` the worker processes, ``detector`` the
    configured engines, ``sources`` the files of ``input.path``. If the output is a URL, the run is published there: see
    ``published`` in the result.
    """
    settings = load_config(config, encoding, output=output, workers=workers)
    text_column = None
    if sources is None:
        input_sources = list[Source]()
        # a finished run no longer needs its input
        with suppress(ConfigurationError):
            input_sources = find_sources(settings.input.path, settings.input.format)
        settings, text_column = run_with_hidden_error_text(
            "looking for the column of the text", choose_text_column, settings, input_sources
        )
    run = RunFolder(Path(settings.output))
    check_environment_keys()
    check_store(settings.store, run)
    if is_finished(run) and resume:
        # a process can be killed after it has finished the run
        if run.lock.exists():
            with suppress(RunStateError), lock_folders(run):
                pass
        result = run_with_sealed_traceback(run.state, _resume_finished_run, run, settings, sources)
    else:
        check_output_folder(run, resume)
        check_not_inside_inputs(Path(settings.output), "output", settings.input.path)
        # before loading the engines, so that a mistyped path is reported at once
        run_sources = find_sources(settings.input.path, settings.input.format) if sources is None else sources
        run_with_hidden_error_text("checking the engines", check_engines, settings, progress)
        run_with_hidden_error_text(
            "looking at input.metadata_columns", check_metadata_columns, settings, run_sources, detector
        )
        indexing.check_index(settings, load_digest_key())
        # a source of unknown size counts as empty
        check_disk_space(settings, ((source.url, source.size() or 0) for source in run_sources))
        result = run_with_sealed_traceback(
            run.state, _run_with_lock, run, settings, resume, run_sources, stage_map, detector, progress
        )
    if text_column is not None:
        result["text_chosen"] = text_column
    return publish_if_configured(settings.store, result, progress)


def choose_text_column(config: Config, sources: list[Source]) -> tuple[Config, str | None]:
    """Choose a conversation column, by the first rows, if ``input.text`` is unset and no row has ``text``.

    Returns the configuration with this column and its name, or the unchanged configuration and None.
    """
    settings, names = config.input, set[str]()
    if "text" in settings.model_fields_set:
        return config, None
    for source in sources:
        if source.reader.is_text:
            continue
        with suppress(DamagedFile), source.open_rows(settings.encoding, max_expansion=settings.max_expansion) as file:
            reader = choose_reader(source.format, file)(file, source.name, settings.max_row_bytes)
            for row in islice(reader.read_records(), INSPECTED_ROWS):
                names.update(row.cells)
        if settings.text in names:
            return config, None
    text_column = next((name for name in CONVERSATION_COLUMNS if name in names), None)
    if text_column is None:
        return config, None
    changed = expand_dotted_keys({"input.text": text_column}, config.model_dump(exclude_unset=True))
    return validate_config(changed), text_column


def check_engines(config: Config, progress: Progress = ignore_progress) -> None:
    """Check the engines and patterns of the configuration (``ConfigurationError``), without reading the input."""
    with report_start_and_end(progress, "check engines"):
        make_segmenter(config.segment)
        counting.require_noise_package(config)
        if config.detect.patterns:
            create_recognizers(config.detect.patterns, config.detect.language)
        build_policy_records(config.detect)


INSPECTED_ROWS = 1_000
"""Number of rows in which kept columns are inspected before anything is written."""


def check_metadata_columns(config: Config, sources: list[Source], detector: TextDetector | None = None) -> None:
    """Raise ``ConfigurationError`` if a metadata column looks personal in the first rows."""
    if set(config.input.metadata_columns) <= set(config.input.allow_personal_columns):
        return
    entries = chain.from_iterable(map(RowCounts(config.input).read_and_count, sources))
    rows = [
        parse_metadata_values(entry)
        for entry in islice(entries, INSPECTED_ROWS)
        if isinstance(entry, Document) and entry.kept
    ]
    if detector is None:
        hashes = (record["hash"] for record in build_policy_records(config.detect).values())
        detector = examples.load_detector(config.detect.model_dump_json(), *hashes)
    require_no_personal_columns(config, rows, detector)


def _resume_finished_run(run: RunFolder, config: Config, sources: list[Source] | None) -> dict[str, Any]:
    check_same_run(run, config, sources)
    indexing.promote_entry(run, config)
    return summarize_run(run)


def _run_with_lock(run: RunFolder, config: Config, resume: bool, sources: list[Source], *work: Any) -> dict[str, Any]:
    with lock_new_run(run, resume):
        if is_finished(run):
            return _resume_finished_run(run, config, sources)
        _run_stages(run, config, sources, *work)
        return summarize_run(run)


def _run_stages(
    run: RunFolder,
    config: Config,
    sources: list[Source],
    stage_map: StageMap | None,
    detector: TextDetector | None,
    progress: Progress,
) -> None:
    start = time.perf_counter()
    policies = build_policy_records(config.detect)
    hashes = tuple(record["hash"] for record in policies.values())
    ranges = choose_range_count(sum((source.size() or 0) * estimate_expansion(source.url) for source in sources))
    part_progress = progress if stage_map is None and config.workers == 1 else ignore_progress
    job = CurationJob(run, config, load_digest_key(), detector, hashes, part_progress, hash_ranges=ranges)
    for folder in (run.spans.parent, *run.data_folders):
        make_private_folder(folder)
    with (
        RecordLog(run.journal) as log,
        nullcontext(stage_map) if stage_map is not None else open_process_map(config.workers) as part_map,
    ):
        journal = RunJournal(log)
        run_key = get_or_create_run_key(run, IDENTITY in journal.constants)
        inputs = [source.compute_fingerprint() for source in sources]
        journal.record_or_check_identity(_build_run_identity(job, policies, inputs, run_key))
        job = indexing.attach_index(job, journal)
        reports = [_run_ingest(job, sources, inputs, journal, progress)]
        is_complete = not any(source.may_be_unusable for source in sources)
        partitions = int(journal.constants[STAGE]["parts"])
        metadata_schema = build_metadata_schema(config.input, reports[0].counts, is_complete)
        job = counting.attach_count_selection(
            replace(job, metadata_schema=metadata_schema, partitions=partitions), journal
        )
        for stage in list_stages(job, partitions):
            total = StageReport(stage.name)
            parts = journal.run_stage(stage.name, stage.task, range(stage.part_count), part_map)
            for done, report in enumerate(parts, 1):
                total = merge_reports(stage.name, (total, report))
                progress(stage.name, done, stage.part_count, stage.unit)
            reports.append(total)
        finalize_run(run, partitions, counted=job.selection is not None)
        finish_run(job, inputs, reports, journal, time.perf_counter() - start)


class Stage(NamedTuple):
    """One stage: ``task(number)`` runs for each number below ``numbers``."""

    name: str
    task: Task
    part_count: int
    unit: str


def list_stages(job: CurationJob, partitions: int) -> Iterator[Stage]:
    """Yield the stages after ingest of a run with ``partitions`` partitions, in order."""
    job = replace(job, partitions=partitions)
    settings, rules = job.config.dedup, job.config.dedup.get_rules().values()
    across, indexed, is_counted = settings.report_cross_split, bool(settings.index), job.selection is not None
    near, by_digest = any(rule.near for rule in rules), any(rule.matches_by_digest for rule in rules)
    one_pass = any(rule.one_pass for rule in rules)
    planned = any(rule.planned or (across and not rule.one_pass) for rule in rules)
    ranges, near_ranges, splits = job.hash_ranges, job.near_range_count, len(dedup.SPLIT_NUMBERS)
    # name, work(job, number), count and unit of its numbers, whether the run has this stage
    table: list[tuple[str, Callable[[CurationJob, int], StageReport], int, str, bool]] = [
        ("index documents", partial(dedup.find_repeats, table="document-ids"), ranges, "ranges", True),
        ("segment", examples.segment_documents, partitions, "partitions", True),
        ("index texts", partial(dedup.find_repeats, table="text-digests"), ranges, "ranges", True),
        ("detect", examples.detect_texts, partitions, "partitions", True),
        ("spread", examples.copy_spans_to_repeats, ranges, "ranges", True),
        ("know", examples.find_known_values, partitions, "partitions", job.config.release.known_values),
        ("redact", examples.redact_examples, partitions, "partitions", True),
        ("bound", counting.bound_user_contributions, ranges, "ranges", is_counted),
        ("count", counting.count_texts, ranges, "ranges", is_counted),
        ("route", counting.route_by_user_count, partitions, "partitions", is_counted),
        # also if nothing is dropped: the search across splits then handles a repeated text once
        ("dedup", partial(dedup.find_repeats, table="redacted-digests"), ranges, "ranges", planned),
        ("dedup in one pass", dedup.deduplicate_in_one_pass, splits, "splits", one_pass),
        ("sign", dedup.compute_text_signatures, partitions, "partitions", near or across),
        ("compare", dedup.compare_near_duplicates, near_ranges, "ranges", near or across),
        ("recall", dedup.match_earlier_runs, partitions, "partitions", indexed and by_digest),
        ("recall near", dedup.match_earlier_near_duplicates, near_ranges, "ranges", indexed and near),
        ("group", dedup.group_near_duplicates, 1, "plans", near),
        ("choose", dedup.choose_representatives, near_ranges, "ranges", near),
        ("shard", examples.write_shards, partitions, "partitions", True),
        ("publish", counting.write_public_shard, 1, "shards", is_counted),
        ("remember", dedup.write_index_digests, 1, "entries", indexed and by_digest),
        ("remember near", dedup.write_index_signatures, partitions, "partitions", indexed and near),
    ]
    for name, work, part_count, unit, is_needed in table:
        if is_needed:
            yield Stage(name, partial(work, job), part_count, unit)


def _run_ingest(
    job: CurationJob, sources: list[Source], inputs: list[dict[str, Any]], journal: RunJournal, progress: Progress
) -> StageReport:
    """Ingest the input, or read the journal if a former attempt completed it; it does not resume by parts."""
    if STAGE not in journal.constants:
        total, parts, start = StageReport("ingest"), 0, time.perf_counter()
        for report in examples.ingest_documents(job, sources, progress):
            total, parts = merge_reports("ingest", (total, report)), parts + 1
        total = replace(total, seconds=time.perf_counter() - start, peak_mb=measure_peak_memory_mb())
        inputs_now = [source.compute_fingerprint() for source in sources]
        if (changed := describe_difference({"input": inputs}, {"input": inputs_now})) is not None:
            raise RunStateError(
                f"the {changed} while being read: start a new run elsewhere, on files that do not change"
            )
        journal.record_constant(STAGE, {"stage": "ingest", "parts": parts, "report": total.to_json()})
    return StageReport.from_json(journal.constants[STAGE]["report"])


def _build_run_identity(
    job: CurationJob, policies: dict[str, dict[str, Any]], inputs: list[dict[str, Any]], run_key: RunKey | None
) -> dict[str, Any]:
    """Return everything that determines the shards."""
    return {
        "configuration": job.config.select_curation_settings(),
        # affects no byte of the shards, but the work files of a resumed run
        "hash ranges": job.hash_ranges,
        "policies": policies,
        "versions": collect_versions(),
        "input": inputs,
        "key": job.key.fingerprint,
        # not the service that wraps the key: it may change before the run is resumed
        "encryption": None if run_key is None else run_key.fingerprint,
    }
