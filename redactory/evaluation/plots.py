"""Draw plans and measurements as SVG with matplotlib (extra ``plots``), from numbers alone.

The same numbers give the same bytes, without dates or random names.
"""

from __future__ import annotations

import importlib.util
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redactory.evaluation.statistics import estimate_proportion
from redactory.foundation.errors import ConfigurationError, pluralize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = Mapping[str, Any]
_STYLE: Any = {
    "svg.hashsalt": "redactory",
    # text as text: small and searchable
    "svg.fonttype": "none",
    "text.parse_math": False,
    # otherwise each word repeats the whole list
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eeeeee",
    "legend.frameon": False,
}
_ATTRIBUTE, _EXTRA_DECIMALS = re.compile(r'="[^"]*"'), re.compile(r"(?<=\.\d\d)\d+")
_OMITTED_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
BLUE, RED, GREEN, GREY = "#1f5f8b", "#b5541c", "#2e7d32", "#8a8a8a"


def require_matplotlib() -> None:
    """Raise ``ConfigurationError`` if Matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigurationError(
            "plot needs matplotlib, which is not installed: pip install 'redactory[plots]', or omit plot"
        )


def render_plot(name: str, plot: Callable[..., str], *results: Any) -> dict[str, str]:
    """Return {name: picture}, or nothing without matplotlib, because the metrics contain the same."""
    return {name: plot(*results)} if importlib.util.find_spec("matplotlib") else {}


def draw_svg(draw: Callable[[Axes], object], title: str, x: str, y: str, size: tuple[float, float] = (7.0, 4.0)) -> str:
    """Return the picture that ``draw`` makes on axes with the titles ``x`` and ``y``; size in inches."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, x=0.02, ha="left", fontsize=11)
        draw(figure.subplots(subplot_kw={"xlabel": x, "ylabel": y}))
        figure.savefig(buffer, format="svg", metadata=_OMITTED_METADATA)
    svg = buffer.getvalue()
    # hundredths of a point suffice; longer numbers could look like personal data
    return _ATTRIBUTE.sub(lambda m: _EXTRA_DECIMALS.sub("", m[0]), svg[svg.index("<svg") :])


