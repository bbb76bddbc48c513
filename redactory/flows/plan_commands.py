"""``redactory plan``: what a training would cost, from a configuration or from numbers."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from redactory.flows import plan_page
from redactory.flows.output import ConfigArgument, JsonOption, OutOption, out, planned, show, table
from redactory.foundation.errors import some, upwards

FILE = "CONFIG"
"""The name of the subcommand that any other first word than a subcommand's stands for."""


class PlanGroup(TyperGroup):
    """A group whose first argument is a subcommand, or else a configuration."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The subcommand that ``args`` begin with; :data:`FILE` with all of ``args`` where they do not."""
        if args and args[0] != FILE and args[0] not in self.commands:
            return "", self.commands[FILE], args
        return super().resolve_command(ctx, args)


plans = typer.Typer(
    cls=PlanGroup,
    no_args_is_help=True,
    help="Say what a training would cost, before it is run.",
    subcommand_metavar="CONFIG | COMMAND [ARGS]...",
)

PointsOption = Annotated[
    int | None, typer.Option("--private-points", min=1, help="Points that are noised, N: for the batch, N·q.")
]
RateOption = Annotated[float, typer.Option("--sampling-rate", help="Probability q of a point in a step.")]
StepsOption = Annotated[int, typer.Option("--steps", min=1, help="Noisy steps.")]
NoiseOption = Annotated[float | None, typer.Option("--noise", help="Noise multiplier σ.")]
TargetOption = Annotated[
    float | None, typer.Option("--epsilon", help="Target epsilon, instead of --noise: the noise is found.")
]
DeltaOption = Annotated[float, typer.Option("--delta", help="Delta of every epsilon.")]
GammaOption = Annotated[float, typer.Option("--gamma", help="Upper bound of the share that π misses.")]
Delta2Option = Annotated[
    float | None, typer.Option("--delta-2", help="Upper bound of the share that both policies miss.")
]
GroupOption = Annotated[
    list[int] | None, typer.Option("--group-size", min=2, help="Points exchanged at once; can be repeated.")
]
BayesianOption = Annotated[bool, typer.Option("--bayesian", help="--epsilon is meant as epsilon_bayesian.")]
DropOption = Annotated[bool, typer.Option("--drop", help="crt-drop: points with a mask contribute nothing.")]
PlotOption = Annotated[Path | None, typer.Option("--plot", help="SVG file: epsilon against steps.")]


@plans.command(FILE)
def plan_config(
    config: ConfigArgument, out: OutOption = None, plot: PlotOption = None, as_json: JsonOption = False
) -> None:
    """The training that a configuration describes; a finished run adds its points and its recall."""
    result = planned(config, output=out, plot=plot)
    show(result, as_json, plan_page.units if "epsilon_sound" in result else plan_page.planned)


