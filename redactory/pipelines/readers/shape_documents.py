"""Shapes of documents: HTML, mail, mailboxes and Word files are written again; of PDF the text alone.

What a document holds besides text (images, attachments) cannot be looked at: it is taken out, and the row
says how often.
"""

from __future__ import annotations

import base64
import email
import email.policy
import html
import io
import quopri
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.header import decode_header, make_header
from email.message import Message
from email.utils import getaddresses
from typing import Any, BinaryIO, cast

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.readers.formats import CHUNK, ROW_TOO_LONG, UNDECODABLE, Columns, Format, Record
from redactory.pipelines.readers.shape import BYTE_ORDER_MARK, SHAPES, Edits, Render, Row, Shape, Whole
from redactory.pipelines.readers.shape_rows import JsonArray
from redactory.redaction.replacements import Edit, Found, edited


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BROKEN, ENCRYPTED, NO_TEXT = "broken_document", "encrypted_document", "document_without_text"


class OneRow(Shape):
    """A file that is one row, held in whole."""

    def rows(self) -> Iterator[Row | bytes]:
        """The one row, or why it cannot be read."""
        data = self.file.read(self.limit + 1)
        if len(data) > self.limit:
            yield Row(1, reason=ROW_TOO_LONG)
            return
        try:
            yield self.row(data)
        except _Unreadable as error:
            yield Row(1, reason=str(error))

    def row(self, data: bytes) -> Row:
        """The row that a file is."""
        raise NotImplementedError


class _Unreadable(Exception):
    """A document cannot be read; the argument is the reason code."""


# A text that lies in several places: a sentence with a word in bold.


@dataclass
class Node:
    """A piece of text in a document: what it says, and what it says now."""

    text: str
    place: Any = None
    new: str | None = None


def distribute(nodes: Sequence[Node], changes: Sequence[Edit]) -> None:
    """Apply the changes of the joined text: the first node that one touches has what is new."""
    position = 0
    own: list[Edit]
    for node in nodes:
        start, end = position, position + len(node.text)
        own = []
        for first, last, new, _ in changes:
            if first < end and last > start:
                own.append(
                    Edit(max(first, start) - start, min(last, end) - start, new if first >= start else "")
                )
        node.new = edited(node.text, own) if own else None
        position = end


def _joined(groups: Sequence[Sequence[Node]]) -> list[str]:
    return ["".join(node.text for node in group) for group in groups]


# HTML: everything that is not surely a tag is text.

