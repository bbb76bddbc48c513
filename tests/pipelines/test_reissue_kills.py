"""An erasure and a purge that die at each moment: never half a run, and asked again the same one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import write_text
from redactory.pipelines.curation import reissue as reissue_steps
from redactory.pipelines.curation.reissue import finish_reissue, is_reissue_pending
from redactory.pipelines.curation.release_log import read_history
from redactory.redaction import RunFolder, is_finished, list_broken_files, read_manifest, read_part
from tests.conftest import KEY
from tests.pipelines import faults
from tests.pipelines.faults import KILLED
from tests.pipelines.kills import Died, Moments, die, died
from tests.pipelines.support import DigitDetector, read_data_bytes, write_rows

Ask = Callable[[Path], Any]
ASKED: dict[str, Ask] = {
    "erasure": lambda run: redactory.erase([run], user_ids=["u"]),
    "purge": lambda run: redactory.purge(run, ["vault", "state"]),
}


def _in_a_process(asked: str, run: Path, at: int) -> None:
    os.environ["REDACTORY_KEY"] = KEY
    os.fsync = lambda _descriptor: None  # type: ignore[assignment]
    with Moments(at, die):
        ASKED[asked](run)


pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    texts = [("u", "it is me\ncall 4\nhers 12"), ("v", "it is me\ncall 77"), ("w", "hello\ncall 4")]
    rows = [{"id": f"d{n}", "user_id": user, "text": text} for n, (user, text) in enumerate(texts)]
    config = {**faults.CONFIG, "input": str(write_rows(folder / "rows.jsonl", rows)), "partition": {"documents": 2}}
    redactory.curate(config, output=folder / "run", detector=DigitDetector())
    (folder / "run" / "state" / "traceback-0.txt").write_text("something")
    return folder / "run"


@pytest.fixture(params=sorted(ASKED))
def asked(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _state(run: Path) -> dict[str, Any]:
    """All that two runs must have in common; a moment is the plan's, and there are two plans."""
    assert is_finished(RunFolder(run))
    assert not is_reissue_pending(RunFolder(run))
    texts = {p: p.read_text() for p in (run / "manifest.json", run / "README.md")}
    return {
        "data": read_data_bytes(run),
        "names": sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if "lock" not in p.name),
        "told": {p.name: re.sub(r"20\d\d-\d\d-\d\dT[\d:+]*", "", text) for p, text in texts.items()}
        | {"manifest.json": _without_digests(texts[run / "manifest.json"])},
        "journal": (run / "state" / "journal.jsonl").read_bytes(),
        "log": [(r.type, r.body["release"]) for r in read_history(RunFolder(run))],
    }


def _without_digests(text: str) -> Any:
    manifest = json.loads(text)
    for change in manifest["changes"]:
        del change["time"]
    return manifest


def _undisturbed(asked: str, made: Path, folder: Path) -> tuple[dict[str, Any], list[int]]:
    """What it ends as, and the moments: of those before there is a plan, which undo nothing, every ninth."""
    run = Path(shutil.copytree(made, folder / "undisturbed" / "run"))
    planned: list[int] = []
    with pytest.MonkeyPatch.context() as patch, Moments(None, died) as moments:
        real = reissue_steps._apply_reissue_plan
        patch.setattr(reissue_steps, "_apply_reissue_plan", lambda run: (planned.append(moments.passed), real(run))[1])
        ASKED[asked](run)
    return _state(run), [*range(0, planned[0] - 2, 9), *range(max(0, planned[0] - 2), moments.passed)]


def _whole_or_unfinished(run: Path, asked: str) -> None:
    """What lies there is the old run, the new one, or says that it is none; and nobody resumes it."""
    folder = RunFolder(run)
    if is_finished(folder):
        assert not list_broken_files(folder)
        assert read_manifest(folder).get("release", 1) in (1, 2)
    else:
        assert is_reissue_pending(folder)
        with pytest.raises(RunStateError, match="interrupted"):
            redactory.curate({**faults.CONFIG, "input": "rows.jsonl"}, output=run, resume=True)


def _runs(made: Path, folder: Path, moments: list[int]) -> Iterator[tuple[int, Path]]:
    for moment in moments:
        run = Path(shutil.copytree(made, folder / str(moment) / "run"))
        yield moment, run
        shutil.rmtree(folder / str(moment))


@pytest.mark.slow
def test_dead_at_a_moment_and_retried(asked: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # what the report says takes the most time and is nothing here; that it is written is
    monkeypatch.setattr(reissue_steps, "write_report", lambda run: write_text(run.report, "what was done"))
    undisturbed, moments = _undisturbed(asked, made, tmp_path)
    unfinished = 0
    for moment, run in _runs(made, tmp_path, moments):
        with contextlib.suppress(Died), Moments(moment, died):
            ASKED[asked](run)
            raise AssertionError(f"{moment} was not reached")
        _whole_or_unfinished(run, asked)
        unfinished += not is_finished(RunFolder(run))
        ASKED[asked](run)
        assert _state(run) == undisturbed, moment
    assert unfinished > 5


def test_killed_and_asked_again(asked: str, made: Path, tmp_path: Path) -> None:
    undisturbed, moments = _undisturbed(asked, made, tmp_path)
    for moment, run in _runs(made, tmp_path, moments[3 :: len(moments) // 5]):
        process = faults._FORKED.Process(target=_in_a_process, args=(asked, run, moment))
        process.start()
        assert faults.outcome(process) == KILLED
        _whole_or_unfinished(run, asked)
        # somebody else may finish it, knowing nothing of what was asked
        finish_reissue(RunFolder(run))
        ASKED[asked](run)
        assert _state(run) == undisturbed, moment


def test_encrypted_it_ends_with_the_same_content(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "a key of more than thirty-two bytes, for tests")
    config = {**faults.CONFIG, "input": str(made.parent / "rows.jsonl"), "partition": {"documents": 2}}
    redactory.curate(config, output=tmp_path / "first", detector=DigitDetector())
    undisturbed, content = None, {}
    for moment in (None, 20, *range(140, 200, 12)):
        run = Path(shutil.copytree(tmp_path / "first", tmp_path / f"run-{moment}"))
        with contextlib.suppress(Died), Moments(moment, died):
            ASKED["erasure"](run)
        ASKED["erasure"](run)
        files = read_manifest(RunFolder(run))["files"]
        digests = {name: entry.get("content", entry["sha256"]) for name, entry in files.items()}
        digests.pop("README.md")
        content = {name: read_part(run / name).to_pylist() for name in digests}
        undisturbed = undisturbed or (digests, content)
        assert (digests, content) == undisturbed
