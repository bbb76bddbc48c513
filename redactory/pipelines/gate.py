"""How a scheduled run ends: judged, entered in the log, and then all that follows from what was decided.

A decision is a record first.  What follows from it (the index, ``latest``, metrics, hooks) is read off the
log, can be repeated, and is done by whoever comes next where a process was cut off.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from redactory.detectors.settings import public_of, public_words
from redactory.evaluation.drift import DriftSettings, Finding, compare, figures_of
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError, some
from redactory.foundation.files import PUBLIC_FILE, TEMPORARY_PREFIX, read_json, sync, write_text
from redactory.foundation.records import Record, read_records
from redactory.pipelines.config import NightlySettings
from redactory.pipelines.index import index_of, promote_finished
from redactory.pipelines.journal import INDEX as PINNED
from redactory.pipelines.loading import load_config
from redactory.pipelines.models import seal_result
from redactory.pipelines.output_folder import lock_run
from redactory.pipelines.release import FATES
from redactory.pipelines.release_log import (
    FOLLOWS,
    Event,
    Standing,
    enter,
    holds_nothing,
    latest_of,
    latest_run,
    read_log,
    standings,
    undone,
)
from redactory.pipelines.share import what_forbids
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.folder import JobFolder, job_of

FORMAT = "redactory-gate/1"
_INDEX = "index"
"""What follows from a rejection besides hooks: the index across runs counts nothing of the run any more."""


def judge(job: JobFolder, run: RunFolder, settings: DriftSettings) -> list[Finding]:
    """What of the finished ``run`` lies outside of the limits that the job's earlier runs give.

    All that was compared is sealed in the run (``run.gate``), and its report shows it.  Earlier runs are
    those before it in the log that are released now.
    """
    earlier = earlier_runs(job, run)[-settings.runs :]
    manifest, before = read_manifest(run), [read_manifest(one) for one in earlier]
    compared = compare([figures_of(one) for one in before], figures_of(manifest), settings)
    outside = [finding for finding in compared if finding.outside]
    hashes = [[p["hash"] for p in body["policies"].values()] for body in (*before, manifest)]
    names = [one.root.name for one in earlier]
    result: dict[str, Any] = {
        "verdict": "outside" if outside else "within" if len(earlier) >= settings.min_history else "too few",
        "empty": holds_nothing(manifest["counts"]),
        "runs": names,
        "other_policies": [name for name, own in zip(names, hashes, strict=False) if own != hashes[-1]],
        "settings": settings.model_dump(mode="json"),
        "compared": [{**f.to_json(), "outside": f.outside, "history": list(f.history)} for f in compared],
    }
    _keep(run, result)
    return outside


def _keep(run: RunFolder, result: Mapping[str, Any]) -> None:
    """Seal what was compared, and what was decided of it, in the run, whose report shows both."""
    seal_result(run.gate, result, {"format": FORMAT, "parent": file_sha256(run.manifest)})
    write_report(run)


def earlier_runs(job: JobFolder, run: RunFolder) -> list[RunFolder]:
    """The released runs before ``run``, oldest first; those whose folder is gone are left out."""
    records, own = read_log(job), run.root.resolve().name
    # a run that is judged again was begun, and perhaps held, before runs that came after it
    seen = next((n for n, r in enumerate(records) if r.body["run"] == own), len(records))
    then, now = standings(records[:seen]), standings(records)
    released = [n for n, one in then.items() if one.state == now[n].state == "released"]
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
        findings.append({"metric": "no readable example", "label": "", "count": 0})
    event, result = Event.HELD if findings else Event.RELEASED, read_json(run.gate.root / "result.json")
    facts: dict[str, Any] = {"manifest": file_sha256(run.manifest), "counts": counts}
    facts |= {"findings": findings} if findings else {}
    if (unjudged := why_unjudged(result)) is not None:
        facts["unjudged"] = unjudged
    failed = decide(job, run, event, facts, settings)
    return {"state": event.value, "findings": findings, "unjudged": unjudged, "hooks_failed": failed}


def why_unjudged(result: Mapping[str, Any]) -> str | None:
    """Why a run was not compared with earlier ones; None where it was."""
    if result["verdict"] != "too few":
        return None
    earlier, least = some(len(result["runs"]), "released run"), result["settings"]["min_history"]
    return f"not compared with earlier runs: {earlier} before it, but nightly.drift.min_history is {least}"


def after_failure(job: JobFolder, run: RunFolder, settings: NightlySettings, error: RedactoryError) -> None:
    """Enter that a scheduled run failed, and call the hook.  Messages of our own errors hold no text."""
    record = _entered(run, Event.FAILED, {"error": str(error)}, settings)
    with suppress(RedactoryError, OSError):
        # the error itself is what is to be reported
        write_metrics(job)
    if FOLLOWS in record.body:
        _call_and_enter(job, record, settings)


# Decisions, by the gate or by a person, and what follows from them.


def decide(
    job: JobFolder, run: RunFolder, event: Event, facts: Mapping[str, Any], settings: NightlySettings | None = None
) -> list[str]:
    """Enter what was decided of ``run``, and then do what follows from it; the hooks that failed."""
    name = run.root.resolve().name
    _entered(run, event, facts, settings or _settings_of(standings(read_log(job))[name]))
    if event in (Event.APPROVED, Event.REJECTED) and is_finished(run.gate):
        # the report must not go on saying that the run is held back
        by = {key: facts[key] for key in ("by", "reason")}
        _keep(run, {**read_json(run.gate.root / "result.json"), "decision": {"state": event.value, **by}})
    return carry_out(job, settings).get(name, [])


def _entered(run: RunFolder, event: Event, facts: Mapping[str, Any], settings: NightlySettings | None) -> Record:
    follows = [*([_INDEX] if facts.get("index") else []), *(["hook"] if settings and settings.hook else [])]
    return enter(run, event, **facts, **({FOLLOWS: follows} if follows else {}))


def carry_out(job: JobFolder, settings: NightlySettings | None = None) -> dict[str, list[str]]:
    """Do what follows from the decisions of a job and is not done: of each run concerned, the failed hooks.

    ``settings`` are whose hooks are called; by default those of the file that each run was begun with.  Asked
    again and again it does what is left, and nothing twice, but for a hook that was called by a process that
    came no further.
    """
    records = read_log(job)
    left, known = undone(records), standings(records)
    for record in left:
        run = job.run(record.body["run"])
        if _INDEX in record.body[FOLLOWS] and is_finished(run):
            _index_entries(run, remove=True)
    _point_latest(job)
    write_metrics(job)
    done: dict[str, list[str]] = {}
    for record in left:
        own = settings or _settings_of(known[record.body["run"]])
        if own is not None or record.body[FOLLOWS] == [_INDEX]:
            # without settings a hook waits for a scheduled run, which has them
            done[record.body["run"]] = _call_and_enter(job, record, own)
    return done


def _call_and_enter(job: JobFolder, record: Record, settings: NightlySettings | None) -> list[str]:
    run, failed = job.run(record.body["run"]), list[str]()
    if settings is not None:
        facts = {name: value for name, value in record.body.items() if name not in ("run", "time", FOLLOWS)}
        failed = call_hook(settings.hook, Event(record.type), job, run, facts)
    enter(run, Event.DONE, of=record.seq, **({"failed": failed} if failed else {}))
    return failed


def _settings_of(own: Standing) -> NightlySettings | None:
    """The section ``nightly`` of the file that a run was begun with; None without one.

    None where it is gone, or is another by now, too: what is decided about a run does not depend on it.
    """
    file = own.begun and own.begun.body.get("config")
    try:
        return load_config(file).nightly if file else None
    except RedactoryError:
        return None


def _index_entries(run: RunFolder, *, remove: bool = False) -> list[str]:
    """The names of the entries of an index across runs that count for ``run``, which is finished."""
    index = index_of(read_manifest(run))
    if index is None:
        return []
    tokens = {record.body["token"] for record in read_records(run.journal) if record.type == PINNED}
    with index.alone():
        promote_finished(index)
        own = [entry for entry in index.entries() if entry.body["token"] in tokens]
        for entry in own if remove else ():
            index.remove(entry.folder)
    return [entry.name for entry in own]


def _point_latest(job: JobFolder) -> None:
    """Have ``latest`` lead to the run that the log says, or to nothing.

    A reader finds the old one or the new, never none.  The job's lock is the caller's to hold.
    """
    before = latest_of(job)
    temporary = job.root / f"{TEMPORARY_PREFIX}{secrets.randbits(48)}-{job.latest.name}"
    # asked as late as can be: between this and the rename nothing takes time
    run = latest_run(read_log(job))
    if before == run:
        return
    if run is None:
        job.latest.unlink()
    else:
        temporary.symlink_to(run)
        temporary.replace(job.latest)
    sync(job.root)


# What a person decides about a run of a job.


LONGEST = 500
"""Characters of a name or a reason in the log."""


def approve_release(run: str | Path, by: str, reason: str, *, empty: bool = False) -> dict[str, Any]:
    """Release a held run all the same; ``latest`` leads to it, and the hook is called.

    The hook is that of the file that the run was begun with.  A run without a single point, public or
    private, is released with ``empty`` only.  ``{"run", "state", "latest", "empty", "public_labels",
    "hooks_failed"}``; ``RunStateError`` where the run is not held.
    """
    with _deciding(run, by, reason) as (folder, job, own):
        if own.state != "held":
            raise RunStateError(f"{own.run} is {own.state}: only a held run can be approved")
        manifest = read_manifest(folder)
        if (why := what_forbids(manifest)) is not None:
            raise CheckFailed(f"cannot release or export {folder.root}: {why}")
        if (nothing := holds_nothing(manifest["counts"])) and not empty:
            raise RunStateError(
                f"{own.run} has no example, public or private: readers of the latest release would find "
                "nothing. Check its quarantine and reject it, or approve it with --empty"
            )
        facts = {"by": by, "reason": reason, "manifest": file_sha256(folder.manifest)}
        more = {"empty": True} if nothing else {}
        failed = decide(job, folder, Event.APPROVED, {**facts, **more})
    result = {"run": str(folder.root), "latest": latest_of(job), "hooks_failed": failed}
    open_ = public_words(public_of(manifest))
    return {**result, "state": "released", "empty": nothing, "public_labels": open_}


def reject_release(run: str | Path, by: str, reason: str) -> dict[str, Any]:
    """Give a run up: it will not be released, and the next scheduled run reads its material as new.

    What it counted for in the index across runs is taken out.  ``left_out`` are later runs that went by it:
    a point of theirs that repeats one of this run was left out, and stays so.  The folder itself stays.
    """
    with _deciding(run, by, reason) as (folder, job, own):
        if own.state == "rejected":
            raise RunStateError(f"{own.run} was rejected before")
        entries = _index_entries(folder) if is_finished(folder) else []
        facts = {"by": by, "reason": reason, **({"index": entries} if entries else {})}
        failed = decide(job, folder, Event.REJECTED, facts)
    left_out = []
    for name in standings(read_log(job)) if entries else ():
        if is_finished(other := job.run(name)):
            pinned = read_manifest(other)["dedup"].get("index") or {"runs": []}
            left_out += [name] if set(entries) & set(pinned["runs"]) else []
    result = {"run": str(folder.root), "latest": latest_of(job), "hooks_failed": failed}
    return {**result, "state": "rejected", "index": entries, "left_out": left_out}


@contextmanager
def _deciding(place: str | Path, by: str, reason: str) -> Iterator[tuple[RunFolder, JobFolder, Standing]]:
    """A run, its job and how it stands, while nobody else writes; what an earlier process left is done."""
    for word in (by, reason):
        if not word.strip() or len(word) > LONGEST or not word.isprintable():
            raise ConfigurationError(f"--by and --reason: one line of 1 to {LONGEST} characters each")
    # "latest" may lead to another run soon
    run, job = RunFolder(Path(place).resolve()), job_of(RunFolder(Path(place)))
    if job is None:
        raise RunStateError(f"{run.root} does not belong to a job, so it was never held or released")
    with lock_run(run):
        carry_out(job)
        own = standings(read_log(job)).get(run.root.name)
        if own is None:
            raise RunStateError(f"{job.root} has no run {run.root.name}: see redactory release list {job.root}")
        yield run, job, own


# The hook: an operator's own command, which gets to know what became of a run.


HOOK_SECONDS = 60.0
"""A hook that takes longer is ended, with what it started, and counts as failed."""


def call_hook(
    command: Sequence[str], event: Event, job: JobFolder, run: RunFolder, facts: Mapping[str, Any]
) -> list[str]:
    """Call ``command``, where there is one; its exit code or its problem where it failed.  Never raises.

    ``facts`` are free of text.
    """
    if not command:
        return []
    message = {"event": event.value, "job": str(job.root), "run": str(run.root), **facts}
    own = {key: value for key, value in os.environ.items() if not key.startswith("REDACTORY_")}
    for key in ("event", "run", "job", "manifest", "error"):
        if message.get(key) is not None:
            # a value with a zero byte could not be handed on
            own[f"REDACTORY_{key.upper()}"] = str(message[key]).replace("\x00", "")
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(list(command), env=own, start_new_session=True, **quiet)  # type: ignore[call-overload]
    except (OSError, ValueError) as error:
        words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "no command"
        return [f"it cannot be started: {words}"]
    with process:
        try:
            process.communicate(json.dumps(message, default=str).encode(), timeout=HOOK_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            with suppress(OSError):
                process.stdin.close()
            return [f"it took longer than {HOOK_SECONDS:g} s"]
    return [f"exit code {process.returncode}"] if process.returncode else []


# Metrics: what the log and the last finished run say, for Prometheus' text-file collector.


def write_metrics(job: JobFolder) -> None:
    """Commit ``JOB/_job/metrics.prom``; ``CheckFailed`` where the log's chain is broken."""
    write_text(job.metrics, render_metrics(job, datetime.datetime.now(datetime.UTC)), PUBLIC_FILE)


