"""Original text out of a finished run: what still holds, what refuses, and when it is due."""

from __future__ import annotations

import datetime
import itertools
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redactory
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import read_json
from redactory.foundation.keys import load_digest_key
from redactory.foundation.records import RecordLog
from redactory.pipelines.curation.release_log import Event, append_event, read_history
from redactory.pipelines.operations.erase import (
    OriginalKind,
    check_clock_matches_log,
    find_expired_originals,
    purge_run,
)
from redactory.redaction import RunFolder, list_parts, read_column
from redactory.redaction.folder import JobFolder
from tests.pipelines.support import (
    LINE_CONFIG,
    DigitDetector,
    invoke_command,
    list_failed_checks,
    read_rows,
    run_checks,
    write_rows,
)

pytestmark = pytest.mark.usefixtures("unsynced")
TEXTS = {"a": "it is me\ncall 4\nbroken", "b": "It is me!\ncall 77\nhello", "c": "call 4, please"}


def _curate(folder: Path, **more: Any) -> Path:
    rows = [{"id": n, "user_id": f"u{n}", "text": text} for n, text in TEXTS.items()]
    path = write_rows(folder / "rows.jsonl", [*rows, {"id": "a", "user_id": "ua", "text": "an id twice"}])
    redactory.curate({**LINE_CONFIG, "input": str(path), **more}, output=folder / "run", detector=DigitDetector())
    return folder / "run"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _curate(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_the_originals_go_and_the_shards_stay(run: Path, made: Path) -> None:
    folder = RunFolder(run)
    before = {side: read_column(side, "text") for side in (folder.public, folder.private)}
    held = sum(path.stat().st_size for f in (folder.vault, folder.quarantine) for path in list_parts(f))
    [done] = redactory.purge(run, ["vault", "quarantine"], by="A. Keeper")["runs"]
    assert (done["purged"], done["release"], done["bytes"]) == (["vault", "quarantine"], 2, held)
    assert not list_parts(folder.vault) + list_parts(folder.quarantine)
    assert {side: read_column(side, "text") for side in before} == before
    assert not list_failed_checks(run)
    assert "quarantine, vault" in run_checks(run)["purged"]["detail"]
    (record,) = read_history(folder)
    said = {name: record.body[name] for name in ("why", "what", "by")}
    assert said == {"why": "purge", "what": ["vault", "quarantine"], "by": "A. Keeper"}
    assert read_json(folder.manifest)["counts"] == read_json(folder.get_release_folder(1).manifest)["counts"]
    assert "the quarantine was purged and cannot be listed" in invoke_command("quarantine", "list", run).stdout
    again = invoke_command("purge", run, "--vault")
    assert "vault: already deleted" in again.stdout
    # what needs the originals says so, and one that comes back is seen
    with pytest.raises(RunStateError, match="vault/ was purged"):
        redactory.label_random(run, n=10)
    with pytest.raises(RunStateError, match="vault/ was purged"):
        redactory.train({**LINE_CONFIG, "input": "rows.jsonl", "output": str(run)}, trainer="sgd", min_public_steps=1)
    shutil.copy(made / "vault" / "part-00000.parquet", run / "vault")
    assert not run_checks(run)["no stray files"]["ok"]


def test_of_the_state_only_what_can_hold_text_goes(run: Path) -> None:
    folder = RunFolder(run)
    redactory.label_random(run, n=10, name="sample", seed=1)
    (folder.state / "traceback-1.txt").write_text("call 77")
    (folder.state / "prefect").mkdir()
    assert "this is release 2" in invoke_command("purge", run, "--state", "--by", "me").output
    assert {path.name for path in folder.state.iterdir()} == {"journal.jsonl", "releases.jsonl"}
    # the state of a run fills again
    redactory.label_random(run, n=10, name="sample", seed=1)
    assert redactory.purge(run, ["state"])["runs"][0]["purged"] == ["state"]
    [again] = redactory.purge(run, ["state"])["runs"]
    assert (again["purged"], again["already"], again["release"]) == ([], ["state"], None)


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after the vault was purged"])
def test_nothing_that_a_killed_process_left_outlives_a_purge(run: Path, again: bool) -> None:
    folder = RunFolder(run)
    if again:
        redactory.purge(run, ["vault", "quarantine"])
    own = {path for path in run.rglob("*") if path.is_file()}
    left = [
        *(folder.vault / name for name in (".tmp-17-part-00000.parquet", "part-00000.parquet.bak", "deep/.tmp-1-x")),
        *(folder.quarantine / name for name in (".tmp-4-part-00001.parquet", "notes.txt")),
        *(folder.state / name for name in (".tmp-3-data-key.json", ".tmp-5-traceback-1.txt", "traceback-2.txt")),
        *(folder.state / name for name in (".tmp-6-work/examples/part", ".tmp-8-train-m.key", "reissue/files/x")),
        *(run / name for name in (".tmp-1-report.html", "public/.tmp-2-part-00000.parquet", "audit/spans/.tmp-9-a")),
        run / "models" / "m" / ".tmp-7-report.html",
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("Rosalind Marlowe of 12 Quiet Lane")
    [result] = redactory.purge(run, ["vault", "quarantine", "state"])["runs"]
    assert result["purged"] == ["vault", "quarantine", "state"]
    there = {path for path in run.rglob("*") if path.is_file()}
    assert not {path for path in there if b"Rosalind" in path.read_bytes()}
    new = {path for path in there - own if path.parent.parent != folder.releases}
    assert new <= {folder.release_log}
    assert "no strays" not in list_failed_checks(run)


def test_with_the_vault_alone_an_erasure_is_whole(made: Path, run: Path) -> None:
    """The reason why a point was quarantined went with the quarantine; all else is as with it."""
    whole = Path(shutil.copytree(made, run.parent / "whole"))
    redactory.purge(run, ["quarantine"])
    for place in (run, whole):
        redactory.erase([place], doc_ids=["c"])
    assert not list_failed_checks(run)
    one, other = (read_json(place / "manifest.json") for place in (run, whole))
    assert all(one[key] == other[key] for key in ("counts", "reasons", "spans", "masks"))
    rows = read_rows(RunFolder(run).examples)
    assert rows == read_rows(RunFolder(whole).examples)
    # whose a quarantined point is
    before = {row["example_id"]: (row["document"], row["user"]) for row in read_rows(RunFolder(made).examples)}
    assert all(before[row["example_id"]] == (row["document"], row["user"]) for row in rows)


def test_without_originals_a_folded_group_is_lost_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # by which a rank is drawn that has either of two documents stand for the other once
    monkeypatch.setenv("REDACTORY_KEY", "a key for purging runs")
    kept = _curate(tmp_path, dedup={"mode": "folded"})
    redactory.purge(kept, ["vault"])
    rows = read_rows(RunFolder(kept).examples)
    stands_for = {row["dup_of"] for row in rows if row["dup_of"] is not None}
    documents = {row["document"] for row in rows if row["example_id"] in stands_for}
    names = [name for name in TEXTS if load_digest_key().make_pseudonym("document", name) in documents]
    (told,) = redactory.erase([kept], doc_ids=names)["runs"]
    assert (told["lost"], told["moved_up"]) == (len(stands_for), 0)
    assert not list_failed_checks(kept)


def test_what_cannot_be_asked_for(run: Path, tmp_path: Path) -> None:
    for what in ([], ["journal"]):
        with pytest.raises(ConfigurationError, match="choose what to purge"):
            redactory.purge(run, what)  # type: ignore[arg-type]
    with pytest.raises(RunStateError):
        redactory.purge(tmp_path / "nothing", ["vault"])
    assert not (tmp_path / "nothing").exists()


def test_each_run_has_its_own_records_of_its_log(made: Path, run: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    (job / "_job").mkdir(parents=True)
    for name in ("monday", "tuesday"):
        folder = Path(shutil.copytree(made, job / name))
        append_event(RunFolder(folder), Event.RELEASED, manifest=file_sha256(folder / "manifest.json"), counts={})
        redactory.purge(folder, ["vault"])
    told = redactory.release_log(job / "tuesday")
    assert (told["job"], [record["run"] for record in told["records"]]) == (str(job), ["tuesday"] * 2)
    # what the log of its job held is not in the run that was taken out of it
    moved = Path(shutil.move(job / "tuesday", tmp_path / "moved"))
    with pytest.raises(RunStateError, match="no log has this run; was it moved or copied"):
        redactory.release_log(moved)
    assert invoke_command("release", "list", run, "--log").stdout.strip() == "No records yet."
    for what in ("quarantine", "vault"):
        redactory.purge(run, [what], by="A. Keeper")
        assert f"reissued: purge, {what}, by A. Keeper" in invoke_command("release", "list", run, "--log").stdout
    RunFolder(run).release_log.unlink()
    with pytest.raises(CheckFailed, match="it was truncated"):
        redactory.release_log(run)
    with pytest.raises(RunStateError, match="is neither a job nor a run: give a run"):
        redactory.release_log(tmp_path)


START = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
DAY, FAR = datetime.timedelta(days=1), datetime.timedelta(days=3650)
VAULT_30: dict[OriginalKind, int] = {"vault": 30}


def _job(made: Path, root: Path, entries: Iterable[tuple[str, str, datetime.datetime]]) -> JobFolder:
    """A job whose log has these records: the run, the event and when."""
    job = JobFolder(root)
    job.state.mkdir(parents=True)
    with RecordLog(job.log) as log:
        for name, event, when in entries:
            log.append(event, {"run": name, "time": when.isoformat()})
    return job


def test_what_is_due_follows_from_the_log(made: Path, tmp_path: Path) -> None:
    days = {"old": ["released", 40], "young": ["released", 3], "held": ["held", 40], "late": ["approved", 5]}
    entries = [(name, str(event), START - int(back) * DAY) for name, (event, back) in days.items()]
    job = _job(made, tmp_path / "job", [*entries, ("removed since", "released", START)])
    for name in days:
        shutil.copytree(made, job.root / name)
    nothing: dict[OriginalKind, int] = {}
    assert find_expired_originals(job, nothing, START) == {}
    assert find_expired_originals(job, VAULT_30, START) == {"old": ("vault",)}
    keep: dict[OriginalKind, int] = {"vault": 30, "quarantine": 4, "state": 50}
    assert find_expired_originals(job, keep, START) == {"old": ("vault", "quarantine"), "late": ("quarantine",)}
    # a run on which a model is being trained waits
    with RecordLog(job.get_run_folder("old").get_model_folder("crt").ledger):
        assert find_expired_originals(job, VAULT_30, START) == {}
        with pytest.raises(RunStateError, match="old/models/crt is being trained"):
            redactory.purge(job.get_run_folder("old").root, ["vault"])
    for name, what in find_expired_originals(job, keep, START).items():
        purge_run(job.get_run_folder(name), what)
    assert find_expired_originals(job, keep, START) == {}
    old = job.get_run_folder("old")
    assert read_history(old)[-1].body["what"] == ["vault", "quarantine"]


def test_a_sample_drawn_after_a_purge_is_due_in_its_turn(made: Path, tmp_path: Path) -> None:
    job, state = _job(made, tmp_path / "job", [("old", "released", START - 40 * DAY)]), {"state": 30}
    run = job.get_run_folder("old")
    shutil.copytree(made, run.root)
    purge_run(run, ["state"])
    assert find_expired_originals(job, state, START, by_clock=True) == {}  # type: ignore[arg-type]
    redactory.label_random(run.root, n=20, seed=1)
    due = find_expired_originals(job, state, START, by_clock=True)  # type: ignore[arg-type]
    assert due == {"old": ("state",)}


def test_a_clock_ten_years_ahead_purges_nothing_and_is_told(made: Path, tmp_path: Path) -> None:
    job = _job(made, tmp_path / "job", [(str(n), "released", START + n * DAY) for n in range(5)])
    shutil.copytree(made, job.root / "0")
    now = START + 5 * DAY
    assert find_expired_originals(job, VAULT_30, now + FAR) == {}
    with pytest.raises(CheckFailed, match=r"0 is due to be purged.*Correct the clock.*redactory purge"):
        check_clock_matches_log(job, VAULT_30, now + FAR)
    with RecordLog(job.log) as log:
        # runs that were entered under that clock make it no truer
        for when in (now + FAR, now + FAR + DAY):
            log.append("released", {"run": "far", "time": when.isoformat()})
    assert find_expired_originals(job, VAULT_30, now + FAR + 2 * DAY) == {}
    # set right, it is believed again, and what is due in time is purged
    check_clock_matches_log(job, VAULT_30, now + 3 * DAY)
    with RecordLog(job.log) as log:
        for number in range(3, 40):
            log.append("failed", {"run": "x", "time": (now + number * DAY).isoformat()})
    assert find_expired_originals(job, VAULT_30, now + 40 * DAY) == {"0": ("vault",)}


@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    wrong=st.sets(st.integers(0, 11)),
    by=st.integers(100, 20_000) | st.integers(-20_000, -100),
)
def test_a_wrong_clock_makes_no_run_older_than_it_is(made: Path, steps: list[int], wrong: set[int], by: int) -> None:
    """Whichever days a clock was off by months or decades, forwards or back, today among them."""
    true = list(itertools.accumulate(steps))
    told = [START + datetime.timedelta(days=t + by * (n in wrong)) for n, t in enumerate(true)]
    with tempfile.TemporaryDirectory() as folder:
        job = _job(made, Path(folder) / "job", [(str(n), "released", when) for n, when in enumerate(told)])
        shutil.copytree(made, job.root / "0")
        age = true[-1] - true[0]
        keep: dict[OriginalKind, int] = {"vault": age}
        assert find_expired_originals(job, keep, told[-1]) == {}
