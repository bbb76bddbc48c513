"""``redactory plan ldp``: what messages at a noise would guarantee, soundly and as published."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from redactory.flows.options import JsonOption, show
from redactory.flows.output import out, table
from redactory.flows.plan_units import NoiseOption, ratio
from redactory.flows.planning import planned
from redactory.foundation.wording import some, upwards

PublishedTargetOption = Annotated[
    float | None,
    typer.Option(
        "--published-epsilon",
        help="An epsilon as published, instead of --noise: the noise of the paper's Algorithm 2 or 3.",
    ),
]
TargetOption = Annotated[
    float | None, typer.Option("--epsilon", help="Target of epsilon_sound, instead of --noise.")
]
DeltaOption = Annotated[
    float, typer.Option("--delta", parser=ratio, metavar="RATIO", help="Delta of every epsilon.")
]
SendsOption = Annotated[int, typer.Option("--sends", min=1, help="How often each sentence is sent, J.")]
VisibleOption = Annotated[
    float | None,
    typer.Option(
        "--visible-rate",
        parser=ratio,
        metavar="RATIO",
        help="A sentence is sent in a step with this probability, and the server sees whether.",
    ),
]
HiddenOption = Annotated[
    float | None,
    typer.Option(
        "--hidden-rate",
        parser=ratio,
        metavar="RATIO",
        help="The same, and every slot that does not send its sentence sends noise alone.",
    ),
]
PublishedRateOption = Annotated[
    float | None,
    typer.Option(
        "--published-rate",
        parser=ratio,
        metavar="RATIO",
        help="p of the paper's figure, where it is another.",
    ),
]
StepsOption = Annotated[int | None, typer.Option("--steps", min=1, help="Steps T of a rate.")]
ShareOption = Annotated[
    float | None,
    typer.Option(
        "--true-share",
        parser=ratio,
        metavar="RATIO",
        help="Queries with fictitious ones among them: the share q that is true.",
    ),
]
PairsOption = Annotated[bool, typer.Option("--pairs", help="Two clipped vectors in a message (matching).")]
_TITLES = {
    "epsilon_claimed": "as published (equation 9), not a guarantee",
    "epsilon_visible": "the server sees which messages a query sent",
    "epsilon_hidden": "every slot sends in every step, else noise alone",
    "epsilon_one_send": "the query is sent once",
}


def plan_ldp(
    noise: NoiseOption = None,
    epsilon: TargetOption = None,
    published_epsilon: PublishedTargetOption = None,
    delta: DeltaOption = 1e-5,
    sends: SendsOption = 1,
    visible_rate: VisibleOption = None,
    hidden_rate: HiddenOption = None,
    published_rate: PublishedRateOption = None,
    steps: StepsOption = None,
    true_share: ShareOption = None,
    pairs: PairsOption = False,
    as_json: JsonOption = False,
) -> None:
    """LDP-NLP: noise on every message, before it leaves its user."""
    result = planned(
        trainer="ldp",
        noise=noise,
        target=epsilon,
        published_target=published_epsilon,
        delta=delta,
        sends=sends,
        visible_rate=visible_rate,
        hidden_rate=hidden_rate,
        published_rate=published_rate,
        steps=steps,
        true_share=true_share,
        pairs=pairs,
    )
    show(result, as_json, page)


def page(result: dict[str, Any]) -> None:
    """The plan for people: the figure, what else the noise would cost, what the paper would print."""
    told = result["participation"]
    if told["kind"] == "fixed":
        often = "sent once" if told["sends"] == 1 else f"sent {told['sends']:,} times"
    else:
        steps = some(told["steps"], "step")
        often = f"{steps}, sent with probability {told['rate']:.4g} in each ({told['kind']})"
    out.print(
        f"ldp: {result['unit']}, {often}; noise multiplier {result['noise_multiplier']:.4g} "
        f"({result['noise_source']}), delta {result['delta']:.3g}",
        soft_wrap=True,
    )
    reason = result["reasons"].get("epsilon_sound")
    words = result["relation_meaning"] if reason is None else f"{result['relation_meaning']}: {reason}"
    rows = [("epsilon_sound", _number(result["epsilon_sound"]), words)]
    table("What it would guarantee", rows, ("figure", "", "against"), text=True)
    out.print(
        f"An exchanged sentence moves a message by up to {result['sensitivity']:.4g} clips; mu = "
        f"{result['mu']:.4g} a message.",
        soft_wrap=True,
    )
    others = [(entry["participation"], _number(entry["epsilon"])) for entry in result["compared"]]
    table("The same noise", others, ("how a sentence is sent", "epsilon"))
    _published(result)
    for line in (*result["notes"], *(f"Holds only if {one}." for one in result["conditions"])):
        out.print(line, soft_wrap=True)


def _published(result: dict[str, Any]) -> None:
    told = result["as_published"]
    out.print(
        f"As published ({told['formula']}), not a guarantee: {_number(result['epsilon_as_published'])}. "
        + "; ".join(told["why_not"].values())
        + ".",
        soft_wrap=True,
    )
    if "inference" in result:
        found = result["inference"]
        rows = [(name, _number(found[name]), words) for name, words in _TITLES.items()]
        title = f"Queries of which a share {found['true_share']:.4g} is true; {found['worth']}"
        table(title, rows, ("figure", "", "where"), text=True)


def _number(value: float | None) -> str:
    return "none" if value is None else upwards(value)
