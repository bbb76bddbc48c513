"""Excel workbooks and Outlook messages: what a copy keeps, and that no planted value survives in any part of it."""

from __future__ import annotations

import datetime
import email
import email.policy
import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl.cell.rich_text import CellRichText, TextBlock
from openpyxl.cell.text import InlineFont
from openpyxl.chart import BarChart
from openpyxl.comments import Comment
from openpyxl.formatting.rule import FormulaRule
from openpyxl.packaging.custom import StringProperty
from openpyxl.styles import Alignment, Font, NamedStyle, PatternFill
from openpyxl.workbook.defined_name import DefinedName
from openpyxl.worksheet.datavalidation import DataValidation
from openpyxl.worksheet.hyperlink import Hyperlink
from openpyxl.worksheet.table import Table

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.documents.redact import redact
from redactory.pipelines.documents.redact_io import find_copy_sources, require_matching_format
from redactory.pipelines.documents.unmask import unmask
from redactory.pipelines.json_paths import Fields
from redactory.pipelines.readers import Document, Rejection, find_sources, read_documents
from redactory.pipelines.readers.documents import InputSettings
from redactory.pipelines.readers.formats import FORMATS, Row
from tests.pipelines import outlook_files as ol
from tests.pipelines.outlook_files import write_msg
from tests.pipelines.test_document_corners import BASE64, ESCAPED, PERCENT, SECRET, is_left

PATTERNS: dict[str, Any] = {"detect": {"tagger": None}}
COLUMNS = {"columns": {"name": "PERSON", "price": "keep"}}
Change = Callable[[Any], Any]


def book(change: Change = lambda _: None, edit: Callable[[str, bytes], bytes] | None = None, **parts: bytes) -> bytes:
    """A workbook with one sheet of columns name, note and price, changed by ``change``; ``edit`` changes its parts."""
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    for row in (["name", "note", "price"], ["x", "hello", 1.5], ["y", "good bye", 2]):
        sheet.append(row)
    change(workbook)
    buffer, result = io.BytesIO(), io.BytesIO()
    workbook.save(buffer)
    with zipfile.ZipFile(buffer) as saved, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as file:
        for name in saved.namelist():
            if name not in parts:
                file.writestr(name, edit(name, saved.read(name)) if edit else saved.read(name))
        for name, part in parts.items():
            file.writestr(name, part)
    return result.getvalue()


def cell(place: str, value: Any) -> Change:
    return lambda workbook: workbook.active.__setitem__(place, value)


def sheet_xml(old: str, new: str, name: str = "xl/worksheets/sheet1.xml") -> Callable[[str, bytes], bytes]:
    def edit(part: str, data: bytes) -> bytes:
        assert part != name or old.encode() in data
        return data.replace(old.encode(), new.encode(), 1) if part == name else data

    return edit


def in_all_headers(workbook: Any) -> None:
    for kind in ("oddHeader", "oddFooter", "evenHeader", "evenFooter", "firstHeader", "firstFooter"):
        for place in ("left", "center", "right"):
            getattr(getattr(workbook.active, kind), place).text = f"of {SECRET}"


def in_all_properties(workbook: Any) -> None:
    properties = workbook.properties
    for name in ("title", "subject", "description", "keywords", "category", "identifier", "version", "contentStatus"):
        setattr(properties, name, SECRET)
    properties.creator, properties.lastModifiedBy = "Kovacs", "Ann Kovacs"


def with_chart(workbook: Any) -> None:
    chart = BarChart()
    chart.title = SECRET
    workbook.active.add_chart(chart, "E5")


def with_style(workbook: Any) -> None:
    style = NamedStyle(SECRET[:25], font=Font(name=SECRET), number_format=f'"{SECRET}" 0')
    workbook.active["C2"].style = style
    workbook.active["C3"].number_format = f'0 "{SECRET}"'
    workbook.active["B2"].font = Font(name=SECRET)


