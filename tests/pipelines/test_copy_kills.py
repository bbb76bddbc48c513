"""Copies, and values that come back, killed at each moment and asked for again."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.documents.redact import redact
from redactory.pipelines.documents.unmask import unmask
from tests.pipelines.kills import Moments, die, killed
from tests.pipelines.support import read_files, write_rows

PATTERNS = {"detect": {"tagger": None}}
"""Recognizers alone: no model to load."""


def _copies(folder: Path) -> dict[str, Callable[[], Any]]:
    """Copies of a file and of a folder, with a vault, and back."""
    (folder / "in" / "deep").mkdir(parents=True)
    rows = [{"text": f"Mail Ann.{n}@example.org, or call."} for n in range(3)]
    for name in ("a.jsonl", "deep/b.jsonl"):
        write_rows(folder / "in" / name, rows)
    how: dict[str, Any] = {"config": PATTERNS}
    kept = {"replace": "pseudonym", "vault": str(folder / "v.vault")}
    redact(folder / "in", folder / "masked", kept, **how)
    (folder / "v.vault").rename(folder / "old.vault")
    return {
        "redact a file": lambda: redact(folder / "in" / "a.jsonl", folder / "out", **how),
        "redact a folder": lambda: redact(folder / "in", folder / "out", kept, **how),
        "unmask a file": lambda: unmask(folder / "masked/a.jsonl", folder / "out", folder / "old.vault"),
        "unmask a folder": lambda: unmask(folder / "masked", folder / "out", folder / "old.vault"),
    }


def _copied(out: Path) -> dict[str, str]:
    files = read_files(out) or {out: out.read_bytes()}
    return {path.relative_to(out.parent).as_posix(): files[path].decode() for path in sorted(files)}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["redact a file", "redact a folder", "unmask a file", "unmask a folder"])
def test_a_killed_copy_is_none_or_whole(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one leaves nothing of it behind."""
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "a key of these tests, long enough")
    monkeypatch.setattr(os, "fsync", lambda _: None)
    work, out = _copies(tmp_path)[what], tmp_path / "out"
    told, whole = work(), _copied(out)
    assert "Ann.1@example.org" not in str(whole) or "unmask" in what
    there = {path.name for path in tmp_path.iterdir()}
    (shutil.rmtree if out.is_dir() else Path.unlink)(out)
    with Moments(None, die) as moments:
        work()
    last = moments.passed
    for moment in itertools.count():
        (shutil.rmtree if out.is_dir() else Path.unlink)(out)
        if not killed(work, moment):
            break
        assert not out.exists() or _copied(out) == whole, moment
        # whatever is not finished lies in one private folder
        besides = {path.name for path in tmp_path.iterdir()} - there - {"v.vault", "v.vault.lock", "out"}
        assert all(re.fullmatch(r"out\.unfinished|\.tmp-\d+-(v\.vault|out\.unfinished)", one) for one in besides)
        if out.exists() and moment >= last - 4:
            # all that was left to do was to take away the rest of an empty folder
            with contextlib.suppress(ConfigurationError):
                assert work() == told, moment
        else:
            assert work() == told, moment
        assert _copied(out) == whole, moment
        assert {path.name for path in tmp_path.iterdir()} == there, moment
    assert moment > 8


def test_a_finished_copy_of_something_else_is_not_taken_for_this_one(tmp_path: Path) -> None:
    source, out = write_rows(tmp_path / "a.jsonl", [{"text": "Mail a@b.org"}]), tmp_path / "out.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        # as if it was killed there
        patch.setattr("redactory.pipelines.documents.redact_io.remove_path", lambda _: None)
        told = redact(source, out, config=PATTERNS)
    for change in ("the input", "the settings", "the output"):
        write_rows(source, [{"text": "Mail a@b.org"}, {"text": "more"}][: 2 if change == "the input" else 1])
        if change == "the output":
            out.rename(tmp_path / "moved")
            shutil.copy(tmp_path / "moved", out)
        redaction = {"replace": "label"} if change == "the settings" else None
        with pytest.raises(ConfigurationError, match="already exists"):
            redact(source, out, redaction, config=PATTERNS)
        if change == "the output":
            out.unlink()
            (tmp_path / "moved").rename(out)
    assert redact(source, out, config=PATTERNS) == told
    assert not (tmp_path / "out.jsonl.unfinished").exists()
