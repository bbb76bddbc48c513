"""Requests by persons: rows that may name them in runs of every state, receipts, and what an access report shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.detectors import Detection, Span
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.release_log import read_history, read_log
from redactory.pipelines.operations import access as access_module
from redactory.redaction import RunFolder
from tests.pipelines.nightly.made_job import Job
from tests.pipelines.support import ALLOW_UNCOVERED, invoke_command, read_files, run_checks, write_rows

pytestmark = pytest.mark.usefixtures("unsynced", "unreported", "few_hash_ranges")
SENSITIVE = re.compile(
    r"(?:Dr\. )?(?:[A-Z][a-z]+|[A-Z]\.) [A-Z][a-z]+(?<!Thank You)|\d{3}-\d{4}|\S+@\S+\w|(?<=Mr )[A-Z]\w+"
)
MONDAY = {
    "c1": ("u-mary", "I am Mary Smith, mary.smith@example.org.\nBob Archer calls you at 555-1234."),
    "c2": ("u-john", "This is John Smith, Mary Smith ordered.\nthe address of Mr Smith is known"),
    "c3": ("u-x", "the parcel of M. Smith is late"),
    "c4": ("u-y", "hello there"),
    "c6": (None, "broken, says Mary Smith"),
}
OTHERS = ("John Smith", "Bob Archer", "555-1234", "Mr Smith")
"""What Mary Smith may not read."""


class NameDetector:
    """The strict policy masks pairs of capitals, numbers and addresses; a text with "broken" cannot be processed."""

    def detect(self, texts: Any) -> Iterator[Detection]:
        for text in texts:
            spans = tuple(Span(*m.span(), "PERSON", 0.9, "names") for m in SENSITIVE.finditer(text))
            yield Detection(failure="engine_error") if "broken" in text else Detection(spans, ())


def by_names(*arguments: Any, **settings: Any) -> Any:
    return curate(*arguments, detector=NameDetector(), **settings)


def put_rows(job: Job, name: str, rows: dict[str, tuple[str | None, str]]) -> None:
    lines = [{"id": key, "text": text} | ({"user_id": user} if user else {}) for key, (user, text) in rows.items()]
    write_rows(job.input / name, lines)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A released run with rejected and quarantined rows, a rejected run, and one that failed."""
    job = Job(tmp_path)
    put_rows(job, "monday.jsonl", MONDAY)
    with (job.input / "monday.jsonl").open("a") as file:
        file.write('{"id": "c5", "user_id": "u-mary", "txt": "Mary Smith wrote"}\n{"id": "c7", broken Mary Smith\n')
    job.night(by_names)
    put_rows(job, "tuesday.jsonl", {"t1": ("u-mary", "it is Mary Smith again"), "t2": ("u-w", "nothing else")})
    [night] = job.night(by_names)["nights"]
    redactory.reject_release(night["run"], "ann", "wrong feed")
    put_rows(job, "wednesday.jsonl", {"w1": ("u-mary", "smith, mary here")})

    def stop(name: str, *_: Any) -> None:
        if name.startswith("redact"):
            raise CheckFailed("the disk is full")

    with pytest.raises(CheckFailed):
        job.night(by_names, progress=stop)
    return job


def test_rows_of_runs_in_every_state_are_listed_and_nothing_is_written(job: Job) -> None:
    before, contexts = read_files(job.folder), list[tuple[str, str]]()
    result = redactory.erase(
        [job.job.root], person="Mary Smith", show_context=lambda row, text: contexts.append((row["doc_id"], text))
    )
    assert read_files(job.folder) == before
    listed = [(c["state"], c["doc_id"], c["user_id"], c["reason"], c["matches"]) for c in result["candidates"]]
    full = {"full name": 1}
    assert sorted(listed[:-1], key=str) == sorted(
        [
            ("released", "c1", "u-mary", None, {**full, "e-mail address": 1}),
            ("released", "c2", "u-john", None, {**full, "surname": 2}),
            ("released", "c5", "u-mary", "missing_text", full),
            ("released", "c6", None, "engine_error", full),
            ("released", None, None, "broken_json", full),
            ("rejected", "t1", "u-mary", None, full),
            ("failed", "t1", "u-mary", None, full),
            ("failed", "w1", "u-mary", None, full),
        ],
        key=str,
    )
    # the least clear one comes last
    assert listed[-1] == ("released", "c3", "u-x", None, {"surname and initial": 1})
    assert dict(contexts)["c3"] == "the parcel of M. Smith is late"
    # text is only handed to the caller's function
    assert "parcel" not in json.dumps(result)
    assert [c["doc_id"] for c in redactory.erase([job.job.root], person="U-Mary")["candidates"]][:1] == ["c1"]
    with pytest.raises(ConfigurationError, match="--person only lists rows"):
        redactory.erase([job.job.root], person="Mary Smith", doc_ids=["c1"])


