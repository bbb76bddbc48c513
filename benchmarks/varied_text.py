"""The rows of ``examples/default_tagger/varied``, for benchmarks that want texts of all sorts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "examples" / "default_tagger"))

from varied import varied_rows

__all__ = ["varied_rows", "write_varied"]


def write_varied(out: Path, rows: int, seed: int) -> None:
    """Write ``rows`` of them as JSON lines."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in varied_rows(rows, seed))
    out.write_text("".join(lines), encoding="utf-8")
