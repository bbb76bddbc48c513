"""The published claims, on tables that show them and on tables that do not; and the pictures of both."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from redactory.evaluation.crt_trends import PUBLISHED, compared, highest_by_chance
from redactory.evaluation.line_plot import Axes, Line, line_plot


def test_the_highest_of_ten_by_chance() -> None:
    assert highest_by_chance(10) == pytest.approx(7.61, abs=0.005)
    ranks = np.random.default_rng(1).integers(1, 10**6 + 1, size=(20_000, 10))
    highest = (np.log2(10**6) - np.log2(ranks)).max(axis=1)
    assert (highest < highest_by_chance(10)).mean() == pytest.approx(0.95, abs=0.01)
    assert highest.mean() == pytest.approx(4.23, abs=0.05)


def _exposures(leaks: bool) -> list[dict[str, Any]]:
    rows = []
    for trainer, steep in (("crt", leaks), ("redact-only", True), ("sgd", True)):
        for gamma in (0.0, 0.5):
            high = 15.0 if trainer == "sgd" or (steep and gamma) else 4.0
            away = 5.0 if high > 8 else 0.1
            rows.append(
                {
                    "trainer": trainer,
                    "gamma": gamma,
                    "highest": {"value": high},
                    "chance": 7.61,
                    "difference": {"value": away, "low": away - 1, "high": away + 1},
                }
            )
    return rows


@pytest.mark.parametrize("leaks", [False, True])
def test_exposure_is_judged_by_what_the_table_shows(leaks: bool) -> None:
    ours = compared(3, _exposures(leaks))
    crt = [one["holds"] for one in ours if one["trainer"] == "crt"]
    assert crt == [not leaks, not leaks]
    assert all(one["holds"] for one in ours if one["trainer"] in ("redact-only", "sgd"))
    assert all(one["holds"] is None for one in ours if one["trainer"] in ("crt-drop", "sdp"))


@pytest.mark.parametrize("figure", [4, 5])
def test_membership_is_judged_by_every_seed(figure: int) -> None:
    def row(trainer: str, gamma: float, value: float) -> dict[str, Any]:
        intervals = [[value - 0.02, value + 0.02], [value - 0.03, value + 0.03]]
        single = {"single": 0.6} if figure == 5 else {}
        told = {"accuracy": {"value": value}, "intervals": intervals, **single}
        return {"trainer": trainer, "gamma": gamma, **told}

    table = [row("crt", 0.0, 0.5), row("crt", 0.5, 0.51), row("sdp", 0.0, 0.5), row("sdp", 0.5, 0.8)]
    assert all(one["holds"] in (True, None) for one in compared(figure, table))
    worse = [row("crt", 0.0, 0.5), row("crt", 0.5, 0.56), row("sdp", 0.0, 0.5), row("sdp", 0.5, 0.45)]
    holds = [one["holds"] for one in compared(figure, worse) if one["trainer"] != "crt-drop"]
    assert True not in holds


def test_perplexity_is_compared_at_equal_epsilon() -> None:
    def row(trainer: str, target: float | None, value: float) -> dict[str, Any]:
        return {"trainer": trainer, "gamma": 0.1, "target": target, "perplexity": {"value": value}}

    table = [row("dpsgd", 1.0, 30.0), row("dpsgd", 4.0, 20.0), row("crt", 1.0, 25.0), row("crt", 4.0, 11.0)]
    table.append(row("redact-only", None, 10.5))
    assert [o["holds"] for o in compared(2, table) if o["trainer"] == "crt"] == [True, True]
    table[2] = row("crt", 1.0, 31.0)
    table[3] = row("crt", 4.0, 12.0)
    assert [o["holds"] for o in compared(2, table) if o["trainer"] == "crt"] == [False, False]


def test_every_figure_says_what_was_published() -> None:
    assert PUBLISHED.keys() == {2, 3, 4, 5, 6}
    assert all(one["source"].startswith("CRT, Figure") for one in PUBLISHED.values())


@pytest.mark.parametrize("log", [False, True])
def test_a_picture_is_sound_and_within_its_frame(log: bool) -> None:
    lines = [
        Line("one & <two>", "#123456", [(0.1, 5.0, 4.0, 6.0), (1.0, 50.0, 40.0, 60.0)]),
        Line("flat", "#654321", flat=20.0, dashes="2 3"),
    ]
    picture = line_plot(lines, Axes("a <title>", "x (bits)", "y", log, log, notes=("said",)))
    root = ElementTree.fromstring(picture)
    width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
    for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 < float(circle.attrib["cx"]) < width
        assert 0 < float(circle.attrib["cy"]) < height
    shown = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a <title>", "x (bits)", "y", "one & <two>", "flat", "said", "0.1", "1"} <= set(shown)
    assert "nan" not in picture
    assert "<script" not in picture


def test_ticks_are_numbers_that_people_say() -> None:
    lines = [Line("one", "#123456", [(1.0, 3.0, 2.8, 3.2), (2.0, 40.0, 39.0, 45.0)])]
    root = ElementTree.fromstring(line_plot(lines, Axes("t", "x", "y", log_y=True)))
    shown = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"5", "10", "20"} <= shown


def test_one_value_alone_can_be_drawn() -> None:
    picture = line_plot([Line("one", "#123456", [(0.5, 3.0, 3.0, 3.0)])], Axes("t", "x", "y"))
    ElementTree.fromstring(picture)
    assert not re.search(r"nan|inf", picture)