def test_chosen_rows_are_erased_with_a_receipt_that_names_nobody(job: Job, tmp_path: Path) -> None:
    file = tmp_path / "candidates.txt"
    shown = invoke_command("erase", job.job.root, "--person", "Mary Smith", "--candidates", file)
    assert shown.exit_code == 0, shown.output
    assert "full name, surname (2)" in shown.stdout
    assert "parcel" not in shown.stdout
    assert file.stat().st_mode & 0o777 == 0o600
    lines = file.read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["c1", "c2", "c5", "c6", "t1", "w1", "c3"]
    refused = invoke_command("erase", job.job.root, "--person", "Mary Smith", "--candidates", file)
    assert "exists; give a new file" in str(refused.exception)
    file.write_text("\n".join(line for line in lines if line[:2] not in ("c2", "c3")))
    done = invoke_command("erase", job.job.root, "--doc-ids-from", file, "--by", "Ann Archer")
    assert done.exit_code == 0, done.output
    left = redactory.erase([job.job.root], person="Mary Smith")["candidates"]
    assert [candidate["doc_id"] for candidate in left] == ["c2", None, "c3"]
    [receipt] = job.job.receipts.iterdir()
    assert f"Receipt: {receipt}" in done.stdout
    assert receipt.stat().st_mode & 0o777 == 0o600
    body = json.loads(receipt.read_text())
    assert (body["by"], body["not_done"]) == ("Ann Archer", [])
    # one row is not JSON: nobody knows whose it is
    assert [(r["examples"], r["rejected"], r["unsearched"], r.get("discarded")) for r in body["runs"]] == [
        (3, 1, 1, None),
        (1, 0, 0, None),
        (0, 0, 0, True),
    ]
    assert not re.search(r"Mary|Smith|u-mary|\bc1\b|\bt1\b", receipt.read_text())
    reissued = [record.body["by"] for record in read_log(job.job) if record.type == "reissued"]
    assert reissued == ["Ann Archer"] * 2
    assert "by Ann Archer" in invoke_command("release", "list", job.job.root, "--log").stdout
    for run in (RunFolder(path) for path in job.job.root.glob("20*") if (path / "_SUCCESS").exists()):
        checks = run_checks(run.root)
        assert checks["release log"]["ok"]
        assert checks["no stray files"]["ok"]


