"""``redactory plan ldp``: one JSON object, a page for people, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import redactory
from redactory.flows.cli import app
from redactory.foundation.errors import ConfigurationError


def carried_out(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["plan", "ldp", *arguments])
    assert done.exception is None, done.output
    return done.stdout


def as_json(*arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(carried_out(*arguments, "--json"))
    return value


def test_three_sends_at_twice_the_clip() -> None:
    found = as_json("--noise", "2", "--sends", "3", "--delta", "1e-5")
    assert round(found["epsilon_sound"], 2) == 8.39
    assert found["participation"] == {"kind": "fixed", "sends": 3}


def test_coins_seen_and_hidden() -> None:
    coins = ("--noise", "5.8", "--steps", "1000", "--delta", "1/67349")
    unseen = as_json(*coins, "--hidden-rate", "0.05")
    seen = as_json(*coins, "--visible-rate", "1/20")
    assert unseen["epsilon_sound"] == pytest.approx(2.14, abs=0.01)
    assert seen["epsilon_sound"] == pytest.approx(13.4, abs=0.05)
    assert seen["epsilon_as_published"] == pytest.approx(1.0, abs=0.01)


def test_the_page_says_what_holds_and_what_does_not() -> None:
    page = " ".join(
        carried_out(
            *("--published-epsilon", "0.5", "--true-share", "1/2", "--visible-rate", "0.5"),
            *("--steps", "4", "--delta", "1/872"),
        ).split()
    )
    for words in ("not a guarantee", "equation 9", "one send", "Holds only if", "is large"):
        assert words in page
    assert "none" in carried_out("--noise", "0.01")


def test_refusals(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plan", "ldp", "--noise", "2", "--epsilon", "3"])
    assert isinstance(done.exception, ConfigurationError)
    with pytest.raises(ConfigurationError, match="plot"):
        redactory.plan(trainer="ldp", noise=2.0, plot=tmp_path / "plan.svg")
