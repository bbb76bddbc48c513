"""A scheduled run: what is new in the input becomes a run of its own, which is released or held."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import make_folder, make_private_folder, only_one
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.records import Record
from redactory.pipelines.config import Config
from redactory.pipelines.curate import check_before_reading, curate
from redactory.pipelines.gate import after_failure, end_scheduled, keep_house, place_of, put_in_order
from redactory.pipelines.journal import AnotherRun
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.output_folder import check_keys, check_room
from redactory.pipelines.readers import find_by_path
from redactory.pipelines.release import COUNTS
from redactory.pipelines.release_log import Event, enter, latest_run, read_log, standings
from redactory.pipelines.sealed import sealed, wordless
from redactory.pipelines.share import check_store
from redactory.pipelines.watermark import (
    Day,
    Piece,
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
    """Curate what is new since the last scheduled run; ``{"job", "nights", "latest", "held", ...}``.

    ``output`` is the job's folder.  Where ``input.path`` holds ``{date}``, the run is of ``date``
    (YYYY-MM-DD; today in UTC by default), or there is one for each day from ``first`` to ``last``.  The files
    of ``again`` are read whole, though they were read before.  ``curating`` carries a run out.

    Raises what ``curate`` raises, ``InputError`` where a file changed that was read before, and
    ``RunStateError`` where another scheduled run of the job is at work.
    """
    settings = load_config(config, output=output, workers=workers)
    days = days_asked(settings, date, first, last, datetime.datetime.now(datetime.UTC).date())
    job = JobFolder(Path(settings.output))
    _check(job, settings)
    make_folder(job.root)
    make_private_folder(job.own)
    # whoever approves a run later asks its file for the hooks
    is_file = isinstance(config, str | Path) and Path(config).suffix in (".yaml", ".yml")
    file = str(Path(str(config)).absolute()) if is_file else None
    scheduled = _Scheduled(job, settings, file, tuple(again), curating, progress)
    with only_one(job.lock, str(job.root)):
        scheduled.of_no_run("what was cut off was finished", put_in_order)
        left = unfinished(read_log(job))
        # asked once more after a crash, --again is not another asking
        done = [piece.url for begun in left for piece in begun.slices if piece.again]
        ended = [scheduled.finished(begun) for begun in left]
        ended += [scheduled.of(day, done, one_of_many=len(days) > 1) for day in days]
        kept = scheduled.of_no_run("runs were published or purged", keep_house)
    return {
        "job": str(job.root),
        "nights": ended,
        **kept,
        "latest": str(job.latest.resolve()) if job.latest.is_symlink() else None,
        "held": [run for run, own in standings(read_log(job)).items() if own.state == "held"],
    }


@dataclass(frozen=True)
class Begun:
    """A scheduled run as it stands in the log: its name, the day of its data (or None), what it reads."""

    run: str
    date: str | None
    slices: tuple[Piece, ...]


def unfinished(records: Iterable[Record]) -> list[Begun]:
    """The scheduled runs to be finished before anything new is read, oldest first.

    What was begun without a plan is another try of a quarantine: whoever asks for that again finishes it.
    """
    return [
        Begun(own.run, own.begun.body["date"], tuple(planned(own.begun)))
        for own in standings(records).values()
        if own.state in ("unfinished", "failed") and own.begun is not None and planned(own.begun)
    ]


@dataclass(frozen=True)
class _Scheduled:
    """The scheduled runs of one call, under the job's lock."""

    job: JobFolder
    config: Config
    file: str | None
    again: tuple[str, ...]
    curating: Curating
    progress: Progress

    def of_no_run(self, what: str, work: Callable[..., T]) -> T:
        """Do what concerns no single run; a failure is reported as the last release's, and undoes none."""
        try:
            return wordless(what, work, self.job, self.config.nightly)
        except RedactoryError as error:
            if (latest := latest_run(read_log(self.job))) is not None:
                after_failure(self.job, self.job.run(latest), self.config.nightly, error)
            raise

    def finished(self, begun: Begun) -> dict[str, Any]:
        """Finish what was begun, or give it up where its input is not there any more."""
        run = self.job.run(begun.run)
        gone = [] if is_finished(run) else changed_since(begun.slices)
        if not gone:
            return self._carried_out(begun, resumed=True)
        # nothing of it was released: what is there now is read in its place
        reason = f"its input changed before it was finished: {', '.join(gone[:5])}"
        enter(run, Event.REJECTED, by="redactory nightly", reason=reason)
        return {"run": begun.run, "date": begun.date, "state": "rejected", "reason": reason}

    def of(self, day: Day, done: Sequence[str], *, one_of_many: bool) -> dict[str, Any]:
        """Read what is new of a day; the files ``done`` are not read again, whoever asks for that."""
        records, now = read_log(self.job), datetime.datetime.now(datetime.UTC)
        date = None if day is None else day.isoformat()
        run, config = self.job.run(_name(self.job, standings(records), day, now)), of_day(self.config, day)
        if one_of_many and not _is_there(config):
            return {"run": None, "date": date, "state": "nothing there"}
        try:
            look = (config, watermark(records), self.again, now, done)
            plan = wordless("the input was looked at", plan_reading, *look)
            waiting = plan.to_json()["waiting"]
            if not plan.slices:
                return {"run": None, "date": date, "state": "nothing new", "waiting": waiting}
            reads = ((piece.url, piece.bytes) for piece in plan.slices)
            check_room(load_config(config, output=run.root), reads)
            if config.nightly.publish is not None:
                check_store(place_of(config.nightly.publish, run.root.name), run)
        except RedactoryError as error:
            after_failure(self.job, run, config.nightly, error)
            raise
        enter(run, Event.BEGUN, date=date, plan=plan.to_json(), config=self.file)
        return {**self._carried_out(Begun(run.root.name, date, plan.slices)), "waiting": waiting}

    def _carried_out(self, begun: Begun, *, resumed: bool = False) -> dict[str, Any]:
        run = self.job.run(begun.run)
        day = None if begun.date is None else datetime.date.fromisoformat(begun.date)
        config = load_config(of_day(self.config, day), output=run.root)
        try:
            sources = sources_of(begun.slices)
            summary = self.curating(config, resume=True, sources=sources, progress=self.progress)
            counts = {name: summary[name] for name in COUNTS}
            ended = sealed(run.state, end_scheduled, self.job, run, config.nightly, counts)
        except RedactoryError as error:
            mended = error
            if resumed and isinstance(error, AnotherRun):
                # another configuration, or another version: it can never be resumed
                mended = RunStateError(
                    f"{error} (to give up what {run.root.name} has done, and read its material anew: "
                    f"redactory release reject {run.root} --by NAME --reason TEXT)"
                )
            after_failure(self.job, run, config.nightly, mended)
            raise mended from None
        result = {"run": str(run.root), "date": begun.date, **ended, "resumed": resumed}
        return {**result, "counts": counts, "report": str(run.report)}


def _name(job: JobFolder, taken: Collection[str], day: Day, now: datetime.datetime) -> str:
    """The date of the data, or the second at which the run began (UTC); ``-2`` and on where it is taken."""
    name = now.strftime("%Y-%m-%dT%H%M%SZ") if day is None else day.isoformat()
    number, free = 1, name
    while free in taken or os.path.lexists(job.root / free):
        number += 1
        free = f"{name}-{number}"
    return free


def _is_there(config: Config) -> bool:
    try:
        return bool(find_by_path(config.input.path, config.input.format))
    except ConfigurationError:
        return False


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
            "output: a scheduled run writes in a folder of this machine; name one, and under nightly.publish "
            "the URL that released runs go to"
        )
    if load_digest_key().fresh:
        raise ConfigurationError(
            f"a scheduled run needs a key that later ones have too: set {KEY_VARIABLE} or "
            f"{KEY_VARIABLE}_FILE (redactory keys new digest FILE makes one)"
        )
