"""Lines of progress: work that comes again under the same name is timed anew."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from redactory.flows import output
from redactory.pipelines.curated_hints import curated_hints


def test_the_pace_of_work_that_comes_again_is_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    lines = output._Lines()
    for begin in (0.0, 1000.0):
        clock[0] = begin
        lines("epoch 1", 1, 20, "steps")
        clock[0] = begin + 10.0
        lines("epoch 1", 20, 20, "steps")
    assert re.findall(r"20 of 20 steps (\S+) steps/s", capsys.readouterr().err) == ["2.0", "2.0"]


@pytest.mark.parametrize(
    ("fates", "told"),
    [
        ({"public": 2, "duplicate": 1}, "Every point is public"),
        ({"private": 2, "duplicate": 1}, "Every point is private"),
        ({"public": 1, "private": 1}, None),
        # no side is empty because of what was found, or was not
        ({"duplicate": 3}, None),
        ({"quarantined": 3}, None),
        ({"public": 1, "quarantined": 2}, None),
        ({"private": 1, "quarantined": 2}, None),
    ],
)
def test_a_side_is_called_empty_where_every_point_was_judged(fates: dict[str, int], told: str | None) -> None:
    none = dict.fromkeys(("public", "private", "duplicate", "quarantined"), 0)
    counts = {"rows": 3, "documents": 3, "points": sum(fates.values()), **none, **fates}
    hints = list(curated_hints({**counts, "rejected_by_reason": {}}))
    assert [hint.partition(":")[0] for hint in hints] == ([] if told is None else [told])


def test_no_line_of_a_table_ends_in_blanks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither where cells are short, empty or folded, nor where colours are written."""
    for coloured in (False, True):
        monkeypatch.setattr(output, "out", Console(width=40, force_terminal=coloured, highlight=False))
        rows = [("a", "1", ""), ("bb", "[red]22[/]", "words that are folded here and there"), ("c", "", "")]
        output.table("Title", rows, ("name", "figure", "said of it"), text=True)
        printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        lines = printed.splitlines()
        assert [line for line in lines if line != line.rstrip()] == []
        assert [line.split()[0] for line in lines[1:4]] == ["name", "a", "bb"]
        assert "22      words" in printed
