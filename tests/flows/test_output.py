"""Lines of progress: work that comes again under the same name is timed anew."""

from __future__ import annotations

import re

import pytest

from redactory.flows import output


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
