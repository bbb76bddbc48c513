"""Commands for jobs and finished runs: releases, quarantine, erasure, sharing, keys."""

import base64
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

import redactory
from redactory.flows import options as opt
from redactory.flows.options import command
from redactory.flows.show import DECISIONS, Page, Result, Shown, fill, report_progress, show_result, table
from redactory.foundation.errors import ConfigurationError, RunStateError, pluralize
from redactory.foundation.keys import ENCRYPTION_VARIABLE, KEY_VARIABLE, SIGNING_VARIABLE, KeyKind, create_key_file

# Scheduled jobs.


@command("nightly")
def run_nightly(
    config: opt.Config,
    workers: opt.Workers = None,
    dask: opt.Dask = None,
    output: Annotated[Path | None, Option("--out", help="The folder of the job's runs; default: output.")] = None,
    date: Annotated[str | None, Option(help="The day that replaces {date} in input.path; default: today, UTC.")] = None,
    first: Annotated[str | None, Option("--from", help="Backfill: first day; one run per day.")] = None,
    last: Annotated[str | None, Option("--to", help="Backfill: last day.")] = None,
    reread: Annotated[list[str] | None, Option(help="A changed file to read again as new; repeatable.")] = None,
) -> Shown:
    """Curate what is new since the last scheduled run; release it, or hold it for a person (nightly.approve)."""
    options: dict[str, Any] = {"output": output, "date": date, "first": first, "last": last, "reread": reread or ()}
    options |= {"workers": workers, "progress": report_progress}
    if dask is None:
        r = redactory.nightly(config, **options)
    else:
        from redactory.flows.schedule import run_nightly_on_dask

        r = run_nightly_on_dask(config, dask=dask, **options)
    has_failed = any(run["state"] == "held" or run.get("hooks_failed") for run in r["nights"])
    return r, describe_nights(r), 1 if has_failed else 0


def describe_nights(r: Result) -> Page:
    """Describe scheduled runs: what each curated, why it is held, and how to decide."""
    for night in r["nights"]:
        yield _describe_night(night)
        yield night.get("unjudged") and f"  {night['unjudged']}"
        yield from (f"  {format_drift_finding(finding)}" for finding in night.get("findings", ()))
        for waiting in night.get("waiting", ()):
            yield fill("  {path}: an incomplete last row is left for later ({bytes:n byte})", waiting)
        yield from (f"  the hook failed: {hook}" for hook in night.get("hooks_failed", ()))
    yield r["latest"] and f"Latest: {r['latest']}"
    for run in r["held"]:
        decide = f"redactory release approve (or reject) {r['job']}/{run} --by NAME --reason WHY"
        yield f"Held: {run}. Decide with {decide}"


def _describe_night(night: Result) -> str:
    day = f"{night['date']}: " if night.get("date") else ""
    if night["state"] in ("nothing new", "nothing there"):
        return day + ("Nothing new." if night["state"] == "nothing new" else "No file found.")
    name, counts = Path(night["run"]).name, night.get("counts") or {}
    if night["state"] == "rejected":
        return f"{name}: rejected, {night['reason']}"
    resumed = " (started by an earlier run)" if night["resumed"] else ""
    decisions = ", ".join(f"{counts[decision]:,} {decision}" for decision in DECISIONS)
    examples = fill("{rows:n row}, {examples:n example}", counts)
    empty = "" if counts["public"] or counts["private"] else "; IT HAS NO READABLE EXAMPLE"
    return f"{name}: {night['state']}{resumed}; {examples} ({decisions}){empty}"


def format_drift_finding(finding: Result) -> str:
    """Describe a metric outside its limits, or the reason for holding a run."""
    from redactory.evaluation.drift import METRICS

    metric, label = str(finding["metric"]), finding.get("label")
    if "low" not in finding:
        return ": ".join((metric, finding["why"])) if "why" in finding else metric
    scale, unit = (100, " %") if finding["kind"] == "share" else (1, "")
    value, low, high = (f"{finding[key] * scale:,.1f}" for key in ("value", "low", "high"))
    name = METRICS[metric].partition(", by ")[0] + (f", {label}" if label else "")
    return f"{name}: {value}{unit}; expected {low} to {high}{unit}"


