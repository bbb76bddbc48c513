"""``redactory ldp``: noise before anything leaves the user, in training and in queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output
from redactory.flows.output import JsonOption, out, show, table
from redactory.foundation.errors import ConfigurationError, some, upwards

ldp = typer.Typer(no_args_is_help=True, help="Local privacy: clip and noise sentences before they leave.")

EncoderOption = Annotated[
    Path, typer.Option("--encoder", help="The users' encoder: a folder that is public, or RUN/models/NAME.")
]
DataArgument = Annotated[
    Path, typer.Argument(metavar="DATA", help="JSON lines: text, label, and user_id or text_b if any.")
]
ServiceArgument = Annotated[Path, typer.Argument(metavar="SERVICE", help="A service's folder.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting, in YAML; a.b is b below a.")
]
DeclaredOption = Annotated[
    bool,
    typer.Option("--declared-public", help="You vouch that a Hugging Face folder was made of public text."),
]
BudgetOption = Annotated[
    Path | None, typer.Option("--budget", help="The user's own folder: what all her messages spent.")
]
LimitOption = Annotated[float, typer.Option("--limit", help="With --budget: most epsilon of one user.")]
DeltaOption = Annotated[float, typer.Option("--delta", help="Delta of --limit.")]


@ldp.command("encoder")
def encoder(
    public: Annotated[Path, typer.Option("--public", help="Public JSON lines with text and label.")],
    out: Annotated[Path, typer.Option("--out", help="The encoder's folder.")],
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train the users' encoder on public text; no private text may be in it."""
    with output.shown_progress() as progress:
        result = redactory.ldp_encoder(public, out, settings(set_), progress)
    show(result, as_json, show_encoder)


@ldp.command("train")
def train(
    data: DataArgument,
    encoder: EncoderOption,
    out: Annotated[Path, typer.Option("--out", help="The service's folder.")],
    set_: SetOption = None,
    budget: BudgetOption = None,
    limit: LimitOption = 8.0,
    delta: DeltaOption = 1e-5,
    declared_public: DeclaredOption = False,
    as_json: JsonOption = False,
) -> None:
    """Users and server in one process: noisy messages alone pass, and a service learns from them."""
    with output.shown_progress() as progress:
        result = redactory.ldp_train(
            data,
            encoder,
            out,
            settings(set_),
            budget=budget,
            limit=limit,
            delta=delta,
            declared_public=declared_public,
            progress=progress,
        )
    show(result, as_json, trained)


@ldp.command("evaluate")
def evaluate(
    service: ServiceArgument,
    encoder: EncoderOption,
    test: Annotated[Path, typer.Option("--test", help="Held-out JSON lines with text and label.")],
    draws: Annotated[int, typer.Option(min=1, help="How often the noise is drawn.")] = 5,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows to ask at most.")] = None,
    declared_public: DeclaredOption = False,
    as_json: JsonOption = False,
) -> None:
    """Accuracy on held-out text, with fresh noise on every query."""
    with output.shown_progress() as progress:
        result = redactory.ldp_evaluate(
            service,
            encoder,
            test,
            draws=draws,
            limit=limit,
            declared_public=declared_public,
            progress=progress,
        )
    show(result, as_json, accuracy)


def settings(given: list[str] | None) -> dict[str, Any]:
    """``KEY=VALUE`` entries, each value in YAML."""
    import yaml

    found = {}
    for entry in given or ():
        key, sign, value = entry.partition("=")
        if not sign or not key:
            raise ConfigurationError("set: a key, '=', and its value are needed")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigurationError(f"set: the value of {key} is not YAML") from None
    return found


# What ``redactory ldp`` prints for people.


def show_encoder(result: dict[str, Any]) -> None:
    """An encoder that was made."""
    out.print(f"{result['encoder']}: an encoder of public text", style="bold", soft_wrap=True)
    for key, value in result.items():
        if key != "encoder" and isinstance(value, str | int | float):
            _line(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")


def trained(result: dict[str, Any]) -> None:
    """A service that has learnt, and its promise."""
    out.print(f"{result['service']}: trained", style="bold", soft_wrap=True)
    _line(
        f"  {some(result['slots'], 'sentence')} in {some(result['messages'], 'message')}, of "
        f"{some(result['users'], 'user')}"
    )
    out.print()
    promise(result["guarantee"])


def promise(card: dict[str, Any]) -> None:
    """The card's figures, each null with its reason, and what stands around them."""
    rows = [
        (f"{card['unit']}, sound", _figure(card, "epsilon_sound")),
        ("as published, not a guarantee", _figure(card, "epsilon_as_published")),
    ]
    table(f"Epsilon at delta {card['delta']:g}", rows, text=True)
    if not card["holds"]:
        _line(f"NO GUARANTEE: {card['holds_reason']}")
    _line(card["relation_meaning"])
    _line(f"Sent: {card['participation']['meaning']}.")
    _line(
        f"Noise: {card['noise_multiplier']:g} times the clip; another sentence moves a message by at most "
        f"{card['sensitivity_in_words']}."
    )
    for title, key in (("The server sees", "server_sees"), ("Not covered", "not_covered")):
        _line(f"{title}:")
        for entry in card[key]:
            _line(f"  - {entry}")


def accuracy(result: dict[str, Any]) -> None:
    """Accuracy with and without noise on the queries."""
    found = result["accuracy"]
    spread = f"{found['least']:.4f} to {found['greatest']:.4f}"
    rows = [
        (f"noise on every query, mean of {result['draws']} draws", f"{found['mean']:.4f}", spread),
        ("no noise on queries (for comparison)", f"{result['accuracy_without_noise']:.4f}", ""),
        ("always the most frequent class", f"{result['majority_accuracy']:.4f}", ""),
    ]
    table(f"Accuracy on {some(result['texts'], 'text')}", rows, ("", "accuracy", "least to greatest"))
    epsilon = result["epsilon_sound"]
    cost = (
        "no finite epsilon" if epsilon is None else f"epsilon {upwards(epsilon)} at delta {result['delta']:g}"
    )
    _line(f"Each sentence and each query: {cost}, noise {result['noise_multiplier']:g}.")


def _figure(card: dict[str, Any], name: str) -> str:
    value = card[name]
    return f"none: {card['reasons'][name]}" if value is None else upwards(value)


def _line(text: str) -> None:
    out.print(text, soft_wrap=True, markup=False)
