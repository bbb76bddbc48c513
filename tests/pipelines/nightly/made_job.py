"""A job whose runs are written down without a pipeline, with the figures that a test wants."""

from __future__ import annotations

import copy
import datetime
from pathlib import Path
from typing import Any

import numpy as np

from redactory.foundation.canonical import file_sha256
from redactory.foundation.files import make_private_folder
from redactory.pipelines.release_log import Event, enter
from redactory.redaction import RunFolder
from redactory.redaction.folder import JobFolder
from tests.evaluation.report_run import manifest, write_run

POINTS = 10_000


def body(
    public: int = 4_000, numbers: int = 1_000, rejected: int = 0, earlier: int | None = None
) -> dict[str, Any]:
    """A manifest of 10,000 points, as many rows, and hits of two labels."""
    made: dict[str, Any] = copy.deepcopy(manifest())
    made["counts"] = {
        **made["counts"],
        "points": POINTS,
        "rows": POINTS,
        "documents": POINTS - rejected,
        "rejected": rejected,
        "public": public,
        "private": 9_000 - public,
        "duplicate": 1_000,
        "quarantined": 0,
        "public_duplicate": 400,
        "private_duplicate": 600,
    }
    made["seconds"] = 84.0
    made["rejected"] = {"broken_json": rejected} if rejected else {}
    made["quarantined"] = {}
    hit = {"policy": "strict", "detector": "digits", "histogram": [0] * 20}
    made["hits"] = [{**hit, "label": "NUMBER", "count": numbers}] if numbers else []
    made["hits"].append({**hit, "label": "NAME", "count": 500, "detector": "ner"})
    if earlier is not None:
        made["dedup"]["index"] = {"duplicate_earlier": {"public": earlier, "private": 0}}
    return made


class MadeJob:
    """A job folder and its log."""

    def __init__(self, root: Path) -> None:
        self.job = JobFolder(root)
        make_private_folder(self.job.own)

    def add(self, name: str, event: Event | None = Event.RELEASED, **figures: Any) -> RunFolder:
        """A finished run, and how it ended."""
        run = write_run(self.job.root / name, {**body(**figures), "run": name})
        enter(run, Event.BEGUN, plan={"slices": []})
        if event is not None:
            counts = {"points": POINTS}
            enter(run, event, manifest=file_sha256(run.manifest), counts=counts)
        return run

    def nights(self, count: int, seed: int = 1) -> None:
        """Released nights of one steady corpus."""
        draw = np.random.default_rng(seed)
        first = datetime.date(2026, 3, 1)
        for number in range(count):
            self.add(
                (first + datetime.timedelta(number)).isoformat(),
                public=int(draw.normal(4_000, 120)),
                numbers=int(draw.normal(1_000, 60)),
            )
