"""``redactory reproduce``: a paper's figures from one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output
from redactory.flows.options import JsonOption, show
from redactory.flows.output import out as page
from redactory.flows.output import table
from redactory.foundation.errors import ConfigurationError

reproductions = typer.Typer(no_args_is_help=True, help="Reproduce a paper's figures.")


@reproductions.callback()
def _several() -> None:
    # without it a single command would take the group's place; each paper is a command of its own
    return


@reproductions.command("crt")
def reproduce_crt(
    figure: Annotated[int, typer.Option(min=2, max=6, help="The paper's figure.")],
    out: Annotated[Path, typer.Option(help="Where the runs, the models and the figures lie.")],
    data: Annotated[
        Path | None, typer.Option(help="Labelled rows to train on; CustomerSim is simulated without them.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="Labelled rows to measure on; goes with --data.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows to train on.")] = 3_000,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each model.")] = 5,
    gammas: Annotated[
        str | None, typer.Option(help="Miss rates of π, with commas; 0,0.1,0.2,0.3,0.5 (Figure 2: 0.1).")
    ] = None,
    epsilons: Annotated[
        str | None, typer.Option(help="Epsilons, with commas; 0.5,1,4 (Figures 3 to 5: 1).")
    ] = None,
    trainers: Annotated[str | None, typer.Option(help="Some of the trainers, with commas.")] = None,
    width: Annotated[int, typer.Option(min=1, help="Of the embedding and of the network.")] = 64,
    kind: Annotated[str, typer.Option(help="lstm, or gpt2 (fresh; without sdp).")] = "lstm",
    label: Annotated[
        str | None,
        typer.Option(help="Whose membership Figures 4 and 5 infer; addresses where there are any."),
    ] = None,
    copies: Annotated[int, typer.Option(min=1, help="How often each of the ten canaries is planted.")] = 20,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of train, in YAML.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """A figure of "Provably Confidential Language Modelling", with the published trend beside ours."""
    given: dict[str, Any] = {"rows": rows, "seeds": seeds, "width": width, "kind": kind, "label": label}
    given |= {"copies": copies, "constants": dict(map(_constant, set_ or ()))}
    if gammas is not None:
        given["gammas"] = _numbers("gammas", gammas)
    if epsilons is not None:
        given["epsilons"] = _numbers("epsilons", epsilons)
    if trainers is not None:
        given["trainers"] = tuple(name.strip() for name in trainers.split(","))
    with output.shown_progress() as progress:
        result = redactory.reproduce_crt(figure, out, data=data, test=test, progress=progress, **given)
    show(result, as_json, reproduced)


def reproduced(result: dict[str, Any]) -> None:
    """The table of a figure, what was published, and which of it ours shows."""
    names = _COLUMNS[result["figure"]]
    rows = [tuple(_cell(row, name) for name in names) for row in result["table"]]
    table(f"CRT, Figure {result['figure']}", rows, tuple(name.replace("_", " ") for name in names))
    page.print(f"Published ({result['published']['source']}): {result['published']['trend']}", soft_wrap=True)
    page.print()
    words = {True: "yes", False: "NO", None: "not run"}
    claims = [(words[one["holds"]], one["trainer"], one["claim"]) for one in result["ours"]]
    table("Ours", claims, ("holds", "trainer", "what"), text=True)
    page.print("Wrote " + " and ".join(result["files"]), soft_wrap=True)


_COLUMNS = {
    2: ("trainer", "target", "epsilon", "perplexity", "seeds"),
    3: ("trainer", "gamma", "highest", "mean", "control_highest", "difference", "seeds"),
    4: ("trainer", "gamma", "accuracy", "seeds"),
    5: ("trainer", "gamma", "accuracy", "single", "seeds"),
    6: ("target", "gamma", "as_published", "sound", "noise_multiplier"),
}


def _cell(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if isinstance(value, dict):
        low, high = (value.get(a, value.get(b)) for a, b in (("low", "least"), ("high", "greatest")))
        return f"{value['value']:.3f} ({low:.3f} to {high:.3f})"
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _numbers(key: str, given: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in given.split(","))
    except ValueError:
        raise ConfigurationError(f"{key}: numbers with commas between them") from None


def _constant(given: str) -> tuple[str, Any]:
    import yaml

    key, sign, value = given.partition("=")
    if not sign:
        raise ConfigurationError("set: a key of train, '=', and its value")
    return key, yaml.safe_load(value)
