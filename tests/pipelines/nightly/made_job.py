"""Jobs for tests: a real one over a folder, and one whose runs are written down without a pipeline."""

from __future__ import annotations

import copy
import datetime
import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import redactory
from redactory.foundation.canonical import file_sha256
from redactory.foundation.files import make_private_folder
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.release_log import Event, append_event, read_log, run_statuses
from redactory.redaction import RunFolder, read_column
from redactory.redaction.folder import JobFolder
from tests.evaluation.report_run import manifest, write_run
from tests.pipelines.support import LINE_CONFIG, DigitDetector

POINTS = 10_000


class Job:
    """A job over ``in/``, and what its scheduled runs gave."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.input = folder, folder / "in"
        self.input.mkdir(parents=True, exist_ok=True)
        self.job = JobFolder(folder / "job")
        settings["nightly"] = {"approve": "never", **settings.get("nightly", {})}
        self.config = {**LINE_CONFIG, "input": str(self.input), "output": str(self.job.root), **settings}

    def write(self, name: str, *texts: str) -> Path:
        """Add rows to a file."""
        path = self.input / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        return path

    def night(self, curating: Callable[..., Any] | None = None, **more: Any) -> dict[str, Any]:
        """One call of ``redactory.nightly``."""
        own = curating or functools.partial(curate, detector=DigitDetector())
        return redactory.nightly(self.config, curate_run=own, **more)

    def run(self, **more: Any) -> RunFolder:
        """The run of one call."""
        [night] = self.night(**more)["nights"]
        return RunFolder(Path(night["run"]))

    def released(self) -> Counter[str]:
        """The text of every row of every released run."""
        now = run_statuses(read_log(self.job))
        runs = [self.job.get_run_folder(name) for name, own in now.items() if own.state == "released"]
        return Counter(text for run in runs for text in read_column(run.vault, "text"))

    def events(self) -> list[str]:
        """The types of the log's records, in order."""
        return [record.type for record in read_log(self.job)]


def body(public: int = 4_000, numbers: int = 1_000, rejected: int = 0, earlier: int | None = None) -> dict[str, Any]:
    """A manifest of 10,000 points, as many rows, and hits of two labels."""
    made: dict[str, Any] = copy.deepcopy(manifest())
    made["counts"] |= {"examples": POINTS, "rows": POINTS, "documents": POINTS - rejected, "rejected": rejected}
    made["counts"] |= {"public": public, "private": 9_000 - public, "duplicate": 1_000, "quarantined": 0}
    made["counts"] |= {"public_duplicate": 400, "private_duplicate": 600}
    made["seconds"] = 84.0
    made["configuration"] = {"release": {}, "dedup": {}}
    made["rejected"] = {"broken_json": rejected} if rejected else {}
    made["quarantined"] = {}
    hit = {"policy": "strict", "detector": "digits", "histogram": [0] * 20}
    made["spans"] = [{**hit, "label": "NUMBER", "count": numbers}] if numbers else []
    made["spans"].append({**hit, "label": "NAME", "count": 500, "detector": "ner"})
    if earlier is not None:
        made["dedup"]["index"] = {"duplicate_earlier": {"public": earlier, "private": 0}}
    return made


class MadeJob:
    """A job folder and its log."""

    def __init__(self, root: Path) -> None:
        self.job = JobFolder(root)
        make_private_folder(self.job.state)

    def add(self, name: str, event: Event | None = Event.RELEASED, **figures: Any) -> RunFolder:
        """A finished run, and how it ended."""
        run = write_run(self.job.root / name, {**body(**figures), "run": name})
        append_event(run, Event.STARTED, plan={"slices": []})
        if event is not None:
            append_event(run, event, manifest=file_sha256(run.manifest), counts={"examples": POINTS})
        return run

    def nights(self, count: int, seed: int = 1) -> None:
        """Released runs of one steady corpus."""
        draw = np.random.default_rng(seed)
        for number in range(count):
            name = (datetime.date(2026, 3, 1) + datetime.timedelta(number)).isoformat()
            self.add(name, public=int(draw.normal(4_000, 120)), numbers=int(draw.normal(1_000, 60)))
