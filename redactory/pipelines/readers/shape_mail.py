"""Mail: a message is taken apart into pieces, each of which is read, or does not get into the copy.

Headers and their parameters, what stands before, between and behind parts, messages in messages: all of it.
What is no text is taken out, as are signatures, which would fail, and keys.  A piece in which nothing changes
is the same to the byte.  Where readers could differ on what a piece is, the message is quarantined.
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

from redactory.pipelines.readers.formats import ROW_TOO_LONG, Edits, Format, Row
from redactory.pipelines.readers.shape_documents import (
    BROKEN,
    MOST,
    TOO_MANY,
    OneRow,
    Told,
    Unreadable,
    bounded,
    decoded,
    document_row,
    merged,
)
from redactory.pipelines.readers.shape_html import IN_URLS, INVISIBLE, View, page_told
from redactory.redaction.replacements import Found, edited


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Mail(OneRow):
    """One message."""

    name = "mail"
    endings = (".eml",)

    def told(self, data: bytes) -> Told:
        """All that a message tells."""
        return message_told(data)


class Mailbox(Format):
    """Messages one after the other, each with its line ``From …``."""

    name = "mbox"
    endings = (".mbox",)
    is_text = True

    def rows(self) -> Iterator[Row | bytes]:
        """A message is a row."""
        number, held, blank = 0, list[bytes](), True
        size = 0
        for line in iter(lambda: self.file.readline(self.limit + 1), b""):
            if line.startswith(b"From ") and blank and held:
                number += 1
                yield self._message(number, held, size)
                held, size = [], 0
            size += len(line)
            if size <= self.limit:
                held.append(line)
            blank = line in (b"\n", b"\r\n")
        if held or size:
            yield self._message(number + 1, held, size)

    def _document_id(self, row: Row) -> str:
        return f"{self.path}#{row.number}"

    def _message(self, number: int, lines: list[bytes], size: int) -> Row:
        if size > self.limit:
            return Row(number, reason=ROW_TOO_LONG)
        try:
            if not lines[0].startswith(b"From ") or len(lines) == 1:
                raise Unreadable(BROKEN)
            told = _together([_envelope(lines[0]), message_told(b"".join(lines[1:]))])
        except Unreadable as error:
            return Row(number, reason=str(error))

        def render(changes: Edits) -> bytes:
            # what was put in must not begin another message
            return re.sub(rb"(\n\r?\n)(?=From )", rb"\1>", told.render(changes))

        return document_row(number, replace(told, render=render))


# Pieces.


def _text(
    text: str,
    write: Callable[[str], bytes],
    data: bytes,
    sure: Callable[[str], list[Found]] = lambda _: [],
    escapes: re.Pattern[str] = INVISIBLE,
    shown: bool = False,
) -> Told:
    """A piece with one text, of which ``sure`` says the sure hits; where nothing changes it is ``data``."""
    view = View.of(text, escapes)

    def render(changes: Edits) -> bytes:
        return write(edited(text, merged([view.written(one) for one in changes[0]]))) if changes[0] else data

    return Told([view.text], [sure(view.text)], render, frozenset([0] if shown else []))


def _together(pieces: Sequence[bytes | Told]) -> Told:
    """Pieces one behind the other; bytes are handed on."""
    texts, sure, shown, taken_out = list[str](), list[list[Found]](), set[int](), 0
    for piece in pieces:
        if isinstance(piece, Told):
            shown |= {len(texts) + n for n in piece.shown}
            texts += piece.texts
            sure += piece.sure
            taken_out += piece.taken_out

    def render(changes: Edits) -> bytes:
        written, at = list[bytes](), 0
        for piece in pieces:
            if isinstance(piece, bytes):
                written.append(piece)
                continue
            written.append(piece.render(changes[at : at + len(piece.texts)]))
            at += len(piece.texts)
        return b"".join(written)

    return Told(texts, sure, render, frozenset(shown), taken_out)


_NOBODY = _words("- nobody root MAILER-DAEMON postmaster")


def _envelope(line: bytes) -> Told:
    """The line ``From …`` over a message: it names who sent it."""

    def sure(text: str) -> list[Found]:
        sender = re.match(r">?From (\S+)", text)
        named = [Found(*sender.span(1), "EMAIL_ADDRESS")] if sender and sender[1] not in _NOBODY else []
        return [*named, *_addresses(text)]

    return _text(decoded(line, "utf-8"), str.encode, line, sure)


# A message, or a part of one.

_FIELD = re.compile(
    rb"(?P<name>[A-Za-z0-9_.-]+)(?P<gap>[ \t]*:[ \t]*)(?P<value>[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)(?:\r?\n|\Z)"
)
_BLANK = re.compile(rb"\r?\n")
_DEEPEST = 30
_PART = 20
"""Texts that a part costs as much as."""
_NOTE = b"An attachment was taken out."
_OF_PARTS = ("content-", "x-attachment-id")
_DROPPED = (
    *("dkim-", "arc-", "domainkey-", "authentication-results", "x-authentication-", "x-google-dkim"),
    *("x-pgp", "autocrypt", "openpgp", "face", "x-face", "bimi-", "content-md5"),
)
"""Signatures, which would fail; keys, images and digests, which nobody can read."""

_AS_IT_IS = ("", "7bit", "8bit", "binary")
_WORDS_OF_MIME = {
    ("mime-version", "1.0"),
    *(("content-transfer-encoding", coding) for coding in (*_AS_IT_IS, "quoted-printable", "base64")),
}


def message_told(data: bytes, depth: int = 0, usual: str = "text/plain") -> Told:
    """All that a message or a part tells, which is of the kind ``usual`` where it does not say.

    ``Unreadable`` where it is not well formed.
    """
    if depth > _DEEPEST:
        raise Unreadable(BROKEN)
    head, fields, position = _fields(data)
    blank = _BLANK.match(data, position)
    if blank is None and depth == 0 and fields:
        # a message that is cut off amid its header looks like one without a body
        raise Unreadable(BROKEN)
    before = blank[0] if blank else b""
    end = b"\r\n" if b"\r\n" in data[:position] + before else b"\n"
    kind, coding = (_ContentType(_the(fields, "content-type") or usual), _the(fields, "content-transfer-encoding"))
    body = _body(kind, coding.partition("(")[0].strip().lower(), data[position + len(before) :], depth, end)
    for field in fields:
        name = field["name"].decode().lower()
        if name.startswith(_DROPPED) or (body is None and name.startswith(_OF_PARTS)):
            continue
        if (name, _unfolded(field["value"]).lower()) in _WORDS_OF_MIME:
            head.append(field[0])
            continue
        of_parts = name in ("content-type", "content-disposition")
        head.append((_with_parameters(field, kind, end) if of_parts else None) or _header(field, name, end))
    if body is not None:
        return _together([*head, before, body])
    tail = data[len(data.rstrip(b"\r\n")) :] or end
    note = b"Content-Type: text/plain" + end + end + _NOTE + tail
    return replace(_together([*head, note]), taken_out=1)


def _fields(data: bytes) -> tuple[list[bytes | Told], list[re.Match[bytes]], int]:
    """The line ``From …`` over a header if there is one, its fields, and where they end."""
    head, found, position = list[bytes | Told](), list[re.Match[bytes]](), 0
    if line := re.match(rb">?From [^\r\n]*(?:\r?\n|\Z)", data):
        head, position = [_envelope(line[0])], line.end()
    while position < len(data) and not _BLANK.match(data, position):
        if len(found) == MOST:
            raise Unreadable(TOO_MANY)
        field = _FIELD.match(data, position)
        if field is None:
            raise Unreadable(BROKEN)
        found.append(field)
        position = field.end()
    return head, found, position


def _the(fields: Sequence[re.Match[bytes]], name: str) -> str:
    """The value of the one field of a name; ``Unreadable`` where there are several: readers would differ."""
    found = [one["value"] for one in fields if one["name"].decode().lower() == name]
    if len(found) > 1:
        raise Unreadable(BROKEN)
    return _unfolded(found[0]) if found else ""


# Headers.

_TO = _words(
    """
    from to cc bcc reply-to sender return-path delivered-to resent-from resent-to resent-cc resent-bcc
    resent-sender resent-reply-to envelope-to envelope-from errors-to x-original-to x-original-from
    x-envelope-from x-envelope-to x-sender x-from x-to x-cc x-forwarded-to x-forwarded-for x-real-to
    disposition-notification-to return-receipt-to mail-followup-to mail-reply-to apparently-to
    original-recipient final-recipient x-google-original-from x-apparently-to x-authenticated-sender
    """
)
_IDENTIFIERS = _words(
    "message-id in-reply-to references resent-message-id content-id x-message-id x-google-original-message-id"
)
_TRACES = ("received", "x-received", "x-originating", "x-source", "x-sender-ip", "x-client", "x-host")
_ADDRESS = re.compile(r"(?<![^\s<>,;:\"()\[\]=])[^\s<>,;:\"()\[\]=@]*+@[^\s<>,;:\"()\[\]]+")
_ENTRY = re.compile(r'"((?:[^"\\]|\\.){0,200}+)"|([^\s,;:<>"()\\][^,;:<>"()]*)')
_IDENTIFIER = re.compile(r"<[^<>]*>|[^\s<>]+")
_ANGLE = re.compile(r"<([^<>]+)>")
_HOST = re.compile(r"(?<![\w-])[\w-]++(?:\.[\w-]++)++|\[[\d.:a-fA-F]+\]|(?<=\bid )\S+")
_KINDS_OF_FIELDS = ("x-", "list-", "resent-", "content-", "received", "thread-", "auto-", "mime-", "mail-")
_FIELDS = (
    _TO
    | _IDENTIFIERS
    | _words(
        """
    date subject comments keywords encrypted importance priority precedence sensitivity organization
    user-agent delivery-date feedback-id errors-to lines status path newsgroups followup-to xref
    summary expires control distribution approved supersedes archive archived-at language accept-language
    require-recipient-valid-since reporting-mta arrival-date action diagnostic-code remote-mta
    last-attempt-date
    """
    )
)
_NO_ENTRY = re.compile(r"(?:undisclosed|unlisted)[- ]recipients?", re.IGNORECASE)
_ENCODED = r"=\?[^?\s]+\?[bBqQ]\?[^?]*\?="
_ENCODED_RUN = re.compile(rf"{_ENCODED}(?:\s*{_ENCODED})*")
_ENCODED_WORD = re.compile(r"=\?([^?\s*]+)(?:\*[^?\s]*)?\?([bBqQ])\?([^?]*)\?=")
_HALF = re.compile(r"=\?[\w-]+\?[bBqQ]\?")
_WORD = re.compile(r"[^\s<>,;:\"]+")
_LONGEST_LINE = 76


def _unfolded(value: bytes) -> str:
    return re.sub(r"\r?\n(?=[ \t])", "", decoded(value, "utf-8"))


def _header(field: re.Match[bytes], name: str, end: bytes) -> Told:
    """A field: its text with encoded words decoded."""
    text = _without_codes(_unfolded(field["value"]))
    start = field["name"] + (field["gap"] if field["gap"].strip() != field["gap"] else b": ")
    if name not in _FIELDS and not name.startswith(_KINDS_OF_FIELDS):
        # nobody knows whether a program or a person named it
        start, text = b"", start.decode() + text

    def write(new: str) -> bytes:
        return _folded(start, new, end)

    return _text(text, write, field[0], partial(_sure, name), IN_URLS, name == "subject")


def _sure(name: str, text: str) -> list[Found]:
    """The addresses of a field; names, hosts and identifiers of one that has nothing else."""
    found = _addresses(text)
    if name in _IDENTIFIERS:
        # with its brackets: there are programs that stop at two of them
        return [Found(*one.span(), "IDENTIFIER") for one in _IDENTIFIER.finditer(text)]
    if name.startswith(_TRACES):
        return found + [Found(*one.span(), "IDENTIFIER") for one in _HOST.finditer(text) if not one[0].isdigit()]
    if name.startswith("list-"):
        return found + [Found(*one.span(1), "IDENTIFIER") for one in _ANGLE.finditer(text)]
    is_of_some = name.startswith("x-") and any("@" in one[1] for one in _ANGLE.finditer(text))
    return found + _entries(text) if name in _TO or is_of_some else found


def _addresses(text: str) -> list[Found]:
    return [Found(*one.span(), "EMAIL_ADDRESS") for one in _ADDRESS.finditer(text)]


def _entries(text: str) -> list[Found]:
    """The names and addresses of a list of addresses, comments among them."""
    found = []
    for one in _ENTRY.finditer(text):
        group = 1 if one[1] is not None else 2
        entry = one[group].rstrip()
        if any(map(str.isalnum, entry)) and not _NO_ENTRY.fullmatch(entry):
            label = "EMAIL_ADDRESS" if "@" in entry else "PERSON"
            found.append(Found(one.start(group), one.start(group) + len(entry), label))
    return found


def _without_codes(value: str) -> str:
    """A header's value with its encoded words decoded, those of one charset that touch together."""
    text = _ENCODED_RUN.sub(_decoded_run, value)
    if _HALF.search(text):
        raise Unreadable(BROKEN)
    return text


