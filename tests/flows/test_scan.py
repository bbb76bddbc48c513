"""``redactory scan``, what a shell completes, and the pre-commit hook, run by pre-commit itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from redactory.flows.cli import app
from redactory.foundation.errors import ConfigurationError, InputError

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / ".pre-commit-hooks.yaml"
CONFIG = """\
detect:
  tagger: null
  spacy: null
  patterns: null
  lists: {deny: [{words: [Zaphod], label: CLIENT}]}
  conservative: {rules: [digit]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a configuration and two data files; one is clean."""
    (tmp_path / "policy.yaml").write_text(CONFIG)
    (tmp_path / "dirty.jsonl").write_text('{"text": "fine"}\n{"text": "so\\nZaphod said 5"}\n')
    (tmp_path / "clean.csv").write_text("text\nfine\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _scan(*arguments: str, text: str | None = None) -> Any:
    return CliRunner().invoke(app, ["scan", *arguments, "--config", "policy.yaml"], input=text)


def test_hits_are_told_by_place_and_only_a_check_fails(folder: Path) -> None:
    done = _scan("dirty.jsonl", "clean.csv")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "dirty.jsonl:2:2:1: CLIENT 1.00 list (strict: masks)",
        "Spans 1 (CLIENT 1); files 2, with spans 1; texts 3",
    ]
    assert "Zaphod" not in done.output
    for arguments, code in (
        (("dirty.jsonl",), 1),
        (("clean.csv",), 0),
        (("clean.csv", "--policy", "conservative"), 0),
        (("clean.csv", "--text-column", "body"), None),
    ):
        checked = _scan(*arguments, "--check")
        if code is None:
            assert isinstance(checked.exception, InputError)
        else:
            assert checked.exit_code == code
    told = json.loads(_scan("dirty.jsonl", "--json", "--policy", "conservative").stdout)
    assert [(hit["label"], hit["row"]) for hit in told["spans"]] == [("CLIENT", 2), ("DIGIT", 2)]
    more = _scan("dirty.jsonl", "--policy", "conservative", "--limit", "1").stdout
    assert "1 more; --limit lists them." in more


def test_what_nobody_could_look_at_is_never_called_clean(folder: Path) -> None:
    (folder / "kept.jsonl").write_text('{"number": 1, "body": "Zaphod"}\n' * 3)
    refused = _scan("clean.csv", "kept.jsonl").exception
    assert isinstance(refused, InputError)
    assert str(refused).startswith("no column 'text' in kept.jsonl; its columns are number, body")
    assert _scan("kept.jsonl", "--text-column", "body").stdout.endswith("texts 3\n")
    (folder / "kept.jsonl").write_text('{"text": ["Zaphod"]}\n' * 3)
    done = _scan("clean.csv", "kept.jsonl")
    assert done.exit_code == 2
    assert "No row could be checked in kept.jsonl; spans elsewhere 0" in done.stdout
    (folder / "kept.jsonl").write_text('{"text": ""}\n')
    assert _scan("kept.jsonl").exit_code == 0
    asked = CliRunner().invoke(app, ["scan", "--explain", "kept.jsonl"]).exception
    assert isinstance(asked, ConfigurationError)
    assert "is a file: use redactory scan" in str(asked)


def test_a_text_is_told_from_a_mistyped_file(folder: Path) -> None:
    assert "text:1:4: CLIENT" in _scan("so Zaphod said").stdout
    assert "text:1:1: CLIENT" in _scan("--text", "Zaphod").stdout
    assert "text:2:1: CLIENT" in _scan("-", text="fine\nZaphod\n").stdout
    # the last two are not looked up either: a text would be sent to whoever it names
    for mistyped in ("dirty.jsonl.gz", "Zaphod", "my dirty.jsonl", "https://a.example/ Zaphod", "s3://b/x y"):
        refused = _scan(mistyped)
        assert isinstance(refused.exception, ConfigurationError)
        assert mistyped not in str(refused.exception)
    assert isinstance(_scan().exception, ConfigurationError)


def test_text_is_shown_to_a_terminal_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(_scan("dirty.jsonl", "--show").exception, ConfigurationError)
    monkeypatch.setattr("redactory.flows.scan_commands.is_stdout_terminal", lambda: True)
    assert isinstance(_scan("dirty.jsonl", "--show", "--json").exception, ConfigurationError)
    (folder / "steers.txt").write_text("a\x1b[2J Zaphod said")
    assert _scan("dirty.jsonl", "steers.txt", "--show").stdout.splitlines()[:4] == [
        "dirty.jsonl:2:2:1: CLIENT 1.00 list (strict: masks)",
        "  Zaphod said 5",
        "steers.txt:1:7: CLIENT 1.00 list (strict: masks)",
        r"  a\x1b[2J Zaphod said",
    ]


# ------------------------------------------------------------------------------------- pre-commit


def _git(folder: Path, *arguments: str) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *own, *arguments], cwd=folder, check=True, capture_output=True)


def test_pre_commit_runs_the_hook_as_it_is_written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    from pre_commit.clientlib import load_manifest

    load_manifest(str(HOOKS))
    (hook,) = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))
    # the same hook without an environment of its own, which would be installed from the network
    local = {**hook, "language": "system", "args": ["--config", "policy.yaml"]}
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": [local]}]}))
    commands = tmp_path_factory.mktemp("bin")
    program = commands / "redactory"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from redactory.flows.cli import main; main()" "$@"\n')
    program.chmod(0o700)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PRE_COMMIT"))}
    places = {"PATH": f"{commands}:{kept['PATH']}", "PRE_COMMIT_HOME": str(commands / "home")}
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    (folder / "notes.txt").write_text("Zaphod is no data file\n")
    _git(folder, "init", ".")
    _git(folder, "add", ".")
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files"],
        cwd=folder,
        env={**kept, **places, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "dirty.jsonl:2:2:1: CLIENT 1.00 list (strict: masks)" in done.stdout
    assert "files 2, with spans 1" in done.stdout
    assert "exit code: 1" in done.stdout
    assert "Zaphod" not in done.stdout
