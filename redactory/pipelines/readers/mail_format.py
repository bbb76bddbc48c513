"""Read and write mail: headers and text parts, also of nested messages and of Outlook's.

:mod:`email` parses a message, and a new one is written from its headers and texts. Left out are non-text parts,
signatures (which would fail), keys, file names, and text around parts. Common mistakes of mail programs are fixed
where the text is certain; any other message is quarantined, and a nested one is removed and counted. No free library
writes Outlook's ``.msg``, but Outlook opens ``.eml``.
"""

from __future__ import annotations

import base64
import codecs
import io
import quopri
import re
import string
from collections.abc import Callable, Iterator
from contextlib import suppress
from email import message_from_bytes
from email.contentmanager import raw_data_manager
from email.errors import CloseBoundaryNotFoundDefect, HeaderParseError, MissingHeaderBodySeparatorDefect
from email.header import Header, decode_header
from email.message import EmailMessage, Message
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.policy import SMTP, EmailPolicy
from email.utils import format_datetime
from functools import partial
from itertools import chain, groupby, pairwise
from typing import Any, cast

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.readers.document_formats import (
    BROKEN_DOCUMENT,
    DOCUMENT_WITHOUT_TEXT,
    ENCODED_BLOCK,
    ENCRYPTED_DOCUMENT,
    MAX_ELEMENTS,
    NOT_A_MESSAGE,
    TOO_MANY_ELEMENTS,
    URL_ESCAPES,
    Node,
    ParsedDocument,
    TextGroup,
    UnreadableDocument,
    WholeFileFormat,
    decode_text,
    limit_count,
    split_words,
)
from redactory.pipelines.readers.formats import ROW_TOO_LONG, UNDECODABLE, Row
from redactory.pipelines.readers.html_format import parse_html
from redactory.redaction.replacements import ReplacedSpan


class MailFormat(WholeFileFormat):
    """A file with one message."""

    name = "mail"
    endings = (".eml",)

    def parse(self, data: bytes) -> ParsedDocument:
        """Parse the message and all its parts; ``UnreadableDocument`` if it is not well formed."""
        message = _parse_message(data)
        if not message.keys() and message.defects:
            raise UnreadableDocument(BROKEN_DOCUMENT)
        part = _Part(message, is_cut=not data.endswith((b"\n", b"\r")))
        policy = SMTP.clone(linesep="\r\n" if b"\r\n" in data else "\n", cte_type="7bit", refold_source="none")
        headers = {name.lower(): text for name, text in reversed(part.fields)}
        return ParsedDocument(part.groups, lambda: part.build(policy).as_bytes(), part.removed_parts, headers)