LINK = Hyperlink(ref="B2", target=f"https://x.example/?to={PERCENT}", tooltip=SECRET, location=SECRET, display=SECRET)
RULE = FormulaRule(formula=[f'B2="{SECRET}"'], fill=PatternFill("solid"))
VALIDATION = DataValidation("list", f'"{SECRET},x"', error=SECRET, prompt=SECRET, promptTitle=SECRET, sqref="B2")
FORMULA = '<c r="B2"><f>CONCAT("ann.","kovacs@example.org")</f><v></v></c>'
HELLO = '<c r="B2" t="inlineStr"><is><t>hello</t></is></c>'
SHARED = {
    "[Content_Types].xml": '</Types>:<Override PartName="/xl/sharedStrings.xml" ContentType="application/'
    'vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"/></Types>',
    "xl/_rels/workbook.xml.rels": '</Relationships>:<Relationship Id="rId99" Target="sharedStrings.xml" Type="http'
    '%3a//schemas.openxmlformats.org/officeDocument/2006/relationships/sharedStrings"/></Relationships>',
    "xl/worksheets/sheet1.xml": f'{HELLO}:<c r="B2" t="s"><v>0</v></c>',
}


def shared(strings: str, declaration: str = "") -> bytes:
    """A workbook whose cell B2 is the first of the shared ``strings``."""

    def edit(name: str, data: bytes) -> bytes:
        old, _, new = SHARED.get(name, ":").partition(":")
        assert old.encode() in data
        return data.replace(old.encode(), new.replace("%3a", ":").encode()) if old else data

    root = f'<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">{strings}</sst>'
    return book(edit=edit, **{"xl/sharedStrings.xml": (declaration + root).encode()})


RICH = CellRichText(["to ", TextBlock(InlineFont(b=True), SECRET[:5]), SECRET[5:], " now"])
HIDDEN = "".join(f"_x{ord(letter):04x}_" for letter in SECRET)
BOOKS = {
    "cell": book(cell("B2", f"write to {SECRET}")),
    "whole column": book(cell("A2", "Ann Kovacs")),
    "number of the whole column": book(cell("A2", f"=1&{SECRET}")),
    "column without a header": book(cell("D3", SECRET)),
    "rich text": book(cell("B2", RICH)),
    "escaped letters": book(cell("B2", HIDDEN)),
    "text after =": book(cell("B2", f'="{SECRET}"')),
    "formula": book(edit=sheet_xml(HELLO, FORMULA)),
    "value of a formula": book(edit=sheet_xml(HELLO, f'<c r="B2" t="str"><f>A9</f><v>{SECRET}</v></c>')),
    "inline": book(edit=sheet_xml(HELLO, f'<c r="B2" t="inlineStr"><is><t>{SECRET}</t></is></c>')),
    "shared string": shared(f"<si><t>{SECRET}</t></si>"),
    "runs of a shared string": shared(f"<si><r><t>{SECRET[:5]}</t></r><r><t>{SECRET[5:]}</t></r></si>"),
    "phonetic": shared(f"<si><t>x</t><rPh sb='0' eb='1'><t>{SECRET}</t></rPh></si>"),
    "unused string": shared(f"<si><t>x</t></si><si><t>{SECRET}</t></si>"),
    "false error": book(edit=sheet_xml(HELLO, f'<c r="B2" t="e"><v>{SECRET}</v></c>')),
    "comment of the file": book(edit=sheet_xml("<sheetData>", f"<!-- {SECRET} --><?x {SECRET}?><sheetData>")),
    "unknown element": book(edit=sheet_xml("</worksheet>", f'<x y="{SECRET}">{SECRET}</x></worksheet>')),
    "comment": book(lambda b: setattr(b.active["B2"], "comment", Comment(f"Kovacs:\nto {SECRET}", "Kovacs"))),
    "comment of an empty cell": book(lambda b: setattr(b.active["F9"], "comment", Comment(SECRET, "x"))),
    "comment of the header": book(lambda b: setattr(b.active["A1"], "comment", Comment(SECRET, "Ann Kovacs"))),
    "link": book(lambda b: setattr(b.active["B2"], "hyperlink", LINK)),
    "link of an empty cell": book(lambda b: setattr(b.active["B9"], "hyperlink", LINK)),
    "link of the whole column": book(lambda b: setattr(b.active["A2"], "hyperlink", "people/kovacs.html")),
    "link to a file": book(lambda b: setattr(b.active["B2"], "hyperlink", "file:///C:/Users/kovacs/a.xlsx")),
    "name of a sheet": book(lambda b: setattr(b.active, "title", SECRET)),
    "name of a hidden sheet": book(lambda b: setattr(b.create_sheet(SECRET), "sheet_state", "veryHidden")),
    "headers and footers": book(in_all_headers),
    "properties": book(in_all_properties),
    "custom property": book(lambda b: b.custom_doc_props.append(StringProperty(name="kovacs", value=SECRET))),
    "defined name": book(lambda b: b.defined_names.add(DefinedName("kovacs", attr_text=f'"{SECRET}"', comment=SECRET))),
    "validation": book(lambda b: b.active.add_data_validation(VALIDATION)),
    "conditional format": book(lambda b: b.active.conditional_formatting.add("B2:B3", RULE)),
    "table": book(lambda b: b.active.add_table(Table(name="kovacs", displayName="kovacs", ref="A1:C3"))),
    "chart": book(with_chart),
    "styles": book(with_style),
    "tab": book(lambda b: setattr(b.active.sheet_properties, "codeName", "kovacs")),
    "application": book(**{"docProps/app.xml": f"<Properties><Manager>{SECRET}</Manager></Properties>".encode()}),
    "pivot cache": book(**{"xl/pivotCache/pivotCacheRecords1.xml": b'<r><s v="kovacs"/></r>'}),
    "threaded comment": book(**{"xl/persons/person.xml": b'<p><person displayName="Kovacs"/></p>'}),
    "other workbook": book(**{"xl/externalLinks/externalLink1.xml": f"<x><v>{SECRET}</v></x>".encode()}),
    "image": book(**{"xl/media/kovacs.png": SECRET.encode()}),
    "macros": book(**{"xl/vbaProject.bin": SECRET.encode("utf-16-le")}),
    "own part": book(**{"customXml/item1.xml": f"<a>{SECRET}</a>".encode("utf-16")}),
    "base64": book(**{"customXml/item1.xml": f"<a>{BASE64}{ESCAPED}</a>".encode()}),
}


