"""Read and write mail: headers and their parameters, text before, between and after parts, nested messages.

Non-text parts, keys, and signatures (which would fail) are removed. An unchanged part keeps its bytes. If mail
readers could disagree about a part, the message is quarantined.
"""

from __future__ import annotations

import base64
import binascii
import quopri
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from email.header import Header
from email.utils import encode_rfc2231
from functools import partial
from urllib.parse import unquote_to_bytes

from redactory.pipelines.readers.document_formats import (
    BROKEN_DOCUMENT,
    MAX_ELEMENTS,
    TOO_MANY_ELEMENTS,
    ExtractedText,
    UnreadableDocument,
    WholeFileFormat,
    decode_text,
    limit_count,
    make_document_row,
    merge_edits,
)
from redactory.pipelines.readers.formats import ROW_TOO_LONG, Edits, Format, Row
from redactory.pipelines.readers.html_format import INVISIBLE, URL_ESCAPES, UnescapedText, parse_html, split_words
from redactory.redaction.replacements import ReplacedSpan, apply_edits


class MailFormat(WholeFileFormat):
    """A file with one message."""

    name = "mail"
    endings = (".eml",)

    def parse(self, data: bytes) -> ExtractedText:
        """Parse the message; ``UnreadableDocument`` if it is not well formed."""
        return parse_message(data)


