"""Whole nights: what becomes of new material, of a night that was killed, of a run that is held."""

from __future__ import annotations

import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.dedup.index import IndexFolder
from redactory.foundation.errors import (
    CheckFailed,
    ConfigurationError,
    InputError,
    RunStateError,
    SealedError,
)
from redactory.foundation.files import only_one
from redactory.pipelines import gate
from redactory.pipelines import nightly as scheduling
from redactory.pipelines.checks import Seen, checked
from redactory.pipelines.curate import curate
from redactory.pipelines.release_log import ANCHOR, Event, enter, read_log, standings
from redactory.pipelines.verify import OF_A_RUN
from redactory.redaction import RunFolder, read_column, read_manifest
from redactory.redaction.folder import JobFolder
from tests.pipelines.support import BARE, BLIND_ACCEPTED, DigitDetector, release_state, write_rows


@pytest.fixture(scope="module", autouse=True)
def _quick(unsynced: None, unreported: None) -> Iterator[None]:
    """Nor does the gate write a report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "write_report", lambda _run: None)
        yield


class Job:
    """A job over ``in/``, and what its nights gave."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder, self.input = folder, folder / "in"
        self.input.mkdir()
        self.job = JobFolder(folder / "job")
        self.config: dict[str, Any] = {
            "input": str(self.input),
            "output": str(self.job.root),
            "segment": {"mode": "line"},
            "detect": BARE,
            "release": BLIND_ACCEPTED,
            **settings,
        }

    def write(self, name: str, *texts: str) -> Path:
        """Add rows to a file."""
        path = self.input / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        return path

    def night(self, curating: Callable[..., Any] | None = None, **more: Any) -> dict[str, Any]:
        """One call of ``redactory.nightly``."""
        own = curating or functools.partial(curate, detector=DigitDetector())
        return redactory.nightly(self.config, curating=own, **more)

    def run(self, **more: Any) -> RunFolder:
        """The run of one night."""
        [night] = self.night(**more)["nights"]
        return RunFolder(Path(night["run"]))

    def released(self) -> Counter[str]:
        """The text of every row of every released run."""
        now = standings(read_log(self.job))
        runs = [self.job.run(name) for name, own in now.items() if own.state == "released"]
        return Counter(text for run in runs for text in read_column(run.vault, "text"))

    def events(self) -> list[str]:
        """The types of the log's records, in order."""
        return [record.type for record in read_log(self.job)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def killed(at: str) -> Callable[..., Any]:
    """A curation that dies before it begins, or once it is finished."""

    def dying(*arguments: Any, **settings: Any) -> Any:
        if at == "end":
            curate(*arguments, detector=DigitDetector(), **settings)
        raise KeyboardInterrupt

    return dying


# ------------------------------------------------------------------------------------- what is new


def test_two_nights_read_every_row_once_and_latest_leads_to_the_second(job: Job) -> None:
    job.write("a.jsonl", "hello", "call 12")
    first = job.run()
    assert (job.job.latest.is_symlink(), job.job.latest.resolve()) == (True, first.root.resolve())
    job.write("a.jsonl", "so it is")
    job.write("b.jsonl", "another")
    second = job.run()
    assert sorted(read_column(second.vault, "text")) == ["another", "so it is"]
    assert job.released() == Counter(["hello", "call 12", "so it is", "another"])
    assert job.job.latest.resolve() == second.root.resolve()
    # rows keep the numbers that they have in the file
    assert f"{job.input}/a.jsonl:3" in read_column(second.vault, "doc_id")
    assert job.events() == ["begun", "released"] * 2


def test_a_night_without_anything_new_leaves_no_run(job: Job) -> None:
    job.write("a.jsonl", "hello")
    job.night()
    done = job.night()
    assert [night["state"] for night in done["nights"]] == ["nothing new"]
    assert job.events() == ["begun", "released"]
    assert len(list(job.job.root.glob("20*"))) == 1


def test_a_file_that_grows_while_it_is_read_is_read_as_planned(job: Job) -> None:
    job.write("a.jsonl", "one", "two")

    def growing(*arguments: Any, **settings: Any) -> Any:
        job.write("a.jsonl", "three")
        return curate(*arguments, detector=DigitDetector(), **settings)

    assert sorted(read_column(job.run(curating=growing).vault, "text")) == ["one", "two"]
    assert read_column(job.run().vault, "text") == ["three"]


def test_a_changed_file_fails_the_night_and_is_read_anew_where_asked(job: Job) -> None:
    file = job.write("a.jsonl", "hello", "good bye")
    job.night()
    file.write_text(file.read_text().replace("hello", "hallo"))
    with pytest.raises(InputError, match=r"a\.jsonl .* --again FILE"):
        job.night()
    assert job.events()[-1] == "failed"
    run = job.run(again=[str(file)])
    assert sorted(read_column(run.vault, "text")) == ["good bye", "hallo"]
    with pytest.raises(ConfigurationError, match=r"--again: .* is not a file of the input"):
        job.night(again=[str(write_rows(job.folder / "other.jsonl", []))])


def test_again_that_was_killed_and_is_asked_for_again_reads_the_file_once(job: Job) -> None:
    file = job.write("a.jsonl", "hello", "good bye")
    job.night()
    with pytest.raises(KeyboardInterrupt):
        job.night(killed("begin"), again=[str(file)])
    job.night(again=[str(file)])
    assert job.released() == Counter(["hello", "good bye"] * 2)
    # asked for anew, it is
    job.night(again=[str(file)])
    assert job.released() == Counter(["hello", "good bye"] * 3)


# ------------------------------------------------------------------------- nights that did not end


@pytest.mark.parametrize("at", ["begin", "end"])
def test_a_night_that_was_killed_is_finished_by_the_next_one_first(job: Job, at: str) -> None:
    job.write("a.jsonl", "one", "two")
    with pytest.raises(KeyboardInterrupt):
        job.night(killed(at))
    assert job.events() == ["begun"]
    [begun] = job.job.root.glob("20*") if at == "end" else [None]
    if begun is not None:
        # its gate was never asked: finished as it is, it may not leave
        with pytest.raises(RunStateError, match="was cut off before it was released or held"):
            redactory.export(begun, job.folder / "export")
    job.write("a.jsonl", "three")
    finished, new = job.night()["nights"]
    assert (finished["resumed"], new["resumed"]) == (True, False)
    assert read_column(RunFolder(Path(finished["run"])).vault, "text") == ["one", "two"]
    assert job.released() == Counter(["one", "two", "three"])
    assert job.events() == ["begun", "released", "begun", "released"]


def test_a_night_that_failed_is_in_the_log_and_goes_on(job: Job) -> None:
    job.write("a.jsonl", "one")

    def failing(*_: Any, **__: Any) -> Any:
        raise CheckFailed("the disk is full")

    with pytest.raises(CheckFailed, match="the disk is full"):
        job.night(failing)
    assert read_log(job.job)[-1].body["error"] == "the disk is full"
    assert [night["state"] for night in job.night()["nights"]] == ["released", "nothing new"]


def test_an_unexpected_error_is_told_without_its_words(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.write("a.jsonl", "one")

    def broken(*_: Any) -> Any:
        raise ValueError("the row says: one")

    monkeypatch.setattr("redactory.pipelines.readers.Source.rows_in", broken)
    with pytest.raises(SealedError) as caught:
        job.night()
    assert "the row says" not in str(caught.value)
    assert "the row says" not in job.job.log.read_text()
    assert "unexpected ValueError at test_nights.py" in str(caught.value)
    # of a job no key is known that could encrypt it
    assert not list(job.job.own.glob("traceback-*"))


def test_a_night_whose_input_changed_before_it_was_finished_is_given_up(job: Job) -> None:
    file = job.write("a.jsonl", "one", "two")
    with pytest.raises(KeyboardInterrupt):
        job.night(killed("begin"))
    file.write_text(file.read_text().replace("one", "One"))
    given_up, new = job.night()["nights"]
    assert given_up["state"] == "rejected"
    assert str(file) in given_up["reason"]
    assert read_column(RunFolder(Path(new["run"])).vault, "text") == ["One", "two"]


def test_a_night_that_can_not_go_on_says_how_to_give_it_up(job: Job) -> None:
    job.write("a.jsonl", "one")

    def begun(*arguments: Any, **settings: Any) -> Any:
        curate(*arguments, detector=DigitDetector(), **settings)
        raise CheckFailed("power cut")

    with pytest.raises(CheckFailed):
        job.night(begun)
    job.config["segment"] = {"mode": "document"}
    with pytest.raises(RunStateError, match="redactory release reject"):
        job.night()
    run = next(job.job.root.glob("20*"))
    redactory.reject_release(run, "ann", "other segments")
    [night] = job.night()["nights"]
    assert night["state"] == "released"
    assert job.released() == Counter(["one"])


def test_two_nights_of_one_job_never_work_at_once(job: Job) -> None:
    job.write("a.jsonl", "one")
    job.night()
    with only_one(job.job.lock, "the job"), pytest.raises(RunStateError, match="is being written by"):
        job.night()


# ---------------------------------------------------------------------------------------- backfill


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


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"date": "2026-11-01"}, "need {date} in input.path"),
        ({"first": "2026-11-01"}, "need {date} in input.path"),
    ],
)
def test_days_need_a_date_in_the_path(job: Job, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        job.night(**asked)
    assert not job.job.root.exists()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"date": "3.11.2026"}, "write a day like 2026-11-03"),
        ({"date": "2026-11-01", "last": "2026-11-02"}, "not both"),
        ({"last": "2026-11-02"}, "needs both its ends"),
        ({"first": "2026-11-02", "last": "2026-11-01"}, "the earlier first"),
    ],
)
def test_days_that_cannot_be_meant_are_refused(job: Job, asked: dict[str, Any], told: str) -> None:
    job.config["input"] = str(job.input / "{date}")
    with pytest.raises(ConfigurationError, match=told):
        job.night(**asked)


