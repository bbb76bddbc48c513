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
    output.out.print(
        f"{result['budget']}: {spent} of {result['epsilon']:g} spent, at delta {result['delta']:g}; "
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
