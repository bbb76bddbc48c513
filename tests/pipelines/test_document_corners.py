"""Documents with an address in a corner: none of it is in the copy, however that is decoded."""

from __future__ import annotations

import base64
import html
import io
import json
import quopri
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pypdf
import pytest
from pypdf.annotations import FreeText

from redactory.pipelines.documents.redact import redact
from redactory.pipelines.readers.formats import FORMATS, Row

SECRET = "ann.kovacs@example.org"
LEFT = ("kovacs", "ann.k", "a.n.n")
"""What of it must not be left."""
BASE64 = base64.b64encode(f"write to {SECRET}".encode()).decode()
HIDDEN = "".join(f"&#{ord(letter)};" for letter in SECRET)
ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in SECRET)
PERCENT = "".join(f"%{ord(letter):02X}" for letter in SECRET)

PAGES = {
    "alt": f'<img alt="{SECRET}">',
    "link": f"<a href='mailto:{PERCENT}'>x</a>",
    "unquoted": f"<a href=mailto:{SECRET}>x</a>",
    "class": f'<p class="user {SECRET}" id="{SECRET}">x</p>',
    "style of an element": f"<p style=\"content: '{SECRET}'\">x</p>",
    "names of attributes": f"<p {SECRET} {{kovacs}}b=1 {{kovacs=2>x</p>",
    "meta": f'<meta name="author" content="{SECRET}">',
    "sources": f'<img srcset="/a?to={PERCENT} 2x, b.png">',
    "event": f"<b onclick=\"f('{ESCAPED}')\">x</b>",
    "script": f'<script>to = "{ESCAPED}"</script>',
    "data": f'<script type="application/ld+json">{json.dumps({"to": SECRET})}</script>',
    "entities": f"<p>{HIDDEN}</p><p title='{HIDDEN}'>x</p>",
    "soft hyphen": f"<p>{SECRET[:6]}&shy;{SECRET[6:12]}&#8203;{SECRET[12:]}</p>",
    "comment inside": f"<p>{SECRET[:6]}<!-- x -->{SECRET[6:]}</p>",
    "in a comment": f"<!--[if mso]><p>{SECRET[:6]}<b>{SECRET[6:]}</b></p><![endif]-->",
    "cells of text": f"<a>Home</a><a>{SECRET}</a><a>Out</a>",
    "line break": f"<p>to<br>{SECRET}<br>now</p>",
    "unclosed": f'<a title="{SECRET} <p>x</p>',
    "unknown tags": f"<{SECRET}><Ann Kovacs><my-tag>{SECRET}</my-tag><kovacs:b {{kovacs}}/></p kovacs>",
    "document type": f'<!DOCTYPE html SYSTEM "{SECRET}">',
    "instruction": f"<?php {SECRET} ?>",
    "marked section": f"<svg><![CDATA[{SECRET}]]><text>{SECRET}</text></svg>",
    "embedded": f'<img src="data:text/plain;base64,{BASE64}">',
    "base64": f'<p data-state="{BASE64}">x</p><a href="/u/{BASE64}/x">x</a>',
    "zeros": f"<p>{SECRET.replace('@', '&#000000000064;')}</p>",
    "twice": f"<p title=x title='{SECRET}' srcdoc='{HIDDEN.replace('&', '&amp;')}'>x</p>",
    "raw": f"<xmp>{SECRET}</xmp><iframe>{HIDDEN}</iframe><noscript>{SECRET}</noscript><plaintext>{SECRET}",
}
TOP = "From: x@example.net\nSubject: x\n"
PARTS = TOP + 'Content-Type: multipart/mixed; boundary="b"\n\n'
MAILS = {
    "preamble": f"{PARTS}{SECRET}\n--b\n\nx\n--b--\n",
    "epilogue": f"{PARTS}--b\n\nx\n--b--\n{SECRET}\n",
    "name of a part": f'{PARTS}--b\nContent-Type: text/plain; name="{SECRET}"\n\nx\n--b--\n',
    "file name": f"{PARTS}--b\nContent-Disposition: inline;\n filename*0*=utf-8''{PERCENT[:15]};\n"
    f" filename*1*={PERCENT[15:]}\n\nx\n--b--\n",
    "description": f"{PARTS}--b\nContent-Description: {SECRET}\n\nx\n--b--\n",
    "attachment": f"{PARTS}--b\nContent-Type: image/png\nContent-ID: <{SECRET}>\n\n{SECRET}\n--b--\n",
    "message in a message": f"{PARTS}--b\nContent-Type: message/rfc822\n\nSubject: {SECRET}\n"
    f"Content-Transfer-Encoding: base64\n\n{BASE64}\n--b--\n",
    "page": f"{PARTS}--b\nContent-Type: text/html\nContent-Transfer-Encoding: quoted-printable\n\n"
    f"<!-- {SECRET} --><p title=3D'{SECRET}'>{SECRET[:5]}=\n{SECRET[5:]}</p>\n--b--\n",
    "report": f"{PARTS}--b\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; kovacs.example\n\n"
    f"Final-Recipient: rfc822; {SECRET}\nX-User: kovacs\n\n--b--\n",
    "in part encoded": f"{TOP}Comments: =?utf-8?q?x?= {SECRET}\n\nx\n",
    "digest": TOP + f"Content-Type: multipart/digest; boundary=b\n\n--b\n\nTo: {SECRET}\n\n{SECRET}\n--b--\n",
    "boundary": f"{PARTS}--b\n\nx\n--b--\n".replace('"b"', f'"{SECRET}"').replace("--b", f"--{SECRET}"),
    "comment": f"{TOP}To: y@example.net (Kovacs)\n\nx\n",
    "group": f"{TOP}To: Kovacs: y@example.net;\n\nx\n",
    "folded": f"{TOP}X-To: {SECRET[:6]}\n  x\n\nx\n".replace(SECRET[:6], SECRET),
    "encoded": f"{TOP}To: =?utf-8?b?S292?=\n =?utf-8?q?=61cs?= <{SECRET}>\n\nx\n",
    "8 bit": f"{TOP}X-To: Café {SECRET}\n\nx\n",
    "identifier": f"{TOP}References: <1@kovacs.example>\n <2@kovacs.example>\n\nx\n",
    "list": f"{TOP}List-Id: <kovacs.example>\nList-Unsubscribe: <https://x/?u={PERCENT}>\n\nx\n",
    "trace": f"{TOP}Received: from kovacs.example (x [192.0.2.1]) by y id kovacs1; 1 Jan 2024\n\nx\n",
    "signature": f"{TOP}ARC-Seal: d=kovacs.example\nDKIM-Signature: d=kovacs.example\n\nx\n",
    "key": f"{TOP}Autocrypt: addr=x; keydata={BASE64}\n\nx\n",
    "comment of a type": f"{TOP}Content-Type: text/plain ({SECRET})\nMIME-Version: 1.0 ({SECRET})\n\nx\n",
    "name of a header": f"{TOP}{SECRET.replace('@', '.')}: x\n\nx\n",
    "flowed": f"{TOP}Content-Type: text/plain; format=flowed; delsp=yes\n\n> to \n> {SECRET[:5]} \n> {SECRET[5:]}\n",
    "calendar": f"{TOP}Content-Type: text/calendar\n\nATTENDEE;CN=Kovacs:mailto:{SECRET[:5]}\n {SECRET[5:]}\n",
    "card": f"{TOP}Content-Type: text/vcard\n\nFN:Kovacs\nNOTE:{SECRET[:5]}\n {SECRET[5:]}\n",
    "broken words": f"Subject: =?utf-7?q?{SECRET}?= =?utf-8?b?{BASE64}\n\nx\n",
    "word of odd length": f"Subject: =?utf-8?b?{BASE64}A?= =?utf-8?b?A?=\n\nx\n",
    "bracket for the end": f"{PARTS}--b\n\nx {SECRET}\n",
    "no boundary": f"{TOP}Content-Type: multipart/mixed\n\nx {SECRET}\n",
    "another boundary": f"{PARTS}{SECRET}\n----c\nContent-Type: text/plain\nContent-Transfer-Encoding: base64\n\n"
    f"{BASE64}\n----c--\n{SECRET}\n",
    "stray line": f"X-Note: x\n{SECRET} on its own\nTo : Kovacs\nSubject: x\n\nx\n",
    "footer": f"{TOP}Content-Transfer-Encoding: base64\n\n{BASE64}\n_____\n{SECRET}\n",
    "footer of words": f"{TOP}Content-Transfer-Encoding: base64\n\n{base64.b64encode(b'x' * 57).decode()}\neHg=\n\n"
    f"Kind regards\n{SECRET}\n",
    "message in base64": f"{PARTS}--b\nContent-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n"
    + base64.encodebytes(f"Subject: {SECRET}\nTo: Kovacs\n\nx {SECRET}\n".encode()).decode()
    + "--b--\n",
    "text in a report": f"{PARTS}--b\nContent-Type: message/delivery-status\n\nit went to {SECRET}\n\n--b--\n",
    "carriage returns": f"{TOP}\nx {SECRET}\n".replace("\n", "\r"),
    "double carriage returns": f"{TOP}To: Kovacs\n\nx {SECRET}\n".replace("\n", "\r\r\n"),
    "unknown charset": f"{TOP}Content-Type: text/plain; charset=nonsense\n\nx {SECRET}\n",
    "unknown coding": f"{TOP}Content-Transfer-Encoding: 7-bit; x\n\nx {SECRET}\n",
    "no line between": f"{TOP}Content-Type: text/plain\nwrite to {SECRET}\n\nx\n",
    "winmail.dat": f"{PARTS}--b\nContent-Type: application/ms-tnef; name=winmail.dat\nContent-Transfer-Encoding: "
    f"base64\n\n{BASE64}\n--b--\n",
    "signed": f"{TOP}Content-Type: multipart/signed; boundary=b\n\n--b\n\nx {SECRET}\n--b\nContent-Type: "
    f"application/pkcs7-signature\nContent-Transfer-Encoding: base64\n\n{BASE64}\n--b--\n",
    "part of a message": f"{PARTS}--b\nContent-Type: message/partial\n\nTo: Kovacs\n\nx {SECRET}\n--b--\n",
    "broken message": f"{PARTS}--b\nContent-Type: message/rfc822\n\nContent-Type: text/plain; charset=utf-16\nTo: "
    f"Kovacs\n\n{SECRET}\n--b--\n",
    "message that came back": f"{TOP}\nSubject: =?utf-8?b?{BASE64}?=\n\n{BASE64}\n",
}