def render_metrics(job: JobFolder, now: datetime.datetime) -> str:
    """The text of the file as of ``now``: of the last run, and counts over the log; no text, no ids."""
    registry, gauges = CollectorRegistry(), dict[str, Gauge]()
    for name, meaning, value, labels in _samples(job, now):
        given = {"folder": str(job.root.resolve()), **labels}
        # a folder's name, and a label in YAML, may hold what UTF-8 cannot
        plain = {key: text.encode("utf-8", "backslashreplace").decode() for key, text in given.items()}
        if name not in gauges:
            gauges[name] = Gauge(f"redactory_{name}", meaning, list(plain), registry=registry)
        gauges[name].labels(**plain).set(value)
    return generate_latest(registry).decode()


_Sample = tuple[str, str, float, dict[str, str]]
"""A metric's name and meaning, a value, and the labels that it is of."""


def _samples(job: JobFolder, now: datetime.datetime) -> Iterator[_Sample]:
    records, ends = read_log(job), (Event.RELEASED, Event.HELD, Event.FAILED)
    ended = [record for record in records if record.type in ends]
    released = [n for n, r in enumerate(records) if r.type in (Event.RELEASED, Event.APPROVED)]
    since = records[released[-1] + 1 :] if released else records
    missed = sum(record.type in (Event.HELD, Event.FAILED) for record in since)
    waiting = sum(one.state == "held" for one in standings(records).values())
    yield "last_check_timestamp_seconds", "When a run last looked for new material.", now.timestamp(), {}
    yield "nights_since_release", "Scheduled runs since the last release that ended without one.", missed, {}
    yield "held_runs", "Runs waiting to be approved or rejected.", waiting, {}
    if released:
        when = _when(records[released[-1]])
        yield "last_release_timestamp_seconds", "When a run was last released.", when, {}
    for end in ends:
        count = sum(record.type == end for record in ended)
        yield "nights_total", "Scheduled runs that ended, by how they did.", count, {"state": end.value}
    if ended:
        last = ended[-1]
        yield "last_night_timestamp_seconds", "When the last scheduled run ended.", _when(last), {}
        for end in ends:
            yield "last_night_state", "1 for how the last one ended.", last.type == end, {"state": end.value}
        begun = [r for r in records[: last.seq] if (r.type, r.body["run"]) == (Event.BEGUN, last.body["run"])]
        if begun:
            took = _when(last) - _when(begun[-1])
            yield "last_night_duration_seconds", "Duration of the last scheduled run.", took, {}
    finished = [job.run(r.body["run"]) for r in records if r.type in (Event.RELEASED, Event.HELD)]
    if finished and is_finished(finished[-1]):
        yield from _samples_of(read_manifest(finished[-1]))