class MailboxFormat(MailFormat):
    """A file with several messages, each after an envelope line ``From …``, which is replaced by a neutral one."""

    name = "mbox"
    endings = (".mbox",)

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read each message as a row."""
        number, lines, size, blank = 0, list[bytes](), 0, True
        for line, following in pairwise(chain(iter(lambda: self.file.readline(self.limit + 1), b""), (b"",))):
            # in front of other text, it is a line of the body
            has_time = _TIME.search(line) and not following.strip()
            is_envelope = line.startswith(b"From ") and (has_time or _FIELD_START.match(following) or not following)
            if is_envelope and blank and lines:
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
        parsed = super().parse(message)
        serialize, end = parsed.serialize, b"\r\n" if envelope.endswith(b"\r") else b"\n"

        def serialize_entry() -> bytes:
            # a replacement must not begin another message
            body = re.sub(rb"(\n\r?\n)(?=From )", rb"\1>", serialize())
            return _ENVELOPE + end + body.rstrip(b"\r\n") + end + end

        parsed.serialize = serialize_entry
        return parsed


class OutlookFormat(MailFormat):
    """A file with one message of Outlook: sender, recipients, subject, date and body; a copy is written as ``.eml``.

    Attachments are counted and left out, and so are the other properties. Contacts and other items are not read.
    """

    name = "msg"
    endings = (".msg",)
    written_format = "mail"

    def parse(self, data: bytes) -> ParsedDocument:
        """Convert the message to mail and parse it."""
        try:
            import olefile
            import oxmsg
        except ImportError:
            raise ConfigurationError("this format needs python-oxmsg: pip install 'redactory[documents]'") from None
        with olefile.OleFileIO(io.BytesIO(data)) as file:
            if sum(entry.size for entry in file.direntries if entry is not None) > _MAX_UNPACKED_FACTOR * self.limit:
                raise UnreadableDocument(ROW_TOO_LONG)
        try:
            mail = _convert_outlook_message(oxmsg.Message.load(io.BytesIO(data)))
        except UnicodeDecodeError:
            raise UnreadableDocument(UNDECODABLE) from None
        return super().parse(mail.as_bytes())


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
_IDENTITY_CODINGS = ("", "7bit", "8bit", "binary", "7bits", "8bits")
_ENCODED = re.compile(r"=[0-9A-Fa-f]{2}|=\r?$|^[A-Za-z0-9+/]{8,}={0,2}[ \t\r]*$|\A\s*+\S*+\s*+\Z", re.MULTILINE)
"""What may be quoted-printable or base64."""
_FIELD_NAME = re.compile(r"[\w.-]+", re.ASCII)
_FIELD_START = re.compile(rb"[!-9;-~]+[ \t]*:|>From ")
_TIME = re.compile(rb"\d:\d\d")
_FIELDS_START = re.compile(rb"\A(?:\xef\xbb\xbf)?(?:\r?\n)*(?=[!-9;-~]+[ \t]*:)")
_BEFORE_COLON = re.compile(rb"^([!-9;-~]+)[ \t]+:")
_CONTENT_FIELD = re.compile(r"^content-[\w-]+:", re.IGNORECASE | re.MULTILINE)
_ACTUAL_BOUNDARY = re.compile(r'^--([^\s"\\][^"\\\n]{0,98}?)[ \t\r]*\n(?=content-)', re.IGNORECASE | re.MULTILINE)
_BASE64_LINE = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_CUT_ESCAPE = re.compile(r"=[0-9A-Fa-f]?\Z")
_FLOWED = re.compile(r"(?<= )(?<!\n-- )\r?\n(?:>+ ?)?")
_FLOWED_TIGHT = re.compile(r"(?<!\n--) \r?\n(?:>+ ?)?")
_BOUNDARY = "=_"
"""Start of a boundary: it cannot occur in encoded text."""


def _parse_message(data: bytes) -> Message:
    for marker, cost in ((b"\n--", _PART_COST), (b"\n", 1)):
        if data.count(marker) * cost > 8 * MAX_ELEMENTS:
            raise UnreadableDocument(TOO_MANY_ELEMENTS)
    data = re.sub(rb"(?<!\r)\r+\n", b"\r\n", data) if b"\n" in data else data.replace(b"\r", b"\n")
    data = _fix_header(_FIELDS_START.sub(b"", data, count=1))
    if not _HEADER_END.search(data) or any(len(head[0]) > _MAX_TYPE_LENGTH for head in _TYPE_HEADER.finditer(data)):
        # a message truncated within its header looks like one without a body
        raise UnreadableDocument(BROKEN_DOCUMENT)
    return message_from_bytes(data)


def _fix_header(data: bytes) -> bytes:
    """Remove white space before colons, and make stray lines between fields continuations of the one before."""
    end = _HEADER_END.search(data)
    header = data[: end.start() if end else 0]
    lines, has_field_below = list[bytes](), False
    for line in reversed(header.split(b"\n")):
        is_field = _FIELD_START.match(line) is not None
        is_stray = has_field_below and not is_field and not line.startswith((b" ", b"\t", b"From "))
        lines.append(b" " * is_stray + _BEFORE_COLON.sub(rb"\1:", line))
        has_field_below = has_field_below or is_field
    return b"\n".join(reversed(lines)) + data[len(header) :]


class _Part:
    """A message or part: its header fields (name, text), and its body as children or as text.

    ``kind`` is message, part, or fields for a block of header fields without a body. ``is_cut``: the file ends within a
    line, so it may be truncated.
    """

    def __init__(self, message: Message, depth: int = 0, kind: str = "message", is_cut: bool = False) -> None:
        self.depth, self.kind, self.is_cut = depth, kind, is_cut
        self.fields, self.children = list[list[str]](), list[_Part]()
        self.groups, self.removed_parts = list[TextGroup](), 0
        self.content: Callable[[], str] = lambda: _REMOVED_NOTE
        self.subtype, self.disposition = "plain", message.get_content_disposition()
        types, codings = message.get_all("content-type", []), message.get_all("content-transfer-encoding", [])
        codings = [re.sub(r"[^a-z0-9]", "", re.split("[(;]", str(coding).lower())[0]) for coding in codings]
        is_clear = len({*codings}) <= 1 and (len({*map(str, types)}) <= 1 or _has_parts(message))
        if depth > _MAX_DEPTH or not is_clear or (is_cut and message.defects):
            raise UnreadableDocument(BROKEN_DOCUMENT)
        for name, value in limit_count(message.raw_items()):
            if not _DROPPED_HEADERS.match(name):
                self._read_field(name, str(value))
        self._read_body(message, codings[0] if codings else "")

    def _read_field(self, name: str, value: str) -> None:
        """Read a field, and its name, which may come from a person."""
        if self.kind == "fields" and not _FIELD_NAME.fullmatch(name):
            # text where fields are expected, with a colon in it, and nothing says how it is encoded
            raise UnreadableDocument(BROKEN_DOCUMENT)
        header = [name, _decode_header(value)]
        self.fields.append(header)
        if name.lower() not in _STANDARD_HEADERS:
            self.groups.append(TextGroup([Node(name, lambda _: header.__setitem__(0, "X-Masked"))]))
        node = Node(header[1], partial(header.__setitem__, 1), URL_ESCAPES)
        self.groups.append(TextGroup([node], _find_header_spans(name.lower(), node.text), name.lower() == "subject"))

    def _read_body(self, message: Message, coding: str) -> None:
        main, _, subtype = message.get_content_type().partition("(")[0].strip().partition("/")
        if self.kind == "fields" and main in ("multipart", "message"):
            raise UnreadableDocument(BROKEN_DOCUMENT)
        if main == "multipart" and not _has_parts(message):
            self._read_missing_parts(message, coding, subtype)
        elif main == "message":
            self._read_message(message, coding, subtype)
        elif main == "multipart":
            if coding == "quotedprintable":
                # unclear whether its parts are encoded twice
                raise UnreadableDocument(BROKEN_DOCUMENT)
            self.subtype = f"multipart/{subtype if subtype in ('alternative', 'related') else 'mixed'}"
            # the rest of a truncated part is unknown
            self.removed_parts += any(isinstance(defect, CloseBoundaryNotFoundDefect) for defect in message.defects)
            self._read_children(cast(list[Message], message.get_payload()), "part")
        elif main == "text" and subtype in _READ_SUBTYPES:
            self._read_text(message, coding, subtype)
        else:
            self.removed_parts += 1

    def _read_children(self, children: list[Message], kind: str) -> None:
        for child in children:
            part = _Part(child, self.depth + 1, kind, self.is_cut)
            self.children.append(part)
            self.groups += part.groups
            self.removed_parts += part.removed_parts
            if len(self.groups) + _PART_COST * len(self.children) > MAX_ELEMENTS:
                raise UnreadableDocument(TOO_MANY_ELEMENTS)

    def _read_message(self, message: Message, coding: str, subtype: str) -> None:
        """Read a nested message or blocks of fields; one that cannot be read is removed."""
        is_fields, groups, removed_parts = subtype in _FIELD_SUBTYPES, len(self.groups), self.removed_parts
        try:
            children = cast(list[Message], message.get_payload())
            if coding == "base64" and not children[0].keys():
                children = [_parse_message(_decode_base64(_read_raw_body(children[0]).decode("latin-1"))[0])]
            elif coding not in _IDENTITY_CODINGS or subtype not in (*_FIELD_SUBTYPES, *_MESSAGE_SUBTYPES):
                raise UnreadableDocument(BROKEN_DOCUMENT)
            self.subtype = f"message/{subtype}"
            self._read_children(children, "fields" if is_fields else "message")
        except UnreadableDocument as error:
            if self.depth == 0 or str(error) == TOO_MANY_ELEMENTS:
                raise
            del self.groups[groups:]
            self.children, self.removed_parts, self.subtype = [], removed_parts + 1, "plain"

    def _read_missing_parts(self, message: Message, coding: str, subtype: str) -> None:
        """Read a multipart body in which its boundary does not occur: with the actual one, or as a text."""
        text = _read_raw_body(message).decode("ascii", "surrogateescape")
        if boundary := _ACTUAL_BOUNDARY.search(text):
            source = f'Content-Type: multipart/{subtype}; boundary="{boundary[1]}"\n\n{text}'
            fixed = message_from_bytes(source.encode("ascii", "surrogateescape"))
            if _has_parts(fixed) and coding in _IDENTITY_CODINGS:
                self._read_body(fixed, coding)
                return
        if _CONTENT_FIELD.search(text) or coding not in _IDENTITY_CODINGS:
            raise UnreadableDocument(BROKEN_DOCUMENT)
        self.removed_parts += not text.strip()
        self._read_text(message, coding, "plain")

    def _read_text(self, message: Message, coding: str, subtype: str) -> None:
        data, footer = _read_raw_body(message), ""
        payload = data.decode("latin-1")
        has_missing_separator = any(isinstance(defect, MissingHeaderBodySeparatorDefect) for defect in message.defects)
        if has_missing_separator and _CONTENT_FIELD.search(re.split(r"\n\r?\n", payload, maxsplit=1)[0]):
            # how the text is encoded is below the line that ends the header
            raise UnreadableDocument(BROKEN_DOCUMENT)
        if coding == "base64":
            data, footer = _decode_base64(payload)
        elif coding == "quotedprintable" and not _CUT_ESCAPE.search(payload):
            data = quopri.decodestring(data)
        elif coding == "quotedprintable" or (
            coding not in _IDENTITY_CODINGS and (_ENCODED.search(payload) or ENCODED_BLOCK.search(payload))
        ):
            # of an unknown coding, only a text that is not encoded can be read
            raise UnreadableDocument(BROKEN_DOCUMENT)
        text = _decode_mail_text(data, message.get_content_charset("utf-8"))
        text += _decode_mail_text(footer.encode("latin-1"), "utf-8")
        if self.kind == "fields":
            if not text.strip():
                return
            # text where fields are expected, and nothing says how it is encoded
            if _ENCODED.search(payload):
                raise UnreadableDocument(BROKEN_DOCUMENT)
            self.kind = "part"
        if subtype == "html":
            page = parse_html(text)
            self.groups += page.groups
            self.subtype, self.removed_parts = "html", self.removed_parts + page.removed_parts
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


def _has_parts(message: Message) -> bool:
    return message.get_content_maintype() == "multipart" and message.is_multipart()


# Encodings and charsets.


def _read_raw_body(message: Message) -> bytes:
    del message["content-transfer-encoding"]
    return cast(bytes, message.get_payload(decode=True))


def _decode_base64(text: str) -> tuple[bytes, str]:
    """Decode base64 and return it with the plain text below it, such as a mailing list's footer."""
    lines = [line.strip() for line in text.strip().splitlines()]
    count = 0
    if all(map(_BASE64_LINE.fullmatch, lines)):
        count = len(lines)
    while count < len(lines) and _BASE64_LINE.fullmatch(lines[count]):
        count += 1
        if len(lines[count - 1]) < len(lines[0]) or lines[count - 1].endswith("="):
            break
    try:
        if not count or _BASE64_LINE.fullmatch(lines[count] if count < len(lines) else ""):
            raise ValueError
        return base64.b64decode("".join(lines[:count]), validate=True), "\n".join(lines[count:])
    except ValueError:
        raise UnreadableDocument(BROKEN_DOCUMENT) from None


