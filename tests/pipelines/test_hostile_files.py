"""Hostile files: whatever a reader is given, it reads, rejects or refuses, in bounded memory, and no more."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

import redactory
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError
from redactory.pipelines.json_paths import Fields
from redactory.pipelines.readers import (
    Document,
    InputSettings,
    Rejection,
    document_formats,
    find_sources,
    html_format,
    mail_format,
    read_documents,
    word_format,
)
from redactory.pipelines.readers.documents import RowCounts
from redactory.pipelines.readers.formats import (
    BYTE_ORDER_MARK,
    FORMATS,
    MAX_DEPTH,
    ExpandingFile,
    Format,
    Row,
    choose_reader,
)
from redactory.redaction.mask import Edit
from tests.pipelines.faults import curated
from tests.pipelines.oracles import is_usable, parse_expected_texts
from tests.pipelines.support import NO_ENGINES
from tests.pipelines.support import read_entries as _read
from tests.pipelines.test_document_corners import pdf, word
from tests.pipelines.test_hostile import TEXTS

MIB = 1 << 20


def _texts(entries: list[Document | Rejection]) -> list[str]:
    return [entry.text for entry in entries if isinstance(entry, Document)]


def _reasons(entries: list[Document | Rejection]) -> list[str]:
    return [entry.reason for entry in entries if isinstance(entry, Rejection)]


def _all(*paths: Path, **changes: Any) -> list[Document | Rejection]:
    """The entries of all files, as a run counts them: a damaged file is one rejection."""
    settings = InputSettings.model_validate({"path": list(map(str, paths)), **changes})
    counts = RowCounts(settings)
    sources = find_sources(settings.path, settings.format)
    return [entry for source in sources for entry in counts.read_and_count(source)]


def _refusal(path: Path, **changes: Any) -> str:
    """What the error says by which a file is refused as a whole; empty where it is read."""
    try:
        _read(path, **changes)
    except InputError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


CELLS = st.text(st.sampled_from('ab,"\n\r;\t é🙂\u2028\x0b'), max_size=8) | TEXTS.map(lambda t: t.replace("\x00", ""))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([20, 1 << 20]), st.sampled_from(["csv", "tsv", "jsonl"]))
@example(b'a,"b\nc,d\n"e,f', 1 << 20, "csv")
@example(b'1,"x\n' + b"2,y\n" * 9, 20, "csv")
@example(b"\xef\xbb\xbf", 20, "jsonl")
@example(b"\xef\xbb\xbf\n{}", 20, "jsonl")
def test_any_bytes_after_a_header_are_rows_or_rejections(folder: Path, content: bytes, limit: int, kind: str) -> None:
    path = folder / f"bytes.{kind}"
    path.write_bytes((b"" if kind == "jsonl" else b"text\n") + content)
    entries = _all(path, max_row_bytes=limit, max_chars=50)
    assert all(is_usable(entry, 50) for entry in entries)
    if kind == "jsonl" and not re.match(rb"\s*\[\s*[{\]]", content.removeprefix(BYTE_ORDER_MARK)):
        assert len(entries) == len(parse_expected_texts(content, limit))


@settings(deadline=None)
@given(
    st.integers(0, 20), st.sampled_from(['x,"open', '"x', 'x","y', '"a,""b', 'x,"y""']), st.sampled_from([60, 1 << 20])
)
def test_one_quotation_mark_too_many_swallows_no_other_row(folder: Path, where: int, line: str, limit: int) -> None:
    lines = [f"{n},the text of row {n}" for n in range(20)]
    lines.insert(where, line)
    path = folder / "open.csv"
    path.write_text("\n".join(["number,body", *lines]) + "\n", encoding="utf-8")
    entries = _read(path, text="body", id="number", max_row_bytes=limit)
    assert _texts(entries) == [f"the text of row {n}" for n in range(20)]
    (bad,) = (entry for entry in entries if isinstance(entry, Rejection))
    assert bad.reason in ("broken_row", "row_too_long")
    assert bad.content == line.encode() + b"\n"


def test_a_file_of_open_quotations_comes_to_an_end(folder: Path) -> None:
    """Every line opens one, read alone or amid the one before it: rows tried again would take for ever."""
    path = folder / "all-open.csv"
    path.write_text("a,b\n" + 'x","y\n' * 50_000, encoding="utf-8")
    entries = _read(path, text="b", max_row_bytes=1 << 18)
    assert len(entries) == 50_000
    assert set(_reasons(entries)) == {"broken_row", "row_too_long"}


def test_broken_rows_before_rows_of_several_lines_take_no_longer_each_time(folder: Path) -> None:
    """Each gives the line back at which the next row begins: givers inside of givers would take for ever."""
    path = folder / "given-back.csv"
    path.write_text("a,b\n" + '1,"x"y\n2,"more\nlines"\n' * 50_000, encoding="utf-8")
    entries = _read(path, text="b")
    assert _texts(entries) == ["more\nlines"] * 50_000
    assert _reasons(entries) == ["broken_row"] * 50_000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("long-header.csv", b"x" * 3000),
        ("two.csv", b"text,text\na,b\n"),
        ("two.parquet", None),
        ("other.parquet", b"no Parquet"),
        ("packed.parquet.zst", zstandard.compress(b"PAR1")),
    ],
)
def test_a_table_that_cannot_be_read_at_all_is_refused_by_name(folder: Path, name: str, content: bytes | None) -> None:
    path = folder / name
    if content is None:
        pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), path)
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(name)):
        _read(path, max_row_bytes=1000)


def _peak(path: Path, **changes: Any) -> tuple[list[Document | Rejection], int]:
    """The entries of a file, and the bytes that reading them held at most."""
    tracemalloc.start()
    try:
        return _read(path, **changes), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _bomb(kind: str, head: bytes, mebibytes: int, tail: bytes) -> bytes:
    """``head``, so much of one letter, ``tail``; compressed to a thousandth."""
    if kind == "zst":
        compressor = zstandard.ZstdCompressor().compressobj()
        pieces = [compressor.compress(b"x" * MIB) for _ in range(mebibytes)]
        last = compressor.compress(tail) + compressor.flush()
        return zstandard.compress(head) + b"".join(pieces) + last
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as compressed:
        for piece in (head, *[b"x" * MIB] * mebibytes, tail):
            compressed.write(piece)
    return file.getvalue()


def test_fifty_megabytes_of_little_are_read_in_pieces(folder: Path) -> None:
    path = folder / "bomb.jsonl.bz2"
    # compressed in parts, as joined files may be: it takes seconds otherwise
    path.write_bytes(bz2.compress(b"x" * 5 * MIB) * 10 + bz2.compress(b'\n{"text": "last"}\n'))
    assert path.stat().st_size < MIB
    entries, peak = _peak(path, format="jsonl", max_row_bytes=2 * MIB, max_expansion=1e6)
    assert _texts(entries) == ["last"]
    assert _reasons(entries) == ["row_too_long"]
    assert peak < 32 * MIB


@pytest.mark.parametrize("packed", ["gz", "zst"])
@pytest.mark.parametrize(
    ("kind", "head", "tail"),
    [
        ("jsonl", b'{"text": "first"}\n{"text": "', b'"}\n{"text": "last"}\n'),
        ("csv", b"text\nfirst\n", b"\nlast\n"),
        ("csv", b'text\nfirst\n"', b'"\nlast\n'),
        ("txt", b"", b""),
    ],
)
def test_fifty_megabytes_in_one_row_are_skipped(folder: Path, packed: str, kind: str, head: bytes, tail: bytes) -> None:
    path = folder / f"bomb.{kind}.{packed}"
    path.write_bytes(_bomb(packed, head, 50, tail))
    assert path.stat().st_size < MIB
    entries, peak = _peak(path, max_row_bytes=2 * MIB, max_expansion=1e6)
    assert _texts(entries) == (["first", "last"] if head else [])
    assert _reasons(entries) == ["row_too_long"]
    assert peak < 45 * MIB


def test_a_text_that_a_small_parquet_file_repeats_is_not_held_repeatedly(folder: Path) -> None:
    path = folder / "bomb.parquet"
    text = pa.array(["x" * 500_000])
    pq.write_table(pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * 400), text)}), path)
    assert path.stat().st_size < MIB
    config = InputSettings.model_validate({"path": str(path), "max_expansion": 1e6})
    (source,) = find_sources(config.path, config.format)
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for entry in read_documents(source, config):
        assert isinstance(entry, Document)
        most, count = max(most, pa.total_allocated_bytes() - before), count + 1
    assert count == 400
    assert most < 60 * MIB


def _from_below(frames: int, work: Callable[[], Any]) -> Any:
    """``work()``, called from so many frames further down."""
    return _from_below(frames - 1, work) if frames else work()


@pytest.mark.parametrize("opened", ["[", '{"a":'])
def test_how_deep_a_row_may_be_depends_on_nothing_but_the_row(folder: Path, opened: str) -> None:
    """Python's own limit counts the caller's frames: a run from elsewhere would have other documents."""
    closed = opened.translate(str.maketrans("[{", "]}", '"a:'))
    path = folder / "levels.jsonl"
    levels = [1, MAX_DEPTH - 2, MAX_DEPTH - 1, MAX_DEPTH, 400, 700, 2_000]
    nests = (f"{opened * n}1{closed * n}" for n in levels)
    flat = f'{{"text": "flat", "x": [{"[[]]," * 999}1]}}\n["[[[", "{"{" * 999}"]\n"{"[" * 999}"\n'
    path.write_text("".join(f'{{"text": "in", "x": {nest}}}\n' for nest in nests) + flat, encoding="utf-8")
    entries = _read(path)
    assert _texts(entries) == ["in", "in", "in", "flat"]
    assert _reasons(entries) == ["broken_json"] * 4 + ["not_an_object"] * 2
    assert _from_below(600, lambda: _read(path)) == entries


def test_an_id_or_a_user_as_long_as_a_book_is_rejected(folder: Path) -> None:
    path = folder / "ids.jsonl"
    rows = [{"id": "x" * n, "text": "a"} for n in (1_024, 1_025)] + [{"user_id": "x" * 2_000, "text": "a"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"id": 1' + "0" * 3000 + ', "text": "a"}\n')
    entries = _read(path)
    assert _reasons(entries) == ["id_too_long", "user_too_long", "id_too_long"]
    assert _texts(entries) == ["a"]


LINES = b"".join(b'{"text": "row %d of many"}\n' % n for n in range(500))
PACKED = {"gz": gzip.compress(LINES), "zst": zstandard.compress(LINES), "bz2": bz2.compress(LINES)}


@pytest.mark.parametrize("ending", PACKED)
@settings(max_examples=60, deadline=None)
@given(share=st.floats(0.0, 0.999))
def test_a_file_that_is_cut_off_is_refused(folder: Path, ending: str, share: float) -> None:
    path = folder / f"cut.jsonl.{ending}"
    content = PACKED[ending]
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=rf"cut\.jsonl\.{ending} cannot be read"):
        _read(path, format="jsonl")


@pytest.mark.parametrize("ending", PACKED)
def test_files_that_were_joined_are_read_to_the_end_or_refused(folder: Path, ending: str) -> None:
    path, content = folder / f"joined.jsonl.{ending}", PACKED[ending]
    path.write_bytes(content * 3)
    assert len(_read(path, format="jsonl")) == 1500
    # whatever comes after a whole stream and is none may have been rows
    for more in (content[:20], b"X" + content[1:], b"more", content[1:]):
        path.write_bytes(content + more)
        assert "cannot be read" in _refusal(path, format="jsonl")


def _in_parts(writer: Callable[..., Any]) -> bytes:
    table, out = pa.table({"text": [f"row {n} of many" for n in range(30)]}), io.BytesIO()
    with writer(out, table.schema) as file:
        file.write_table(table, 10)
    return out.getvalue()


TABLES = {
    "a.parquet": _in_parts(pq.ParquetWriter),
    "a.stream.arrow": _in_parts(pa.ipc.new_stream),
    "a.file.arrow": _in_parts(pa.ipc.new_file),
}
DAMAGED = TABLES | {f"a.jsonl.{ending}": data for ending, data in PACKED.items()}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(DAMAGED)), st.data())
def test_a_broken_file_is_an_error_of_ours_or_is_read_whole(folder: Path, name: str, data: st.DataObject) -> None:
    content, path = bytearray(DAMAGED[name]), folder / f"broken.{name}"
    for place in data.draw(st.lists(st.integers(-len(content), -1), min_size=1, max_size=4)):
        content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    changes = {} if name in TABLES else {"format": "jsonl"}
    refusal = _refusal(path, **changes)
    # what a row holds; a message of ours has the word, too
    assert not re.search(r"of many|row \d+ o", refusal)
    assert refusal or name not in TABLES or len(_read(path)) == 30


NAMES = [
    *(b"\xff\xfe.jsonl", b"a::b.jsonl", b"[x].jsonl", b"a*b?.jsonl", b"{a,b}.jsonl", b"100%25.jsonl"),
    *(b"line\nend.jsonl", b"\x1b[2J.jsonl", b"a#b.jsonl", b"\xe2\x80\xaelnosj.jsonl", b"~x.jsonl"),
    *(b"x:y.jsonl", rb"line\nend.jsonl", rb"\x1b[2J.jsonl", rb"line\\nend.jsonl"),
]


@pytest.mark.slow
def test_a_file_may_be_called_anything(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in NAMES:
        path = folder / os.fsdecode(name)
        path.write_bytes(b'{"text": "fine"}\n{"text": 1}\n')
        assert len(_read(path)) == 2
    entries = _read(folder)
    ids = {entry.doc_id for entry in entries if isinstance(entry, Document)}
    sources = {entry.source for entry in entries if isinstance(entry, Rejection)}
    # an escape never makes one name of two
    assert len(ids) == len(sources) == len(NAMES)
    assert all(name.isprintable() and name.encode() for name in ids | sources)
    assert curated(folder, tmp_path / "run") == 0
    assert curated(folder, tmp_path / "run") == 0, "a finished run knows them all again"
    assert json.loads((tmp_path / "run" / "manifest.json").read_bytes())["counts"]["documents"] == len(NAMES)


def test_what_is_no_file_is_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n')
    pipe, link = tmp_path / "pipe.jsonl", tmp_path / "broken.jsonl"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "nowhere")
    # beside files that can be read, each is a rejection
    entries = _all(tmp_path)
    assert (_texts(entries), _reasons(entries)) == (["fine"], ["not_a_file"] * 2)
    assert _reasons(_all(tmp_path / "*.jsonl")) == ["not_a_file"] * 2
    for given_path in (pipe, link):
        with pytest.raises(ConfigurationError, match=rf"{given_path.name}' is not a file \(but a pipe"):
            _all(given_path)


def test_an_archive_is_refused_and_not_read_in_part(tmp_path: Path) -> None:
    for name in ("rows.zip", "rows.tar", "rows.tgz", "rows.jsonl.xz"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(ConfigurationError, match="unpack it first"):
            _read(tmp_path / name, format="jsonl")


def _linked(folder: Path) -> Path:
    """A folder with one file, and with every kind of link."""
    inside, elsewhere = folder / "in", folder / "elsewhere"
    for place in (inside, elsewhere):
        place.mkdir()
        (place / f"{place.name}.jsonl").write_text(json.dumps({"text": place.name}) + "\n")
    (inside / "deep").mkdir()
    (inside / "again.jsonl").symlink_to(inside / "in.jsonl")
    (inside / "file.jsonl").symlink_to(elsewhere / "elsewhere.jsonl")
    (inside / "deep" / "relative.jsonl").symlink_to("../../elsewhere/elsewhere.jsonl")
    (inside / "twice.jsonl").symlink_to(inside / "file.jsonl")
    (inside / "more").symlink_to(elsewhere)
    (inside / "loop").symlink_to(inside)
    return inside


LINKS = {
    "again.jsonl": "in",
    "in.jsonl": "in",
    "deep/relative.jsonl": "link_outside",
    "file.jsonl": "link_outside",
    "twice.jsonl": "link_outside",
    "loop": "linked_folder",
    "more": "linked_folder",
}


def test_no_link_leads_out_of_an_input_folder_in_any_command(tmp_path: Path) -> None:
    """Whoever may write there would choose what is read; and nothing is left out without a word."""
    inside = _linked(tmp_path)
    entries = _all(inside)
    found = {e.source: e.text if isinstance(e, Document) else e.reason for e in entries}
    assert found == {name.rpartition("/")[2]: what for name, what in LINKS.items()}
    refused = {name: what for name, what in LINKS.items() if what != "in"}
    job = {"detect": NO_ENGINES}
    done = redactory.redact(inside, tmp_path / "out", config=job)
    assert done["files"] == 2
    assert done["files_left_out"] == {"link_outside": 3, "linked_folder": 2}
    notes = (tmp_path / "out.quarantine.jsonl").read_text().splitlines()
    assert {one["file"]: one["reason"] for one in map(json.loads, notes)} == refused
    scanned = redactory.scan([inside], config=job)
    assert (scanned["texts"], scanned["unread"], scanned["clean"]) == (2, 5, False)
    assert "elsewhere" not in "".join(path.read_text() for path in (tmp_path / "out").rglob("*.jsonl"))
    # what somebody names is read, link or not, also beside the folder that it lies in
    assert _texts(_all(inside / "file.jsonl")) == _texts(_all(inside / "more")) == ["elsewhere"]
    both = _all(inside, inside / "file.jsonl")
    assert sorted(_texts(both)) == ["elsewhere", "in", "in"]
    # a pattern stands for a folder
    assert _reasons(_all(inside / "*.jsonl")) == ["link_outside"] * 2
    (tmp_path / "same").symlink_to(inside)
    assert _texts(_all(tmp_path / "same")) == ["in", "in"]


def test_a_damaged_file_of_a_folder_is_left_out_of_a_copy_with_all_its_rows(tmp_path: Path) -> None:
    inside, out = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    rows = b'{"text": "' + b"x" * 2_000 + b'"}\n'
    rows *= 1_500
    (inside / "good.jsonl").write_bytes(rows)
    (inside / "late.jsonl.gz").write_bytes(gzip.compress(rows)[:-9])
    (inside / "early.parquet").write_bytes(b"PAR1")
    job = {"input": {"path": str(inside), "max_rejected_share": 0.7}, "detect": NO_ENGINES}
    done = redactory.redact(inside, out, config=job)
    # what was copied of a file before its damage goes with it, and is counted
    assert [path.name for path in out.iterdir()] == ["good.jsonl"]
    left_out = done["quarantined"]["unreadable_file"]
    assert 0 < left_out < 1_500
    assert (done["rows"], done["written"], done["files"]) == (1_500 + left_out, 1_500, 1)
    assert done["files_left_out"] == {"unreadable_file": 2}
    notes = map(json.loads, (tmp_path / "out.quarantine.jsonl").read_text().splitlines())
    assert {note["file"] for note in notes} == {"late.jsonl.gz", "early.parquet"}
    # the limit is about the whole folder; what is over it leaves no copy
    job["input"]["max_rejected_share"] = 0.6
    with pytest.raises(CheckFailed, match=r"2 of 3 files were rejected, more than .* 0\.6"):
        redactory.redact(inside, tmp_path / "other", config=job)
    assert not (tmp_path / "other").exists()
    with pytest.raises(InputError, match=r"late\.jsonl\.gz cannot be read: it is truncated"):
        redactory.redact(inside / "late.jsonl.gz", tmp_path / "third.jsonl", config=job)


PARTED = b"Subject: x\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\none\n--b\n\ntwo\n--b--"
WHOLE = {
    **TABLES,
    "a.array.json": json.dumps([{"text": f"row {n}"} for n in range(30)]).encode(),
    "a.csv": b'text\n"' + b'row"\n"' * 30 + b'end"',
    "a.eml": PARTED,
    "b.eml": b"Subject: x\nContent-Transfer-Encoding: quoted-printable\n\n" + b"=41" * 9 + b"=\n",
    "a.mbox": b"From x\n" + PARTED,
    "a.docx": word(),
    "a.pdf": pdf("page one"),
    "b.pdf": pdf("page one") + b"1 0 obj\n<< /Type /Catalog >>\nendobj\nstartxref\n0\n%%EOF",
    **{f"a.jsonl{ending}": data for ending, data in {".gz": PACKED["gz"], ".zst": PACKED["zst"]}.items()},
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_cut_off_is_never_copied_short(folder: Path, name: str) -> None:
    """By the readers that redact copies with; a file is refused, or has rows that are left out."""
    path, data = folder / f"cut.{name}", WHOLE[name]
    step = max(1, len(data) // 120)
    for cut in {*range(1, len(data), step), *range(max(1, len(data) - 40), len(data))}:
        path.write_bytes(data[:cut])
        (source,) = find_sources((str(path),), "auto")
        try:
            with source.open() as file:
                reader = choose_reader(source.format, file)(file, name, MIB, Fields(("text",)))
                left_out = [row.reason for row in reader.read_rows() if isinstance(row, Row) and row.reason]
        except InputError:
            continue
        assert left_out or _is_whole_too(name, data, cut), cut


def _is_whole_too(name: str, data: bytes, cut: int) -> bool:
    """Whether a shorter file cannot be told from a whole one."""
    if name == "a.csv":
        return data[:cut].endswith((b'"', b'"\n', b"text", b"text\n")) or cut < 4
    return {
        "b.pdf": cut in range(len(pdf("page one")) - 1, len(pdf("page one")) + 1),
        "b.eml": data[:cut].endswith((b"\n\n", b"=41")),
        # mail programs forget the last boundary
        **dict.fromkeys(("a.eml", "a.mbox"), b"\n\n" in data[:cut] and data[:cut].endswith(b"\n")),
    }.get(name, False)


_FEW = 500
_MIXED = b"Content-Type: multipart/mixed; boundary=%s\n\n"


def _reason_and_texts(kind: str, data: bytes, limit: int = MIB) -> tuple[str | None, int]:
    (row,) = FORMATS[kind](io.BytesIO(data), "a", limit).read_rows()
    assert isinstance(row, Row)
    return row.reason, len(row.texts)


def _nested_parts() -> bytes:
    inner = _MIXED % b"c" + b"--c\n\nx\n" * 20 + b"--c--\n"
    return _MIXED % b"b" + (b"--b\n" + inner) * 20 + b"--b--"


OF_MANY: dict[str, tuple[str, Callable[[], bytes]]] = {
    "attributes": ("html", lambda: b"<p " + b" ".join(b"a%d=x" % n for n in range(999)) + b">x"),
    "elements": ("html", lambda: b"<p>x</p>" * 999),
    "words of a sentence": ("html", lambda: b"<b>x</b>" * 999),
    "unknown tags": ("html", lambda: b"<x-a>" * 999),
    "levels": ("html", lambda: b"<div>" * 999 + b"x"),
    "escapes": ("html", lambda: b"<p title='" + b"&amp;amp;" * 2_999 + b"'>"),
    "header fields": ("mail", lambda: b"a: b\n" * 999 + b"\nx"),
    "parts": ("mail", lambda: _MIXED % b"b" + b"--b\n\nx\n" * 999 + b"--b--"),
    "parts of parts": ("mail", _nested_parts),
    "attributes of a page in a mail": ("mail", lambda: b"Content-Type: text/html\n\n" + b"<p>x</p>" * 999),
    "paragraphs": ("docx", lambda: word("<w:p><w:r><w:t>x</w:t></w:r></w:p>" * 999)),
    "empty elements": ("docx", lambda: word("<w:a/>" * 9_999)),
    "attributes of Word": ("docx", lambda: word("<w:p " + " ".join(f"a{n}='x'" for n in range(9_999)) + "/>")),
}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits, a five hundredth of what they are."""
    for module in (document_formats, html_format, mail_format, word_format):
        monkeypatch.setattr(module, "MAX_ELEMENTS", _FEW)
    monkeypatch.setattr(document_formats.limit_count, "__defaults__", (_FEW,))
    monkeypatch.setattr(word_format, "_MAX_MARKUP", 8 * _FEW)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("what", OF_MANY)
