"""Curation: conservation, the same bytes whatever happens, and refusals that name the difference."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redactory
from redactory.detectors import Detection, Span
from redactory.foundation.errors import CheckFailed, RedactoryError, RunStateError, SealedError
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import ignore_progress
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.stage_context import CurationJob
from redactory.pipelines.curation.stages.examples import ingest_documents, iterate_detection_rows
from redactory.pipelines.readers import find_sources
from redactory.redaction import MASK, RunFolder, list_parts, read_column
from tests.pipelines.support import DigitDetector, read_data_bytes, write_rows

CONFIG: dict[str, Any] = {"segment": {"mode": "line"}, "partition": {"documents": 4}}


def _rows(count: int) -> list[dict[str, Any]]:
    texts = ["hello there\nmy number is {n}", "call {n} now\nhello there", "meet Anna {n}\nbye", "broken {n}\nfine"]
    return [{"id": f"d{i}", "user_id": f"u{i % 3}", "text": texts[i % 4].format(n=1000 + i)} for i in range(count)]


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = _rows(23)
    path = write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", [*rows, {"id": "d1", "text": "again"}])
    with path.open("ab") as file:
        file.write(b'{"text": 1}\nnot json\n')
    return path


def _curate(rows_file: Path, out: Path, **changes: Any) -> dict[str, Any]:
    config = {**CONFIG, "input": str(rows_file), **changes.pop("config", {})}
    return redactory.curate(config, output=out, detector=changes.pop("detector", DigitDetector()), **changes)


@pytest.fixture(scope="module")
def finished(rows_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    _curate(rows_file, out)
    return out


def test_every_row_and_point_is_accounted_for(rows_file: Path, finished: Path) -> None:
    summary = _curate(rows_file, finished, resume=True)
    assert summary["rows"] == 26
    assert summary["rejected_by_reason"] == {"broken_json": 1, "duplicate_id": 1, "text_not_string": 1}
    assert summary["examples"] == 46
    assert summary["quarantined_by_reason"] == {"engine_error": 5}
    assert summary["examples"] == sum(summary[f] for f in ("public", "private", "duplicate", "quarantined"))
    assert sorted(read_column(RunFolder(finished).quarantine, "kind")) == ["example"] * 5 + ["row"] * 3


def test_dedup_comes_after_masking_and_within_a_side(finished: Path) -> None:
    run = RunFolder(finished)
    public, private = read_column(run.public, "text"), read_column(run.private, "text")
    assert sorted(public) == ["bye", "fine", "hello there"]
    assert sorted(private) == [f"call {MASK} now", f"meet Anna {MASK}", f"my number is {MASK}"]


def test_each_distinct_text_is_detected_once(rows_file: Path, tmp_path: Path) -> None:
    detector = DigitDetector()
    _curate(rows_file, tmp_path / "run", detector=detector)
    assert max(Counter(detector.detected_texts).values()) == 1


def test_scope_user_dedups_within_a_user_only(rows_file: Path, tmp_path: Path) -> None:
    _curate(rows_file, tmp_path / "run", config={"dedup": {"scope": "user"}})
    run = RunFolder(tmp_path / "run")
    assert sorted(read_column(run.public, "text")).count("hello there") == 3


def test_released_ids_are_pseudonyms_and_users_too(finished: Path) -> None:
    run = RunFolder(finished)
    released = read_column(run.public, "example_id") + read_column(run.private, "example_id")
    assert len(set(released)) == len(released)
    assert all(len(i) == 32 and int(i, 16) >= 0 for i in released)
    assert not {"u0", "u1", "u2"} & set(read_column(run.private, "user"))


def test_public_and_private_folders_hold_nothing_else(finished: Path) -> None:
    run = RunFolder(finished)
    assert {p.name for p in run.public.iterdir()} == {p.name for p in list_parts(run.public)}
    assert pq.read_schema(list_parts(run.public)[0]).names == ["example_id", "text"]
    assert not run.work.exists()
    assert run.root.stat().st_mode & 0o777 == 0o700


BEFORE = "check engines"
"""What is told before there is a run."""


class _Stop(Exception):
    pass


@pytest.fixture(scope="module")
def moments(rows_file: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How often a run says how far it came, which is where the next test stops it."""
    heard: list[str] = []
    _curate(rows_file, tmp_path_factory.mktemp("heard") / "run", progress=lambda what, *_: heard.append(what))
    return len([what for what in heard if what != BEFORE])


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_interrupted_anywhere_and_resumed_gives_the_same_bytes(
    rows_file: Path, finished: Path, moments: int, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    moment = 1 + int(share * moments)
    out, calls = tmp_path_factory.mktemp("stopped") / "run", 0

    def stop(what: str, *_: object) -> None:
        nonlocal calls
        calls += what != BEFORE
        if calls == moment:
            raise _Stop("text of the corpus")

    with pytest.raises(SealedError) as error:
        _curate(rows_file, out, progress=stop)
    assert "text of the corpus" not in str(error.value)
    assert not (out / "_SUCCESS").exists()
    with pytest.raises(RunStateError, match="--resume"):
        _curate(rows_file, out)
    _curate(rows_file, out, resume=True)
    assert read_data_bytes(out) == read_data_bytes(finished)


def test_backwards_and_in_two_processes_gives_the_same_bytes(rows_file: Path, finished: Path, tmp_path: Path) -> None:
    def backwards(task: Any, numbers: Any) -> Any:
        return ((number, task(number)) for number in reversed(numbers))

    for name, how in {"backwards": {"stage_map": backwards}, "processes": {"workers": 2}}.items():
        _curate(rows_file, tmp_path / name, **how)
        assert read_data_bytes(tmp_path / name) == read_data_bytes(finished), name


def test_another_partition_size_has_the_same_examples(rows_file: Path, finished: Path, tmp_path: Path) -> None:
    _curate(rows_file, tmp_path / "run", config={"partition": {"documents": 100}})
    for side in ("public", "private"):
        texts = [sorted(read_column(getattr(RunFolder(r), side), "text")) for r in (finished, tmp_path / "run")]
        assert texts[0] == texts[1]


def test_resuming_another_input_is_refused(rows_file: Path, tmp_path: Path) -> None:
    def stop(work: str, *_: object) -> None:
        if work == "detect":
            raise _Stop

    copy = tmp_path / "rows.jsonl"
    copy.write_bytes(rows_file.read_bytes())
    with pytest.raises(SealedError):
        _curate(copy, tmp_path / "run", progress=stop)
    with copy.open("ab") as file:
        file.write(b'{"text": "one more"}\n')
    with pytest.raises(RunStateError, match="another input"):
        _curate(copy, tmp_path / "run", resume=True)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
def test_a_file_without_a_usable_row_is_an_error(rows_file: Path, tmp_path: Path, kind: str) -> None:
    empty, bad = pa.table({"id": ["1", "2"], "text": ["", " "]}), tmp_path / f"bad.{kind}"
    if kind == "jsonl":
        bad.write_text('{"body": "hello"}\nbroken\n')
    elif kind == "csv":
        bad.write_text("id,text\n1,\n2, \n")
    elif kind == "parquet":
        pq.write_table(empty, bad)
    else:
        with pa.ipc.new_stream(bad, empty.schema) as stream:
            stream.write_table(empty)
    with pytest.raises(CheckFailed, match=rf"bad\.{kind}: none of its 2 rows can be used\. Rejected as ") as told:
        _curate(rows_file, tmp_path / "alone", config={"input": {"path": str(bad)}})
    assert told.value.exit_code == 1
    assert not (tmp_path / "alone" / "_SUCCESS").exists()
    # beside rows that can be used it is two bad rows of the whole input
    both = {"input": {"path": [str(rows_file), str(bad)], "max_rejected_share": 0.2}}
    summary = _curate(rows_file, tmp_path / "both", config=both)
    assert (summary["rows"], summary["rejected"]) == (28, 5)


MAIL = b"From: a@example.com\nSubject: s\n\nhello %d\n"
DAMAGED: dict[str, bytes] = {
    "charset.eml": b"From: a@example.com\nContent-Type: text/plain; charset=utf-16\n\nhi\n",
    "open.eml": b"Content-Type: multipart/mixed; boundary=x\n\n--x\n\nno end",
    "number.jsonl": b'{"text": 5}\n',
    "empty.jsonl.gz": b"",
    "cut.jsonl.gz": gzip.compress(b'{"text": "hello"}\n' * 900)[:-9],
    "no.jsonl.zst": b"no zst",
    "other.csv": b"id,body\n1,hello\n",
    "two.tsv": b"text\ttext\na\tb\n",
    "no.parquet": b"PAR1",
    "no.arrow": b"ARROW1",
    "letters.txt": "hello".encode("utf-16"),
    "no.docx": b"PK\x03\x04",
    "no.pdf": b"%PDF-1.7\n",
    "page.html": b"<meta charset=nonesuch>hello",
    "box.mbox": b"no line From\n\nhello\n",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_one_bad_file_among_others_is_quarantined_and_counted(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(3):
        (folder / f"{n}.eml").write_bytes(MAIL % n)
    (folder / name).write_bytes(DAMAGED[name])
    job = {"input": {"path": str(folder), "max_rejected_share": 0.3}}
    summary = _curate(folder, tmp_path / "run", config=job)
    assert sum(summary["rejected_by_reason"].values()) == summary["rejected"] == 1
    assert summary["documents"] == summary["rows"] - 1 >= 3
    [entry] = redactory.quarantine_list(tmp_path / "run")["runs"][0]["listed"]
    assert entry["source"] == name
    job["input"]["max_rejected_share"] = 0.2
    with pytest.raises(CheckFailed, match=r"1 of 4 (rows|files) was rejected, more than .*: 0.2"):
        _curate(folder, tmp_path / "stopped", config=job)
    # without others, its own message is the best one
    job["input"]["path"] = str(folder / name)
    with pytest.raises(RedactoryError, match=re.escape(name)):
        _curate(folder, tmp_path / "alone", config=job)


@settings(max_examples=60)
@given(st.lists(st.booleans(), max_size=30), st.sampled_from([0.0, 0.2, 0.5]), st.data())
def test_the_verdict_on_bad_rows_depends_on_neither_order_nor_files(
    tmp_path_factory: pytest.TempPathFactory, good: list[bool], allowed: float, data: st.DataObject
) -> None:
    rows = [{"text": "hello"} if is_good else {"text": 1} for is_good in data.draw(st.permutations(good))]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    folder = tmp_path_factory.mktemp("cut")
    for n, (start, end) in enumerate(pairwise([0, *cuts, len(rows)])):
        write_rows(folder / f"{n}.jsonl", rows[start:end])
    asked = {"path": str(folder), "max_rejected_share": allowed}
    job = CurationJob(RunFolder(folder / "_run"), Config.model_validate({**CONFIG, "input": asked}), load_digest_key())
    sources = find_sources((str(folder),), "auto")
    counts, bad = Counter[str](), good.count(False)
    try:
        for report in ingest_documents(job, sources, ignore_progress):
            counts.update(report.counts)
    except CheckFailed:
        assert bad == len(rows) or bad / len(rows) > allowed
    else:
        assert not bad or (bad < len(rows) and bad / len(rows) <= allowed)
    assert (counts["rows"], counts["rejected/text_not_string"]) == (len(rows), bad)


def test_the_manifest_has_no_infinity_and_names_every_file(finished: Path) -> None:
    manifest = json.loads((finished / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert set(manifest["files"]) == {*read_data_bytes(finished), "README.md"}


def test_every_span_of_a_detection_is_written_under_its_policy() -> None:
    spans = [Span(place, place + 1, "NAME", 0.5, "engine") for place in range(3)]
    written = list(iterate_detection_rows(4, 7, Detection((spans[0],), (spans[1],), None, (spans[2],))))
    policies = ("strict", "conservative", "public")
    assert written == [(4, 7, *span, policy, None) for span, policy in zip(spans, policies, strict=True)]
