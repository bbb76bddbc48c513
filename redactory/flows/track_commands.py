"""``redactory track``: finished models into MLflow's records."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import redactory
from redactory.flows.options import JsonOption, RunArgument, show
from redactory.flows.output import out


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