_SUPERSETS = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "big5": "cp950",
    "iso2022_jp": "iso2022_jp_ext",
}
"""Charsets that mail programs write under the name of a smaller one."""
_UNLABELLED = ("ascii", "utf-8", "")
_OTHER_UNICODE = re.compile("utf(?!-?8)|uni|ucs|7")
_JAPANESE_ESCAPE = re.compile(rb"\x1b\$[@B]")
_CONTROL_BYTE = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_UTF8_LETTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_OTHER_THAN_LATIN = re.compile(rb"[\x80-\xff]{3}|[A-Za-z][\xa1-\xac\xae-\xbf]+[A-Za-z]")
"""Words of another script, and signs within words."""


def _decode_mail_text(data: bytes, label: str) -> str:
    """Decode a text in its declared charset, or in a sound one if the declaration is unknown or wrong.

    These are UTF-8, and Windows-1252 for a text in which few letters are not ASCII. ``UnreadableDocument`` otherwise.
    """
    try:
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        name = ""
    if 8 * len(_CONTROL_BYTE.findall(data)) > len(data):
        # of a two-byte encoding
        raise UnreadableDocument(UNDECODABLE)
    if name in _UNLABELLED and _JAPANESE_ESCAPE.search(data):
        return decode_text(data, "iso2022_jp_ext")
    if name.startswith(("iso8859", "cp125")) and _UTF8_LETTER.search(data):
        # of a charset in which every text is valid
        with suppress(UnreadableDocument):
            return decode_text(data, "utf-8")
    try:
        return decode_text(data, label)
    except UnreadableDocument:
        if name in _SUPERSETS:
            return decode_text(data, _SUPERSETS[name])
        if name not in _UNLABELLED or _OTHER_UNICODE.search(label.lower()) or b"\x1b" in data:
            raise
    try:
        return decode_text(data, "utf-8")
    except UnreadableDocument:
        letters, high = sum(byte in _ASCII_LETTERS for byte in data), sum(byte > 127 for byte in data)
        if 2 * high > letters or _OTHER_THAN_LATIN.search(data) or _UTF8_LETTER.search(data):
            raise
        return decode_text(data, "cp1252")


