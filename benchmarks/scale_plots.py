"""The growth plots of ``benchmarks/scale.py``, on logarithmic axes, and the tables of its page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from line_plot import Axes, Line, line_plot

from redactory.foundation.files import PUBLIC_FILE, write_text

Row = dict[str, Any]
_COLOURS = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c92a2a", "#868e96")


BEGIN, END = "<!-- tables: benchmarks/scale.py draw -->", "<!-- end of tables -->"


def draw(results: Path) -> dict[str, Any]:
    """Draw ``scale_time.svg``, ``scale_memory.svg`` and ``scale_disk.svg`` beside ``results``.

    Where a page ``scale.md`` lies there too, the tables between its two marks are written anew.
    """
    rows = json.loads(results.read_text())["rows"]
    page = results.with_suffix(".md")
    if page.is_file():
        before, _, rest = page.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        tables = "\n\n".join(["", _whole(rows), _stages(rows), ""])
        write_text(page, f"{before}{BEGIN}{tables}{END}{after}", PUBLIC_FILE)
    exact = [row for row in rows if row["dedup"] == "exact" and row["workers"] == 1 and not row["ranges"]]
    lines = {
        "time": [
            *_series(rows, "cpu_seconds"),
            _proportional(exact, lambda row: float(row["cpu_seconds"])),
        ],
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
        found.setdefault((row["dedup"], row["workers"], row["ranges"]), []).append(row)
    return [
        _line(_named(*setting), own, lambda row: float(row[field]), number)
        for number, (setting, own) in enumerate(found.items())
    ]


def _named(dedup: str, workers: int, ranges: int | None) -> str:
    parts = [dedup, f"{workers} worker{'s' if workers > 1 else ''}"]
    return ", ".join([*parts, *([f"{ranges} ranges"] if ranges else [])])


def _line(name: str, rows: Sequence[Row], value: Callable[[Row], float], number: int) -> Line:
    places = [(row["points"] / 1e6, value(row)) for row in sorted(rows, key=lambda row: row["points"])]
    return Line(name, _COLOURS[number % len(_COLOURS)], places)


def _proportional(rows: Sequence[Row], value: Callable[[Row], float]) -> Line:
    """What it would be if each point took what it takes in the middle one of the sizes."""
    ordered = sorted(rows, key=lambda row: int(row["points"]))
    middle = ordered[len(ordered) // 2]
    each = value(middle) / middle["points"]
    places = [(row["points"] / 1e6, each * row["points"]) for row in ordered]
    return Line("proportional", "#adb5bd", places, "--")


def _whole(rows: Sequence[Row]) -> str:
    """One line a curation."""
    heads = (
        *("deduplication", "workers", "ranges", "points", "processor s", "points a processor second"),
        *("wall s", "load", "MiB, largest process", "input MB", "run MB", "run at its peak MB"),
    )
    lines = [
        (
            row["dedup"],
            row["workers"],
            row["ranges"] or 16,
            f"{row['points']:,}",
            f"{row['cpu_seconds']:,.0f}",
            f"{row['points_per_cpu_second']:,}",
            f"{row['seconds']:,.0f}",
            f"{row['load'][1]:.0f}",
            f"{row['peak_process_mb']:.0f}",
            f"{row['corpus_bytes'] / 1e6:,.0f}",
            f"{sum(row['run_bytes'].values()) / 1e6:,.0f}",
            f"{row['peak_run_bytes'] / 1e6:,.0f}",
        )
        for row in rows
    ]
    return _table(heads, lines)


def _stages(rows: Sequence[Row]) -> str:
    """Microseconds of processor time a point, of each stage; and its peak of memory."""
    measured = [row for row in rows if row.get("cpu_by_stage")]
    names = list(dict.fromkeys(name for row in measured for name in row["cpu_by_stage"]))
    heads = ("microseconds a point", *(_column(row) for row in measured))
    lines = []
    for name in names:
        each = (row["cpu_by_stage"].get(name) for row in measured)
        cells = [
            "" if own is None else f"{own / row['points'] * 1e6:.1f}"
            for own, row in zip(each, measured, strict=True)
        ]
        lines.append((f"`{name}`", *cells))
    others = [
        f"{(row['cpu_seconds'] - sum(row['cpu_by_stage'].values())) / row['points'] * 1e6:.1f}"
        for row in measured
    ]
    return _table(heads, [*lines, ("start, ingest, release", *others)])


def _column(row: Row) -> str:
    return f"{_named(row['dedup'], row['workers'], row['ranges'])}: {row['points'] / 1e6:g} M"


def _table(heads: Sequence[object], lines: Sequence[Sequence[object]]) -> str:
    ruled = ["|".join(["", *map(str, heads), ""]), "|".join(["", *(["---"] * len(heads)), ""])]
    return "\n".join([*ruled, *("|".join(["", *map(str, line), ""]) for line in lines)])
