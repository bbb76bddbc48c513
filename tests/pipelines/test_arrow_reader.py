"""Arrow IPC, as ``datasets`` saves it: every row is read, or the file is refused by name and row."""

from __future__ import annotations

import gzip
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.readers import Document, Rejection
from tests.pipelines.support import read_entries as _read

ROWS = [{"id": f"r{n}", "user_id": None if n % 3 else "u", "text": f"row {n} é 🙂\nsecond line"} for n in range(40)]
WRITERS: dict[str, Callable[..., Any]] = {"stream": pa.ipc.new_stream, "file": pa.ipc.new_file}


def _packed(table: pa.Table, form: str = "stream", batch: int = 16, **options: Any) -> bytes:
    out = io.BytesIO()
    with WRITERS[form](out, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=batch)
    return out.getvalue()


def _texts(path: Path, **changes: object) -> list[str]:
    entries = _read(path, **changes)
    assert not [entry for entry in entries if isinstance(entry, Rejection)]
    return [entry.text for entry in entries if isinstance(entry, Document)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrow") / "rows.arrow"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress], ids=["", ".gz", ".zst"])
@pytest.mark.parametrize("form", WRITERS)
def test_a_stream_and_a_file_hold_the_same_rows(tmp_path: Path, form: str, pack: Callable[..., bytes]) -> None:
    ending = {bytes: "", gzip.compress: ".gz"}.get(pack, ".zst")
    path = tmp_path / f"rows.arrow{ending}"
    path.write_bytes(pack(_packed(pa.Table.from_pylist(ROWS), form)))
    if ending:
        with pytest.raises(InputError, match=rf"rows\.arrow\{ending} is Arrow inside another"):
            _read(path)
        return
    entries = _read(path)
    assert [(e.doc_id, e.user_id, e.text) for e in entries if isinstance(e, Document)] == [
        (row["id"], row["user_id"], row["text"]) for row in ROWS
    ]
    assert [e.row for e in entries] == list(range(1, 41))


KINDS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]


@pytest.mark.parametrize("kind", KINDS)
def test_text_may_be_stored_in_any_way(path: Path, kind: pa.DataType) -> None:
    column = pa.array([row["text"] for row in ROWS]).cast(kind)
    for options in ({}, {"options": pa.ipc.IpcWriteOptions(compression="zstd")}):
        path.write_bytes(_packed(pa.table({"text": column}), **options))
        assert _texts(path) == [row["text"] for row in ROWS]


def test_a_bad_row_is_rejected_with_its_number_and_reading_goes_on(path: Path) -> None:
    broken = pa.array([b"fine", b"\xff\xfe", None, b"x" * 90, b"a\0b", b" ", b"last"]).view(pa.string())
    path.write_bytes(_packed(pa.table({"text": broken, "n": range(7)}), batch=3))
    entries = _read(path, max_chars=50)
    reasons = ["document", "undecodable", "missing_text", "too_long", "nul", "empty_text", "document"]
    assert [getattr(entry, "reason", "document") for entry in entries] == reasons
    assert [entry.row for entry in entries] == [1, 2, 3, 4, 5, 6, 7]
    dates = pa.table({"text": ["a", "b"], "id": pa.array([1, 1 << 62], pa.timestamp("s"))})
    path.write_bytes(_packed(dates))
    assert [getattr(entry, "reason", None) for entry in _read(path, id="id")] == ["id_not_string", "broken_row"]
    path.write_bytes(_packed(pa.table({"text": [1, 2]})))
    assert [getattr(entry, "reason", None) for entry in _read(path)] == ["text_not_string"] * 2


def test_only_the_mapped_columns_are_read(path: Path) -> None:
    other = pa.array([b"\xff", b"\xfe"]).view(pa.string())
    path.write_bytes(_packed(pa.table({"other": other, "body": ["a", "b"]})))
    assert _texts(path, text="body") == ["a", "b"]
    with pytest.raises(InputError, match=r"rows\.arrow has no column 'text'"):
        _read(path)
    two = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    path.write_bytes(_packed(two))
    with pytest.raises(InputError, match=r"rows\.arrow has two columns 'text'"):
        _read(path)
    path.write_bytes(_packed(pa.table({"body": pa.array([], pa.string())})))
    with pytest.raises(InputError, match="no column 'text'"):
        _read(path)


WHOLE = {form: _packed(pa.Table.from_pylist(ROWS), form) for form in WRITERS}
REFUSAL = re.compile(
    r"rows\.arrow( is not a complete Arrow file: it cannot be read after row \d+; copy it again, .*"
    r"| has no column 'text'; .*| has two columns '.*'.*)",
    re.DOTALL,
)


