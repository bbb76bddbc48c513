"""How a scheduled run ends: judged, entered in the log, and then all that follows from what was decided.

A decision is a record first.  What follows from it (the index, ``latest``, metrics, publishing, hooks) is
read off the log, can be repeated, and is done by whoever comes next where a process was cut off.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from redactory.dedup.index import Entry, IndexFolder
from redactory.evaluation.drift import DriftSettings, Finding, compare, figures_of
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
from redactory.pipelines.erase import check_clock, due, purge_run
from redactory.pipelines.index import index_of, promote_finished
from redactory.pipelines.journal import INDEX as PINNED
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.metrics import write_metrics
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
from redactory.pipelines.share import publish, what_forbids
from redactory.pipelines.store import without_secrets
from redactory.redaction import RunFolder, is_finished, read_manifest, seal
from redactory.redaction.folder import JobFolder

FORMAT = "redactory-gate/1"
INDEX = "index"
"""What follows from a rejection besides hooks: the index across runs counts nothing of the run any more."""


def judge(job: JobFolder, run: RunFolder, settings: DriftSettings) -> list[Finding]:
    """What of the finished ``run`` lies outside of the limits that the job's earlier runs give.

    An empty list: the run may be released.  All that was compared is sealed in the run (``run.gate``), and
    its report shows it.  Earlier runs are those before it in the log that are released now; what was tried
    again from a quarantine is not like a scheduled run, and is left out.
    """
    earlier = earlier_runs(job, run)[-settings.runs :]
    manifest, before = read_manifest(run), [read_manifest(one) for one in earlier]
    compared = compare([figures_of(one) for one in before], figures_of(manifest), settings)
    outside = [finding for finding in compared if finding.outside]

    def policies(body: dict[str, Any]) -> list[str]:
        return [policy["hash"] for policy in body["policies"].values()]

    names, now = [one.root.name for one in earlier], policies(manifest)
    result: dict[str, Any] = {
        "verdict": "outside" if outside else "within" if len(earlier) >= settings.least else "too few",
        "empty": holds_nothing(manifest["counts"]),
        "runs": names,
        "other_policies": [n for n, body in zip(names, before, strict=True) if policies(body) != now],
        "settings": settings.model_dump(mode="json"),
        "compared": [{**f.to_json(), "outside": f.outside, "history": list(f.history)} for f in compared],
    }
    kept = run.gate
    make_private_folder(kept.root)
    kept.success.unlink(missing_ok=True)
    write_json(kept.root / "result.json", result)
    seal(kept, {"format": FORMAT, "parent": file_sha256(run.manifest)}, [kept.root / "result.json"])
    write_report(run)
    return outside


def earlier_runs(job: JobFolder, run: RunFolder) -> list[RunFolder]:
    """The released runs before ``run``, oldest first; those whose folder is gone are left out."""
    records, own = read_log(job), run.root.resolve().name
    # a run that is judged again was begun, and perhaps held, before runs that came after it
    seen = next((n for n, r in enumerate(records) if r.body["run"] == own), len(records))
    retried = {record.body["into"] for record in records if record.type == Event.RETRIED}
    then, now = standings(records[:seen]), standings(records)
    released = [n for n, one in then.items() if one.state == now[n].state == "released" and n not in retried]
    return [one for name in released if is_finished(one := job.run(name))]


def end_scheduled(
    job: JobFolder, run: RunFolder, settings: NightlySettings, counts: Mapping[str, int]
) -> dict[str, Any]:
    """Release a run whose curation is finished, or hold it; its state, findings, and which hooks failed."""
    findings = [found.to_json() for found in judge(job, run, settings.drift)]
    if (why := what_forbids(read_manifest(run))) is not None:
        findings.append({"metric": "blind", "why": why})
    if holds_nothing(counts):
        # whoever reads what was released last would find nothing, however usual bad rows are
        findings.append({"metric": "no point to read", "label": "", "count": 0})
    event = Event.HELD if findings else Event.RELEASED
    facts: dict[str, Any] = {"manifest": file_sha256(run.manifest), "counts": counts}
    facts |= {"findings": findings} if findings else {}
    failed = decide(job, run, event, facts, settings)
    return {"state": event.value, "findings": findings, "hooks_failed": failed}


def after_failure(job: JobFolder, run: RunFolder, settings: NightlySettings, error: RedactoryError) -> None:
    """Enter that a scheduled run failed, and call the hook.  Messages of our own errors hold no text."""
    record = _entered(run, Event.FAILED, {"error": str(error)}, settings)
    with suppress(RedactoryError, OSError):
        # the error itself is what is to be reported
        write_metrics(job)
    if record.body.get(FOLLOWS):
        _followed(job, record, settings)


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


def carry_out(job: JobFolder, config: Given | NightlySettings | None) -> dict[str, list[str]]:
    """Do what follows from the decisions of a job and is not done: of each run concerned, the failed hooks.

    ``config`` is whose hooks are called; by default that of the file that each run was begun with.  Asked
    again and again it does what is left, and nothing twice, but for a hook that was called by a process that
    came no further.
    """
    left = undone(read_log(job))
    for record in left:
        run = job.run(record.body["run"])
        if INDEX in record.body[FOLLOWS] and is_finished(run):
            entries_of(run, lambda index, entry: index.remove(entry.folder))
    done: dict[str, list[str]] = {run: [] for run in point_latest(job)}
    write_metrics(job)
    for record in left:
        settings = settings_of(config, standings(read_log(job))[record.body["run"]])
        if settings is not None or record.body[FOLLOWS] == [INDEX]:
            # without settings a hook waits for a scheduled run, which has them
            done[record.body["run"]] = _followed(job, record, settings)
    return done


def _followed(job: JobFolder, record: Record, settings: NightlySettings | None) -> list[str]:
    """Call the hook of a record, and enter that what follows from it is done; the hooks that failed."""
    run, failed = job.run(record.body["run"]), list[str]()
    if settings is not None:
        facts = {name: value for name, value in record.body.items() if name not in ("run", "time", FOLLOWS)}
        failed = call_hooks(settings.hooks, Event(record.type), job, run, facts)
    enter(run, Event.DONE, of=record.seq, **({"failed": failed} if failed else {}))
    return failed


def settings_of(config: Given | NightlySettings | None, own: Standing) -> NightlySettings | None:
    """The section ``nightly`` of ``config``, or of the file that a run was begun with; None without one."""
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


# What follows: the index without a rejected run, ``latest``, what is mirrored, purged and reported.


def entries_of(
    run: RunFolder, each: Callable[[IndexFolder, Entry], None] = lambda _index, _entry: None
) -> list[str]:
    """The names of the entries of an index across runs that count for ``run``, which is finished.

    ``each`` of them is handed on while nobody else changes the index.
    """
    index = index_of(read_manifest(run))
    if index is None:
        return []
    tokens = {record.body["token"] for record in read_records(run.journal) if record.type == PINNED}
    with index.alone():
        promote_finished(index)
        own = [entry for entry in index.entries() if entry.body["token"] in tokens]
        for entry in own:
            each(index, entry)
    return [entry.name for entry in own]


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


def put_in_order(job: JobFolder, settings: NightlySettings) -> None:
    """Do what a crash may have left undone: a takedown or a purge amid its work, what decisions ask for."""
    for name in standings(read_log(job)):
        finish_reissue(job.run(name))
    carry_out(job, settings)


def keep_house(job: JobFolder, settings: NightlySettings) -> dict[str, Any]:
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
    """Mirror below ``url`` the released runs that it has not as they are now; the runs that were."""
    done = []
    for name in [] if url is None else _unpublished(read_log(job), url):
        run, place = job.run(name), place_of(str(url), name)
        if is_finished(run):
            publish(run.root, place)
            # a URL can have a password in it
            url_shown = without_secrets(place)
            enter(run, Event.EXPORTED, published=url_shown, manifest=file_sha256(run.manifest))
            done.append(name)
    return done


def _unpublished(records: Iterable[Record], url: str) -> list[str]:
    """The released runs that ``url`` has not, or has as before a takedown, a purge or another key."""
    now, there = dict[str, str](), dict[str, str]()
    states = standings(kept := list(records))
    for record in kept:
        run, body = record.body["run"], record.body
        if record.type in (Event.RELEASED, Event.HELD, Event.REISSUED):
            now[run] = body["manifest"]
        elif record.type in (Event.ROTATED, Event.SHREDDED):
            # the manifest is the same, but a mirror has the data key as it was before
            there.pop(run, None)
        elif record.type == Event.EXPORTED and body.get("published") == without_secrets(place_of(url, run)):
            there[run] = body["manifest"]
    released = [run for run, own in states.items() if own.state == "released"]
    return [run for run in released if there.get(run) != now.get(run)]


def place_of(url: str, run: str) -> str:
    """Where a run of that name is mirrored."""
    return f"{url.rstrip('/')}/{run}"


# Hooks: an operator's own commands, which get to know how a scheduled run ended.


_CALLED = {
    Event.FAILED: "on_failure",
    Event.RELEASED: "on_release",
    Event.APPROVED: "on_release",
    Event.HELD: "on_held",
}
_GRACE_SECONDS = 2.0


def hook_of(hooks: HookSettings, event: Event) -> str | None:
    """The hook that is configured for ``event``; None where none is."""
    name = _CALLED.get(event)
    return name if name and getattr(hooks, name) else None


HOOK_SECONDS = 60.0
"""A hook that takes longer is ended, and counts as failed."""


def call_hooks(
    hooks: HookSettings, event: Event, job: JobFolder, run: RunFolder, facts: Mapping[str, Any]
) -> list[str]:
    """Call what is configured for ``event``; the hooks that failed, each with its exit code or its problem.

    ``facts`` are free of text.  Never raises.
    """
    hook = hook_of(hooks, event)
    if hook is None:
        return []
    message = {"event": event.value, "job": str(job.root), "run": str(run.root), **facts}
    problem = _call(getattr(hooks, hook), message, HOOK_SECONDS)
    return [] if problem is None else [f"{hook} ({problem})"]


def _call(command: Sequence[str], message: Mapping[str, Any], timeout: float) -> str | None:
    """Run ``command``; what went wrong.  After ``timeout`` seconds it is ended, with its children."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("REDACTORY_")}
    for name in ("event", "run", "job", "manifest", "error"):
        if message.get(name) is not None:
            # a value with a zero byte could not be handed on
            own[f"REDACTORY_{name.upper()}"] = str(message[name]).replace("\x00", "")
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(list(command), env=own, start_new_session=True, **quiet)  # type: ignore[call-overload]
    except (OSError, ValueError) as error:
        words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "no command"
        return f"it cannot be started: {words}"
    with process:
        try:
            process.communicate(json.dumps(message, default=str).encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_SECONDS)
            # what it left behind holds no pipe open for us
            with suppress(OSError):
                process.stdin.close()
            return f"it took longer than {timeout:g} s"
    return f"exit code {process.returncode}" if process.returncode else None
