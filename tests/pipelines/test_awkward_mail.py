"""Mail as programs really write it: read where its text is certain, and then without what was planted in it."""

from __future__ import annotations

import base64
import io
import quopri
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redactory
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.readers.documents import parse_address
from redactory.pipelines.readers.formats import FORMATS, Row
from tests.pipelines.support import LINE_CONFIG, DigitDetector
from tests.pipelines.test_document_corners import decodings
from tests.pipelines.test_redact_documents import masked

TOP = b"From: a@example.org\nSubject: x\n"
MIXED = TOP + b'Content-Type: multipart/mixed; boundary="b"\n\n'
PLAIN = b"Content-Type: text/plain; charset=%s\nContent-Transfer-Encoding: 8bit\n\n"


def row_of(data: bytes, format_: str = "mail") -> Row:
    (row,) = FORMATS[format_](io.BytesIO(data), "a", 1 << 20).read_records()
    return row


def text_of(data: bytes) -> str:
    row = row_of(data)
    assert row.reason is None
    return str(row.cells["text"]).removeprefix("x").strip()


CAFE, TOKYO, SEOUL = "café à la carte", "東京 tower", "서울 tower"
READ: dict[str, tuple[bytes, str]] = {
    "unknown label, ASCII": (TOP + PLAIN % b"x-unknown" + b"hello", "hello"),
    "unknown label, UTF-8": (TOP + PLAIN % b"x-unknown" + CAFE.encode(), CAFE),
    "ASCII label, UTF-8": (TOP + PLAIN % b"us-ascii" + CAFE.encode(), CAFE),
    "ASCII label, Latin": (TOP + PLAIN % b"us-ascii" + "“café” to go".encode("cp1252"), "“café” to go"),
    "Latin label, UTF-8": (TOP + PLAIN % b"iso-8859-1" + CAFE.encode(), CAFE),
    "UTF-8 label, Latin": (TOP + PLAIN % b"utf-8" + CAFE.encode("latin-1"), CAFE),
    "no label, ISO-2022-JP": (TOP + b"\n" + TOKYO.encode("iso2022_jp"), TOKYO),
    "smaller charset": (TOP + PLAIN % b"gb2312" + "長 tower 镕".encode("gb18030"), "長 tower 镕"),
    "Korean": (TOP + PLAIN % b"ks_c_5601-1987" + SEOUL.encode("cp949"), SEOUL),
    "no last boundary": (MIXED + b"--b\n\none\n--b\n\ntwo\n", "one\n\ntwo"),
    "another boundary": (MIXED + b"--c\nContent-Type: text/plain\n\none\n--c--\n", "one"),
    "no parts": (MIXED + b"one\n", "one"),
    "no boundary": (TOP + b"Content-Type: multipart/mixed\n\none\n", "one"),
    "no body": (MIXED, ""),
    "stray line": (b"X-A: x\nstray\nTo: a@b.c\nSubject: x\n\none", "one"),
    "space before the colon": (b"Subject : x\n\none", "one"),
    "no line behind the header": (TOP + b"one\n\ntwo\n", "one\n\ntwo"),
    "byte order mark": (b"\xef\xbb\xbf\r\n" + TOP + b"\none", "one"),
    "only carriage returns": ((TOP + b"\none\ntwo").replace(b"\n", b"\r"), "one\ntwo"),
    "doubled carriage returns": ((TOP + b"\none\ntwo").replace(b"\n", b"\r\r\n"), "one\r\ntwo"),
    "coding with a sign": (TOP + b"Content-Transfer-Encoding: 7-bit;\n\none two", "one two"),
    "coding with a space": (TOP + b"Content-Transfer-Encoding: quoted printable\n\none=20two", "one two"),
    "unknown coding": (TOP + b"Content-Transfer-Encoding: text/html\n\none two", "one two"),
    "footer": (TOP + b"Content-Transfer-Encoding: base64\n\naGVsbG8=\n___\nto \xc3\xa9\n", "hello___\nto é"),
    "coded twice": (TOP + b"Content-Transfer-Encoding: 7bit\ncontent-transfer-encoding: 7Bit\n\none two", "one two"),
    "type twice": (MIXED[:-1] + b"Content-Type: text/plain\n\n--b\n\none\n--b--\n", "one"),
    "parts declared as base64": (MIXED[:-1] + b"Content-Transfer-Encoding: base64\n\n--b\n\none\n--b--\n", "one"),
}


@pytest.mark.parametrize("name", READ)
def test_a_text_that_is_certain_is_read(name: str) -> None:
    data, expected = READ[name]
    assert text_of(data) == expected


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (b"caf\xe9 \xc0 la carte", "café À la carte"),
        ("Grüße".encode(), "Grüße"),
        (b"=?x-unknown?q?caf=C3=A9?= now", "café now"),
        (b"one =?utf-8?b?aGVsbG8", "one \ufffd"),
        (b"=?utf-7?q?Ann?= two", "\ufffd two"),
        (b"=?utf-8?b?A?= two", "\ufffd two"),
        (b"=?us-ascii?q?caf=E9s?=", "cafés"),
    ],
)
def test_a_header_field_is_read_or_a_mark_stands_for_its_word(subject: bytes, expected: str) -> None:
    assert text_of(b"Subject: " + subject + b"\nTo: a@b.c\n\n") == expected


