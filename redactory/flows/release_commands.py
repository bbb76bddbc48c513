"""The command ``redactory release show``: the decision on a run of a job, in sentences."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import redactory
from redactory.flows import options as opt
from redactory.flows.job_commands import format_drift_finding
from redactory.flows.options import command
from redactory.flows.show import Page, Result, Shown, table


@command("release show")
def show_release(run: opt.Run) -> Shown:
    """Explain why a run is held, released or rejected, and compare it with the previous released run."""
    r = redactory.show_release(run)
    return r, describe_release(r), 1 if r["problems"] else 0


def describe_release(r: Result) -> Page:
    """Describe the decision on a run, what changed since the previous release, and how to decide."""
    yield from _explain_decision(r)
    title = f"Compared with {r['previous']}, released before it" if r["previous"] else "No release before it"
    yield table(title, ("", "before", "now", "change"), _list_changes(r))
    run = shlex.quote(r["run"])
    actions = ("reject",) if r["blocker"] else ("approve", "reject")
    for action in actions if r["state"] == "held" else ():
        yield f"{action.capitalize()}: redactory release {action} {run} --by NAME --reason WHY"
    if any(change["metric"] in ("rejected", "quarantined") and change["label"] for change in r["changes"]):
        yield f"Quarantine: redactory quarantine list {run}"


def _explain_decision(r: Result) -> Page:
    name, when = Path(r["run"]).name, r["when"][:16].replace("T", " ") + " UTC"
    decision = f"by {r['by']} on {when}: {r['reason']}"
    sentences = {
        "released": f"is released: approved {decision}" if r["by"] else f"is released: the gate released it on {when}",
        "held": f"is held since {when}, until somebody approves or rejects it",
        "rejected": f"is rejected {decision}. The next scheduled run reads its input as new",
        "failed": f"failed on {when}: {r['reason']}. The next scheduled run resumes it",
        "unfinished": f"began on {when} and is not finished. The next scheduled run resumes it",
    }
    yield f"{name} {sentences[r['state']]}."
    reason = "Reason" if r["state"] == "held" else "The gate had held it"
    yield from (f"{reason}: {format_drift_finding(finding)}." for finding in r["findings"])
    yield "It must not be shared, so it cannot be approved." if r["blocker"] else None
    yield f"It was {r['unjudged']}." if r["unjudged"] else None
    latest = "this one" if r["latest"] == name else r["latest"]
    yield f"The latest release is {latest}." if latest else "The job has no release."
    yield from (f"Warning: {problem}" for problem in r["problems"])


def _list_changes(r: Result) -> Iterator[tuple[str, str, str, str]]:
    for change in r["changes"]:
        unit, scale, places = _UNITS[change["kind"]]
        name = change["metric"].replace("spans/strict/label", "spans") + (change["label"] and f": {change['label']}")
        before, now = change["before"], change["now"]
        difference = "" if None in (before, now) else f"{(now - before) * scale:+,.{places}f}"
        cells = ["" if value is None else f"{value * scale:,.{places}f}" for value in (before, now)]
        yield name + unit, cells[0], cells[1], difference


_UNITS = {"count": ("", 1, 0), "share": (", %", 100, 1), "rate": (" per 1,000 examples", 1, 1)}
"""Unit, factor and decimal places of each kind of metric."""
