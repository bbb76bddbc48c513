"""A job over three small partitions that needs no model: a deny list is all that detects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAME = "Zephyrine Quillfeather"


def small_job(folder: Path, name: str, **more: Any) -> Path:
    """Write rows and the configuration ``name`` with ``more`` keys into ``folder``; the configuration."""
    rows = [{"id": str(n), "text": f"Row {n} is about {NAME}.\nThank you for row {n}."} for n in range(9)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings: dict[str, Any] = {
        "input": {"path": "rows.jsonl", "max_rejected_share": 0.5},
        "output": "runs",
        "segment": {"mode": "line"},
        "partition": {"documents": 3},
        "detect": {"tagger": None, "patterns": None, "lists": {"deny": [{"words": [NAME]}]}},
        "release": {"allow_uncovered_kinds": ["EVERYTHING"]},
    }
    path = folder / f"{name}.yaml"
    # JSON is YAML
    path.write_text(json.dumps({**settings, **more}))
    return path
