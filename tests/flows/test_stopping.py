"""SIGTERM: a scheduler's stop ends a command in order; given again, it ends as if there had been none."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.flows import cli
from redactory.foundation.errors import CheckFailed
from redactory.foundation.processes import open_process_pool
from redactory.redaction import RunFolder
from redactory.training import steps
from tests.integrations.tracked_run import job
from tests.pipelines.support import DigitDetector


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    assert threading.current_thread() is threading.main_thread()
    earlier = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, earlier)
    cli._stop_requested.clear()


def _main(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as inside:
        inside.setattr(sys, "argv", ["redactory", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
    return int(end.value.code or 0)


def _stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that stops this process in the middle of that step."""
    real, seen = steps.ScheduledOptimizer.step, [0]

    def stopped(own: steps.ScheduledOptimizer, number: int) -> None:
        seen[0] += 1
        if seen[0] == step:
            os.kill(os.getpid(), signal.SIGTERM)
        real(own, number)

    monkeypatch.setattr(steps.ScheduledOptimizer, "step", stopped)


@pytest.mark.slow
def test_a_training_that_is_stopped_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = job(tmp_path)
    redactory.curate(config, detector=DigitDetector())
    run = RunFolder(tmp_path / "run")
    redactory.train(config, name="whole")
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(config))
    with monkeypatch.context() as inside:
        _stop_at(5, inside)
        assert _main("train", str(file), "--json") == 143
    told = capsys.readouterr()
    assert json.loads(told.out)["exit_code"] == 143
    assert "stopped by SIGTERM: run the same command again" in told.err
    assert run.get_root_key_path("crt").is_file()
    assert not run.get_model_folder("crt").success.exists()
    assert _main("train", str(file)) == 0
    assert run.get_model_folder("crt").weights.read_bytes() == run.get_model_folder("whole").weights.read_bytes()


def test_an_error_that_follows_the_stop_is_its_doing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that was stopped with us is missed, which is an error of ours."""

    def lost(*_: Any, **__: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except cli.TerminationRequested:
            raise CheckFailed("training: process 2 of 2 was ended by signal 15") from None

    monkeypatch.setattr(cli, "app", lost)
    assert _main() == 143
    assert "process 2 of 2" not in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # a second one ends the process at once


@pytest.mark.parametrize(("command", "how"), [("curate", "continue (with --resume)\n"), ("redact", "continue\n")])
def test_a_command_that_was_interrupted_says_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, how: str
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(redactory, command, interrupted)
    (tmp_path / "run.jsonl").write_text('{"text": "x"}')
    assert _main(command, str(tmp_path / "run.jsonl"), "--out", str(tmp_path / "x")) == 130
    assert capsys.readouterr().err.endswith(f"interrupted: run the same command again to {how}")


@pytest.mark.parametrize("places", [("-", "--out", "x.jsonl"), ("in.jsonl", "--out", "-")])
def test_a_stopped_pipe_is_not_said_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], places: tuple[str, ...]
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(redactory, "redact", stopped)
    assert _main("redact", *places) == 143
    assert "the whole input" in (error := capsys.readouterr().err)
    assert "to continue" not in error


def test_a_signal_that_is_answered_or_ignored_stays_so() -> None:
    for own in (signal.SIG_IGN, lambda *_: None):
        signal.signal(signal.SIGTERM, own)
        cli.install_stop_handler()
        assert signal.getsignal(signal.SIGTERM) is own


def test_an_interrupt_waits_for_no_worker() -> None:
    processes: list[Any] = []

    def interrupted() -> None:
        with open_process_pool(1) as pool:
            pool.submit(time.sleep, 600)
            processes.extend(pool._processes.values())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL]