def _refusal(path: Path) -> str:
    """What a file is refused with, which quotes nothing of it; nothing where all of it is read."""
    try:
        rows = _read(path)
    except InputError as error:
        said = str(error)
    else:
        assert len(rows) == len(ROWS)
        return ""
    assert REFUSAL.fullmatch(said), said
    return said


def test_a_stream_that_stops_between_two_batches_is_refused_with_the_last_row(path: Path) -> None:
    path.write_bytes(WHOLE["stream"][:-8])
    assert "after row 40" in _refusal(path)
    table, out = pa.Table.from_pylist(ROWS), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table.slice(0, 16))
        path.write_bytes(out.getvalue())
        assert "after row 16" in _refusal(path)
    for more in (b"\0", WHOLE["stream"], b"more"):
        path.write_bytes(WHOLE["stream"] + more)
        assert "after row 40" in _refusal(path)


def test_a_file_whose_footer_names_fewer_batches_is_refused(path: Path) -> None:
    def split_footer(content: bytes) -> tuple[bytes, bytes]:
        place = len(content) - 10 - int.from_bytes(content[-10:-6], "little")
        return content[:place], content[place:]

    none = _packed(pa.Table.from_pylist(ROWS).slice(0, 0), "file")
    path.write_bytes(split_footer(WHOLE["file"])[0] + split_footer(none)[1])
    assert "after row 40" in _refusal(path)


def test_a_length_that_lies_takes_no_memory(path: Path) -> None:
    # the metadata of the next message is said to be two gigabytes long
    path.write_bytes(WHOLE["stream"][:-8] + b"\xff\xff\xff\xff\xf8\xff\xff\x7f" + b"x" * 100)
    assert "after row 40" in _refusal(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two splits, the first in three files, as the library itself writes them."""
    from datasets import Dataset, DatasetDict

    place = tmp_path_factory.mktemp("saved") / "rows"
    splits = {"train": Dataset.from_list(ROWS[:30]), "test": Dataset.from_list(ROWS[30:])}
    DatasetDict(splits).save_to_disk(str(place), num_shards={"train": 3, "test": 1})
    return place


def test_a_saved_data_set_is_read_whole_or_a_split_at_a_time(saved: Path) -> None:
    both = _texts(saved)
    assert sorted(both) == sorted(row["text"] for row in ROWS)
    assert _texts(saved / "train") == [row["text"] for row in ROWS[:30]]
    assert _texts(saved / "train" / "*") == _texts(saved / "train" / "data-*.arrow") == _texts(saved / "train")


def test_what_was_made_of_a_data_set_is_no_part_of_it(saved: Path, tmp_path: Path) -> None:
    from datasets import load_from_disk

    copy = Path(shutil.copytree(saved / "train", tmp_path / "copy"))
    load_from_disk(str(copy)).map(lambda row: {"text": row["text"] + "!"}).shuffle(seed=1)
    made = sorted(copy.glob("cache-*.arrow"))
    assert len(made) == 2
    assert _texts(copy) == _texts(copy / "*") == [row["text"] for row in ROWS[:30]]
    # elsewhere it is a file as any other, and so is one that is named
    moved = tmp_path / "elsewhere" / made[0].name
    moved.parent.mkdir()
    shutil.copy(copy / "data-00000-of-00003.arrow", moved)
    assert _texts(moved.parent) == _texts(moved) == [row["text"] for row in ROWS[:10]]


def test_a_lost_file_of_a_data_set_is_named(saved: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    (copy / "train" / "data-00001-of-00003.arrow").unlink()
    told = r"'data-00001-of-00003\.arrow' is missing from the data set in 'train'"
    for path in (copy, copy / "train"):
        with pytest.raises(ConfigurationError, match=told):
            _read(path)
    assert len(_read(copy / "train" / "data-*.arrow")) == 20
    shutil.rmtree(copy / "train")
    with pytest.raises(ConfigurationError, match=r"'train/state\.json' is missing from the data set in 'copy'"):
        _read(copy)


def test_somebody_elses_files_of_those_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"text": "first"}\n', encoding="utf-8")
    (tmp_path / "dataset_info.json").write_text('{"text": "second"}\n', encoding="utf-8")
    (tmp_path / "dataset_dict.json").write_text('{"text": "third", "id": "t"}\n["a"]\n', encoding="utf-8")
    (tmp_path / "rows.arrow").write_bytes(WHOLE["stream"])
    assert len(_read(tmp_path)) == 44
