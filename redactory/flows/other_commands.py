"""``redactory simulate``: make a corpus whose every secret is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output, pages
from redactory.flows.output import JsonOption, RunArgument, out, show

simulations = typer.Typer(no_args_is_help=True, help="Make a corpus whose every secret is known.")


@simulations.command("customersim")
def simulate_customersim(
    out: Annotated[Path, typer.Option("--out", help="The JSONL file to write.")],
    rows: Annotated[int, typer.Option(min=1, help="Dialogues.")] = 1_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same corpus.")] = 0,
    canaries: Annotated[int, typer.Option(min=0, help="Planted numbers 'My ID is: 123456'.")] = 0,
    copies: Annotated[int, typer.Option(min=1, help="How often each canary is planted.")] = 1,
    canary_miss_rate: Annotated[
        float,
        typer.Option(min=0, max=1, help="Probability that a canary is marked as one that π is to miss."),
    ] = 0.0,
    canary_template: Annotated[
        list[str] | None,
        typer.Option(help="Words before a canary, and its digits: 'My PIN is {4}'; give it again for more."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Support dialogues of invented people, with every secret's place."""
    with output.shown_progress() as progress:
        templates = {"templates": canary_template} if canary_template else {}
        result = redactory.simulate(
            out, rows, seed, canaries, copies, progress, canary_miss_rate, **templates
        )
    show(result, as_json, pages.simulated)


# ``redactory schema``: the JSON Schemas of what Redactory writes.


def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which one; without it they are listed.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the JSON Schema of a file that Redactory writes; without NAME, which there are."""
    if name is not None:
        output.print_indented(redactory.schema(name))
        return
    known = redactory.schemas()
    if as_json:
        output.print_json(known)
        return
    output.table("Schemas", list(known.items()), ("name", "of"), text=True)


# ``redactory track``: finished models into MLflow's records.


def track(
    run: RunArgument,
    mlflow: Annotated[str, typer.Option(metavar="FILE", help="A SQLite file, or sqlite:///FILE.")],
    model: Annotated[
        str | None, typer.Option("--model", help="One trained model; all of them by default.")
    ] = None,
    experiment: Annotated[str, typer.Option(help="MLflow's experiment.")] = "redactory",
    as_json: JsonOption = False,
) -> None:
    """Log finished models to MLflow: settings, figures, hashes and the guarantee; never text."""
    result = redactory.track(run, mlflow=mlflow, model=model, experiment=experiment)
    show(result, as_json, tracked)


def tracked(result: dict[str, Any]) -> None:
    """Which models were logged, and how they are looked at."""
    for name, identity in result["logged"].items():
        out.print(f"Logged {name} as {identity}", soft_wrap=True, markup=False)
    out.print(
        f"Look: mlflow ui --backend-store-uri sqlite:///{result['mlflow']}", soft_wrap=True, markup=False
    )
