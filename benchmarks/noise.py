"""The cost of noise that floating point cannot give away: exactly rounded against double precision.

python benchmarks/noise.py [--json] [--coordinates N ...] [--rounds R]
prints one row a size and kind: seconds for the noise of one step (best of R), its ratio to the plain kind,
and how many draws needed more digits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from redactory.foundation.stream import RandomStream
from redactory.training.mechanisms import lattice


def main() -> None:
    """Measure both kinds, interleaved."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinates", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 5_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    own = parser.parse_args()
    rows = [row for count in own.coordinates for row in measured(count, own.rounds)]
    if own.json:
        print(json.dumps(rows))
        return
    print(f"{'coordinates':>12} {'noise':>8} {'seconds':>9} {'ratio':>6} {'more digits':>12}")
    for row in rows:
        ratio, exact = row["ratio_to_float"], row["more_digits"]
        print(f"{row['coordinates']:>12,} {row['noise']:>8} {row['seconds']:>9.4f} {ratio:>6.2f} {exact:>12}")


def measured(count: int, rounds: int) -> list[dict[str, Any]]:
    """A row each for ``float`` and ``lattice``."""
    stream, scale = (
        RandomStream.from_entropy(),
        (1.0 + lattice.NOISE_MARGIN) / lattice.choose_lattice_spacing(1.0, count),
    )
    exactly, asked = lattice._round_draw_exactly, 0

    def counted(*arguments: Any) -> int:
        nonlocal asked
        asked += 1
        return exactly(*arguments)

    lattice._round_draw_exactly = counted
    kinds: dict[str, Callable[[int], Any]] = {
        "float": lambda step: stream.normal("noise", step, count),
        "lattice": lambda step: lattice.draw_rounded_normal(stream, "noise", step, count, scale),
    }
    best = dict.fromkeys(kinds, float("inf"))
    for step in range(rounds):
        for name, draw in kinds.items():
            start = time.perf_counter()
            draw(step)
            best[name] = min(best[name], time.perf_counter() - start)
    lattice._round_draw_exactly = exactly
    return [
        {
            "coordinates": count,
            "noise": name,
            "seconds": best[name],
            "ratio_to_float": best[name] / best["float"],
            "more_digits": asked // rounds if name == "lattice" else 0,
        }
        for name in kinds
    ]


if __name__ == "__main__":
    main()