@command("schedule")
def schedule_job(
    context: typer.Context,
    config: opt.Config,
    workers: opt.Workers = None,
    dask: opt.Dask = None,
    cron: Annotated[str | None, Option(help="When to run, like '0 2 * * *' or @daily; default: on request.")] = None,
    timezone: Annotated[str, Option(help="Time zone of the schedule and of {date}.")] = "UTC",
    out: Annotated[
        Path | None, Option(help="Where runs go; {start} and {date} are the scheduled time; default: output/{start}.")
    ] = None,
    work: Annotated[
        Literal["curate", "run", "nightly"],
        Option(help="curate; run: also train, evaluate; nightly: only what is new."),
    ] = "curate",
    name: Annotated[str | None, Option(help="Name of the deployment; default: name in the configuration.")] = None,
    verify: Annotated[bool, Option(help="Verify each run; one that fails verification has failed.")] = True,
    deploy: Annotated[bool, Option("--deploy", help="Register it for the workers of the server, and end.")] = False,
    pool: Annotated[str, Option(help="With --deploy: the work pool; created if it does not exist.")] = "redactory",
) -> Shown:
    """Run a job on the schedule of the Prefect server in PREFECT_API_URL: here, or on its workers (--deploy)."""
    from redactory.flows import schedule as scheduling

    job = {"cron": cron, "timezone": timezone, "out": out, "work": work, "name": name, "verify": verify}
    planned = scheduling.plan_schedule(config=config, **opt.drop_unset(workers=workers, dask=dask, **job))
    if deploy:
        r = scheduling.deploy_schedule(planned, pool)
        return r, _describe_schedule(r)
    scheduling.serve_schedule(planned, lambda r: show_result(context.obj, r, _describe_schedule(r)))
    return None


def _describe_schedule(r: Result) -> Page:
    when = fill("{cron} ({timezone})", r) if r["cron"] else "on request"
    rows = {"deployment": r["deployment"], "when": when, "runs": str(r["output"]), "server": r["server"]}
    yield table("Deployed" if "pool" in r else "Serving", (), rows)
    if "pool" in r:
        yield f"A worker runs it: prefect worker start --pool {r['pool']}"
        return
    if not r["keyed"]:
        yield "No REDACTORY_KEY is set: unchanged input is run again, and interrupted runs cannot resume."


@command("release list")
def list_releases(
    job: opt.Job,
    log: Annotated[bool, Option("--log", help="Check the release log and print it, one record per line.")] = False,
) -> Shown:
    """List the runs of a job: time, state, number of examples, and reason; or print its release log."""
    if log:
        r = redactory.release_log(job)
        return r, [fill("{time}  {run}  {words}", record) for record in r["records"]] or "No records yet."
    r = redactory.list_releases(job)
    return r, describe_releases(r), 1 if r["problems"] else 0


def describe_releases(r: Result) -> Page:
    """Describe the runs of a job, and why each is in its state."""
    if not r["runs"]:
        yield "No run yet."
        return
    keys = ("rows", "public", "private")
    rows = []
    for run in r["runs"]:
        counts = [""] * 3 if run["counts"] is None else [run["counts"].get(key, 0) for key in keys]
        rows.append((run["run"], run["when"][:16].replace("T", " "), run["state"], *counts))
    yield table(f"Runs of {r['job']}", ("run", "when (UTC)", "state", *keys), rows)
    for run in r["runs"]:
        if why := _explain_state(run):
            yield f"{run['run']}: {why}"
    yield f"Latest: {r['latest'] or 'none'}"
    yield from (f"Warning: {problem}" for problem in r["problems"])


def _explain_state(run: Result) -> str:
    if run["reason"]:
        return str(run["reason"]) + (f" ({run['by']})" if run["by"] else "")
    if run["state"] != "held":
        return ""
    findings = [*filter(None, [run["unjudged"]]), *map(format_drift_finding, run["findings"])]
    more = [f"and {len(findings) - 3} more"] if len(findings) > 3 else []
    return "; ".join(findings[:3] + more)