def test_a_line_that_begins_with_from_is_no_message() -> None:
    data = b"From a Mon 10:00\nSubject: x\n\none\n\nFrom here on\ntwo\n\nFrom now on:\n\nthree\n\n"
    data += b"From b Tue 11:00\n\nfour\n"
    rows = list(FORMATS["mbox"](io.BytesIO(data), "a", 1_000).read_records())
    texts = [" ".join(row.cells["text"].split()) for row in rows]
    assert texts == ["x one From here on two From now on: three", "four"]


# What is planted is not in the copy, however its mail is broken.

VALUES = {"Kovács": "kov", "Ковачева": "овачев", "山田太郎": "田太"}
PATTERN = "(?i)kov.cs|ковачева|山田太郎"
ENCODINGS = ("utf-8", "cp1252", "koi8-r", "cp1251", "utf-16-le", "shift_jis", "euc_jp", "iso2022_jp", "gb18030", "big5")
LABELS = ("", "us-ascii", "utf-8", "x-unknown", "utf-16", "utf-7", "right")
CODINGS = {
    "8bit": bytes,
    "": bytes,
    "7-bit": bytes,
    "base64": base64.encodebytes,
    "quoted-printable": quopri.encodestring,
    "quoted printable": quopri.encodestring,
}
UNKNOWN_CODINGS = (base64.encodebytes, quopri.encodestring, bytes)
FRAMES = {
    "plain": b"%s\n%s\n",
    "part": b"Content-Type: multipart/mixed; boundary=b\n\n--b\n%s\n%s\n--b--\n",
    "no end": b"Content-Type: multipart/mixed; boundary=b\n\n--b\n%s\n%s\n",
    "wrong boundary": b"Content-Type: multipart/mixed; boundary=b\n\n--c\n%s\n%s\n--c--\n",
    "no boundary": b"Content-Type: multipart/alternative\n\n--c\n%s\n%s\n--c--\n",
    "no boundary, no fields": b"Content-Type: multipart/alternative\n%s\n%s\n",
    "message": b"Content-Type: message/rfc822\n\nTo: x\n%s\n%s\n",
    "stray": b"stray line\n%s\n%s\n",
    "stray behind": b"X-A: x\n%sstray line\n\n%s\n",
    "report": b"Content-Type: message/delivery-status\n\n%s\n%s\n",
}


def is_utf8(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def is_readable(copy: bytes, part: str) -> bool:
    """Whether somebody could read ``part`` in the copy, also where its letters were taken for others."""
    for text in decodings(copy):
        views = [text, text.encode("latin-1", "ignore").decode("utf-8", "ignore")]
        for written in ("latin-1", "cp1252"):
            encoded = views[1].encode(written, "ignore")
            views += [encoded.decode(encoding, "ignore") for encoding in ENCODINGS]
        if any(part in view.casefold() for view in views):
            return True
    return False


def test_text_with_a_colon_is_no_field_of_a_report() -> None:
    """The letters of ISO-2022-JP are ASCII, and one of them is a colon."""
    encoded = quopri.encodestring("山田太郎".encode("iso2022_jp"))
    data = b"Subject: x\n" + FRAMES["report"] % (b"Content-Transfer-Encoding: quoted-printable\n", encoded)
    assert b":" in encoded
    assert masked("mail", data, PATTERN) is None
    fields = b"Reporting-MTA: dns; a.example\n\nFinal-Recipient: rfc822; b@c.example\nX-Own_name.2: y\n"
    assert b"Reporting-MTA" in (masked("mail", b"Content-Type: message/delivery-status\n\n" + fields, PATTERN) or b"")


@settings(max_examples=150, deadline=None)
@given(
    value=st.sampled_from(sorted(VALUES)),
    words=st.sampled_from(["Dear all, {} has written to us today, as you know.", "{}", "é {} à", "a\n{}\n\nb {}"]),
    encoding=st.sampled_from(ENCODINGS),
    label=st.sampled_from(LABELS),
    coding=st.sampled_from([*CODINGS.items(), *(("x-own", encode) for encode in UNKNOWN_CODINGS)]),
    frame=st.sampled_from(sorted(FRAMES)),
    is_twice=st.booleans(),
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r\r\n", b"\r"]),
    footer=st.sampled_from([b"", b"\n_____\nKov\xc3\xa1cs", b"\n\nregards\nKov\xe1cs"]),
    in_header=st.booleans(),
)
def test_what_is_planted_in_broken_mail_is_not_in_its_copy(
    value: str,
    words: str,
    encoding: str,
    label: str,
    coding: tuple[str, Any],
    frame: str,
    is_twice: bool,
    line_end: bytes,
    footer: bytes,
    in_header: bool,
) -> None:
    encoded = words.replace("{}", value).encode(encoding, "replace")
    if encoding == "utf-16-le" and label != "right" and is_utf8(encoded):
        # a few of its characters are also valid UTF-8, and nobody reads that otherwise
        return
    label = label if label != "right" else "iso-8859-1" if encoding == "utf-8" else encoding
    type_ = f"Content-Type: text/plain; charset={label}\n".encode() if label else b""
    fields = type_ * (1 + is_twice) + (f"Content-Transfer-Encoding: {coding[0]}\n".encode() if coding[0] else b"")
    raw = b"X-Note: " + encoded.replace(b"\n", b" ") + b"\n" if in_header else b""
    # a program that adds a footer does not decode the text
    body = coding[1](encoded) + footer * (coding[1] is base64.encodebytes)
    data = b"Subject: x\n" + raw + FRAMES[frame] % (fields, body)
    if "utf-16" not in encoding:
        data = data.replace(b"\n", line_end)
    if coding[0] in ("", "8bit", "7-bit") and frame.startswith("no boundary"):
        # fields that nobody reads cannot tell how a text is encoded
        return
    copy = masked("mail", data, PATTERN)
    assert not is_readable(copy or b"", VALUES[value])
    assert not is_readable(copy or b"", "kov")


# The sender is the user.


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ('"Mary Smith" <Mary.Smith@Example.COM>', "mary.smith@example.com"),
        ("mary@example.com (Mary), Bob <bob@example.com>", "mary@example.com"),
        ("Jörg <Jörg@Exämple.de>", "jörg@exämple.de"),
        ("undisclosed-recipients:;", None),
        ("Mary Smith", None),
        ("", None),
        ("x" * 300 + "@example.com", None),
    ],
)
def test_an_address_is_read_without_its_name_and_in_lower_case(field: str, expected: str | None) -> None:
    assert parse_address(field) == expected


