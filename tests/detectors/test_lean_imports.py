"""What spaCy and Presidio import for engines that are not used stays out of a run."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import regex

from redactory.detectors import patterns
from redactory.detectors import spacy_model as module
from redactory.detectors.patterns import PatternEngine
from redactory.detectors.settings import PatternSettings
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


def test_the_first_import_skips_what_costs_time_and_leaves_everything_usable() -> None:
    code = (
        "import sys, regex\n"
        "from redactory.detectors.spacy_model import import_lean_spacy\n"
        "compiled, compile_ = [], regex.compile\n"
        "regex.compile = lambda *a, **k: compiled.append(a[0]) or compile_(*a, **k)\n"
        "spacy = import_lean_spacy()\n"
        "assert not any('(?:com)|(?:edu)' in str(one) for one in compiled), 'the expression of addresses'\n"
        "assert not [name for name in sys.modules if name.startswith('spacy.cli')]\n"
        "import presidio_analyzer, presidio_analyzer.pattern as pattern\n"
        "assert presidio_analyzer.Pattern is pattern.Pattern and pattern.re is regex\n"
        "try:\n    pattern.Pattern('a', '(', 0.5)\nexcept ValueError:\n    print('checked')\n"
        "import spacy.cli\n"
        "print(spacy.info(silent=True)['spacy_version'] == spacy.__version__, callable(spacy.cli.download))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["checked", "True", "True"]


def test_an_expression_is_compiled_when_its_trigger_first_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def record(expression: str, flags: int) -> regex.Pattern[str]:
        compiled.append(expression)
        return regex.compile(expression, flags)

    monkeypatch.setattr(patterns, "_compile_expression", record)
    engine = PatternEngine(PatternSettings(), "en")
    assert compiled == []
    engine.read(["nothing at all"])
    few = len(compiled)
    engine.read(["the card 4111 1111 1111 1111, http://example.com/x"])
    assert few < 10 < len(compiled)


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