@command("release approve")
def approve_release(
    run: opt.Run,
    reason: opt.Reason,
    by: opt.By,
    empty: Annotated[bool, Option("--empty", help="Also if the public or the private split is empty.")] = False,
) -> Shown:
    """Release a held run; name and reason go into the release log."""
    return describe_decision(redactory.approve_release(run, by, reason, empty=empty))


@command("release reject")
def reject_release(run: opt.Run, reason: opt.Reason, by: opt.By) -> Shown:
    """Reject a run; the next scheduled run reads its input as new."""
    return describe_decision(redactory.reject_release(run, by, reason))


def describe_decision(r: Result) -> Shown:
    """Describe the decision; a failed hook does not revert it, but sets the exit code."""
    page: list[str | None] = [f"{Path(r['run']).name}: {r['state']}. Latest: {r['latest'] or 'none'}"]
    page += ["Warning: it has no example, public or private."] if r.get("empty") else []
    page += [r.get("public_labels"), *(f"Removed from the index: {entry}" for entry in r.get("index", ()))]
    if left_out := ", ".join(r.get("left_out", ())):
        page.append(f"Later runs omitted repeats of its text: {left_out}. To have it read again, reject those as well")
    page += [f"The hook failed: {hook}" for hook in r["hooks_failed"]]
    return r, page, 1 if r["hooks_failed"] else 0


# Quarantine and erasure.


@command("quarantine list")
def list_quarantine(
    job: opt.Job,
    entry: Annotated[str | None, Argument(metavar="ENTRY", help="Show this entry; on a terminal only.")] = None,
    limit: Annotated[int, Option(help="List at most this many entries per run.", min=0)] = 100,
) -> Shown:
    """List the quarantine by reason, with the id of each entry; text is shown only for ENTRY."""
    if entry is None:
        r = redactory.quarantine_list(job, limit)
        return r, describe_quarantine(r)
    if not opt.is_stdout_terminal():
        raise ConfigurationError("original text is shown only on a terminal; standard output is a file or a pipe")
    from redactory.pipelines.operations.quarantine import escape_for_terminal, read_quarantine_entry

    sys.stdout.write(escape_for_terminal(read_quarantine_entry(job, entry)) + "\n")
    return None


def describe_quarantine(r: Result) -> Page:
    """Describe the quarantine of each run: its reasons, and its entries."""
    for run in r["runs"]:
        if run.get("purged"):
            yield f"{run['run']}: the quarantine was purged and cannot be listed."
        elif not run["entries"]:
            yield f"{run['run']}: the quarantine is empty."
        else:
            rows = ({**reason, "entries": reason["count"]} for reason in run["reasons"])
            yield table(fill("{run}: {entries:n entry/entries}", run), "reason kind entries bytes", rows)
            places = {"example": "example {example_id:d}", "row": "{source}:{row:d}"}
            entries = ({**entry, "where": fill(places[entry["kind"]], entry)} for entry in run["listed"])
            yield table("Entries", "id kind reason where bytes", entries)
            if more := run["entries"] - len(run["listed"]):
                yield f"{more:,} more; --limit lists them."


@command("quarantine export")
def export_quarantine(
    run: opt.Run, unencrypted: Annotated[bool, Option("--unencrypted", help="Also for an encrypted run.")] = False
) -> Shown:
    """Write quarantined rows to a file, to fix and curate again."""
    r = redactory.quarantine_export(run, unencrypted=unencrypted)
    left = [f"Left {count:,}: {why}" for why, count in r["left"].items()]
    if r["out"] is None:
        return r, ["No quarantined row can be curated again.", *left]
    written = fill("{exported} of {entries:n entry/entries} written to {out} as original text, unencrypted.", r)
    after = f"Curate that file as a new run, then remove it: redactory purge {r['run']} --quarantine"
    return r, [written, after, *left]


_IDS_FILE_HELP = "{}, from a file with one id per line; keeps ids out of the shell history."
_DocIds = Annotated[list[str] | None, Option("--doc-id", help="A document's id; repeatable.")]
_UserIds = Annotated[list[str] | None, Option("--user-id", help="A user's id; repeatable.")]
_DocIdsFile = Annotated[Path | None, Option(help=_IDS_FILE_HELP.format("Documents"), metavar="FILE")]
_UserIdsFile = Annotated[Path | None, Option(help=_IDS_FILE_HELP.format("Users"), metavar="FILE")]


