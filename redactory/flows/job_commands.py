"""Commands for jobs and finished runs: releases, quarantine, erasure, sharing, keys; and LDP services."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any, Literal

import redactory
from redactory.flows.options import (
    REQUIRED,
    REQUIRED_BY_OPTION,
    argument,
    command,
    is_stdout_terminal,
    option,
    parse_set_options,
    switch,
)
from redactory.flows.show import CommandResult, show_result
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import KeyKind, create_key_file
from redactory.foundation.progress import Progress

# Scheduled jobs.


@command(
    "nightly: config workers dask",
    output=option("The folder of the job's runs; default: output in the configuration.", Path, flag="--out"),
    date=option("The day that replaces {date} in input.path; default: today, UTC.", str),
    first=option("Backfill: first day; one run per day.", str, flag="--from"),
    last=option("Backfill: last day.", str, flag="--to"),
    reread=option("A changed file to read again from its start, as new; repeatable.", list[str]),
)
def run_nightly(config: str, progress: Progress, dask: str | None, **options: Any) -> CommandResult:
    """Curate what is new since the last scheduled run, and release it unless it drifted."""
    if dask is not None:
        from redactory.flows.schedule import run_nightly_on_dask

        result = run_nightly_on_dask(config, progress=progress, dask=dask, **options)
    else:
        result = redactory.nightly(config, progress=progress, **options)
    has_failed = any(run_record["state"] == "held" or run_record.get("hooks_failed") for run_record in result["nights"])
    return CommandResult("nights", result, 1 if has_failed else 0)


@command(
    "schedule: config workers dask",
    cron=option("When to run, like '0 2 * * *' or @daily; default: only on request.", str),
    timezone=option("Time zone of the schedule and of {date}.", str, "UTC"),
    out=option(
        "Where runs go; {start} and {date} are replaced by the scheduled time; without them each run gets a "
        "folder {start} below it. Default: output in the configuration.",
        Path,
    ),
    work=option(
        "curate; run: curate, train and evaluate; nightly: curate what is new, release if it passes.",
        Literal["curate", "run", "nightly"],
        "curate",
    ),
    name=option("Name of the deployment; default: name in the configuration.", str),
    verify=option("Verify each run; one that fails verification has failed.", bool, True, flag="--verify/--no-verify"),
    deploy=switch("Register it for the workers of the server, and end."),
    pool=option("With --deploy: the work pool; created if it does not exist.", str, "redactory"),
)
def schedule_job(as_json: bool, deploy: bool, pool: str, **job: Any) -> CommandResult | None:
    """Run a job on the schedule of the Prefect server in PREFECT_API_URL: here, or on its workers (--deploy)."""
    from redactory.flows import schedule as scheduling

    planned = scheduling.plan_schedule(**job)
    if deploy:
        return CommandResult("deployed", scheduling.deploy_schedule(planned, pool))
    scheduling.serve_schedule(planned, lambda facts: show_result(CommandResult("serving", facts), as_json))
    return None


@command("release list: job", log=switch("Check the release log and print it, one record per line."))
def list_releases(job: Path, log: bool) -> CommandResult:
    """List the runs of a job: time, state, number of examples, and reason; or print its release log."""
    if log:
        return CommandResult("release_log", redactory.release_log(job))
    result = redactory.list_releases(job)
    return CommandResult("releases", result, 1 if result["problems"] else 0)


@command(
    "release approve: run reason",
    by=REQUIRED_BY_OPTION,
    empty=switch("Also if the public or the private split is empty."),
)
def approve_release(run: Path, by: str, reason: str, empty: bool) -> CommandResult:
    """Release a held run; name and reason go into the release log."""
    return _make_decision_result(redactory.approve_release(run, by, reason, empty=empty))


@command("release reject: run reason", by=REQUIRED_BY_OPTION)
def reject_release(run: Path, by: str, reason: str) -> CommandResult:
    """Reject a run; the next scheduled run reads its input as new."""
    return _make_decision_result(redactory.reject_release(run, by, reason))


def _make_decision_result(result: dict[str, Any]) -> CommandResult:
    """Show the decision; a failed hook does not revert it, but sets the exit code."""
    return CommandResult("decided", result, 1 if result["hooks_failed"] else 0)


def format_drift_finding(finding: dict[str, Any]) -> str:
    """Describe a metric outside its limits, or the reason for holding a run."""
    name = " ".join(part for part in (finding["metric"], finding.get("label")) if part)
    if "low" not in finding:
        return ": ".join((name, finding["why"])) if "why" in finding else str(name)
    scale, unit = (100, " %") if finding["kind"] == "share" else (1, " per 1,000 examples")
    value, low, high = (finding[key] * scale for key in ("value", "low", "high"))
    return f"{name}: {value:.1f}; expected {low:.1f} to {high:.1f}{unit}"


# Quarantine and erasure.


@command(
    "quarantine list: job",
    entry=argument("ENTRY", "Show the content of this entry; on a terminal only.", str, None),
    limit=option("List at most this many entries per run.", int, 100, min=0),
)
def list_quarantine(job: Path, entry: str | None, limit: int) -> CommandResult | None:
    """List the quarantine by reason, with the id of each entry; text is shown only for ENTRY."""
    if entry is None:
        return CommandResult("quarantined", redactory.quarantine_list(job, limit))
    if not is_stdout_terminal():
        raise ConfigurationError("original text is shown only on a terminal; standard output is a file or a pipe")
    from redactory.pipelines.operations.quarantine import escape_for_terminal, read_quarantine_entry

    sys.stdout.write(escape_for_terminal(read_quarantine_entry(job, entry)) + "\n")
    return None


@command(
    "quarantine export: run",
    unencrypted=switch("Allow writing original text of an encrypted run to an unencrypted file."),
)
def export_quarantine(run: Path, **settings: Any) -> CommandResult:
    """Write quarantined rows to a file, to fix and curate again."""
    return CommandResult("quarantine_exported", redactory.quarantine_export(run, **settings))


_IDS_FILE_HELP = "{}, from a file with one id per line; keeps ids out of the shell history."


@command(
    "erase: places",
    doc_id=option("A document's id; repeatable.", list[str]),
    user_id=option("A user's id; repeatable.", list[str]),
    doc_ids_from=option(_IDS_FILE_HELP.format("Documents"), Path, metavar="FILE"),
    user_ids_from=option(_IDS_FILE_HELP.format("Users"), Path, metavar="FILE"),
    dry_run=switch("Report what would be removed, without writing."),
)
def erase(
    places: list[Path],
    doc_id: list[str] | None,
    user_id: list[str] | None,
    doc_ids_from: Path | None,
    user_ids_from: Path | None,
    dry_run: bool,
) -> CommandResult:
    """Remove a person's rows from every run that holds them, and list the models trained on them."""
    users, documents = [*(user_id or ()), *_read_ids(user_ids_from)], [*(doc_id or ()), *_read_ids(doc_ids_from)]
    result = redactory.erase(places, doc_ids=documents, user_ids=users, dry_run=dry_run)
    code = 0 if result["ok"] else max(problem["exit_code"] for problem in result["problems"])
    return CommandResult("erased", result, code, {"by_user": bool(users)})


