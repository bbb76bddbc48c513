"""What ``redactory plan`` prints for people."""

from __future__ import annotations

from typing import Any

from redactory.flows.output import out, table

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
        f"{result['trainer']}: {result['steps']:,} noisy steps at rate {result['sampling_rate']:g} "
        f"({result['epochs']:g} epochs), noise multiplier {result['noise_multiplier']:g} ({found}), "
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
    _published(result["as_published"])
    if "plot" in result:
        out.print(f"Epsilon against steps: {result['plot']}", soft_wrap=True)


def _meaning(result: dict[str, Any], name: str) -> str:
    reason = result["reasons"].get(name)
    return _TITLES[name] if reason is None else f"{_TITLES[name]}: {reason}"


def _ratio(result: dict[str, Any]) -> None:
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


def _published(told: dict[str, Any] | None) -> None:
    if told is not None:
        out.print(
            f"As published, not a guarantee: epsilon {_number(told['epsilon'])}, Bayesian "
            f"{_number(told['epsilon_bayesian'])}.",
            soft_wrap=True,
        )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
