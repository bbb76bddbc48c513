"""Hooks: what they get to know, what they never get, and that nothing they do matters to the run."""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import sys
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
    # its child keeps a pipe open until it ends, too
    out, into = os.pipe()
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '600'], close_fds=False); time.sleep(600)"
    with monkeypatch.context() as patch:
        patch.setattr(gate, "HOOK_SECONDS", 3.0)
        patch.setattr(subprocess, "Popen", functools.partial(subprocess.Popen, pass_fds=(into,)))
        assert _called(tmp_path, Event.FAILED, _python(code)) == ["it took longer than 3 s"]
    os.close(into)
    assert select.select([out], [], [], 10)[0], "what the hook started goes on"
    assert os.read(out, 1) == b""
    os.close(out)