def test_a_document_of_too_many_elements_is_refused_with_a_reason(what: str) -> None:
    kind, made = OF_MANY[what]
    assert _reason_and_texts(kind, made()) == ("too_many_elements", 0)


def test_the_limits_are_far_above_large_documents() -> None:
    entry = b'<li class="row a"><a href="https://example.org/%d" title="see it">text</a> and more</li>\n'
    assert document_formats.MAX_ELEMENTS >= 60_000 * 4
    reason, texts = _reason_and_texts("html", b"".join(entry % n for n in range(2_000)))
    assert reason is None
    assert texts * 30 < document_formats.MAX_ELEMENTS, "60,000 such entries would be read"
    assert _reason_and_texts("mail", _MIXED % b"b" + b"--b\n\nx\n" * 300 + b"--b--")[0] is None


def _drawn(stream: bytes) -> bytes:
    """A PDF file whose page draws ``stream``."""
    return pdf(f"x) Tj ET {stream.decode()} BT /F1 12 Tf (y")


def test_forms_and_operators_of_a_pdf_file_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _reason_and_texts("pdf", _drawn(b"q Q " * 200)) == (None, 1)
    monkeypatch.setattr(document_formats._DrawingBudget, "_MAX_OPERATORS", 600)
    assert _reason_and_texts("pdf", _drawn(b"q Q " * 50)) == (None, 1)
    assert _reason_and_texts("pdf", _drawn(b"q Q " * 250)) == ("too_many_elements", 0)
    monkeypatch.setattr(document_formats._DrawingBudget, "_MAX_FORMS", 3)
    assert _reason_and_texts("pdf", _drawn(b"/No Do " * 9)) == ("too_many_elements", 0)


