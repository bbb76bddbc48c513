"""``redactory plan``: what a training would cost, from a configuration or from numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from redactory.flows import plan_ldp, plan_page, plan_units
from redactory.flows.options import ConfigArgument, JsonOption, OutOption, show
from redactory.flows.planning import planned

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


plans.command("uedp-bounded")(plan_units.plan_bounded)
plans.command("uedp-alg1")(plan_units.plan_algorithm1)
plans.command("user-level")(plan_units.plan_user_level)
plans.command("ldp")(plan_ldp.plan_ldp)


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