def _samples_of(manifest: dict[str, Any]) -> Iterator[_Sample]:
    """Of the run that was finished last."""
    counts, index = manifest["counts"], manifest["dedup"].get("index")
    repeated = sum(index["duplicate_earlier"].values()) if index else 0
    for name in ("rows", "documents"):
        yield name, f"{name.capitalize()} of the last finished run.", counts[name], {}
    read = sum(entry["bytes"] for entry in manifest["inputs"])
    yield "input_bytes", "Bytes that it read.", read, {}
    written = sum(entry["bytes"] for entry in manifest["files"].values())
    yield "run_bytes", "Bytes of its files.", written, {}
    yield "curation_duration_seconds", "Time of the curation.", manifest["seconds"], {}
    for name, label, found in (
        ("points", "fate", {fate: counts[fate] for fate in FATES}),
        ("rejected_rows", "reason", manifest["rejected"]),
        ("quarantined_points", "reason", manifest["quarantined"]),
        ("duplicate_points", "of", {"run": counts["duplicate"] - repeated, "earlier": repeated}),
    ):
        for key, count in sorted(found.items()):
            yield (name, f"{name.replace('_', ' ').capitalize()} of the last finished run.", count, {label: key})
    for hit in manifest["hits"]:
        labels = {key: hit[key] for key in ("label", "detector", "policy")}
        yield "hits", "Spans of the policies, before overlapping ones are merged.", hit["count"], labels


def _when(record: Record) -> float:
    return datetime.datetime.fromisoformat(record.body["time"]).timestamp()