def test_a_day_without_a_file_is_an_error_by_itself(job: Job) -> None:
    job.config["input"] = str(job.input / "{date}")
    with pytest.raises(ConfigurationError, match="nothing is there to read"):
        job.night(date="2026-11-02")
    assert job.events() == ["failed"]


# ------------------------------------------------------------------------- held, approved, rejected


def test_a_held_run_is_not_latest_and_an_approved_one_is(tmp_path: Path) -> None:
    job = Job(tmp_path, nightly={"drift": {"least": 3, "sigmas": 2}}, dedup={"mode": "none"})
    for night in range(3):
        job.write(f"{night}.jsonl", *("call 12" if row % 2 else "hello" for row in range(300)))
        assert job.night()["held"] == []
    first = job.job.latest.resolve()
    job.write("poisoned.jsonl", *(f"call {row}" for row in range(300)))
    done = job.night()
    [night] = done["nights"]
    held = RunFolder(Path(night["run"]))
    assert (done["held"], night["state"]) == ([held.root.name], "held")
    assert "public" in {finding["metric"] for finding in night["findings"]}
    assert (release_state(RunFolder(first)), release_state(held)) == ("released", "held")
    assert job.job.latest.resolve() == first
    with pytest.raises(RunStateError, match="redactory release approve"):
        redactory.train({**job.config, "output": str(held.root)})
    told = redactory.approve_release(held.root, "Ann", "a new form was introduced")
    assert told["latest"] == held.root.name
    assert release_state(held) == "released"
    assert job.job.latest.resolve() == held.root.resolve()
    assert read_log(job.job)[-1].body["reason"] == "a new form was introduced"
    with pytest.raises(RunStateError, match="only a run that is held"):
        redactory.approve_release(held.root, "Ann", "again")


