"""The gate: a finished run beside the runs that its job released before."""

from __future__ import annotations

import datetime
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.dedup.index import Entry, IndexFolder
from redactory.evaluation.drift import DriftSettings, Figures, Finding, compare, figures_of
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RedactoryError
from redactory.foundation.files import (
    TEMPORARY_PREFIX,
    make_private_folder,
    remove_leftovers,
    sync,
    write_json,
)
from redactory.foundation.records import Record, read_records
from redactory.pipelines.config import HookSettings, NightlySettings
from redactory.pipelines.index import promote_finished
from redactory.pipelines.journal import INDEX as PINNED
from redactory.pipelines.leaving import what_forbids
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.nightly.metrics import write_metrics
from redactory.pipelines.nightly.watermark import Day
from redactory.pipelines.publish import publish
from redactory.pipelines.purge import check_clock, due, purge_run
from redactory.pipelines.reissue import finish_reissue
from redactory.pipelines.release_log import (
    FOLLOWS,
    Event,
    Standing,
    enter,
    holds_nothing,
    latest_run,
    read_log,
    standings,
    undone,
)
from redactory.pipelines.store import without_secrets
from redactory.redaction import RunFolder, is_finished, read_manifest, seal
from redactory.redaction.folder import JobFolder

FORMAT = "redactory-gate/1"


def judge(job: JobFolder, run: RunFolder, settings: DriftSettings) -> list[Finding]:
    """What of the finished ``run`` lies outside of the limits that the job's earlier runs give.

    An empty list: the run may be released.  All that was compared is sealed in the run (``run.gate``), and
    its report shows it.  Earlier runs are those before it in the log that are released now; what was tried
    again from a quarantine is not like a night, and is left out.
    """
    earlier = earlier_runs(job, run)[-settings.runs :]
    manifest = read_manifest(run)
    before = [read_manifest(one) for one in earlier]
    history: list[Figures] = [figures_of(one) for one in before]
    compared = compare(history, figures_of(manifest), settings)
    changed = [
        one.root.name
        for one, body in zip(earlier, before, strict=True)
        if _policies(body) != _policies(manifest)
    ]
    _keep(run, settings, [one.root.name for one in earlier], changed, compared, manifest["counts"])
    return [finding for finding in compared if finding.outside]


def earlier_runs(job: JobFolder, run: RunFolder) -> list[RunFolder]:
    """The released runs before ``run``, oldest first; those whose folder is gone are left out."""
    records, own = read_log(job), run.root.resolve().name
    # a run that is judged again was begun, and perhaps held, before nights that came after it
    seen = next((n for n, r in enumerate(records) if r.body["run"] == own), len(records))
    released = [name for name, one in standings(records[:seen]).items() if one.state == "released"]
    retried = {record.body["into"] for record in records if record.type == Event.RETRIED}
    now = standings(records)
    wanted = (n for n in released if n not in retried and now[n].state == "released")
    return [one for name in wanted if is_finished(one := job.run(name))]


def _keep(
    run: RunFolder,
    settings: DriftSettings,
    runs: list[str],
    changed: list[str],
    compared: list[Finding],
    counts: dict[str, int],
) -> None:
    kept = run.gate
    make_private_folder(kept.root)
    kept.success.unlink(missing_ok=True)
    outside = any(finding.outside for finding in compared)
    result: dict[str, Any] = {
        "verdict": "outside" if outside else "within" if len(runs) >= settings.least else "too few",
        "empty": holds_nothing(counts),
        "runs": runs,
        "other_policies": changed,
        "settings": settings.model_dump(mode="json"),
        "compared": [
            {**finding.to_json(), "outside": finding.outside, "history": list(finding.history)}
            for finding in compared
        ],
    }
    out = kept.root / "result.json"
    write_json(out, result)
    seal(kept, {"format": FORMAT, "parent": file_sha256(run.manifest)}, [out])
    write_report(run)


def _policies(manifest: dict[str, Any]) -> list[str]:
    return [policy["hash"] for policy in manifest["policies"].values()]


# How a night's run is named, and the folder ``latest`` beside the runs.


def run_name(job: JobFolder, taken: Collection[str], day: Day, now: datetime.datetime) -> str:
    """The date of the data, or the second at which the night began (UTC); ``-2`` and on where it is taken."""
    name = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ") if day is None else day.isoformat()
    number, free = 1, name
    while free in taken or os.path.lexists(job.root / free):
        number += 1
        free = f"{name}-{number}"
    return free


def latest_of(job: JobFolder) -> str | None:
    """Where ``latest`` leads, as it says itself; None where there is no such link."""
    return os.readlink(job.latest) if job.latest.is_symlink() else None


