"""Shapes of documents: a file is one row, of which every text is read; and what these shapes share.

HTML, mail and Word files are written again, each by its chapter (:mod:`shape_html`, :mod:`shape_mail`,
:mod:`shape_word`); of PDF the text alone.  Two rules hold for all: what is not surely structure is text and
is read; what cannot be read (images, attachments, blocks of base64) does not get into the copy.
"""

from __future__ import annotations

import base64
import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.readers.formats import ROW_TOO_LONG, UNDECODABLE, Edits, Format, Row, Whole
from redactory.redaction.replacements import Edit, Found, edited

BROKEN, ENCRYPTED, NO_TEXT = "broken_document", "encrypted_document", "document_without_text"
TOO_MANY = "too_many_elements"
MOST = 1 << 18
"""Texts, tags, header fields or parts of one document: each costs far more than its few bytes."""
_T = TypeVar("_T")


class Unreadable(Exception):
    """A document cannot be read; the argument is the reason code."""


def bounded(many: Iterable[_T], most: int = MOST) -> Iterator[_T]:
    """``many``, one by one; ``Unreadable`` where there are more than ``most``."""
    for n, one in enumerate(many):
        if n >= most:
            raise Unreadable(TOO_MANY)
        yield one


@dataclass(frozen=True)
class Told:
    """What a piece of a document tells: texts, hits that follow from where they stand, how it is changed.

    ``shown`` has the places, among the texts, of those that somebody who opens the document reads.
    """

    texts: list[str]
    sure: list[list[Found]]
    render: Callable[[Edits], bytes]
    shown: frozenset[int] = frozenset()
    taken_out: int = 0


def document_row(number: int, told: Told) -> Row:
    """The row that a document is; what hides a text is a hit for sure.  ``Unreadable`` of too many texts."""
    texts = bounded(told.texts)
    sure = [[*own, *encoded(text)] for text, own in zip(texts, told.sure, strict=True)]

    def render(changes: Edits, _: Whole) -> bytes:
        return told.render(changes)

    return Row(number, told.texts, {}, render, sure=sure, taken_out=told.taken_out, shown=told.shown)


class OneRow(Format):
    """A file that is one row, held in whole."""

    is_text = True

    def rows(self) -> Iterator[Row | bytes]:
        """The one row, or why it cannot be read."""
        data = self.file.read(self.limit + 1)
        if len(data) > self.limit:
            yield Row(1, reason=ROW_TOO_LONG)
            return
        try:
            yield document_row(1, self.told(data))
        except Unreadable as error:
            yield Row(1, reason=str(error))

    def told(self, data: bytes) -> Told:
        """What a file tells; ``Unreadable`` says why it cannot be read."""
        raise NotImplementedError


# What is written, and what is read of it.

_SAMPLES = (rb"\u0041", b"xn--bcher-kva", bytes(range(32, 127)) + b"\t\r\n")
"""What a charset must leave as it is, so that tags and headers are those that every reader sees."""


def decoded(data: bytes, charset: str) -> str:
    """``data`` in a charset that keeps ASCII; ``Unreadable`` for another one, for NUL, for wrong bytes."""
    try:
        keeps = all(sample.decode(charset) == sample.decode("ascii") for sample in _SAMPLES)
        text = data.decode(charset) if keeps else "\0"
    except (ValueError, LookupError):
        raise Unreadable(UNDECODABLE) from None
    if "\0" in text:
        raise Unreadable(UNDECODABLE)
    return text


_BLOCK = re.compile(
    r"^begin [0-7]{3} [^\n]*\n(?:[ -`]{1,62}\r?\n)+"
    r"|(?:^[> ]{0,9}[A-Za-z0-9+/]{60,76}\r?\n){2,}[A-Za-z0-9+/=]*"
    r"|=\?[\w-]{2,40}\?[bq]\?[^?\s]*\?=",
    re.MULTILINE | re.IGNORECASE,
)
_KEYS, _KEYS_END = "-----BEGIN PGP ", "-----END PGP "
_SHORTEST_RUN, _LONGEST_RUN = 16, 256
_RUN = re.compile(rf"[A-Za-z0-9+/_-]{{{_SHORTEST_RUN},}}={{0,2}}")


def encoded(text: str) -> list[Found]:
    """Stretches that may say what nobody reads: base64 of a text or of several lines, keys, encoded words."""
    spans = [found.span() for found in _BLOCK.finditer(text)]
    end = 0
    while end >= 0 and (start := text.find(_KEYS, end)) >= 0:
        end = text.find(_KEYS_END, start)
        spans.append((start, len(text) if end < 0 else end + len(_KEYS_END)))
    spans += [one.span() for one in _RUN.finditer(text) if _hides_text(one[0])]
    return [Found(start, end, "IDENTIFIER") for start, end in spans]


def _hides_text(run: str) -> bool:
    if len(run) >= _LONGEST_RUN and not run.isalpha():
        return True
    if run.isupper() or run.islower():
        return False
    # what stands before it may look like a part of it
    starts = {*range(4), *(found.end() for found in re.finditer("[/_-]", run))}
    return any(_is_text(run[start:]) for start in starts if len(run) - start >= _SHORTEST_RUN)


