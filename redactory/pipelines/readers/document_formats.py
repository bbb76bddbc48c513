"""Read documents, one row per file: code that all document formats share, and PDF.

A parser of a library reads a document, and the copy is written anew from what was read: nothing that the parser
skips is in the copy. Of PDF, only the text is written. Unreadable content (images, attachments) is left out.
"""

from __future__ import annotations

import base64
import html
import io
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, TypeVar
from urllib.parse import unquote

from redactory.detectors.external import suppress_output
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.readers.formats import ROW_TOO_LONG, UNDECODABLE, Edits, Format, Row
from redactory.redaction.mask import Edit, apply_edits
from redactory.redaction.replacements import ReplacedSpan

BROKEN_DOCUMENT, ENCRYPTED_DOCUMENT = "broken_document", "encrypted_document"
DOCUMENT_WITHOUT_TEXT, NOT_A_MESSAGE = "document_without_text", "not_a_message"
TOO_MANY_ELEMENTS = "too_many_elements"
MAX_ELEMENTS = 1 << 18
"""Maximum texts, tags, header fields or parts of one document: each costs far more than its few bytes."""
_T = TypeVar("_T")


class UnreadableDocument(Exception):
    """A document cannot be read; the argument is a reason code."""


def limit_count(items: Iterable[_T], limit: int = MAX_ELEMENTS) -> Iterator[_T]:
    """Yield ``items``; ``UnreadableDocument`` if there are more than ``limit``."""
    for index, item in enumerate(items):
        if index >= limit:
            raise UnreadableDocument(TOO_MANY_ELEMENTS)
        yield item


def split_words(text: str) -> frozenset[str]:
    """Split a table of words."""
    return frozenset(text.split())


# Escapes: what is written, and what is read of it.

_INVISIBLE = r"[\xad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]"
_ENTITY = r"&(?:#0{0,99}[0-9]{1,9};?|#[xX]0{0,99}[0-9a-fA-F]{1,8};?|[A-Za-z][A-Za-z0-9]{1,31};?)"
_PERCENT = r"%[0-7][0-9A-Fa-f]|%[C-Fc-f][0-9A-Fa-f](?:%[89ABab][0-9A-Fa-f]){1,3}"
_BACKSLASH = (
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\u\{[0-9a-fA-F]{1,6}\}"
    r"|\\x[0-9a-fA-F]{2}|\\[nrtbf/\"'\\]"
)
INVISIBLE = re.compile(_INVISIBLE)
URL_ESCAPES = re.compile(f"{_PERCENT}|{_INVISIBLE}")
VALUE_ESCAPES = re.compile(f"{_ENTITY}|{_PERCENT}|{_INVISIBLE}")
SCRIPT_ESCAPES = re.compile(f"{_ENTITY}|{_PERCENT}|{_BACKSLASH}|{_INVISIBLE}")