def test_a_rejected_run_gives_its_material_back_and_leaves_the_index(tmp_path: Path) -> None:
    job = Job(tmp_path, dedup={"index": {"path": str(tmp_path / "index")}})
    index = IndexFolder(tmp_path / "index")
    job.write("a.jsonl", "one", "two")
    first = job.run()
    told = redactory.reject_release(first.root, "Ann", "the wrong feed")
    assert told["index"] == ["000001-" + first.root.name]
    assert (index.entries(), index.pending(), told["latest"]) == ([], [], None)
    job.write("a.jsonl", "three")
    again = job.run()
    assert sorted(read_column(again.public, "text")) == ["one", "three", "two"]
    assert job.released() == Counter(["one", "two", "three"])
    with pytest.raises(RunStateError, match="was rejected before"):
        redactory.reject_release(first.root, "Ann", "again")


def test_later_runs_that_went_by_a_rejected_one_are_named(tmp_path: Path) -> None:
    job = Job(tmp_path, dedup={"index": {"path": str(tmp_path / "index")}})
    job.write("a.jsonl", "one")
    first = job.run()
    job.write("a.jsonl", "one", "two")
    second = job.run()
    told = redactory.reject_release(first.root, "Ann", "taken back")
    assert (told["left_out"], told["latest"]) == ([second.root.name], second.root.name)


