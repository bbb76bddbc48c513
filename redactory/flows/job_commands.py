"""Commands about jobs and finished runs: releases, quarantine, erasure, sharing, keys; and LDP services."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import redactory
from redactory.flows import options as o
from redactory.flows.options import command, on_terminal, settings_of
from redactory.flows.run_commands import app
from redactory.flows.show import Shown, show
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import Kind, new_key
from redactory.foundation.progress import Progress

if TYPE_CHECKING:
    from redactory.pipelines.erase import What

releases = typer.Typer(no_args_is_help=True, help="A job's runs and log; release a held run, or give it up.")
quarantines = typer.Typer(no_args_is_help=True, help="Look into a quarantine, and try what lies there again.")
keys = typer.Typer(
    no_args_is_help=True, help="Make, rotate and shred keys, and read encrypted runs elsewhere."
)
ldp = typer.Typer(no_args_is_help=True, help="Local privacy: clip and noise sentences before they leave.")
app.add_typer(releases, name="release")
app.add_typer(quarantines, name="quarantine")
app.add_typer(keys, name="keys")
app.add_typer(ldp, name="ldp")


# Jobs that run every night.


@command(app)
def nightly(
    config: o.ConfigArgument,
    progress: Progress,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The folder of the job's runs; the configuration's output by default."),
    ] = None,
    date: Annotated[
        str | None, typer.Option("--date", help="The day that {date} in input.path stands for; today in UTC.")
    ] = None,
    first: Annotated[
        str | None, typer.Option("--from", help="Backfill: a run for each day from this one.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="Backfill: the last day.")] = None,
    again: Annotated[
        list[str] | None, typer.Option("--again", help="A changed file to read whole, as new; repeatable.")
    ] = None,
    workers: o.WorkersOption = None,
    dask: o.DaskOption = None,
) -> Shown:
    """Curate what is new since the last scheduled run, and release it unless it drifted."""
    more: dict[str, Any] = {}
    if dask is not None:
        from redactory.flows.dask_map import over_dask

        more["curating"] = over_dask(redactory.curate, dask)
    result = redactory.nightly(
        config,
        output=out,
        date=date,
        first=first,
        last=last,
        again=again or (),
        workers=workers,
        progress=progress,
        **more,
    )
    failed = any(night["state"] == "held" or night.get("hooks_failed") for night in result["nights"])
    return Shown("nights", result, 1 if failed else 0)


@command(app)
def schedule(
    config: o.ConfigArgument,
    as_json: bool,
    cron: Annotated[
        str | None, typer.Option("--cron", help="When, like '0 2 * * *'; without it, when you ask for it.")
    ] = None,
    timezone: Annotated[
        str, typer.Option("--timezone", help="Time zone of the schedule and of {date}.")
    ] = "UTC",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Where runs go: {start} and {date} stand for when a run was due; without them each run gets "
            "a folder {start} below it. The configuration's output by default.",
        ),
    ] = None,
    work: Annotated[
        Literal["curate", "run", "nightly"],
        typer.Option("--work", help="curate; run: curate, train and evaluate; nightly: what is new, gated."),
    ] = "curate",
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the deployment; the configuration's by default.")
    ] = None,
    workers: o.WorkersOption = None,
    dask: o.DaskOption = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Verify each run; one that does not hold has failed.")
    ] = True,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Most tasks at once, over all runs on the server.")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Port of the server that is started here.")] = 4200,
    deploy: Annotated[
        bool,
        typer.Option(
            "--deploy",
            help="For workers of a Prefect server: write prefect.yaml, and register it where PREFECT_API_URL "
            "is set.",
        ),
    ] = False,
    pool: Annotated[
        str, typer.Option("--pool", help="With --deploy: the work pool; made where it is missing.")
    ] = "redactory",
    file: Annotated[Path, typer.Option("--file", help="With --deploy: the file to write.")] = Path(
        "prefect.yaml"
    ),
) -> Shown | None:
    """Run a job on a schedule, with Prefect: here until it is stopped, or on workers (--deploy)."""
    from redactory.flows import schedule as scheduling

    planned = scheduling.plan_schedule(
        config, cron, timezone, out=out, work=work, name=name, workers=workers, verify=verify, dask=dask
    )
    if deploy:
        return Shown("deployed", scheduling.deploy(planned, file, pool, limit))
    scheduling.serve(planned, port, limit, lambda facts: show(Shown("serving", facts), as_json))
    return None


@command(releases, "list")
def release_list(
    job: o.JobArgument,
    log: Annotated[
        bool, typer.Option("--log", help="The release log, a line a record; it is checked.")
    ] = False,
) -> Shown:
    """List the runs of a job: when, their state, how many points, and why; or read its release log."""
    if log:
        return Shown("release_log", redactory.release_log(job))
    result = redactory.list_releases(job)
    return Shown("releases", result, 1 if result["problems"] else 0)


@command(releases, "approve")
def release_approve(
    run: o.RunArgument,
    by: o.ByOption,
    reason: o.ReasonOption,
    config: o.ConfigOption = None,
    empty: Annotated[
        bool, typer.Option("--empty", help="Also where it holds no point, public or private.")
    ] = False,
) -> Shown:
    """Release a held run all the same; the name and the reason go into the log."""
    return _decided(redactory.approve_release(run, by, reason, config, empty=empty))


@command(releases, "reject")
def release_reject(
    run: o.RunArgument, by: o.ByOption, reason: o.ReasonOption, config: o.ConfigOption = None
) -> Shown:
    """Give a run up: the next scheduled run reads its material as new."""
    return _decided(redactory.reject_release(run, by, reason, config))


def _decided(result: dict[str, Any]) -> Shown:
    """What was decided; a hook that failed takes nothing back, and is the exit code."""
    return Shown("decided", result, 1 if result["hooks_failed"] else 0)


def finding_line(finding: dict[str, Any]) -> str:
    """One figure outside of its limits; a retried run has none."""
    name = " ".join(part for part in (finding["metric"], finding.get("label")) if part)
    if "low" not in finding:
        return ": ".join((name, finding["why"])) if "why" in finding else str(name)
    scale, unit = (100, " %") if finding["kind"] == "share" else (1, " per 1,000 points")
    value, low, high = (finding[key] * scale for key in ("value", "low", "high"))
    return f"{name}: {value:.1f}, where {low:.1f} to {high:.1f}{unit} was to be expected"


# What could not be processed, and what is to be erased.


@command(quarantines, "list")
def quarantine_list(
    place: o.JobArgument,
    entry: Annotated[
        str | None, typer.Argument(metavar="ENTRY", help="Show this entry's content, on a terminal alone.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="List at most so many entries a run.")] = 100,
) -> Shown | None:
    """List what lies in quarantine, by reason, and the id of each entry. No text is shown without ENTRY."""
    if entry is None:
        return Shown("quarantined", redactory.quarantine_list(place, limit))
    if not on_terminal():
        raise ConfigurationError(
            "an entry's original text is shown on a terminal alone: standard output is a file or a pipe"
        )
    from redactory.pipelines.quarantine import content_of_entry, harmless

    # characters that steer a terminal as escapes
    sys.stdout.write(harmless(content_of_entry(place, entry)) + "\n")
    return None


@command(quarantines, "retry")
def quarantine_retry(
    run: o.RunArgument, progress: Progress, config: o.ConfigOption = None, workers: o.WorkersOption = None
) -> Shown:
    """Curate what lies in a run's quarantine again, into a new run beside it."""
    return Shown("retried", redactory.quarantine_retry(run, config, workers=workers, progress=progress))


