"""The command line: every command is a public function, with its result printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output, pages
from redactory.foundation.errors import ConfigurationError, RedactoryError

app = typer.Typer(
    name="redactory",
    help="Audited training shards from raw text, and models trained on them with a guarantee.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
evaluations = typer.Typer(no_args_is_help=True, help="Measure a trained model, or the policies.")
simulations = typer.Typer(no_args_is_help=True, help="Make a corpus whose every secret is known.")
app.add_typer(evaluations, name="evaluate")
app.add_typer(simulations, name="simulate")

ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A configuration (.yaml), or an input file, folder or URL.")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="The run folder; the configuration's by default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes for curation.")]
PrefectOption = Annotated[bool, typer.Option("--prefect", help="Run as a Prefect flow.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="A trained model; the configured one by default.")
]

Page = Callable[[dict[str, Any]], None]


def main() -> None:
    """The console script: 0 done, 1 a check failed, 2 bad input or configuration."""
    try:
        app()
    except RedactoryError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted; --resume goes on where it stopped", 130)
    except Exception as error:
        # the message of an unexpected error may quote the corpus: only its kind and place are told
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        place = f" at {Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
        _fail(f"unexpected {type(error).__name__}{place}; please report it", 1)


def _fail(message: str, code: int) -> None:
    if "--json" in sys.argv:
        output.print_json({"ok": False, "error": message, "exit_code": code})
    output.err.print(f"redactory: {message}", soft_wrap=True, markup=False)
    sys.stdout.flush()
    raise SystemExit(code)


def _show(result: dict[str, Any], as_json: bool, page: Page) -> None:
    if as_json:
        output.print_json(result)
    else:
        page(result)


def _carry_out(
    plain: Callable[..., dict[str, Any]] | None, flow: str, config: str, out: Path | None, **settings: Any
) -> dict[str, Any]:
    """Call the plain function, or where there is none, run the flow around it."""
    with output.shown_progress() as progress:
        if plain is not None:
            return plain(config, output=out, progress=progress, **settings)
        from redactory.flows.with_prefect import start_flow

        return start_flow(flow, config, out, progress, **settings)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        output.out.print(redactory.__version__)
        raise typer.Exit


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The configuration to write.")] = Path("redactory.yaml"),
    as_json: JsonOption = False,
) -> None:
    """Write a commented example configuration."""
    from redactory.pipelines.examples import write_example

    try:
        write_example(file)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists; give another name") from None
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from None
    _show(
        {"file": str(file)},
        as_json,
        lambda _: output.out.print(f"Wrote {file}. Next: redactory describe {file}"),
    )


@app.command()
def describe(config: ConfigArgument, out: OutOption = None, as_json: JsonOption = False) -> None:
    """Say what a run would do: stages, policies, columns, first bad rows. Nothing is written."""
    _show(redactory.describe(config, output=out), as_json, pages.describe)


@app.command()
def curate(
    config: ConfigArgument,
    out: OutOption = None,
    resume: ResumeOption = False,
    workers: WorkersOption = None,
    prefect: PrefectOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn a raw corpus into audited shards."""
    plain = None if prefect else redactory.curate
    _show(_carry_out(plain, "curate", config, out, resume=resume, workers=workers), as_json, pages.curated)


@app.command()
def train(
    config: ConfigArgument,
    out: OutOption = None,
    trainer: Annotated[
        str | None, typer.Option(help="crt, sgd or dpsgd, instead of the configured one.")
    ] = None,
    prefect: PrefectOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model on a finished run."""
    changes = {"trainer": trainer} if trainer else {}
    plain = None if prefect else redactory.train
    _show(_carry_out(plain, "train", config, out, **changes), as_json, pages.trained)


@app.command()
def run(
    config: ConfigArgument,
    out: OutOption = None,
    resume: ResumeOption = False,
    workers: WorkersOption = None,
    prefect: PrefectOption = False,
    as_json: JsonOption = False,
) -> None:
    """Curate, train and evaluate."""
    plain = None if prefect else redactory.run
    result = _carry_out(plain, "curate_and_train", config, out, resume=resume, workers=workers)
    _show(result, as_json, pages.ran)


@app.command()
def verify(run: RunArgument, as_json: JsonOption = False) -> None:
    """Check a finished run again, from its files alone."""
    with output.shown_progress() as progress:
        result = redactory.verify(run, progress=progress)
    _show(result, as_json, pages.verified)
    if not result["ok"]:
        raise SystemExit(1)


@app.command()
def guarantee(run: RunArgument, model: ModelOption = None, as_json: JsonOption = False) -> None:
    """Print what may be promised of a trained model, derived again from its ledger."""
    _show(redactory.guarantee(run, model), as_json, pages.guarantee)


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
    _show(result, as_json, pages.demo)


@evaluations.command("perplexity")
def evaluate_perplexity(
    run: RunArgument,
    model: ModelOption = None,
    test: Annotated[
        list[str] | None, typer.Option(help="Held-out corpus instead of the configured one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Perplexity on held-out text, as it is and masked by the strict policy."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_perplexity(run, model, tuple(test or ()), progress)
    _show(result, as_json, pages.perplexity)


@evaluations.command("canary")
def evaluate_canary(
    run: RunArgument,
    model: ModelOption = None,
    canaries: Annotated[
        Path | None, typer.Option(help="FILE.canaries.json instead of the configured one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Exact exposure of planted canaries over all candidates."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_canary(run, model, canaries, progress)
    _show(result, as_json, pages.canary)


@evaluations.command("recall")
def evaluate_recall(config: ConfigArgument, out: OutOption = None, as_json: JsonOption = False) -> None:
    """What the policies miss of the secrets in evaluate.labelled; a guarantee takes its figures from here."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_recall(config, output=out, progress=progress)
    _show(result, as_json, pages.recall)


@simulations.command("customersim")
def simulate_customersim(
    out: Annotated[Path, typer.Option("--out", help="The JSONL file to write.")],
    rows: Annotated[int, typer.Option(min=1, help="Dialogues.")] = 1_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same corpus.")] = 0,
    canaries: Annotated[int, typer.Option(min=0, help="Planted numbers 'My ID is: 123456'.")] = 0,
    copies: Annotated[int, typer.Option(min=1, help="How often each canary is planted.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Support dialogues of invented people, with every secret's place."""
    with output.shown_progress() as progress:
        result = redactory.simulate(out, rows, seed, canaries, copies, progress)
    _show(result, as_json, pages.simulated)
