"""Read and write Excel workbooks (.xlsx): every sheet is a table, whose first row with a value is the header.

:mod:`openpyxl` reads the values, and the copy is a new workbook of them, with the formatting that holds no text. A
formula becomes its last value. Left out are charts, images, pivot tables, defined names and all other parts.
"""

from __future__ import annotations

import datetime
import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, BinaryIO
from urllib.parse import unquote

from lxml import etree

from redactory.detectors.external import suppress_output
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.curation_hints import FIXES
from redactory.pipelines.readers.document_formats import (
    BROKEN_DOCUMENT,
    MAX_ELEMENTS,
    TOO_MANY_ELEMENTS,
    URL_ESCAPES,
    Node,
    ParsedDocument,
    TextGroup,
    UnreadableDocument,
    split_words,
)
from redactory.pipelines.readers.formats import (
    ROW_TOO_LONG,
    ColumnReplacements,
    ColumnSelection,
    DamagedFile,
    Edits,
    Format,
    Row,
    check_expansion,
)
from redactory.pipelines.readers.word_format import LOCAL_PATH, parse_xml, read_xml_parts
from redactory.redaction.mask import apply_edits
from redactory.redaction.replacements import ReplacedSpan


class ExcelFormat(Format):
    """A workbook. Its rows are counted through all sheets; the id of a row contains the name of its sheet."""

    name = "xlsx"
    endings = (".xlsx",)
    expansion_factor = 8.0

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read the workbook's properties, then each sheet's name, header and rows."""
        try:
            workbook, removed_parts, removed_formulas = self._load_workbook()
            self._copy = type(workbook)()
            self._copy.remove(self._copy.active)
            self._sheets = [
                _Sheet(source, self._copy.create_sheet(f"Sheet-{number}"))
                for number, source in enumerate(workbook.worksheets, 1)
            ]
            if sum(sheet.count_characters() for sheet in self._sheets) > _MAX_EXPANSION_FACTOR * self.limit:
                raise UnreadableDocument(ROW_TOO_LONG)
            for sheet in self._sheets:
                if len(sheet.rows) * len(sheet.columns) > _MAX_SPARSE_CELLS:
                    raise UnreadableDocument(TOO_MANY_ELEMENTS)
                ColumnSelection((), self.columns.selected).select_columns([*sheet.columns.values()], self.path)
            self.header = list(dict.fromkeys(name for sheet in self._sheets for name in sheet.columns.values()))
            self.columns.select_columns(self.header, self.path)
            properties = self._copy.properties
            properties.creator, properties.created = None, datetime.datetime(1970, 1, 1)
            texts = [(workbook.properties, properties, name) for name in _PROPERTIES]
            row = _read_texts(texts, dict.fromkeys(_AUTHORS, "PERSON"))
            yield replace(row, removed_parts=removed_parts, removed_formulas=removed_formulas)
            offset = 0
            for sheet in self._sheets:
                yield _read_texts(sheet.list_frame_texts(), {})
                for number, cells in sheet.rows.items():
                    yield self._read_row(sheet, number, cells, offset)
                offset += max(sheet.rows, default=0)
        except UnreadableDocument as unreadable:
            error = DamagedFile(f"{self.path} cannot be read ({unreadable}). {FIXES[str(unreadable)]}")
            error.reason = str(unreadable)
            raise error from None

    def _load_workbook(self) -> tuple[Any, int, int]:
        """Load the workbook, and count the parts and the formulas that are left out."""
        try:
            import openpyxl
        except ImportError:
            raise ConfigurationError("this format needs openpyxl: pip install 'redactory[documents]'") from None
        data, most = self.file.read(self.limit + 1), getattr(self.file, "most", None)
        if len(data) > self.limit:
            raise UnreadableDocument(ROW_TOO_LONG)
        try:
            if most is not None and zipfile.is_zipfile(io.BytesIO(data)):
                with zipfile.ZipFile(io.BytesIO(data)) as file:
                    check_expansion(self.path, sum(info.file_size for info in file.infolist()), most)
            package, *removed = _select_parts(read_xml_parts(data, self.limit))
            with suppress_output():
                return openpyxl.load_workbook(package, data_only=True, keep_links=False), *removed
        except (UnreadableDocument, InputError, MemoryError):
            raise
        except Exception:
            # a broken workbook can cause any error in the parser
            raise UnreadableDocument(BROKEN_DOCUMENT) from None

    def _read_row(self, sheet: _Sheet, number: int, cells: list[Any], offset: int) -> Row:
        sources = {sheet.columns[cell.column]: cell for cell in cells if cell.value is not None}
        is_header = number == sheet.header_row
        values: dict[str, Any] = dict.fromkeys(sheet.columns.values())
        if not is_header:
            text_columns = {*self.fields.columns, *self.fields.paths}
            values |= {name: _read_value(cell, name in text_columns) for name, cell in sources.items()}
        if self.columns.selected is not None:
            # documents: dates as a CSV file holds them
            values = {name: _format_value(v) if isinstance(v, _TIMES) else v for name, v in values.items()}
            if "id" not in {*self.columns.required, *values}:
                values["id"] = f"{self.path}:{sheet.source.title}:{number}"
        notes = [note for cell in cells for note in _read_notes(cell)]

        def render(changes: Edits, replacements: ColumnReplacements) -> None:
            sheet.dropped |= {name for name, value in replacements.items() if value is None}
            remaining = iter(changes)
            changed = self.fields.change_texts(values, lambda text: apply_edits(text, next(remaining)))
            for name, cell in sources.items():
                if is_header or (name not in replacements and changed[name] == values[name]):
                    sheet.write_cell(name, cell, cell.value if _is_error(cell) else _unescape(cell.value))
                else:
                    sheet.write_cell(name, cell, replacements.get(name, changed[name]))
            for cell, kind, target, row in notes:
                assert row.render is not None
                row.render([next(remaining) for _ in row.texts], {})
                name = sheet.columns.get(cell.column, "")
                if name not in replacements or (is_header and name not in sheet.dropped):
                    setattr(sheet.copy.cell(cell.row, cell.column), kind, target)

        # a row of comments alone is no row of the table
        is_record = sources and not is_header
        row = self._build_row(offset + number, values, render) if is_record else Row(0, render=render)
        if row.reason is not None:
            return row
        texts, spans = list(row.texts), [list[ReplacedSpan]() for _ in row.texts]
        for *_, note in notes:
            texts, spans = texts + note.texts, spans + list(map(list, note.structural_spans))
        return replace(row, texts=texts, structural_spans=spans)

    def write(self, target: BinaryIO, rendered_rows: Iterator[Any]) -> None:
        """Write the copy; a row that was not rendered is empty."""
        for _ in rendered_rows:
            pass
        for sheet in self._sheets:
            sheet.copy_layout()
        if all(sheet.copy.sheet_state != "visible" for sheet in self._sheets):
            self._sheets[0].copy.sheet_state = "visible"
        buffer = io.BytesIO()
        self._copy.save(buffer)
        # without the time of writing, so that the same input gives the same bytes
        with zipfile.ZipFile(buffer) as saved, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
            for name in saved.namelist():
                part = saved.read(name)
                if name == "docProps/core.xml":
                    part = re.sub(rb"(<dcterms:modified[^>]*>)[^<]*", rb"\g<1>1970-01-01T00:00:00Z", part)
                file.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)


# Values.

_TIMES = (datetime.date, datetime.time, datetime.timedelta)
_ERROR = re.compile(r"#(?:NULL!|DIV/0!|VALUE!|REF!|NAME\?|NUM!|N/A)")
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")
_UNWRITABLE = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _unescape(value: Any) -> Any:
    """Return a text as Excel shows it, and any other value as it is."""
    if not isinstance(value, str):
        return value
    return _UNWRITABLE.sub("\ufffd", _ESCAPE.sub(lambda match: chr(int(match[1], 16)), value))


def _is_error(cell: Any) -> bool:
    return cell.data_type == "e" and _ERROR.fullmatch(cell.value) is not None


def _read_value(cell: Any, is_text: bool) -> Any:
    """Return the value of a cell, as a text if its column holds texts; an error of a formula is no value."""
    if is_text:
        return _format_value(_unescape(cell.value))
    return None if _is_error(cell) else _unescape(cell.value)


def _format_value(value: Any) -> str:
    return str(value).removesuffix(" 00:00:00") if isinstance(value, datetime.datetime) else str(value)


# Sheets.

_HEADERS = ("oddHeader", "oddFooter", "evenHeader", "evenFooter", "firstHeader", "firstFooter")
_NUMBER_FORMAT = re.compile(r"(?:[\d#?.,%/:;@dmyhsEe+()_* \-\\$€£¥]|General|AM/PM|\[(?:Red|Blue|Green|h+|m+|s+)\])*")
"""A number format without a text."""
_MAX_TITLE_LENGTH, _MAX_WIDTHS = 28, 1 << 10
_MAX_EXPANSION_FACTOR = 8
"""Maximum characters of all cells, as a multiple of the row limit: cells can share one text."""


@dataclass
class _Sheet:
    """A sheet and its copy; ``columns`` are the names by column number, a letter for a column without a header."""

    source: Any
    copy: Any
    rows: dict[int, list[Any]] = field(init=False)
    header_row: int = 0
    columns: dict[int, str] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    _styles: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Group the cells into rows, and read the header."""
        # only stored cells: an empty sheet may claim billions
        stored = [cell for _, cell in sorted(self.source._cells.items())]
        cells = [cell for cell in stored if cell.value is not None or cell.comment is not None]
        self.rows = {number: list(row) for number, row in groupby(cells, lambda cell: cell.row)}
        filled = [cell for cell in cells if cell.value is not None]
        if filled:
            self.header_row = filled[0].row
        names = {cell.column: str(_unescape(cell.value)) for cell in filled if cell.row == self.header_row}
        letters = {cell.column: cell.column_letter for cell in filled}
        self.columns = {n: names[n] if names.get(n, "").strip() else letter for n, letter in sorted(letters.items())}

    def count_characters(self) -> int:
        """Count the characters of all cells, which may share one text."""
        return sum(len(cell.value) for row in self.rows.values() for cell in row if isinstance(cell.value, str))

    @property
    def title(self) -> str:
        """The name of the sheet."""
        return str(self.source.title)

    @title.setter
    def title(self, text: str) -> None:
        self.copy.title = re.sub(r"[\[\]:*?/\\\x00-\x1f]", "_", text).strip("'")[:_MAX_TITLE_LENGTH] or self.copy.title

    def list_frame_texts(self) -> list[_Place]:
        """List the sheet's name, headers and footers."""
        headers = [(getattr(self.source, kind), getattr(self.copy, kind)) for kind in _HEADERS]
        places = ("left", "center", "right")
        parts = [(getattr(a, place), getattr(b, place), "text") for a, b in headers for place in places]
        return [(self, self, "title"), *parts]

    def write_cell(self, name: str, cell: Any, value: Any) -> None:
        """Write a cell, unless its column is dropped; a text that begins with = is not a formula."""
        if name in self.dropped:
            return
        new = self.copy.cell(cell.row, cell.column)
        if isinstance(value, str):
            value = re.sub("_(?=x[0-9A-Fa-f]{4}_)", "_x005F_", _UNWRITABLE.sub("\ufffd", value))
        new.value = value
        if isinstance(value, str):
            new.data_type = "e" if _is_error(cell) and value == cell.value else "s"
        if cell.has_style:
            self._copy_style(cell, new)

    def _copy_style(self, cell: Any, new: Any) -> None:
        key = tuple(cell._style)
        if key not in self._styles:
            # the name of a font is a text
            font = copy(cell.font)
            font.name = new.font.name
            new.font, new.fill, new.border = font, copy(cell.fill), copy(cell.border)
            new.alignment = copy(cell.alignment)
            if _NUMBER_FORMAT.fullmatch(cell.number_format):
                new.number_format = cell.number_format
            self._styles[key] = new._style
        new._style = copy(self._styles[key])

    def copy_layout(self) -> None:
        """Remove the dropped columns, and copy what holds no text; if columns are dropped, only the visibility."""
        self.copy.sheet_state = self.source.sheet_state
        if dropped := sorted(column for column, name in self.columns.items() if name in self.dropped):
            for column in reversed(dropped):
                self.copy.delete_cols(column)
            for cell in self.copy._cells.values():
                if cell.hyperlink is not None:
                    cell.hyperlink.ref = cell.coordinate
            return
        for merged in self.source.merged_cells.ranges:
            self.copy.merge_cells(merged.coord)
        self.copy.freeze_panes = self.source.freeze_panes
        for letter, dimension in list(self.source.column_dimensions.items())[:_MAX_WIDTHS]:
            self.copy.column_dimensions[letter].width = dimension.width