def test_the_digest_of_a_receipt_needs_the_key(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [redactory.erase([job.job.root], doc_ids=ids) for ids in (["c1"], ["c4"])]
    digests = [json.loads(Path(result["receipts"][0]).read_text())["request"] for result in results]
    assert len(set(digests)) == 2
    assert redactory.erase([job.job.root], doc_ids=["c1"], dry_run=True)["receipts"] == []
    # nothing was left to erase: the receipt names the release without it
    [receipt] = redactory.erase([job.job.root], doc_ids=["c1"])["receipts"]
    [run] = json.loads(Path(receipt).read_text())["runs"]
    assert (run["examples"], run["already"]) == (0, 2)


def test_a_report_has_the_persons_text_and_masks_that_of_others(job: Job, tmp_path: Path) -> None:
    out = tmp_path / "report"
    result = redactory.access([job.job.root], out=out, by="Ann Archer", person="Mary Smith")
    assert (out.stat().st_mode & 0o777, {p.stat().st_mode & 0o777 for p in out.iterdir()}) == (0o700, {0o600})
    facts = [(run["state"], run["documents"], run["withheld"], run["splits"]) for run in result["runs"]]
    assert facts == [("released", 5, 3, {"private": 4}), ("rejected", 1, 0, {"private": 1}), ("failed", 2, 2, {})]
    assert result["unclear"] == {"surname and initial": 1}
    body = json.loads((out / "report.json").read_text())
    texts = {row["doc_id"]: row["text"] for run in body["runs"][:2] for row in run["rows"] if row["text"]}
    assert texts == {
        "c1": "I am Mary Smith, mary.smith@example.org.\n<MASK> calls you at <MASK>.",
        "c2": "This is <MASK>, Mary Smith ordered.\nthe address of <MASK> is known",
        "t1": "it is Mary Smith again",
    }
    page = (out / "report.html").read_text()
    assert "I am Mary Smith, mary.smith@example.org." in page
    for other in (*OTHERS, "u-john", "c2", "parcel", "wrote", "here"):
        assert other not in page.split("<main>")[1].replace("it was not searched", "")
    assert "Mary" not in json.dumps(result)
    accessed = [record.body for record in read_log(job.job) if record.type == "accessed"]
    assert [(body["by"], body["documents"], body["withheld"]) for body in accessed] == [
        ("Ann Archer", 5, 3),
        ("Ann Archer", 1, 0),
        ("Ann Archer", 2, 2),
    ]
    assert "Smith" not in job.job.log.read_text()
    with pytest.raises(RunStateError, match="exists; give a new folder"):
        redactory.access([job.job.root], out=out, by="Ann", person="Mary Smith")


def test_ids_choose_the_rows_and_without_a_name_nothing_sensitive_is_readable(job: Job, tmp_path: Path) -> None:
    done = invoke_command(
        "access", job.job.root, "--by", "Ann", "--out", tmp_path / "report", "--user-id", "u-mary", "--doc-id", "c3"
    )
    assert done.exit_code == 0, done.output
    assert "released): 3 rows" in done.stdout
    page = (tmp_path / "report" / "report.html").read_text()
    assert "written by u-mary" in page
    assert "the parcel of &lt;MASK&gt; is late" in page
    assert "Smith" not in page
    with pytest.raises(RunStateError, match="no row of this person"):
        redactory.access([job.job.root], out=tmp_path / "none", by="Ann", doc_ids=["nobody"])
    with pytest.raises(RunStateError, match="rows with the surname only"):
        redactory.access([job.job.root], out=tmp_path / "none", by="Ann", person="Jane Smith")
    with pytest.raises(ConfigurationError, match="say whose data"):
        redactory.access([job.job.root], out=tmp_path / "none", by="Ann")
    with pytest.raises(ConfigurationError, match="one line"):
        redactory.access([job.job.root], out=tmp_path / "none", by="A\nB", doc_ids=["c1"])
    assert not [path for path in tmp_path.iterdir() if "none" in path.name]


def test_a_report_that_cannot_be_written_leaves_no_text(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise CheckFailed("the disk is full")

    monkeypatch.setattr(access_module, "write_text", fail)
    with pytest.raises(CheckFailed):
        redactory.access([job.job.root], out=tmp_path / "out" / "report", by="Ann", person="Mary Smith")
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []
    # the log has it all the same: the text was readable for a moment
    assert read_log(job.job)[-1].type == "accessed"


def test_a_speaker_is_masked_unless_it_is_the_person(tmp_path: Path) -> None:
    text = "Mary Smith: hello\nAgent: hello\nJohn: i am here"
    file = write_rows(tmp_path / "rows.jsonl", [{"id": "a", "text": text}])
    config = {
        "input": str(file),
        "segment": {"mode": "turn", "speaker": r"\w+(?: \w+)?:[ \t]+"},
        "detect": {"tagger": None, "patterns": None, "conservative": {"rules": []}},
        "dedup": {"mode": "none"},
        "release": ALLOW_UNCOVERED,
    }
    redactory.curate(config, output=tmp_path / "run", detector=NameDetector())
    redactory.export(tmp_path / "run", tmp_path / "exported")
    redactory.access([tmp_path / "run"], out=tmp_path / "report", by="Ann", person="Mary Smith")
    [run] = json.loads((tmp_path / "report" / "report.json").read_text())["runs"]
    assert run["rows"][0]["text"] == "Mary Smith: hello\nAgent: hello\n<MASK>: i am here"
    assert "Exported 1 time: 20" in (tmp_path / "report" / "report.html").read_text()
    assert [record.type for record in read_history(RunFolder(tmp_path / "run"))] == ["exported", "accessed"]
    receipts = redactory.erase([tmp_path / "run"], doc_ids=["a"], by="Ann")["receipts"]
    assert [Path(receipt).parent for receipt in receipts] == [tmp_path / "run" / "state" / "receipts"]
    assert run_checks(tmp_path / "run")["no stray files"]["ok"]


def test_a_report_finds_a_user_in_either_spelling(tmp_path: Path) -> None:
    rows = [{"id": "a", "user_id": "Zo\u00eb", "text": "hello"}, {"id": "b", "user_id": "Zoe", "text": "hi"}]
    config = {
        "input": str(write_rows(tmp_path / "rows.jsonl", rows)),
        "detect": {"tagger": None, "patterns": None, "conservative": {"rules": []}},
    }
    redactory.curate(config, output=tmp_path / "run", detector=NameDetector())
    [run] = redactory.access([tmp_path / "run"], out=tmp_path / "report", by="Ann", user_ids=["Zoe\u0308"])["runs"]
    assert (run["documents"], run["examples"]) == (1, 1)


def test_a_purge_of_a_job_covers_its_finished_runs_and_names_the_others(job: Job) -> None:
    done = invoke_command("purge", job.job.root, "--vault", "--by", "A. Keeper")
    assert done.exit_code == 2
    assert done.stdout.count("vault: deleted") == 2
    assert "not done: it is unfinished, and its work holds original text" in done.stdout
    finished = [RunFolder(path) for path in job.job.root.glob("20*") if (path / "_SUCCESS").exists()]
    assert not [path for run in finished for path in run.vault.iterdir()]
    purged = [r.body for r in read_log(job.job) if r.type == "reissued"]
    assert [(body["why"], body["by"]) for body in purged] == [("purge", "A. Keeper")] * 2
    # who is in them cannot be told any more
    result = redactory.erase([job.job.root], person="Mary Smith")
    assert [problem["problem"].split("; ")[1] for problem in result["problems"]] == [
        "an erasure by --doc-id or --user-id still works"
    ] * 2
    assert {candidate["state"] for candidate in result["candidates"]} == {"failed"}
    sought = redactory.access([job.job.root], out=job.folder / "report", by="Ann", doc_ids=["nobody"])
    assert (sought["ok"], sought["out"], len(sought["problems"])) == (False, None, 2)
    assert not (job.folder / "report").exists()
    redactory.erase([job.job.root], doc_ids=["w1"])
    assert redactory.purge(job.job.root, ["vault"])["ok"]
