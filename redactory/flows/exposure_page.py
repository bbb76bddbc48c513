"""What ``redactory evaluate canary`` and ``redactory evaluate extraction`` print for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from redactory.flows.output import out, table
from redactory.foundation.wording import some

_ENOUGH = 10
"""Canaries of each arm from which on a bootstrap over them is shown."""


def canary(result: dict[str, Any]) -> None:
    """Highest and mean exposure beside controls and chance."""
    chance = result.get("chance") or {}
    rows = [
        ("inserted", _bits(result["highest_exposure"]), _bits(result["mean_exposure"])),
        ("never inserted", _bits(result["control_highest_exposure"]), _bits(result["control_mean_exposure"])),
        ("by chance, expected", _bits(chance.get("highest_expected")), _bits(chance.get("mean_expected"))),
        ("by chance, 95 % stay below", _bits(chance.get("highest_95")), ""),
        ("largest possible", _bits(result["largest_possible"]), ""),
    ]
    if result.get("missed"):
        rows.insert(1, ("  missed by π", _bits(result["highest_exposure_missed"]), ""))
        rows.insert(2, ("  caught by π", _bits(result["highest_exposure_caught"]), ""))
    table(f"Canary exposure of {result['model']}, bits", rows, ("canaries", "highest", "mean"))
    difference = (result.get("intervals") or {}).get("mean_difference") or {}
    if difference.get("value") is not None:
        out.print(f"Mean of inserted less never inserted: {difference['value']:.2f} bits{_interval(result)}")
    if chance.get("highest_p_value") is not None:
        out.print(
            "Chance alone gives so high a highest exposure with probability "
            f"{chance['highest_p_value']:.2g}, so high a mean with {chance['mean_p_value']:.2g}",
            soft_wrap=True,
        )
    for reason in result.get("reasons", ()):
        out.print(f"Not measured of some: {reason}", soft_wrap=True, markup=False)
    out.print(f"Copies of the canaries in what it was trained on: {result['copies_left']}\n")


def _interval(result: Mapping[str, Any]) -> str:
    """The interval of the difference of means; of few canaries a bootstrap is too narrow to be shown."""
    arms = Counter(bool(row["inserted"]) for row in result["canaries"])
    if min(arms[True], arms[False]) < _ENOUGH:
        return ""
    difference = result["intervals"]["mean_difference"]
    return f" ({difference['low']:.2f} to {difference['high']:.2f}, 95 %)"


def extraction(result: dict[str, Any]) -> None:
    """Secrets found beside controls, by label and by how often they were seen."""
    out.print(
        f"Searched {some(result['samples'], 'text')} of {result['model']} for "
        f"{some(result['secrets'], 'secret')}: "
        f"{_share(result['found'])} found; of values never seen {_share(result['controls_share'])}.",
        soft_wrap=True,
    )
    if result["p_value"] is not None:
        out.print(f"Chance alone finds as many with probability {result['p_value']:.2g}.")
    headers = ("", "secrets", "found", "controls", "found")
    by_label = [(escape(label), *_counts(own)) for label, own in result["by_label"].items()]
    table("By label", by_label, headers)
    seen = [(_times(own), *_counts(own)) for own in result["by_times_seen"] if own["secrets"]]
    table("By times seen in training", seen, headers)
    completion = result["completion"]
    out.print(
        f"Given the words before it: {completion['secrets_found']:,} of "
        f"{some(completion['secrets'], 'secret')} "
        f"completed, {completion['controls_found']:,} of {completion['controls']:,} controls",
        soft_wrap=True,
    )
    for reason in (*result["reasons"], *completion["reasons"]):
        out.print(f"Not measured: {reason}", soft_wrap=True, markup=False)


def _counts(own: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(f"{own[key]:,}" for key in ("secrets", "secrets_found", "controls", "controls_found"))


def _times(own: Mapping[str, Any]) -> str:
    low, high = own["from"], own["to"]
    return f"{low:,} or more" if high is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _share(share: Mapping[str, float | None]) -> str:
    if share["value"] is None:
        return "none"
    return f"{share['value']:.2%} ({share['low']:.2%} to {share['high']:.2%})"


def _bits(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
