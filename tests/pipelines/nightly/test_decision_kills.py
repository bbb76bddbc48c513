"""A run's end, an approval and a rejection, killed at each moment: what follows is done all the same."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.dedup.index import IndexFolder
from redactory.foundation.errors import RunStateError
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.release_log import read_log
from redactory.pipelines.operations import gate
from tests.pipelines.kills import Died, Moments, died
from tests.pipelines.nightly.made_job import Job
from tests.pipelines.support import DigitDetector

ENDS = {"night": "released", "approve": "approved", "reject": "rejected"}


@pytest.fixture(scope="module", autouse=True)
def _quick(unsynced: None, unreported: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "write_report", lambda _run: None)
        yield


class Scene(Job):
    """A job amid a decision, which is put back as it was before each kill; hooks write down each call."""

    def __init__(self, folder: Path) -> None:
        self.called, self.index = folder / "scene" / "called", IndexFolder(folder / "scene" / "index")
        hook = ["sh", "-c", f"echo $REDACTORY_EVENT $(basename $REDACTORY_RUN) >> {self.called}"]
        index = {"index": {"path": str(self.index.root)}}
        super().__init__(folder / "scene", nightly={"hook": hook}, dedup=index)
        (self.folder / "job.yaml").write_text(json.dumps(self.config))

    def nightly(self, text: str | None = None, curating: Callable[..., Any] | None = None) -> None:
        if text is not None:
            self.write(f"{text}.jsonl", text)
        own = curating or functools.partial(curate, detector=DigitDetector())
        redactory.nightly(str(self.folder / "job.yaml"), curate_run=own)

    def put_back(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.folder.with_name("kept"), self.folder, symlinks=True)

    def name(self, number: int) -> str:
        return sorted(path.name for path in self.job.root.glob("20*"))[number]


def prepared(decision: str, folder: Path) -> Scene:
    """A job amid ``decision``: what is decided about is the last of its runs."""
    scene = Scene(folder)
    scene.nightly("one")

    def cut_off(*arguments: Any, **settings: Any) -> Any:
        curate(*arguments, detector=DigitDetector(), **settings)
        raise KeyboardInterrupt

    if decision == "night":
        with contextlib.suppress(KeyboardInterrupt):
            scene.nightly("two", cut_off)
    elif decision == "approve":
        # what repeats an earlier run leaves no point to read
        scene.write("again.jsonl", "one")
        scene.nightly()
    else:
        scene.nightly("two")
    scene.called.unlink(missing_ok=True)
    shutil.copytree(scene.folder, scene.folder.with_name("kept"), symlinks=True)
    return scene


def decide(decision: str, folder: Path) -> None:
    """Decide about the last run of the job that :func:`prepared` made in ``folder``."""
    scene = Scene(folder)
    if decision == "night":
        scene.nightly()
    elif decision == "approve":
        redactory.approve_release(scene.job.root / scene.name(1), "Ann", "looked at it", empty=True)
    else:
        redactory.reject_release(scene.job.root / scene.name(1), "Ann", "looked at it")


def undone(scene: Scene, decision: str, *, reread: bool) -> list[str]:
    """What of that which follows from ``decision`` was not done, or not once; ``reread`` by a later run."""
    decided, event = scene.name(1), ENDS[decision]
    latest = scene.name(-1 if reread else 0 if decision == "reject" else 1)
    called = scene.called.read_text().splitlines() if scene.called.exists() else []
    own = [line for line in called if line.endswith(decided)]
    types = [r.type for r in read_log(scene.job) if r.body["run"] == decided]
    counted = [entry.body["run"] for entry in scene.index.list_entries()]
    found = {
        "latest": os.readlink(scene.job.latest) != latest,
        "hook": own[:1] != [f"{event} {decided}"] or len(own) > 2,
        "record": types.count(event) != 1,
        "index": decision == "reject" and decided in counted,
        "leftovers": bool(list(scene.job.root.glob(".tmp-*"))),
    }
    return [name for name, wrong in found.items() if wrong]


@pytest.mark.slow
@pytest.mark.parametrize("again", ["asked again", "the next run"])
@pytest.mark.parametrize("decision", sorted(ENDS))
def test_what_follows_from_a_decision_is_done_whenever_it_is_cut_off(decision: str, again: str, tmp_path: Path) -> None:
    scene = prepared(decision, tmp_path)
    for moment in itertools.count():
        scene.put_back()
        with contextlib.suppress(Died), Moments(moment, died):
            decide(decision, tmp_path)
            break
        ended = ENDS[decision] in [r.type for r in read_log(scene.job) if r.body["run"] == scene.name(1)]
        if again == "asked again":
            # refused is what was decided: what was left to do is done all the same
            with contextlib.suppress(RunStateError) if ended else contextlib.nullcontext():
                decide(decision, tmp_path)
        else:
            scene.nightly()
            if not ended and decision != "night":
                continue
        reread = decision == "reject" and again == "the next run"
        assert undone(scene, decision, reread=reread) == [], moment
    assert moment > 6
