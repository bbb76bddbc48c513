"""Train the tagger that is shipped, from the rows that ``prepare.py`` wrote.

    python examples/default_tagger/train.py ROWS OUT

Takes about a quarter of an hour on one core.  Twelve epochs fitted the rows better and other text worse.
OUT is what ``redactory/detectors/tagger/default`` holds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import redactory

SETTINGS = {"epochs": 5, "held_out": 0.03, "start": None}


def main() -> None:
    """Fit, with a line an epoch."""
    parser = argparse.ArgumentParser(description="train the default tagger")
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()

    def told(stage: str, done: int, total: int, unit: str) -> None:
        print(f"{stage}: {done} of {total} {unit}", file=sys.stderr, flush=True)

    result = redactory.fit_tagger(sorted(arguments.rows.glob("*.jsonl")), arguments.out, SETTINGS, progress=told)
    print(result["held_out"], result["reliability"]["error"])


if __name__ == "__main__":
    main()
