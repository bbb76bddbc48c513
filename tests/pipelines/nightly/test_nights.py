"""Scheduled runs: what becomes of new material, of a run that was killed, of one that is held."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.dedup.index import IndexFolder
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError, RunStateError, SealedError
from redactory.foundation.files import file_lock
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.release_log import ANCHOR_KEY, Event, append_event, read_log
from redactory.pipelines.operations import gate
from redactory.pipelines.operations import nightly as scheduling
from redactory.redaction import RunFolder, read_column, read_manifest
from tests.pipelines.nightly.made_job import Job
from tests.pipelines.support import DigitDetector, make_check, read_files, read_release_state, write_rows


@pytest.fixture(scope="module", autouse=True)
def _quick(unsynced: None, unreported: None) -> Iterator[None]:
    """Nor does the gate write a report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "write_report", lambda _run: None)
        yield


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def ending(error: BaseException, *, curated: bool) -> Callable[..., Any]:
    """A curation that ends with ``error`` before it begins, or once it is finished."""

    def curating(*arguments: Any, **settings: Any) -> Any:
        if curated:
            curate(*arguments, detector=DigitDetector(), **settings)
        raise error

    return curating


def texts(run: RunFolder) -> list[str]:
    return sorted(read_column(run.vault, "text"))


def test_every_run_reads_what_is_new_and_latest_leads_to_the_last(job: Job) -> None:
    job.write("a.jsonl", "hello", "call 12")
    first = job.run()
    assert (job.job.latest.is_symlink(), job.job.latest.resolve()) == (True, first.root.resolve())
    job.write("a.jsonl", "so it is")
    job.write("b.jsonl", "another")

    def growing(*arguments: Any, **settings: Any) -> Any:
        job.write("a.jsonl", "written meanwhile")
        return curate(*arguments, detector=DigitDetector(), **settings)

    second = job.run(curating=growing)
    assert texts(second) == ["another", "so it is"]
    # rows keep the numbers that they have in the file
    assert f"{job.input}/a.jsonl:3" in read_column(second.vault, "doc_id")
    assert texts(third := job.run()) == ["written meanwhile"]
    # as if it had crashed before that
    job.job.latest.unlink()
    done = job.night()
    assert [night["state"] for night in done["nights"]] == ["nothing new"]
    assert job.job.latest.resolve() == third.root.resolve()
    assert job.events() == ["begun", "released"] * 3
    assert len(list(job.job.root.glob("20*"))) == 3


def test_a_changed_file_fails_the_run_and_is_read_anew_once_where_asked(job: Job) -> None:
    file = job.write("a.jsonl", "hello", "good bye")
    job.night()
    file.write_text(file.read_text().replace("hello", "hallo"))
    with pytest.raises(InputError, match=r"a\.jsonl .* --reread FILE"):
        job.night()
    assert job.events()[-1] == "failed"
    with pytest.raises(KeyboardInterrupt):
        job.night(ending(KeyboardInterrupt(), curated=False), reread=[str(file)])
    job.night(reread=[str(file)])
    assert job.released() == Counter(["hello", "good bye", "hallo", "good bye"])
    # asked for anew, it is
    job.night(reread=[str(file)])
    assert job.released()["hallo"] == 2
    with pytest.raises(ConfigurationError, match=r"--reread: .* is not a file of the input"):
        job.night(reread=[str(write_rows(job.folder / "other.jsonl", []))])


