"""``redactory plan uedp-bounded|uedp-alg1|user-level``: options, one JSON object, pages, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from redactory.flows.cli import app
from redactory.foundation.errors import ConfigurationError

PAPER = ("--users", "946", "--entity-rate", "0.5", "--noise", "2", "--steps", "50", "--delta", "1e-5")


def carried_out(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["plan", *arguments])
    assert done.exception is None, done.output
    return done.stdout


def as_json(*arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(carried_out(*arguments, "--json"))
    return value


def test_the_paper_s_setting_gives_both_figures() -> None:
    share = ("--sensitive-share", "11176/14040")
    found = as_json("uedp-alg1", "--user-rate", "50/946", *share, *PAPER)
    assert found["epsilon_sound"] == pytest.approx(54.25, abs=0.1)
    assert found["epsilon_as_published"] == pytest.approx(0.519, abs=1e-3)
    assert found["as_published"]["note"] == "as published, not a guarantee"
    assert (found["adjacency"], found["M"]) == ("user-entity removal", 946)
    capped = as_json("uedp-alg1", "--user-rate", "50/946", *PAPER, "--max-users-per-entity", "20")
    assert capped["epsilon_sound"] == pytest.approx(0.532, abs=2e-3)
    assert capped["adjacency"] == "user-entity zero-out on a fixed graph"
    assert capped["epsilon_as_published"] is None
    alone = as_json("uedp-alg1", "--user-rate", "0.05", *PAPER, "--protect", "users")
    assert alone["epsilon_sound"] == pytest.approx(0.009, abs=1e-3)


def test_bounded_contributions_from_the_command_line() -> None:
    found = as_json(
        *("uedp-bounded", "--users", "10000", "--points", "14000", "--k-user", "4", "--k-entity", "4"),
        *("--sampling-rate", "256/14000", "--noise", "8", "--steps", "500"),
    )
    assert found["epsilon_sound"] == pytest.approx(1.62, abs=0.011)
    assert (found["K"], found["kept_at_most"], found["expected_batch"]) == (8, 14_000, pytest.approx(256))
    entities = as_json(
        *("uedp-bounded", "--k-entity", "3", "--protect", "entities"),
        *("--sampling-rate", "0.05", "--epsilon", "2", "--steps", "20"),
    )
    assert (entities["K"], entities["k_user"]) == (3, None)
    assert 1.9 < entities["epsilon"] <= 2.0


def test_user_level_from_the_command_line() -> None:
    found = as_json("user-level", "--user-rate", "0.1", "--epsilon", "2", "--steps", "50", "--users", "500")
    assert found["adjacency"] == "user removal"
    assert 1.98 < found["epsilon_sound"] <= 2.0
    assert found["noise_to_batch"] == pytest.approx(found["noise_multiplier"] / 50)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("uedp-alg1", "--user-rate", "0.05", *PAPER), ("user-entity removal", "not a guarantee", "M = 946")),
        (
            (
                *("uedp-bounded", "--users", "100", "--points", "400"),
                *("--sampling-rate", "0.1", "--noise", "4", "--steps", "9"),
            ),
            ("K = 8", "(suggested)", "rule r-loc alone", "at most 2 points"),
        ),
        (("user-level", "--user-rate", "0.1", "--noise", "4", "--steps", "9"), ("users at once", "K = 1")),
    ],
)
def test_the_pages_name_relations_and_reasons(arguments: tuple[str, ...], says: tuple[str, ...]) -> None:
    page = " ".join(carried_out(*arguments).split())
    for words in says:
        assert words in page


def test_the_plot_has_the_published_line_in_grey(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    carried_out(
        *("user-level", "--user-rate", "0.1", "--noise", "4", "--steps", "9", "--plot", str(path)),
    )
    picture = path.read_text(encoding="utf-8")
    assert "as published, not a guarantee" in picture


def test_what_is_no_number_is_refused() -> None:
    for rate in ("50/0", "a half", ""):
        done = CliRunner().invoke(app, ["plan", "user-level", "--user-rate", rate, "--steps", "9"])
        assert done.exit_code == 2
    done = CliRunner().invoke(app, ["plan", "uedp-bounded", "--sampling-rate", "2", "--steps", "9"])
    assert isinstance(done.exception, ConfigurationError)
