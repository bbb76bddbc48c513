"""How a night ends: judged, entered in the log, ``latest`` moved; and what is kept in order around it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.dedup.index_folder import Entry, IndexFolder
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RedactoryError
from redactory.foundation.records import Record, read_records
from redactory.pipelines.indexes.indexing import promote_finished
from redactory.pipelines.journal import INDEX as PINNED
from redactory.pipelines.leaving import what_forbids
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.nightly.gate import judge
from redactory.pipelines.nightly.hooks import call_hooks, hook_of
from redactory.pipelines.nightly.metrics import write_metrics
from redactory.pipelines.nightly.names import point_latest
from redactory.pipelines.nightly.publishing import publish_released
from redactory.pipelines.purge import check_clock, due, purge_run
from redactory.pipelines.reissue.reissue import finish_reissue
from redactory.pipelines.releases.log import FOLLOWS, Event, Standing, enter, read_log, standings, undone
from redactory.pipelines.releases.words import holds_nothing
from redactory.pipelines.settings.nightly import NightlySettings
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.job_folder import JobFolder

INDEX = "index"
"""What follows from a rejection besides hooks: the index across runs counts nothing of the run any more."""


@dataclass(frozen=True)
class End:
    """A night whose curation is finished."""

    job: JobFolder
    run: RunFolder
    settings: NightlySettings
    counts: dict[str, int]


def end_night(night: End) -> dict[str, Any]:
    """Release the run, or hold it; its state, what was found wanting, and which hooks failed."""
    findings = [found.to_json() for found in judge(night.job, night.run, night.settings.drift)]
    if (why := what_forbids(read_manifest(night.run))) is not None:
        findings.append({"metric": "blind", "why": why})
    if holds_nothing(night.counts):
        # whoever reads what was released last would find nothing, however usual bad rows are
        findings.append({"metric": "no point to read", "label": "", "count": 0})
    event = Event.HELD if findings else Event.RELEASED
    facts: dict[str, Any] = {"manifest": file_sha256(night.run.manifest), "counts": night.counts}
    facts |= {"findings": findings} if findings else {}
    failed = decide(night.job, night.run, event, facts, night.settings)
    return {"state": event.value, "findings": findings, "hooks_failed": failed}


def after_failure(job: JobFolder, run: RunFolder, settings: NightlySettings, error: RedactoryError) -> None:
    """Enter that a night failed, and call the hook.  Messages of our own errors hold no text."""
    record = _entered(run, Event.FAILED, {"error": str(error)}, settings)
    with suppress(RedactoryError, OSError):
        # the error itself is what is to be told
        write_metrics(job)
    if record.body.get(FOLLOWS):
        _call(job, record, settings)


def decide(
    job: JobFolder,
    run: RunFolder,
    event: Event,
    facts: Mapping[str, Any],
    config: Given | NightlySettings | None,
    follows: Sequence[str] = (),
) -> list[str]:
    """Enter what was decided of ``run``, and then do what follows from it; the hooks that failed.

    ``follows`` is what there is besides ``latest``, the metrics and a hook.  A process that is cut off in
    between leaves a record that says what is left to do, for :func:`carry_out`.
    """
    name = run.root.resolve().name
    _entered(run, event, facts, settings_of(config, standings(read_log(job))[name]), follows)
    return carry_out(job, config).get(name, [])


def carry_out(job: JobFolder, config: Given | NightlySettings | None) -> dict[str, list[str]]:
    """Do what follows from the decisions of a job and is not done: of each run concerned, the failed hooks.

    ``config`` is whose hooks are called; by default that of the file that each night was begun with.  Asked
    again and again it does what is left, and nothing twice, but for a hook that was called by a process that
    came no further.
    """
    left = undone(read_log(job))
    for record in left:
        if INDEX in record.body[FOLLOWS]:
            out_of_index(job.run(record.body["run"]))
    done: dict[str, list[str]] = {run: [] for run in point_latest(job)}
    write_metrics(job)
    for record in left:
        run = record.body["run"]
        settings = settings_of(config, standings(read_log(job))[run])
        if settings is not None or record.body[FOLLOWS] == [INDEX]:
            # without settings a hook waits for a night, which has them
            done[run] = _call(job, record, settings)
    return done


def _entered(
    run: RunFolder,
    event: Event,
    facts: Mapping[str, Any],
    settings: NightlySettings | None,
    follows: Sequence[str] = (),
) -> Record:
    hook = None if settings is None else hook_of(settings.hooks, event)
    due = [*follows, *([] if hook is None else [hook])]
    return enter(run, event, **facts, **({FOLLOWS: due} if due else {}))


def _call(job: JobFolder, record: Record, settings: NightlySettings | None) -> list[str]:
    """Call the hook of a record, and enter that what follows from it is done; the hooks that failed."""
    run, failed = job.run(record.body["run"]), list[str]()
    if settings is not None:
        facts = {name: value for name, value in record.body.items() if name not in ("run", "time", FOLLOWS)}
        failed = call_hooks(settings.hooks, Event(record.type), job, run, facts)
    enter(run, Event.DONE, of=record.seq, **({"failed": failed} if failed else {}))
    return failed


def entries_of(run: RunFolder) -> list[str]:
    """The names of the entries of an index across runs that count for ``run``, which is finished."""
    return [entry.name for entry in _entries(run, lambda _index, _entry: None)]


def out_of_index(run: RunFolder) -> None:
    """Remove what the index counts of ``run``, or is about to."""
    if is_finished(run):
        _entries(run, lambda index, entry: index.remove(entry.folder))


def _entries(run: RunFolder, each: Callable[[IndexFolder, Entry], None]) -> list[Entry]:
    """The entries of ``run``, ``each`` of them handed on while nobody else changes the index."""
    settings = read_manifest(run)["configuration"]["dedup"].get("index")
    index = None if settings is None else IndexFolder(Path(settings["path"]))
    if index is None or not index.exists():
        return []
    tokens = {record.body["token"] for record in read_records(run.journal) if record.type == PINNED}
    with index.alone():
        promote_finished(index)
        own = [entry for entry in index.entries() if entry.body["token"] in tokens]
        for entry in own:
            each(index, entry)
    return own


def put_in_order(job: JobFolder, settings: NightlySettings) -> None:
    """Do what a crash may have left undone: a takedown or a purge amid its work, what decisions ask for."""
    for name in standings(read_log(job)):
        finish_reissue(job.run(name))
    carry_out(job, settings)


def keep_house(job: JobFolder, settings: NightlySettings) -> dict[str, Any]:
    """Publish what is released, purge what is not to be kept any longer: ``{"published", "purged"}``."""
    published = publish_released(job, settings.publish)
    purged, now = {}, datetime.datetime.now(datetime.UTC)
    for name, what in due(job, settings.keep, now).items():
        purged[name] = purge_run(job.run(name), what)["purged"]
    # what was written anew is mirrored again
    published += publish_released(job, settings.publish)
    write_metrics(job)
    check_clock(job, settings.keep, now)
    return {"published": published, "purged": purged}


def settings_of(config: Given | NightlySettings | None, own: Standing) -> NightlySettings | None:
    """The section ``nightly`` of ``config``, or of the file that a night was begun with; None without one."""
    if isinstance(config, NightlySettings):
        return config
    given = config or (own.begun and own.begun.body.get("config"))
    if not given:
        return None
    try:
        return load_config(given).nightly
    except RedactoryError:
        if config is not None:
            raise
        # the file is gone, or is another by now: what is decided about a run does not hang on it
        return None