# Texts outside of cells.

_AUTHORS = ("creator", "lastModifiedBy")
_PROPERTIES = ("title", "subject", "description", "keywords", "category", *_AUTHORS)
_Place = tuple[Any, Any, str]
"""An object of the workbook, that of its copy, and the name of an attribute that is a text."""


def _read_texts(places: Sequence[_Place], labels: Mapping[str, str], author: str = "") -> Row:
    """Make a row of texts that are set in the copy; with a label for its attribute, a whole text is masked.

    Excel begins a comment with the name of its ``author``.
    """
    texts = [_unescape(getattr(source, name) or "") for source, _, name in places]
    groups = [
        TextGroup([Node(text, partial(texts.__setitem__, index), URL_ESCAPES)]) for index, text in enumerate(texts)
    ]
    for group, (_, _, name) in zip(groups, places, strict=True):
        if group.text and name in labels:
            group.structural_spans.append(ReplacedSpan(0, len(group.text), labels[name]))
    if author:
        matches = re.finditer(rf"(?<!\w){re.escape(author)}(?!\w)", groups[0].text)
        groups[0].structural_spans += [ReplacedSpan(*match.span(), "PERSON") for match in matches]

    def write() -> bytes:
        for (_, target, name), text in zip(places, texts, strict=True):
            if text:
                setattr(target, name, text.replace("<", "%3C").replace(">", "%3E") if name == "target" else text)
        return b""

    return ParsedDocument(groups, write).make_row(0)


