"""What a person decides about a job's runs, and what the release log says of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.pipelines.gate import INDEX, carry_out, decide, entries_of, latest_of
from redactory.pipelines.loading import Given
from redactory.pipelines.output_folder import alone
from redactory.pipelines.release_log import (
    Event,
    Standing,
    check_whole,
    check_whole_of_run,
    history,
    holds_nothing,
    in_words,
    latest_run,
    put_back,
    read_log,
    standings,
)
from redactory.pipelines.share import check_may_leave
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.folder import JobFolder, job_of
from redactory.redaction.releases import present_release

LONGEST = 500
"""Characters of a name or a reason in the log."""


def list_releases(job: str | Path) -> dict[str, Any]:
    """``{"job", "latest", "runs": [{"run", "when", "state", "counts", "release", ...}], "problems"}``.

    The oldest is first.  Each has ``findings``, ``reason`` and ``by`` too.  ``counts`` are those of the run's
    present ``release`` where the run is there; else those of its gate, and ``release`` is None.
    ``problems`` are sentences: a run that is older than the log knows it, and a ``latest`` that leads to
    another run than the log says.
    ``RunStateError`` where the folder is no job's, ``CheckFailed`` where the log's chain is broken, or
    lacks records that a run of the job knew when it was sealed.
    """
    folder = JobFolder(Path(job))
    if not folder.exists():
        raise RunStateError(f"{folder.root} is not a job: give the folder that scheduled runs lie in")
    records = read_log(folder)
    check_whole(folder)
    known, latest = standings(records), latest_run(records)
    problems = [f"{name}: {why}" for name in known if (why := put_back(folder.run(name)))]
    if (leads_to := latest_of(folder)) not in (None, latest):
        problems.append(
            f"{folder.latest.name} leads to {leads_to}, and by the log it is {latest or 'none'}: "
            "the next scheduled run points it there, look at who moved it"
        )
    return {
        "job": str(folder.root),
        "latest": latest,
        "runs": [_listed(own, folder.run(own.run)) for own in known.values()],
        "problems": problems,
    }


def _listed(own: Standing, run: RunFolder) -> dict[str, Any]:
    said, ended = own.record.body, {} if own.ended is None else own.ended.body
    counts, release = ended.get("counts"), None
    try:
        if counts and is_finished(run):
            # a takedown made another release since: the log has what the run held at its gate
            release = present_release(run)
            counts = {name: release.manifest["counts"].get(name, was) for name, was in counts.items()}
    except RedactoryError:
        release = None  # verify reports it
    return {
        "run": own.run,
        "when": said["time"],
        "state": own.state,
        "counts": counts,
        "release": None if release is None else release.number,
        "findings": ended.get("findings", []),
        "reason": said.get("reason") or said.get("error"),
        "by": said.get("by"),
    }


def release_log(place: str | Path) -> dict[str, Any]:
    """``{"job", "records": [{"seq", "time", "run", "type", "words"}]}``: the log as an operator reads it.

    ``place`` is a job's folder or a run's.  Of a run there are the records about it: of its job's log, or of
    its own where it belongs to no job; ``job`` is then None.

    ``RunStateError`` where it is neither, and for a run that is not finished; ``CheckFailed`` where the log's
    chain is broken, or lacks records that a run knew when it was sealed.
    """
    folder, run = JobFolder(Path(place)), RunFolder(Path(place))
    job: JobFolder | None = folder if folder.exists() else None
    if job is None and not run.state.is_dir():
        raise RunStateError(
            f"{folder.root} is neither a job nor a run: give a run, or the folder that scheduled runs lie in"
        )
    of_job = job is not None
    job = job or job_of(run)
    if job is not None:
        check_whole(job)
    else:
        check_whole_of_run(run)
    records = read_log(folder) if of_job else history(run)
    lines = ({"seq": r.seq, **{k: r.body[k] for k in ("time", "run")}, "type": r.type} for r in records)
    words = map(in_words, records)
    return {
        "job": None if job is None else str(job.root),
        "records": [{**one, "words": line} for one, line in zip(lines, words, strict=True)],
    }


def approve_release(
    run: str | Path, by: str, reason: str, config: Given | None = None, *, empty: bool = False
) -> dict[str, Any]:
    """Release a held run all the same; ``latest`` leads to it, and the hooks of a release are called.

    ``config`` is the job's configuration; by default the file that the run was begun with.
    A run without a single point, public or private, is released with ``empty`` only.
    ``{"run", "state", "latest", "empty", "hooks_failed"}``; ``RunStateError`` where the run is not held.
    """

    def facts(own: Standing, folder: RunFolder) -> dict[str, Any]:
        if own.state != "held":
            raise RunStateError(f"{own.run} is {own.state}: only a run that is held can be approved")
        check_may_leave(folder)
        if not holds_nothing(read_manifest(folder)["counts"]):
            return {"manifest": file_sha256(folder.manifest)}
        if not empty:
            raise RunStateError(
                f"{own.run} holds no point, neither public nor private: whoever reads what was released "
                "last would find nothing. Look into its quarantine and reject it, or approve it with "
                "--empty"
            )
        return {"manifest": file_sha256(folder.manifest), "empty": True}

    result, body = _decided(RunFolder(Path(run)), Event.APPROVED, by, reason, config, facts)
    return {**result, "state": "released", "empty": body.get("empty", False)}


def reject_release(run: str | Path, by: str, reason: str, config: Given | None = None) -> dict[str, Any]:
    """Give a run up: it will not be released, and the next scheduled run reads its material as new.

    What it counted for in the index across runs is taken out.  ``left_out`` are later runs that went by it:
    a point of theirs that repeats one of this run was left out, and stays so.  The folder itself stays.
    """

    def facts(own: Standing, folder: RunFolder) -> dict[str, Any]:
        if own.state == "rejected":
            raise RunStateError(f"{own.run} was rejected before")
        entries = entries_of(folder) if is_finished(folder) else []
        return {"index": entries} if entries else {}

    folder = RunFolder(Path(run))
    # asked before: a run that was called "latest" is that no longer when it is rejected
    job = job_of(folder)
    result, body = _decided(folder, Event.REJECTED, by, reason, config, facts)
    assert job is not None
    entries = body.get("index", [])
    known = ((name, job.run(name)) for name in standings(read_log(job)))
    left_out = [name for name, other in known if is_finished(other) and _went_by(other, entries)]
    return {**result, "state": "rejected", "index": entries, "left_out": left_out}


def _decided(
    run: RunFolder,
    event: Event,
    by: str,
    reason: str,
    config: Given | None,
    facts: Callable[[Standing, RunFolder], dict[str, Any]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Enter a decision with its ``facts``, and do what follows; what is said of both, and the record's body.

    A process that decided the same before may have come no further: then what is left is done.
    """
    _check_words(by, reason)
    with alone(run):
        own, job = _standing(run)
        failed = carry_out(job, config).get(own.run)
        if failed is None or own.record.type != event:
            more = facts(own, run)
            follows = [INDEX] if "index" in more else []
            failed = decide(job, run, event, {"by": by, "reason": reason, **more}, config, follows)
        body = standings(read_log(job))[own.run].record.body
    return {"run": str(run.root), "latest": latest_of(job), "hooks_failed": failed}, body


def _went_by(run: RunFolder, entries: list[str]) -> bool:
    index = read_manifest(run)["dedup"].get("index") or {"runs": []}
    return not set(entries).isdisjoint(index["runs"])


def _standing(run: RunFolder) -> tuple[Standing, JobFolder]:
    job, name = job_of(run), run.root.resolve().name
    if job is None:
        raise RunStateError(f"{run.root} belongs to no job: it was never held or released")
    own = standings(read_log(job)).get(name)
    if own is None:
        raise RunStateError(f"{job.root} knows no run {name}: see redactory release list {job.root}")
    return own, job


def _check_words(*words: str) -> None:
    for word in words:
        if not word.strip() or len(word) > LONGEST or not word.isprintable():
            raise ConfigurationError(f"--by and --reason: one line of 1 to {LONGEST} characters each")
