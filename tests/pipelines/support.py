"""Spans recorded by a rule in place of the engines, for tests that are not about detection."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import redactory
from redactory.detectors import Detection, Span
from redactory.flows.cli import app
from redactory.pipelines.curation.release_log import read_history, run_statuses
from redactory.pipelines.operations import verify as verification
from redactory.pipelines.operations.checks import CheckContext, CheckResult, make_checks
from redactory.pipelines.readers import Document, InputSettings, Rejection, find_sources, read_documents
from redactory.redaction import RunFolder, list_parts, read_batches

NO_ENGINES: dict[str, Any] = {"tagger": None, "patterns": None, "conservative": {"rules": []}}
"""No engine is asked: a detector stands in for them."""
DIGITS, CAPITALS = re.compile(r"\d[\d-]*"), re.compile(r"(?<=\s)[A-Z]\w+")
ALLOW_UNCOVERED: dict[str, Any] = {"allow_uncovered_kinds": ["PERSON", "LOCATION", "ORGANIZATION", "EVERYTHING"]}
"""The section ``release`` of a run whose configured policies look for no names."""
LINE_CONFIG: dict[str, Any] = {"segment": {"mode": "line"}, "detect": NO_ENGINES, "release": ALLOW_UNCOVERED}
"""A configuration as short as can be: a point a line."""
DATA_FOLDERS = ("public", "private", "vault", "quarantine", "audit/examples", "audit/spans")


class DigitDetector:
    """π masks numbers, π_c also points at capitals; a text with "broken" cannot be processed."""

    def __init__(self) -> None:
        self.detected_texts: list[str] = []

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        for text in texts:
            self.detected_texts.append(text)
            if "broken" in text:
                yield Detection(failure="engine_error")
                continue
            strict = tuple(Span(*m.span(), "NUMBER", 0.9, "digits") for m in DIGITS.finditer(text))
            rest = tuple(Span(*m.span(), "CAPITAL", 0.5, "capitals") for m in CAPITALS.finditer(text))
            yield Detection(strict, rest)


class BlindDetector:
    """It finds nothing."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        return (Detection() for _ in texts)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of all parts in a folder of a run."""
    return [row for batch in read_batches(folder) for row in batch.to_pylist()]


def read_files(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder with its content, links left out."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def read_release_state(run: RunFolder) -> str | None:
    """How a run stands in its release log; None where that has nothing of it."""
    status = run_statuses(read_history(run)).get(run.root.resolve().name)
    return None if status is None else status.state


def read_data_bytes(run: Path) -> dict[str, bytes]:
    """Every data file of a run with its content."""
    folder = RunFolder(run)
    return {p.relative_to(run).as_posix(): p.read_bytes() for f in folder.data_folders for p in list_parts(f)}


def invoke_command(*arguments: object) -> Any:
    """What a command gives, as somebody types it."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], terminal_width=400)


def run_checks(run: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """The checks of a run or an export, by name."""
    result = redactory.verify(run, **options)
    assert result["ok"] == all(check["ok"] for check in result["checks"])
    return {check["name"]: check for check in result["checks"]}


def list_failed_checks(run: Path, **options: Any) -> set[str]:
    """The names of the checks that fail."""
    return {name for name, check in run_checks(run, **options).items() if not check["ok"]}


def make_check(run: Path, name: str, **manifest: Any) -> CheckResult:
    """The result of one check; ``manifest`` are keys of the manifest that it sees changed."""
    context = CheckContext(run)
    context.manifest = {**context.manifest, **manifest}
    [result] = make_checks(context, [check for check in verification.CHECKS if check.name == name])
    return result


def leave_out_rescan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines look at texts, not at files, and take seconds to load."""
    left_out: Any = lambda _: "left out"  # noqa: E731
    quick = (c._replace(make=left_out) if c.name == "re-scan of public" else c for c in verification.CHECKS)
    monkeypatch.setattr(verification, "CHECKS", tuple(quick))


def read_entries(path: Path, **changes: Any) -> list[Document | Rejection]:
    """What the readers make of the files at ``path``; ``changes`` are keys of the section ``input``."""
    settings = InputSettings.model_validate({"path": str(path), **changes})
    sources = find_sources(settings.path, settings.format)
    return [entry for source in sources for entry in read_documents(source, settings)]