def test_an_empty_run_is_approved_only_where_that_is_said(tmp_path: Path) -> None:
    job = Job(tmp_path, dedup={"index": {"path": str(tmp_path / "index")}})
    job.write("a.jsonl", "one", "two")
    job.run()
    job.write("a.jsonl", "one", "two")
    empty = job.run()
    told = [record["words"] for record in redactory.release_log(job.job.root)["records"]]
    assert told[1].startswith("released: 2 rows")
    assert "no point" not in told[1]
    assert told[-1].endswith("2 duplicate, 0 quarantined, no point to read")
    assert release_state(empty) == "held"
    with pytest.raises(RunStateError, match=r"would find nothing.*--empty"):
        redactory.approve_release(empty.root, "Ann", "a quiet Sunday")
    assert redactory.approve_release(empty.root, "Ann", "a quiet Sunday", empty=True)["empty"]
    last = redactory.release_log(job.job.root)["records"][-1]
    assert last["words"] == "approved: a quiet Sunday, no point in it, by Ann"


def test_a_night_with_nothing_to_read_is_held_however_usual_bad_rows_are(tmp_path: Path) -> None:
    job = Job(tmp_path)
    file = job.write("a.jsonl", "one")
    for night in range(7):
        job.write("a.jsonl", f"night {night}")
        with file.open("a", encoding="utf-8") as more:
            more.writelines("no row\n" for _ in range(30))
        assert release_state(run := job.run()) == "released"
    with file.open("a", encoding="utf-8") as more:
        more.writelines("no row\n" for _ in range(30))
    [night] = job.night()["nights"]
    assert (night["counts"]["rows"], night["counts"]["points"], night["state"]) == (30, 0, "held")
    assert [finding["metric"] for finding in night["findings"]] == ["no point to read"]
    assert job.job.latest.resolve() == run.root.resolve()


def test_a_log_without_its_end_is_noticed(job: Job) -> None:
    job.write("a.jsonl", "one", "two 2")
    first = job.run()
    job.write("a.jsonl", "three")
    second = job.run()
    assert _log_check(second)["ok"]
    assert [read_manifest(run)[ANCHOR]["records"] for run in (first, second)] == [1, 3]
    whole = job.job.log.read_bytes().splitlines(keepends=True)
    # what was entered after the newest run was sealed is not held by any
    job.job.log.write_bytes(b"".join(whole[:3]))
    assert _log_check(second)["ok"]
    redactory.list_releases(job.job.root)
    job.job.log.write_bytes(b"".join(whole[:2]))
    assert _log_check(second)["detail"].startswith("the log holds 2 of the 3 records that it had")
    assert _log_check(first)["ok"]
    for ask in (redactory.list_releases, redactory.release_log):
        with pytest.raises(CheckFailed, match=second.root.name):
            ask(job.job.root)
    job.job.log.unlink()
    assert not _log_check(first)["ok"]
    job.job.own.rename(job.folder / "elsewhere")
    assert not _log_check(first)["made"]


def test_a_log_that_was_written_anew_is_noticed(job: Job) -> None:
    job.write("a.jsonl", "one")
    run = job.run()
    begun = read_log(job.job)[0].body
    job.job.log.unlink()
    enter(run, Event.BEGUN, date="2026-11-02", plan=begun["plan"])
    enter(run, Event.RELEASED, manifest="0" * 64, counts={})
    found = _log_check(run)
    assert (found["ok"], found["detail"].endswith("it was written anew")) == (False, True)


def _log_check(run: RunFolder) -> dict[str, Any]:
    [found] = checked(Seen(run.root), OF_A_RUN, ["release log"])
    return found._asdict()


@pytest.mark.parametrize("words", [("", "why"), ("Ann", " "), ("Ann", "two\nlines"), ("Ann", "x" * 501)])
def test_a_decision_needs_a_name_and_a_reason(job: Job, words: tuple[str, str]) -> None:
    job.write("a.jsonl", "one")
    run = job.run()
    with pytest.raises(ConfigurationError, match="--by and --reason"):
        redactory.reject_release(run.root, *words)
    assert job.events() == ["begun", "released"]


def test_a_run_of_no_job_cannot_be_decided_about(job: Job, tmp_path: Path) -> None:
    job.write("a.jsonl", "one")
    curate({**job.config, "output": str(tmp_path / "alone" / "run")}, detector=DigitDetector())
    with pytest.raises(RunStateError, match="belongs to no job"):
        redactory.approve_release(tmp_path / "alone" / "run", "Ann", "why")
    assert release_state(RunFolder(tmp_path / "alone" / "run")) is None