@pytest.mark.parametrize("name", BOOKS)
def test_a_value_in_any_part_of_a_workbook_is_not_in_the_copy(name: str, tmp_path: Path) -> None:
    assert name in ("escaped letters", "formula") or is_left(BOOKS[name])
    (tmp_path / "a.xlsx").write_bytes(BOOKS[name])
    columns = COLUMNS["columns"] | ({"D": "IDENTIFIER"} if name == "column without a header" else {})
    summary = redact(
        tmp_path / "a.xlsx", tmp_path / "b.xlsx", {"columns": columns}, text_columns=["note"], config=PATTERNS
    )
    copy = (tmp_path / "b.xlsx").read_bytes()
    assert not is_left(copy)
    sheet = openpyxl.load_workbook(io.BytesIO(copy)).worksheets[0]
    assert not any("x00" in str(cell.value) for row in sheet for cell in row), "an escaped letter"
    assert [sheet[place].value for place in ("A1", "B1", "C1", "A3", "B3", "C3")] == [
        *("name", "note", "price", "<MASK>", "good bye", 2)
    ]
    rows = 3 if name == "link of an empty cell" else 2
    assert (summary["rows"], summary["written"], summary["quarantined"]) == (rows, rows, {})


def test_the_parts_that_a_copy_lacks_are_counted(tmp_path: Path) -> None:
    lost = {
        *("custom property", "defined name", "chart", "pivot cache", "threaded comment", "other workbook"),
        *("image", "macros", "own part", "base64"),
    }
    formulas = {"formula", "text after =", "number of the whole column"}
    for name, data in BOOKS.items():
        file = io.BytesIO(data)
        rows = [row for row in FORMATS["xlsx"](file, "a", 1 << 24).read_rows() if isinstance(row, Row)]
        assert (name, sum(row.removed_parts for row in rows) > 0) == (name, name in lost)
        assert (name, sum(row.removed_formulas for row in rows) > 0) == (name, name in formulas)


