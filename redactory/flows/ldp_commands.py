"""``redactory ldp``: noise before anything leaves the user, in training and in queries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import ldp_page, output
from redactory.flows.options import JsonOption, show
from redactory.foundation.errors import ConfigurationError

ldp = typer.Typer(no_args_is_help=True, help="Local privacy: clip and noise sentences before they leave.")

EncoderOption = Annotated[
    Path, typer.Option("--encoder", help="The users' encoder: a folder that is public, or RUN/models/NAME.")
]
NewEncoderOption = Annotated[
    Path | None, typer.Option("--encoder", help="Make a new service for this encoder, in an empty folder.")
]
DataArgument = Annotated[
    Path, typer.Argument(metavar="DATA", help="JSON lines: text, label, and user_id or text_b if any.")
]
ServiceArgument = Annotated[Path, typer.Argument(metavar="SERVICE", help="A service's folder.")]
UrlOption = Annotated[str, typer.Option("--url", help="The service's address.")]
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
DeltaOption = Annotated[float, typer.Option("--delta", help="Delta of --limit and of --epsilon.")]
AcceptOption = Annotated[
    float, typer.Option("--epsilon", help="Most epsilon that one sentence may cost; else nothing is sent.")
]


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
    show(result, as_json, ldp_page.encoder)


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
    show(result, as_json, ldp_page.trained)


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
    show(result, as_json, ldp_page.accuracy)


@ldp.command("serve")
def serve(
    service: ServiceArgument,
    port: Annotated[int, typer.Option(min=0, help="On 127.0.0.1; 0 takes any that is free.")] = 8780,
    encoder: NewEncoderOption = None,
    set_: SetOption = None,
    declared_public: DeclaredOption = False,
    as_json: JsonOption = False,
) -> None:
    """Listen for messages, until interrupted; no text ever comes here."""
    result = redactory.ldp_serve(
        service,
        port=port,
        encoder=encoder,
        settings=settings(set_),
        declared_public=declared_public,
        ready=lambda url: output.err.print(f"serving {service.name} at {url}", soft_wrap=True, markup=False),
    )
    show(result, as_json, ldp_page.served)


@ldp.command("send")
def send(
    data: DataArgument,
    encoder: EncoderOption,
    url: UrlOption,
    budget: BudgetOption = None,
    limit: LimitOption = 8.0,
    delta: DeltaOption = 1e-5,
    epsilon: AcceptOption = 8.0,
    train: Annotated[bool, typer.Option("--train", help="Let the service train when all is sent.")] = False,
    declared_public: DeclaredOption = False,
    as_json: JsonOption = False,
) -> None:
    """A user's side: send sentences to a service as noisy vectors, with their classes in clear."""
    with output.shown_progress() as progress:
        result = redactory.ldp_send(
            data,
            encoder,
            url,
            budget=budget,
            limit=limit,
            delta=delta,
            epsilon=epsilon,
            train=train,
            declared_public=declared_public,
            progress=progress,
        )
    show(result, as_json, ldp_page.sent)


@ldp.command("ask")
def ask(
    text: Annotated[
        str, typer.Argument(metavar="TEXT|FILE", help="A text, or a file: one a line, or JSONL.")
    ],
    encoder: EncoderOption,
    url: UrlOption,
    budget: BudgetOption = None,
    limit: LimitOption = 8.0,
    delta: DeltaOption = 1e-5,
    epsilon: AcceptOption = 8.0,
    user: Annotated[str, typer.Option("--user", help="With --budget: whose messages these are.")] = "",
    declared_public: DeclaredOption = False,
    as_json: JsonOption = False,
) -> None:
    """A user's side: ask a service, which sees noisy vectors and no text."""
    from redactory.pipelines.ldp.rows import read_queries

    result = redactory.ldp_ask(
        read_queries(text),
        encoder,
        url,
        budget=budget,
        limit=limit,
        delta=delta,
        epsilon=epsilon,
        user=user,
        declared_public=declared_public,
    )
    show(result, as_json, ldp_page.answered)


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
