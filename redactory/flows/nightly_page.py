"""What ``redactory nightly`` and ``redactory release`` print for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from redactory.flows.output import out, table
from redactory.foundation.errors import some

FATES = ("public", "private", "duplicate", "quarantined")
SHOWN = ("rows", "public", "private")
"""Counts that fit beside each other; the rest is in --json."""
NAMED = 3
"""Figures that are told of a held run in a list."""


def nights(result: dict[str, Any]) -> None:
    """A line for each night, and where the run lies that was released last."""
    for night in result["nights"]:
        _line(_night(night))
        for finding in night.get("findings", ()):
            _line(f"  {_finding(finding)}")
        for own in night.get("waiting", ()):
            _line(
                f"  {own['path']}: a last row that is not whole is left for later "
                f"({some(own['bytes'], 'byte')})"
            )
        for hook in night.get("hooks_failed", ()):
            _line(f"  the hook failed: {hook}")
    if result["latest"]:
        _line(f"Latest: {result['latest']}")
    for run in result["held"]:
        decide = f"redactory release approve (or reject) {result['job']}/{run} --by NAME --reason WHY"
        _line(f"Held: {run}. Decide with {decide}")


def runs(result: dict[str, Any]) -> None:
    """A table of a job's runs, and below it why one failed, is held, was approved or rejected."""
    if not result["runs"]:
        out.print("No run yet.")
        return
    rows = [(escape(own["run"]), _minute(own["when"]), own["state"], *_counts(own)) for own in result["runs"]]
    table(f"Runs of {escape(result['job'])}", rows, ("run", "when (UTC)", "state", *SHOWN))
    for own in result["runs"]:
        if why := _why(own):
            _line(f"{own['run']}: {why}")
    _line(f"Latest: {result['latest'] or 'none'}")
    for problem in result["problems"]:
        _line(f"MIND: {problem}")


def log(result: dict[str, Any]) -> None:
    """One line a record."""
    if not result["records"]:
        _line("Nothing was entered yet.")
    for record in result["records"]:
        _line(f"{record['time']}  {record['run']}  {record['words']}")


def decided(result: dict[str, Any]) -> None:
    """How a run stands now."""
    _line(f"{Path(result['run']).name}: {result['state']}. Latest: {result['latest'] or 'none'}")
    if result.get("empty"):
        _line("Mind: it holds no point, neither public nor private.")
    for entry in result.get("index", ()):
        _line(f"Taken out of the index: {entry}")
    if result.get("left_out"):
        _line(
            f"Later runs left out what repeats it: {', '.join(result['left_out'])}. It stays out of them; "
            "reject those as well to have it read again"
        )
    for hook in result["hooks_failed"]:
        _line(f"The hook failed: {hook}")


def _night(night: dict[str, Any]) -> str:
    day = f"{night['date']}: " if night["date"] else ""
    name = Path(night["run"]).name if night["run"] else ""
    if night["state"] == "nothing new":
        return f"{day}Nothing new."
    if night["state"] == "nothing there":
        return f"{day}No file is there."
    if night["state"] == "rejected":
        return f"{name}: given up, {night['reason']}"
    counts = night["counts"]
    fates = ", ".join(f"{counts[fate]:,} {fate}" for fate in FATES)
    resumed = " (begun by an earlier night)" if night["resumed"] else ""
    points = f"{some(counts['rows'], 'row')}, {some(counts['points'], 'point')} ({fates})"
    nothing = "" if counts["public"] or counts["private"] else "; IT HOLDS NO POINT TO READ"
    return f"{name}: {night['state']}{resumed}; {points}{nothing}"


def _counts(own: dict[str, Any]) -> tuple[str, ...]:
    counts = own["counts"]
    return tuple("" if counts is None else f"{counts.get(name, 0):,}" for name in SHOWN)


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _why(own: dict[str, Any]) -> str:
    by = f" ({own['by']})" if own["by"] else ""
    if own["reason"]:
        return f"{own['reason']}{by}"
    told = [_finding(finding) for finding in own["findings"]] if own["state"] == "held" else []
    more = [f"and {len(told) - NAMED} more"] if len(told) > NAMED else []
    return "; ".join([*told[:NAMED], *more])


def _finding(finding: dict[str, Any]) -> str:
    """One figure outside of its limits; a retried run has none."""
    name = " ".join(part for part in (finding["metric"], finding.get("label")) if part)
    if "low" not in finding:
        return ": ".join((name, finding["why"])) if "why" in finding else str(name)
    scale, unit = (100, " %") if finding["kind"] == "share" else (1, " per 1,000 points")
    value, low, high = (finding[key] * scale for key in ("value", "low", "high"))
    return f"{name}: {value:.1f}, where {low:.1f} to {high:.1f}{unit} was to be expected"


def _line(text: str) -> None:
    out.print(text, soft_wrap=True, markup=False)
