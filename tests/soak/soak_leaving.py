"""Decisions, exports and mirrors that are killed again and again, an export beside an erasure among them.

Each kill is a SIGKILL at a drawn call that changes the disk.  Afterwards the same is asked for again: what
does not go on is stuck, what is missing then is lost, and what lies outside though it was taken out before is
leaked.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.foundation.errors import RedactoryError, RunStateError
from redactory.pipelines.curation.release_log import read_log
from redactory.redaction.folder import JobFolder
from tests.pipelines import faults
from tests.pipelines.kills import Moments, die
from tests.pipelines.leaving import configuration, small_run
from tests.pipelines.nightly.test_decision_kills import ENDS, decide, prepared, undone
from tests.soak.conftest import FOUND, KILLS, LEAST_KILLS

SEED = 20260401
KEYS = {
    "REDACTORY_KEY": "a key for taking people out",
    "REDACTORY_ENCRYPTION_KEY": "an encryption key of these tests, long enough",
}
PERSON = "document-3"
ROUNDS = 40
STEPS = {"export": 20, "publish": 40, "erasure": 35, "reject": 7}
"""About how often each of them changes the disk."""


@pytest.fixture(scope="module", autouse=True)
def _keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        yield


def _work(what: Callable[..., Any], arguments: tuple[Any, ...], moment: int | None, done: Path) -> None:
    """In a process of its own: ``what``, killed at ``moment``; when it came to its end stands in ``done``."""
    os.environ.update(KEYS)
    # what is renamed is what counts here, and a disk is waited for at each file
    os.fsync = lambda _descriptor: None  # type: ignore[assignment]
    with Moments(moment, die):
        try:
            what(*arguments)
        except RunStateError:
            os._exit(faults.REFUSED)
    done.write_text(str(time.time_ns()))


def _begun(what: Callable[..., Any], *arguments: Any, moment: int | None = None, done: Path) -> Any:
    process = faults._FORKED.Process(target=_work, args=(what, arguments, moment, done))
    process.start()
    return process


def _killed(point: str, what: Callable[..., Any], *arguments: Any, moment: int, done: Path) -> bool:
    """Whether ``what`` was killed at ``moment``, and had not ended before."""
    code = faults.outcome(_begun(what, *arguments, moment=moment, done=done))
    KILLS[point] += code == faults.KILLED
    return code == faults.KILLED


def _again(point: str, what: Callable[[], Any]) -> None:
    try:
        what()
    except RedactoryError as error:
        FOUND["stuck"].append(f"{point}: {error}")


def _judged() -> None:
    assert FOUND == {"stuck": [], "lost": [], "leaked": []}


@pytest.mark.parametrize("again", ["asked again", "the next night"])
@pytest.mark.parametrize("decision", sorted(ENDS))
def test_a_decision_and_latest(decision: str, again: str, tmp_path: Path) -> None:
    scene = prepared(decision, tmp_path)
    for moment in itertools.count():
        scene.put_back()
        if not _killed(decision, decide, decision, tmp_path, moment=moment, done=tmp_path / "done"):
            break
        ended = ENDS[decision] in [r.type for r in read_log(scene.job) if r.body["run"] == scene.name(1)]
        if again == "the next night":
            _again(decision, scene.nightly)
            if not ended and decision != "night":
                continue
        elif not ended or undone(scene, decision, reread=False):
            # what was decided is refused, and what was left to do is done all the same
            with contextlib.suppress(RunStateError) if ended else contextlib.nullcontext():
                decide(decision, tmp_path)
        reread = decision == "reject" and again == "the next night"
        left = undone(scene, decision, reread=reread)
        FOUND["lost"] += [f"{decision}, killed at {moment}: {what}" for what in left]
    _judged()


def _content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_a_mirror_in_a_folder(tmp_path: Path) -> None:
    run, draw = small_run(tmp_path), random.Random(SEED)
    own = _content(run)
    for number in range(15):
        place = tmp_path / f"mirror-{number}"
        for moment in (draw.randrange(2, 10) for _ in range(12)):
            _killed("publish", redactory.publish, run, f"file://{place}", moment=moment, done=tmp_path / "done")
            there = {n: d for n, d in _content(place).items() if ".tmp-" not in n and n != "SHA256SUMS"}
            FOUND["lost"] += [f"publish, torn: {name}" for name in there if there[name] != own.get(name)]
            if "_SUCCESS" in there and there != own:
                FOUND["leaked"].append("publish: taken for a run that is not whole")
        _again("publish", lambda to=place: redactory.publish(run, f"file://{to}"))
        _again("publish", lambda to=place, n=number: redactory.fetch(f"file://{to}", tmp_path / f"back-{n}"))
        if _content(tmp_path / f"back-{number}") != own:
            FOUND["lost"].append(f"publish: {number} comes back as another")
        shutil.rmtree(place)
    _judged()


def _take_out(run: Path) -> None:
    told = redactory.erase([run], doc_ids=[PERSON])
    if not told["ok"]:
        raise RunStateError(told["problems"][0]["problem"])


def _export(run: Path, to: Path) -> None:
    redactory.export(run, to)


def _mirror(run: Path, to: Path) -> None:
    redactory.publish(run, f"file://{to}")


def _reject(run: Path) -> None:
    redactory.reject_release(run, "Ann", "taken back")


def _in_a_job(folder: Path) -> Path:
    """A run that a job has released."""
    config = configuration(folder / "in", nightly={"approve": "never"})
    redactory.nightly({**config, "input": str(folder / "in")}, output=folder / "job")
    [name] = [path.name for path in (folder / "job").glob("20*")]
    return JobFolder(folder / "job").get_run_folder(name).root


LEAVE = {"export": _export, "publish": _mirror}


@pytest.mark.parametrize("against", ["erasure", "reject"])
@pytest.mark.parametrize("way", sorted(LEAVE))
def test_what_leaves_beside_what_takes_back(tmp_path: Path, way: str, against: str) -> None:
    """Both at once, either of them killed at a drawn moment or not at all, and then asked for again."""
    made = small_run(tmp_path / "made", dedup={"mode": "none", "report_cross_split": False})
    if against == "reject":
        (tmp_path / "made" / "in").mkdir()
        shutil.move(tmp_path / "made" / "letters.jsonl", tmp_path / "made" / "in" / "letters.jsonl")
        made = _in_a_job(tmp_path / "made")
    back = {"erasure": _take_out, "reject": _reject}[against]
    draw = random.Random(f"{SEED} {way} {against}")
    for number in range(ROUNDS):
        scene = tmp_path / str(number)
        shutil.copytree(made.parent, scene, symlinks=True)
        run, place = scene / made.name, tmp_path / f"there-{number}"
        which = draw.choice(["leaves", "takes back"])
        moments = {which: draw.randrange(STEPS[way if which == "leaves" else against])}
        leaves = _begun(LEAVE[way], run, place, moment=moments.get("leaves"), done=tmp_path / f"left-{number}")
        time.sleep(draw.uniform(0, 0.5))
        takes = _begun(back, run, moment=moments.get("takes back"), done=tmp_path / f"taken-{number}")
        for process, point in ((leaves, f"{way} beside {against}"), (takes, f"{against} beside {way}")):
            KILLS[point] += faults.outcome(process) == -signal.SIGKILL
        ended = tmp_path / f"taken-{number}"
        finished = place / "_SUCCESS"
        old = finished.exists() and _is_old(place, made)
        # of a folder that is renamed, and of the file that is written last
        when = max(_made(place) if way == "export" else 0, _made(finished))
        if old and ended.exists() and when > int(ended.read_text()):
            FOUND["leaked"].append(f"{way} {number}: after the {against} had ended")
        if not ended.exists():
            _again(f"{against} beside {way}", lambda run=run: _taken_back(back, run))
        if against == "erasure":
            _again(f"{way} beside {against}", lambda run=run, n=number: LEAVE[way](run, tmp_path / f"l-{n}"))
            if _is_old(tmp_path / f"l-{number}", made):
                FOUND["leaked"].append(f"{way} {number}: what was taken out is in what left later")
        else:
            with pytest.raises(RunStateError, match="was rejected"):
                LEAVE[way](run, tmp_path / f"l-{number}")
        for folder in (scene, place, tmp_path / f"l-{number}"):
            shutil.rmtree(folder, ignore_errors=True)
    _judged()


def _taken_back(back: Callable[[Path], None], run: Path) -> None:
    try:
        back(run)
    except RunStateError as error:
        # it was killed with nothing left that would follow
        if "was rejected before" not in str(error):
            raise


def _made(path: Path) -> int:
    return path.stat().st_ctime_ns if path.exists() else 0


def _is_old(place: Path, made: Path) -> bool:
    """Whether the public parts there are those from before."""
    return all(
        (place / "public" / path.name).exists() and (place / "public" / path.name).read_bytes() == path.read_bytes()
        for path in (made / "public").glob("*.parquet")
    )


def test_there_were_enough() -> None:
    assert KILLS.total() >= LEAST_KILLS