def _read_notes(cell: Any) -> Iterator[tuple[Any, str, Any, Row]]:
    """Read the comment and the link of a cell, each with its copy; a link within the workbook is left out."""
    from openpyxl.comments import Comment
    from openpyxl.worksheet.hyperlink import Hyperlink

    if (comment := cell.comment) is not None:
        new, author = Comment("", ""), _unescape(comment.author or "").strip()
        texts = [(comment, new, name) for name in ("text", "author")]
        yield cell, "comment", new, _read_texts(texts, {"author": "PERSON"}, author)
    if (link := cell.hyperlink) is not None and link.target:
        new = Hyperlink(ref="")
        labels = {"target": "IDENTIFIER"} if LOCAL_PATH.match(unquote(link.target)) else {}
        yield cell, "hyperlink", new, _read_texts([(link, new, name) for name in ("target", "tooltip")], labels)


# Parts of the package: openpyxl gets only those that are read.

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_PACKAGE = "{http://schemas.openxmlformats.org/package/2006/"
_WORKBOOK, _WORKSHEET = f"{{{_MAIN}}}workbook", f"{{{_MAIN}}}worksheet"
_ROOTS = {_WORKBOOK, _WORKSHEET, *(f"{{{_MAIN}}}{name}" for name in ("sst", "styleSheet", "comments"))}
_ROOTS |= {f"{_PACKAGE}{name}" for name in ("content-types}Types", "relationships}Relationships")}
_ROOTS |= {f"{_PACKAGE}metadata/core-properties}}coreProperties"}
_LINKS = split_words("officeDocument core-properties worksheet sharedStrings styles comments hyperlink")
_ELEMENTS = {
    _WORKBOOK: split_words("workbookPr sheets"),
    _WORKSHEET: split_words("sheetViews sheetFormatPr cols sheetData mergeCells hyperlinks headerFooter"),
}
_UNCOUNTED = re.compile(
    r"docProps/app\.xml|xl/(?:theme|tables|printerSettings|calcChain|metadata)\b.*|xl/drawings/\w+\.vml"
)
"""Parts without contents that somebody may miss."""
_MAX_CELLS, _MAX_SPARSE_CELLS, _MAX_MARKUP = 1 << 20, 1 << 24, 32 * MAX_ELEMENTS