def point_latest(job: JobFolder) -> set[str]:
    """Have ``latest`` lead to the run that the log says, or to nothing; the runs between which it moved.

    A reader finds the old one or the new, never none.  The job's lock is the caller's to hold.
    """
    before = latest_of(job)
    remove_leftovers(job.root, job.latest.name)
    temporary = job.root / f"{TEMPORARY_PREFIX}{secrets.randbits(48)}-{job.latest.name}"
    # asked as late as can be: between this and the rename nothing takes time
    run = latest_run(read_log(job))
    if before == run:
        return set()
    if run is None:
        job.latest.unlink()
    else:
        temporary.symlink_to(run)
        temporary.replace(job.latest)
    sync(job.root)
    return {name for name in (before, run) if name is not None}


# Released runs at a URL: which are not there yet, or not as they are now.


_WRITTEN = (Event.RELEASED, Event.HELD, Event.REISSUED)
"""The records that say which manifest a run has."""
_KEY_CHANGED = (Event.ROTATED, Event.SHREDDED)
"""After these the manifest is the same, but a mirror has the data key as it was before."""


def unpublished(records: Iterable[Record], url: str) -> list[str]:
    """The released runs that ``url`` has not, or has as before a takedown, a purge or another key."""
    kept = list(records)
    now = {r.body["run"]: r.body["manifest"] for r in kept if r.type in _WRITTEN}
    there: dict[str, str] = {}
    for record in kept:
        run = record.body["run"]
        if record.type == Event.EXPORTED and record.body.get("published") == _told(place_of(url, run)):
            there[run] = record.body["manifest"]
        elif record.type in _KEY_CHANGED:
            there.pop(run, None)
    released = [run for run, own in standings(kept).items() if own.state == "released"]
    return [run for run in released if there.get(run) != now.get(run)]


def publish_released(job: JobFolder, url: str | None) -> list[str]:
    """Mirror what :func:`unpublished` names; the runs that were.  Raises what ``publish`` raises."""
    done = []
    for name in [] if url is None else unpublished(read_log(job), url):
        run, place = job.run(name), place_of(url, name)
        if place is None or not is_finished(run):
            continue
        publish(run.root, place)
        enter(run, Event.EXPORTED, published=_told(place), manifest=file_sha256(run.manifest))
        done.append(name)
    return done


def _told(place: str | None) -> str | None:
    """As it stands in the log: a URL can have a password in it."""
    return None if place is None else without_secrets(place)


def place_of(url: str | None, run: str) -> str | None:
    """Where a run of that name is mirrored; None where nothing is."""
    return None if url is None else f"{url.rstrip('/')}/{run}"


# Hooks: an operator's own commands, told how a night ended.


OWN = "REDACTORY_"
_CALLED = {
    Event.FAILED: "on_failure",
    Event.RELEASED: "on_release",
    Event.APPROVED: "on_release",
    Event.HELD: "on_held",
}
_GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class Called:
    """How a hook's command ended: ``code`` is None where it could not be started or took too long."""

    hook: str
    code: int | None
    seconds: float
    problem: str | None = None

    @property
    def good(self) -> bool:
        """Whether it ended with 0."""
        return self.code == 0


def hook_of(hooks: HookSettings | None, event: Event) -> str | None:
    """The hook that is configured for ``event``; None where none is."""
    name = _CALLED.get(event)
    return name if name and hooks is not None and getattr(hooks, name) else None


def call_hooks(
    hooks: HookSettings, event: Event, job: JobFolder, run: RunFolder, facts: Mapping[str, Any]
) -> list[str]:
    """Call what is configured for ``event``; the hooks that failed, each with its exit code or its problem.

    ``facts`` are free of text.  Never raises.
    """
    hook = hook_of(hooks, event)
    if hook is None:
        return []
    done = call(hook, getattr(hooks, hook), message(event, job, run, facts), hooks.timeout_seconds)
    return [] if done.good else [f"{hook} ({done.problem or f'exit code {done.code}'})"]


def message(event: Event, job: JobFolder, run: RunFolder, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a hook is told."""
    return {"event": event.value, "job": str(job.root), "run": str(run.root), **facts}


def call(hook: str, command: Sequence[str], told: Mapping[str, Any], timeout: float) -> Called:
    """Run ``command`` with what it is ``told``; after ``timeout`` seconds it is ended, with its children."""
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(told),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "no command"
        return Called(hook, None, time.monotonic() - start, f"it cannot be started: {words}")
    with process:
        try:
            process.communicate(json.dumps(told, default=str).encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            return Called(hook, None, time.monotonic() - start, f"it took longer than {timeout:g} s")
    return Called(hook, process.returncode, time.monotonic() - start)


def _environment(told: Mapping[str, Any]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    facts = {name.upper(): told.get(name) for name in ("event", "run", "job", "manifest", "error")}
    # a value with a zero byte could not be handed on
    return kept | {f"{OWN}{n}": str(v).replace("\x00", "") for n, v in facts.items() if v is not None}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and all that it started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    # what it left behind holds no pipe open for us
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


# How a night ends: judged, entered in the log, ``latest`` moved; and what is kept in order around it.


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
