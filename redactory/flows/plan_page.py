"""What ``redactory plan`` prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redactory.flows.output import out, table
from redactory.foundation.errors import some, upwards

_TITLES = {
    "epsilon": "one named secret that π missed",
    "epsilon_bayesian": "a secret that at least one policy catches",
    "epsilon_confidentiality": "every secret alike",
    "coverage_failure": "share of secrets without any guarantee, at most",
    "epsilon_substitution": "one private point exchanged for another",
    "epsilon_add_remove": "for information: one point there or not",
}


def planned(result: dict[str, Any]) -> None:
    """``redactory plan``: the mechanism, each figure or why there is none, and what would improve it."""
    found = "found for the target" if result["noise_calibrated"] else "as given"
    out.print(
        f"{result['trainer']}: {some(result['steps'], 'noisy step')} at rate {result['sampling_rate']:g} "
        f"(epochs: {result['epochs']:g}), noise multiplier {result['noise_multiplier']:g} ({found}), "
        f"delta {result['delta']:g}",
        soft_wrap=True,
    )
    rows = [(name, _number(result[name]), _meaning(result, name)) for name in _TITLES]
    rows += [
        (f"epsilon_group, {size}", _number(value), "private points exchanged at once")
        for size, value in result["epsilon_group"].items()
    ]
    table("What it would guarantee", rows, ("figure", "", "for"), text=True)
    _ratio(result)
    remarks(result["remarks"])
    _published(result["as_published"])
    if "plot" in result:
        out.print(f"Epsilon against steps: {result['plot']}", soft_wrap=True)


def units(result: dict[str, Any]) -> None:
    """``redactory plan`` of a training that hides users or entities: one figure a relation, each by name."""
    found = "found for the target" if result["noise_calibrated"] else "as given"
    noise = f"noise multiplier {result['noise_multiplier']:.4g}"
    if result["trainer"] == "uedp-alg1":
        noise += f" on the sum (z = {result['noise']:.4g})"
    rate = result.get("sampling_rate", result.get("user_rate"))
    out.print(
        f"{result['trainer']}: {some(result['steps'], 'noisy step')} at rate {rate:g}, {noise} ({found}), "
        "delta "
        f"{result['delta']:g}",
        soft_wrap=True,
    )
    rows = [("epsilon_sound", _number(result["epsilon_sound"]), _unit(result, "epsilon_sound", "adjacency"))]
    if "epsilon_user_removal" in result:
        words = _unit(result, "epsilon_user_removal", "adjacency_user_removal")
        rows.append(("epsilon_user_removal", _number(result["epsilon_user_removal"]), words))
    rows += [
        (f"curve, {size}", _number(value), _several(result, size)) for size, value in result["curve"].items()
    ]
    table("What it would guarantee", rows, ("figure", "", "relation"), text=True)
    _extent(result)
    _choices(result)
    if "corpus" in result:
        _corpus(result["corpus"])
    told = result["epsilon_as_published"]
    why = result["reasons"].get("epsilon_as_published")
    out.print(
        f"As published, not a guarantee: {_number(told)}{'' if why is None else f' ({why})'}.", soft_wrap=True
    )
    if "plot" in result:
        out.print(f"Epsilon against steps: {result['plot']}", soft_wrap=True)


def _unit(result: dict[str, Any], name: str, relation: str) -> str:
    reason = result["reasons"].get(name)
    return str(result[relation]) if reason is None else f"{result[relation]}: {reason}"


def _several(result: dict[str, Any], size: str) -> str:
    """What the row of the curve for ``size`` is for."""
    if "adjacency_curve" in result:
        return str(result["adjacency_curve"]).replace(" K ", f" {size} ")
    return f"{size} users at once" if "M" not in result else f"an entity that {size} users hold at most"


def _extent(result: dict[str, Any]) -> None:
    """K or M, and the noise beside what it is added to."""
    if result.get("K") is not None:
        out.print(f"K = {result['K']}: what one unit contributes at most.", soft_wrap=True)
    if result.get("M") is not None:
        out.print(f"M = {result['M']:,} users that one entity touches: {result['M_source']}.", soft_wrap=True)
    if result["noise_to_batch"] is not None:
        per = "users" if result["trainer"] != "uedp-bounded" else "points"
        out.print(
            f"Noise to batch: {result['noise_to_batch']:.3g} of the clip, on each coordinate of the mean "
            f"over the {per} of a step.",
            soft_wrap=True,
        )


def _choices(result: dict[str, Any]) -> None:
    """What other caps would keep at most, and what they would cost."""
    if not result.get("choices"):
        return
    rows = [
        (
            f"{entry['k']}{' (suggested)' if entry['suggested'] else ''}",
            f"{entry['kept_at_most']:,}",
            f"{entry['K']}",
            _number(entry["epsilon"]),
        )
        for entry in result["choices"]
    ]
    table("Other caps, same noise and batch", rows, ("k", "kept at most", "K", "epsilon"))


def _corpus(corpus: dict[str, Any]) -> None:
    """What each cap keeps of a finished run, of which labels, as counted."""
    choices = corpus["choices"]
    rows = [
        (
            f"{entry['cap']}{' (suggested)' if entry['cap'] == corpus['suggested'] else ''}",
            f"{entry['kept']:,}",
            f"{entry['affected']}",
            _noise(entry["noise_multiplier"]),
            _noise(entry["relative_noise"]),
        )
        for entry in choices
    ]
    title = f"In this run, for epsilon {corpus['target']:g} ({corpus['note']})"
    table(title, rows, ("k", "kept", "K", "noise", "noise to batch"))
    labels = [
        (label, f"{count:,}", *(f"{entry['by_label'].get(label, 0):,}" for entry in choices))
        for label, count in corpus["by_label"].items()
    ]
    heads = ("label", "all", *(f"k = {entry['cap']}" for entry in choices))
    table("Points that are kept, by what they mention", labels, heads)


def _meaning(result: dict[str, Any], name: str) -> str:
    reason = result["reasons"].get(name)
    return _TITLES[name] if reason is None else f"{_TITLES[name]}: {reason}"


def _ratio(result: dict[str, Any]) -> None:
    if result["points_drawn"] is not None:
        out.print(
            f"A noisy step draws {result['points_drawn']:,.3g} of {result['private_points']:,} noised "
            "points on "
            f"average; {result['expected_batch']:g} divides their sum.",
            soft_wrap=True,
        )
    if result["noise_to_batch"] is not None:
        out.print(
            f"Noise to batch: {result['noise_multiplier']:g} / {result['expected_batch']:g} = "
            f"{result['noise_to_batch']:.3g} of the clipping norm, on each coordinate of the mean gradient.",
            soft_wrap=True,
        )
    if result["improve"]:
        rows = [
            (entry["change"], f"{entry['noise_multiplier']:.3g}", f"× {entry['factor']:.3g}")
            for entry in result["improve"]
        ]
        table("With the same epsilon", rows, ("change", "noise", "noise to batch"))


def remarks(told: Sequence[str]) -> None:
    """What is odd about a training, a line each."""
    for remark in told:
        out.print(f"Mind: {remark}.", soft_wrap=True, markup=False)


def _published(told: dict[str, Any] | None) -> None:
    if told is not None:
        out.print(
            f"As published, not a guarantee: epsilon {_number(told['epsilon'])}, Bayesian "
            f"{_number(told['epsilon_bayesian'])}.",
            soft_wrap=True,
        )


def _noise(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _number(value: float | None) -> str:
    return "none" if value is None else upwards(value)