# ------------------------------------------------------------------------------------ what is told


def test_the_log_is_told_in_words_and_names_no_text(job: Job) -> None:
    job.write("a.jsonl", "zanzibar 12", "zanzibar")
    run = job.run()
    redactory.reject_release(run.root, "Ann", "the wrong feed")
    words = [record["words"] for record in redactory.release_log(job.job.root)["records"]]
    assert words[0] == f"begun: {(job.input / 'a.jsonl').stat().st_size} new bytes in 1 file"
    assert words[1].startswith("released: 2 rows, 1 public, 1 private")
    assert words[2] == "rejected: the wrong feed, by Ann"
    [listed] = redactory.list_releases(job.job.root)["runs"]
    assert (listed["run"], listed["state"], listed["by"]) == (run.root.name, "rejected", "Ann")
    assert "zanzibar" not in job.job.log.read_text()
    assert "zanzibar" not in job.job.metrics.read_text()


def test_a_job_is_listed_with_the_counts_of_the_present_release(job: Job) -> None:
    job.write("a.jsonl", "zanzibar 12", "zanzibar", "another")
    run = job.run()
    [before] = redactory.list_releases(job.job.root)["runs"]
    document = read_column(run.vault, "doc_id")[1]
    assert redactory.takedown([run.root], doc_ids=[document])["ok"]
    [after] = redactory.list_releases(job.job.root)["runs"]
    assert (before["release"], after["release"]) == (1, 2)
    assert before["counts"]["public"] == after["counts"]["public"] + 1 == 2
    assert after["counts"].keys() == before["counts"].keys()
    shutil.rmtree(run.root)
    [gone] = redactory.list_releases(job.job.root)["runs"]
    assert (gone["release"], gone["counts"]) == (None, before["counts"])


def test_what_fails_after_a_release_takes_it_not_back(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any) -> Any:
        raise RunStateError("the store is not there")

    job.write("a.jsonl", "one")
    monkeypatch.setattr(scheduling, "publish_released", unreachable)
    with pytest.raises(RunStateError, match="the store is not there"):
        job.night()
    assert job.events() == ["begun", "released", "failed"]
    [own] = standings(read_log(job.job)).values()
    assert (own.state, job.job.latest.is_symlink()) == ("released", True)


def test_what_was_mirrored_is_known_by_a_url_without_its_password(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str] = []
    monkeypatch.setattr(scheduling, "publish", lambda _run, place: places.append(place))
    job.write("a.jsonl", "one")
    run = job.run()
    url = "sftp://me:a-password@host/runs"
    assert scheduling.publish_released(job.job, url) == [run.root.name]
    assert scheduling.publish_released(job.job, url) == []
    assert places == [f"{url}/{run.root.name}"]
    assert "a-password" not in job.job.log.read_text()


def test_a_crash_before_latest_was_moved_is_mended_by_the_next_night(job: Job) -> None:
    job.write("a.jsonl", "one")
    run = job.run()
    job.job.latest.unlink()
    job.night()
    assert job.job.latest.resolve() == run.root.resolve()


def test_a_takedown_that_cannot_be_finished_calls_the_hook_of_a_failure(tmp_path: Path) -> None:
    job = Job(tmp_path, nightly={"hooks": {"on_failure": ["touch", str(tmp_path / "called")]}})
    job.write("a.jsonl", "one")
    run = job.run()
    run.reissue.root.mkdir()
    run.reissue.plan.write_text(
        json.dumps({"format": "of tomorrow", "body": {"changes": [{"why": "purge"}]}})
    )
    with pytest.raises(RunStateError, match="another version began"):
        job.night()
    assert (job.events()[-2:], (tmp_path / "called").is_file()) == (["failed", "done"], True)
    assert release_state(run) == "released"


def test_a_night_needs_a_key_of_one_s_own(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDACTORY_KEY")
    job.write("a.jsonl", "one")
    with pytest.raises(ConfigurationError, match="REDACTORY_KEY"):
        job.night()


def test_a_run_folder_is_no_job(job: Job) -> None:
    job.write("a.jsonl", "one")
    run = job.run()
    with pytest.raises(RunStateError, match="is a run"):
        job.night(output=run.root)
    assert Event.BEGUN.value in job.events()
