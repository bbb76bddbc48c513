"""A night's end, an approval and a rejection, killed at each moment: what follows is done all the same."""

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
from redactory.pipelines import gate as gate
from redactory.pipelines.curate import curate
from redactory.pipelines.release_log import read_log
from redactory.redaction.folder import JobFolder
from tests.pipelines.kills import Died, Moments, died
from tests.pipelines.support import BARE, BLIND_ACCEPTED, DigitDetector

WORDS = ("Ann", "looked at it")


@pytest.fixture(scope="module", autouse=True)
def _quick(unsynced: None, unreported: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "write_report", lambda _run: None)
        yield


class Scene:
    """A job amid a decision, which is put back as it was before each kill; hooks write what they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.job = folder / "scene", JobFolder(folder / "scene" / "job")
        self.told, self.index = self.folder / "told", IndexFolder(self.folder / "index")
        self._kept = folder / "kept"
        self.config = self.folder / "nightly.json.yaml"

    def begin(self) -> None:
        (self.folder / "in").mkdir(parents=True)
        hook = ["sh", "-c", f"echo $REDACTORY_EVENT $(basename $REDACTORY_RUN) >> {self.told}"]
        self.config.write_text(
            json.dumps(
                {
                    "input": str(self.folder / "in"),
                    "output": str(self.job.root),
                    "segment": {"mode": "line"},
                    "release": BLIND_ACCEPTED,
                    "detect": BARE,
                    "dedup": {"index": {"path": str(self.index.root)}},
                    "nightly": {"hooks": {"on_release": hook, "on_held": hook}},
                }
            )
        )

    def night(self, text: str | None = None, curating: Callable[..., Any] | None = None) -> None:
        if text is not None:
            (self.folder / "in" / f"{text}.jsonl").write_text(json.dumps({"text": text}) + "\n")
        own = curating or functools.partial(curate, detector=DigitDetector())
        redactory.nightly(str(self.config), curating=own)

    def keep(self) -> None:
        self.told.unlink(missing_ok=True)
        shutil.copytree(self.folder, self._kept, symlinks=True)

    def put_back(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._kept, self.folder, symlinks=True)

    def run(self, number: int) -> str:
        return sorted(path.name for path in self.job.root.glob("20*"))[number]

    def place(self, number: int) -> Path:
        return self.job.root / self.run(number)


def _cut_off(*arguments: Any, **settings: Any) -> Any:
    curate(*arguments, detector=DigitDetector(), **settings)
    raise KeyboardInterrupt


def prepared(decision: str, folder: Path) -> Scene:
    """A job amid ``decision``: what is decided about is the last of its runs."""
    scene = Scene(folder)
    scene.begin()
    scene.night("one")
    if decision == "night":
        with contextlib.suppress(KeyboardInterrupt):
            scene.night("two", _cut_off)
    elif decision == "approve":
        # what repeats an earlier night leaves no point to read
        (scene.folder / "in" / "again.jsonl").write_text(json.dumps({"text": "one"}) + "\n")
        scene.night()
    else:
        scene.night("two")
    scene.keep()
    return scene


def decide(decision: str, folder: Path) -> None:
    """Decide about the last run of the job that :func:`prepared` made in ``folder``."""
    scene = Scene(folder)
    if decision == "night":
        scene.night()
    elif decision == "approve":
        redactory.approve_release(scene.place(1), *WORDS, empty=True)
    else:
        redactory.reject_release(scene.place(1), *WORDS)


def undone(scene: Scene, decision: str, *, reread: bool) -> list[str]:
    """What of that which follows from ``decision`` was not done, or not once; ``reread`` by a later night."""
    decided, event = scene.run(1), ENDS[decision]
    latest = scene.run(-1 if reread else 0 if decision == "reject" else 1)
    told = scene.told.read_text().splitlines() if scene.told.exists() else []
    own = [line for line in told if line.endswith(decided)]
    due = [] if decision == "reject" else [f"{event} {decided}"]
    types = [r.type for r in read_log(scene.job) if r.body["run"] == decided]
    counted = [entry.body["run"] for entry in scene.index.entries()]
    found = {
        "latest": os.readlink(scene.job.latest) != latest,
        "hook": own[:1] != due or len(own) > 2,
        "record": types.count(event) != 1,
        "index": decision == "reject" and decided in counted,
        "leftovers": bool(list(scene.job.root.glob(".tmp-*"))),
    }
    return [name for name, wrong in found.items() if wrong]


ENDS = {"night": "released", "approve": "approved", "reject": "rejected"}


@pytest.mark.parametrize("again", ["asked again", "the next night"])
@pytest.mark.parametrize("decision", sorted(ENDS))
def test_what_follows_from_a_decision_is_done_whenever_it_is_cut_off(
    decision: str, again: str, tmp_path: Path
) -> None:
    scene = prepared(decision, tmp_path)
    for moment in itertools.count():
        scene.put_back()
        with contextlib.suppress(Died), Moments(moment, died):
            decide(decision, tmp_path)
            break
        ended = ENDS[decision] in [r.type for r in read_log(scene.job) if r.body["run"] == scene.run(1)]
        if again == "asked again":
            # refused is what has nothing left that would follow
            with contextlib.suppress(RunStateError) if ended else contextlib.nullcontext():
                decide(decision, tmp_path)
        else:
            scene.night()
            if not ended and decision != "night":
                continue
        reread = decision == "reject" and again == "the next night"
        assert undone(scene, decision, reread=reread) == [], moment
    assert moment > 6