@command("erase")
def erase(
    places: opt.Places,
    doc_id: _DocIds = None,
    user_id: _UserIds = None,
    doc_ids_from: _DocIdsFile = None,
    user_ids_from: _UserIdsFile = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Report what would be removed, without writing.")] = False,
    by: opt.OptionalBy = None,
    person: Annotated[str | None, Option(help="Only list the rows that may name this person.", metavar="NAME")] = None,
    candidates: Annotated[
        Path | None,
        Option(help="With --person: write the ids of these rows, to edit and pass to --doc-ids-from.", metavar="FILE"),
    ] = None,
) -> Shown:
    """Remove a person's rows from every run that holds them, and list the models trained on them."""
    users, documents = [*(user_id or ()), *_read_ids(user_ids_from)], [*(doc_id or ()), *_read_ids(doc_ids_from)]
    options: dict[str, Any] = {"dry_run": dry_run, "by": by, "person": person}
    if candidates is not None and (person is None or candidates.exists()):
        problem = "needs --person" if person is None else f"{candidates} exists; give a new file"
        raise ConfigurationError(f"--candidates: {problem}")
    contexts: dict[int, str] = {}
    if opt.is_stdout_terminal():
        options["show_context"] = lambda candidate, context: contexts.update({id(candidate): context})
    r = redactory.erase(places, doc_ids=documents, user_ids=users, **options)
    code = 0 if r["ok"] else max(problem["exit_code"] for problem in r["problems"])
    if person is None:
        return r, _describe_erasure(r, by_user=bool(users)), code
    return r, [*_describe_candidates(r, contexts), _write_candidates(candidates, r["candidates"])], code


_NOTE = "\t#"
"""Begins a note in a file of ids."""