def set_log_scale(axis: Any, steps: Sequence[float] = (1.0,)) -> None:
    """Make an axis logarithmic with ticks at ``steps`` times powers of ten, in plain digits."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _format_percent(share: float, _: float) -> str:
    return f"{100 * share:.3g} %"


PlotLines = tuple[tuple[str, str, str, str], ...]
SECRET_LINES: PlotLines = (
    ("epsilon", "one named secret", BLUE, "-"),
    ("epsilon_bayesian", "a secret that a policy catches", RED, "--"),
)
PRIVACY_UNIT_LINES: PlotLines = (
    ("epsilon", "sound", BLUE, "-"),
    ("epsilon_as_published", "as published, not a guarantee", GREY, ":"),
)
TARGET_LINES: PlotLines = (("noise_multiplier", "noise multiplier", BLUE, "o-"), ("error", "error", RED, "o--"))
_ATTACK_LINES: PlotLines = (
    ("individual", "perplexity", BLUE, "-"),
    ("reference", "likelihood ratio, one reference", RED, "--"),
    ("rmia", "the same, by rank (RMIA)", GREEN, ":"),
    ("reference_alone", "reference model alone", GREY, "-."),
)
_MIN_SHARE = 1e-4
_CANARY_COLOURS = {
    "planted, missed by strict": RED,
    "planted, caught by strict": BLUE,
    "planted": BLUE,
    "never planted": GREY,
}


def plot_epsilon(
    curve: Sequence[Result], title: str, lines: PlotLines = SECRET_LINES, x: str = "steps", y: str = "epsilon"
) -> str:
    """Plot ``lines`` of ``curve``, rows of a plan, against the key ``x``; a line ends at the last finite value."""

    def draw(axes: Axes) -> None:
        for key, description, colour, style in lines:
            points = [(row[x], row[key]) for row in curve if row.get(key) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=colour, label=description)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        if axes.lines:
            axes.legend()

    return draw_svg(draw, title, {"steps": "noisy steps"}.get(x, x), y)


def plot_membership(result: Result) -> str:
    """Plot the ROC curves of :func:`~redactory.evaluation.membership.run_membership_attack` on logarithmic axes.

    A share of 0 has no logarithm, so a curve begins at the first false positive, with the true positives so far.
    """
    title = f"Members told from others, {result['members']:,} sentences of each"

    def draw(axes: Axes) -> None:
        for key, name, colour, style in _ATTACK_LINES:
            if result.get(key):
                curve = result[key]["roc"]
                initial_rate = max((true for false, true in curve if false <= 0.0), default=0.0)
                points = [(_MIN_SHARE, initial_rate), *(point for point in curve if point[0] > 0.0)]
                x, y = zip(*((x, max(y, _MIN_SHARE)) for x, y in points), strict=True)
                axes.step(x, y, style, where="post", color=colour, label=name)
        ends = (_MIN_SHARE, 1.0)
        axes.plot(ends, ends, color="#bbbbbb", label="chance")
        for axis in (axes.xaxis, axes.yaxis):
            set_log_scale(axis)
            axis.set_major_formatter(_format_percent)
        axes.set(xlim=ends, ylim=ends)
        axes.figure.legend(loc="outside right upper")

    return draw_svg(draw, title, "false positives (share of others)", "true positives (share of members)")


def plot_exposure(result: Result) -> str:
    """Plot a result of ``canary_exposure``: a dot per canary, in bits by kind of canary, and the chance level.

    Canaries without an exposure are not drawn; their number is stated.
    """
    missed, caught, planted, never = _CANARY_COLOURS
    kinds: dict[str, list[float | None]] = {kind: [] for kind in _CANARY_COLOURS}
    if any(row.get("missed") for row in result["canaries"]):
        planted = caught
    for row in result["canaries"]:
        kind = never if not row["inserted"] else missed if row.get("missed") else planted
        kinds[kind].append(row["exposure"])
    names: list[str] = []

    def draw(axes: Axes) -> None:
        for kind, values in kinds.items():
            if not values:
                continue
            exposures = sorted(value for value in values if value is not None)
            positions = [len(names) + 0.5 * ((n * 0.618034) % 1.0 - 0.5) for n in range(len(exposures))]
            axes.plot(positions, exposures, "o", color=_CANARY_COLOURS[kind], alpha=0.75)
            without = f", {len(values) - len(exposures)} without" if len(values) > len(exposures) else ""
            names.append(f"{kind}\n{pluralize(len(values), 'canary', 'canaries')}{without}")
        axes.set_xticks(range(len(names)), names)
        max_bits, mean = float(result["largest_possible"]), 1.0 / math.log(2.0)
        axes.set(ylim=(0, 1.05 * max_bits), xlim=(-0.6, max(len(names), 1) - 0.4))
        axes.axhline(max_bits, color="#333333", label=f"known by heart: {max_bits:.1f}")
        chance = (result.get("chance") or {}).get("highest_95")
        if chance is not None:
            axes.axhline(chance, color=GREEN, linestyle="--", label=f"95 % of chance's highest: {chance:.1f}")
        axes.axhline(mean, color=GREEN, linestyle=":", label=f"chance's mean: {mean:.1f}")
        axes.figure.legend(loc="outside right upper")

    return draw_svg(draw, "Exposure of each canary", "", "exposure (bits)", size=(7.5, 4.0))


def plot_extraction(result: Result) -> str:
    """Plot a result of ``extraction``: bars with 95 % Clopper-Pearson intervals, for groups that hold a secret."""
    groups = [group for group in result["by_times_seen"] if group["secrets"]]
    title = f"Secrets found in {pluralize(result['samples'], 'text')} that the model wrote"

    def draw(axes: Axes) -> None:
        for offset, kind, colour, description in (
            (-0.2, "secrets", RED, "secrets"),
            (0.2, "controls", GREY, "controls: values of the same form that it never saw"),
        ):
            tried = [(position, group) for position, group in enumerate(groups) if group[kind]]
            shares = [estimate_proportion(group[f"{kind}_found"], group[kind]) for _, group in tried]
            reach = [[abs(estimate["value"] - estimate[end]) for estimate in shares] for end in ("low", "high")]
            axes.bar(
                [position + offset for position, _ in tried],
                [estimate["value"] for estimate in shares],
                yerr=reach,
                error_kw={"elinewidth": 0.8, "ecolor": "#333333"},
                color=colour,
                alpha=0.7,
                width=0.38,
                label=description,
            )
        axes.set_xticks(
            range(len(groups)), [f"{_format_count_range(g)}\n{pluralize(g['secrets'], 'secret')}" for g in groups]
        )
        axes.set_ylim(bottom=0)
        axes.legend(title=None if groups else "no secret was tried")
        axes.yaxis.set_major_formatter(_format_percent)

    return draw_svg(draw, title, "occurrences of a secret in the training data", "found (share)")


def _format_count_range(group: Result) -> str:
    low, high = group["from"], group["to"]
    return f"{low:,} or more" if high is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"


def plot_reliability(bins: Sequence[tuple[float, float, int]], error: float) -> str:
    """Plot ``bins`` as (mean confidence, observed share, tokens); the diagonal is perfect calibration."""
    title, x, y = f"calibration error {error:.4f}", "stated probability of plain", "share that is plain"

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], "--", color="#bbbbbb")
        axes.plot([mean for mean, *_ in bins], [share for _, share, _ in bins], "o-", color=BLUE)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")

    return draw_svg(draw, title, x, y, size=(4.0, 4.0))