_IDS_FROM = "with one id a line: what is typed stays in the shell's history."


@command(app)
def takedown(
    places: o.PlacesArgument,
    doc_id: Annotated[list[str] | None, typer.Option(help="A document's id; repeatable.")] = None,
    user_id: Annotated[list[str] | None, typer.Option(help="A user's id; repeatable.")] = None,
    doc_ids_from: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Documents, from a file {_IDS_FROM}")
    ] = None,
    user_ids_from: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Users, from a file {_IDS_FROM}")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; write nothing.")] = False,
) -> Shown:
    """Take a person's rows out of every run that holds them, and list the models trained on them."""
    users, documents = [*(user_id or ()), *_ids(user_ids_from)], [*(doc_id or ()), *_ids(doc_ids_from)]
    result = redactory.takedown(places, doc_ids=documents, user_ids=users, dry_run=dry_run)
    code = 0 if result["ok"] else max(problem["exit_code"] for problem in result["problems"])
    return Shown("taken_down", result, code, {"by_user": bool(users)})


def _ids(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror}; a text file with one id a line is needed"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} is not UTF-8: a text file with one id a line is needed") from None
    return [line.strip() for line in lines if line.strip()]


@command(app)
def purge(
    run: o.RunArgument,
    vault: Annotated[bool, typer.Option("--vault", help="The original texts of all points.")] = False,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="What was rejected or could not be processed.")
    ] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Samples to label, sealed tracebacks, Prefect's home.")
    ] = False,
    by: o.MaybeByOption = None,
) -> Shown:
    """Take original text out of a finished run, for good. The shards stay as they are."""
    asked: dict[What, bool] = {"vault": vault, "quarantine": quarantine, "state": state}
    return Shown("purged", redactory.purge(run, [name for name, wanted in asked.items() if wanted], by=by))


