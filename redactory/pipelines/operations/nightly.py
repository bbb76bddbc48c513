"""Run a scheduled curation: new input becomes a separate run, which is released or held."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import make_folder, make_private_folder
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.records import Record
from redactory.pipelines.curation.config import Config, NightlySettings
from redactory.pipelines.curation.curate import check_engines, curate
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text, run_with_sealed_traceback
from redactory.pipelines.curation.journal import RunMismatchError
from redactory.pipelines.curation.loading import ConfigLike, load_config
from redactory.pipelines.curation.output_folder import check_disk_space, check_environment_keys, lock_folders
from redactory.pipelines.curation.reissue import finish_reissue
from redactory.pipelines.curation.release_log import (
    Event,
    append_event,
    find_latest_run,
    read_latest_link,
    read_log,
    run_statuses,
)
from redactory.pipelines.curation.share import check_store, publish
from redactory.pipelines.operations.erase import check_clock_matches_log, find_expired_originals, purge_run
from redactory.pipelines.operations.gate import record_failure, release_or_hold, run_pending_actions, write_metrics
from redactory.pipelines.operations.incremental import (
    Day,
    find_changed_files,
    find_read_files,
    make_day_config,
    make_planned_sources,
    plan_reading,
    read_planned_slices,
    resolve_run_days,
)
from redactory.pipelines.readers import find_sources_by_path
from redactory.pipelines.store import remove_credentials
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.folder import JobFolder

CurateFunction = Callable[..., Mapping[str, Any]]
"""``curate``, or what stands in for it: takes a configuration, ``resume``, ``sources`` and ``progress``."""


def nightly(
    config: ConfigLike,
    *,
    output: str | Path | None = None,
    date: str | None = None,
    first: str | None = None,
    last: str | None = None,
    reread: Sequence[str] = (),
    workers: int | None = None,
    curate_run: CurateFunction = curate,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Curate what is new since the last scheduled run; return ``{"job", "nights", "latest", "held", ...}``.

    ``output`` is the job's folder. If ``input.path`` contains ``{date}``, the run is of ``date`` (YYYY-MM-DD;
    default: today in UTC), or there is one for each day from ``first`` to ``last``. The files of ``reread`` are read
    from the beginning again. ``curate_run`` executes a run.

    Raises what ``curate`` raises, ``InputError`` if a file changed that was read before, and ``RunStateError`` while
    another scheduled run of the job is at work.
    """
    settings = load_config(config, output=output, workers=workers)
    days = resolve_run_days(settings, date, first, last, datetime.datetime.now(datetime.UTC).date())
    job = JobFolder(Path(settings.output))
    _check_job_preconditions(job, settings)
    make_folder(job.root)
    make_private_folder(job.state)
    scheduled = _ScheduledRuns(job, settings, tuple(reread), curate_run, progress)
    with lock_folders(job):
        with scheduled.report_failures():
            run_with_hidden_error_text("an interrupted run was finished", _recover_interrupted, job)
        statuses = run_statuses(read_log(job)).values()
        left = {s.run: s.start_record for s in statuses if s.state in ("unfinished", "failed") and s.start_record}
        # asked once more after a crash, --reread is not another asking
        reread_urls = {piece.url for start in left.values() for piece in read_planned_slices(start) if piece.reread}
        results = [scheduled.finish_run(job.get_run_folder(name), start) for name, start in left.items()]
        results += [scheduled.start_run(day, reread_urls, one_of_many=len(days) > 1) for day in days]
        with scheduled.report_failures():
            maintenance = run_with_hidden_error_text(
                "runs were published or purged", _apply_retention, job, settings.nightly
            )
    held = [run for run, status in run_statuses(read_log(job)).items() if status.state == "held"]
    latest = str(job.latest.resolve()) if read_latest_link(job) else None
    return {"job": str(job.root), "nights": results, **maintenance, "latest": latest, "held": held}


def _check_job_preconditions(job: JobFolder, config: Config) -> None:
    """Refuse, before anything is written, a folder of another kind, and settings that scheduled runs cannot use."""
    if job.root.exists() and not job.root.is_dir():
        raise RunStateError(f"{job.root} is a file; give another folder for the job's runs (output)")
    job_as_run = RunFolder(job.root)
    if job_as_run.state.is_dir() or is_finished(job_as_run):
        raise RunStateError(f"{job.root} is a run; give a folder for the runs of the whole job (output)")
    check_environment_keys()
    check_engines(config)
    if config.store is not None:
        raise ConfigurationError(
            "output: a scheduled run needs a folder on this machine; give one, and set nightly.publish to "
            "the URL that released runs go to"
        )
    if load_digest_key().is_generated:
        raise ConfigurationError(
            f"a scheduled run needs a key that later ones share: set {KEY_VARIABLE} or {KEY_VARIABLE}_FILE "
            "(create one with redactory keys new digest FILE)"
        )