def _read_ids(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigurationError(f"{file} {problem}; expected a text file with one id per line") from None
    return [line.strip() for line in lines if line.strip()]


@command(
    "purge: run by",
    vault=switch("Delete the original texts of all examples."),
    quarantine=switch("Delete what was rejected or could not be processed."),
    state=switch("Delete samples to label, sealed tracebacks and Prefect's home."),
)
def purge(run: Path, by: str | None, **selected: Any) -> CommandResult:
    """Permanently delete original text from a finished run; the shards are kept."""
    targets: list[Any] = [name for name, wanted in selected.items() if wanted]
    return CommandResult("purged", redactory.purge(run, targets, by=by))


# Sharing runs, and the index across runs.


@command(
    "export: run by",
    to=option("A new folder, or a URL (s3://BUCKET/FOLDER).", str, REQUIRED, metavar="PLACE"),
    whole=switch("Mirror the whole encrypted run to a URL; run it again to update the copy."),
    models=option("A trained model to include; repeatable.", list[str], flag="--model"),
    synthetic=option("Export this output folder of redactory synthesize instead of the public split.", Path),
)
def export(run: Path, to: str, progress: Progress, whole: bool, **options: Any) -> CommandResult:
    """Export what may be shared: the public split, a card, a manifest, SHA256SUMS, models if requested."""
    if whole:
        return CommandResult("published", redactory.publish(run, to, progress=progress))
    return CommandResult("exported", redactory.export(run, to, progress=progress, **options))


@command(
    "fetch",
    url=argument("URL", "Where a run or an export was published.", str),
    to=option("A new folder.", Path, REQUIRED, metavar="DIR"),
)
def fetch(url: str, to: Path, progress: Progress) -> CommandResult:
    """Download a published run or export, and compare every digest."""
    return CommandResult("fetched", redactory.fetch(url, to, progress=progress))


@command(
    "index",
    folder=argument("FOLDER", "The folder set in dedup.index.path.", Path),
    keep_runs=option("Prune: keep only this many of the latest runs.", int, min=0),
    keep_days=option("Prune: keep only the runs of this many latest days.", int, min=0),
)
def manage_index(folder: Path, keep_runs: int | None, keep_days: int | None) -> CommandResult:
    """List the runs in an index across runs, or prune it; text of pruned runs counts as new again."""
    from redactory.pipelines.curation.index import describe_index, prune_index

    if keep_runs is None and keep_days is None:
        return CommandResult("indexed", describe_index(folder))
    return CommandResult("pruned", prune_index(folder, keep_runs, keep_days))


_KEY_FILE_VARIABLES = {
    "digest": "REDACTORY_KEY_FILE",
    "encryption": "REDACTORY_ENCRYPTION_KEY_FILE",
    "signing": "REDACTORY_SIGNING_KEY_FILE",
}


@command(
    "keys new",
    kind=argument("KIND", "digest, encryption or signing.", KeyKind),
    file=argument("FILE", "File to write; never overwritten.", Path),
)
def create_key(kind: KeyKind, file: Path) -> CommandResult:
    """Write a new key to a new file, mode 0600; for signing also the public key, to FILE.pub."""
    files = [str(path) for path in create_key_file(kind, file)]
    return CommandResult("key_written", {"kind": kind, "files": files, "variable": _KEY_FILE_VARIABLES[kind]})


@command(
    "keys unwrap",
    place=argument("FILE|RUN", "A sealed file (a traceback in state/), or a run.", Path),
    data_key=option("Write the run's data key to this file, for DuckDB and others.", Path, metavar="FILE"),
)
def unwrap_key(place: Path, data_key: Path | None) -> CommandResult | None:
    """Print a sealed file of an encrypted run, which can quote the corpus; or unwrap the run's data key."""
    from redactory.foundation.files import write_bytes
    from redactory.redaction import RunFolder, find_run_key, read_secret

    if data_key is None:
        if not place.is_file():
            raise ConfigurationError(f"{place} is not a file; to write the data key of a run use --data-key")
        sys.stdout.write(read_secret(place).decode(errors="replace"))
        return None
    key = find_run_key(RunFolder(place).vault / "part")
    if key is None:
        raise RunStateError(f"{place} is not encrypted: it has no data key")
    if data_key.exists() or data_key.is_symlink():
        raise ConfigurationError(f"{data_key} exists: a key is never overwritten; give another name")
    write_bytes(data_key, base64.b64encode(key.secret) + b"\n")
    return CommandResult("key_unwrapped", {"file": str(data_key), "run": str(place), **key.to_json()})


@command(
    "keys rotate: places",
    to_key_file=option("The file of the new encryption key.", Path),
    to_service=option("The new key service, package.module:function.", str),
)
def rotate_key(places: list[Path], progress: Progress, **options: Any) -> CommandResult:
    """Wrap the data keys of runs with a new key; the configured key unwraps them. Repeat it to go on."""
    result = redactory.rotate_key(*places, progress=progress, **options)
    return CommandResult("keys_rotated", result, 0 if result["ok"] else 1)


@command("keys shred: run", by=REQUIRED_BY_OPTION, yes=switch("Confirm: this cannot be undone."))
def shred_key(run: Path, by: str, yes: bool) -> CommandResult:
    """Destroy the data key of an encrypted run; its private part becomes unreadable for everybody."""
    if not yes:
        raise ConfigurationError(
            f"nobody, not even you, can read the private part of {run} afterwards: add --yes to confirm"
        )
    return CommandResult("key_shredded", redactory.shred_key(run, by=by))


# Local privacy: noise before anything leaves the user, in training and queries.


@command(
    "ldp train: encoder set_ declared_public",
    data=argument("DATA", "JSON lines with text, label, and optionally user_id or text_b.", Path, None),
    out=option("The service's folder.", Path),
    public=option("Create the encoder from these public rows, instead of training on DATA.", Path),
    budget=option("The user's folder that records what all their messages spent.", Path),
    limit=option("With --budget: the maximum epsilon that one user may spend.", float, 8.0),
    delta=option("Delta of --limit.", float, 1e-5),
)
def train_ldp(
    encoder: Path,
    progress: Progress,
    data: Path | None,
    out: Path | None,
    public: Path | None,
    set_: list[str] | None,
    **options: Any,
) -> CommandResult:
    """Run users and server in one process: only noisy messages pass, and a service is trained on them.

    Create the users' encoder first (--public); it must hold no private text.
    """
    if (data is None) == (public is None):
        raise ConfigurationError("give the users' DATA and --out, or --public to create the encoder")
    settings = parse_set_options(set_)
    if public is not None:
        return CommandResult("ldp_encoder", redactory.ldp_encoder(public, encoder, settings, progress))
    if data is None or out is None:
        raise ConfigurationError("--out: give the folder to write the service to")
    result = redactory.ldp_train(data, encoder, out, settings, progress=progress, **options)
    return CommandResult("ldp_trained", result)


@command(
    "ldp evaluate: encoder set_ declared_public",
    service=argument("SERVICE", "A service's folder.", Path),
    test=option("Held-out JSON lines with text and label.", Path, REQUIRED),
    draws=option("How many times the noise is drawn.", int, 5, min=1),
    limit=option("Use at most this many rows.", int, min=1),
)
def evaluate_ldp(
    service: Path, encoder: Path, test: Path, progress: Progress, set_: list[str] | None, **options: Any
) -> CommandResult:
    """Measure accuracy and epsilon on held-out text, with fresh noise for every query."""
    result = redactory.ldp_evaluate(service, encoder, test, parse_set_options(set_), progress=progress, **options)
    return CommandResult("ldp_accuracy", result)
