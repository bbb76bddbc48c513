"""What ``redactory explain`` prints: the one page that shows text, and only on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.text import Text

from redactory.flows.output import out, table

MASKED, FLAGGED = "bold white on red", "black on yellow"
Mark = dict[str, Any]


def explained(result: dict[str, Any], marks: Callable[[dict[str, Any]], None]) -> None:
    """The text with what each policy does to it in colours, then ``marks`` of it."""
    shown = Text(result["text"])
    for mark in result["marks"]:
        if mark["makes_private"] and not mark["masks"]:
            shown.stylize(FLAGGED, mark["start"], mark["end"])
    for mark in result["marks"]:
        if mark["masks"]:
            shown.stylize(MASKED, mark["start"], mark["end"])
    out.print(shown, soft_wrap=True)
    out.print(Text.assemble((" masked by π ", MASKED), " ", (" makes the point private ", FLAGGED)))
    out.print()
    if result["failure"]:
        out.print(f"The point would be quarantined: {result['failure']}")
        return
    out.print(f"Side: {result['side']}. What stands there: ", end="")
    out.print(Text(result["masked"]), soft_wrap=True)
    marks(result)


def every_mark(result: dict[str, Any]) -> None:
    """Each mark of each engine and rule, with what each policy makes of it."""
    rows = [
        (
            *_place(result["text"], mark["start"], mark["end"]),
            mark["label"],
            f"{mark['score']:.3f}",
            mark["detector"],
            "masks" if mark["masks"] else "",
            "private" if mark["makes_private"] else "",
        )
        for mark in result["marks"]
    ]
    if rows:
        table("Marks", rows, ("place", "text", "label", "score", "by", "π", "π_c"), text=True)
    else:
        out.print("No engine and no rule marks anything.")


def deciding_hits(result: dict[str, Any]) -> None:
    """One row for each place that is masked or makes the point private, with the hits that decide it."""
    marks: list[Mark] = result["marks"]
    masked = _together([mark for mark in marks if mark["masks"]])
    # what stands in a masked place adds nothing to what becomes of it
    flagged = _together(
        [
            m
            for m in marks
            if m["makes_private"] and not any(_overlap(m, one) for own in masked for one in own)
        ]
    )
    rows = [
        *((own, "masked") for own in masked),
        *((own, "makes private") for own in flagged),
    ]
    rows.sort(key=lambda row: row[0][0]["start"])
    if rows:
        headers = ("place", "text", "label", "score", "by", "")
        table("What decides", [_row(result["text"], own, what) for own, what in rows], headers, text=True)
    else:
        out.print("Nothing in it is masked or makes it private.")
    if left := len(marks) - sum(len(own) for own, _ in rows):
        out.print(f"{left} more {'mark changes' if left == 1 else 'marks change'} nothing; --all shows them.")


def _together(marks: Iterable[Mark]) -> list[list[Mark]]:
    """Marks in text order, those that overlap in one group."""
    groups: list[list[Mark]] = []
    end = 0
    for mark in sorted(marks, key=lambda one: (one["start"], one["end"])):
        if groups and mark["start"] < end:
            groups[-1].append(mark)
        else:
            groups.append([mark])
        end = max(end, mark["end"])
    return groups


def _overlap(one: Mark, other: Mark) -> bool:
    return bool(one["start"] < other["end"] and other["start"] < one["end"])


def _row(text: str, marks: list[Mark], what: str) -> tuple[str, ...]:
    place = _place(text, marks[0]["start"], max(mark["end"] for mark in marks))
    labels, detectors = (
        ", ".join(dict.fromkeys(mark[key] for mark in marks)) for key in ("label", "detector")
    )
    return (*place, labels, f"{max(mark['score'] for mark in marks):.3f}", detectors, what)


def _place(text: str, start: int, end: int) -> tuple[str, str]:
    return f"{start}–{end}", repr(text[start:end])
