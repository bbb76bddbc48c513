"""Train the European tagger that is shipped, from the rows that ``prepare.py`` wrote.

python examples/european_tagger/train.py ROWS OUT
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from letters import LOCALES

import redactory

SETTINGS = {
    # the Italian tokenizer cuts after the apostrophes of Romance languages, and knows few exceptions
    "language": "it",
    "start": None,
    "epochs": 4,
    "held_out": 0.02,
    "table_rows": (14_000, 2_000, 6_000, 3_000),
}


def main() -> None:
    """Fit, with a line an epoch."""
    parser = argparse.ArgumentParser(description="train the European tagger")
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()

    def told(stage: str, done: int, total: int, unit: str) -> None:
        print(f"{stage}: {done} of {total} {unit}", file=sys.stderr, flush=True)

    result = redactory.fit_tagger(sorted(arguments.rows.glob("*.jsonl")), arguments.out, SETTINGS, progress=told)
    meta = json.loads((arguments.out / "meta.json").read_text())
    (arguments.out / "meta.json").write_text(json.dumps({**meta, "languages": sorted(LOCALES)}, indent=1) + "\n")
    shutil.copy(arguments.rows / "sources.json", arguments.out)
    print(result["held_out"], result["reliability"]["error"])


if __name__ == "__main__":
    main()
