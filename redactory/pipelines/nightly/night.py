"""A night: what is new in the input becomes a run of its own, which is released or held.

Everything that a night goes by stands in the release log of its job.  It enters what it will read before
it reads, and what became of it at the end; a night that was killed in between is finished by the next one.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import make_folder, make_private_folder
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key
from redactory.foundation.locks import only_one
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import Config
from redactory.pipelines.curate import check_before_reading, curate
from redactory.pipelines.differences import AnotherRun
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.nightly.begun import Begun, unfinished
from redactory.pipelines.nightly.dates import Day, days_asked, of_day
from redactory.pipelines.nightly.ending import End, after_failure, end_night, keep_house, put_in_order
from redactory.pipelines.nightly.names import run_name
from redactory.pipelines.nightly.pieces import sources_of
from redactory.pipelines.nightly.plan import changed_since, plan_night
from redactory.pipelines.nightly.publishing import place_of
from redactory.pipelines.nightly.watermark import watermark
from redactory.pipelines.preflight import check_keys, check_room
from redactory.pipelines.readers.sources import find_by_path
from redactory.pipelines.release import COUNTS
from redactory.pipelines.releases.log import Event, enter, latest_run, read_log, standings
from redactory.pipelines.sealed import sealed, wordless
from redactory.pipelines.stores.publish import check_store
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.job_folder import JobFolder

T = TypeVar("T")
Curating = Callable[..., Mapping[str, Any]]
"""``curate``, or what stands in for it: takes a configuration, ``resume``, ``sources`` and ``progress``."""


def nightly(
    config: Given,
    *,
    output: str | Path | None = None,
    date: str | None = None,
    first: str | None = None,
    last: str | None = None,
    again: Sequence[str] = (),
    workers: int | None = None,
    curating: Curating = curate,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Curate what is new since the night before; ``{"job", "nights", "latest", "held", ...}``.

    ``output`` is the job's folder.  Where ``input.path`` holds ``{date}``, the night is of ``date``
    (YYYY-MM-DD; today in UTC by default), or there is one for each day from ``first`` to ``last``.  The files
    of ``again`` are read whole, though nights have read them before.  ``curating`` carries a run out.

    Raises what ``curate`` raises, ``InputError`` where a file changed that was read before, and
    ``RunStateError`` where another night of the job is at work.
    """
    settings = load_config(config, output=output, workers=workers)
    now = datetime.datetime.now(datetime.UTC)
    days = days_asked(settings, date, first, last, now.date())
    job = JobFolder(Path(settings.output))
    _check_job(job)
    _check_config(settings)
    make_folder(job.root)
    make_private_folder(job.own)
    nights = _Nights(job, settings, _file_of(config), tuple(again), curating, progress)
    with only_one(job.lock, str(job.root)):
        nights.put_in_order()
        # asked once more after a crash, --again is not another asking
        done = [p.url for night in unfinished(read_log(job)) for p in night.slices if p.again]
        ended = [*nights.finish(), *nights.of_days(days, done)]
        kept = nights.keep()
    return {
        "job": str(job.root),
        "nights": ended,
        **kept,
        "latest": str(job.latest.resolve()) if job.latest.is_symlink() else None,
        "held": [run for run, own in standings(read_log(job)).items() if own.state == "held"],
    }


