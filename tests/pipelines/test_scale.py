"""What keeps a large run linear in time and bounded in memory, checked by counts and not by clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redactory
from redactory.foundation.errors import RunStateError
from redactory.foundation.progress import StageReport
from redactory.foundation.records import RecordLog, read_records
from redactory.pipelines.curation import stage_context
from redactory.pipelines.curation.journal import RunJournal
from redactory.pipelines.curation.stage_context import map_serially, open_process_map
from redactory.pipelines.curation.stages import examples
from redactory.redaction import read_id_range, read_part, write_part
from tests.pipelines.support import DigitDetector, read_data_bytes, write_rows

BLANK = {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}}
PARTS = 6


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Six partitions; most texts stand in many of them, and some of those hold numbers or are broken."""
    texts = [f"call {n} now" for n in range(7)] + [f"plain {n}" for n in range(5)] + ["broken", "Is Bo in"]
    lines = [[texts[(i * step) % len(texts)] for step in (1, 3, 5, 8)] for i in range(PARTS * 4)]
    rows = [{"id": f"d{i}", "text": "\n".join(own)} for i, own in enumerate(lines)]
    path = write_rows(tmp_path_factory.mktemp("scale") / "rows.jsonl", rows)
    config = {"input": str(path), "segment": {"mode": "line"}, "detect": BLANK}
    return {**config, "partition": {"documents": 4}, "dedup": {"report_cross_split": False}}


@pytest.fixture(scope="module", autouse=True)
def _one_key(unsynced: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDACTORY_KEY", "a key of more than sixteen bytes")
        yield


def curated(settings: dict[str, Any], run: Path, ranges: int, **more: Any) -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_context, "MIN_RANGES", ranges)
        redactory.curate(settings, output=run, detector=DigitDetector(), **more)
    return read_data_bytes(run)


def test_the_number_of_ranges_changes_no_byte(settings: dict[str, Any], tmp_path: Path) -> None:
    one, two, many = (curated(settings, tmp_path / str(n), n) for n in (1, 2, 16))
    assert one == two == many
    assert len(one) >= PARTS


def test_a_partition_reads_as_many_files_whatever_the_number_of_partitions(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[str] = Counter()

    def counted(name: str, read_one: Any) -> Any:
        def reading(*given: Any, **more: Any) -> Any:
            read[name] += 1
            return read_one(*given, **more)

        return reading

    for name, real in (("read_part", read_part), ("read_id_range", read_id_range)):
        monkeypatch.setattr(examples, name, counted(name, real))
    curated(settings, tmp_path / "run", 4)
    # documents, points twice, what was found, and four tables for the shards
    assert read["read_part"] == PARTS * (1 + 1 + 2 + 4)
    # of each range what was spread to it, and what each range needs of it
    assert PARTS * 4 < read["read_id_range"] <= 2 * PARTS * 4


@given(st.lists(st.integers(0, 40)), st.integers(0, 41), st.integers(0, 41), st.integers(1, 9))
def test_a_slice_of_a_part_is_what_a_filter_gives(
    tmp_path_factory: pytest.TempPathFactory, values: list[int], first: int, last: int, rows: int
) -> None:
    path = tmp_path_factory.mktemp("part") / "part.parquet"
    table = pa.table({"example_id": pa.array(sorted(values), pa.int64())})
    write_part(path, table, group_rows=rows)
    expected = [value for value in sorted(values) if first <= value <= last]
    assert read_id_range(path, "example_id", first, last)["example_id"].to_pylist() == expected


def test_the_journal_holds_no_report_that_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with RecordLog(path) as log:
        journal = RunJournal(log)
        journal.record_or_check_identity({"configuration": {}})
        for report in journal.run_stage("redact", lambda number: StageReport("redact"), range(50), map_serially):
            assert report.stage == "redact"
            assert not log.records
            assert not journal._reports
        journal.record_file_digests({"a": "b"})
        journal.record_file_digests({"a": "b"})
    assert [record.seq for record in read_records(path)] == list(range(52))


@pytest.mark.slow
def test_parts_are_handed_out_a_few_at_a_time() -> None:
    handed: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(40):
            handed.append(number)
            yield number

    with open_process_map(2) as spread_over:
        done = 0
        for done, _ in enumerate(spread_over(_part, numbers()), 1):  # type: ignore[arg-type]
            assert len(handed) <= done + 2 * stage_context.TASKS_PER_WORKER + 2
    assert done == 40


def _part(number: int) -> StageReport:
    return StageReport("part", Counter({"number": number}))


def test_a_run_is_resumed_with_the_ranges_it_was_begun_with(settings: dict[str, Any], tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def until_detect(task: Any, numbers: Any) -> Iterator[tuple[int, StageReport]]:
        if stage_context.get_task_name(task) == examples.detect_texts.__name__:
            raise Stop
        return map_serially(task, numbers)

    with pytest.raises(Exception, match="Stop"):
        curated(settings, tmp_path / "run", 4, stage_map=until_detect)
    with pytest.raises(RunStateError, match="hash ranges"):
        curated(settings, tmp_path / "run", 8, resume=True)
    assert curated(settings, tmp_path / "run", 4, resume=True) == curated(settings, tmp_path / "other", 8)
    # a finished run is the same one, whatever the ranges
    assert curated(settings, tmp_path / "run", 8, resume=True) == read_data_bytes(tmp_path / "run")


@given(st.integers(0, 1 << 50))
def test_ranges_are_a_power_of_two_and_grow_with_the_input(size: int) -> None:
    ranges = stage_context.choose_range_count(size)
    assert ranges & (ranges - 1) == 0
    assert 1 <= ranges <= stage_context.choose_range_count(2 * size) <= stage_context.MAX_RANGES
    assert (ranges == 1) == (size <= 1 << 25)
