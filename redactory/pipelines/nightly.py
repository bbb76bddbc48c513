"""A scheduled run: what is new in the input becomes a run of its own, which is released or held."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import make_folder, make_private_folder
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.records import Record
from redactory.pipelines.config import Config, NightlySettings
from redactory.pipelines.curate import check_before_reading, curate
from redactory.pipelines.erase import check_clock, due, purge_run
from redactory.pipelines.gate import after_failure, carry_out, end_scheduled, write_metrics
from redactory.pipelines.journal import AnotherRun
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.output_folder import check_keys, check_room, lock_job
from redactory.pipelines.readers import find_by_path
from redactory.pipelines.reissue import finish_reissue
from redactory.pipelines.release import COUNTS
from redactory.pipelines.release_log import Event, Standing, enter, latest_of, latest_run, read_log, standings
from redactory.pipelines.sealed import sealed, wordless
from redactory.pipelines.share import check_store, publish
from redactory.pipelines.store import without_secrets
from redactory.pipelines.watermark import (
    Day,
    changed_since,
    days_asked,
    of_day,
    plan_reading,
    planned,
    sources_of,
    watermark,
)
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.folder import JobFolder

Curating = Callable[..., Mapping[str, Any]]
"""``curate``, or what stands in for it: takes a configuration, ``resume``, ``sources`` and ``progress``."""


def nightly(
    config: Given,
    *,
    output: str | Path | None = None,
    date: str | None = None,
    first: str | None = None,
    last: str | None = None,
    reread: Sequence[str] = (),
    workers: int | None = None,
    curating: Curating = curate,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Curate what is new since the last scheduled run; ``{"job", "nights", "latest", "held", ...}``.

    ``output`` is the job's folder.  Where ``input.path`` holds ``{date}``, the run is of ``date``
    (YYYY-MM-DD; today in UTC by default), or there is one for each day from ``first`` to ``last``.  The files
    of ``reread`` are read whole, though they were read before.  ``curating`` carries a run out.

    Raises what ``curate`` raises, ``InputError`` where a file changed that was read before, and
    ``RunStateError`` where another scheduled run of the job is at work.
    """
    settings = load_config(config, output=output, workers=workers)
    days = days_asked(settings, date, first, last, datetime.datetime.now(datetime.UTC).date())
    job = JobFolder(Path(settings.output))
    _check(job, settings)
    make_folder(job.root)
    make_private_folder(job.own)
    # whoever approves a run later asks its file for the hook
    is_file = isinstance(config, str | Path) and Path(config).suffix in (".yaml", ".yml")
    file = str(Path(str(config)).absolute()) if is_file else None
    scheduled = _Scheduled(job, settings, file, tuple(reread), curating, progress)
    with lock_job(job):
        with scheduled.reported():
            wordless("an interrupted run was finished", _put_in_order, job, settings.nightly)
        left = unfinished(read_log(job))
        # asked once more after a crash, --reread is not another asking
        done = [piece.url for own in left if own.begun for piece in planned(own.begun) if piece.again]
        ended = [scheduled.finish(own) for own in left]
        ended += [scheduled.run(day, done, one_of_many=len(days) > 1) for day in days]
        with scheduled.reported():
            kept = wordless("runs were published or purged", _keep_house, job, settings.nightly)
    held = [run for run, own in standings(read_log(job)).items() if own.state == "held"]
    latest = str(job.latest.resolve()) if latest_of(job) else None
    return {"job": str(job.root), "nights": ended, **kept, "latest": latest, "held": held}


def _check(job: JobFolder, config: Config) -> None:
    """Refuse, before anything is written, a folder that is no job's, and what no scheduled run can go by."""
    if job.root.exists() and not job.root.is_dir():
        raise RunStateError(f"{job.root} is a file; give another folder for the job's runs (output)")
    own = RunFolder(job.root)
    if own.state.is_dir() or is_finished(own):
        raise RunStateError(f"{job.root} is a run; give a folder for the runs of the whole job (output)")
    check_keys()
    check_before_reading(config)
    if config.store is not None:
        raise ConfigurationError(
            "output: a scheduled run needs a folder on this machine; give one, and set nightly.publish to "
            "the URL that released runs go to"
        )
    if load_digest_key().fresh:
        raise ConfigurationError(
            f"a scheduled run needs a key that later ones share: set {KEY_VARIABLE} or {KEY_VARIABLE}_FILE "
            "(create one with redactory keys new digest FILE)"
        )


def unfinished(records: Iterable[Record]) -> list[Standing]:
    """The scheduled runs to be finished before anything new is read, oldest first."""
    known = standings(records).values()
    return [own for own in known if own.state in ("unfinished", "failed") and own.begun]


