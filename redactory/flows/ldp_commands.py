"""``redactory ldp``: noise before anything leaves the user, in training and queries."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import redactory
from redactory.flows import options as opt
from redactory.flows.options import command
from redactory.flows.show import Page, Result, Shown, fill, report_progress, table
from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError


@command("ldp train")
def train_ldp(
    encoder: opt.Encoder,
    data: Annotated[
        Path | None, Argument(metavar="DATA", help="JSON lines: text, label, optionally user_id, text_b.")
    ] = None,
    settings: opt.Settings = None,
    declared_public: opt.DeclaredPublic = False,
    out: Annotated[Path | None, Option(help="The service's folder.")] = None,
    public: Annotated[Path | None, Option(help="Create the encoder from these public rows.")] = None,
    budget: Annotated[Path | None, Option(help="The user's folder that records what all their messages spent.")] = None,
    limit: Annotated[float, Option(help="With --budget: the maximum epsilon that one user may spend.")] = 8.0,
    delta: Annotated[float, Option(help="Delta of --limit.")] = 1e-5,
) -> Shown:
    """Run users and server in one process: only noisy messages pass, and a service is trained on them.

    Create the users' encoder first (--public); it must hold no private text.
    """
    if (data is None) == (public is None):
        raise ConfigurationError("give the users' DATA and --out, or --public to create the encoder")
    parsed = opt.parse_settings(settings)
    if public is not None:
        r = redactory.ldp_encoder(public, encoder, parsed, report_progress)
        return r, _describe_encoder(r)
    if data is None or out is None:
        raise ConfigurationError("--out: give the folder to write the service to")
    spending: dict[str, Any] = {"budget": budget, "limit": limit, "delta": delta}
    options = {"declared_public": declared_public, "progress": report_progress, **spending}
    r = redactory.ldp_train(data, encoder, out, parsed, **options)
    return r, _describe_service(r)


def _describe_encoder(r: Result) -> Page:
    shown = {key: value for key, value in r.items() if key != "encoder" and isinstance(value, str | int | float)}
    yield table(f"{r['encoder']}: an encoder of public text", (), shown)


def _describe_service(r: Result) -> Page:
    card = r["guarantee"]
    yield fill("{service}: trained on {slots:n sentence} in {messages:n message}, of {users:n user}", r)
    kinds = {"epsilon_sound": f"{card['unit']}, sound", "epsilon_as_published": "as published, not a guarantee"}
    reasons = {key: card["reasons"][key] for key in kinds if card[key] is None}
    rows = ((words, format_upper(card[key]), reasons.get(key, "")) for key, words in kinds.items())
    yield table(fill("Epsilon at delta {delta}", card), (), rows)
    yield None if card["holds"] else f"NO GUARANTEE: {card['holds_reason']}"
    yield card["relation_meaning"]
    yield fill("Sent: {sampling[meaning]}.", card)
    noise = "Noise: {noise_multiplier} times the clipping norm C; exchanging the sentence moves a message by at most "
    yield fill(noise + "{sensitivity_in_words}.", card)
    for title, key in (("The server sees", "server_sees"), ("Not covered", "not_covered")):
        yield f"{title}:"
        yield from (f"  - {entry}" for entry in card[key])


@command("ldp evaluate")
def evaluate_ldp(
    service: Annotated[Path, Argument(metavar="SERVICE", help="A service's folder.")],
    encoder: opt.Encoder,
    test: Annotated[Path, Option(help="Held-out JSON lines with text and label.")],
    settings: opt.Settings = None,
    declared_public: opt.DeclaredPublic = False,
    draws: Annotated[int, Option(help="How many times the noise is drawn.", min=1)] = 5,
    limit: Annotated[int | None, Option(help="Use at most this many rows.", min=1)] = None,
) -> Shown:
    """Measure accuracy and epsilon on held-out text, with fresh noise for every query."""
    options: dict[str, Any] = {"draws": draws, "limit": limit, "declared_public": declared_public}
    parsed = opt.parse_settings(settings)
    r = redactory.ldp_evaluate(service, encoder, test, parsed, progress=report_progress, **options)
    return r, _describe_accuracy(r)


_QUERY_WORDS = {
    "secret_bernoulli": "hidden in {steps:n message}",
    "public_bernoulli": "in some of {steps:n step}",
    "fixed": "{sends:n message}",
}


_ACCURACY_COLUMNS = {
    "a query": "{words}",
    "noise": "{noise_multiplier}",
    "accuracy": "{accuracy[mean]:.4f}",
    "from": "{accuracy[least]:.4f}",
    "to": "{accuracy[greatest]:.4f}",
    "epsilon": "{epsilon_sound}",
    "as published": "{epsilon_as_published}",
}


def _describe_accuracy(r: Result) -> Page:
    samplings = (query["sampling"] for query in r["questions"])
    words = (fill(_QUERY_WORDS[sampling["kind"]], sampling) for sampling in samplings)
    rows = [{"words": sent, **query} for sent, query in zip(words, r["questions"], strict=True)]
    title = fill("Accuracy on {texts:n text}, mean over {draws:n draw} of the noise for every query", r)
    yield table(title, _ACCURACY_COLUMNS, rows)
    yield fill("Without noise: {accuracy_without_noise:.4f}; always the likeliest class: {majority_accuracy:.4f}.", r)
    epsilon = "no finite epsilon" if r["epsilon_sound"] is None else fill("epsilon {epsilon_sound} at delta {delta}", r)
    yield f"The published value is not a guarantee. Each training sentence: {epsilon}."
    yield "The epsilon of a query is for any other text in its place."
