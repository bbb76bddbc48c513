"""Original text out of a finished run: what still holds, what refuses, and when it is due."""

from __future__ import annotations

import datetime
import itertools
import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import redactory
from redactory.flows.cli import app
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.records import RecordLog
from redactory.pipelines.erase import check_clock, due, purge_run
from redactory.pipelines.release_log import Event, enter, history
from redactory.redaction import RunFolder, parts, read_batches, read_column
from redactory.redaction.folder import JobFolder
from tests.pipelines.support import LINES, DigitDetector, checks, failed, write_rows

pytestmark = pytest.mark.usefixtures("unsynced")
TEXTS = {"a": "it is me\ncall 4\nbroken", "b": "It is me!\ncall 77\nhello", "c": "call 4, please"}


def _curate(folder: Path, **more: Any) -> Path:
    rows = [{"id": name, "user_id": f"u{name}", "text": text} for name, text in TEXTS.items()]
    rows.append({"id": "a", "user_id": "ua", "text": "an id twice"})
    config = {**LINES, "input": str(write_rows(folder / "rows.jsonl", rows)), **more}
    redactory.curate(config, output=folder / "run", detector=DigitDetector())
    return folder / "run"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _curate(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def _said(words: list[str]) -> str:
    """What a command prints on standard output."""
    done = CliRunner().invoke(app, words, terminal_width=400)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_originals_go_and_the_shards_stay(run: Path) -> None:
    folder = RunFolder(run)
    before = {side: read_column(side, "text") for side in (folder.public, folder.private)}
    held = sum(path.stat().st_size for f in (folder.vault, folder.quarantine) for path in parts(f))
    done = redactory.purge(run, ["vault", "quarantine"], by="A. Keeper")
    assert (done["purged"], done["release"], done["bytes"]) == (["vault", "quarantine"], 2, held)
    assert not parts(folder.vault) + parts(folder.quarantine)
    assert {side: read_column(side, "text") for side in before} == before
    assert not failed(run)
    assert "quarantine, vault" in checks(run)["purged"]["detail"]
    (record,) = history(folder)
    assert record.body["what"] == ["vault", "quarantine"]
    assert (record.body["why"], record.body["by"]) == ("purge", "A. Keeper")
    counts = json.loads(folder.manifest.read_text())["counts"]
    assert counts == json.loads(folder.release(1).manifest.read_text())["counts"]


def test_a_purged_quarantine_is_never_listed_as_an_empty_one(run: Path) -> None:
    ask = ["quarantine", "list", str(run)]
    assert "entries" in _said(ask)
    redactory.purge(run, ["quarantine"])
    told = _said(ask)
    assert "the quarantine was purged: what lay in it is gone" in told
    assert "nothing lies" not in told


def test_the_log_of_a_run_that_belongs_to_no_job_is_read(run: Path, tmp_path: Path) -> None:
    assert _said(["release", "list", str(run), "--log"]).strip() == "Nothing was entered yet."
    redactory.purge(run, ["quarantine"], by="A. Keeper")
    assert "written anew (purge: quarantine), by A. Keeper" in _said(["release", "list", str(run), "--log"])
    redactory.purge(run, ["vault"])
    told = redactory.release_log(run)
    assert (told["job"], [record["type"] for record in told["records"]]) == (None, ["reissued"] * 2)
    RunFolder(run).release_log.unlink()
    with pytest.raises(CheckFailed, match="it was shortened"):
        redactory.release_log(run)
    with pytest.raises(RunStateError, match="is neither a job nor a run: give a run"):
        redactory.release_log(tmp_path)


def test_a_run_in_a_job_has_its_own_records_of_the_jobs_log(made: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    (job / "_job").mkdir(parents=True)
    for name in ("monday", "tuesday"):
        folder = Path(shutil.copytree(made, job / name))
        enter(RunFolder(folder), Event.RELEASED, manifest=file_sha256(folder / "manifest.json"), counts={})
        redactory.purge(folder, ["vault"])
    told = redactory.release_log(job / "tuesday")
    assert (told["job"], [record["run"] for record in told["records"]]) == (str(job), ["tuesday"] * 2)
    # what the log of its job held is not in the run that was taken out of it
    moved = Path(shutil.move(job / "tuesday", tmp_path / "moved"))
    with pytest.raises(RunStateError, match="no log names this run; was it moved or copied"):
        redactory.release_log(moved)


def test_asked_twice_it_is_gone_already(run: Path) -> None:
    redactory.purge(run, ["vault"])
    again = redactory.purge(run, ["vault"])
    assert (again["purged"], again["already"], again["release"]) == ([], ["vault"], None)
    assert redactory.purge(run, ["vault", "quarantine"])["release"] == 3
    assert not failed(run)


def test_of_the_state_only_what_can_hold_text_goes(run: Path) -> None:
    folder = RunFolder(run)
    redactory.audit_sample(run, n=10, name="sample", seed=1)
    (folder.state / "traceback-1.txt").write_text("call 77")
    (folder.state / "prefect").mkdir()
    (folder.state / "prefect" / "profiles.toml").write_text("")
    assert redactory.purge(run, ["state"])["purged"] == ["state"]
    left = {path.name for path in folder.state.iterdir()}
    assert left == {"journal.jsonl", "releases.jsonl"}
    # the state of a run fills again
    redactory.audit_sample(run, n=10, name="sample", seed=1)
    assert redactory.purge(run, ["state"])["purged"] == ["state"]
    assert redactory.purge(run, ["state"])["already"] == ["state"]


def test_what_needs_the_originals_says_so(run: Path) -> None:
    redactory.purge(run, ["vault"])
    with pytest.raises(RunStateError, match="vault/ was purged"):
        redactory.audit_sample(run, n=10)
    config = {**LINES, "input": "rows.jsonl", "output": str(run)}
    with pytest.raises(RunStateError, match="vault/ was purged"):
        redactory.train(config, trainer="sgd", minimum_plain_steps=1)


def test_a_part_that_comes_back_is_seen(run: Path, made: Path) -> None:
    redactory.purge(run, ["vault"])
    shutil.copy(made / "vault" / "part-00000.parquet", run / "vault")
    assert not checks(run)["no stray files"]["ok"]


def test_a_takedown_still_works_without_the_originals(run: Path) -> None:
    redactory.purge(run, ["vault", "quarantine"])
    (told,) = redactory.takedown([run], doc_ids=["a"])["runs"]
    assert (told["points"], told["moved_up"], told["lost"]) == (3, 1, 0)
    # c says "call <MASK>, please" of its own; b's "call 77" is masked to what a's was
    assert Counter(read_column(run / "private", "text")) == Counter(["call <MASK>", "call <MASK>, please"])
    assert not failed(run)


def test_without_originals_a_folded_group_is_lost_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # by which a rank is drawn that has either of two documents stand for the other once
    monkeypatch.setenv("REDACTORY_KEY", "a key for purging runs")
    kept = _curate(tmp_path, dedup={"mode": "folded"})
    redactory.purge(kept, ["vault"])
    rows = [row for batch in read_batches(RunFolder(kept).points) for row in batch.to_pylist()]
    stands_for = {row["dup_of"] for row in rows if row["dup_of"] is not None}
    documents = {row["document"] for row in rows if row["point_id"] in stands_for}
    from redactory.foundation.keys import load_digest_key

    names = [name for name in TEXTS if load_digest_key().pseudonym("document", name) in documents]
    (told,) = redactory.takedown([kept], doc_ids=names)["runs"]
    assert told["lost"] == len(stands_for)
    assert told["moved_up"] == 0
    assert not failed(kept)


def test_what_cannot_be_asked_for(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="purge one or more"):
        redactory.purge(run, [])
    with pytest.raises(ConfigurationError, match="not journal"):
        redactory.purge(run, ["journal"])  # type: ignore[list-item]
    with pytest.raises(RunStateError):
        redactory.purge(tmp_path / "nothing", ["vault"])
    assert not (tmp_path / "nothing").exists()


def test_a_run_that_a_model_is_trained_on_waits(made: Path, tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "job")
    job.own.mkdir(parents=True)
    run = RunFolder(Path(shutil.copytree(made, job.root / "old")))
    with RecordLog(job.log) as log:
        log.append("released", {"run": "old", "time": "2026-01-01T00:00:00+00:00"})
    now = datetime.datetime(2026, 2, 10, tzinfo=datetime.UTC)
    with RecordLog(run.model("crt").ledger):
        assert due(job, _Keep(vault_days=30), now) == {}
        with pytest.raises(RunStateError, match="old/models/crt is being trained"):
            redactory.purge(run.root, ["vault"])
        assert list(run.vault.glob("part-*"))
    assert due(job, _Keep(vault_days=30), now) == {"old": ("vault",)}
    assert redactory.purge(run.root, ["vault"])["release"] == 2


@dataclass(frozen=True)
class _Keep:
    vault_days: int | None = None
    quarantine_days: int | None = None
    state_days: int | None = None


def test_what_is_due_follows_from_the_log(made: Path, tmp_path: Path) -> None:
    job = JobFolder(tmp_path / "job")
    job.own.mkdir(parents=True)
    told = {"old": ["released"], "young": ["released"], "held": ["held"], "late": ["held", "approved"]}
    days = {"old": 40, "young": 3, "held": 40, "late": 40}
    now = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
    with RecordLog(job.log) as log:
        for name, events in told.items():
            shutil.copytree(made, job.root / name)
            for event in events:
                back = 5 if event == "approved" else days[name]
                when = (now - datetime.timedelta(days=back)).isoformat()
                log.append(event, {"run": name, "time": when})
        log.append("released", {"run": "removed since", "time": now.isoformat()})
    assert due(job, _Keep(), now) == {}
    assert due(job, _Keep(vault_days=30), now) == {"old": ("vault",)}
    keep = _Keep(vault_days=30, quarantine_days=4, state_days=50)
    assert due(job, keep, now) == {"old": ("vault", "quarantine"), "late": ("quarantine",)}
    for name, what in due(job, keep, now).items():
        purge_run(job.run(name), what)
    assert due(job, keep, now) == {}
    assert history(job.run("old"))[-1].body["what"] == ["vault", "quarantine"]


NIGHT = datetime.timedelta(days=1)


def _job_of_nights(made: Path, root: Path, steps: list[datetime.timedelta]) -> JobFolder:
    """A run released in each night, the clock going on by ``steps`` from one to the next."""
    job, now = JobFolder(root), START
    job.own.mkdir(parents=True)
    with RecordLog(job.log) as log:
        for number, step in enumerate(steps):
            now += step
            if not (job.root / "0").exists():
                shutil.copytree(made, job.root / "0")
            log.append("released", {"run": str(number), "time": now.isoformat()})
    return job


START = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
FAR = datetime.timedelta(days=3650)


def test_a_clock_ten_years_ahead_purges_nothing_and_is_told(made: Path, tmp_path: Path) -> None:
    keep = _Keep(vault_days=30)
    job = _job_of_nights(made, tmp_path / "job", [NIGHT] * 5)
    now = START + 5 * NIGHT
    assert due(job, keep, now + FAR) == {}
    with pytest.raises(CheckFailed, match=r"0 is to be purged.*Set the clock.*redactory purge"):
        check_clock(job, keep, now + FAR)
    # a night that was entered under that clock makes it no truer
    with RecordLog(job.log) as log:
        log.append("released", {"run": "far", "time": (now + FAR).isoformat()})
        log.append("released", {"run": "further", "time": (now + FAR + NIGHT).isoformat()})
    assert due(job, keep, now + FAR + 2 * NIGHT) == {}
    # set right, it is believed again, and what is due in time is purged
    assert due(job, keep, now + 3 * NIGHT) == {}
    check_clock(job, keep, now + 3 * NIGHT)
    with RecordLog(job.log) as log:
        for night in range(3, 40):
            log.append("failed", {"run": "x", "time": (now + night * NIGHT).isoformat()})
    assert due(job, keep, now + 40 * NIGHT) == {"0": ("vault",)}


@given(
    nights=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    wrong=st.sets(st.integers(0, 11)),
    by=st.integers(100, 20_000) | st.integers(-20_000, -100),
)
def test_no_clock_that_is_wrong_for_some_nights_makes_a_run_older_than_it_is(
    made: Path, nights: list[int], wrong: set[int], by: int
) -> None:
    """Whichever nights a clock was off by months or decades, forwards or back, tonight among them."""
    with tempfile.TemporaryDirectory() as folder:
        true = list(itertools.accumulate(nights))
        told = [START + datetime.timedelta(days=t + by * (n in wrong)) for n, t in enumerate(true)]
        steps = [after - before for before, after in itertools.pairwise([START, *told])]
        job = _job_of_nights(made, Path(folder) / "job", steps)
        age = true[-1] - true[0]
        assert due(job, _Keep(vault_days=age), told[-1]) == {}


def test_the_command(run: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["purge", str(run), "--vault", "--by", "me"])
    assert "this is release 2" in shown.output
    told = runner.invoke(app, ["purge", str(run), "--vault", "--state", "--json"])
    assert json.loads(told.stdout)["already"] == ["vault"]