def test_images_of_a_word_file_are_not_unpacked() -> None:
    image = {"word/media/image1.png": b"\0" * 6 * MIB}
    assert _reason_and_texts("docx", word(**image)) == (None, 1)
    text = {"word/footer1.xml": b"<a>" + b" " * 6 * MIB + b"</a>"}
    assert _reason_and_texts("docx", word(**text)) == ("row_too_long", 0)


@pytest.mark.parametrize("packed", ["gz", "zst", "bz2"])
def test_by_default_a_file_may_hold_two_hundred_times_its_size(folder: Path, packed: str) -> None:
    path = folder / f"default.jsonl.{packed}"
    pack = {"gz": gzip.compress, "zst": zstandard.compress, "bz2": bz2.compress}[packed]
    path.write_bytes(pack(b'{"text": "first"}\n' + (b" " * 999 + b"\n") * 20_000))
    assert _reasons(_all(path, format="jsonl")) == ["expanding_file"]
    assert _reasons(_all(path, format="jsonl", max_expansion=1e6)) == []


def test_by_default_a_dictionary_may_not_repeat_one_text_for_ever(folder: Path) -> None:
    path = folder / "default.parquet"
    text = pa.array(["x" * 900_000])
    pq.write_table(pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * 9_999), text)}), path)
    entries = _all(path)
    assert _reasons(entries) == ["expanding_file"]
    assert len(_texts(entries)) < 20