def _decoded_run(run: re.Match[str]) -> str:
    pieces: list[tuple[str, bytes]] = []
    for word in _ENCODED_WORD.finditer(run[0]):
        charset, coding, said = word[1].lower(), word[2].lower(), word[3].encode()
        data = _from_base64(said + b"=" * (-len(said) % 4)) if coding == "b" else quopri.decodestring(said, header=True)
        if pieces and pieces[-1][0] == charset:
            data = pieces.pop()[1] + data
        pieces.append((charset, data))
    return "".join(decoded(data, charset) for charset, data in pieces)


def _folded(start: bytes, value: str, end: bytes) -> bytes:
    """A field in lines; what is not ASCII in encoded words."""
    value = re.sub(r"[\r\n]+", " ", value)
    value = _WORD.sub(
        lambda word: word[0] if word[0].isascii() else Header(word[0], "utf-8").encode(linesep="\n"), value
    )
    lines, length = [start], len(start)
    for n, word in enumerate(re.split(r"[ \n]", value)):
        if n and length + 1 + len(word) > _LONGEST_LINE and word:
            lines.append(end)
            length = 0
        lines.append((b" " if n else b"") + word.encode())
        length += len(word) + 1
    return b"".join(lines) + end


# Fields with parameters.

_PARAMETER = re.compile(r""";\s*([\w-]+(?:\*\d{1,3})?\*?)\s*=\s*("(?:[^"\\]|\\.){0,1000}+"|[^;"]*)""")
_FIRST = re.compile(
    r"(?:text|multipart|message|application|image|audio|video|font|model|chemical)/[\w.+-]{1,80}"
    r"|inline|attachment|form-data",
    re.IGNORECASE | re.ASCII,
)
_KEPT = _words("charset boundary format delsp type report-type micalg protocol method size")
_PLAIN_VALUE = re.compile(r"[\w.+/:'-]{0,80}")
_PLAIN_BOUNDARY = re.compile(r"(?!.*\.[A-Za-z]{2})[\w'()+,./:=?-]{1,70}", re.ASCII)