MAILS = {
    "1.eml": b'From: "Mary Smith" <Mary@Example.com>\nReply-To: team@example.com\nSubject: x\n\nnumber 1\n',
    "2.eml": b"from: mary@example.com\nSubject: x\n\nnumber 2\n",
    "3.eml": b"Subject: x\n\nnumber 3\n",
    "4.mbox": b"From q Mon 10:00\nFrom: =?utf-8?q?B=C3=B6b?= <bob@example.com>\n\nnumber 4\n\n"
    b"From q Mon 10:00\nTo: x\n\nnumber 5\n",
}


@pytest.mark.parametrize(
    ("mail_user", "expected"),
    [
        ("from", ["mary@example.com", "mary@example.com", None, "bob@example.com", None]),
        ("Reply-To", ["team@example.com", None, None, None, None]),
        (None, [None] * 5),
    ],
)
def test_the_sender_of_a_mail_is_its_user(tmp_path: Path, mail_user: str | None, expected: list[str | None]) -> None:
    (tmp_path / "in").mkdir()
    for name, data in MAILS.items():
        (tmp_path / "in" / name).write_bytes(data)
    config = {**LINE_CONFIG, "input": {"path": str(tmp_path / "in"), "mail_user": mail_user}}
    redactory.curate(config, output=tmp_path / "run", detector=DigitDetector())
    parts = sorted((tmp_path / "run" / "vault").glob("*.parquet"))
    users = {row["doc_id"]: row["user_id"] for part in parts for row in pq.read_table(part).to_pylist()}
    assert list(users.values()) == expected
    shards = [path for split in ("public", "private") for path in (tmp_path / "run" / split).glob("*.parquet")]
    assert shards
    assert not any(b"mary@" in path.read_bytes() for path in shards)


def test_an_erasure_finds_the_sender(tmp_path: Path) -> None:
    (tmp_path / "1.eml").write_bytes(MAILS["1.eml"])
    config = {**LINE_CONFIG, "input": {"path": str(tmp_path / "1.eml")}}
    redactory.curate(config, output=tmp_path / "run", detector=DigitDetector())
    [found] = redactory.erase([tmp_path / "run"], user_ids=["mary@example.com"], dry_run=True)["runs"]
    assert found["examples"] > 0


def test_a_header_field_of_mail_is_a_name() -> None:
    with pytest.raises(ConfigurationError, match="mail_user"):
        redactory.describe({"input": {"path": "x.eml", "mail_user": "From: x"}})


@pytest.mark.parametrize(
    "data",
    [
        TOP + b"\n" + b"\r" * 500_000 + b"x\n",
        TOP + b"X-A: " + b"a" * 65_000 + b"\n\nx\n",
        TOP + b"Content-Transfer-Encoding: x-a\n\n" + b" " * 500_000 + b"a b c\n",
    ],
    ids=["carriage returns", "a field without spaces", "spaces of an unknown coding"],
)
def test_a_long_run_takes_linear_time(data: bytes) -> None:
    assert row_of(data).reason is None