_ASCII_LETTERS = string.ascii_letters.encode()


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
_ADDRESS = r"(?<![^\s<>,;:\"()\[\]=@])[^\s<>,;:\"()\[\]=@]*+@[^\s<>,;:\"()\[\]]+"
_ENTRY = re.compile(r'"((?:[^"\\]|\\.){0,200}+)"|([^\s,;:<>"()\\][^,;:<>"()]*)')
_TOKEN = re.compile(r"<[^<>]*>|[^\s<>]+")
"""An identifier. Brackets included: a mask within them would double them, where some programs stop reading."""
_TRACE = re.compile(rf"<[^<>]*>|{_ADDRESS}|(?<![\w.-])(?:[\w-]++\.)++[A-Za-z][\w-]*|\[[\d.:a-fA-F]+\]|(?<=\bid )\S+")
"""What names a person, a host or a message in any other field."""
_UNFINISHED_WORD = re.compile(r"=\?[^?\s]+\?[bBqQ]\?.*", re.DOTALL)


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
    text = _decode_mail_text(value.encode("ascii", "surrogateescape"), "utf-8")
    text = re.sub(r"\r?\n(?=[ \t])", "", text)
    try:
        pieces = decode_header(text)
    except HeaderParseError:
        pieces = decode_header(_ENCODED_WORD.sub(_UNDECODABLE, text))
    text = "".join(piece if isinstance(piece, str) else _decode_piece(piece, charset) for piece, charset in pieces)
    return " ".join(_UNFINISHED_WORD.sub(_UNDECODABLE, text).split())