class _ContentType:
    """The kind of a part: its type, and its parameters by their names."""

    def __init__(self, value: str) -> None:
        self.type, self.parameters, _ = _parsed(value)
        if not re.fullmatch(r"[\w.+-]+/[\w.+-]+", self.type):
            self.type, self.parameters = "text/plain", {}
        self.main, _, self.sub = self.type.lower().partition("/")
        self.charset = self.parameters.get("charset", "").strip()
        self.boundary = self.parameters.get("boundary", "").rstrip()
        self.written_boundary = self.boundary
        """What stands for a boundary that says something."""


def _parsed(value: str) -> tuple[str, dict[str, str], bool]:
    """What stands first in a field, its parameters (RFC 2231), and whether that is all."""
    first = value.partition(";")[0].strip()
    pieces: dict[str, list[tuple[int, bool, str]]] = {}
    rest = _PARAMETER.sub("", value)
    for found in _PARAMETER.finditer(value):
        name, _, number = found[1].rstrip("*").lower().partition("*")
        written = found[2].strip()
        if written.startswith('"'):
            written = re.sub(r"\\(.)", r"\1", written[1:-1])
        pieces.setdefault(name, []).append((int(number or 0), found[1].endswith("*"), written))
    parameters = {}
    for name, own in pieces.items():
        if len({number for number, _, _ in own}) < len(own):
            raise Unreadable(BROKEN)
        parameters[name] = _joined_parameter(sorted(own))
    return first, parameters, rest.strip("; \t") == first