@dataclass(frozen=True)
class _ScheduledRuns:
    """The scheduled runs of one call, under the job's lock."""

    job: JobFolder
    config: Config
    reread_files: tuple[str, ...]
    curate_run: CurateFunction
    progress: Progress

    @contextmanager
    def report_failures(self, run: RunFolder | None = None) -> Iterator[None]:
        """Log what fails in this context as a failure of ``run``; without one, of the last release."""
        try:
            yield
        except RedactoryError as error:
            name = find_latest_run(read_log(self.job)) if run is None else run.root.name
            if name is not None:
                record_failure(self.job, self.job.get_run_folder(name), self.config.nightly.hook, error)
            raise

    def finish_run(self, run: RunFolder, start_record: Record) -> dict[str, Any]:
        """Finish an unfinished run, or give it up if its input is gone."""
        gone = [] if is_finished(run) else find_changed_files(read_planned_slices(start_record))
        if not gone:
            return self._curate_and_gate(run, start_record, is_resumed=True)
        # nothing of it was released: what is there now is read in its place
        reason = f"its input changed before it was finished: {', '.join(gone[:5])}"
        append_event(run, Event.REJECTED, by="redactory nightly", reason=reason)
        return {"run": run.root.name, "date": start_record.body.get("date"), "state": "rejected", "reason": reason}

    def start_run(self, day: Day, reread_urls: Collection[str], *, one_of_many: bool) -> dict[str, Any]:
        """Read what is new on a day; the files ``reread_urls`` are not read again."""
        records, now = read_log(self.job), datetime.datetime.now(datetime.UTC)
        date, config = None if day is None else day.isoformat(), make_day_config(self.config, day)
        # named for the day of its data, or the second at which it began (UTC)
        names = [date or now.strftime("%Y-%m-%dT%H%M%SZ")]
        while names[-1] in run_statuses(records) or os.path.lexists(self.job.root / names[-1]):
            names.append(f"{names[0]}-{len(names) + 1}")
        run, limit = self.job.get_run_folder(names[-1]), config.input.max_row_bytes
        if one_of_many:
            try:
                find_sources_by_path(config.input.path, config.input.format)
            except ConfigurationError:
                return {"run": None, "date": date, "state": "nothing there"}
        with self.report_failures(run):
            look = (config, find_read_files(records), self.reread_files, now, reread_urls)
            slices, waiting = run_with_hidden_error_text("the input was checked", plan_reading, *look)
            if not slices:
                return {"run": None, "date": date, "state": "nothing new", "waiting": waiting}
            sizes = ((source.url, source.size() or 0) for source in make_planned_sources(slices, limit))
            check_disk_space(load_config(config, output=run.root), sizes)
            if config.nightly.publish is not None:
                check_store(_make_run_url(config.nightly.publish, run.root.name), run)
        plan = {"slices": [asdict(piece) for piece in slices], "waiting": waiting}
        start_record = append_event(run, Event.STARTED, date=date, plan=plan, hook=list(config.nightly.hook) or None)
        return {**self._curate_and_gate(run, start_record), "waiting": waiting}

    def _curate_and_gate(self, run: RunFolder, start_record: Record, *, is_resumed: bool = False) -> dict[str, Any]:
        date = start_record.body.get("date")
        day = None if date is None else datetime.date.fromisoformat(date)
        config = load_config(make_day_config(self.config, day), output=run.root)
        with self.report_failures(run):
            try:
                # a finished run no longer needs its input
                planned = [] if is_finished(run) else read_planned_slices(start_record)
                sources = make_planned_sources(planned, config.input.max_row_bytes)
                self.curate_run(config, resume=True, sources=sources, progress=self.progress)
            except RunMismatchError as error:
                if not is_resumed:
                    raise
                # another configuration, or another version: it can never be resumed
                raise RunStateError(
                    f"{error} (to discard {run.root.name} and read its input as new: redactory release "
                    f"reject {run.root} --by NAME --reason TEXT)"
                ) from None
            outcome = run_with_sealed_traceback(run.state, release_or_hold, self.job, run, config.nightly)
        return {"run": str(run.root), "date": date, **outcome, "resumed": is_resumed, "report": str(run.report)}


# What concerns the job as a whole: what a crash left undone, mirrors, and what is not to be kept any longer.


def _recover_interrupted(job: JobFolder) -> None:
    """Complete what a crash interrupted: an erasure, a purge, or the actions of decisions."""
    for name in run_statuses(read_log(job)):
        finish_reissue(job.get_run_folder(name))
    run_pending_actions(job)


def _apply_retention(job: JobFolder, settings: NightlySettings) -> dict[str, Any]:
    """Purge expired originals, and publish released runs: ``{"published", "purged"}``."""
    now = datetime.datetime.now(datetime.UTC)
    expired = find_expired_originals(job, settings.keep, now)
    runs = {name: job.get_run_folder(name) for name in expired}
    purged = {n: run_with_sealed_traceback(run.state, purge_run, run, expired[n])["purged"] for n, run in runs.items()}
    published = publish_released_runs(job, settings.publish)
    write_metrics(job)
    check_clock_matches_log(job, settings.keep, now)
    return {"published": published, "purged": purged}


def publish_released_runs(job: JobFolder, url: str | None) -> list[str]:
    """Mirror to ``url`` the released runs that it does not have in their current form; return their names.

    A mirror from before an erasure, a purge or a new data key is outdated.
    """
    if url is None:
        return []
    published_runs, done = set[str](), []
    records = read_log(job)
    for record in records:
        name: str = record.body["run"]
        if record.type in (Event.RELEASED, Event.HELD, Event.REISSUED, Event.ROTATED, Event.SHREDDED):
            published_runs.discard(name)
        elif record.body.get("published") == remove_credentials(_make_run_url(url, name)):
            published_runs.add(name)
    for name, status in run_statuses(records).items():
        run, run_url = job.get_run_folder(name), _make_run_url(url, name)
        if status.state == "released" and name not in published_runs and is_finished(run):
            publish(run.root, run_url)
            # a URL can have a password in it
            shown_url, digest = remove_credentials(run_url), file_sha256(run.manifest)
            append_event(run, Event.EXPORTED, published=shown_url, manifest=digest)
            done.append(name)
    return done


def _make_run_url(url: str, run: str) -> str:
    return f"{url.rstrip('/')}/{run}"