_ENCODED_WORD = re.compile(r"=\?[^?]*\?[bq]\?.*?\?=", re.IGNORECASE | re.DOTALL)
_UNDECODABLE = "\ufffd"


def _decode_piece(piece: bytes, charset: str | None) -> str:
    if charset is None:
        # as decode_header encodes what is not in an encoded word
        return piece.decode("raw-unicode-escape", "replace")
    try:
        return _decode_mail_text(piece, charset)
    except UnreadableDocument:
        return _UNDECODABLE


def _encode_header(name: str, text: str) -> str:
    """Encode a field's value in lines of limited length; adjacent words that are not ASCII are encoded together."""
    groups = ((is_ascii, " ".join(words)) for is_ascii, words in groupby(text.split(), str.isascii))
    encoded = " ".join(words if is_ascii else Header(words, "utf-8").encode() for is_ascii, words in groups)
    return Header(" ".join(encoded.split()), header_name=name).encode(splitchars=" ")


# Outlook.

_MAX_UNPACKED_FACTOR = 4
"""Maximum size of all streams, as a multiple of the row limit: several can share the same bytes."""
_RECIPIENT_FIELDS = {2: "Cc", 3: "Bcc"}
_RECIPIENT_TYPE_MASK = 0xF


def _convert_outlook_message(message: Any) -> Message:
    """Convert a message to mail, with an empty part for each attachment."""
    from oxmsg.domain import constants

    kind, properties = message.message_class.upper(), message.properties
    if not re.match(r"IPM\.NOTE(?:\.|$)", kind):
        raise UnreadableDocument(NOT_A_MESSAGE)
    body, page = (message.body or "").rstrip("\0"), (message.html_body or "").rstrip("\0")
    if "SMIME" in kind:
        # its text is in an attachment
        raise UnreadableDocument(ENCRYPTED_DOCUMENT)
    if not body.strip() and not page.strip() and properties.binary_prop_value(constants.PID_RTF_COMPRESSED):
        # its text is rich text only, which is not read
        raise UnreadableDocument(DOCUMENT_WITHOUT_TEXT)
    texts = [MIMEText(text.replace("\r\n", "\n"), kind, "utf-8") for text, kind in ((body, "plain"), (page, "html"))]
    mail: Message = MIMEMultipart("alternative", _subparts=texts) if body and page else texts[bool(page)]
    if attachments := message.attachments:
        mail = MIMEMultipart("mixed", _subparts=[mail, *(MIMEApplication(b"") for _ in attachments)])
    address = properties.str_prop_value(constants.PID_SENDER_SMTP_ADDRESS)
    address = address or properties.str_prop_value(constants.PID_SENDER_EMAIL_ADDRESS)
    sender = _format_address(properties.str_prop_value(constants.PID_SENDER_NAME), address)
    fields = {
        "From": sender or _decode_header(message.sender or ""),
        "Subject": message.subject,
        "Date": message.sent_date and format_datetime(message.sent_date),
        "Message-ID": properties.str_prop_value(constants.PID_INTERNET_MESSAGE_ID),
    }
    for recipient in message.recipients:
        type_ = (recipient.properties.int_prop_value(constants.PID_RECIPIENT_TYPE) or 0) & _RECIPIENT_TYPE_MASK
        name, new = _RECIPIENT_FIELDS.get(type_, "To"), _format_address(recipient.name, recipient.email_address)
        fields[name] = ", ".join(filter(None, [fields.get(name), new]))
    for name, text in fields.items():
        if text := " ".join((text or "").replace("\0", " ").split()):
            mail.set_raw(name, _encode_header(name, text))
    return mail


def _format_address(name: str | None, address: str | None) -> str:
    """Format a name and an address as a field does; the address may be a path of Exchange."""
    name, address = (re.sub(r'[<>"\\\s]+', " ", text or "").strip() for text in (name, address))
    return " ".join([f'"{name}"'] * bool(name and name != address) + [f"<{address}>"] * bool(address))