def _joined_parameter(pieces: Sequence[tuple[int, bool, str]]) -> str:
    if not any(is_coded for _, is_coded, _ in pieces):
        return _without_codes("".join(written for _, _, written in pieces))
    charset, text = "utf-8", list[bytes]()
    for n, (_, is_coded, written) in enumerate(pieces):
        if n == 0 and is_coded and written.count("'") >= 2:
            charset, _, written = written.split("'", 2)
        text.append(unquote_to_bytes(written) if is_coded else written.encode())
    return decoded(b"".join(text), charset or "utf-8")


def _with_parameters(field: re.Match[bytes], kind: _ContentType, end: bytes) -> Told | None:
    """A field with parameters, of which file names are hits for sure; None where it is not of that form."""
    first, parameters, is_all = _parsed(_unfolded(field["value"]))
    if not _FIRST.fullmatch(first):
        return None
    kept = {name: value for name, value in parameters.items() if name in _KEPT}
    kept = {name: value for name, value in kept.items() if name == "boundary" or _PLAIN_VALUE.fullmatch(value)}
    if "boundary" in kept:
        kept["boundary"] = kind.written_boundary
    others = {name: value for name, value in parameters.items() if name not in kept}
    if is_all and not others and kept == parameters:
        return Told([], [], lambda _: field[0])
    start = field["name"] + b": "

    def render(changes: Edits) -> bytes:
        news = [edited(value, own) for value, own in zip(others.values(), changes, strict=True)]
        values = {**kept, **dict(zip(others, news, strict=True))}
        written = [_parameter(name, values[name]) for name in parameters]
        return _folded(start, "; ".join([first, *written]), end)

    stems = [re.fullmatch(r"(.*?)(?:\.[A-Za-z0-9]{1,5})?", value, re.DOTALL) for value in others.values()]
    sure = [[Found(*stem.span(1), "IDENTIFIER")] if stem and stem[1] else [] for stem in stems]
    return Told([*others.values()], sure, render)


