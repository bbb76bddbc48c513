"""The command line: every command is a public function, with its result printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import redactory
from redactory.flows import (
    detection_commands,
    nightly_commands,
    output,
    pages,
    schedule_commands,
    stopping,
    store_commands,
    takedown_commands,
    train_commands,
)
from redactory.flows import detection_commands as scan_commands
from redactory.flows import other_commands as schema_commands
from redactory.flows import other_commands as track_commands
from redactory.flows import stopping as json_log
from redactory.flows import store_commands as export_commands
from redactory.flows import train_commands as apply_commands
from redactory.flows import train_commands as budget_commands
from redactory.flows import train_commands as generate_commands
from redactory.flows import train_commands as guarantee_commands
from redactory.flows.detection_commands import labels
from redactory.flows.evaluate_commands import audits, evaluations
from redactory.flows.key_commands import keys
from redactory.flows.ldp_commands import ldp
from redactory.flows.nightly_commands import quarantines, releases
from redactory.flows.other_commands import simulations
from redactory.flows.output import (
    NOT_LOGGED,
    AnyRunArgument,
    ConfigArgument,
    DaskOption,
    JsonOption,
    OutOption,
    PrefectOption,
    ResumeOption,
    WorkersOption,
    asks_for_help,
    carry_out,
    is_usage,
    say_blind,
    show,
    unexpected,
    usage_message,
)
from redactory.flows.plan_commands import plans
from redactory.flows.store_commands import indexes
from redactory.flows.train_commands import say_open, say_remarks
from redactory.foundation.errors import ConfigurationError, RedactoryError
from redactory.foundation.processes import forbid_core_dumps

_INTERRUPTED = 130
_GO_ON = "give the command again to go on (with --resume where it has one)"
app = typer.Typer(
    name="redactory",
    help="Audited training shards from raw text, and models trained on them with a guarantee.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(evaluations, name="evaluate")
app.add_typer(audits, name="audit")
app.add_typer(indexes, name="index")
app.add_typer(keys, name="keys")
app.add_typer(labels, name="labels")
app.add_typer(ldp, name="ldp")
app.add_typer(plans, name="plan")
app.add_typer(quarantines, name="quarantine")
app.add_typer(releases, name="release")
app.add_typer(simulations, name="simulate")


def main() -> None:
    """The console script: 0 done, 1 a check failed, 2 bad input or configuration."""
    forbid_core_dumps()
    stopping.end_in_order()
    output.print_anything()
    # what a command before this one asked for, in one process
    json_log.end()
    try:
        # not on its own: what it does not understand is told as every other error is
        code = app(standalone_mode=False, prog_name="redactory") or 0
    except RedactoryError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            # the interpreter would print it
            _fail("unexpected SystemExit; please report it", 1)
        code = end.code or 0
    except Exception as error:
        if asks_for_help(error):
            raise SystemExit(2) from None
        if is_usage(error):
            _fail(usage_message(error), 2, NOT_LOGGED)
        _fail(unexpected(error), 1)
    if code == _INTERRUPTED:
        _fail(f"interrupted: {_GO_ON}", code)
    json_log.ended(code)
    raise SystemExit(code)


def _fail(message: str, code: int, logged: str | None = None) -> None:
    if stopping.was_asked():
        message, code, logged = f"stopped by SIGTERM: {_GO_ON}", stopping.EXIT_CODE, None
    if "--json" in sys.argv:
        output.print_json({"ok": False, "error": message, "exit_code": code})
    if not json_log.on_terminal():
        output.err.print(f"redactory: {message}", soft_wrap=True, markup=False)
    json_log.ended(code, logged or message)
    sys.stdout.flush()
    raise SystemExit(code)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    log_json: Annotated[
        str | None,
        typer.Option(
            "--log-json",
            metavar="FILE",
            help="Log what happens as one JSON object a line, added to FILE; - is standard error.",
        ),
    ] = None,
) -> None:
    if version:
        output.out.print(redactory.__version__)
        raise typer.Exit
    json_log.begin(log_json, context.invoked_subcommand)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The configuration to write.")] = Path("redactory.yaml"),
    as_json: JsonOption = False,
) -> None:
    """Write a commented example configuration."""
    from redactory.pipelines.describe import write_example

    try:
        write_example(file)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists; give another name") from None
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error.strerror}; give a place in a folder that you may write"
        ) from None
    show(
        {"file": str(file)},
        as_json,
        lambda _: output.out.print(f"Wrote {file}. Next: redactory describe {file}"),
    )


@app.command()
def describe(
    config: ConfigArgument,
    out: OutOption = None,
    against: Annotated[
        str | None,
        typer.Option(help="Another configuration, or a finished run: what differs between the policies."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a run would do: stages, policies, columns, first bad rows. Nothing is written."""
    with output.shown_progress() as progress:
        result = redactory.describe(config, progress=progress, output=out)
    if against is not None:
        result["differs"] = redactory.policy_diff(against, config)
    show(result, as_json, pages.describe)