def pdf(text: str) -> bytes:
    stream = f"BT /F1 12 Tf 10 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 6\n0000000000 65535 f \n"
    return body + head + table + b"trailer << /Root 1 0 R /Size 6 >>\nstartxref\n%d\n%%%%EOF" % len(body)


W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
RUNS = f"<w:p><w:r><w:t>{SECRET[:5]}</w:t></w:r><w:r><w:t>{SECRET[5:]}</w:t></w:r></w:p>"
TEXT = "<w:p><w:r><w:t>x</w:t></w:r></w:p>"


def word(body: str = TEXT, comment: bytes = b"", **parts: str | bytes) -> bytes:
    packed = io.BytesIO()
    document = f"<w:document {W}><w:body>{body}</w:body></w:document>"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.comment = comment
        for name, content in {"word/document.xml": document, **parts}.items():
            file.writestr(name, content)
    return packed.getvalue()


LINK = f'<Relationship Id="r" Type="t" Target="x:{PERCENT}" TargetMode="External"/>'
FILES = {
    "glossary": word(**{"word/glossary/document.xml": f"<w:x {W}>{RUNS}</w:x>"}),
    "custom": word(**{"customXml/item1.xml": f"<a b='{SECRET}'>{SECRET}<c/>{SECRET}</a>"}),
    "utf-16": word(**{"customXml/item1.xml": f"<a>{SECRET}</a>".encode("utf-16")}),
    "chart": word(**{"word/charts/chart1.xml": f"<c><a:v xmlns:a='a'>{SECRET}</a:v></c>"}),
    "settings": word(**{"word/settings.xml": f'<w:s {W}><w:docVar w:val="{SECRET}"/></w:s>'}),
    "properties": word(**{"docProps/custom.xml": f'<p><property name="{SECRET}"><v>x</v></property></p>'}),
    "links": word(**{"word/_rels/document.xml.rels": f"<R>{LINK}</R>"}),
    "macros": word(**{"word/vbaProject.bin": SECRET}),
    "fonts": word(**{"word/fonts/font1.odttf": SECRET}),
    "name of a part": word(**{"word/media/kovacs.png": b"x"}),
    "of the archive": word(comment=SECRET.encode()),
    "note": word(f"<!-- {SECRET} --><?x {SECRET}?>{TEXT}"),
    "picture": word(f'<w:p><w:r><x descr="{SECRET}" title="{SECRET}" alt="{SECRET}"/></w:r></w:p>'),
    "people": word(**{"word/people.xml": f'<p {W}><w:person w:author="Kovacs" userId="S::Kovacs"/></p>'}),
    "field": word(
        f'<w:p><w:r><w:instrText>HYPERLINK "mailto:{SECRET[:5]}</w:instrText></w:r><w:r><w:t>x</w:t></w:r>'
        f'<w:r><w:instrText>{SECRET[5:]}"</w:instrText></w:r></w:p>'
    ),
    "simple field": word(f'<w:p><w:fldSimple w:instr=" COMMENTS {SECRET} "/></w:p>'),
    "deleted": word(
        f"<w:p><w:r><w:t>{SECRET[:5]}</w:t></w:r><w:ins><w:r><w:t>x</w:t></w:r></w:ins>"
        f"<w:del><w:r><w:delText>{SECRET[5:]}</w:delText></w:r></w:del></w:p>"
    ),
    "inserted": word(
        f"<w:p><w:r><w:t>{SECRET[:5]}</w:t></w:r><w:del><w:r><w:delText>x</w:delText></w:r></w:del>"
        f"<w:ins><w:r><w:t>{SECRET[5:]}</w:t></w:r></w:ins></w:p>"
    ),
    "text box": word(f"<w:p><w:r><w:t>x</w:t><w:txbxContent>{RUNS}</w:txbxContent><w:t>y</w:t></w:r></w:p>"),
    "content control": word(f'<w:sdt><w:alias w:val="{SECRET}"/>{RUNS}</w:sdt>'),
    "hidden letters": word(f"<w:p><w:r><w:t>{SECRET[:5]}\u00ad{SECRET[5:]}</w:t></w:r></w:p>"),
}


