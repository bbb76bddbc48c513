"""``redactory plan uedp-bounded|uedp-alg1|user-level``: what hiding users and entities would cost."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import typer

from redactory.flows import plan_page
from redactory.flows.options import JsonOption, show
from redactory.flows.planning import planned


def ratio(text: str) -> float:
    """A number, or a fraction such as 50/946."""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter("a number or a fraction such as 50/946 is needed") from None


UsersOption = Annotated[int | None, typer.Option("--users", min=1, help="Users |U|, a public constant.")]
PointsOption = Annotated[int | None, typer.Option("--points", min=1, help="Points of the corpus.")]
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
RateOption = Annotated[
    float,
    typer.Option("--sampling-rate", parser=ratio, metavar="RATIO", help="Probability q of a kept point."),
]
StepsOption = Annotated[int, typer.Option("--steps", min=1, help="Noisy steps.")]
NoiseOption = Annotated[
    float | None, typer.Option("--noise", help="Noise multiplier σ; for uedp-alg1 z of the paper.")
]
TargetOption = Annotated[
    float | None, typer.Option("--epsilon", help="Target epsilon, instead of --noise: the noise is found.")
]
DeltaOption = Annotated[float, typer.Option("--delta", help="Delta of every epsilon.")]
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
PlotOption = Annotated[Path | None, typer.Option("--plot", help="SVG file: epsilon against steps.")]


def plan_bounded(
    sampling_rate: RateOption,
    steps: StepsOption,
    users: UsersOption = None,
    points: PointsOption = None,
    noise: NoiseOption = None,
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
    noise: NoiseOption = None,
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
    noise: NoiseOption = None,
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