# Sharing a run, and what earlier runs a job goes by.


@command(app)
def export(
    run: o.RunArgument,
    progress: Progress,
    to: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="A new folder, or a URL (s3://BUCKET/FOLDER).")
    ],
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Mirror the whole, encrypted run at a URL; again, to update it."),
    ] = False,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="A trained model to bring along; repeatable.")
    ] = None,
    by: o.MaybeByOption = None,
) -> Shown:
    """Copy what may leave a run: its public side, a card, a manifest, SHA256SUMS; models where asked for."""
    if whole:
        return Shown("published", redactory.publish(run, to, progress=progress))
    left = redactory.export(run, to, models=tuple(model or ()), by=by, progress=progress)
    return Shown("exported", left)


@command(app)
def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where a run or an export was published.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new folder.")],
    progress: Progress,
) -> Shown:
    """Bring a published run or export here, and compare every digest."""
    return Shown("fetched", redactory.fetch(url, to, progress=progress))


@command(app)
def index(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of dedup.index.path.")],
    keep_runs: Annotated[
        int | None, typer.Option("--keep-runs", min=0, help="Prune: keep the last so many runs.")
    ] = None,
    keep_days: Annotated[
        int | None, typer.Option("--keep-days", min=0, help="Prune: keep the runs of the last so many days.")
    ] = None,
) -> Shown:
    """List the runs that an index across runs holds, or prune it: what old runs saw is no duplicate then."""
    from redactory.pipelines.index import prune_index, show_index

    if keep_runs is None and keep_days is None:
        return Shown("indexed", show_index(folder))
    return Shown("pruned", prune_index(folder, keep_runs, keep_days))


# Keys.


_VARIABLES = {
    "digest": "REDACTORY_KEY_FILE",
    "encryption": "REDACTORY_ENCRYPTION_KEY_FILE",
    "signing": "REDACTORY_SIGNING_KEY_FILE",
}
NewFileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="Where to write it; never overwritten.")
]


@command(keys, "new")
def keys_new(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="digest, encryption or signing.")],
    file: NewFileArgument,
) -> Shown:
    """Write a fresh key to a new file, mode 0600; for signing also its public key, to FILE.pub."""
    files = [str(path) for path in new_key(kind, file)]
    return Shown("key_written", {"kind": kind, "files": files, "variable": _VARIABLES[kind]})


@command(keys, "unwrap")
def keys_unwrap(
    place: Annotated[
        Path, typer.Argument(metavar="FILE|RUN", help="A sealed file (a traceback in state/), or a run.")
    ],
    data_key: Annotated[
        Path | None,
        typer.Option(
            "--data-key", metavar="FILE", help="Write the run's data key there, for DuckDB and others."
        ),
    ] = None,
) -> Shown | None:
    """Print a sealed file of an encrypted run, which can quote the corpus; or unwrap the run's data key."""
    from redactory.foundation.files import write_bytes
    from redactory.redaction import RunFolder, key_of, read_secret

    if data_key is None:
        if not place.is_file():
            raise ConfigurationError(f"{place} is not a file; the data key of a run is written by --data-key")
        sys.stdout.write(read_secret(place).decode(errors="replace"))
        return None
    key = key_of(RunFolder(place).vault / "part")
    if key is None:
        raise RunStateError(f"{place} is not encrypted: it has no data key")
    if data_key.exists() or data_key.is_symlink():
        raise ConfigurationError(f"{data_key} exists: a key is never overwritten; give another name")
    # base64, mode 0600
    write_bytes(data_key, base64.b64encode(key.secret) + b"\n")
    return Shown("key_unwrapped", {"file": str(data_key), "run": str(place), **key.to_json()})


