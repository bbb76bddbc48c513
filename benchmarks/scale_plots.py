"""The growth plots of ``benchmarks/scale.py``, on logarithmic axes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from line_plot import Axes, Line, line_plot

from redactory.foundation.files import PUBLIC_FILE, write_text

Row = dict[str, Any]
_COLOURS = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c92a2a", "#868e96")


def draw(results: Path) -> dict[str, Any]:
    """Draw ``scale_time.svg``, ``scale_memory.svg`` and ``scale_disk.svg`` beside ``results``."""
    rows = json.loads(results.read_text())["rows"]
    exact = [row for row in rows if row["dedup"] == "exact" and row["workers"] == 1 and not row.get("ranges")]
    lines = {
        "time": [*_series(rows, "cpu_seconds"), _proportional(exact, lambda row: float(row["cpu_seconds"]))],
        "memory": _series(rows, "peak_process_mb"),
        "disk": [
            _line("input", exact, lambda row: row["corpus_bytes"] / 1e6, 0),
            _line("finished run", exact, lambda row: sum(row["run_bytes"].values()) / 1e6, 1),
            _line("run at its peak", exact, lambda row: row["peak_run_bytes"] / 1e6, 2),
            _proportional(exact, lambda row: row["peak_run_bytes"] / 1e6),
        ],
    }
    titles = {
        "time": ("Time grows with the points", "processor seconds"),
        "memory": ("Memory of a process hardly does", "peak MiB of a process"),
        "disk": ("Disk grows with the points", "megabytes"),
    }
    drawn = {}
    for name, (title, unit) in titles.items():
        axes = Axes(title, "million points", unit, log_x=True, log_y=True)
        if name == "memory":
            axes = Axes(title, "million points", unit, log_x=True, log_y=True, low=100, high=4_000)
        path = results.with_name(f"scale_{name}.svg")
        write_text(path, line_plot(lines[name], axes), PUBLIC_FILE)
        drawn[name] = str(path)
    return drawn


def _series(rows: Sequence[Row], field: str) -> list[Line]:
    """A line for each setting, where it was measured."""
    found: dict[tuple[str, int, int | None], list[Row]] = {}
    for row in rows:
        found.setdefault((row["dedup"], row["workers"], row.get("ranges")), []).append(row)
    return [
        _line(_named(*setting), own, lambda row: float(row[field]), number)
        for number, (setting, own) in enumerate(found.items())
    ]


def _named(dedup: str, workers: int, ranges: int | None) -> str:
    parts = [dedup, f"{workers} worker{'s' if workers > 1 else ''}"]
    return ", ".join([*parts, *([f"{ranges} ranges"] if ranges else [])])


def _line(name: str, rows: Sequence[Row], value: Callable[[Row], float], number: int) -> Line:
    places = [(row["examples"] / 1e6, value(row)) for row in sorted(rows, key=lambda row: row["examples"])]
    return Line(name, _COLOURS[number % len(_COLOURS)], places)


def _proportional(rows: Sequence[Row], value: Callable[[Row], float]) -> Line:
    """What it would be if each point took what it takes in the middle one of the sizes."""
    ordered = sorted(rows, key=lambda row: int(row["examples"]))
    middle = ordered[len(ordered) // 2]
    each = value(middle) / middle["examples"]
    places = [(row["examples"] / 1e6, each * row["examples"]) for row in ordered]
    return Line("proportional", "#adb5bd", places, "--")