def corners() -> dict[str, bytes]:
    found = {f"{name}.html": f"<p>x</p>{page}".encode() for name, page in PAGES.items()}
    found |= {f"{name}.eml": mail.encode() for name, mail in MAILS.items()}
    return found | {f"{name}.docx": data for name, data in FILES.items()}


def decodings(data: bytes, depth: int = 0) -> Iterator[str]:
    """All that somebody may read in ``data``."""
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            yield "".join(file.namelist()) + file.comment.decode()
            for name in file.namelist():
                yield from decodings(file.read(name), depth + 1)
        return
    for text in (data.decode("latin-1"), data.decode("utf-16-le", "replace")):
        said = re.sub(r"<!--.*?-->|\n[ >]*", "", text)
        without_tags = re.sub("<[^>]*>", "", said)
        for one in (text, said, without_tags):
            shown = unquote(html.unescape(one))
            yield re.sub(r"\\u([0-9a-f]{4})", lambda code: chr(int(code[1], 16)), shown)
            yield re.sub("[\u00ad\u200b]", "", shown)
    if depth < 3:
        yield from decodings(quopri.decodestring(data), 3)
        for run in re.findall(rb"[A-Za-z0-9+/]{8,}(?:\n[A-Za-z0-9+/]+)*", data):
            letters = run.replace(b"\n", b"")
            yield from decodings(base64.b64decode(letters[: len(letters) // 4 * 4]), depth + 1)


def is_left(data: bytes) -> bool:
    return any(word in text.casefold() for text in decodings(data) for word in LEFT)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    place = tmp_path_factory.mktemp("corners")
    (place / "in").mkdir()
    for name, data in corners().items():
        (place / "in" / name).write_bytes(data)
    return place / "out", redact(place / "in", place / "out", config={"detect": {"tagger": None}})


@pytest.mark.parametrize("name", corners())
def test_an_address_in_a_corner_is_not_in_the_copy(name: str, copied: tuple[Path, dict[str, Any]]) -> None:
    assert is_left(corners()[name])
    assert not is_left((copied[0] / name).read_bytes())


def test_every_document_with_a_corner_is_written(copied: tuple[Path, dict[str, Any]]) -> None:
    # the attachment, the calendar, the card, the embedded image, the macros, the font and the picture; of mail that is
    # not well formed the missing end, winmail.dat, the signature and two nested messages
    assert (copied[1]["quarantined"], copied[1]["taken_out"]) == ({}, 12)


TYPE = "Content-Type: text/plain"
ENVELOPE = "From MAILER-DAEMON Thu Jan  1 00:00:00 1970\n"
PLAIN = f'MIME-Version: 1.0\n{TYPE}; charset="utf-8"\nContent-Transfer-Encoding: 7bit\n\n'


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        *(
            ("a.html", f'<meta charset="{charset}"><p>{SECRET}</p>'.encode(), "undecodable")
            for charset in ("utf-16", "UTF_16LE", "utf-7", "CP037", "u8-none", "unicode_escape", "idna", "hz")
        ),
        ("a.html", f"<p>{SECRET}</p>".encode("utf-16-le"), "undecodable"),
        ("a.html", b"<meta charset='utf-8'>\xff", "undecodable"),
        ("a.md", f"write to {SECRET}".encode("utf-16-le"), "undecodable"),
        ("a.eml", f"{TYPE}; charset=UTF-16\n\n{SECRET}".encode(), "undecodable"),
        ("a.eml", f"{TYPE}; charset*=us-ascii''cp037\n\n{SECRET}".encode(), "undecodable"),
        ("a.eml", f"Subject: {SECRET}\n\n".encode() + "Привет, Мария".encode("koi8-r"), "undecodable"),
        ("a.eml", f"{TYPE}\n\n{SECRET} ".encode() + "Mária\n".encode() + b"caf\xe9", "undecodable"),
        ("a.eml", f"{TYPE}; charset=unicode-2-0-utf-7x\n\n{SECRET}".encode(), "undecodable"),
        ("a.eml", f"{TYPE}; charset=nonsense\n\n\x1b$)C{SECRET}".encode(), "undecodable"),
        ("a.eml", f"{TYPE}; charset=utf-8\n\n".encode() + b"\xff\xfe", "undecodable"),
        ("a.eml", f"{TYPE}\nContent-Transfer-Encoding: base64\n\n{BASE64}!".encode(), "broken_document"),
        (
            "a.eml",
            f"Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n{BASE64}".encode(),
            "broken_document",
        ),
        ("a.eml", f"Content-Type: message/partial\n\nSubject: x\n\n{SECRET}".encode(), "broken_document"),
        ("a.eml", f"Content-Type: text/plain; x={'x;' * 3_000}\n\n{SECRET}".encode(), "broken_document"),
        ("a.eml", f"{TYPE}\nContent-Transfer-Encoding: x-q\n\n{SECRET}=\n=41".encode(), "broken_document"),
        ("a.eml", f"{TYPE}\nContent-Transfer-Encoding: x-uu\n\nbegin 644 a\n!00\n".encode(), "broken_document"),
        ("a.eml", f"{TYPE}\n{TYPE}; charset=utf-16\n\n{SECRET}".encode(), "broken_document"),
        ("a.eml", PARTS.encode() + f"--c\n\n{BASE64}\n--c--".encode(), "broken_document"),
        ("a.eml", PARTS.encode() + f"--c\nContent-Type: image/png\n\n{BASE64}".encode(), "broken_document"),
        ("a.eml", PARTS.encode() + f"--b\n\n{BASE64}".encode(), "broken_document"),
        ("a.eml", f"{TOP}{TYPE}\nstray {SECRET}\n--b\nContent-Transfer-Encoding: x\n".encode(), "broken_document"),
        ("a.eml", f"{SECRET} its first line is not a header\n\nx".encode(), "broken_document"),
        ("a.pdf", b"%PDF-1.4 broken", "broken_document"),
        ("a.pdf", pdf(""), "document_without_text"),
        ("a.docx", b"\xd0\xcf\x11\xe0 encrypted", "encrypted_document"),
        ("a.docx", b"PK broken", "broken_document"),
        ("a.docx", word(**{"word/document.xml": "<broken"}), "broken_document"),
        ("a.docx", word(**{"word/a.xml": "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>"}), "broken_document"),
        ("a.docx", word(**{"word/a.xml": "<!DOCTYPE a SYSTEM 'file:///a'><a/>"}), "broken_document"),
        ("a.docx", word(**{"WORD/document.xml": "<a/>"}), "broken_document"),
        ("a.docx", word(**{"word/a.xml": b"<a/>" + b" " * 170_000}), "row_too_long"),
    ],
)
def test_what_readers_may_see_otherwise_is_left_out(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(data)
    config = {"detect": {"tagger": None}, "input": {"path": "unused", "max_row_bytes": 10_000}}
    summary = redact(tmp_path / name, tmp_path / "out", config=config)
    assert summary["quarantined"] == {reason: 1}
    assert [path.name for path in tmp_path.glob("out*")] == ["out.quarantine.jsonl"], "an empty copy looks complete"
    assert "kovacs" not in (tmp_path / "out.quarantine.jsonl").read_text()


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.md", "\ufeff# Title\r\n\r\n* _one_ <b>three</b>\r\n", "\ufeff# Title\r\n\r\n* _one_ <b>three</b>\r\n"),
        (
            "a.html",
            "<!doctype HTML><!-- x --><p class='a b-2' onclick=\"f('x')\">caf&eacute; &amp; é&zwnj;<br/>"
            "<svg viewBox='0 0 9 9' xlink:href='#a'>",
            '<!DOCTYPE html>\n<html><body><p class="a b-2" onclick="f(\'x\')">café &amp; é\u200c<br>'
            '<svg viewbox="0 0 9 9"></svg></p></body></html>',
        ),
        (
            "a.html",
            "\ufeff<meta charset=latin-1>é",
            '\ufeff<html><head><meta charset="latin-1"></head><body>é</body></html>',
        ),
        (
            "a.mbox",
            "From - x\n\nhello\n>From here\nFrom there\n\nFrom nobody\nSubject: x\n\n\n",
            f"{ENVELOPE}{PLAIN}hello\n>From here\nFrom there\n\n{ENVELOPE}Subject: x\n{PLAIN}",
        ),
    ],
)
def test_a_document_without_a_hit_says_the_same(tmp_path: Path, name: str, data: str, expected: str) -> None:
    (tmp_path / name).write_bytes(data.encode())
    redact(tmp_path / name, tmp_path / "out", config={"detect": {"tagger": None, "patterns": None}})
    assert (tmp_path / "out").read_bytes().decode().strip() == expected.strip()


