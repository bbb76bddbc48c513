"""Read and write mail: headers and text parts, also of nested messages.

:mod:`email` parses a message, and a new one is written from its headers and texts. Left out are non-text parts,
signatures (which would fail), keys, file names, and text around parts. If mail readers could disagree about a
message, it is quarantined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from email import message_from_bytes
from email.contentmanager import raw_data_manager
from email.header import Header, decode_header
from email.message import EmailMessage, Message
from email.policy import SMTP, EmailPolicy
from functools import partial
from itertools import groupby
from typing import cast

from redactory.pipelines.readers.document_formats import (
    BROKEN_DOCUMENT,
    MAX_ELEMENTS,
    TOO_MANY_ELEMENTS,
    URL_ESCAPES,
    Node,
    ParsedDocument,
    TextGroup,
    UnreadableDocument,
    WholeFileFormat,
    decode_text,
    limit_count,
)
from redactory.pipelines.readers.formats import Row
from redactory.pipelines.readers.html_format import parse_html, split_words
from redactory.redaction.replacements import ReplacedSpan


class MailFormat(WholeFileFormat):
    """A file with one message."""

    name = "mail"
    endings = (".eml",)

    def parse(self, data: bytes) -> ParsedDocument:
        """Parse the message; ``UnreadableDocument`` if it is not well formed."""
        return _parse_mail(data)


class MailboxFormat(WholeFileFormat):
    """A file with several messages, each after an envelope line ``From …``, which is replaced by a neutral one."""

    name = "mbox"
    endings = (".mbox",)

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read each message as a row."""
        number, lines, size, blank = 0, list[bytes](), 0, True
        for line in iter(lambda: self.file.readline(self.limit + 1), b""):
            if line.startswith(b"From ") and blank and lines:
                number += 1
                yield self.read_document(number, b"".join(lines))
                lines, size = [], 0
            # of a message over the limit, only as much is kept as shows that it is
            if size <= self.limit:
                lines.append(line)
            size += len(line)
            blank = line in (b"\n", b"\r\n")
        if lines:
            yield self.read_document(number + 1, b"".join(lines))

    def _build_document_id(self, row: Row) -> str:
        return f"{self.path}#{row.number}"

    def parse(self, data: bytes) -> ParsedDocument:
        """Parse an envelope line and its message."""
        envelope, _, message = data.partition(b"\n")
        if not envelope.startswith(b"From ") or not message:
            raise UnreadableDocument(BROKEN_DOCUMENT)
        parsed = _parse_mail(message)
        serialize, end = parsed.serialize, b"\r\n" if envelope.endswith(b"\r") else b"\n"

        def serialize_entry() -> bytes:
            # a replacement must not begin another message
            body = re.sub(rb"(\n\r?\n)(?=From )", rb"\1>", serialize())
            return _ENVELOPE + end + body.rstrip(b"\r\n") + end + end

        parsed.serialize = serialize_entry
        return parsed


_ENVELOPE = b"From MAILER-DAEMON Thu Jan  1 00:00:00 1970"
_MAX_DEPTH = 30
_PART_COST = 20
"""Cost of a part, in texts, against the limit of elements."""
_MAX_TYPE_LENGTH = 1 << 12
"""Maximum length of a content type: the parser's time grows with its square."""
_MAX_FIELD_LENGTH = 1 << 16
_TYPE_HEADER = re.compile(rb"^content-type:[^\n]*(?:\n[ \t][^\n]*)*", re.IGNORECASE | re.MULTILINE)
_HEADER_END = re.compile(rb"\A\r?\n|\n\r?\n")
_REMOVED_NOTE = "An attachment was taken out."
_READ_SUBTYPES = split_words("plain csv html markdown tab-separated-values x-diff x-patch")
_MESSAGE_SUBTYPES = split_words("rfc822 global news")
_FIELD_SUBTYPES = split_words("delivery-status disposition-notification feedback-report")
"""Parts of ``message`` that hold blocks of header fields."""
_IDENTITY_CODINGS = ("", "7bit", "8bit", "binary")
_CUT_ESCAPE = re.compile(r"=[0-9A-Fa-f]?\Z")
_FLOWED = re.compile(r"(?<= )(?<!\n-- )\r?\n(?:>+ ?)?")
_FLOWED_TIGHT = re.compile(r"(?<!\n--) \r?\n(?:>+ ?)?")
_BOUNDARY = "=_"
"""Start of a boundary: it cannot occur in encoded text."""


