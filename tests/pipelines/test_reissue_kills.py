"""An erasure and a purge that die at each moment: never half a run, and asked again the same one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.dedup.index import IndexFolder
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import read_json, write_text
from redactory.pipelines.curation import reissue as reissue_steps
from redactory.pipelines.curation.reissue import finish_reissue, is_reissue_pending
from redactory.pipelines.curation.release_log import read_history
from redactory.redaction import RunFolder, is_finished, list_broken_files, list_parts, read_manifest, read_part
from tests.conftest import KEY
from tests.pipelines import faults
from tests.pipelines.faults import KILLED
from tests.pipelines.kills import Died, Moments, die, died
from tests.pipelines.support import DigitDetector, write_rows

Ask = Callable[[Path], Any]
ASKED: dict[str, Ask] = {
    "erasure": lambda run: redactory.erase([run], user_ids=["u"]),
    "erasure, encrypted and indexed": lambda run: redactory.erase([run], user_ids=["u"]),
    "purge": lambda run: redactory.purge(run, ["vault", "state"]),
}
ENCRYPTION_KEY = "a key of more than thirty-two bytes, for tests"
pytestmark = pytest.mark.usefixtures("unsynced")


def _in_a_process(asked: str, run: Path, at: int) -> None:
    os.environ["REDACTORY_KEY"] = KEY
    if "encrypted" in asked:
        os.environ["REDACTORY_ENCRYPTION_KEY"] = ENCRYPTION_KEY
    os.fsync = lambda _descriptor: None  # type: ignore[assignment]
    with Moments(at, die):
        ASKED[asked](run)


@pytest.fixture(params=sorted(ASKED))
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if "encrypted" in request.param:
        monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", ENCRYPTION_KEY)
    return str(request.param)


@pytest.fixture
def made(asked: str, tmp_path: Path) -> Path:
    """A folder with a run, and its index if it has one; each attempt takes their places again."""
    folder = tmp_path / "made"
    texts = [("u", "it is me\ncall 4\nhers 12"), ("v", "it is me\ncall 77"), ("w", "hello\ncall 4")]
    rows = [{"id": f"d{n}", "user_id": user, "text": text} for n, (user, text) in enumerate(texts)]
    config = {**faults.CONFIG, "input": str(write_rows(tmp_path / "rows.jsonl", rows)), "partition": {"documents": 2}}
    if "indexed" in asked:
        config["dedup"] = {"index": {"path": str(tmp_path / "place" / "index")}}
    run = tmp_path / "place" / "run"
    redactory.curate(config, output=run, detector=DigitDetector())
    (run / "state" / "traceback-0.txt").write_text("something")
    (tmp_path / "place").rename(folder)
    return folder


def _attempt(made: Path) -> Path:
    place = made.parent / "place"
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(made, place)) / "run"


def _state(run: Path) -> dict[str, Any]:
    """All that two attempts must have in common: bytes, or content where they are encrypted."""
    folder, manifest = RunFolder(run), read_json(run / "manifest.json")
    assert is_finished(folder)
    assert not is_reissue_pending(folder)
    assert not list_broken_files(folder)
    is_plain, encrypted = manifest["encryption"] is None, manifest.pop("encryption") or {}
    for change in manifest["changes"]:
        del change["time"]
    parts = [path for data in folder.data_folders for path in list_parts(data)]
    entries = IndexFolder(run.parent / "index").list_entries()
    for entry in entries:
        entry.verify_files()
    files = {name: file.get("content", file["sha256"]) for name, file in manifest.pop("files").items()}
    files.pop("README.md")
    return {
        "parts": {str(path.relative_to(run)): read_part(path).to_pylist() for path in parts},
        "files": files,
        # a repeated request has a receipt of its own
        "names": {
            re.sub(r"receipts/.+", "receipts/RECEIPT", p.relative_to(run.parent).as_posix())
            for p in run.parent.rglob("*")
            if "lock" not in p.name
        },
        "card": re.sub(r"20\d\d-\d\d-\d\dT[\d:+]*", "", folder.card.read_text()),
        "manifest": manifest if is_plain else (manifest["counts"], sorted(encrypted)),
        "journal": folder.journal.read_bytes() if is_plain else None,
        "log": [(r.type, r.body["release"]) for r in read_history(folder)],
        "index": [(entry.name, entry.body["files"], entry.body["counts"]) for entry in entries],
    }


def _undisturbed(asked: str, made: Path) -> tuple[dict[str, Any], list[int]]:
    """What it ends as, and the moments: of those before there is a plan, which undo nothing, every fifteenth."""
    run, planned = _attempt(made), list[int]()
    with pytest.MonkeyPatch.context() as patch, Moments(None, died) as moments:
        real = reissue_steps._move_release
        patch.setattr(reissue_steps, "_move_release", lambda run: (planned.append(moments.passed), real(run))[1])
        ASKED[asked](run)
    return _state(run), [*range(0, planned[0] - 2, 15), *range(max(0, planned[0] - 2), moments.passed)]


def _whole_or_unfinished(run: Path) -> bool:
    """Whether there is the old run or the new one; else it says that it is none, and nobody resumes it."""
    folder = RunFolder(run)
    if is_finished(folder):
        assert read_manifest(folder).get("release", 1) in (1, 2)
        assert folder.reissue.plan.exists() or not list_broken_files(folder)
        return True
    assert is_reissue_pending(folder)
    with pytest.raises(RunStateError, match="interrupted"):
        redactory.curate({**faults.CONFIG, "input": "rows.jsonl"}, output=run, resume=True)
    return False


@pytest.mark.slow
def test_dead_at_a_moment_and_retried(asked: str, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # what the report says takes the most time and is nothing here; that it is written is
    monkeypatch.setattr(reissue_steps, "write_report", lambda run: write_text(run.report, "what was done"))
    undisturbed, moments = _undisturbed(asked, made)
    finished = 0
    for moment in moments:
        run = _attempt(made)
        with contextlib.suppress(Died), Moments(moment, died):
            ASKED[asked](run)
            raise AssertionError(f"{moment} was not reached")
        finished += _whole_or_unfinished(run)
        ASKED[asked](run)
        assert _state(run) == undisturbed, moment
    assert 5 < finished < len(moments) - 5


def test_killed_and_asked_again(asked: str, made: Path) -> None:
    undisturbed, moments = _undisturbed(asked, made)
    for moment in moments[3 :: len(moments) // 4]:
        run = _attempt(made)
        process = faults._FORKED.Process(target=_in_a_process, args=(asked, run, moment))
        process.start()
        assert faults.outcome(process) == KILLED
        _whole_or_unfinished(run)
        # somebody else may finish it, knowing nothing of what was asked
        finish_reissue(RunFolder(run))
        ASKED[asked](run)
        assert _state(run) == undisturbed, moment