@dataclass(frozen=True)
class _Scheduled:
    """The scheduled runs of one call, under the job's lock."""

    job: JobFolder
    config: Config
    file: str | None
    again: tuple[str, ...]
    curating: Curating
    progress: Progress

    @contextmanager
    def reported(self, run: RunFolder | None = None) -> Iterator[None]:
        """Enter what fails meanwhile as a failure of ``run``; without one, of the last release."""
        try:
            yield
        except RedactoryError as error:
            if run is None and (latest := latest_run(read_log(self.job))) is not None:
                run = self.job.run(latest)
            if run is not None:
                after_failure(self.job, run, self.config.nightly, error)
            raise

    def finish(self, own: Standing) -> dict[str, Any]:
        """Finish what was begun, or give it up where its input is not there any more."""
        run, begun = self.job.run(own.run), own.begun
        assert begun is not None
        gone = [] if is_finished(run) else changed_since(planned(begun))
        if not gone:
            return self._carried_out(run, begun, resumed=True)
        # nothing of it was released: what is there now is read in its place
        reason = f"its input changed before it was finished: {', '.join(gone[:5])}"
        enter(run, Event.REJECTED, by="redactory nightly", reason=reason)
        return {"run": own.run, "date": begun.body["date"], "state": "rejected", "reason": reason}

    def run(self, day: Day, done: Sequence[str], *, one_of_many: bool) -> dict[str, Any]:
        """Read what is new of a day; the files ``done`` are not read again, whoever asks for that."""
        records, now = read_log(self.job), datetime.datetime.now(datetime.UTC)
        date, config = None if day is None else day.isoformat(), of_day(self.config, day)
        # named for the day of its data, or the second at which it began (UTC)
        names = [date or now.strftime("%Y-%m-%dT%H%M%SZ")]
        while names[-1] in standings(records) or os.path.lexists(self.job.root / names[-1]):
            names.append(f"{names[0]}-{len(names) + 1}")
        run = self.job.run(names[-1])
        if one_of_many:
            try:
                find_by_path(config.input.path, config.input.format)
            except ConfigurationError:
                return {"run": None, "date": date, "state": "nothing there"}
        with self.reported(run):
            look = (config, watermark(records), self.again, now, done)
            plan = wordless("the input was checked", plan_reading, *look)
            waiting = plan.to_json()["waiting"]
            if not plan.slices:
                return {"run": None, "date": date, "state": "nothing new", "waiting": waiting}
            reads = ((piece.url, piece.bytes) for piece in plan.slices)
            check_room(load_config(config, output=run.root), reads)
            if config.nightly.publish is not None:
                check_store(_place_of(config.nightly.publish, run.root.name), run)
        begun = enter(run, Event.BEGUN, date=date, plan=plan.to_json(), config=self.file)
        return {**self._carried_out(run, begun), "waiting": waiting}

    def _carried_out(self, run: RunFolder, begun: Record, *, resumed: bool = False) -> dict[str, Any]:
        date = begun.body["date"]
        day = None if date is None else datetime.date.fromisoformat(date)
        config = load_config(of_day(self.config, day), output=run.root)
        with self.reported(run):
            try:
                sources = sources_of(planned(begun))
                summary = self.curating(config, resume=True, sources=sources, progress=self.progress)
            except AnotherRun as error:
                if not resumed:
                    raise
                # another configuration, or another version: it can never be resumed
                raise RunStateError(
                    f"{error} (to discard {run.root.name} and read its input as new: redactory release "
                    f"reject {run.root} --by NAME --reason TEXT)"
                ) from None
            counts = {name: summary[name] for name in COUNTS}
            ended = sealed(run.state, end_scheduled, self.job, run, config.nightly, counts)
        result = {"run": str(run.root), "date": date, **ended, "resumed": resumed}
        return {**result, "counts": counts, "report": str(run.report)}


# What concerns the job as a whole: what a crash left undone, mirrors, and what is not to be kept any longer.


def _put_in_order(job: JobFolder, settings: NightlySettings) -> None:
    """Do what a crash may have left undone: an erasure or a purge amid its work, what decisions ask for."""
    for name in standings(read_log(job)):
        finish_reissue(job.run(name))
    carry_out(job, settings)


def _keep_house(job: JobFolder, settings: NightlySettings) -> dict[str, Any]:
    """Publish what is released, purge what is not to be kept any longer: ``{"published", "purged"}``."""
    published = publish_released(job, settings.publish)
    now = datetime.datetime.now(datetime.UTC)
    wanted = due(job, settings.keep, now)
    purged = {name: purge_run(job.run(name), what)["purged"] for name, what in wanted.items()}
    # what was written anew is mirrored again
    published += publish_released(job, settings.publish)
    write_metrics(job)
    check_clock(job, settings.keep, now)
    return {"published": published, "purged": purged}


def publish_released(job: JobFolder, url: str | None) -> list[str]:
    """Mirror below ``url`` the released runs that it has not as they are now; the runs that were.

    A mirror from before an erasure, a purge or another data key is not as the run is now.
    """
    if url is None:
        return []
    there, done = set[str](), []
    records = read_log(job)
    for record in records:
        name: str = record.body["run"]
        if record.type in (Event.RELEASED, Event.HELD, Event.REISSUED, Event.ROTATED, Event.SHREDDED):
            there.discard(name)
        elif record.body.get("published") == without_secrets(_place_of(url, name)):
            there.add(name)
    for name, own in standings(records).items():
        run, place = job.run(name), _place_of(url, name)
        if own.state == "released" and name not in there and is_finished(run):
            publish(run.root, place)
            # a URL can have a password in it
            shown, digest = without_secrets(place), file_sha256(run.manifest)
            enter(run, Event.EXPORTED, published=shown, manifest=digest)
            done.append(name)
    return done


def _place_of(url: str, run: str) -> str:
    return f"{url.rstrip('/')}/{run}"
