"""Purge: the original text of a finished run, taken away once it has served; the shards stay as they are."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from redactory.foundation.errors import CheckFailed, ConfigurationError
from redactory.foundation.files import only_one
from redactory.foundation.records import SILENCE, ages, read_records
from redactory.pipelines.reissue import Change, alone, begin, pending, reissue
from redactory.pipelines.release_log import Event, check_newest
from redactory.pipelines.sealed import sealed
from redactory.pipelines.takedown.takedown import is_training, trainings_of
from redactory.redaction import RunFolder, is_finished, parts, read_manifest
from redactory.redaction.folder import JobFolder, job_of

PURGE = "purge"
What = Literal["vault", "quarantine", "state"]
ALL: tuple[What, ...] = get_args(What)
_DECIDED = (Event.RELEASED, Event.APPROVED, Event.REJECTED)
_GATE = (*_DECIDED, Event.HELD)


class Keep(Protocol):
    """For how many days after its release each part of a run is kept; for good where it is None."""

    @property
    def vault_days(self) -> int | None: ...
    @property
    def quarantine_days(self) -> int | None: ...
    @property
    def state_days(self) -> int | None: ...


def purge(run: str | Path, what: Collection[What], *, by: str | None = None) -> dict[str, Any]:
    """:func:`purge_run` for a person (``by``), alone in the run's job."""
    folder = RunFolder(Path(run))
    with ExitStack() as locks:
        if (job := job_of(folder)) is not None:
            locks.enter_context(only_one(job.lock, str(job.root)))
        return purge_run(folder, what, by=by)


def purge_run(
    run: RunFolder | str | Path, what: Collection[What], *, by: str | None = None
) -> dict[str, Any]:
    """Take ``what`` away from a finished run, for good: ``{"run", "purged", "release", "bytes", "already"}``.

    ``vault`` and ``quarantine`` are all their parts; ``state`` is samples to label, sealed tracebacks and
    Prefect's home: never the journal, the data key or what was measured.  What is gone already is in
    ``already``; where nothing is left to do, ``release`` is None.  The job's lock is the caller's to hold.
    ``ConfigurationError`` for an unknown name, ``RunStateError`` for a run that is not finished, and for one
    on which a model is being trained.
    """
    unknown = sorted(set(what) - set(ALL))
    if unknown or not what:
        told = f", not {unknown[0]}" if unknown else ""
        raise ConfigurationError(f"purge one or more of {', '.join(ALL)}{told}")
    folder = run if isinstance(run, RunFolder) else RunFolder(Path(run))
    if not pending(folder):
        # a place that holds no run gets no lock and no folder by being asked for
        read_manifest(folder)
    return sealed(folder.state, _purge, folder, [name for name in ALL if name in what], by)


def due(job: JobFolder, settings: Keep, now: datetime.datetime) -> dict[str, tuple[What, ...]]:
    """What of which run is older than ``settings`` allow, by the release log: {run name: what}.

    A run's age counts from the moment at which it was decided on, released, approved or rejected; one that is
    held waits for that.  Nothing is older than the log can bear out (:func:`_ages`).  What was purged before
    is not due again, nor is anything of a run that is not finished, or gone; a run on which a model is being
    trained waits until it is.
    """
    return _due(job, settings, {name: borne for name, (_, borne) in _ages(job, now).items()})


def check_clock(job: JobFolder, settings: Keep, now: datetime.datetime) -> None:
    """``CheckFailed`` where runs are due by this machine's clock, and not by the log's."""
    by_clock = _due(job, settings, {name: told for name, (told, _) in _ages(job, now).items()})
    by_log = due(job, settings, now)
    if doubted := sorted(name for name, what in by_clock.items() if what != by_log.get(name)):
        raise CheckFailed(
            f"{job.root}: by the clock of this machine ({now:%Y-%m-%d}) {', '.join(doubted[:5])} "
            f"{'is' if len(doubted) == 1 else 'are'} to be purged, and the times in the release log do not "
            f"bear that clock out (more than {SILENCE.days} days from one record to the next, or a step "
            "back): nothing of it was purged. Set the clock; if it is right, purge by hand (redactory purge)"
        )


def _ages(job: JobFolder, now: datetime.datetime) -> dict[str, tuple[datetime.timedelta, datetime.timedelta]]:
    """How old each run is since it was decided on, by the clock alone, and as far as the log bears it out."""
    records = read_records(job.log) if job.log.is_file() else []
    times = [datetime.datetime.fromisoformat(record.body["time"]) for record in records]
    decided = {r.body["run"]: r for r in records if r.type in _GATE}
    borne = ages([*times, now])
    return {
        name: (now - times[record.seq], borne[record.seq])
        for name, record in decided.items()
        if record.type in _DECIDED
    }


def _due(
    job: JobFolder, settings: Keep, ages: Mapping[str, datetime.timedelta]
) -> dict[str, tuple[What, ...]]:
    days = {name: getattr(settings, f"{name}_days") for name in ALL}
    found: dict[str, tuple[What, ...]] = {}
    for name, age in ages.items():
        run = job.run(name)
        if not is_finished(run):
            continue
        gone = read_manifest(run).get("purged", ())
        old = [w for w in ALL if (keep := days[w]) is not None and age > datetime.timedelta(days=keep)]
        left = tuple(w for w in old if w not in gone)
        if left and not is_training(run):
            found[name] = left
    return found


def _purge(run: RunFolder, what: list[What], by: str | None) -> dict[str, Any]:
    with alone(run):
        # else a folder that was put back would become the newest release, with whom a takedown took out
        check_newest(run)
        before = read_manifest(run).get("purged", [])
        # state fills again: each sample that is drawn is another one
        wanted = [name for name in what if name not in before or (name == "state" and _state(run))]
        told = {"run": str(run.root), "purged": wanted, "already": [n for n in what if n not in wanted]}
        if not wanted:
            return {**told, "release": None, "bytes": 0}
        # one at work would find another manifest at its end, and be lost
        trainings_of(run)
        staging = begin(run, None)
        gone = [path for name in wanted if name != "state" for path in parts(getattr(run, name))]
        for path in gone:
            staging.drop(path)
        forget = tuple(_state(run)) if "state" in wanted else ()
        size = sum(map(_size, (*gone, *forget)))
        change = Change(
            why=PURGE,
            body={"purged": sorted({*before, *wanted})},
            told={"purged": wanted},
            entered={"what": wanted, "bytes": size, **({} if by is None else {"by": by})},
            forget=forget,
        )
        return {**told, "release": reissue(staging, change)["release"], "bytes": size}


def _state(run: RunFolder) -> list[Path]:
    """What of ``state/`` can hold original text, or quote it, and is no record of the run."""
    return [path for path in (run.samples, run.orchestrator, *run.tracebacks()) if path.exists()]


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in (path.rglob("*") if path.is_dir() else [path]) if p.is_file())
