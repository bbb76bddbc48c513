"""A small job for what other programs are told of it: a corpus, quick engines, a quick training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.pipelines.support import write_rows

WORDS = ("quagga", "zyzzyva", "4711")
"""Stand in texts, in names of columns and settings, and must stand in nothing that is told."""


def job(root: Path, **sections: Any) -> dict[str, Any]:
    """A configuration of a run at ``root/run`` over rows in ``root``."""
    rows = [
        {"id": f"d{n}", "user_id": f"u{n % 5}", "text": f"{WORDS[n % 2]} pays rent\nthank you for {WORDS[2]} {n}"}
        for n in range(20)
    ]
    train: dict[str, Any] = {
        "model": {"embedding_size": 6, "hidden_size": 8},
        "epochs": 1,
        "sampling_rate": 0.5,
        "noise_multiplier": 2.0,
        "min_public_steps": 4,
        "group_sizes": [2],
        "seed": 1,
        "threads": 1,
        "detector_recall_file": {"labels": 200, "missed_by_strict": 1, "missed_by_both": 0},
    }
    return {
        "input": {"path": str(write_rows(root / "rows.jsonl", rows)), "user": "user_id"},
        "output": str(root / "run"),
        "segment": {"mode": "line"},
        "detect": {"tagger": None, "patterns": None, "lists": {"deny": [{"words": [WORDS[1]]}]}},
        "train": train,
        **sections,
    }