def _parse_mail(data: bytes) -> ParsedDocument:
    """Parse a message and all its parts."""
    for marker, cost in ((b"\n--", _PART_COST), (b"\n", 1)):
        if data.count(marker) * cost > 8 * MAX_ELEMENTS:
            raise UnreadableDocument(TOO_MANY_ELEMENTS)
    if not _HEADER_END.search(data) or any(len(head[0]) > _MAX_TYPE_LENGTH for head in _TYPE_HEADER.finditer(data)):
        # a message truncated within its header looks like one without a body
        raise UnreadableDocument(BROKEN_DOCUMENT)
    part = _Part(message_from_bytes(data))
    policy = SMTP.clone(linesep="\r\n" if b"\r\n" in data else "\n", cte_type="7bit", refold_source="none")
    return ParsedDocument(part.groups, lambda: part.build(policy).as_bytes(), part.removed_parts)


class _Part:
    """A message or part: its header fields (name, text), and its body as children or as text.

    ``kind`` is message, part, or fields for a block of header fields without a body.
    """

    def __init__(self, message: Message, depth: int = 0, kind: str = "message") -> None:
        self.depth, self.kind = depth, kind
        self.fields, self.children = list[list[str]](), list[_Part]()
        self.groups, self.removed_parts = list[TextGroup](), 0
        self.content: Callable[[], str] = lambda: _REMOVED_NOTE
        self.subtype, self.disposition = "plain", message.get_content_disposition()
        types, codings = message.get_all("content-type", []), message.get_all("content-transfer-encoding", [])
        if message.defects or depth > _MAX_DEPTH or len(types) > 1 or len(codings) > 1:
            raise UnreadableDocument(BROKEN_DOCUMENT)
        for name, value in limit_count(message.raw_items()):
            if not _DROPPED_HEADERS.match(name):
                self._read_field(name, str(value))
        self._read_body(message, "".join(map(str, codings)).partition("(")[0].strip().lower())

    def _read_field(self, name: str, value: str) -> None:
        """Read a field, and its name, which may come from a person."""
        header = [name, _decode_header(value)]
        self.fields.append(header)
        if name.lower() not in _STANDARD_HEADERS:
            self.groups.append(TextGroup([Node(name, lambda _: header.__setitem__(0, "X-Masked"))]))
        node = Node(header[1], partial(header.__setitem__, 1), URL_ESCAPES)
        self.groups.append(TextGroup([node], _find_header_spans(name.lower(), node.text), name.lower() == "subject"))

    def _read_body(self, message: Message, coding: str) -> None:
        main, _, subtype = message.get_content_type().partition("(")[0].strip().partition("/")
        if main in ("multipart", "message"):
            is_fields = subtype in _FIELD_SUBTYPES
            children = message.get_payload() if message.is_multipart() else []
            if coding not in _IDENTITY_CODINGS or not children or self.kind == "fields":
                raise UnreadableDocument(BROKEN_DOCUMENT)
            if main == "message" and not is_fields and subtype not in _MESSAGE_SUBTYPES:
                raise UnreadableDocument(BROKEN_DOCUMENT)
            self.subtype = f"{main}/{subtype}" if main == "message" else "multipart/mixed"
            if subtype in ("alternative", "related"):
                self.subtype = f"multipart/{subtype}"
            kind = "part" if main == "multipart" else "fields" if is_fields else "message"
            for child in cast(list[Message], children):
                part = _Part(child, self.depth + 1, kind)
                self.children.append(part)
                self.groups += part.groups
                self.removed_parts += part.removed_parts
                if len(self.groups) + _PART_COST * len(self.children) > MAX_ELEMENTS:
                    raise UnreadableDocument(TOO_MANY_ELEMENTS)
        elif main == "text" and subtype in _READ_SUBTYPES:
            self._read_text(message, coding, subtype)
        else:
            self.removed_parts += 1

    def _read_text(self, message: Message, coding: str, subtype: str) -> None:
        if coding not in (*_IDENTITY_CODINGS, "quoted-printable", "base64"):
            raise UnreadableDocument(BROKEN_DOCUMENT)
        if coding:
            # without a comment or white space, with which the parser would not decode
            message.replace_header("content-transfer-encoding", coding)
        data = cast(bytes, message.get_payload(decode=True))
        if message.defects or (coding == "quoted-printable" and _CUT_ESCAPE.search(str(message.get_payload()))):
            raise UnreadableDocument(BROKEN_DOCUMENT)
        text = decode_text(data, message.get_content_charset("utf-8"))
        if self.kind == "fields":
            if text.strip():
                raise UnreadableDocument(BROKEN_DOCUMENT)
            return
        if subtype == "html":
            page = parse_html(text)
            self.groups += page.groups
            self.subtype, self.removed_parts = "html", page.removed_parts
            self.content = lambda: page.serialize().decode()
            return
        if str(message.get_param("format")).lower() == "flowed":
            pattern = _FLOWED_TIGHT if str(message.get_param("delsp")).lower() == "yes" else _FLOWED
            text = pattern.sub("", text)
        texts = [text]
        self.subtype, self.content = subtype, lambda: texts[0]
        self.groups.append(TextGroup([Node(text, partial(texts.__setitem__, 0))], is_visible=True))

    def build(self, policy: EmailPolicy[EmailMessage]) -> EmailMessage:
        """Build a message of what was read."""
        message = EmailMessage(policy)
        for name, text in self.fields:
            message.set_raw(name, _encode_header(name, text))
        if self.kind == "message":
            message.set_raw("MIME-Version", "1.0")
        if self.kind == "fields":
            message.set_payload("")
        elif self.children:
            boundary = f'; boundary="{_BOUNDARY}{self.depth}"' if self.subtype.startswith("multipart") else ""
            message.set_raw("Content-Type", self.subtype + boundary)
            message.set_payload([child.build(policy) for child in self.children])
        else:
            text = self.content()
            # encoded, a text holds no boundary
            coding = "quoted-printable" if _BOUNDARY in text else None
            disposition = self.disposition if self.disposition in ("inline", "attachment") else None
            raw_data_manager.set_content(message, text, self.subtype, disposition=disposition, cte=coding)
        return message


