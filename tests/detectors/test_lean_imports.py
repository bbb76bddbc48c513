"""What spaCy and Presidio import for engines that are not used stays out of a run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from redactory.detectors import spacy_model as module
from redactory.detectors.spacy_model import hide_unused_packages

HIDDEN = ("torch", "transformers", "stanza")


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> str:
    """A library that is not imported yet, in the place of those that are hidden."""
    monkeypatch.setattr(module, "_UNUSED_PACKAGES", ("this",))
    monkeypatch.delitem(sys.modules, "this", raising=False)
    return "this"


def test_what_is_hidden_cannot_be_imported_inside_and_can_afterwards(
    absent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with hide_unused_packages(), pytest.raises(ImportError):
        importlib.import_module(absent)
    importlib.import_module(absent)
    with hide_unused_packages():
        # it is there already
        importlib.import_module(absent)
    assert absent in sys.modules
    assert capsys.readouterr().out


def test_nothing_is_hidden_where_spacy_needs_it(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TORCH_PACKAGES", ("json",))
    with hide_unused_packages():
        assert absent not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize("call", ["curate('rows.jsonl', output='run')", "explain('Jane Roe')"])
def test_no_command_that_detects_imports_pytorch(call: str, tmp_path: Path) -> None:
    # their first use of spaCy differs: a recognizer's words, or a pipeline
    (tmp_path / "rows.jsonl").write_text('{"text": "Call Jane Roe at 555-0100 tomorrow."}\n')
    code = (
        "import importlib.util, json, sys, redactory\n"
        f"redactory.{call}\n"
        f"there = [name for name in {HIDDEN} if name in sys.modules]\n"
        # what was hidden is there for whoever asks for it
        "found = importlib.util.find_spec('torch') is not None\n"
        "print(json.dumps([there, found, 'spacy' in sys.modules, 'presidio_analyzer' in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout.splitlines()[-1]) == [[], True, True, True]
