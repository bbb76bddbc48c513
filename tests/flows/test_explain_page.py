"""What ``explain`` prints: what decides, one row a place; all marks on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from redactory.flows import output
from redactory.flows import pages as explain_page
from redactory.flows.cli import app
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import waiting
from redactory.pipelines.describe import explain

CONFIG: dict[str, Any] = {
    "detect": {
        "tagger": None,
        "patterns": None,
        "lists": {"deny": [{"words": ["Zaphod Beeblebrox", "Beeblebrox"], "label": "CLIENT"}]},
        "conservative": {"rules": ["capital", "name"]},
    }
}
TEXT = "we saw Zaphod Beeblebrox and Anna"


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return explain(TEXT, CONFIG)


def rows(printed: str, title: str) -> list[str]:
    lines = printed[printed.index(f"\n{title}\n") :].splitlines()
    return [" ".join(line.split()) for line in lines[3:] if "–" in line]


def test_a_place_is_one_row_with_the_hits_that_decide(
    told: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    explain_page.explained(told, explain_page.deciding_hits)
    printed = capsys.readouterr().out
    assert "Side: private. What stands there: we saw <MASK> and Anna" in printed
    assert rows(printed, "What decides") == [
        "7–24 'Zaphod Beeblebrox' CLIENT 1.000 list masked",
        "29–33 'Anna' CAPITAL, NAME 1.000 rule makes private",
    ]
    left = len(told["marks"]) - sum(m["masks"] for m in told["marks"]) - 2
    assert left > 0
    assert f"{left} more mark" in printed


def test_every_mark_is_a_row_of_its_own(told: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    explain_page.explained(told, explain_page.every_mark)
    assert len(rows(capsys.readouterr().out, "Marks")) == len(told["marks"])


def test_a_text_in_which_nothing_counts(capsys: pytest.CaptureFixture[str]) -> None:
    explain_page.explained(explain("all is well", CONFIG), explain_page.deciding_hits)
    assert "Nothing in it is masked or makes it private." in capsys.readouterr().out


def test_loading_is_told_without_a_share(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    lines = output._Lines()
    for seconds in (0.5, 3.25):
        with waiting(lines, "load engines"):
            clock[0] += seconds
    assert capsys.readouterr().err == "load engines: 3.2 s\n"
    heard: list[tuple[Any, ...]] = []
    explain(TEXT, CONFIG, progress=lambda *told: heard.append(told))
    assert heard == [("load engines", 0, None), ("load engines", 1, 1)]


def test_the_name_of_a_file_is_not_taken_for_a_text(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "hello"}')
    refused = CliRunner().invoke(app, ["explain", str(rows)])
    assert isinstance(refused.exception, ConfigurationError)
    assert "redactory scan FILE" in str(refused.exception)
