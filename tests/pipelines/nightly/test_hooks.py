"""Hooks: what they get to know, what they never get, and that nothing they do matters to the run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from redactory.pipelines.curation.release_log import Event
from redactory.pipelines.operations import gate
from redactory.redaction import RunFolder
from redactory.redaction.folder import JobFolder

WRITE = """import json, os, sys
json.dump({"environment": dict(os.environ), "input": json.load(sys.stdin)}, open(sys.argv[1], "w"))"""
SECRETS = ("REDACTORY_KEY", "REDACTORY_ENCRYPTION_KEY", "REDACTORY_SIGNING_KEY_FILE", "REDACTORY_KEY_SERVICE")


def _called(folder: Path, event: Event, command: list[str], **facts: Any) -> list[str]:
    job = JobFolder(folder / "job")
    return gate.call_hook(command, event, job, RunFolder(job.root / "2026-03-01"), facts)


def _python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def test_a_hook_gets_the_facts_and_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "a secret that no hook may see")
    monkeypatch.setenv("MAILTO", "operator")
    out, there = tmp_path / "given.json", tmp_path / "there"
    # no shell reads the command
    command = _python(WRITE, str(out), f"; touch {there}", f"$(touch {there})")
    assert _called(tmp_path, Event.HELD, command, manifest="ab" * 32, error="it failed") == []
    given = json.loads(out.read_text())
    facts = {"event": "held", "job": str(tmp_path / "job"), "run": str(tmp_path / "job" / "2026-03-01")}
    facts |= {"manifest": "ab" * 32, "error": "it failed"}
    assert given["input"] == facts
    own = {k: v for k, v in given["environment"].items() if k.startswith("REDACTORY_")}
    assert own == {f"REDACTORY_{name.upper()}": value for name, value in facts.items()}
    assert given["environment"]["MAILTO"] == "operator"
    assert "a secret" not in out.read_text()
    assert not there.exists()


def test_a_failing_hook_is_not_quoted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loud = _python("import sys; print('words'); print('more words', file=sys.stderr); sys.exit(7)")
    assert _called(tmp_path, Event.HELD, loud) == ["exit code 7"]
    assert capfd.readouterr() == ("", "")
    # more than a pipe holds, to somebody who does not read
    assert _called(tmp_path, Event.HELD, _python("pass"), findings=["x" * 100] * 10_000) == []
    [problem] = _called(tmp_path, Event.HELD, ["/no/such/program"])
    assert problem == "it cannot be started: No such file or directory"
    assert _called(tmp_path, Event.HELD, ["\x00"])


def test_a_hook_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    code = (
        "import pathlib, subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); time.sleep(600)"
    )
    talk = subprocess.Popen.communicate

    def once_started(hook: Any, *told: Any, **limits: Any) -> Any:
        # on a busy machine a program may need longer to start than this one has
        while not (started.exists() and started.read_text()):
            assert hook.poll() is None
            time.sleep(0.05)
        return talk(hook, *told, **limits)

    monkeypatch.setattr(gate, "HOOK_SECONDS", 0.1)
    monkeypatch.setattr(subprocess.Popen, "communicate", once_started)
    found = _called(tmp_path, Event.FAILED, _python(code, str(started)))
    assert found == ["it took longer than 0.1 s"]
    child = Path("/proc") / started.read_text()
    for _ in range(100):
        # nobody may be there to reap it
        if not child.exists() or "\nState:\tZ" in (child / "status").read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("what the hook started goes on")