@command(keys, "rotate")
def keys_rotate(
    places: o.PlacesArgument,
    progress: Progress,
    to_key_file: Annotated[
        Path | None, typer.Option("--to-key-file", help="The file of the new encryption key.")
    ] = None,
    to_service: Annotated[
        str | None, typer.Option("--to-service", help="The new key service, package.module:function.")
    ] = None,
) -> Shown:
    """Have another key wrap the data keys of runs; the configured key opens them, asking again goes on."""
    done = redactory.rotate_key(*places, to_key_file=to_key_file, to_service=to_service, progress=progress)
    return Shown("keys_rotated", done, 0 if done["ok"] else 1)


@command(keys, "shred")
def keys_shred(
    run: o.RunArgument,
    by: o.ByOption,
    yes: Annotated[bool, typer.Option("--yes", help="Do it: nobody can undo it.")] = False,
) -> Shown:
    """Destroy the data key of an encrypted run: nobody can read its private part any more."""
    if not yes:
        raise ConfigurationError(
            f"nobody, you included, will be able to read the private part of {run} again: add --yes to do it"
        )
    return Shown("key_shredded", redactory.shred_key(run, by=by))


# Local privacy: noise before anything leaves the user, in training and in queries.


EncoderOption = Annotated[
    Path, typer.Option("--encoder", help="The users' encoder: a folder that is public, or RUN/models/NAME.")
]
DeclaredOption = Annotated[
    bool,
    typer.Option("--declared-public", help="You vouch that a Hugging Face folder was made of public text."),
]


@command(ldp, "train")
def ldp_train(
    encoder: EncoderOption,
    progress: Progress,
    data: Annotated[
        Path | None,
        typer.Argument(metavar="DATA", help="JSON lines: text, label, and user_id or text_b if any."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The service's folder.")] = None,
    public: Annotated[
        Path | None,
        typer.Option("--public", help="Instead of DATA: make the encoder, of these public rows alone."),
    ] = None,
    set_: o.SetOption = None,
    budget: Annotated[
        Path | None, typer.Option("--budget", help="The user's own folder: what all their messages spent.")
    ] = None,
    limit: Annotated[float, typer.Option("--limit", help="With --budget: most epsilon of one user.")] = 8.0,
    delta: Annotated[float, typer.Option("--delta", help="Delta of --limit.")] = 1e-5,
    declared_public: DeclaredOption = False,
) -> Shown:
    """Users and server in one process: noisy messages alone pass, and a service learns from them.

    The users' encoder is made first (--public): no private text may be in it.
    """
    if (data is None) == (public is None):
        raise ConfigurationError("give the users' DATA and --out, or --public to make the encoder")
    if public is not None:
        made = redactory.ldp_encoder(public, encoder, settings_of(set_), progress)
        return Shown("ldp_encoder", made)
    if data is None or out is None:
        raise ConfigurationError("--out: name the service's folder")
    trained = redactory.ldp_train(
        data,
        encoder,
        out,
        settings_of(set_),
        budget=budget,
        limit=limit,
        delta=delta,
        declared_public=declared_public,
        progress=progress,
    )
    return Shown("ldp_trained", trained)


@command(ldp, "evaluate")
def ldp_evaluate(
    service: Annotated[Path, typer.Argument(metavar="SERVICE", help="A service's folder.")],
    encoder: EncoderOption,
    test: Annotated[Path, typer.Option("--test", help="Held-out JSON lines with text and label.")],
    progress: Progress,
    draws: Annotated[int, typer.Option(min=1, help="How often the noise is drawn.")] = 5,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows to ask at most.")] = None,
    declared_public: DeclaredOption = False,
) -> Shown:
    """Accuracy on held-out text, with fresh noise on every query."""
    found = redactory.ldp_evaluate(
        service,
        encoder,
        test,
        draws=draws,
        limit=limit,
        declared_public=declared_public,
        progress=progress,
    )
    return Shown("ldp_accuracy", found)
