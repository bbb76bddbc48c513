"""Every mistake of the table, made: what is printed, with which exit code, and that nothing else is."""

from __future__ import annotations

import functools
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
import typer.main

from redactory.flows import cli
from tests.mistakes.scenes import PRIVATE, Scene, as_ordinary_user, set_up
from tests.mistakes.table import Mistake, mistakes

ROOT = Path(__file__).parents[2]
MISTAKES = mistakes()


def given(command: str) -> int:
    """Give a command as its user does, in this process; the exit code."""
    with mock.patch.object(sys, "argv", shlex.split(command)):
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


@pytest.fixture(autouse=True, scope="module")
def _one_tree() -> Iterator[None]:
    """The tree of all commands is made once: that takes longer than most of these commands."""
    with mock.patch.object(typer.main, "get_command", functools.cache(typer.main.get_command)):
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A finished run of the corpus with one small model; made when it is first asked for."""

    @functools.cache
    def made() -> Path:
        import redactory

        place = tmp_path_factory.mktemp("finished")
        with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
            set_up(Scene(place, patch, stack, lambda: place), (), {}, {})
        redactory.curate(place / "job.yaml")
        redactory.train(place / "job.yaml")
        return place / "run"

    return made


@pytest.fixture
def scene(tmp_path: Path, finished: Callable[[], Path]) -> Iterator[Scene]:
    """An empty folder to stand in, with a blank and an umlaut in its name; nothing of it stays behind."""
    place = tmp_path / "my jobs, übung"
    place.mkdir()
    with mock.patch.dict(os.environ), pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.chdir(place)
        # whether what was written outlasts a power cut is not the point here
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield Scene(place, patch, stack, finished)


def made(mistake: Mistake, scene: Scene) -> int:
    """Make the mistake; the exit code."""
    set_up(scene, mistake.given, mistake.config, mistake.files)
    for name, value in mistake.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    command = mistake.command if mistake.page else f"{mistake.command} --json"
    codes: list[int] = []
    hands = as_ordinary_user if "an ordinary user" in mistake.given else _as_it_is
    hands(lambda: codes.append(given(command)))
    return codes[0]


def _as_it_is(work: Callable[[], None]) -> None:
    work()


@pytest.mark.parametrize("mistake", [row for row in MISTAKES if not row.own], ids=lambda m: f"{m.section}: {m.mistake}")
def test_what_is_told(mistake: Mistake, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    code = made(mistake, scene)
    out, err = (said.replace(f"{scene.place}/", "").replace(str(scene.place), ".") for said in capsys.readouterr())
    assert "Traceback" not in out + err
    assert not [sign for sign in PRIVATE if sign in out + err]
    if mistake.page:
        assert any(mistake.is_told(line.strip()) for line in out.splitlines()), (out, err)
    else:
        answer = json.loads(out)
        assert out.count("\n") == 1
        assert answer["exit_code"] == code
        assert err.strip().endswith(f"redactory: {answer['error']}")
        assert mistake.is_told(answer["error"]), answer["error"]
    assert code == mistake.exit


def test_python_is_too_old() -> None:
    row = _row("Python is too old")
    code = "import sys; sys.version_info, sys.version = (3, 10, 4), '3.10.4 (main)'; import redactory"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (row.exit, "", f"redactory: {row.message}\n")


@pytest.mark.parametrize("option", ["", " --json"])
def test_a_terminal_of_ascii(option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = _row("The terminal can show ASCII alone (locale C), and a file's name cannot be shown")
    out, err = (io.TextIOWrapper(io.BytesIO(), "ascii", errors) for errors in ("strict", "backslashreplace"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert given(row.command + option) == row.exit
    shown, told = (stream.buffer.getvalue().decode("ascii") for stream in (out, err))  # type: ignore[attr-defined]
    assert row.is_told(told.strip().removeprefix("redactory: ").replace("\n", " "))
    if option:
        assert "'grüße.jsonl' not found" in json.loads(shown)["error"]


def test_a_log_has_no_word_of_a_command_line_that_was_not_understood(scene: Scene) -> None:
    assert given("redactory --log-json log.jsonl curate Anna Miller") == 2
    assert "Miller" not in (scene.place / "log.jsonl").read_text()


def test_every_row_is_complete_and_stands_for_one_mistake() -> None:
    assert len(MISTAKES) >= 100
    assert len({(row.section, row.mistake) for row in MISTAKES}) == len(MISTAKES)
    for row in MISTAKES:
        assert row.message, row.mistake
        assert row.fix, row.mistake
        assert row.exit in (0, 1, 2), row.mistake


def _row(mistake: str) -> Mistake:
    return next(row for row in MISTAKES if row.mistake == mistake)