def _resolve_escape(escape: str) -> str:
    if escape[0] == "&":
        return html.unescape(escape)
    if escape[0] == "%":
        try:
            return unquote(escape, errors="strict")
        except UnicodeDecodeError:
            return escape
    if escape[0] != "\\":
        return ""
    if escape[1] == "x" or escape[:3] == "\\u{":
        number = int(escape[2:].strip("{}"), 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"
    character = "'" if escape == "\\'" else str(json.loads(f'"{escape}"'))
    return character.encode("utf-8", "replace").decode()


class Node:
    """A piece of a document's text, read without escapes and invisible characters, which an edit replaces with it.

    ``write`` puts the changed source in its place; a break has no place and is not written.
    """

    def __init__(
        self,
        source: str,
        write: Callable[[str], Any] | None = None,
        escapes: re.Pattern[str] = INVISIBLE,
        escape: Callable[[str], str] = str,
    ) -> None:
        self.source, self.write, self._escape = source, write, escape
        self._escapes = list[tuple[int, int, int, int]]()
        pieces, position, offset = list[str](), 0, 0
        for match in limit_count(escapes.finditer(source), 4 * MAX_ELEMENTS):
            replacement = INVISIBLE.sub("", _resolve_escape(match[0]))
            if replacement != match[0]:
                offset += match.start() - position
                pieces += (source[position : match.start()], replacement)
                self._escapes.append((offset, len(replacement), *match.span()))
                offset, position = offset + len(replacement), match.end()
        self.text = "".join(pieces) + source[position:]

    def map_edit(self, change: Edit) -> Edit:
        """Map an edit of the text to an edit of the source."""
        index = bisect_right(self._escapes, change.start, key=itemgetter(0)) - 1
        offset, length, first, last = self._escapes[index] if index >= 0 else (0, 0, 0, 0)
        start = first if change.start < offset + length else last + change.start - offset - length
        index = bisect_left(self._escapes, change.end, key=itemgetter(0)) - 1
        offset, length, _, last = self._escapes[index] if index >= 0 else (0, 0, 0, 0)
        return Edit(start, last + max(0, change.end - offset - length), self._escape(change.new), change.kind)


@dataclass
class TextGroup:
    """Nodes that are read as one text; ``is_visible`` if readers of the document see it.

    ``structural_spans`` follow from its position in the document.
    """

    nodes: Sequence[Node]
    structural_spans: list[ReplacedSpan] = field(default_factory=list)
    is_visible: bool = False

    @property
    def text(self) -> str:
        """The joined text."""
        return "".join(node.text for node in self.nodes)


@dataclass
class ParsedDocument:
    """The texts of a document, and how to write it once they are changed."""

    groups: list[TextGroup]
    serialize: Callable[[], bytes]
    removed_parts: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    """The header fields of a mail by their names in lower case."""

    def make_row(self, number: int) -> Row:
        """Make the document's row, with encoded text as structural spans; ``UnreadableDocument`` for too many texts."""
        texts = [group.text for group in limit_count(self.groups)]

        def render(changes: Edits, _: Any) -> bytes:
            for node, edits in assign_edits_to_nodes([group.nodes for group in self.groups], changes):
                assert node.write is not None
                node.write(apply_edits(node.source, _merge_edits(map(node.map_edit, edits))))
            return self.serialize()

        return Row(
            number,
            texts,
            render=render,
            structural_spans=[
                [*group.structural_spans, *find_encoded_runs(text)]
                for group, text in zip(self.groups, texts, strict=True)
            ],
            removed_parts=self.removed_parts,
            headers=self.headers,
            visible_texts=frozenset(index for index, group in enumerate(self.groups) if group.is_visible),
        )


class WholeFileFormat(Format):
    """A file that is one row, held in memory."""

    is_text = True

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read the file as one row, which has a reason code if it cannot be read."""
        yield self.read_document(1, self.file.read(self.limit + 1))

    def read_document(self, number: int, data: bytes) -> Row:
        """Read one document as a row, which has a reason code if it cannot be read."""
        if len(data) > self.limit:
            return Row(number, reason=ROW_TOO_LONG)
        try:
            return self.parse(data).make_row(number)
        except UnreadableDocument as error:
            return Row(number, reason=str(error))
        except (ConfigurationError, MemoryError):
            raise
        except Exception:
            # a broken document can cause any error in the parser
            return Row(number, reason=BROKEN_DOCUMENT)

    def parse(self, data: bytes) -> ParsedDocument:
        """Parse the file; ``UnreadableDocument`` with a reason code if it cannot be read."""
        raise NotImplementedError


_ASCII_SAMPLES = (rb"\u0041", b"xn--bcher-kva", bytes(range(32, 127)) + b"\t\r\n")
"""ASCII that a charset must keep, so that every reader sees the same tags and headers."""


def decode_text(data: bytes, charset: str) -> str:
    """Decode ``data``; ``UnreadableDocument`` if the charset does not keep ASCII, for NUL, and for invalid bytes."""
    try:
        keeps = all(sample.decode(charset) == sample.decode("ascii") for sample in _ASCII_SAMPLES)
        text = data.decode(charset) if keeps else "\0"
    except (ValueError, LookupError):
        raise UnreadableDocument(UNDECODABLE) from None
    if "\0" in text:
        raise UnreadableDocument(UNDECODABLE)
    return text


ENCODED_BLOCK = re.compile(
    r"^begin [0-7]{3} [^\n]*\n(?:[ -`]{1,62}\r?\n)+"
    r"|(?:^[> ]{0,9}[A-Za-z0-9+/]{60,76}\r?\n){2,}[A-Za-z0-9+/=]*"
    r"|=\?[\w-]{2,40}\?[bq]\?[^?\s]*\?=",
    re.MULTILINE | re.IGNORECASE,
)
_PGP_BEGIN, _PGP_END = "-----BEGIN PGP ", "-----END PGP "
_MIN_RUN_LENGTH, _MAX_RUN_LENGTH = 16, 256
_RUN = re.compile(rf"[A-Za-z0-9+/_-]{{{_MIN_RUN_LENGTH},}}={{0,2}}")


def find_encoded_runs(text: str) -> list[ReplacedSpan]:
    """Find runs that may hide text: base64 of a text or of several lines, PGP blocks, keys, encoded words."""
    bounds = [match.span() for match in ENCODED_BLOCK.finditer(text)]
    end = 0
    while end >= 0 and (start := text.find(_PGP_BEGIN, end)) >= 0:
        end = text.find(_PGP_END, start)
        bounds.append((start, len(text) if end < 0 else end + len(_PGP_END)))
    bounds += [match.span() for match in _RUN.finditer(text) if _has_encoded_text(match[0])]
    return [ReplacedSpan(start, end, "IDENTIFIER") for start, end in bounds]


def _has_encoded_text(run: str) -> bool:
    if len(run) >= _MAX_RUN_LENGTH and not run.isalpha():
        return True
    if run.isupper() or run.islower():
        return False
    # preceding characters may look like a part of the run: try later starts
    starts = {*range(4), *(match.end() for match in re.finditer("[/_-]", run))}
    return any(_is_base64_text(run[start:]) for start in starts if len(run) - start >= _MIN_RUN_LENGTH)


def _is_base64_text(run: str) -> bool:
    """Whether the start of ``run`` is base64 of a text."""
    standard = run.rstrip("=").translate({ord("-"): "+", ord("_"): "/"})
    data = base64.b64decode(standard[: len(standard) // 4 * 4])[: _MIN_RUN_LENGTH * 3 // 4]
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # the sample may end within a character
        text = data[: error.start].decode() if error.start >= len(data) - 3 else "\0"
    return text.replace("\n", "").replace("\r", "").replace("\t", "").isprintable()


def assign_edits_to_nodes(groups: Sequence[Sequence[Node]], changes: Edits) -> list[tuple[Node, list[Edit]]]:
    """Assign the edits of each group's joined text to its nodes; return the changed nodes with their edits.

    The replacement goes into the first node that an edit touches. Edits overlap if a node is in several groups.
    """
    edits_by_node: dict[int, tuple[Node, list[Edit]]] = {}
    for group, group_edits in zip(groups, changes, strict=True):
        ends = list(accumulate(len(node.text) for node in group)) if group_edits else []
        for edit in group_edits:
            new = edit.new
            for index in range(bisect_right(ends, edit.start), bisect_left(ends, edit.end) + 1):
                node, start = group[index], ends[index] - len(group[index].text)
                if node.write is not None and node.text:
                    piece = Edit(max(edit.start, start) - start, min(edit.end, ends[index]) - start, new)
                    edits_by_node.setdefault(id(node), (node, []))[1].append(piece)
                    new = ""
    return list(edits_by_node.values())


def _merge_edits(edits: Iterable[Edit]) -> list[Edit]:
    """Sort edits, and merge overlapping ones into one with the longest replacement."""
    result: list[Edit] = []
    for edit in sorted(edits):
        if result and edit.start < result[-1].end:
            last = result.pop()
            edit = Edit(last.start, max(last.end, edit.end), max(last.new, edit.new, key=len))
        result.append(edit)
    return result


# PDF: text only.


_TRAILING_BLANKS = b"\0\t\n\f\r\x1a "
_LINEARIZED = re.compile(rb"/Linearized\b.{0,200}?/L\s+(\d{1,18})\b", re.DOTALL)


class PdfFormat(WholeFileFormat):
    """The text of a PDF file's pages; it is written as plain text."""

    name = "pdf"
    endings = (".pdf",)
    written_format = "text"

    def parse(self, data: bytes) -> ParsedDocument:
        """Extract one text per page; pages without text are counted as removed."""
        try:
            import pypdf
        except ImportError:
            raise ConfigurationError("this format needs pypdf: pip install 'redactory[documents]'") from None
        length = _LINEARIZED.search(data[:1_024])
        if not data.rstrip(_TRAILING_BLANKS).endswith(b"%%EOF") or (length and len(data) < int(length[1])):
            # truncated: pypdf would take an earlier end mark for the end of the file
            raise UnreadableDocument(BROKEN_DOCUMENT)
        with suppress_output():
            reader = pypdf.PdfReader(io.BytesIO(data))
            if reader.is_encrypted:
                raise UnreadableDocument(ENCRYPTED_DOCUMENT)
            budget = _DrawingBudget()
            # some fonts map letters to lone surrogates
            pages = [budget.extract_text(page).encode("utf-8", "replace").decode() for page in reader.pages]
        empty = sum(not page.strip() for page in pages)
        if empty == len(pages):
            raise UnreadableDocument(DOCUMENT_WITHOUT_TEXT)
        groups = [
            TextGroup([Node(page, partial(pages.__setitem__, index))], is_visible=True)
            for index, page in enumerate(pages)
        ]
        return ParsedDocument(groups, lambda: "\n\f".join(pages).encode(), empty)


class _DrawingBudget:
    """Limit what the pages of a file draw, because nested forms can repeat any number of times."""

    _MAX_OPERATORS, _PAGE_COST, _MAX_FORMS = 4 * MAX_ELEMENTS, 200, 5_000
    """Maximum operators of a file, cost of a page, and maximum forms of a page: pypdf would skip further ones."""

    def __init__(self) -> None:
        self.count = self.forms = 0

    def extract_text(self, page: Any) -> str:
        """Extract the text of a page."""
        self.count, self.forms = self.count + self._PAGE_COST, 0
        text = page.extract_text(visitor_operand_before=self._count_operator) or ""
        # pypdf ignores exceptions raised within a form
        self._check_limits()
        return text

    def _count_operator(self, operator: bytes, operands: Any, *_: Any) -> None:
        self.count += 1 + sum(len(operand) for operand in operands if isinstance(operand, list))
        self.forms += operator == b"Do"
        self._check_limits()

    def _check_limits(self) -> None:
        if self.count > self._MAX_OPERATORS or self.forms > self._MAX_FORMS:
            raise UnreadableDocument(TOO_MANY_ELEMENTS)