def copy_without_masks(data: bytes, text_columns: tuple[str, ...] = ("note",)) -> Any:
    reader = FORMATS["xlsx"](io.BytesIO(data), "a.xlsx", 1 << 24, Fields(text_columns))
    rows = (row for row in reader.read_rows() if isinstance(row, Row) and row.render is not None)
    buffer = io.BytesIO()
    reader.write(buffer, (row.render([[]] * len(row.texts), {}) for row in rows if row.render))
    return openpyxl.load_workbook(buffer)


WRITABLE = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff")
VALUES = st.one_of(
    st.none(),
    st.integers(-(10**12), 10**12),
    st.floats(-1e9, 1e9).map(lambda number: round(number, 3)),
    st.booleans(),
    st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(2090, 1, 1)).map(lambda t: t.replace(microsecond=0)),
    st.text(WRITABLE, min_size=1, max_size=9),
    st.sampled_from(["=1+1", "+1", "_x005F_x0041_", "#N/A", " a ", "a\nb", "007"]),
)


@given(st.lists(st.tuples(VALUES, VALUES), max_size=4))
def test_the_other_values_of_a_workbook_stay(rows: list[tuple[Any, Any]]) -> None:
    workbook = openpyxl.Workbook()
    sheet = workbook.active
    sheet.append(["note", "b"])
    for number, row in enumerate(rows, 2):
        for column, value in enumerate(row, 1):
            target = sheet.cell(number, column, value)
            target.data_type = "s" if isinstance(value, str) else target.data_type
    buffer = io.BytesIO()
    workbook.save(buffer)
    made = copy_without_masks(buffer.getvalue()).active
    read = openpyxl.load_workbook(buffer).active
    assert [[c.value for c in row] for row in made.iter_rows(values_only=False)] == [
        [c.value for c in row] for row in read.iter_rows()
    ]
    assert all(c.data_type != "f" for row in made.iter_rows() for c in row)


def test_a_copy_keeps_its_look(tmp_path: Path) -> None:
    def change(workbook: Any) -> None:
        sheet = workbook.active
        sheet["B1"].font, sheet["B1"].fill = Font(b=True, color="FF0000"), PatternFill("solid", fgColor="00FF00")
        sheet["B2"].alignment, sheet["C2"].number_format = Alignment(wrap_text=True), "0.00"
        sheet["A5"], sheet["A9"] = datetime.datetime(2024, 5, 1), "after a gap"
        sheet.merge_cells("A9:C9")
        sheet.column_dimensions["B"].width, sheet.freeze_panes = 40, "A2"
        workbook.create_sheet("Hidden").sheet_state = "hidden"

    made = copy_without_masks(book(change))
    sheet = made.active
    assert (sheet["B1"].font.b, sheet["B1"].font.color.rgb, sheet["B1"].fill.fgColor.rgb) == (
        True,
        "00FF0000",
        "0000FF00",
    )
    assert (sheet["B2"].alignment.wrap_text, sheet["C2"].number_format) == (True, "0.00")
    assert (sheet["A5"].value, sheet["A9"].value) == (datetime.datetime(2024, 5, 1), "after a gap")
    assert [str(merged) for merged in sheet.merged_cells.ranges] == ["A9:C9"]
    assert (sheet.column_dimensions["B"].width, sheet.freeze_panes) == (40, "A2")
    assert [(s.title, s.sheet_state) for s in made.worksheets] == [("Sheet", "visible"), ("Hidden", "hidden")]


