"""A disk that fills up, or is mounted read-only, at each point at which something is written."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.foundation.errors import ConfigurationError, InputError, RedactoryError
from redactory.pipelines.documents.redact import redact
from redactory.pipelines.documents.unmask import unmask
from tests.pipelines.leaving import small_run
from tests.pipelines.support import LINE_CONFIG, DigitDetector, write_rows

PATTERNS = {"detect": {"tagger": None}}
_CALLS = ("replace", "rename", "mkdir", "write", "fsync", "open")
MENDS = {
    errno.ENOSPC: ("the disk is full", "make room"),
    errno.EDQUOT: ("the disk is full for this user", "quota"),
    errno.EROFS: ("cannot be written", "mount its file system for writing"),
}


class Full:
    """From its ``at``-th write below ``folder`` on, the system refuses with ``number``; reading goes on."""

    def __init__(self, folder: Path, at: int | None, number: int) -> None:
        self.passed, self._at, self._number, self._folder = 0, at, number, folder

    def hit(self, *_: Any) -> None:
        """Count one write, or refuse it."""
        self.passed += 1
        if self._at is not None and self.passed > self._at:
            raise OSError(self._number, os.strerror(self._number))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """From now on, in this process."""
        for name in _CALLS:
            patch.setattr(os, name, self._refusing(name, getattr(os, name)))
        patch.setattr(io, "open", self._opened)

    def _refusing(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any, *more: Any, **options: Any) -> Any:
            reads = name == "open" and not (more and more[0] & (os.O_CREAT | os.O_WRONLY))
            if not reads and not str(what).endswith("lock"):
                self.hit()
            return own(what, *more, **options)

        return call

    def _opened(self, path: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+") or self._folder not in Path(str(path)).parents:
            return _OPEN(path, mode, buffering, *more, **options)
        raw = _Raw(str(path), mode.replace("b", "").replace("t", ""))
        raw.hit = self.hit
        self.hit()
        written = io.BufferedWriter(raw)
        return written if "b" in mode else io.TextIOWrapper(written, *more, **options)


class _Raw(io.FileIO):
    hit: Callable[..., None]

    def write(self, data: Any) -> int:
        self.hit()
        return super().write(data)


_OPEN = io.open


Commands = dict[str, Callable[[Path], Any]]


def _commands(folder: Path) -> Commands:
    rows = [{"id": str(n), "text": f"Mail Ann.{n}@example.org, or call.\nthank you"} for n in range(3)]
    source = write_rows(folder / "a.jsonl", rows)
    (folder / "in").mkdir()
    write_rows(folder / "in" / "a.jsonl", rows)
    kept = {"replace": "pseudonym", "vault": str(folder / "v.vault")}
    redact(source, folder / "masked.jsonl", kept, config=PATTERNS)
    run, config = small_run(folder / "small"), {**LINE_CONFIG, "input": str(source)}
    return {
        "redact": lambda out: redact(source, out, config=PATTERNS),
        "redact a folder": lambda out: redact(folder / "in", out, kept, config=PATTERNS),
        "unmask": lambda out: unmask(folder / "masked.jsonl", out, folder / "v.vault"),
        "curate": lambda out: redactory.curate(config, output=out, resume=True, detector=DigitDetector()),
        "export": lambda out: redactory.export(run, out),
    }


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    folder = tmp_path_factory.mktemp("full")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDACTORY_ENCRYPTION_KEY", "a key of these tests, long enough")
        return _commands(folder)


@pytest.mark.slow
@pytest.mark.usefixtures("few_hash_ranges", "unreported")
@pytest.mark.parametrize("number", MENDS, ids=["full", "quota", "read-only"])
@pytest.mark.parametrize("what", ["redact", "redact a folder", "unmask", "curate", "export"])
def test_the_message_says_what_to_do_wherever_the_disk_refuses(
    commands: Commands, tmp_path: Path, what: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "a key of these tests, long enough")
    work, counted = commands[what], Full(tmp_path, None, number)
    with monkeypatch.context() as patch:
        counted.install(patch)
        work(tmp_path / "whole")
    # every kind at every point is the same code; a curation has some hundred of them
    few = number != errno.ENOSPC or what == "curate"
    points = range(0, counted.passed, max(1, counted.passed // (5 if few else 16)))
    refused = [error for at in points if (error := _refused(work, tmp_path / f"out-{at}", at, number))]
    assert len(refused) >= 4
    for error in refused:
        assert all(words in str(error) for words in MENDS[number]), str(error)
        assert "cannot be read" not in str(error)
        assert "unexpected" not in str(error)
        assert not isinstance(error, InputError)


def _refused(work: Callable[[Path], Any], out: Path, at: int, number: int) -> RedactoryError | None:
    """What is said where the disk refuses from a point on; with room again the same call does it."""
    with pytest.MonkeyPatch.context() as patch:
        Full(out.parent, at, number).install(patch)
        try:
            work(out)
        except RedactoryError as error:
            refused = error
        else:
            return None
    if not (out.is_file() or (out / "_SUCCESS").is_file()):
        work(out)
    assert out.exists()
    return refused


def test_a_folder_that_cannot_be_written_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"text": "Mail a@b.org"}])
    (tmp_path / "closed").mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path) and real(path, mode))
    with pytest.raises(ConfigurationError, match=r"closed is not writable"):
        redact(source, tmp_path / "closed" / "out", config=PATTERNS)


def test_without_its_key_a_vault_says_which_one_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"text": "Mail a@b.org"}])
    vault = tmp_path / "v.vault"
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "a key of these tests, long enough")
    redact(source, tmp_path / "out", {"replace": "pseudonym", "vault": str(vault)}, config=PATTERNS)
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "another key of these tests, long enough")
    with pytest.raises(InputError, match="is not the key it was written with"):
        unmask(tmp_path / "out", tmp_path / "back", vault)
    monkeypatch.delenv("REDACTORY_ENCRYPTION_KEY")
    with pytest.raises(ConfigurationError, match=r"v\.vault is encrypted: set .* it was written with"):
        unmask(tmp_path / "out", tmp_path / "back", vault)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        unmask(tmp_path / "out", tmp_path / "back", tmp_path / "other.vault")
    with pytest.raises(ConfigurationError, match="create a key with redactory keys new encryption FILE"):
        redact(source, tmp_path / "more", {"replace": "pseudonym", "vault": str(vault)}, config=PATTERNS)