def _select_parts(parts: Mapping[str, bytes]) -> tuple[io.BytesIO, int, int]:
    """Return a package of the parts that are read, how many parts and names are not, and formulas without a value."""
    package, sheets, roots, removed, formulas, cells = io.BytesIO(), set[str](), list[str](), 0, 0, 0
    with zipfile.ZipFile(package, "w") as file:
        for name in sorted(parts, key=lambda name: not name.endswith(".rels")):
            root = next(etree.iterparse(io.BytesIO(parts[name]), ("start",)))[1].tag if parts[name] else ""
            if root not in _ROOTS:
                removed += not _UNCOUNTED.fullmatch(name)
                continue
            roots.append(root)
            tree = parse_xml(parts[name], _MAX_MARKUP)
            for link in list(tree.iterfind(f"{_PACKAGE}relationships}}Relationship")):
                kind = link.get("Type", "").rpartition("/")[2]
                if kind not in _LINKS:
                    tree.remove(link)
                sheets |= {link.get("Id")} if kind == "worksheet" else set()
            for element in list(tree) if root in _ELEMENTS else []:
                if etree.QName(element).localname not in _ELEMENTS[root]:
                    removed += _count_elements(element, "definedName[not(starts-with(@name, '_xlnm'))]")
                    tree.remove(element)
            for sheet in list(tree.iterfind(f"{{{_MAIN}}}sheets/*")):
                if not sheets.intersection(sheet.attrib.values()):
                    # a chart
                    sheet.getparent().remove(sheet)
            formulas += _count_elements(tree, "c[m:f and not(m:v != '') and not(@t = 'str')]")
            cells += _count_cells(tree)
            file.writestr(name, etree.tostring(tree, encoding="UTF-8"))
    if cells > _MAX_CELLS:
        raise UnreadableDocument(TOO_MANY_ELEMENTS)
    if not sheets or roots.count(_WORKSHEET) != len(sheets):
        # openpyxl would skip a sheet
        raise UnreadableDocument(BROKEN_DOCUMENT)
    return package, removed, formulas


def _count_elements(tree: Any, path: str) -> int:
    return int(tree.xpath(f"count(.//m:{path})", namespaces={"m": _MAIN}))


def _count_cells(tree: Any) -> int:
    """Count the cells of a sheet, and those of its ranges, each of which openpyxl creates."""
    from openpyxl.utils import range_boundaries

    count = _count_elements(tree, "c")
    for element in tree.iter(*(f"{{{_MAIN}}}{name}" for name in ("mergeCell", "hyperlink", "comment"))):
        first, top, last, bottom = range_boundaries(element.get("ref", ""))
        count += (abs(last - first) + 1) * (abs(bottom - top) + 1)
    return count