def test_columns_of_a_workbook_are_declared_like_those_of_a_table(tmp_path: Path) -> None:
    def change(workbook: Any) -> None:
        sheet = workbook.active
        sheet["A2"], sheet["B2"], sheet["B3"] = "Quirin Ozols", "ozols called", 12345678901234
        sheet["D2"], sheet["A2"].comment = "no header", Comment("of the name", "x")
        sheet["C2"].comment = Comment("of the price", "x")
        workbook.create_sheet("More").append(["other"])
        workbook["More"].append(["a text"])

    (tmp_path / "a.xlsx").write_bytes(book(change))
    with pytest.raises(
        ConfigurationError, match=r"copied unmasked: name \(personal by its name in 1 of 3 rows\), D \(.* and other \("
    ):
        redact(tmp_path / "a.xlsx", tmp_path / "b.xlsx", text_columns=["note"], config=PATTERNS)
    options = {"columns": {"name": "drop", "D": "PERSON", "other": "keep"}}
    redact(tmp_path / "a.xlsx", tmp_path / "b.xlsx", options, text_columns=["note"], config=PATTERNS)
    made = openpyxl.load_workbook(tmp_path / "b.xlsx")
    rows = [list(row) for row in made.worksheets[0].values]
    # the value of a dropped column is known in the row, and a long number is text in a column of texts
    assert rows == [["note", "price", None], ["<MASK> called", 1.5, "<MASK>"], ["<MASK>", 2, None]]
    comments = {c.coordinate: c.comment.text for row in made.worksheets[0].iter_rows() for c in row if c.comment}
    assert comments == {"B2": "of the price"}
    assert [list(row) for row in made["More"].values] == [["other"], ["a text"]]


def test_the_copy_of_a_workbook_is_the_same_each_time_and_can_be_unmasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDACTORY_KEY", "ab" * 32)
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "cd" * 32)
    (tmp_path / "a.xlsx").write_bytes(book(lambda b: b.active.__setitem__("B2", f"write to {SECRET}")))
    vault = {"replace": "pseudonym", "vault": str(tmp_path / "vault")}
    for name in ("b.xlsx", "c.xlsx"):
        redact(tmp_path / "a.xlsx", tmp_path / name, COLUMNS | vault, text_columns=["note"], config=PATTERNS)
    assert (tmp_path / "b.xlsx").read_bytes() == (tmp_path / "c.xlsx").read_bytes()
    assert not is_left((tmp_path / "b.xlsx").read_bytes())
    unmask(tmp_path / "b.xlsx", tmp_path / "d.xlsx", tmp_path / "vault")
    made, source = (list(openpyxl.load_workbook(tmp_path / name).active.values) for name in ("d.xlsx", "a.xlsx"))
    assert made == source


def test_a_row_of_a_workbook_is_a_document(tmp_path: Path) -> None:
    def change(workbook: Any) -> None:
        workbook.active.title = "May"
        workbook.active["D1"], workbook.active["D2"] = "day", datetime.datetime(2024, 5, 1)
        for row in (["note"], [None], ["of June"], [17]):
            workbook.create_sheet("June") if "June" not in workbook.sheetnames else None
            workbook["June"].append(row)
        workbook.create_sheet("Help").append(["how to read this"])
        workbook["Help"].append(["some words"])

    (tmp_path / "a.xlsx").write_bytes(book(change))
    settings = InputSettings(path=(str(tmp_path / "a.xlsx"),), text="note")
    (source,) = find_sources(settings.path, "auto")
    entries = list(read_documents(source, settings))
    documents = [(entry.doc_id, entry.row, entry.text) for entry in entries if isinstance(entry, Document)]
    assert documents == [("a.xlsx:May:2", 2, "hello"), ("a.xlsx:May:3", 3, "good bye"), ("a.xlsx:June:3", 6, "of June")]
    rejections = [(entry.reason, entry.row) for entry in entries if isinstance(entry, Rejection)]
    assert rejections == [("text_not_string", 7), ("missing_text", 9)]
    kept = InputSettings(path=settings.path, text="note", metadata_columns=("day",), id="name")
    (first, *_) = read_documents(source, kept)
    assert isinstance(first, Document)
    assert (first.doc_id, first.kept) == ("x", '["2024-05-01"]')


