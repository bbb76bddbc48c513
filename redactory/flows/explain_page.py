"""What ``redactory explain`` prints: the one page that shows text, and only on the terminal."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from redactory.flows.output import out, table

MASKED, FLAGGED = "bold white on red", "black on yellow"


def explained(result: dict[str, Any]) -> None:
    """The text with what each policy does to it in colours, then every mark."""
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
    rows = [
        (
            f"{mark['start']}–{mark['end']}",
            repr(mark["value"]),
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
