"""Both accountants beside exact epsilons at 50 digits: how far above the truth, how often they agree, and the time.

    python benchmarks/two_accountants.py > OUT.json

The exact values are those of ``benchmarks/exact_epsilons.py``: 200 random settings, delta from 1e-15 to 1e-3.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from redactory.training.accounting import Spending, compare_examples, confirm_epsilon
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation

SETTINGS = Path(__file__).parents[1] / "tests/training/accounting/exact_epsilons.json"


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Compute one setting by both accountants: excess over the exact epsilon as a share of it, and seconds."""
    mechanism = PoissonGaussian(row["sampling_rate"], row["noise"], 1.0, 1.0)
    compared = compare_examples((Spending(mechanism, row["steps"]),), Relation(row["relation"]))
    exact = float(row["epsilon"])

    def take_time(compute: Callable[[], float]) -> tuple[float, float]:
        start = time.process_time()
        return compute() / exact - 1.0, time.process_time() - start

    estimate, estimate_seconds = take_time(lambda: compared.estimate_epsilon(row["delta"]))
    proved, proved_seconds = take_time(lambda: compared.bound_epsilon(row["delta"]).upper)
    return {
        "delta": row["delta"],
        "estimate": estimate if np.isfinite(estimate) else None,
        "proved": proved if np.isfinite(proved) else None,
        "is_computed_once": confirm_epsilon(compared, row["delta"], "epsilon").is_computed_once,
        "estimate_seconds": estimate_seconds,
        "proved_seconds": proved_seconds,
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarize rows: the smallest, median and largest excess of each accountant, and the median seconds."""
    table: dict[str, Any] = {"settings": len(rows), "computed_once": sum(row["is_computed_once"] for row in rows)}
    for name in ("estimate", "proved"):
        excess = np.array([row[name] for row in rows if row[name] is not None])
        if len(excess):
            table[name] = {
                "without": len(rows) - len(excess),
                "low": int((excess < 0.0).sum()),
                "smallest": float(excess.min()),
                "median": float(np.median(excess)),
                "largest": float(excess.max()),
                "seconds": float(np.median([row[f"{name}_seconds"] for row in rows])),
            }
    return table


def main() -> None:
    """Print the table by delta, and for all settings together."""
    rows = [measure(row) for row in json.loads(SETTINGS.read_text("utf-8"))]
    parts = {"all": rows}
    for low, high in ((1e-15, 1e-12), (1e-12, 1e-10), (1e-10, 1e-8), (1e-8, 1e-3)):
        parts[f"delta {low:g} to {high:g}"] = [row for row in rows if low <= row["delta"] < high]
    print(json.dumps({name: summarize(part) for name, part in parts.items()}, indent=1))


if __name__ == "__main__":
    main()