@app.command()
def curate(
    config: ConfigArgument,
    out: OutOption = None,
    resume: ResumeOption = False,
    workers: WorkersOption = None,
    prefect: PrefectOption = False,
    dask: DaskOption = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a raw corpus into audited shards."""
    say_blind(config, out)
    plain = None if prefect else redactory.curate
    result = carry_out(plain, "curate", config, out, dask, resume=resume, workers=workers)
    show(result, as_json, pages.curated)
    say_open(result)


app.command()(train_commands.train)


@app.command()
def run(
    config: ConfigArgument,
    out: OutOption = None,
    resume: ResumeOption = False,
    workers: WorkersOption = None,
    prefect: PrefectOption = False,
    dask: DaskOption = None,
    as_json: JsonOption = False,
) -> None:
    """Curate, train and evaluate."""
    say_blind(config, out)
    plain = None if prefect else redactory.run
    result = carry_out(plain, "curate_and_train", config, out, dask, resume=resume, workers=workers)
    show(result, as_json, pages.ran)
    say_open(result)
    say_remarks(config, out)


@app.command()
def verify(
    run: AnyRunArgument,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="PEM file: the run must be signed by this key.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a finished run again, from its files alone."""
    with output.shown_progress() as progress:
        result = redactory.verify(run, progress=progress, public_key=public_key)
    show(result, as_json, pages.verified)
    if not result["ok"]:
        raise SystemExit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="The run folder.")] = Path("demo-run"),
    rows: Annotated[int, typer.Option(min=50, help="Dialogues of the simulated corpus.")] = 1_000,
    workers: WorkersOption = None,
    prefect: Annotated[bool, typer.Option("--prefect/--no-prefect", help="Run as a Prefect flow.")] = True,
    as_json: JsonOption = False,
) -> None:
    """The whole job on a simulated corpus, a few minutes long."""
    from redactory.flows.demo import run_demo

    with output.shown_progress() as progress:
        result = run_demo(out, rows, workers or min(2, os.cpu_count() or 1), prefect, progress)
    show(result, as_json, pages.demo)


app.command()(apply_commands.apply)
app.command()(budget_commands.budget)
app.command()(detection_commands.explain)
app.command()(export_commands.export)
app.command()(generate_commands.generate)
app.command()(guarantee_commands.guarantee)
app.command()(scan_commands.scan)
app.command()(schema_commands.schema)
app.command()(store_commands.fetch)
app.command()(store_commands.publish)
app.command()(detection_commands.fit)
app.command("fit-policy")(detection_commands.fit_policy)
app.command()(nightly_commands.nightly)
app.command()(schedule_commands.deploy)
app.command()(schedule_commands.serve)
app.command()(takedown_commands.takedown)
app.command()(track_commands.track)
app.command()(takedown_commands.purge)