def _is_text(run: str) -> bool:
    """Whether ``run`` is base64 of a text, as far as its first signs tell."""
    plain = run.rstrip("=").translate({ord("-"): "+", ord("_"): "/"})
    said = base64.b64decode(plain[: len(plain) // 4 * 4])[: _SHORTEST_RUN * 3 // 4]
    try:
        text = said.decode()
    except UnicodeDecodeError as error:
        # a letter that is cut in two
        text = said[: error.start].decode() if error.start >= len(said) - 3 else "\0"
    return text.replace("\n", "").replace("\r", "").replace("\t", "").isprintable()


@dataclass
class Node:
    """A piece of text in a document, and the place where it is written.

    One without a place stands for a break: nothing is written for it.
    """

    text: str
    place: Any = None


def gathered(groups: Sequence[Sequence[Node]], changes: Edits) -> list[tuple[Node, list[Edit]]]:
    """The nodes that change, with their changes; those of a group are read as one text.

    The first node that a change touches has what is new.  A node can be in several groups: where their
    changes overlap, they become one.
    """
    found: dict[int, tuple[Node, list[Edit]]] = {}
    for group, own in zip(groups, changes, strict=True):
        position = at = 0
        is_written = set[int]()
        for node in group if own else ():
            start, end = position, position + len(node.text)
            position = end
            while at < len(own) and own[at].end <= start:
                at += 1
            for n in range(at, len(own)):
                if own[n].start >= end:
                    break
                if node.place is not None and start < end:
                    new = "" if n in is_written else own[n].new
                    is_written.add(n)
                    edit = Edit(max(own[n].start, start) - start, min(own[n].end, end) - start, new)
                    found.setdefault(id(node), (node, []))[1].append(edit)
    return [(node, merged(edits)) for node, edits in found.values()]


def merged(edits: Sequence[Edit]) -> list[Edit]:
    """``edits`` in order; of those that overlap one, with the longest of what is to stand there."""
    result: list[Edit] = []
    for edit in sorted(edits):
        if result and edit.start < result[-1].end:
            last = result.pop()
            edit = Edit(last.start, max(last.end, edit.end), max(last.new, edit.new, key=len))
        result.append(edit)
    return result


def joined(groups: Sequence[Sequence[Node]]) -> list[str]:
    """The text of each group."""
    return ["".join(node.text for node in group) for group in groups]


# PDF: text alone.


_BLANKS = b"\0\t\n\f\r\x1a "
_LINEARIZED = re.compile(rb"/Linearized\b.{0,200}?/L\s+(\d{1,18})\b", re.DOTALL)


class Pdf(OneRow):
    """The text of the pages; what is written is text."""

    name = "pdf"
    endings = (".pdf",)

    def told(self, data: bytes) -> Told:
        """One text a page; a page without text is one that is taken out."""
        pypdf = library("pypdf", "documents")
        length = _LINEARIZED.search(data[:1_024])
        if not data.rstrip(_BLANKS).endswith(b"%%EOF") or (length and len(data) < int(length[1])):
            # cut off: an earlier end inside of it would be taken for its own
            raise Unreadable(BROKEN)
        try:
            with _silent("pypdf"):
                reader = pypdf.PdfReader(io.BytesIO(data))
                if reader.is_encrypted:
                    raise Unreadable(ENCRYPTED)
                budget = _Operators()
                pages = [budget.text_of(page) for page in reader.pages]
        except Unreadable:
            raise
        except Exception:
            # whatever a broken file makes of the parser
            raise Unreadable(BROKEN) from None
        # the letters of some fonts are known by numbers alone
        pages = [page.encode("utf-8", "replace").decode() for page in pages]
        empty = sum(not page.strip() for page in pages)
        if empty == len(pages):
            raise Unreadable(NO_TEXT)

        def render(changes: Edits) -> bytes:
            return "\n\f".join(edited(page, own) for page, own in zip(pages, changes, strict=True)).encode()

        return Told(pages, [[] for _ in pages], render, frozenset(range(len(pages))), empty)


class _Operators:
    """Counts what the pages of a file draw; forms that draw forms may be drawn any number of times."""

    _MOST, _PAGE, _FORMS = 4 * MOST, 200, 5_000
    """What a file may draw, what a page counts for, and the forms of a page: pypdf leaves out others."""

    def __init__(self) -> None:
        self.count = self.forms = 0

    def text_of(self, page: Any) -> str:
        """The text of a page."""
        self.count, self.forms = self.count + self._PAGE, 0
        text = page.extract_text(visitor_operand_before=self._add) or ""
        # pypdf passes over what is raised inside of a form
        self._check()
        return text

    def _add(self, operator: bytes, operands: Any, *_: Any) -> None:
        self.count += 1 + sum(len(one) for one in operands if isinstance(one, list))
        self.forms += operator == b"Do"
        self._check()

    def _check(self) -> None:
        if self.count > self._MOST or self.forms > self._FORMS:
            raise Unreadable(TOO_MANY)


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Without the log of a library that quotes the files that it reads."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def library(name: str, extra: str) -> Any:
    """The module of a library that an extra of the package brings; ``ConfigurationError`` without it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigurationError(
            f"this format needs {name.partition('.')[0]}: pip install 'redactory[{extra}]'"
        ) from None