MERGED = '<mergeCells><mergeCell ref="A1:XFD1048576"/></mergeCells></worksheet>'
LINKS = '<hyperlinks><hyperlink ref="A1:XFD1048576" location="x"/></hyperlinks></worksheet>'
SPARSE = "".join(f'<row r="{n}"><c r="A{n}"><v>1</v></c></row>' for n in range(10, 2_000))
WIDE = '<row r="9">' + "".join(f'<c r="{openpyxl.utils.get_column_letter(n)}9"><v>1</v></c>' for n in range(1, 16_000))
STRICT = "http://purl.oclc.org/ooxml/spreadsheetml/main"
BROKEN_BOOKS = {
    "no archive": (b"PK nothing", "broken_document"),
    "cut": (book()[:-200], "broken_document"),
    "encrypted": (b"\xd0\xcf\x11\xe0" + bytes(2_000), "encrypted_document"),
    "DTD": (shared("<si><t>&b;</t></si>", "<!DOCTYPE a [<!ENTITY b 'c'>]>"), "broken_document"),
    "no sheet": (book(edit=lambda name, data: data if "sheet1" not in name else b""), "broken_document"),
    "strict": (
        book(
            edit=lambda _, data: data.replace(
                b"http://schemas.openxmlformats.org/spreadsheetml/2006/main", STRICT.encode()
            )
        ),
        "broken_document",
    ),
    "string out of range": (shared(""), "broken_document"),
    "huge merge": (book(edit=sheet_xml("</worksheet>", MERGED)), "too_many_elements"),
    "huge link": (book(edit=sheet_xml("</worksheet>", LINKS)), "too_many_elements"),
    "link of columns": (book(edit=sheet_xml("</worksheet>", LINKS.replace("1:XFD1048576", ":XFD"))), "broken_document"),
    "wide and long": (
        book(edit=sheet_xml("</sheetData>", WIDE + "</row>" + SPARSE + "</sheetData>")),
        "too_many_elements",
    ),
    "bomb": (book(**{"xl/sharedStrings.xml": b" " * (1 << 25)}), "expanding_file"),
    "large": (book(**{"xl/sharedStrings.xml": b" " * (1 << 20)}), "row_too_long"),
}


@pytest.mark.parametrize("name", BROKEN_BOOKS)
def test_a_workbook_that_cannot_be_read_whole_is_left_out_with_a_reason(name: str, tmp_path: Path) -> None:
    data, reason = BROKEN_BOOKS[name]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.xlsx").write_bytes(data)
    (tmp_path / "in/b.xlsx").write_bytes(book())
    rows = {"max_row_bytes": 1 << 18} if name == "large" else {"max_row_bytes": 1 << 24}
    config = PATTERNS | {"input": {"path": "unused", **rows}}
    summary = redact(tmp_path / "in", tmp_path / "out", COLUMNS, text_columns=["note"], config=config)
    assert summary["files_left_out"] == {reason: 1}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.xlsx"]
    assert f'"{reason}"' in (tmp_path / "out.quarantine.jsonl").read_text()
    with pytest.raises(InputError, match=r"a\.xlsx"):
        redact(tmp_path / "in/a.xlsx", tmp_path / "c.xlsx", COLUMNS, text_columns=["note"], config=config)
    assert not list(tmp_path.glob("c.xlsx*"))


@given(data=st.binary(max_size=300), at=st.integers(0, 4_000))
def test_no_damage_lets_a_workbook_keep_an_address(data: bytes, at: int) -> None:
    source = book(cell("B2", SECRET))
    damaged = source[:at] + data + source[at + len(data) :]
    try:
        rows = [row for row in FORMATS["xlsx"](io.BytesIO(damaged), "a", 1 << 20).read_rows() if isinstance(row, Row)]
    except InputError:
        return
    assert all(row.reason is None for row in rows)


# Outlook.