@pytest.mark.parametrize("name", ["blank.jsonl", "blank.csv", "blank.tsv"])
def test_blank_lines_are_counted(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Format, "max_blank_lines", 50)
    path, head = folder / name, b'{"text": "a"}\n' if "jsonl" in name else b"text\na\n"
    for count, reasons in ((50, []), (51, ["expanding_file"])):
        path.write_bytes(head + b"\n" * count)
        assert (_texts(_all(path)), _reasons(_all(path))) == (["a"], reasons)
        with path.open("rb") as file:
            reader = choose_reader(path.suffix[1:], file)(file, name, MIB, Fields(("text",)))
            with pytest.raises(ExpandingFile) if reasons else nullcontext():
                list(reader.read_rows())


def test_what_a_form_draws_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that reads PDF files goes on after an error inside of a form, without its text."""
    form = b"<< /Type /XObject /Subtype /Form /BBox [0 0 1 1] /Resources << /Font << /F1 5 0 R >> >> "
    data = _drawn(b"/A Do").replace(b"/F1 5 0 R >> >>", b"/F1 5 0 R >> /XObject << /A 6 0 R >> >>")
    drawn = form + b"/Length 1600 >>\nstream\n" + b"q Q " * 400 + b"\nendstream"
    data = data.replace(b"xref\n0 6", b"6 0 obj\n" + drawn + b"\nendobj\nxref\n0 6", 1)
    assert _reason_and_texts("pdf", data) == (None, 1)
    monkeypatch.setattr(document_formats._DrawingBudget, "_MAX_OPERATORS", 600)
    assert _reason_and_texts("pdf", data) == ("too_many_elements", 0)


def test_escapes_of_several_letters_move_no_later_change() -> None:
    written = "&nvlt; &amp; &nvlt; Anna &amp; b"
    node = document_formats.Node(written, escapes=document_formats.VALUE_ESCAPES)
    start = node.text.index("Anna")
    change = node.map_edit(Edit(start, start + 4, "X"))
    assert written[change.start : change.end] == "Anna"


def test_what_is_put_into_a_mailbox_begins_no_message() -> None:
    data = b"From x\nSubject: a\n\nbody\n"
    (row,) = FORMATS["mbox"](io.BytesIO(data), "a", MIB).read_rows()
    assert isinstance(row, Row)
    assert row.render is not None
    changes = [[Edit(0, 4, "a\n\nFrom b")] if text.startswith("body") else [] for text in row.texts]
    assert b"a\n\n>From b" in row.render(changes, {})