def _parameter(name: str, value: str) -> str:
    value = re.sub(r"[\r\n]+", " ", value)
    if not value.isascii():
        return f"{name}*={encode_rfc2231(value, 'utf-8')}"
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f"{name}={value}" if re.fullmatch(r"[\w.+-]+", value) else f'{name}="{quoted}"'


# Bodies.

_PAGES = _words("html xml xhtml+xml x-amp-html")
_UNREAD = _words("rtf x-rtf")
_IN_LINES = _words("delivery-status disposition-notification feedback-report tracking-status global-headers")
_IN_FULL = _words("rfc822 global news rfc822-headers")
_CARDS = _words("vcard x-vcard directory")
_UNFOLD = re.compile(rf"\r?\n[ \t]|{INVISIBLE.pattern}")
_CARD = re.compile(
    r"^(?:BEGIN|END):(?:VCARD|VCALENDAR|VEVENT|VTODO|VJOURNAL|VFREEBUSY|VTIMEZONE|VALARM|STANDARD|DAYLIGHT)(?=\r?$)"
    rf"|^VERSION:[\d.]+(?=\r?$)|{_UNFOLD.pattern}",
    re.MULTILINE,
)
"""What a card or a calendar is made of is not read."""
_FLOWED = re.compile(rf"(?<= )(?<!\n-- )\r?\n(?:>+ ?)?|{INVISIBLE.pattern}")
_FLOWED_TIGHT = re.compile(rf"(?<!\n--) \r?\n(?:>+ ?)?|{INVISIBLE.pattern}")
_CARD_LINE = re.compile(r"^[\w.-]+[^:\n]{0,200}:(?P<value>[^\r\n]+)", re.MULTILINE)
_ATTENDEE = re.compile(r"""\bCN=(?:"(?P<a>[^"\n]+)|(?P<b>[^";:\n]+))""")


def _body(kind: _ContentType, coding: str, data: bytes, depth: int, end: bytes) -> Told | None:
    """What a body tells; None of one that is no text."""
    if kind.main == "multipart":
        if coding not in _AS_IT_IS or not kind.boundary:
            raise Unreadable(BROKEN)
        return _parts(kind, data, depth)
    if kind.main == "message" and kind.sub not in (*_IN_FULL, *_IN_LINES):
        raise Unreadable(BROKEN)
    if kind.main not in ("text", "message") or kind.sub in _UNREAD:
        return None
    inner = _uncoded(data, coding)
    told = message_told(inner, depth + 1) if kind.sub in _IN_FULL else _lines(kind, inner)

    def render(changes: Edits) -> bytes:
        new = told.render(changes)
        return data if new == inner else _coded(new, coding, end, data)

    return replace(told, render=render)