SENTENCE = "Please call Quirin Ozols today."
BY_RUNS = "".join(f"<w:r><w:t xml:space='preserve'>{part}</w:t></w:r>" for part in re.split("(?=i)", SENTENCE))
NAMED = {
    "a.html": f"<p title='{SENTENCE}'>{SENTENCE.replace('rin', '<b>rin</b>')}<!-- {SENTENCE} -->"
    f"<textarea>{SENTENCE}</textarea><script>a = '{SENTENCE}'</script>".encode(),
    "a.eml": f"Subject: =?utf-8?q?{SENTENCE.replace(' ', '_')}?=\nX-Note: {SENTENCE}\nContent-Type: "
    f"multipart/mixed; boundary=b\n\n{SENTENCE}\n--b\nContent-Transfer-Encoding: base64\n\n"
    f"{base64.b64encode(SENTENCE.encode()).decode()}\n--b--\n{SENTENCE}\n".encode(),
    "a.docx": word(f'<w:p w:alt="{SENTENCE}">{BY_RUNS}</w:p>', **{"customXml/item1.xml": f"<a b='{SENTENCE}'>x</a>"}),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_name_in_a_sentence_is_found_wherever_it_stands(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(NAMED[name])
    redact(tmp_path / name, tmp_path / "out")
    said = " ".join(decodings((tmp_path / "out").read_bytes()))
    assert "Ozols" not in said
    assert "Please call <MASK>" in said


def test_of_a_pdf_file_nothing_but_the_text_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf(f"write to {SECRET}")))
    writer.add_blank_page(200, 200)
    writer.add_metadata({"/Author": "Ann Kovacs"})
    writer.add_attachment("kovacs.txt", SECRET.encode())
    writer.add_annotation(0, FreeText(text=SECRET, rect=(0, 0, 50, 50)))
    with (tmp_path / "a.pdf").open("wb") as file:
        # the library logs the start of a file
        file.write(b"kovacs\n")
        writer.write(file)
    summary = redact(tmp_path / "a.pdf", tmp_path / "out", config={"detect": {"tagger": None}})
    assert (tmp_path / "out").read_bytes() == b"write to <MASK>\n\x0c"
    # the page without text
    assert summary["taken_out"] == 1
    assert "kovac" not in caplog.text


def test_the_number_of_a_link_is_not_read() -> None:
    link = '<w:p><w:hyperlink r:id="rId11" xmlns:r="r"><w:r><w:t>here</w:t></w:r></w:hyperlink></w:p>'
    (row,) = FORMATS["docx"](io.BytesIO(word(link)), "a.docx", 1 << 20).read_rows()
    texts = row.texts if isinstance(row, Row) else []
    assert "here" in "".join(texts)
    assert "rId11" not in "".join(texts)