@dataclass(frozen=True)
class _Nights:
    """The nights of one call, under the job's lock."""

    job: JobFolder
    config: Config
    file: str | None
    again: tuple[str, ...]
    curating: Curating
    progress: Progress

    def put_in_order(self) -> None:
        """Finish a takedown or a purge that was cut off, and have ``latest`` lead where it is to."""
        self._told("what was cut off was finished", put_in_order, self.job, self.config.nightly)

    def finish(self) -> Iterator[dict[str, Any]]:
        """Finish what earlier nights left unfinished, oldest first."""
        for night in unfinished(read_log(self.job)):
            run = self.job.run(night.run)
            gone = [] if is_finished(run) else changed_since(night.slices)
            if gone:
                # nothing of it was released: what is there now is read in its place
                reason = f"its input changed before it was finished: {', '.join(gone[:5])}"
                enter(run, Event.REJECTED, by="redactory nightly", reason=reason)
                yield {"run": night.run, "date": night.date, "state": "rejected", "reason": reason}
            else:
                yield self._carried_out(night, resumed=True)

    def of_days(self, days: list[Day], done: Sequence[str]) -> Iterator[dict[str, Any]]:
        """A night for each day, in order; the files ``done`` are not read again, whoever asks for that."""
        for day in days:
            yield self._night(day, done, one_of_many=len(days) > 1)

    def keep(self) -> dict[str, Any]:
        """Publish and purge."""
        return self._told("runs were published or purged", keep_house, self.job, self.config.nightly)

    def _told(self, what: str, work: Callable[..., T], *arguments: Any) -> T:
        """Do what is of no single night; a failure is told as the last release's, and takes none back."""
        try:
            return wordless(what, work, *arguments)
        except RedactoryError as error:
            latest = latest_run(read_log(self.job))
            if latest is not None:
                after_failure(self.job, self.job.run(latest), self.config.nightly, error)
            raise

    def _night(self, day: Day, done: Sequence[str], *, one_of_many: bool) -> dict[str, Any]:
        records = read_log(self.job)
        now = datetime.datetime.now(datetime.UTC)
        date = None if day is None else day.isoformat()
        run = self.job.run(run_name(self.job, standings(records), day, now))
        config = of_day(self.config, day)
        if one_of_many and not _is_there(config):
            return {"run": None, "date": date, "state": "nothing there"}
        try:
            plan = wordless(
                "the input was looked at", plan_night, config, watermark(records), self.again, now, done
            )
            waiting = plan.to_json()["waiting"]
            if not plan.slices:
                return {"run": None, "date": date, "state": "nothing new", "waiting": waiting}
            reads = ((piece.url, piece.bytes) for piece in plan.slices)
            check_room(load_config(config, output=run.root), reads)
            check_store(place_of(config.nightly.publish, run.root.name), run)
        except RedactoryError as error:
            after_failure(self.job, run, config.nightly, error)
            raise
        enter(run, Event.BEGUN, date=date, plan=plan.to_json(), config=self.file)
        return {**self._carried_out(Begun(run.root.name, date, plan.slices)), "waiting": waiting}

    def _carried_out(self, night: Begun, *, resumed: bool = False) -> dict[str, Any]:
        run = self.job.run(night.run)
        day = None if night.date is None else datetime.date.fromisoformat(night.date)
        config = load_config(of_day(self.config, day), output=run.root)
        try:
            summary = self.curating(
                config, resume=True, sources=sources_of(night.slices), progress=self.progress
            )
            end = End(self.job, run, config.nightly, {name: summary[name] for name in COUNTS})
            told = sealed(run.state, end_night, end)
        except RedactoryError as error:
            mended = _mended(error, run) if resumed else error
            after_failure(self.job, run, config.nightly, mended)
            raise mended from None
        return {
            "run": str(run.root),
            "date": night.date,
            **told,
            "resumed": resumed,
            "counts": end.counts,
            "report": str(run.report),
        }


def _mended(error: RedactoryError, run: RunFolder) -> RedactoryError:
    """With the way out of a night that can never be resumed (another configuration, another version)."""
    if not isinstance(error, AnotherRun):
        return error
    return RunStateError(
        f"{error} (to give up what {run.root.name} has done, and read its material anew: redactory release "
        f"reject {run.root} --by NAME --reason TEXT)"
    )


def _file_of(config: Given) -> str | None:
    """The configuration's file, where it is one: whoever approves the run later asks it for the hooks."""
    is_file = isinstance(config, str | Path) and Path(config).suffix in (".yaml", ".yml")
    return str(Path(config).absolute()) if isinstance(config, str | Path) and is_file else None


def _is_there(config: Config) -> bool:
    try:
        return bool(find_by_path(config.input.path, config.input.format))
    except ConfigurationError:
        return False


def _check_job(job: JobFolder) -> None:
    if job.root.exists() and not job.root.is_dir():
        raise RunStateError(f"{job.root} is a file; give another folder for the job's runs (output)")
    own = RunFolder(job.root)
    if own.state.is_dir() or is_finished(own):
        raise RunStateError(f"{job.root} is a run; give a folder for the runs of all nights (output)")


def _check_config(config: Config) -> None:
    check_keys()
    check_before_reading(config)
    if config.store is not None:
        raise ConfigurationError(
            "output: a night writes in a folder of this machine; name one, and under nightly.publish the URL "
            "that released runs go to"
        )
    if load_digest_key().fresh:
        raise ConfigurationError(
            f"a night needs a key that later nights have too: set {KEY_VARIABLE} or {KEY_VARIABLE}_FILE "
            "(redactory keys new digest FILE makes one)"
        )