def _read_ids(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigurationError(f"{file} {problem}; expected a text file with one id per line") from None
    return [doc_id for line in lines if (doc_id := line.partition(_NOTE)[0].strip())]


def _describe_candidates(r: Result, contexts: Mapping[int, str]) -> Page:
    def make_row(candidate: Result) -> Result:
        note = f"quarantined: {candidate['reason']}" if candidate["reason"] else ""
        names = {"run": Path(candidate["run"]).name, "row": candidate["doc_id"] or candidate["source"] or ""}
        row = {**candidate, **names, "user": candidate["user_id"] or "", "matches": _format_matches(candidate)}
        return {**row, "note": note, "text": contexts.get(id(candidate), "")}

    columns = "run state row user matches note" + (" text" if contexts else "")
    yield table("Rows that may name the person; nothing was erased", columns, map(make_row, r["candidates"]))
    yield from (fill("{run}: not searched: {problem}", problem) for problem in r["problems"])
    if not r["candidates"]:
        yield "No row names this person. Texts with only the first name, a nickname or another spelling are not listed."
    elif any(candidate["doc_id"] is None for candidate in r["candidates"]):
        yield "Rejected rows without an id cannot be chosen: redactory purge RUN --quarantine removes them all."


def _format_matches(candidate: Result) -> str:
    return ", ".join(kind if count == 1 else f"{kind} ({count})" for kind, count in candidate["matches"].items())


def _write_candidates(file: Path | None, candidates: Sequence[Result]) -> str:
    """Write the document ids to a private file, one per line, each with a note; return what to type next."""
    from redactory.foundation.files import write_text

    if file is None or not candidates:
        return "Erase those that you choose: redactory erase PLACE --doc-id ID --by NAME" if candidates else ""
    lines = {
        candidate["doc_id"]: f"{_format_matches(candidate)} in {Path(candidate['run']).name}"
        for candidate in reversed(candidates)
    }
    # an id that is no line by itself has to be typed
    listed = [name for name in lines if name and name.isprintable() and name == name.strip()]
    write_text(file, "".join(f"{name}{_NOTE} {lines[name]}\n" for name in reversed(listed)))
    return f"Remove the lines of rows to keep from {file}, then: redactory erase PLACE --doc-ids-from {file} --by NAME"


_ERASURE_NOTES = {
    "moved_up": "{count:n example} of others with the same text replaced them",
    "lost": "{count:n example} of others removed too: the vault was purged, so only the text could identify them",
    "unsearched": "{count:n rejected row} cannot be searched: redactory purge RUN --quarantine",
    "lone_documents": "{count:n document} without a user but with such an id: if it is theirs, --doc-id",
    "tracebacks": "{count:n sealed traceback} can quote any text: redactory purge RUN --state",
    "exports": "{count:n export} created before; ask for them back",
    "samples": "{count:n sample} to label with a removed text; delete it too",
    "unfinished_trainings": "{count:n training} cannot be resumed: remove its folder",
}


def _describe_erasure(r: Result, by_user: bool) -> Page:
    for run in r["runs"]:
        yield f"{run['run']}: {_describe_erased_run(run, r['dry_run'])}"
        for key, note in _ERASURE_NOTES.items():
            value = run.get(key) or 0
            if count := value if isinstance(value, int) else len(value):
                yield "  " + fill(note, {"count": count})
        if run.get("unknown_repeats"):
            yield "  a Bloom filter does not record who repeats a text, and the vault was purged: some may be missing"
        if run.get("index") is False:
            yield "  the index across runs cannot forget it: the original text is gone"
        yield table("Models trained on it (none is retrained)", "model trainer guarantee", run["models"])
    yield from (fill("{run}: not done: {problem}", problem) for problem in r["problems"])
    if r["unmatched"] and any(run.get(key) for run in r["runs"] for key in ("examples", "rejected", "already")):
        yield f"Warning: {pluralize(len(r['unmatched']), 'id')} not found; check that each is written as in the input"
    yield from (f"Receipt: {receipt}" for receipt in r["receipts"])
    if files := dict.fromkeys(file for run in r["runs"] for file in run["files"]):
        yield f"Your own files are not changed: remove the rows there too ({', '.join(files)})"
    if r["runs"] and by_user:
        yield "Texts of others about a user remain: put the names on a deny list, find such texts with redactory scan"
        yield "--config, and remove them with --doc-id, or curate again with the list"


def _describe_erased_run(run: Result, dry_run: bool) -> str:
    if "discarded" in run:
        work = "would be" if dry_run else "is"
        return f"it was interrupted; its work {work} removed, and a resumed run starts again"
    if "shredded" in run and run["already"] is None:
        return "it was shredded; nothing in it can be read"
    if not run["examples"] and not run["rejected"]:
        if run["already"] is None:
            return "it has no row of them; check that each id is written as in the input"
        return fill("nothing is left; removed with release {already}", run)
    rejected = " and {rejected:n rejected row} " if run["rejected"] else " "
    state = "would be removed" if dry_run else "removed; this is release {release}"
    return fill("{examples:n example} of {documents:n document}" + rejected + state, run)


@command("access")
def access(
    places: opt.Places,
    by: opt.By,
    out: Annotated[Path, Option(help="A new folder for the report; only you can open it.", metavar="FOLDER")],
    person: Annotated[
        str | None, Option(help="The name that stays readable; without ids, rows that name it are chosen.")
    ] = None,
    doc_id: _DocIds = None,
    user_id: _UserIds = None,
    doc_ids_from: _DocIdsFile = None,
    user_ids_from: _UserIdsFile = None,
) -> Shown:
    """Write an access report: where a person's data are, and their text with other people's data masked."""
    users, documents = [*(user_id or ()), *_read_ids(user_ids_from)], [*(doc_id or ()), *_read_ids(doc_ids_from)]
    r = redactory.access(places, out=out, by=by, person=person, doc_ids=documents, user_ids=users)
    return r, _describe_access(r), 0 if r["ok"] else max(problem["exit_code"] for problem in r["problems"])


def _describe_access(r: Result) -> Page:
    for run in r["runs"]:
        splits = ", ".join(f"{count:,} {name}" for name, count in run["splits"].items())
        withheld = fill("; text of {withheld:n row} withheld", run) if run["withheld"] else ""
        yield fill("{run} ({state}): {documents:n row}", run) + (f", {splits}" if splits else "") + withheld
        yield table("Models trained on it", "model trainer guarantee", run["models"])
    yield from (fill("{run}: not searched: {problem}", problem) for problem in r["problems"])
    if r["unclear"]:
        counts = ", ".join(f"{count:,} by {kind}" for kind, count in r["unclear"].items())
        yield f"Left out, because somebody else may be meant: {counts}. redactory erase PLACE --person lists them"
    if r["out"] is None:
        yield "No row of this person is in the runs that could be searched. No report was written."
    else:
        yield f"Report, unencrypted: {r['out']}/report.html. Read it before you hand it out; then delete the folder"


@command("purge")
def purge(
    place: opt.Job,
    by: opt.OptionalBy = None,
    vault: Annotated[bool, Option("--vault", help="Delete the original texts of all examples.")] = False,
    quarantine: Annotated[bool, Option("--quarantine", help="Delete what was quarantined.")] = False,
    state: Annotated[bool, Option("--state", help="Delete samples, tracebacks and Prefect's home.")] = False,
) -> Shown:
    """Permanently delete original text from a finished run, or from all runs of a job; the shards are kept."""
    wanted = {"vault": vault, "quarantine": quarantine, "state": state}
    targets: list[Any] = [name for name, is_wanted in wanted.items() if is_wanted]
    r = redactory.purge(place, targets, by=by)
    return r, _describe_purge(r), 0 if r["ok"] else max(problem["exit_code"] for problem in r["problems"])


def _describe_purge(r: Result) -> Page:
    for run in r["runs"]:
        deleted = f"{', '.join(run['already'])}: already deleted"
        if run["release"] is not None:
            names = ", ".join(run["purged"])
            deleted = fill("{names}: deleted, {bytes:n byte}; this is release {release}", run, names=names)
        yield f"{run['run']}: {deleted}"
    yield from (fill("{run}: not done: {problem}", problem) for problem in r["problems"])


# Sharing runs, and the index across runs.


@command("export")
def export(
    run: opt.Run,
    to: Annotated[str, Option(help="A new folder, or a URL (s3://BUCKET/FOLDER).", metavar="PLACE")],
    by: opt.OptionalBy = None,
    whole: Annotated[bool, Option("--whole", help="Mirror the whole encrypted run to a URL; repeatable.")] = False,
    models: Annotated[list[str] | None, Option("--model", help="A trained model to include; repeatable.")] = None,
    synthetic: Annotated[Path | None, Option(help="Export this folder of redactory synthesize instead.")] = None,
) -> Shown:
    """Export what may be shared: the public split, a card, a manifest, SHA256SUMS, models if requested."""
    if whole:
        r = redactory.publish(run, to, progress=report_progress)
        written = "{files:n file}, {written} written now ({bytes:n byte}), {removed} removed."
        return r, fill("Published {run} at {to}: " + written, r)
    r = redactory.export(run, to, models=models or (), by=by, synthetic=synthetic, progress=report_progress)
    names = f", models {', '.join(r['models'])}" if r["models"] else ""
    files = "{public:n public example}{names}, {files:n file}, {bytes:n byte}."
    exported = fill("Exported release {release} of {run} to {to}: " + files, r, names=names)
    return r, [exported, r["public_labels"], f"Next: redactory verify {r['to']}"]


@command("fetch")
def fetch(
    url: Annotated[str, Argument(metavar="URL", help="Where a run or an export was published.")],
    to: Annotated[Path, Option(help="A new folder.", metavar="DIR")],
) -> Shown:
    """Download a published run or export, and compare every digest."""
    r = redactory.fetch(url, to, progress=report_progress)
    fetched = fill("Fetched {from} into {to}: {files:n file}, {bytes:n byte}. Next: redactory verify {to}", r)
    return r, fetched


@command("index")
def manage_index(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The folder set in dedup.index.path.")],
    keep_runs: Annotated[int | None, Option(help="Prune: keep only this many of the latest runs.", min=0)] = None,
    keep_days: Annotated[int | None, Option(help="Prune: keep only the runs of this many latest days.", min=0)] = None,
) -> Shown:
    """List the runs in an index across runs, or prune it; text of pruned runs counts as new again."""
    from redactory.pipelines.curation.index import describe_index, prune_index

    if keep_runs is None and keep_days is None:
        r = describe_index(folder)
        return r, _describe_index(r)
    r = prune_index(folder, keep_runs, keep_days)
    removed = ", ".join(r["removed"]) or "nothing"
    return r, f"Removed {removed}; {pluralize(len(r['kept']), 'run')} left."


def _describe_index(r: Result) -> Page:
    from redactory.pipelines.curation.index import PENDING_STATES

    modes = ", ".join(f"{split} {mode}" for split, mode in r["parameters"]["modes"].items())
    settings = "scope {scope}; segments by {segment[mode]}; key {key}"
    yield f"Index {r['id']}: {modes}; {fill(settings, r['parameters'])}"
    yield None if r["runs"] else "No runs yet."
    columns = {"entry": "{entry}", "created": "{created}"}
    columns |= {"public texts": "{texts[public]}", "private texts": "{texts[private]}"}
    yield table("Runs", columns, r["runs"])
    yield from (f"{draft['path']}: {PENDING_STATES[draft['state']]}" for draft in r["pending"])


_KEY_VARIABLES = {"digest": KEY_VARIABLE, "encryption": ENCRYPTION_VARIABLE, "signing": SIGNING_VARIABLE}


@command("keys new")
def create_key(
    kind: Annotated[KeyKind, Argument(metavar="KIND", help="digest, encryption or signing.")],
    file: Annotated[Path, Argument(metavar="FILE", help="File to write; never overwritten.")],
) -> Shown:
    """Write a new key to a new file, mode 0600; for signing also the public key, to FILE.pub."""
    files, variable = [str(path) for path in create_key_file(kind, file)], f"{_KEY_VARIABLES[kind]}_FILE"
    written = f"Wrote {' and '.join(files)}. Next: export {variable}={files[0]}"
    return {"kind": kind, "files": files, "variable": variable}, written


@command("keys unwrap")
def unwrap_key(
    place: Annotated[Path, Argument(metavar="FILE|RUN", help="A sealed file (a traceback in state/), or a run.")],
    data_key: Annotated[Path | None, Option(help="Write the run's data key to this file.")] = None,
) -> Shown:
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
    readable = f"Whoever has it can read the private part of {place}: remove it when you are done."
    result = {"file": str(data_key), "run": str(place), **key.to_json()}
    return result, f"Wrote {data_key}. {readable}"


_ROTATION_STATES = {
    "rotated": "now wrapped by the new key",
    "already": "already wrapped by it",
    "open": "not encrypted",
    "shredded": "shredded",
    "failed": "FAILED",
}


@command("keys rotate")
def rotate_key(
    places: opt.Places,
    to_key_file: Annotated[Path | None, Option(help="The file of the new encryption key.")] = None,
    to_service: Annotated[str | None, Option(help="The new key service, package.module:function.")] = None,
) -> Shown:
    """Wrap the data keys of runs with a new key; the configured key unwraps them. Repeat it to go on."""
    target: dict[str, Any] = {"to_key_file": to_key_file, "to_service": to_service}
    r = redactory.rotate_key(*places, progress=report_progress, **target)
    states = {words: len(r[key]) for key, words in _ROTATION_STATES.items() if r[key]}
    failures = (fill("{run}: {error}", failed) for failed in r["failed"])
    return r, [table(f"Runs under {r['service']}", (), states), *failures], 0 if r["ok"] else 1


@command("keys shred")
def shred_key(
    run: opt.Run, by: opt.By, yes: Annotated[bool, Option("--yes", help="Confirm: this cannot be undone.")] = False
) -> Shown:
    """Destroy the data key of an encrypted run; its private part becomes unreadable for everybody."""
    if not yes:
        raise ConfigurationError(
            f"nobody, not even you, can read the private part of {run} afterwards: add --yes to confirm"
        )
    r = redactory.shred_key(run, by=by)
    destroyed = ", ".join(r["destroyed"]) or "nothing was left to destroy"
    shredded = "Shredded {run} ({files}), recorded in the log for {by} at {time}. "
    shredded = fill(shredded + "Delete copies of these files in backups and snapshots, too.", r, files=destroyed)
    left = (f"{left} is unencrypted and still there: redactory purge" for left in r["left"])
    return r, [shredded, *left]