class MailboxFormat(Format):
    """A file with several messages, each after an envelope line ``From …``."""

    name = "mbox"
    endings = (".mbox",)
    is_text = True

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read each message as a row."""
        number, lines, blank = 0, list[bytes](), True
        size = 0
        for line in iter(lambda: self.file.readline(self.limit + 1), b""):
            if line.startswith(b"From ") and blank and lines:
                number += 1
                yield self._parse_entry(number, lines, size)
                lines, size = [], 0
            size += len(line)
            if size <= self.limit:
                lines.append(line)
            blank = line in (b"\n", b"\r\n")
        if lines or size:
            yield self._parse_entry(number + 1, lines, size)

    def _build_document_id(self, row: Row) -> str:
        return f"{self.path}#{row.number}"

    def _parse_entry(self, number: int, lines: list[bytes], size: int) -> Row:
        if size > self.limit:
            return Row(number, reason=ROW_TOO_LONG)
        try:
            if not lines[0].startswith(b"From ") or len(lines) == 1:
                raise UnreadableDocument(BROKEN_DOCUMENT)
            extracted = _concat_parts([_parse_envelope(lines[0]), parse_message(b"".join(lines[1:]))])
        except UnreadableDocument as error:
            return Row(number, reason=str(error))

        def render_message(changes: Edits) -> bytes:
            # a replacement must not begin another message
            return re.sub(rb"(\n\r?\n)(?=From )", rb"\1>", extracted.render(changes))

        return make_document_row(number, replace(extracted, render=render_message))


# Parts with text.


def _parse_text(
    text: str,
    write: Callable[[str], bytes],
    data: bytes,
    find_spans: Callable[[str], list[ReplacedSpan]] = lambda _: [],
    escapes: re.Pattern[str] = INVISIBLE,
    is_visible: bool = False,
) -> ExtractedText:
    """Make a part with one text and the structural spans of ``find_spans``; unchanged, it is rendered as ``data``."""
    view = UnescapedText.unescape(text, escapes)

    def render_text(changes: Edits) -> bytes:
        return (
            write(apply_edits(text, merge_edits([view.map_edit(edit) for edit in changes[0]]))) if changes[0] else data
        )

    return ExtractedText([view.text], [find_spans(view.text)], render_text, frozenset([0] if is_visible else []))


def _concat_parts(parts: Sequence[bytes | ExtractedText]) -> ExtractedText:
    """Concatenate parts; bytes are copied."""
    texts, sure, shown, removed_parts = list[str](), list[list[ReplacedSpan]](), set[int](), 0
    for part in parts:
        if isinstance(part, ExtractedText):
            shown |= {len(texts) + n for n in part.visible_texts}
            texts += part.texts
            sure += part.structural_spans
            removed_parts += part.removed_parts

    def render_parts(changes: Edits) -> bytes:
        written, offset = list[bytes](), 0
        for part in parts:
            if isinstance(part, bytes):
                written.append(part)
                continue
            written.append(part.render(changes[offset : offset + len(part.texts)]))
            offset += len(part.texts)
        return b"".join(written)

    return ExtractedText(texts, sure, render_parts, frozenset(shown), removed_parts)


_SYSTEM_SENDERS = split_words("- nobody root MAILER-DAEMON postmaster")


def _parse_envelope(line: bytes) -> ExtractedText:
    """Parse the envelope line ``From …`` above a message, which names the sender."""

    def find_sender_spans(text: str) -> list[ReplacedSpan]:
        sender = re.match(r">?From (\S+)", text)
        named = [ReplacedSpan(*sender.span(1), "EMAIL_ADDRESS")] if sender and sender[1] not in _SYSTEM_SENDERS else []
        return [*named, *_find_addresses(text)]

    return _parse_text(decode_text(line, "utf-8"), str.encode, line, find_sender_spans)


# Messages and parts.

_HEADER_FIELD = re.compile(
    rb"(?P<name>[A-Za-z0-9_.-]+)(?P<gap>[ \t]*:[ \t]*)(?P<value>[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)(?:\r?\n|\Z)"
)
_BLANK_LINE = re.compile(rb"\r?\n")
_MAX_DEPTH = 30
_PART_COST = 20
"""Cost of a part, in texts, against the limit of elements."""
_REMOVED_NOTE = b"An attachment was taken out."
_PART_HEADERS = ("content-", "x-attachment-id")
_DROPPED_HEADERS = (
    *("dkim-", "arc-", "domainkey-", "authentication-results", "x-authentication-", "x-google-dkim"),
    *("x-pgp", "autocrypt", "openpgp", "face", "x-face", "bimi-", "content-md5"),
)
"""Signatures, which would fail, and unreadable values: keys, images and digests."""

_IDENTITY_CODINGS = ("", "7bit", "8bit", "binary")
_STANDARD_HEADERS = {
    ("mime-version", "1.0"),
    *(("content-transfer-encoding", coding) for coding in (*_IDENTITY_CODINGS, "quoted-printable", "base64")),
}


def parse_message(data: bytes, depth: int = 0, default_type: str = "text/plain") -> ExtractedText:
    """Parse a message, or a part with a default type; ``UnreadableDocument`` if it is not well formed."""
    if depth > _MAX_DEPTH:
        raise UnreadableDocument(BROKEN_DOCUMENT)
    head, fields, position = _parse_header_fields(data)
    blank = _BLANK_LINE.match(data, position)
    if blank is None and depth == 0 and fields:
        # a message truncated within its header looks like one without a body
        raise UnreadableDocument(BROKEN_DOCUMENT)
    separator = blank[0] if blank else b""
    end = b"\r\n" if b"\r\n" in data[:position] + separator else b"\n"
    kind = _ContentType(_get_single_header(fields, "content-type") or default_type)
    coding = _get_single_header(fields, "content-transfer-encoding")
    body = _parse_body(kind, coding.partition("(")[0].strip().lower(), data[position + len(separator) :], depth, end)
    for field in fields:
        name = field["name"].decode().lower()
        if name.startswith(_DROPPED_HEADERS) or (body is None and name.startswith(_PART_HEADERS)):
            continue
        if (name, _unfold_header_value(field["value"]).lower()) in _STANDARD_HEADERS:
            head.append(field[0])
            continue
        of_parts = name in ("content-type", "content-disposition")
        head.append(
            (_parse_parameter_header(field, kind, end) if of_parts else None) or _parse_header_field(field, name, end)
        )
    if body is not None:
        return _concat_parts([*head, separator, body])
    tail = data[len(data.rstrip(b"\r\n")) :] or end
    note = b"Content-Type: text/plain" + end + end + _REMOVED_NOTE + tail
    return replace(_concat_parts([*head, note]), removed_parts=1)


def _parse_header_fields(data: bytes) -> tuple[list[bytes | ExtractedText], list[re.Match[bytes]], int]:
    """Split a header into its envelope line (if any) and its fields, and return where they end."""
    head, fields, position = list[bytes | ExtractedText](), list[re.Match[bytes]](), 0
    if line := re.match(rb">?From [^\r\n]*(?:\r?\n|\Z)", data):
        head, position = [_parse_envelope(line[0])], line.end()
    while position < len(data) and not _BLANK_LINE.match(data, position):
        if len(fields) == MAX_ELEMENTS:
            raise UnreadableDocument(TOO_MANY_ELEMENTS)
        field = _HEADER_FIELD.match(data, position)
        if field is None:
            raise UnreadableDocument(BROKEN_DOCUMENT)
        fields.append(field)
        position = field.end()
    return head, fields, position


def _get_single_header(fields: Sequence[re.Match[bytes]], name: str) -> str:
    """Return the value of a field; ``UnreadableDocument`` if it is repeated, because mail readers would differ."""
    values = [field["value"] for field in fields if field["name"].decode().lower() == name]
    if len(values) > 1:
        raise UnreadableDocument(BROKEN_DOCUMENT)
    return _unfold_header_value(values[0]) if values else ""


# Headers.

_ADDRESS_HEADERS = split_words(
    """
    from to cc bcc reply-to sender return-path delivered-to resent-from resent-to resent-cc resent-bcc
    resent-sender resent-reply-to envelope-to envelope-from errors-to x-original-to x-original-from
    x-envelope-from x-envelope-to x-sender x-from x-to x-cc x-forwarded-to x-forwarded-for x-real-to
    disposition-notification-to return-receipt-to mail-followup-to mail-reply-to apparently-to
    original-recipient final-recipient x-google-original-from x-apparently-to x-authenticated-sender
    """
)
_IDENTIFIER_HEADERS = split_words(
    "message-id in-reply-to references resent-message-id content-id x-message-id x-google-original-message-id"
)
_TRACE_PREFIXES = ("received", "x-received", "x-originating", "x-source", "x-sender-ip", "x-client", "x-host")
_ADDRESS = re.compile(r"(?<![^\s<>,;:\"()\[\]=])[^\s<>,;:\"()\[\]=@]*+@[^\s<>,;:\"()\[\]]+")
_ADDRESS_ENTRY = re.compile(r'"((?:[^"\\]|\\.){0,200}+)"|([^\s,;:<>"()\\][^,;:<>"()]*)')
_IDENTIFIER = re.compile(r"<[^<>]*>|[^\s<>]+")
_ANGLE_BRACKETS = re.compile(r"<([^<>]+)>")
_HOST = re.compile(r"(?<![\w-])[\w-]++(?:\.[\w-]++)++|\[[\d.:a-fA-F]+\]|(?<=\bid )\S+")
_KNOWN_PREFIXES = ("x-", "list-", "resent-", "content-", "received", "thread-", "auto-", "mime-", "mail-")
_KNOWN_HEADERS = (
    _ADDRESS_HEADERS
    | _IDENTIFIER_HEADERS
    | split_words(
        """
    date subject comments keywords encrypted importance priority precedence sensitivity organization
    user-agent delivery-date feedback-id errors-to lines status path newsgroups followup-to xref
    summary expires control distribution approved supersedes archive archived-at language accept-language
    require-recipient-valid-since reporting-mta arrival-date action diagnostic-code remote-mta
    last-attempt-date
    """
    )
)
_NO_RECIPIENTS = re.compile(r"(?:undisclosed|unlisted)[- ]recipients?", re.IGNORECASE)
_ENCODED = r"=\?[^?\s]+\?[bBqQ]\?[^?]*\?="
_ENCODED_RUN = re.compile(rf"{_ENCODED}(?:\s*{_ENCODED})*")
_ENCODED_WORD = re.compile(r"=\?([^?\s*]+)(?:\*[^?\s]*)?\?([bBqQ])\?([^?]*)\?=")
_UNFINISHED_WORD = re.compile(r"=\?[\w-]+\?[bBqQ]\?")
_WORD = re.compile(r"[^\s<>,;:\"]+")
_MAX_LINE_LENGTH = 76


def _unfold_header_value(value: bytes) -> str:
    return re.sub(r"\r?\n(?=[ \t])", "", decode_text(value, "utf-8"))


def _parse_header_field(field: re.Match[bytes], name: str, line_end: bytes) -> ExtractedText:
    """Parse a field into its text, with encoded words decoded."""
    text = _decode_encoded_words(_unfold_header_value(field["value"]))
    start = field["name"] + (field["gap"] if field["gap"].strip() != field["gap"] else b": ")
    if name not in _KNOWN_HEADERS and not name.startswith(_KNOWN_PREFIXES):
        # the name of an unknown field may come from a person: read it as text
        start, text = b"", start.decode() + text
    find_spans = partial(_find_structural_spans, name)
    return _parse_text(
        text, lambda new: _fold_header(start, new, line_end), field[0], find_spans, URL_ESCAPES, name == "subject"
    )


def _find_structural_spans(name: str, text: str) -> list[ReplacedSpan]:
    """Find the addresses of a field, and names, hosts and identifiers in fields that hold only these."""
    spans = _find_addresses(text)
    if name in _IDENTIFIER_HEADERS:
        # brackets included: a mask within them could double them, where some programs stop reading
        return [ReplacedSpan(*match.span(), "IDENTIFIER") for match in _IDENTIFIER.finditer(text)]
    if name.startswith(_TRACE_PREFIXES):
        return spans + [
            ReplacedSpan(*match.span(), "IDENTIFIER") for match in _HOST.finditer(text) if not match[0].isdigit()
        ]
    if name.startswith("list-"):
        return spans + [ReplacedSpan(*match.span(1), "IDENTIFIER") for match in _ANGLE_BRACKETS.finditer(text)]
    has_addresses = name.startswith("x-") and any("@" in match[1] for match in _ANGLE_BRACKETS.finditer(text))
    return spans + _find_address_entries(text) if name in _ADDRESS_HEADERS or has_addresses else spans


def _find_addresses(text: str) -> list[ReplacedSpan]:
    return [ReplacedSpan(*match.span(), "EMAIL_ADDRESS") for match in _ADDRESS.finditer(text)]


def _find_address_entries(text: str) -> list[ReplacedSpan]:
    """Find the names, addresses and comments in a list of addresses."""
    spans = []
    for match in _ADDRESS_ENTRY.finditer(text):
        group = 1 if match[1] is not None else 2
        entry = match[group].rstrip()
        if any(map(str.isalnum, entry)) and not _NO_RECIPIENTS.fullmatch(entry):
            label = "EMAIL_ADDRESS" if "@" in entry else "PERSON"
            spans.append(ReplacedSpan(match.start(group), match.start(group) + len(entry), label))
    return spans


def _decode_encoded_words(value: str) -> str:
    """Decode the encoded words of a header value; adjacent words of one charset are decoded together."""
    text = _ENCODED_RUN.sub(_decode_encoded_run, value)
    if _UNFINISHED_WORD.search(text):
        raise UnreadableDocument(BROKEN_DOCUMENT)
    return text


def _decode_encoded_run(run: re.Match[str]) -> str:
    pieces: list[tuple[str, bytes]] = []
    for word in _ENCODED_WORD.finditer(run[0]):
        charset, coding, payload = word[1].lower(), word[2].lower(), word[3].encode()
        if coding == "b":
            data = _decode_base64(payload + b"=" * (-len(payload) % 4))
        else:
            data = quopri.decodestring(payload, header=True)
        if pieces and pieces[-1][0] == charset:
            data = pieces.pop()[1] + data
        pieces.append((charset, data))
    return "".join(decode_text(data, charset) for charset, data in pieces)


def _fold_header(start: bytes, value: str, line_end: bytes) -> bytes:
    """Write a field in lines of limited length, with non-ASCII words as encoded words."""
    value = re.sub(r"[\r\n]+", " ", value)
    value = _WORD.sub(
        lambda word: word[0] if word[0].isascii() else Header(word[0], "utf-8").encode(linesep="\n"), value
    )
    lines, length = [start], len(start)
    for index, word in enumerate(re.split(r"[ \n]", value)):
        if index and length + 1 + len(word) > _MAX_LINE_LENGTH and word:
            lines.append(line_end)
            length = 0
        lines.append((b" " if index else b"") + word.encode())
        length += len(word) + 1
    return b"".join(lines) + line_end


# Fields with parameters.

_PARAMETER = re.compile(r""";\s*([\w-]+(?:\*\d{1,3})?\*?)\s*=\s*("(?:[^"\\]|\\.){0,1000}+"|[^;"]*)""")
_MAIN_VALUE = re.compile(
    r"(?:text|multipart|message|application|image|audio|video|font|model|chemical)/[\w.+-]{1,80}"
    r"|inline|attachment|form-data",
    re.IGNORECASE | re.ASCII,
)
_KEPT_PARAMETERS = split_words("charset boundary format delsp type report-type micalg protocol method size")
_HARMLESS_VALUE = re.compile(r"[\w.+/:'-]{0,80}")
_HARMLESS_BOUNDARY = re.compile(r"(?!.*\.[A-Za-z]{2})[\w'()+,./:=?-]{1,70}", re.ASCII)


class _ContentType:
    """The type of a part and its parameters by name."""

    def __init__(self, value: str) -> None:
        self.type, self.parameters, _ = _parse_parameters(value)
        if not re.fullmatch(r"[\w.+-]+/[\w.+-]+", self.type):
            self.type, self.parameters = "text/plain", {}
        self.main, _, self.sub = self.type.lower().partition("/")
        self.charset = self.parameters.get("charset", "").strip()
        self.boundary = self.parameters.get("boundary", "").rstrip()
        self.written_boundary = self.boundary
        """The boundary to write: a neutral one if the original may carry meaning."""


def _parse_parameters(value: str) -> tuple[str, dict[str, str], bool]:
    """Parse the first value of a field and its parameters (RFC 2231); also return whether nothing else is there."""
    first = value.partition(";")[0].strip()
    pieces: dict[str, list[tuple[int, bool, str]]] = {}
    rest = _PARAMETER.sub("", value)
    for match in _PARAMETER.finditer(value):
        name, _, number = match[1].rstrip("*").lower().partition("*")
        written = match[2].strip()
        if written.startswith('"'):
            written = re.sub(r"\\(.)", r"\1", written[1:-1])
        pieces.setdefault(name, []).append((int(number or 0), match[1].endswith("*"), written))
    parameters = {}
    for name, sections in pieces.items():
        if len({number for number, _, _ in sections}) < len(sections):
            raise UnreadableDocument(BROKEN_DOCUMENT)
        parameters[name] = _join_parameter_parts(sorted(sections))
    return first, parameters, rest.strip("; \t") == first


def _join_parameter_parts(pieces: Sequence[tuple[int, bool, str]]) -> str:
    if not any(is_coded for _, is_coded, _ in pieces):
        return _decode_encoded_words("".join(written for _, _, written in pieces))
    charset, text = "utf-8", list[bytes]()
    for n, (_, is_coded, written) in enumerate(pieces):
        if n == 0 and is_coded and written.count("'") >= 2:
            charset, _, written = written.split("'", 2)
        text.append(unquote_to_bytes(written) if is_coded else written.encode())
    return decode_text(b"".join(text), charset or "utf-8")


def _parse_parameter_header(field: re.Match[bytes], kind: _ContentType, line_end: bytes) -> ExtractedText | None:
    """Parse a field with parameters, in which file names are structural spans; None if it has another form."""
    first, parameters, is_all = _parse_parameters(_unfold_header_value(field["value"]))
    if not _MAIN_VALUE.fullmatch(first):
        return None
    kept = {name: value for name, value in parameters.items() if name in _KEPT_PARAMETERS}
    kept = {name: value for name, value in kept.items() if name == "boundary" or _HARMLESS_VALUE.fullmatch(value)}
    if "boundary" in kept:
        kept["boundary"] = kind.written_boundary
    others = {name: value for name, value in parameters.items() if name not in kept}
    if is_all and not others and kept == parameters:
        return ExtractedText([], [], lambda _: field[0])
    start = field["name"] + b": "

    def render_field(changes: Edits) -> bytes:
        news = [apply_edits(value, value_edits) for value, value_edits in zip(others.values(), changes, strict=True)]
        values = {**kept, **dict(zip(others, news, strict=True))}
        written = [_format_parameter(name, values[name]) for name in parameters]
        return _fold_header(start, "; ".join([first, *written]), line_end)

    stems = [re.fullmatch(r"(.*?)(?:\.[A-Za-z0-9]{1,5})?", value, re.DOTALL) for value in others.values()]
    sure = [[ReplacedSpan(*stem.span(1), "IDENTIFIER")] if stem and stem[1] else [] for stem in stems]
    return ExtractedText([*others.values()], sure, render_field)


def _format_parameter(name: str, value: str) -> str:
    value = re.sub(r"[\r\n]+", " ", value)
    if not value.isascii():
        return f"{name}*={encode_rfc2231(value, 'utf-8')}"
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f"{name}={value}" if re.fullmatch(r"[\w.+-]+", value) else f'{name}="{quoted}"'


# Bodies.

_HTML_SUBTYPES = split_words("html xml xhtml+xml x-amp-html")
_UNREADABLE_SUBTYPES = split_words("rtf x-rtf")
_LINE_SUBTYPES = split_words("delivery-status disposition-notification feedback-report tracking-status global-headers")
_MESSAGE_SUBTYPES = split_words("rfc822 global news rfc822-headers")
_CARD_SUBTYPES = split_words("vcard x-vcard directory")
_UNFOLD = re.compile(rf"\r?\n[ \t]|{INVISIBLE.pattern}")
_CARD = re.compile(
    r"^(?:BEGIN|END):(?:VCARD|VCALENDAR|VEVENT|VTODO|VJOURNAL|VFREEBUSY|VTIMEZONE|VALARM|STANDARD|DAYLIGHT)(?=\r?$)"
    rf"|^VERSION:[\d.]+(?=\r?$)|{_UNFOLD.pattern}",
    re.MULTILINE,
)
"""The syntax of a card or calendar, which is not read as text."""
_FLOWED = re.compile(rf"(?<= )(?<!\n-- )\r?\n(?:>+ ?)?|{INVISIBLE.pattern}")
_FLOWED_TIGHT = re.compile(rf"(?<!\n--) \r?\n(?:>+ ?)?|{INVISIBLE.pattern}")
_CARD_LINE = re.compile(r"^[\w.-]+[^:\n]{0,200}:(?P<value>[^\r\n]+)", re.MULTILINE)
_ATTENDEE = re.compile(r"""\bCN=(?:"(?P<a>[^"\n]+)|(?P<b>[^";:\n]+))""")


def _parse_body(kind: _ContentType, coding: str, data: bytes, depth: int, line_end: bytes) -> ExtractedText | None:
    """Parse a body; None if it is not text."""
    if kind.main == "multipart":
        if coding not in _IDENTITY_CODINGS or not kind.boundary:
            raise UnreadableDocument(BROKEN_DOCUMENT)
        return _parse_multipart(kind, data, depth)
    if kind.main == "message" and kind.sub not in (*_MESSAGE_SUBTYPES, *_LINE_SUBTYPES):
        raise UnreadableDocument(BROKEN_DOCUMENT)
    if kind.main not in ("text", "message") or kind.sub in _UNREADABLE_SUBTYPES:
        return None
    inner = _decode_transfer(data, coding)
    extracted = parse_message(inner, depth + 1) if kind.sub in _MESSAGE_SUBTYPES else _parse_text_body(kind, inner)

    def render_body(changes: Edits) -> bytes:
        new = extracted.render(changes)
        return data if new == inner else _encode_transfer(new, coding, line_end, data)

    return replace(extracted, render=render_body)


def _parse_text_body(kind: _ContentType, data: bytes) -> ExtractedText:
    text = decode_text(data, kind.charset or "utf-8")
    charset = kind.charset or ("ascii" if text.isascii() else "utf-8")
    if kind.sub in _HTML_SUBTYPES:
        return parse_html(text, data, lambda new: new.encode(charset, "xmlcharrefreplace"))
    flows = kind.parameters.get("format", "").lower() == "flowed"
    flowed = _FLOWED_TIGHT if kind.parameters.get("delsp", "").lower() == "yes" else _FLOWED
    is_card = kind.sub in {*_CARD_SUBTYPES, "calendar", "x-vcalendar"}
    in_lines = is_card or kind.main == "message"
    escapes = _CARD if is_card else _UNFOLD if in_lines else flowed if flows else INVISIBLE

    def find_body_spans(source_text: str) -> list[ReplacedSpan]:
        if kind.sub in _CARD_SUBTYPES:
            return [ReplacedSpan(*match.span("value"), "IDENTIFIER") for match in _CARD_LINE.finditer(source_text)]
        spans = _find_addresses(source_text) if in_lines else []
        if is_card:
            for match in _ATTENDEE.finditer(source_text):
                spans.append(ReplacedSpan(*match.span("a" if match["a"] else "b"), "PERSON"))
        return spans

    return _parse_text(text, lambda new: new.encode(charset, "replace"), data, find_body_spans, escapes, True)


def _parse_multipart(kind: _ContentType, data: bytes, depth: int) -> ExtractedText:
    """Parse the parts, and the text before and after them."""
    old = kind.boundary.encode()
    line = rb"^--" + re.escape(old) + rb"(--)?[ \t]*(?:\r?\n|\Z)"
    delimiters = list(limit_count(re.finditer(line, data, re.MULTILINE), MAX_ELEMENTS // _PART_COST))
    if len(delimiters) < 2 or [n for n, delimiter in enumerate(delimiters) if delimiter[1]] != [len(delimiters) - 1]:
        raise UnreadableDocument(BROKEN_DOCUMENT)
    if not _HARMLESS_BOUNDARY.fullmatch(kind.boundary):
        kind.written_boundary = f"=_{depth}"
        while kind.written_boundary.encode() in data:
            kind.written_boundary += "_"
    new = kind.written_boundary.encode()
    usual = "message/rfc822" if kind.sub == "digest" else "text/plain"
    pieces: list[bytes | ExtractedText] = []
    position = count = 0
    for n, delimiter in enumerate(delimiters):
        inner = data[position : delimiter.start()]
        if n == 0:
            pieces.append(_parse_text(decode_text(inner, "utf-8"), str.encode, inner))
        else:
            # the line end before a delimiter belongs to the delimiter
            last = re.search(rb"\r?\n\Z|\Z", inner)
            cut = last.start() if last else len(inner)
            extracted = parse_message(inner[:cut], depth + 1, usual)
            pieces += [extracted, inner[cut:]]
            count += _PART_COST + len(extracted.texts)
            if count > MAX_ELEMENTS:
                raise UnreadableDocument(TOO_MANY_ELEMENTS)
        pieces.append(delimiter[0].replace(old, new, 1))
        position = delimiter.end()
    rest = data[position:]
    return _concat_parts([*pieces, _parse_text(decode_text(rest, "utf-8"), str.encode, rest)])


_CUT_ESCAPE = re.compile(rb"=[0-9A-Fa-f]?\Z")


def _decode_transfer(data: bytes, coding: str) -> bytes:
    """Decode the transfer encoding of a body; ``UnreadableDocument`` if it is broken or unknown."""
    if coding in _IDENTITY_CODINGS:
        return data
    if coding == "quoted-printable":
        if _CUT_ESCAPE.search(data):
            raise UnreadableDocument(BROKEN_DOCUMENT)
        return quopri.decodestring(data)
    if coding == "base64":
        return _decode_base64(b"".join(data.split()))
    raise UnreadableDocument(BROKEN_DOCUMENT)


def _decode_base64(data: bytes) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise UnreadableDocument(BROKEN_DOCUMENT) from None


def _encode_transfer(data: bytes, coding: str, line_end: bytes, old: bytes) -> bytes:
    """Encode a body for transfer, with the empty lines at the end of the ``old`` body."""
    if coding == "quoted-printable":
        return re.sub(rb"^From ", b"=46rom ", quopri.encodestring(data), flags=re.MULTILINE)
    if coding == "base64":
        lines = base64.encodebytes(data).splitlines()
        return line_end.join(lines) + old[len(old.rstrip()) :]
    return data
