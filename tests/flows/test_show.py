"""What the command line shows: pages, tables, progress, the marks of one text."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from redactory.flows import show
from redactory.flows.cli import app
from redactory.flows.evaluate_commands import describe_measurements
from redactory.flows.model_commands import describe_promise
from redactory.flows.scan_commands import describe_explanation
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.intervals import clopper_pearson_upper
from redactory.foundation.progress import report_start_and_end
from redactory.pipelines.curation_hints import list_curation_hints
from redactory.pipelines.modeling.describe import explain

ESCAPE = "\x1b]0;owned\x07"


@pytest.mark.parametrize(("terminal", "folded"), [(False, False), (True, True)])
def test_only_a_terminal_folds_cells_and_no_line_ends_in_blanks(
    terminal: bool, folded: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "out", Console(width=40, force_terminal=terminal, highlight=False))
    rows = [("a", 1, ""), ("bb", 2222, "words that are longer than a terminal is wide")]
    table = show.table("Title", ("name", "figure", "note"), rows)
    show.print_page(["before", table, None, show.table("Not shown", "key", []), "after"])
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert [line for line in printed.splitlines() if line != line.rstrip()] == []
    assert printed.startswith("before\n\nTitle\nname  figure  note\na          1\nbb     2,222  words")
    assert printed.endswith("\n\nafter\n")
    assert (rows[1][2] not in printed) == folded
    show.print_page([show.table("Title", ("policy", "hash"), [("strict", "69c6" * 6)])])
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert printed.splitlines()[1] == "policy  hash", "a hash is no figure, though it begins with a digit"


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        ("{epsilon}", "1.235"),
        ("{epsilon:.2f}", "1.235"),
        ("{a[gamma_upper]} {a[delta]:.1g}", "0.1235 1.001e-05"),
        ("{epsilon_lower_bound} {confidence} {low} {high}", "1.234 0.9499 1.234 1.235"),
        ("{confidence:%}", "94.99%"),
        ("{a[gamma_upper]:%} {a[gamma_upper]:3%} {a[gamma_upper]:2%}", "12.35% 12.4% 13%"),
        ("{share} {share:2}", "12.3% (11.2 to 13.5%)".replace("11.2 to", "11.2% to") + " 12.35% (11.23% to 13.46%)"),
        (
            "{rows:n row} {one:n entry/entries} {big} {rate} {nothing} {names}",
            "1,234 rows 1 entry 12,346 0.1235 none a, b",
        ),
    ],
)
def test_a_bound_is_rounded_outwards_whatever_its_format(template: str, printed: str) -> None:
    values = {
        "epsilon": 1.23421,
        "a": {"gamma_upper": 0.12341, "delta": 1.0001e-5},
        "epsilon_lower_bound": 1.23491,
        "confidence": 0.94999,
        "low": 1.23491,
        "high": 1.23421,
        "share": {"value": 0.123456, "low": 0.11239, "high": 0.13451},
        "rows": 1234,
        "one": 1,
        "big": 12345.6,
        "rate": 0.123456,
        "nothing": None,
        "names": ["a", "b"],
        "yes": True,
        "seed": 90071992547409931,
    }
    assert show.fill(template, values) == printed


@pytest.mark.parametrize(("masked_only", "shown"), [(True, "as is +– +– +2.963"), (False, "as is +112057.00 +291.35")])
def test_no_perplexity_of_secrets_is_shown_for_a_model_that_learnt_masked_text(
    masked_only: bool, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"perplexity_per_word": 112_057.0, "perplexity": 291.35, "bits_per_character": 2.963, "words": 8_030}
    result = {"model": "crt", "as_is": one, "masked": {**one, "perplexity_per_word": 53.2}}
    show.print_page(describe_measurements({"perplexity": {**result, "learnt_masked": masked_only}}))
    printed = capsys.readouterr().out
    assert re.search(shown, printed)
    assert "53.20" in printed
    assert ("trained on masked text" in printed) == masked_only


def test_no_value_steers_a_terminal_or_ends_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    card = {"trainer": "t", "holds": False, "unit": "", "relation": "", "relation_meaning": None, "epsilon": None}
    page = describe_promise({"model": "m", "guarantee": card | {"reason": f"a\n# b {ESCAPE}"}})
    show.print_page([*page, show.table(ESCAPE, (ESCAPE, "b"), [(ESCAPE, "[red]c")]), show.warning(ESCAPE)])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.count(r"\x1b]0;owned\x07") == 5
    assert r"Why: a\n# b \x1b]0;owned\x07" in printed
    assert "[red]c" in printed


@pytest.mark.parametrize(
    ("decisions", "told"),
    [
        # public, private, duplicate, quarantined
        ((2, 0, 1, 0), ["Every example is public"]),
        ((0, 2, 1, 0), ["Every example is private"]),
        ((1, 1, 0, 0), []),
        # no side is empty because of what was found, or was not
        ((0, 0, 3, 0), []),
        ((1, 0, 0, 2), []),
        ((0, 1, 0, 2), []),
    ],
)
def test_a_side_is_called_empty_where_every_point_was_judged(decisions: tuple[int, ...], told: list[str]) -> None:
    counts = {"rows": 3, "documents": 3, "examples": sum(decisions), "rejected_by_reason": {}}
    hints = list_curation_hints(counts | dict(zip(show.DECISIONS, decisions, strict=True)))
    assert [hint.partition(":")[0] for hint in hints] == told


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    return now


def test_the_pace_of_work_that_comes_again_is_its_own(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = show.RateLimiter(show._print_progress, 1.0)
    for begin in (0.0, 1000.0):
        clock[0] = begin
        lines("epoch 1", 1, 20, "steps")
        clock[0] = begin + 10.0
        lines("epoch 1", 20, 20, "steps")
    assert re.findall(r"20 of 20 steps, (\S+) steps/s", capsys.readouterr().err) == ["2.0", "2.0"]


def test_waiting_is_said_without_a_share(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = show.RateLimiter(show._print_progress, 1.0)
    for seconds in (0.5, 3.25):
        with report_start_and_end(lines, "load engines"):
            clock[0] += seconds
    assert capsys.readouterr().err == "load engines: 3.2 s\n"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal for progress shows."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120, highlight=False, color_system="standard")
    monkeypatch.setattr(show, "err", console)
    return written


def test_a_bar_on_a_terminal_says_how_long_the_work_still_takes(terminal: io.StringIO) -> None:
    bars = show._ProgressReporter()
    bars("detect", 0, 100, "texts")
    assert bars._display is not None
    now = [0.0]
    bars._display.get_time = lambda: now[0]
    for task in bars._display.tasks:
        task._get_time = bars._display.get_time
        task.start_time = 0.0
    for now[0], done in ((10.0, 10), (20.0, 20), (30.0, 30)):
        bars("detect", done, 100, "texts")
    bars._display.refresh()
    bars.stop()
    # ten texts in ten seconds: 70 more
    assert re.search(
        r"30 of 100 texts 0:00:30 left 0:01:10", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    )


@pytest.mark.parametrize("options", [["--quiet"], []])
def test_quiet_shows_no_progress(options: list[str], terminal: io.StringIO, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("detect: {tagger: null}")
    command = ["scan", "--text", "call 555-123-4567", "--config", str(tmp_path / "c.yaml"), *options]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "PHONE_NUMBER" in done.stdout
    assert ("load engines" in terminal.getvalue()) == (not options)
    assert show.report_progress._display is None


@pytest.mark.parametrize(("variables", "colored"), [({}, False), ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False)])
def test_there_are_no_colors_off_a_terminal_or_where_nobody_wants_them(
    variables: dict[str, str], colored: bool, tmp_path: Path
) -> None:
    environment = {**os.environ, "TERM": "xterm-256color", **variables}
    for command in (["scan", "--help"], ["scan"], ["scan", "--explain", "Mary Smith called"]):
        done = subprocess.run(
            [sys.executable, "-m", "redactory", *command], capture_output=True, text=True, env=environment, cwd=tmp_path
        )
        colors = re.findall(r"\x1b\[(?:\d+;)*[34]\d", done.stdout + done.stderr)
        assert bool(colors) == colored


CONFIG: dict[str, Any] = {
    "detect": {
        "tagger": None,
        "patterns": None,
        "lists": {"deny": [{"words": ["Zaphod Beeblebrox", "Beeblebrox"], "label": "CLIENT"}]},
        "conservative": {"rules": ["capital", "name"]},
    }
}


def _rows(printed: str, title: str) -> list[str]:
    lines = printed[printed.index(f"\n{title}\n") :].splitlines()
    return [" ".join(line.split()) for line in lines[3:] if "–" in line]


def test_a_place_is_one_row_with_the_hits_that_decide(capsys: pytest.CaptureFixture[str]) -> None:
    found = explain("we saw Zaphod Beeblebrox and Anna", CONFIG)
    show.print_page(describe_explanation(found, show_all=False))
    printed = capsys.readouterr().out
    assert "Split: private. Result: we saw <MASK> and Anna" in printed
    assert _rows(printed, "What decides") == [
        "7–24 'Zaphod Beeblebrox' CLIENT 1.000 list masked",
        "29–33 'Anna' CAPITAL, NAME 1.000 rule makes private",
    ]
    left = len(found["marks"]) - sum(mark["masks"] for mark in found["marks"]) - 2
    assert f"{left} more span" in printed
    show.print_page(describe_explanation(found, show_all=True))
    assert len(_rows(capsys.readouterr().out, "Marks")) == len(found["marks"])
    show.print_page(describe_explanation(explain("all is well", CONFIG), show_all=False))
    assert "Nothing in it is masked or makes it private." in capsys.readouterr().out


def test_the_name_of_a_file_is_not_taken_for_a_text(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "hello"}')
    refused = CliRunner().invoke(app, ["scan", "--explain", str(tmp_path / "rows.jsonl")])
    assert isinstance(refused.exception, ConfigurationError)
    assert "use redactory scan FILE" in str(refused.exception)


@pytest.mark.parametrize("misses", [0, 1, 7])
def test_a_count_of_misses_has_its_upper_bound(misses: int) -> None:
    upper = clopper_pearson_upper(misses, 66)
    printed = show.fill(show.MISSES, {"misses": misses, "n": 66, "upper": upper})
    bound = printed.removeprefix(f"{misses} of 66, up to ")
    assert upper <= float(bound.removesuffix("%")) / 100 < upper + 5e-4
    if not misses:
        assert upper == pytest.approx(1 - 0.05 ** (1 / 66))
        assert printed == "0 of 66, up to 4.44%"


@pytest.mark.parametrize(
    ("metric", "printed"),
    [
        ({"value": 1.0, "low": 1.0, "high": 1.0}, "100.0%"),
        ({"value": None, "low": 0.0, "high": 1.0}, "none"),
        ({"value": 1.0, "low": 0.975, "high": 1.0}, "100.0% (97.5% to 100.0%)"),
    ],
)
def test_an_interval_without_width_is_not_shown_as_one(metric: dict[str, float | None], printed: str) -> None:
    assert show.format_interval(metric) == printed