def _lines(kind: _ContentType, data: bytes) -> Told:
    """What a body of text tells."""
    text = decoded(data, kind.charset or "utf-8")
    charset = kind.charset or ("ascii" if text.isascii() else "utf-8")
    if kind.sub in _PAGES:
        return page_told(text, data, lambda new: new.encode(charset, "xmlcharrefreplace"))
    flows = kind.parameters.get("format", "").lower() == "flowed"
    flowed = _FLOWED_TIGHT if kind.parameters.get("delsp", "").lower() == "yes" else _FLOWED
    is_card = kind.sub in {*_CARDS, "calendar", "x-vcalendar"}
    in_lines = is_card or kind.main == "message"
    escapes = _CARD if is_card else _UNFOLD if in_lines else flowed if flows else INVISIBLE

    def sure(said: str) -> list[Found]:
        if kind.sub in _CARDS:
            return [Found(*one.span("value"), "IDENTIFIER") for one in _CARD_LINE.finditer(said)]
        found = _addresses(said) if in_lines else []
        if is_card:
            for one in _ATTENDEE.finditer(said):
                found.append(Found(*one.span("a" if one["a"] else "b"), "PERSON"))
        return found

    return _text(text, lambda new: new.encode(charset, "replace"), data, sure, escapes, True)


def _parts(kind: _ContentType, data: bytes, depth: int) -> Told:
    """What parts tell, and what stands before and behind them."""
    old = kind.boundary.encode()
    line = rb"^--" + re.escape(old) + rb"(--)?[ \t]*(?:\r?\n|\Z)"
    delimiters = list(bounded(re.finditer(line, data, re.MULTILINE), MOST // _PART))
    if len(delimiters) < 2 or [n for n, one in enumerate(delimiters) if one[1]] != [len(delimiters) - 1]:
        raise Unreadable(BROKEN)
    if not _PLAIN_BOUNDARY.fullmatch(kind.boundary):
        kind.written_boundary = f"=_{depth}"
        while kind.written_boundary.encode() in data:
            kind.written_boundary += "_"
    new = kind.written_boundary.encode()
    usual = "message/rfc822" if kind.sub == "digest" else "text/plain"
    pieces: list[bytes | Told] = []
    position = count = 0
    for n, one in enumerate(delimiters):
        inner = data[position : one.start()]
        if n == 0:
            pieces.append(_text(decoded(inner, "utf-8"), str.encode, inner))
        else:
            # the line's end before a delimiter is the delimiter's
            last = re.search(rb"\r?\n\Z|\Z", inner)
            cut = last.start() if last else len(inner)
            told = message_told(inner[:cut], depth + 1, usual)
            pieces += [told, inner[cut:]]
            count += _PART + len(told.texts)
            if count > MOST:
                raise Unreadable(TOO_MANY)
        pieces.append(one[0].replace(old, new, 1))
        position = one.end()
    rest = data[position:]
    return _together([*pieces, _text(decoded(rest, "utf-8"), str.encode, rest)])


_CUT_ESCAPE = re.compile(rb"=[0-9A-Fa-f]?\Z")


def _uncoded(data: bytes, coding: str) -> bytes:
    """A body without its transfer encoding; ``Unreadable`` where that is broken or not known."""
    if coding in _AS_IT_IS:
        return data
    if coding == "quoted-printable":
        if _CUT_ESCAPE.search(data):
            raise Unreadable(BROKEN)
        return quopri.decodestring(data)
    if coding == "base64":
        return _from_base64(b"".join(data.split()))
    raise Unreadable(BROKEN)


def _from_base64(data: bytes) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise Unreadable(BROKEN) from None


def _coded(data: bytes, coding: str, end: bytes, old: bytes) -> bytes:
    """A body in a transfer encoding, with the empty lines at the end of the ``old`` one."""
    if coding == "quoted-printable":
        return re.sub(rb"^From ", b"=46rom ", quopri.encodestring(data), flags=re.MULTILINE)
    if coding == "base64":
        lines = base64.encodebytes(data).splitlines()
        return end.join(lines) + old[len(old.rstrip()) :]
    return data