MAIL: dict[int, ol.Property] = {ol.SUBJECT: "hello", ol.BODY: "See you.\r\n", ol.SENDER_NAME: "x"}
HTML_SECRET = f"<p title='{SECRET}'>to <b>{SECRET[:5]}</b>{SECRET[5:]}<!-- {SECRET} --></p>".encode()
ITEMS = {
    "subject": write_msg(MAIL | {ol.SUBJECT: f"for {SECRET}"}),
    "body": write_msg(MAIL | {ol.BODY: f"to {SECRET}"}),
    "long body": write_msg(MAIL | {ol.BODY: f"to {SECRET} " + "x " * 5_000}),
    "page": write_msg(MAIL | {ol.HTML: HTML_SECRET}),
    "page without a text": write_msg({ol.SUBJECT: "x", ol.HTML: HTML_SECRET}),
    "page in latin-1": write_msg(MAIL | {ol.HTML: "é ".encode("latin-1") + HTML_SECRET, ol.CODE_PAGE: 28591}),
    "sender": write_msg(MAIL | {ol.SENDER_NAME: 'Kovacs, "Ann"', ol.SENDER_ADDRESS: SECRET}),
    "sender of Exchange": write_msg(MAIL | {ol.SENDER_NAME: "", 0x0C1F: "/O=ORG/OU=X/CN=RECIPIENTS/CN=KOVACS"}),
    "sender in a header": write_msg(
        {ol.SUBJECT: "x", ol.BODY: "x", ol.TRANSPORT_HEADERS: f"From: =?utf-8?q?=4bovacs?=\r\n <{SECRET}>\r\n\r\n"}
    ),
    "recipients": write_msg(
        MAIL,
        [{ol.DISPLAY_NAME: "Kovacs; Ann", ol.SMTP_ADDRESS: SECRET, ol.RECIPIENT_TYPE: type_} for type_ in range(9)],
    ),
    "headers": write_msg(MAIL | {ol.TRANSPORT_HEADERS: f"X-To: {SECRET}\r\nReceived: from kovacs.example\r\n"}),
    "number": write_msg(MAIL | {ol.MESSAGE_ID: "<1@kovacs.example>"}),
    "attachment": write_msg(MAIL, [], [{ol.ATTACHMENT_NAME: "kovacs.txt", ol.ATTACHMENT_DATA: SECRET.encode()}]),
    "rich text": write_msg(MAIL | {ol.RTF: SECRET.encode()}),
    "unknown property": write_msg(MAIL | {0x8001: SECRET, 0x8002: SECRET.encode()}),
    "broken lines": write_msg(
        MAIL | {ol.SUBJECT: f"x\r\nX-Own: {SECRET}\r\n\r\n{SECRET}", ol.BODY: f".\r\nTo: {SECRET}"}
    ),
}


@pytest.mark.parametrize("name", ITEMS)
def test_a_value_in_any_part_of_a_message_is_not_in_its_copy(name: str, tmp_path: Path) -> None:
    assert is_left(ITEMS[name])
    (tmp_path / "a.msg").write_bytes(ITEMS[name])
    summary = redact(tmp_path / "a.msg", tmp_path / "a.eml", config=PATTERNS)
    copy = (tmp_path / "a.eml").read_bytes()
    assert not is_left(copy)
    assert email.message_from_bytes(copy, policy=email.policy.default)["Subject"]
    assert (summary["quarantined"], summary["taken_out"]) == ({}, int(name == "attachment"))
    assert summary["converted"] == {"msg": 1}


FULL = write_msg(
    {
        ol.SUBJECT: "Café",
        ol.BODY: "See you.\r\nBye",
        ol.HTML: "<p>See <b>you</b>. é</p>".encode(),
        ol.SENDER_NAME: "Ann Kovacs",
        ol.SENDER_ADDRESS: SECRET,
        ol.SENT: 133_000_000_000_000_000,
    },
    [
        {ol.DISPLAY_NAME: "Bob", ol.SMTP_ADDRESS: "bob@example.org", ol.RECIPIENT_TYPE: 1},
        {ol.DISPLAY_NAME: "eve@example.org", ol.SMTP_ADDRESS: "eve@example.org", ol.RECIPIENT_TYPE: 2},
    ],
    [{ol.ATTACHMENT_NAME: "a.pdf", ol.ATTACHMENT_DATA: b"x" * 9_000}],
)