@plans.command("crt")
def plan_crt(
    sampling_rate: RateOption,
    steps: StepsOption,
    private_points: PointsOption = None,
    noise: NoiseOption = None,
    epsilon: TargetOption = None,
    delta: DeltaOption = 1e-5,
    gamma: GammaOption = 1.0,
    delta_2: Delta2Option = None,
    group_size: GroupOption = None,
    bayesian: BayesianOption = False,
    drop: DropOption = False,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """CRT: noise on masked private points, none on public ones."""
    numbers: dict[str, Any] = {"trainer": "crt-drop" if drop else "crt", "gamma": gamma, "delta_2": delta_2}
    shared = _shared(sampling_rate, steps, private_points, noise, epsilon, delta, group_size)
    show(planned(plot=plot, bayesian=bayesian, **numbers, **shared), as_json, plan_page.planned)


@plans.command("dpsgd")
def plan_dpsgd(
    sampling_rate: RateOption,
    steps: StepsOption,
    private_points: PointsOption = None,
    noise: NoiseOption = None,
    epsilon: TargetOption = None,
    delta: DeltaOption = 1e-5,
    group_size: GroupOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """DP-SGD: noise on every original point."""
    shared = _shared(sampling_rate, steps, private_points, noise, epsilon, delta, group_size)
    show(planned(plot=plot, trainer="dpsgd", **shared), as_json, plan_page.planned)


def _shared(
    sampling_rate: float,
    steps: int,
    private_points: int | None,
    noise: float | None,
    epsilon: float | None,
    delta: float,
    group_size: list[int] | None,
) -> dict[str, Any]:
    return {
        "sampling_rate": sampling_rate,
        "steps": steps,
        "private_points": private_points,
        "noise": noise,
        "target": epsilon,
        "delta": delta,
        "group_sizes": tuple(sorted(set(group_size or []))),
    }


# ``redactory plan uedp-bounded|uedp-alg1|user-level``: what hiding users and entities would cost.


def ratio(text: str) -> float:
    """A number, or a fraction such as 50/946."""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter("a number or a fraction such as 50/946 is needed") from None


UsersOption = Annotated[int | None, typer.Option("--users", min=1, help="Users |U|, a public constant.")]
PointsOption_plan_units = Annotated[int | None, typer.Option("--points", min=1, help="Points of the corpus.")]
UserRateOption = Annotated[
    float,
    typer.Option("--user-rate", parser=ratio, metavar="RATIO", help="Probability q_u of a user in a step."),
]
EntityRateOption = Annotated[
    float, typer.Option("--entity-rate", parser=ratio, metavar="RATIO", help="Probability q_e of an entity.")
]
ExtendedRateOption = Annotated[
    float,
    typer.Option(
        "--extended-rate", parser=ratio, metavar="RATIO", help="Probability q_s of a point without an entity."
    ),
]
ShareOption = Annotated[
    float | None,
    typer.Option(
        "--sensitive-share",
        parser=ratio,
        metavar="RATIO",
        help="Share of sentences with an entity; for the figure as published of f_E+ alone.",
    ),
]
RateOption_plan_units = Annotated[
    float,
    typer.Option("--sampling-rate", parser=ratio, metavar="RATIO", help="Probability q of a kept point."),
]
NoiseOption_plan_units = Annotated[
    float | None, typer.Option("--noise", help="Noise multiplier σ; for uedp-alg1 z of the paper.")
]
SpreadOption = Annotated[
    int | None,
    typer.Option("--max-users-per-entity", min=1, help="Enforced cap M on an entity's users; |U| if absent."),
]
CapUserOption = Annotated[
    int | None, typer.Option("--k-user", min=1, help="Most points of a user; about points/users if absent.")
]
CapEntityOption = Annotated[
    int | None, typer.Option("--k-entity", min=1, help="Most points of an entity; as --k-user if absent.")
]
ProtectOption = Annotated[
    Literal["users", "entities", "both", "either"], typer.Option("--protect", help="Who is hidden.")
]


def plan_bounded(
    sampling_rate: RateOption_plan_units,
    steps: StepsOption,
    users: UsersOption = None,
    points: PointsOption_plan_units = None,
    noise: NoiseOption_plan_units = None,
    epsilon: TargetOption = None,
    delta: DeltaOption = 1e-5,
    k_user: CapUserOption = None,
    k_entity: CapEntityOption = None,
    protect: ProtectOption = "both",
    rule: Annotated[
        Literal["greedy", "all-keep", "r-loc", "none"], typer.Option("--rule", help="How points are chosen.")
    ] = "greedy",
    entities_per_point: Annotated[
        int | None, typer.Option("--entities-per-point", min=0, help="r-loc: most entities of a kept point.")
    ] = None,
    missed_mentions: Annotated[
        int, typer.Option("--missed-mentions", min=0, help="Kept points with an unlisted mention to cover.")
    ] = 0,
    public_constants: Annotated[
        bool,
        typer.Option("--public-constants", help="Rate, steps and normaliser were chosen without the corpus."),
    ] = False,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """UeDP by bounded contributions: at most k points of a unit, noise on every point's gradient."""
    result = planned(
        plot=plot,
        trainer="uedp-bounded",
        sampling_rate=sampling_rate,
        steps=steps,
        users=users,
        points=points,
        noise=noise,
        target=epsilon,
        delta=delta,
        k_user=k_user,
        k_entity=k_entity,
        protect=protect,
        rule=rule,
        entities_per_point=entities_per_point,
        missed_mentions=missed_mentions,
        public_constants=public_constants,
    )
    show(result, as_json, plan_page.units)


def plan_algorithm1(
    users: Annotated[int, typer.Option("--users", min=1, help="Users |U|, a public constant.")],
    user_rate: UserRateOption,
    steps: StepsOption,
    entity_rate: EntityRateOption = 0.5,
    extended_rate: ExtendedRateOption = 1.0,
    sensitive_share: ShareOption = None,
    noise: NoiseOption_plan_units = None,
    epsilon: TargetOption = None,
    delta: DeltaOption = 1e-5,
    max_users_per_entity: SpreadOption = None,
    protect: ProtectOption = "both",
    estimator: Annotated[
        Literal["f_E", "f_E+"], typer.Option("--estimator", help="f_E leaves out points without an entity.")
    ] = "f_E+",
    rule: Annotated[
        Literal["any", "all"],
        typer.Option("--rule", help="A point is used if any, or all, of its entities are drawn."),
    ] = "any",
    noise_form: Annotated[
        Literal["paper", "patent"],
        typer.Option("--noise-form", help="Noise on the sum: z(q_u|U| + 1), or z(|U| + 1)."),
    ] = "paper",
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """UeDP by the paper's Algorithm 1, soundly accounted; beside it what the paper would print."""
    result = planned(
        plot=plot,
        trainer="uedp-alg1",
        users=users,
        user_rate=user_rate,
        steps=steps,
        entity_rate=entity_rate,
        extended_rate=extended_rate,
        sensitive_share=sensitive_share,
        noise=noise,
        target=epsilon,
        delta=delta,
        max_users_per_entity=max_users_per_entity,
        protect=protect,
        estimator=estimator,
        selection=rule,
        noise_form=noise_form,
    )
    show(result, as_json, plan_page.units)


def plan_user_level(
    user_rate: UserRateOption,
    steps: StepsOption,
    users: UsersOption = None,
    noise: NoiseOption_plan_units = None,
    epsilon: TargetOption = None,
    delta: DeltaOption = 1e-5,
    protect: ProtectOption = "users",
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """DP-FedAvg: users are hidden, entities are not."""
    result = planned(
        plot=plot,
        trainer="user-level",
        user_rate=user_rate,
        steps=steps,
        users=users,
        noise=noise,
        target=epsilon,
        delta=delta,
        protect=protect,
    )
    show(result, as_json, plan_page.units)


# ``redactory plan ldp``: what messages at a noise would guarantee, soundly and as published.


PublishedTargetOption = Annotated[
    float | None,
    typer.Option(
        "--published-epsilon",
        help="An epsilon as published, instead of --noise: the noise of the paper's Algorithm 2 or 3.",
    ),
]
TargetOption_plan_ldp = Annotated[
    float | None, typer.Option("--epsilon", help="Target of epsilon_sound, instead of --noise.")
]
DeltaOption_plan_ldp = Annotated[
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
StepsOption_plan_ldp = Annotated[int | None, typer.Option("--steps", min=1, help="Steps T of a rate.")]
ShareOption_plan_ldp = Annotated[
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
    noise: NoiseOption_plan_units = None,
    epsilon: TargetOption_plan_ldp = None,
    published_epsilon: PublishedTargetOption = None,
    delta: DeltaOption_plan_ldp = 1e-5,
    sends: SendsOption = 1,
    visible_rate: VisibleOption = None,
    hidden_rate: HiddenOption = None,
    published_rate: PublishedRateOption = None,
    steps: StepsOption_plan_ldp = None,
    true_share: ShareOption_plan_ldp = None,
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


plans.command("uedp-bounded")(plan_bounded)
plans.command("uedp-alg1")(plan_algorithm1)
plans.command("user-level")(plan_user_level)
plans.command("ldp")(plan_ldp)