def test_a_backfill_has_one_run_a_day_and_passes_over_what_is_done(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.config["input"] = str(job.input / "{date}")
    for day in (1, 2, 4):
        job.write(f"2026-11-0{day}/rows.jsonl", f"day {'abcd'[day - 1]}")
    assert Path(job.night(date="2026-11-02")["nights"][0]["run"]).name == "2026-11-02"
    done = job.night(first="2026-11-01", last="2026-11-04")["nights"]
    assert [(night["date"], night["state"]) for night in done] == [
        ("2026-11-01", "released"),
        ("2026-11-02", "nothing new"),
        ("2026-11-03", "nothing there"),
        ("2026-11-04", "released"),
    ]
    assert job.released() == Counter(["day a", "day b", "day d"])
    job.write("2026-11-02/late.jsonl", "late")
    assert job.run(date="2026-11-02").root.name == "2026-11-02-2"
    # a name alone would not tell the files of two days apart
    ids = [name for run in job.job.root.glob("2026*") for name in read_column(RunFolder(run).vault, "doc_id")]
    assert len(set(ids)) == len(ids) == 4
    # a day without a file is an error by itself
    with pytest.raises(ConfigurationError, match="nothing to read at"):
        job.night(date="2026-11-03")
    assert job.events()[-1] == "failed"


@pytest.mark.parametrize(
    ("dates", "message"),
    [
        ({"date": "3.11.2026"}, "expected a day like 2026-11-03"),
        ({"date": "2026-11-01", "last": "2026-11-02"}, "give --date, or both ends"),
        ({"last": "2026-11-02"}, "give --date, or both ends"),
        ({"first": "2026-11-02", "last": "2026-11-01"}, "the earlier day first"),
    ],
)
def test_dates_that_cannot_be_meant_are_refused(job: Job, dates: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=r"need \{date\} in input\.path"):
        job.night(**dates)
    job.config["input"] = str(job.input / "{date}")
    with pytest.raises(ConfigurationError, match=message):
        job.night(**dates)
    assert not job.job.root.exists()


def test_a_locked_job_or_a_run_as_output_is_refused(job: Job) -> None:
    job.write("a.jsonl", "one")
    run = job.run()
    with file_lock(job.job.lock, "the job"):
        for command in _DONE_IN_A_JOB.values():
            with pytest.raises(RunStateError, match="is being written by"):
                command(job)
    with pytest.raises(RunStateError, match="is a run"):
        job.night(output=run.root)


@pytest.mark.parametrize("curated", [False, True])
def test_a_run_that_was_killed_is_finished_by_the_next_one_first(job: Job, curated: bool) -> None:
    job.write("a.jsonl", "one", "two")
    with pytest.raises(KeyboardInterrupt):
        job.night(ending(KeyboardInterrupt(), curated=curated))
    assert job.events() == ["begun"]
    for begun in job.job.root.glob("20*"):
        # its gate was never asked: finished as it is, it may not leave
        with pytest.raises(RunStateError, match="was interrupted before it was released or held"):
            redactory.export(begun, job.folder / "export")
    job.write("a.jsonl", "three")
    finished, new = job.night()["nights"]
    assert (finished["resumed"], new["resumed"]) == (True, False)
    assert texts(RunFolder(Path(finished["run"]))) == ["one", "two"]
    assert job.released() == Counter(["one", "two", "three"])
    assert job.events() == ["begun", "released", "begun", "released"]


def test_a_run_that_failed_goes_on_or_is_given_up(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    file = job.write("a.jsonl", "one")
    with pytest.raises(CheckFailed, match="the disk is full"):
        job.night(ending(CheckFailed("the disk is full"), curated=True))
    assert read_log(job.job)[-1].body["error"] == "the disk is full"
    # one of other settings can never go on
    job.config["segment"] = {"mode": "document"}
    with pytest.raises(RunStateError, match="redactory release reject"):
        job.night()
    redactory.reject_release(next(job.job.root.glob("20*")), "ann", "other segments")
    with pytest.raises(KeyboardInterrupt):
        job.night(ending(KeyboardInterrupt(), curated=False))
    # nor can one whose input changed before it was finished
    file.write_text(file.read_text().replace("one", "One"))
    given_up, new = job.night()["nights"]
    assert given_up["state"] == "rejected"
    assert str(file) in given_up["reason"]
    assert job.released() == Counter(["One"]) == Counter(texts(RunFolder(Path(new["run"]))))


@pytest.mark.parametrize("stage", ["ingest", "redact", "shard"])
def test_a_person_is_erased_from_unfinished_runs(tmp_path: Path, stage: str) -> None:
    job = Job(tmp_path, dedup={"index": {"path": str(tmp_path / "index")}})

    def stop(name: str, *_: Any) -> None:
        if name.startswith(stage):
            raise CheckFailed("the disk is full")

    def cut_off(name: str) -> RunFolder:
        rows = [{"id": f"{name}-{user}", "user_id": user, "text": f"{name} {user} ZYX"} for user in "uv"]
        write_rows(job.input / f"{name}.jsonl", rows)
        with pytest.raises(CheckFailed):
            job.night(progress=stop)
        return job.job.get_run_folder(read_log(job.job)[-1].body["run"])

    job.write("first.jsonl", "one")
    released = job.run()
    rejected = cut_off("a")
    redactory.reject_release(rejected.root, "ann", "too late")
    left = cut_off("b")
    before = read_files(job.folder)
    dry = redactory.erase([job.job.root], user_ids=["u"], dry_run=True)
    assert read_files(job.folder) == before
    result = redactory.erase([job.job.root], user_ids=["u"])
    for said in (dry, result):
        assert (said["ok"], said["problems"]) == (True, [])
        assert [run["run"] for run in said["runs"] if "discarded" in run] == [str(r.root) for r in (rejected, left)]
    assert read_files(released.root) == {p: data for p, data in before.items() if p.is_relative_to(released.root)}
    assert not [path for run in (rejected, left) for path in run.root.rglob("*") if path.is_file()]
    assert not list((tmp_path / "index" / "pending").iterdir())
    assert not [run for run in redactory.erase([job.job.root], user_ids=["u"])["runs"] if "discarded" in run]
    # what was begun goes on from its beginning, or is given up where the input is without the person now
    [again, _] = job.night()["nights"]
    assert (again["run"], again["state"]) == (str(left.root), "released")
    assert job.released() == Counter(["one", "a u ZYX", "a v ZYX", "b u ZYX", "b v ZYX"])
    last = redactory.erase([job.job.root], user_ids=["u"])
    assert [run["examples"] for run in last["runs"]] == [0, 2]
    assert job.released() == Counter(["one", "a v ZYX", "b v ZYX"])


_DONE_IN_A_JOB: dict[str, Callable[[Job], Any]] = {
    "nightly": Job.night,
    "erasure": lambda job: redactory.erase([job.job.root], user_ids=["nobody"]),
    "purge": lambda job: redactory.purge(next(job.job.root.glob("20*")), ["vault"]),
    "reject": lambda job: redactory.reject_release(next(job.job.root.glob("20*")), "ann", "no"),
}


@pytest.mark.parametrize("what", _DONE_IN_A_JOB)
def test_what_a_killed_process_left_in_a_job_goes_with_the_next_command(job: Job, what: str) -> None:
    job.write("a.jsonl", "one")
    job.run()
    for path in (job.job.state / ".tmp-3-metrics.prom", job.job.root / ".tmp-4-2026-01-01" / "vault" / "part"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one")
    (job.job.root / ".tmp-5-latest").symlink_to("nowhere")
    _DONE_IN_A_JOB[what](job)
    assert not [*job.job.root.glob(".tmp-*"), *job.job.state.glob(".tmp-*")]


def test_only_work_that_was_never_a_run_is_discarded(job: Job) -> None:
    job.write("a.jsonl", "one")
    run = job.run()
    run.success.unlink()
    lone = RunFolder(job.job.root / "lone")
    shutil.copytree(run.root, lone.root)
    lone.manifest.unlink()
    before = read_files(job.folder)
    result = redactory.erase([job.job.root], user_ids=["u"])
    assert [problem["problem"] for problem in result["problems"]] == [
        f"{run.root} was finished, but _SUCCESS is missing: restore it from a backup",
        f"{lone.root} is unfinished: resume it (redactory curate --resume) and try again, or remove the folder",
    ]
    assert read_files(job.folder) == before


def test_an_unexpected_error_is_reported_without_its_words(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write("a.jsonl", "one")

    def broken(*_: Any) -> Any:
        raise ValueError("the row says: one")

    monkeypatch.setattr("redactory.pipelines.readers.Source.count_rows", broken)
    with pytest.raises(SealedError, match=r"unexpected ValueError at test_nights\.py") as caught:
        job.night()
    assert "the row says" not in str(caught.value) + job.job.log.read_text()
    # of a job no key is known that could encrypt it
    assert not list(job.job.state.glob("traceback-*"))


def test_what_fails_besides_a_run_takes_no_release_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, nightly={"hook": ["touch", str(tmp_path / "called")]})
    job.write("a.jsonl", "one")
    with monkeypatch.context() as patch:
        patch.setattr(scheduling, "publish", ending(RunStateError("the store is not there"), curated=False))
        patch.setattr(scheduling, "check_store", lambda *_: None)
        job.config["nightly"]["publish"] = str(tmp_path / "store")
        with pytest.raises(RunStateError, match="the store is not there"):
            job.night()
    assert job.events() == ["begun", "released", "done", "failed", "done"]
    [run] = (RunFolder(path) for path in job.job.root.glob("20*"))
    assert (read_release_state(run), job.job.latest.is_symlink()) == ("released", True)
    (tmp_path / "called").unlink()
    del job.config["nightly"]["publish"]
    # an erasure that cannot be finished
    with monkeypatch.context() as patch:
        patch.setattr(
            scheduling, "finish_reissue", ending(CheckFailed("part-00000.parquet does not match"), curated=False)
        )
        with pytest.raises(CheckFailed, match="does not match"):
            job.night()
    assert (job.events()[-2:], (tmp_path / "called").is_file()) == (["failed", "done"], True)
    assert read_release_state(run) == "released"


def test_a_held_run_is_not_latest_and_an_approved_one_is(tmp_path: Path) -> None:
    job = Job(tmp_path, dedup={"mode": "none"})
    for night in range(5):
        job.write(f"{night}.jsonl", *("call 12" if row % 2 else "hello" for row in range(100)))
        assert job.night()["held"] == []
    first = job.job.latest.resolve()
    job.write("poisoned.jsonl", *(f"call {row}" for row in range(100)))
    job.config["nightly"] = {}
    done = job.night()
    [night] = done["nights"]
    held = RunFolder(Path(night["run"]))
    assert (done["held"], night["state"]) == ([held.root.name], "held")
    assert "public" in {finding["metric"] for finding in night["findings"]}
    assert (job.job.latest.resolve(), read_release_state(held)) == (first, "held")
    with pytest.raises(RunStateError, match="redactory release approve"):
        redactory.train({**job.config, "train": {}, "output": str(held.root)})
    decided = redactory.approve_release(held.root, "Ann", "a new form was introduced")
    assert (decided["latest"], read_release_state(held)) == (held.root.name, "released")
    assert job.job.latest.resolve() == held.root.resolve()
    assert read_log(job.job)[-1].body["reason"] == "a new form was introduced"
    with pytest.raises(RunStateError, match="only a held run can be approved"):
        redactory.approve_release(held.root, "Ann", "again")


def test_a_rejected_run_gives_its_material_back_and_leaves_the_index(tmp_path: Path) -> None:
    index = IndexFolder(tmp_path / "index")
    job = Job(tmp_path, dedup={"index": {"path": str(index.root)}})
    job.write("a.jsonl", "one", "two")
    first = job.run()
    for words in (("", "why"), ("Ann", " "), ("Ann", "two\nlines"), ("Ann", "x" * 501)):
        with pytest.raises(ConfigurationError, match="--by and --reason"):
            redactory.reject_release(first.root, *words)
    decided = redactory.reject_release(job.job.latest, "Ann", "the wrong feed")
    assert decided["index"] == ["000001-" + first.root.name]
    assert (index.list_entries(), index.list_pending_entries(), decided["latest"]) == ([], [], None)
    with pytest.raises(RunStateError, match="was rejected before"):
        redactory.reject_release(first.root, "Ann", "again")
    job.write("a.jsonl", "three")
    again = job.run()
    assert sorted(read_column(again.public, "text")) == ["one", "three", "two"]
    assert job.released() == Counter(["one", "two", "three"])
    # later runs that went by a rejected one are named
    job.write("a.jsonl", "one", "four")
    later = job.run()
    decided = redactory.reject_release(again.root, "Ann", "taken back")
    assert (decided["left_out"], decided["latest"]) == ([later.root.name], later.root.name)


def test_an_empty_run_is_approved_only_where_that_is_said(tmp_path: Path) -> None:
    job = Job(tmp_path, dedup={"index": {"path": str(tmp_path / "index")}})
    job.write("a.jsonl", "zanzibar", "call 12")
    first = job.run()
    job.write("a.jsonl", "zanzibar", "call 12")
    empty = job.run()
    assert read_release_state(empty) == "held"
    with pytest.raises(RunStateError, match=r"would find nothing.*--empty"):
        redactory.approve_release(empty.root, "Ann", "a quiet Sunday")
    assert redactory.approve_release(empty.root, "Ann", "a quiet Sunday", empty=True)["empty"]
    redactory.reject_release(first.root, "Bo", "the wrong feed")
    size = (job.input / "a.jsonl").stat().st_size // 2
    unjudged = "not compared with earlier runs: {} before it, and limits need 5".format
    log = redactory.release_log(job.job.root)["records"]
    assert [record["words"] for record in log] == [
        f"begun: {size} new bytes in 1 file",
        f"released: 2 rows, 1 public, 1 private, 0 duplicate, 0 quarantined, {unjudged('0 released runs')}",
        f"begun: {size} new bytes in 1 file",
        "held: 2 rows, 0 public, 0 private, 2 duplicate, 0 quarantined, no readable example, "
        + unjudged("1 released run"),
        "approved: a quiet Sunday, it has no example, by Ann",
        "rejected: the wrong feed, by Bo",
        "done: of 5",
    ]
    assert redactory.release_log(empty.root)["records"] == log[2:5]
    listed = redactory.list_releases(job.job.root)["runs"]
    assert [(own["state"], own["by"]) for own in listed] == [("rejected", "Bo"), ("released", "Ann")]
    assert "zanzibar" not in job.job.log.read_text() + job.job.metrics.read_text()


def test_a_run_with_nothing_to_read_is_held_however_usual_bad_rows_are(job: Job) -> None:
    file = job.write("a.jsonl", "one")
    for night in range(2):
        with file.open("a", encoding="utf-8") as more:
            more.writelines("no row\n" for _ in range(30))
        [ended] = job.night()["nights"]
        assert ended["state"] == ("held" if night else "released")
    assert (ended["counts"]["rows"], ended["counts"]["examples"]) == (30, 0)
    assert [finding["metric"] for finding in ended["findings"]] == ["no readable example"]
    assert job.job.latest.resolve().name != Path(ended["run"]).name


def test_a_run_of_no_job_cannot_be_decided_about(tmp_path: Path) -> None:
    with pytest.raises(RunStateError, match="does not belong to a job"):
        redactory.approve_release(tmp_path / "run", "Ann", "why")


def _log_check(run: RunFolder) -> dict[str, Any]:
    found = make_check(run.root, "release log")
    return found._asdict()


def test_a_log_without_its_end_or_written_anew_is_noticed(job: Job) -> None:
    job.write("a.jsonl", "one", "two 2")
    first = job.run()
    job.write("a.jsonl", "three")
    second = job.run()
    assert _log_check(second)["ok"]
    assert [read_manifest(run)[ANCHOR_KEY]["records"] for run in (first, second)] == [1, 3]
    whole, begun = job.job.log.read_bytes().splitlines(keepends=True), read_log(job.job)[0].body
    # what was entered after the newest run was sealed is not held by any
    job.job.log.write_bytes(b"".join(whole[:3]))
    assert _log_check(second)["ok"]
    redactory.list_releases(job.job.root)
    job.job.log.write_bytes(b"".join(whole[:2]))
    assert _log_check(second)["detail"].startswith("the log has 2 of its 3 records")
    assert _log_check(first)["ok"]
    for ask in (redactory.list_releases, redactory.release_log):
        with pytest.raises(CheckFailed, match=second.root.name):
            ask(job.job.root)
    job.job.log.unlink()
    assert not _log_check(first)["ok"]
    append_event(first, Event.STARTED, date="2026-11-02", plan=begun["plan"])
    append_event(first, Event.RELEASED, manifest="0" * 64, counts={})
    assert _log_check(first)["detail"].endswith("it was rewritten")
    job.job.state.rename(job.folder / "elsewhere")
    assert not _log_check(first)["made"]


def test_a_job_is_listed_with_the_counts_of_the_present_release(job: Job) -> None:
    job.write("a.jsonl", "zanzibar 12", "zanzibar", "another")
    run = job.run()
    [before] = redactory.list_releases(job.job.root)["runs"]
    assert redactory.erase([run.root], doc_ids=[read_column(run.vault, "doc_id")[1]])["ok"]
    [after] = redactory.list_releases(job.job.root)["runs"]
    assert (before["release"], after["release"]) == (1, 2)
    assert before["counts"]["public"] == after["counts"]["public"] + 1 == 2
    assert after["counts"].keys() == before["counts"].keys()
    shutil.rmtree(run.root)
    [gone] = redactory.list_releases(job.job.root)["runs"]
    assert (gone["release"], gone["counts"]) == (None, before["counts"])


def test_what_was_mirrored_is_known_by_a_url_without_its_password(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[str] = []
    monkeypatch.setattr(scheduling, "publish", lambda _run, place: places.append(place))
    job.write("a.jsonl", "one")
    run = job.run()
    url = "sftp://me:a-password@host/runs"
    assert scheduling.publish_released_runs(job.job, url) == [run.root.name]
    assert scheduling.publish_released_runs(job.job, url) == []
    assert places == [f"{url}/{run.root.name}"]
    assert "a-password" not in job.job.log.read_text()