def test_a_message_of_outlook_becomes_the_same_mail(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.msg").write_bytes(FULL)
    summary = redact(tmp_path / "in", tmp_path / "out", config={"detect": {"tagger": None, "patterns": None}})
    assert summary["converted"] == {"msg": 1}
    copy = (tmp_path / "out/a.msg.eml").read_bytes()
    message = email.message_from_bytes(copy, policy=email.policy.default)
    for people in (b'From: "<MASK>" <<MASK>>', b'To: "<MASK>" <<MASK>>', b"Cc: <<MASK>>"):
        assert people in copy.splitlines()
    assert (message["Subject"], message["Date"]) == ("Café", "Sat, 18 Jun 2022 04:26:40 +0000")
    texts = [part.get_content() for part in message.walk() if not part.is_multipart()]
    assert texts == [
        "See you.\nBye\n",
        "<html><body><p>See <b>you</b>. é</p></body></html>\n",
        "An attachment was taken out.\n",
    ]


def test_of_a_message_of_outlook_the_subject_and_the_text_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.msg").write_bytes(FULL)
    settings = InputSettings(path=(str(tmp_path / "a.msg"),))
    (source,) = find_sources(settings.path, "auto")
    (document,) = read_documents(source, settings)
    assert isinstance(document, Document)
    assert document.doc_id == "a.msg"
    assert document.text.split() == ["Café", "See", "you.", "Bye", "See", "you.", "é"]


def share_stream(data: bytes) -> bytes:
    """Let every property claim four megabytes."""
    return re.sub(
        rb"(?s)(_\x00_\x00s\x00u\x00b.{111})....", lambda match: match[1] + (1 << 22).to_bytes(4, "little"), data
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 broken", "broken_document"),
        (b"Subject: not Outlook\n\nx", "broken_document"),
        (FULL[:3_000], "broken_document"),
        (write_msg(MAIL | {ol.CLASS: "IPM.Contact"}), "not_a_message"),
        (write_msg(MAIL | {ol.CLASS: "IPM.Notebook"}), "not_a_message"),
        (write_msg(MAIL | {ol.CLASS: ""}), "not_a_message"),
        (write_msg(MAIL | {ol.CLASS: "IPM.Note.SMIME.MultipartSigned"}), "encrypted_document"),
        (write_msg({ol.SUBJECT: "x", ol.BODY: " ", ol.RTF: b"x"}), "document_without_text"),
        (write_msg(MAIL | {ol.HTML: b"caf\xe9"}), "undecodable"),
        (write_msg(MAIL | {ol.HTML: b"x", ol.CODE_PAGE: 1}), "broken_document"),
        (write_msg(MAIL | {ol.BODY: "a\0b"}), "undecodable"),
        (share_stream(write_msg(MAIL | dict.fromkeys(range(0x6000, 0x60C0), b"x" * 5_000))), "row_too_long"),
    ],
)
def test_a_message_that_cannot_be_read_whole_is_left_out(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.msg").write_bytes(data)
    summary = redact(tmp_path / "a.msg", tmp_path / "a.eml", config=PATTERNS)
    assert summary["quarantined"] == {reason: 1}
    assert not (tmp_path / "a.eml").exists()


@given(at=st.integers(0, len(FULL)), data=st.binary(min_size=1, max_size=40))
def test_no_damage_breaks_the_reader_of_messages(at: int, data: bytes) -> None:
    damaged = FULL[:at] + data + FULL[at + len(data) :]
    (row,) = FORMATS["msg"](io.BytesIO(damaged), "a", 1 << 20).read_rows()
    assert isinstance(row, Row)


# Names of copies.

ENDINGS = {name: FORMATS[FORMATS[name].written_format or name].endings for name in FORMATS}


@pytest.mark.parametrize("format_", ENDINGS)
def test_a_copy_has_no_name_of_another_format(format_: str, tmp_path: Path) -> None:
    (tmp_path / f"in{FORMATS[format_].endings[0]}").write_bytes(b"x")
    sources = find_copy_sources(str(tmp_path / f"in{FORMATS[format_].endings[0]}"), "auto")
    others = {ending for endings in ENDINGS.values() for ending in endings} - {*ENDINGS[format_]}
    for ending in ENDINGS[format_]:
        require_matching_format(f"out{ending.upper()}.gz", *sources)
    for ending in (*others, *FORMATS[format_].endings * bool(FORMATS[format_].written_format), ".xls", ".doc"):
        for name in (f"out{ending}", f"out{ending.upper()}.gz"):
            with pytest.raises(ConfigurationError, match=rf"give out\{ENDINGS[format_][0]}"):
                require_matching_format(name, *sources)


def test_cells_that_share_one_text_are_limited() -> None:
    data = book(lambda workbook: [workbook.active.append(["n" * 4_000]) for _ in range(4_000)])
    with pytest.raises(InputError, match="row_too_long"):
        list(FORMATS["xlsx"](io.BytesIO(data), "a.xlsx", 1 << 20).read_records())
