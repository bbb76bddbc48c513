"""Nights that were begun and did not come to their end: which they are, and whether they can go on."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from redactory.foundation.errors import ConfigurationError, InputError, RedactoryError, RunStateError
from redactory.foundation.files import make_folder, make_private_folder, only_one
from redactory.foundation.keys import KEY_VARIABLE, load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.foundation.records import Record
from redactory.pipelines.config import Config
from redactory.pipelines.curate import check_before_reading, curate
from redactory.pipelines.journal import AnotherRun
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.nightly.ending import (
    End,
    after_failure,
    end_night,
    keep_house,
    place_of,
    put_in_order,
    run_name,
)
from redactory.pipelines.nightly.watermark import (
    Changed,
    Day,
    Look,
    Piece,
    Watermark,
    days_asked,
    of_day,
    planned,
    sources_of,
    watermark,
)
from redactory.pipelines.output_folder import check_keys, check_room
from redactory.pipelines.publish import check_store
from redactory.pipelines.readers import Source, find_by_path
from redactory.pipelines.release import COUNTS
from redactory.pipelines.release_log import Event, enter, latest_run, read_log, standings
from redactory.pipelines.sealed import sealed, wordless
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.folder import JobFolder


@dataclass(frozen=True)
class Begun:
    """A night as it stands in the log: its run, the day of its data (or None), what it reads."""

    run: str
    date: str | None
    slices: tuple[Piece, ...]


def unfinished(records: Iterable[Record]) -> list[Begun]:
    """The nights to be finished before anything new is read, oldest first.

    What was begun without a plan is no night, but another try of a quarantine: whoever asks for that again
    finishes it.
    """
    return [
        Begun(own.run, own.begun.body["date"], tuple(planned(own.begun)))
        for own in standings(records).values()
        if own.state in ("unfinished", "failed") and own.begun is not None and planned(own.begun)
    ]


# The plan of a night: what it reads of which file, settled before anything is curated.


_NAMED = 5
"""Changed files that a message lists."""


@dataclass(frozen=True)
class Plan:
    """What a night reads: ``slices``, and for each file with a last row that is not whole, its bytes."""

    slices: tuple[Piece, ...]
    waiting: tuple[tuple[str, int], ...] = ()

    @property
    def bytes(self) -> int:
        """New bytes to read, as they lie on the disk."""
        return sum(piece.bytes for piece in self.slices)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the release log."""
        return {
            "slices": [piece.to_json() for piece in self.slices],
            "waiting": [{"path": name, "bytes": size} for name, size in self.waiting],
        }


def plan_night(
    config: Config,
    seen: Watermark,
    again: Collection[str] = (),
    now: datetime.datetime | None = None,
    done: Collection[str] = (),
) -> Plan:
    """What of the files at ``input.path`` no night has read yet (``seen``); those of ``again`` whole.

    The files at the URLs ``done`` were read again already, for the same asking.
    ``ConfigurationError`` where a path names nothing, or ``again`` a file that is not in the input;
    ``InputError`` where rows that were read before are not there any more.
    """
    look = Look(
        config.input.max_row_bytes,
        now or datetime.datetime.now(datetime.UTC),
        datetime.timedelta(minutes=config.nightly.quiet_minutes),
    )
    sources = find_by_path(config.input.path, config.input.format)
    anew = _urls(again, sources, config.input.format).difference(done)
    slices: list[Piece] = []
    waiting: list[tuple[str, int]] = []
    changed: list[str] = []
    for source in sources:
        known = () if source.url in anew else seen.get(source.url, ())
        try:
            growth = look.growth(source, known)
        except Changed as how:
            changed.append(f"{source.name} ({how})")
            continue
        marked = source.url in anew and bool(seen.get(source.url))
        slices += [dataclasses.replace(piece, again=marked) for piece in growth.pieces]
        waiting += [(source.name, growth.waiting)] if growth.waiting else []
    if changed:
        raise _refusal(changed)
    return Plan(tuple(slices), tuple(waiting))


def changed_since(pieces: Iterable[Piece]) -> list[str]:
    """The names of the planned files whose planned bytes are not there any more."""
    names = []
    for piece in pieces:
        source = Source(piece.url, piece.name, piece.format)
        try:
            grown = piece.whole and source.size() != piece.bytes
            same = not grown and piece.is_in(source)
        except (InputError, OSError):
            same = False
        names += [] if same or piece.name in names else [piece.name]
    return names


def _urls(again: Collection[str], sources: list[Source], format_: str) -> set[str]:
    urls = {source.url for source in find_by_path(tuple(again), format_)} if again else set()
    strange = urls - {source.url for source in sources}
    if strange:
        raise ConfigurationError(f"--again: {min(strange)} is no file of the input (input.path)")
    return urls


def _refusal(changed: list[str]) -> InputError:
    more = [f"and {len(changed) - _NAMED} more"] if len(changed) > _NAMED else []
    return InputError(
        f"changed since an earlier night read it: {', '.join([*changed[:_NAMED], *more])}. A night reads "
        "what is added at the end. Put the file back as it was, or read all of it as new: --again FILE"
    )


# A night: what is new in the input becomes a run of its own, which is released or held.


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