# Header fields.

_DROPPED_HEADERS = re.compile(
    r"content-|mime-version|x-attachment-id|dkim-|arc-|domainkey-|authentication-results|x-authentication-"
    r"|x-google-dkim|x-pgp|autocrypt|openpgp|(?:x-)?face\b|bimi-",
    re.IGNORECASE,
)
"""Fields of the body, which are written anew, signatures, which would fail, and keys, images and digests."""
_STANDARD_HEADERS = split_words(
    "from to cc bcc reply-to sender subject date message-id in-reply-to references received return-path delivered-to"
)
_FREE_TEXT_HEADERS = split_words("subject comments keywords summary organization date thread-topic")
_PEOPLE = re.compile(r"(?:^|[-_])(?:from|to|b?cc|sender|recipient|user|author|for|path)(?:[-_]|$)")
_IDENTIFIERS = re.compile(r"(?:^|[-_])(?:id|references|in-reply-to)$")
_ADDRESS = r"[^\s<>,;:\"()\[\]=@]*+@[^\s<>,;:\"()\[\]]+"
_ENTRY = re.compile(r'"((?:[^"\\]|\\.){0,200}+)"|([^\s,;:<>"()\\][^,;:<>"()]*)')
_TOKEN = re.compile(r"<[^<>]*>|[^\s<>]+")
"""An identifier. Brackets included: a mask within them would double them, where some programs stop reading."""
_TRACE = re.compile(rf"<[^<>]*>|{_ADDRESS}|(?<![\w.-])(?:[\w-]++\.)++[A-Za-z][\w-]*|\[[\d.:a-fA-F]+\]|(?<=\bid )\S+")
"""What names a person, a host or a message in any other field."""
_UNFINISHED_WORD = re.compile(r"=\?[\w-]+\?[bBqQ]\?")


def _find_header_spans(name: str, text: str) -> list[ReplacedSpan]:
    """Find addresses and their names, and in most fields also hosts and identifiers."""
    if _IDENTIFIERS.search(name):
        return [ReplacedSpan(*match.span(), "IDENTIFIER") for match in _TOKEN.finditer(text)]
    if not _PEOPLE.search(name):
        pattern = re.compile(_ADDRESS) if name in _FREE_TEXT_HEADERS else _TRACE
        return [
            ReplacedSpan(*match.span(), "EMAIL_ADDRESS" if "@" in match[0] else "IDENTIFIER")
            for match in pattern.finditer(text)
        ]
    spans = []
    for match in _ENTRY.finditer(text):
        group = 1 if match[1] is not None else 2
        entry = match[group].rstrip()
        if any(map(str.isalnum, entry)):
            label = "EMAIL_ADDRESS" if "@" in entry else "PERSON"
            spans.append(ReplacedSpan(match.start(group), match.start(group) + len(entry), label))
    return spans


def _decode_header(value: str) -> str:
    """Decode a field's value; ``UnreadableDocument`` if it is too long or a part of it cannot be decoded."""
    if len(value) > _MAX_FIELD_LENGTH:
        raise UnreadableDocument(TOO_MANY_ELEMENTS)
    text = decode_text(value.encode("ascii", "surrogateescape"), "utf-8")
    pieces = decode_header(re.sub(r"\r?\n(?=[ \t])", "", text))
    text = "".join(
        piece if isinstance(piece, str) else decode_text(piece, charset) if charset else piece.decode("latin-1")
        for piece, charset in pieces
    )
    if _UNFINISHED_WORD.search(text):
        raise UnreadableDocument(BROKEN_DOCUMENT)
    return " ".join(text.split())


def _encode_header(name: str, text: str) -> str:
    """Encode a field's value in lines of limited length; adjacent words that are not ASCII are encoded together."""
    groups = ((is_ascii, " ".join(words)) for is_ascii, words in groupby(text.split(), str.isascii))
    encoded = " ".join(words if is_ascii else Header(words, "utf-8").encode() for is_ascii, words in groups)
    return Header(" ".join(encoded.split()), header_name=name).encode(splitchars=" ")
