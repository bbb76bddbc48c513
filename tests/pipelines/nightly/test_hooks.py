"""Hooks: what they are told, what they never get, and that nothing they do matters to the night."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from redactory.pipelines import gate
from redactory.pipelines.config import HookSettings
from redactory.pipelines.gate import call_hooks
from redactory.pipelines.release_log import Event
from redactory.redaction import RunFolder
from redactory.redaction.folder import JobFolder

WRITE = (
    "import json, os, sys; json.dump({'environment': dict(os.environ), 'told': json.load(sys.stdin)}, "
    "open(sys.argv[1], 'w'))"
)
SECRETS = ("REDACTORY_KEY", "REDACTORY_ENCRYPTION_KEY", "REDACTORY_SIGNING_KEY_FILE", "REDACTORY_KEY_SERVICE")


def _called(tmp_path: Path, event: Event, hooks: dict[str, Any], **facts: Any) -> list[str]:
    job = JobFolder(tmp_path / "job")
    return call_hooks(
        HookSettings.model_validate(hooks), event, job, RunFolder(job.root / "2026-03-01"), facts
    )


def _python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


@pytest.mark.parametrize(
    ("event", "hook"),
    [
        (Event.RELEASED, "on_release"),
        (Event.APPROVED, "on_release"),
        (Event.HELD, "on_held"),
        (Event.FAILED, "on_failure"),
    ],
)
def test_a_hook_is_told_in_its_environment_and_on_its_input(
    event: Event, hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "a secret that no hook may see")
    monkeypatch.setenv("MAILTO", "operator")
    out = tmp_path / "told.json"
    command = _python(WRITE, str(out))
    assert _called(tmp_path, event, {hook: command}, manifest="ab" * 32, error="it failed") == []
    told = json.loads(out.read_text())
    run = str(tmp_path / "job" / "2026-03-01")
    assert told["told"] == {
        "event": event.value,
        "job": str(tmp_path / "job"),
        "run": run,
        "manifest": "ab" * 32,
        "error": "it failed",
    }
    own = {k: v for k, v in told["environment"].items() if k.startswith("REDACTORY_")}
    assert own == {
        "REDACTORY_EVENT": event.value,
        "REDACTORY_JOB": str(tmp_path / "job"),
        "REDACTORY_RUN": run,
        "REDACTORY_MANIFEST": "ab" * 32,
        "REDACTORY_ERROR": "it failed",
    }
    assert told["environment"]["MAILTO"] == "operator"
    assert "a secret" not in out.read_text()


def test_what_is_not_configured_is_not_called(tmp_path: Path) -> None:
    out = tmp_path / "told.json"
    hooks = {"on_release": _python(WRITE, str(out))}
    assert _called(tmp_path, Event.HELD, hooks) == []
    assert _called(tmp_path, Event.REJECTED, hooks) == []
    assert not out.exists()


def test_a_failing_hook_is_named_with_its_code_and_not_its_words(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loud = _python("import sys; print('words'); print('more words', file=sys.stderr); sys.exit(7)")
    assert _called(tmp_path, Event.HELD, {"on_held": loud}) == ["on_held (exit code 7)"]
    assert capfd.readouterr() == ("", "")


def test_a_hook_that_reads_nothing_or_is_not_there(tmp_path: Path) -> None:
    # more than a pipe holds, to somebody who does not read
    deaf = {"on_held": _python("pass")}
    assert _called(tmp_path, Event.HELD, deaf, findings=["x" * 100] * 10_000) == []
    [problem] = _called(tmp_path, Event.HELD, {"on_held": ["/no/such/program"]})
    assert problem == "on_held (it cannot be started: No such file or directory)"
    assert _called(tmp_path, Event.HELD, {"on_held": ["\x00"]})


def test_a_hook_that_hangs_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    code = (
        "import pathlib, subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "pathlib.Path(sys.argv[1]).write_text(str(child.pid)); time.sleep(600)"
    )
    hooks = {"on_failure": _python(code, str(started))}
    monkeypatch.setattr(gate, "HOOK_SECONDS", 1.5)
    assert _called(tmp_path, Event.FAILED, hooks) == ["on_failure (it took longer than 1.5 s)"]
    child = Path("/proc") / started.read_text()
    for _ in range(100):
        # nobody may be there to reap it
        if not child.exists() or "\nState:\tZ" in (child / "status").read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("what the hook started goes on")


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    there = tmp_path / "there"
    hooks = {"on_held": _python("pass", f"; touch {there}", f"$(touch {there})")}
    assert _called(tmp_path, Event.HELD, hooks) == []
    assert not there.exists()
