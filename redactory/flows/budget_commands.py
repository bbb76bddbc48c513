"""``redactory budget``: what is spent of a budget for several models."""

from __future__ import annotations

from typing import Any

import redactory
from redactory.flows import output
from redactory.flows.options import ConfigArgument, JsonOption, show


def budget(config: ConfigArgument, as_json: JsonOption = False) -> None:
    """Say what is spent of train.budget, and by which trainings. Nothing is written."""
    show(redactory.budget(config), as_json, _told)


def _told(result: dict[str, Any]) -> None:
    spent = "no finite epsilon" if result["spent"] is None else f"{result['spent']:.4f}"
    # a limit can have been lowered, or the trainings booked under a higher one
    over = result["spent"] is None or result["spent"] > result["epsilon"]
    mind = ": over the budget" if over else ""
    output.out.print(
        f"{result['budget']}: {spent} of {result['epsilon']:g} spent{mind}, at delta {result['delta']:g}; "
        f"unit: {result['unit']}",
        soft_wrap=True,
        markup=False,
    )
    rows = [
        (own["training"], f"{own['steps']:,}", f"{own['epsilon_after']:.4f}", f"{own['delta']:g}")
        for own in result["trainings"]
    ]
    if rows:
        output.table("Booked", rows, ("training", "steps", "epsilon with it", "at delta"), text=True)
