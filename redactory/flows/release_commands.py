"""The command ``redactory release show``: the decision on a run of a job, in sentences."""

from collections.abc import Iterator
from typing import Any

import redactory
from redactory.flows import options as opt
from redactory.flows.options import command
from redactory.flows.show import Page, Result, Shown, format_value, table


@command("release show")
def show_release(run: opt.Run) -> Shown:
    """Explain why a run is held, released or rejected, and compare it with the previous released run."""
    r = redactory.show_release(run)
    return r, describe_release(r), 1 if r["problems"] else 0


_QUARANTINE_COLUMNS = {"kind": "{kind}", "reason": "{reason}", "before": "{before}", "now": "{now}"}
_COMMAND_NAMES = {"approve": "Approve it", "reject": "Reject it", "quarantine": "List its quarantine"}


def describe_release(r: Result) -> Page:
    """Describe the decision on a run, what changed, what was quarantined, and how to decide."""
    yield from r["sentences"]
    yield from (f"Warning: {problem}" for problem in r["problems"])
    columns = {name: f"{{{name}}}" for name in ("metric", "before", "now", "change", "expected")}
    title = f"Compared with {r['previous']}" if r["previous"] else "Counts; no earlier released run to compare with"
    yield table(title, columns, _list_changes(r))
    yield table("Quarantined, by reason", _QUARANTINE_COLUMNS, r["quarantine"])
    yield from (f"{words}: {r['commands'][name]}" for name, words in _COMMAND_NAMES.items() if name in r["commands"])


def _list_changes(r: Result) -> Iterator[dict[str, Any]]:
    units = {"count": "", "share": ", %", "rate": " per 1,000 examples"}
    for change in r["changes"]:
        scale, places = (1, 0) if change["kind"] == "count" else (100 if change["kind"] == "share" else 1, 1)
        now, before, low, high = (
            None if change[key] is None else change[key] * scale for key in ("now", "before", "low", "high")
        )
        difference = None if now is None or before is None else now - before
        name = f"{change['label']} spans" if change["label"] else change["metric"].replace("_", " ")
        yield {
            "metric": name + units[change["kind"]],
            **{key: _format_number(value, places) for key, value in (("before", before), ("now", now))},
            "change": "" if difference is None else f"{difference:+,.{places}f}",
            "expected": ""
            if low is None
            else f"{_format_number(low, places)} to {_format_number(high, places)}" + " – OUTSIDE" * change["outside"],
        }


def _format_number(value: float | None, places: int) -> str:
    return format_value("", None) if value is None else f"{value:,.{places}f}"