_TAG = re.compile(
    r"<!--.*?-->|<(?P<raw>script|style)\b[^<>]*>.*?</(?P=raw)\s*+>|<!doctype\s[^<>]*>|<\?xml\s[^<>]*>"
    r"|</?[a-z][\w:-]*+(?:\s++[\w:.@-]++(?:\s*+=\s*+(?:\"[^\"<>]*+\"|'[^'<>]*+'|[^\s\"'<>=]++))?)*+\s*+/?>",
    re.DOTALL | re.IGNORECASE,
)
_INSIDE = re.compile(r"<!--(.*)-->|<(?:script|style)\b[^>]*>(.*)</\w+\s*>", re.DOTALL | re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""\s([\w:.-]+)\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")
_STRUCTURE = _words(
    """
    class id style rel type lang dir width height charset role method target colspan rowspan align
    valign border http-equiv name for tabindex media sizes loading bgcolor color face size cellpadding
    cellspacing
    """
)
_INLINE = _words(
    """
    a abbr b bdi bdo big cite code data del dfn em font i img ins kbd label mark q s samp small span
    strike strong sub sup time tt u var wbr
    """
)
_CHARSET = re.compile(rb"""<meta[^>]+charset\s*=\s*["']?([\w-]+)""", re.IGNORECASE)


class Html(OneRow):
    """Text between tags, and in attributes and comments; a tag inside a sentence does not end it."""

    names = ("html",)

    def row(self, data: bytes) -> Row:
        """Decoded as the document says, or as UTF-8."""
        named = _CHARSET.search(data[:4096])
        charset = named[1].decode() if named else "utf-8"
        try:
            text = data.decode(charset)
        except (UnicodeDecodeError, LookupError):
            raise _Unreadable(UNDECODABLE) from None
        return Row(1, *html_row(text, lambda new: new.encode(charset, "xmlcharrefreplace")))


def html_row(text: str, done: Any) -> tuple[list[str], dict[str, Any], Render]:
    """The texts of an HTML document, and how it is rendered; ``done`` makes of the result what is written."""
    groups = html_groups(text)

    def render(changes: Edits, _: Whole) -> Any:
        return done(rendered_html(text, groups, changes))

    return _joined(groups), {}, render


def html_groups(text: str) -> list[list[Node]]:
    """The texts of an HTML document: nodes of one sentence together, each attribute by itself."""
    groups: list[list[Node]] = []
    flow: list[Node] = []
    position = 0
    for tag in (*_TAG.finditer(text), None):
        end = len(text) if tag is None else tag.start()
        if position < end:
            flow.append(Node(html.unescape(text[position:end]), (position, end)))
        if tag is None:
            break
        position = tag.end()
        name = (re.match(r"</?([a-zA-Z][\w:-]*)", tag[0]) or ("", ""))[1].lower()
        if name not in _INLINE:
            groups, flow = [*groups, flow], []
        inner = _INSIDE.fullmatch(tag[0])
        if inner is not None and inner.lastindex is not None:
            start, end = inner.span(inner.lastindex)
            groups.append([Node(tag[0][start:end], (tag.start() + start, tag.start() + end, "as it is"))])
        if not tag[0].startswith("<!--"):
            groups += [[node] for node in _attributes(tag[0].partition(">")[0], tag.start())]
    return [group for group in (*groups, flow) if any(node.text.strip() for node in group)]


def _attributes(tag: str, start: int) -> Iterator[Node]:
    """The values of a tag's attributes that say something, for a tag that begins at ``start``."""
    for found in _ATTRIBUTE.finditer(tag):
        group = next(n for n in (2, 3, 4) if found[n] is not None)
        if found[1].lower() not in _STRUCTURE and found[group].strip():
            yield Node(html.unescape(found[group]), (start + found.start(group), start + found.end(group)))


def rendered_html(text: str, groups: Sequence[Sequence[Node]], changes: Edits) -> str:
    """The document with changes to its texts."""
    for group, own in zip(groups, changes, strict=True):
        distribute(group, own)
    news = [
        Edit(node.place[0], node.place[1], node.new if len(node.place) > 2 else html.escape(node.new))
        for group in groups
        for node in group
        if node.new is not None
    ]
    return edited(text, sorted(news))


# Mail: headers, and every part that is text.

_ADDRESSES = _words(
    """
    from to cc bcc reply-to sender return-path delivered-to resent-from resent-to resent-cc
    resent-sender envelope-to errors-to x-original-to disposition-notification-to x-envelope-from
    x-envelope-to
    """
)
_IDENTIFIERS = _words("message-id in-reply-to references resent-message-id content-id")
_PLAIN = _words("mime-version content-transfer-encoding content-type content-disposition status")
_SIGNATURES = ("dkim-signature", "arc-", "authentication-results", "x-google-dkim", "domainkey-signature")
_ADDRESS = re.compile(r"[^\s<>,;:\"]+@[^\s<>,;:\"]+")


class Mail(OneRow):
    """Headers and the parts that are text; other parts are taken out, as are signatures: they fail now."""

    names = ("mail",)

    def row(self, data: bytes) -> Row:
        """The texts of one message."""
        return mail_row(1, data)


class Mailbox(Shape):
    """Messages one after the other, each with its line ``From …``."""

    names = ("mbox",)

    def rows(self) -> Iterator[Row | bytes]:
        """A message is a row."""
        number, held, blank = 0, list[bytes](), True
        size = 0
        for line in self.file:
            if line.startswith(b"From ") and blank and held:
                number += 1
                yield self._message(number, held, size)
                held, size = [], 0
            size += len(line)
            if size <= self.limit:
                held.append(line)
            blank = not line.strip()
        if held:
            yield self._message(number + 1, held, size)

    def _message(self, number: int, lines: list[bytes], size: int) -> Row:
        if size > self.limit or not lines[0].startswith(b"From "):
            return Row(number, reason=ROW_TOO_LONG if size > self.limit else BROKEN)
        try:
            envelope = lines[0].decode()
            row = mail_row(number, b"".join(lines[1:]))
        except UnicodeDecodeError:
            return Row(number, reason=UNDECODABLE)
        except _Unreadable as error:
            return Row(number, reason=str(error))
        inner = row.render
        assert inner is not None
        sender = [Found(*found.span(), "EMAIL_ADDRESS") for found in _ADDRESS.finditer(envelope)]

        def render(changes: Edits, whole: Whole) -> bytes:
            body: bytes = inner(changes[1:], whole)
            body = re.sub(rb"^(>*From )", rb">\1", body, flags=re.MULTILINE) if b"\nFrom " in body else body
            return edited(envelope, changes[0]).encode() + body

        texts, sure = [envelope, *row.texts], [sender, *row.sure]
        return Row(number, texts, {}, render, sure=sure, taken_out=row.taken_out)


def mail_row(number: int, data: bytes) -> Row:
    """A message: the texts of its headers and parts, with what is surely a name or an address."""
    message = email.message_from_bytes(data, policy=email.policy.compat32)
    texts, sure, places = list[str](), list[list[Found]](), list[tuple[Message, str | None]]()
    groups: dict[int, tuple[str, list[list[Node]]]] = {}
    removed = []
    for part in message.walk():
        for name, value in part.items():
            if name.lower() not in _PLAIN and not name.lower().startswith(_SIGNATURES):
                said = _header(value)
                texts.append(said)
                sure.append(_sure(name.lower(), said))
                places.append((part, name))
        if part.is_multipart():
            continue
        if part.get_content_maintype() != "text":
            removed.append(part)
            continue
        said = _body(part)
        nodes = html_groups(said) if part.get_content_subtype() == "html" else [[Node(said)]]
        groups[len(texts)] = (said, nodes)
        texts += _joined(nodes)
        sure += [[] for _ in nodes]
        places += [(part, None)] * len(nodes)

    def render(changes: Edits, _: Whole) -> bytes:
        if not any(changes) and not removed and not any(map(_is_signed, message.walk())):
            return data
        _write_headers(message, texts, places, changes)
        for at, (said, nodes) in groups.items():
            own = changes[at : at + len(nodes)]
            if any(own):
                is_html = places[at][0].get_content_subtype() == "html"
                new = rendered_html(said, nodes, own) if is_html else edited(said, own[0])
                _set_body(places[at][0], new)
        for part in removed:
            _take_out(part)
        return message.as_bytes()

    return Row(number, texts, {}, render, sure=sure, taken_out=len(removed))


def _header(value: Any) -> str:
    try:
        return str(make_header(decode_header(str(value))))
    except (UnicodeDecodeError, LookupError, ValueError):
        raise _Unreadable(UNDECODABLE) from None


def _sure(name: str, value: str) -> list[Found]:
    """The names and addresses of a header of addresses, the identifiers of one of those."""
    found = [Found(*one.span(), "EMAIL_ADDRESS") for one in _ADDRESS.finditer(value)]
    if name in _IDENTIFIERS:
        return [Found(start, end, "IDENTIFIER") for start, end, _, _ in found]
    if name not in _ADDRESSES:
        return []
    for shown, _ in getaddresses([value]):
        at = value.find(shown) if shown else -1
        if at >= 0:
            found.append(Found(at, at + len(shown), "PERSON"))
    return found


def _body(part: Message) -> str:
    charset = part.get_content_charset() or "utf-8"
    payload = part.get_payload(decode=True)
    try:
        return bytes(payload or b"").decode(charset)
    except (UnicodeDecodeError, LookupError):
        raise _Unreadable(UNDECODABLE) from None


def _set_body(part: Message, text: str) -> None:
    """Another text, encoded as the old one was, or in UTF-8 where its signs are not in that charset."""
    charset = part.get_content_charset() or "utf-8"
    try:
        data = text.encode(charset)
    except UnicodeEncodeError:
        data = text.encode("utf-8")
        part.set_param("charset", "utf-8")
    encoding = str(part.get("Content-Transfer-Encoding", "7bit")).lower()
    if encoding == "base64":
        data = base64.encodebytes(data)
    elif encoding == "quoted-printable":
        data = quopri.encodestring(data)
    elif not data.isascii():
        del part["Content-Transfer-Encoding"]
        part["Content-Transfer-Encoding"] = "8bit"
    part.set_payload(data.decode("ascii", "surrogateescape"))


def _write_headers(
    message: Message, texts: Sequence[str], places: Sequence[tuple[Message, str | None]], changes: Edits
) -> None:
    """The headers of all parts anew, in their order, those that change encoded where they must be."""
    for part in message.walk():
        coming = [(n, name) for n, (own, name) in enumerate(places) if own is part and name is not None]
        kept = []
        for name, value in part.items():
            if name.lower().startswith(_SIGNATURES):
                continue
            if coming and coming[0][1] == name:
                n, _ = coming.pop(0)
                value = edited(texts[n], changes[n]) if changes[n] else value
            kept.append((name, value))
        part._headers = kept  # type: ignore[attr-defined]


def _is_signed(part: Message) -> bool:
    return any(name.lower().startswith(_SIGNATURES) for name in part.keys())  # noqa: SIM118


def _take_out(part: Message) -> None:
    """An attachment that nobody looked at: a note in its place."""
    for name in ("Content-Disposition", "Content-Transfer-Encoding", "Content-ID", "Content-Description"):
        del part[name]
    del part["Content-Type"]
    part["Content-Type"] = "text/plain"
    part.set_payload("An attachment was taken out.\n")


# Word files: the runs of a paragraph are one text.

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_READ = re.compile(
    r"word/(document|header\d*|footer\d*|footnotes|endnotes|comments\w*|people)\.xml|docProps/\w+\.xml|.*\.rels"
)
_TAKEN_OUT = re.compile(r"docProps/thumbnail\.\w+|word/embeddings/.+|word/media/.+|word/activeX/.+")
_BLANK = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
"""An image of one transparent dot."""
_AUTHORS = ("author", "initials", "lastModifiedBy", "creator", "Manager", "Company")


class Word(OneRow):
    """Paragraphs, headers, notes, comments and properties; images and embedded files are taken out."""

    names = ("docx",)

    def row(self, data: bytes) -> Row:
        """The texts of the file; authors are names for sure."""
        etree = _library("lxml.etree", "documents")
        if data.startswith(b"\xd0\xcf\x11\xe0"):
            raise _Unreadable(ENCRYPTED)
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as packed:
                parts = {info.filename: packed.read(info) for info in packed.infolist()}
            trees = {name: etree.fromstring(part) for name, part in parts.items() if _is_read(name)}
        except (zipfile.BadZipFile, etree.XMLSyntaxError, KeyError, RuntimeError, ValueError):
            raise _Unreadable(BROKEN) from None
        taken_out = {name for name in parts if _TAKEN_OUT.fullmatch(name)}
        groups: list[list[Node]] = []
        sure: list[list[Found]] = []
        for tree in trees.values():
            for group, is_author in _word_groups(tree):
                groups.append(group)
                text = "".join(node.text for node in group)
                sure.append([Found(0, len(text), "PERSON")] if is_author else [])

        def render(changes: Edits, _: Whole) -> bytes:
            if not any(changes) and not taken_out:
                return data
            for group, own in zip(groups, changes, strict=True):
                distribute(group, own)
                for node in group:
                    if node.new is not None:
                        node.place(node.new)
            written = io.BytesIO()
            with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as packed:
                for name, part in parts.items():
                    if name in trees:
                        part = etree.tostring(trees[name], encoding="UTF-8", standalone=True)
                    packed.writestr(zipfile.ZipInfo(name), _BLANK if name in taken_out else part)
            return written.getvalue()

        return Row(1, _joined(groups), {}, render, sure=sure, taken_out=len(taken_out))


def _is_read(name: str) -> bool:
    return _READ.fullmatch(name) is not None


def _word_groups(tree: Any) -> Iterator[tuple[list[Node], bool]]:
    """The texts of one part: of each paragraph, of attributes that name people, of links and properties."""
    seen = set()
    for paragraph in tree.iter(f"{_W}p"):
        runs = [run for tag in ("t", "delText", "instrText") for run in paragraph.iter(_W + tag)]
        own = [run for run in paragraph.iter() if run in set(runs) and run not in seen and run.text]
        seen |= set(own)
        if own:
            yield [Node(run.text, lambda new, run=run: setattr(run, "text", new)) for run in own], False
    for element in tree.iter():
        if not isinstance(element.tag, str):
            continue
        tag = element.tag.rpartition("}")[2]
        if not element.tag.startswith(_W) and len(element) == 0 and element.text and element.text.strip():
            yield [Node(element.text, lambda new, e=element: setattr(e, "text", new))], tag in _AUTHORS
        for name, value in element.attrib.items():
            short = name.rpartition("}")[2]
            is_link = short == "Target" and element.get("TargetMode") == "External"
            if value.strip() and (short in _AUTHORS or is_link):
                yield [Node(value, lambda new, e=element, n=name: e.set(n, new))], short in _AUTHORS


# PDF: text alone.


class Pdf(OneRow):
    """The text of the pages; what is written is text."""

    names = ("pdf",)

    def row(self, data: bytes) -> Row:
        """One text a page."""
        pypdf = _library("pypdf", "documents")
        try:
            reader = pypdf.PdfReader(io.BytesIO(data))
            if reader.is_encrypted:
                raise _Unreadable(ENCRYPTED)
            pages = [page.extract_text() or "" for page in reader.pages]
        except _Unreadable:
            raise
        except Exception:
            # whatever a broken file makes of the parser
            raise _Unreadable(BROKEN) from None
        if not any(page.strip() for page in pages):
            raise _Unreadable(NO_TEXT)

        def render(changes: Edits, _: Whole) -> bytes:
            return "\n\f".join(edited(page, own) for page, own in zip(pages, changes, strict=True)).encode()

        return Row(1, pages, {}, render)


def _library(name: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigurationError(
            f"this format needs {name.partition('.')[0]}: pip install 'redactory[{extra}]'"
        ) from None


def shape_of(format_: str, file: BinaryIO) -> type[Shape]:
    """The shape of a file of a format; JSON is an array where it begins as one."""
    start = cast(io.BufferedReader, file).peek(CHUNK).removeprefix(BYTE_ORDER_MARK).lstrip()
    return JsonArray if format_ == "jsonl" and start.startswith(b"[") else SHAPES[format_]


# As formats of an input.


class _Document(Format):
    """A document is a record, whose texts its shape gives; a mailbox has one a message."""

    is_text = True

    def records(self, file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        """The texts of a document, a blank line between two."""
        for row in SHAPES[self.name](file, name, self.name, limit).rows():
            if not isinstance(row, bytes):
                number = f"#{row.number}" if self.name == "mbox" else ""
                found = {"text": "\n\n".join(row.texts), "id": name + number}
                yield row.number, None if row.reason else found, row.reason, b""


class HtmlFormat(_Document):
    """A page."""

    name = "html"
    endings = (".html", ".htm")


class MailFormat(_Document):
    """A message."""

    name = "mail"
    endings = (".eml",)


class MailboxFormat(_Document):
    """Messages."""

    name = "mbox"
    endings = (".mbox",)


class WordFormat(_Document):
    """A Word file."""

    name = "docx"
    endings = (".docx",)


class PdfFormat(_Document):
    """The text of a PDF file."""

    name = "pdf"
    endings = (".pdf",)
