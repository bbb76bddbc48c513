"""Masked documents: HTML, mail, mailboxes and Word files are written again, of PDF the text."""

from __future__ import annotations

import email
import email.policy
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.pipelines.documents.redact import redact
from redactory.pipelines.readers.document_formats import Node, assign_edits_to_nodes, join_nodes
from redactory.pipelines.readers.formats import FORMATS, choose_reader
from redactory.pipelines.readers.html_format import HtmlPage
from redactory.redaction.replacements import Edit, apply_edits

SECRET = "ann.kovacs@example.org"
PATTERNS = {"detect": {"tagger": None}}


def copied(tmp_path: Path, name: str, data: bytes) -> tuple[bytes, dict[str, Any]]:
    (tmp_path / name).write_bytes(data)
    out = tmp_path / f"out-{name}".replace(".pdf", ".txt")
    summary = redact(tmp_path / name, out, config=PATTERNS)
    return out.read_bytes() if out.exists() else b"", summary


@given(st.lists(st.text(max_size=5), max_size=5), st.data())
def test_a_change_of_joined_text_is_one_of_its_pieces(texts: list[str], data: st.DataObject) -> None:
    whole = "".join(texts)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    changes = [Edit(start, end, "<X>")] if end > start else []
    nodes = [Node(text, "here") for text in texts]
    own = {id(node): edits for node, edits in assign_edits_to_nodes([nodes], [changes])}
    assert "".join(apply_edits(node.text, own.get(id(node), [])) for node in nodes) == apply_edits(whole, changes)


PAGE = f"""<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>A &amp; B</title><style>b {{ color: red }}</style></head>
<body class="x"><p>Write to <b>ann.kovacs</b>@example.org &nbsp; now</p>
<a href='mailto:{SECRET}' title="plain">here</a><!-- {SECRET} -->
<script>var to = "{SECRET}";</script> 1 < 2 <br/></body></html>
"""


def test_a_page_keeps_its_tags(tmp_path: Path) -> None:
    made, _ = copied(tmp_path, "a.html", PAGE.encode())
    expected = (
        PAGE.replace("<b>ann.kovacs</b>@example.org &nbsp; now", "<b>&lt;MASK&gt;</b> &nbsp; now")
        .replace(f"mailto:{SECRET}", "mailto:&lt;MASK&gt;")
        .replace(f"<!-- {SECRET} -->", "<!-- &lt;MASK&gt; -->")
        .replace(SECRET, "<MASK>")
    )
    assert made.decode() == expected


@given(st.text(alphabet="<>/!-ab\"'= &;scriptyle", max_size=60))
def test_a_page_in_which_nothing_changes_is_the_same(text: str) -> None:
    page = HtmlPage(text)
    assert page.apply_page_edits([[] for _ in page.groups]) == text


@given(st.text(alphabet="<>/!-ab\"'= ", max_size=20), st.text(alphabet="<>/!-ab\"'= ", max_size=20))
def test_what_is_not_surely_a_tag_is_read(before: str, behind: str) -> None:
    assert "secret" in "".join(join_nodes(HtmlPage(f"{before}> secret <{behind}").groups))


MAIL = f"""Return-Path: <{SECRET}>
DKIM-Signature: v=1; b=abc
From: "Ann Kovacs" <{SECRET}>
To: Quirin Ozols <q@ozols.org>, other@example.net
Subject: =?utf-8?q?Caf=C3=A9?= {SECRET}
Message-ID: <123@mail.example.org>
Content-Type: multipart/mixed; boundary="b"

--b
Content-Type: text/plain; charset="iso-8859-1"
Content-Transfer-Encoding: quoted-printable

Caf=E9: write to ann.kovacs=40example.org
--b
Content-Type: text/html; charset="utf-8"
Content-Transfer-Encoding: base64

PHA+d3JpdGUgdG8gPGI+YW5uLmtvdmFjczwvYj5AZXhhbXBsZS5vcmc8L3A+
--b
Content-Type: application/pdf; name="ann-kovacs.pdf"
Content-Disposition: attachment; filename="ann-kovacs.pdf"
Content-Transfer-Encoding: base64

aGVsbG8=
--b--
"""


def test_a_message_keeps_no_name_no_address_and_no_attachment(tmp_path: Path) -> None:
    made, summary = copied(tmp_path, "a.eml", MAIL.encode())
    message = email.message_from_bytes(made, policy=email.policy.default)
    texts = [part.get_content() for part in message.walk() if part.get_content_maintype() == "text"]
    everything = made.decode("latin-1").casefold() + "".join(texts).casefold()
    assert not any(word in everything for word in ("ann", "kovacs", "quirin", "ozols", "mail.example", "dkim"))
    assert texts == ["Café: write to <MASK>", "<p>write to <b>&lt;MASK&gt;</b></p>", "An attachment was taken out.\n"]
    assert message["Subject"] == "Café <MASK>"
    assert message["Message-ID"] == "<MASK>"
    assert summary["taken_out"] == 1


def test_a_message_without_a_hit_is_the_same_to_the_byte(tmp_path: Path) -> None:
    plain = b"Subject: =?utf-8?b?aGVsbG8=?=\nX-Odd:\tone\n two\n\nhello\n"
    assert copied(tmp_path, "a.eml", plain)[0] == plain


def test_a_mailbox_keeps_its_messages(tmp_path: Path) -> None:
    box = f"From {SECRET} Mon\n{MAIL}\nFrom nobody Mon\nSubject: x\n\n>From here on, hello\n"
    made, summary = copied(tmp_path, "a.mbox", box.encode())
    assert (summary["rows"], summary["quarantined"]) == (2, {})
    assert made.endswith(b"From nobody Mon\nSubject: x\n\n>From here on, hello\n")
    assert SECRET.encode() not in made
    made, summary = copied(tmp_path, "b.mbox", box.replace("iso-8859-1", "nonsense").encode())
    assert summary["quarantined"] == {"undecodable": 1}
    assert made == b"From nobody Mon\nSubject: x\n\n>From here on, hello\n"


W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
DOCUMENT = f"""<?xml version='1.0' encoding='UTF-8' standalone='yes'?>
<w:document {W}><w:body><w:p><w:r><w:t>write to </w:t></w:r>\
<w:r><w:rPr><w:b/></w:rPr><w:t>ann.kovacs</w:t></w:r>\
<w:r><w:t>@example.org</w:t></w:r></w:p><w:ins w:author="Ann Kovacs"/></w:body></w:document>"""
LINKS = f"""<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">\
<Relationship Id="r1" Type="t" Target="mailto:{SECRET}" TargetMode="External"/></Relationships>"""
CORE = """<p:coreProperties \
xmlns:p="http://schemas.openxmlformats.org/package/2006/metadata/core-properties" \
xmlns:d="http://purl.org/dc/elements/1.1/"><d:creator>Ann Kovacs</d:creator></p:coreProperties>"""


def word(**parts: str | bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in {"word/document.xml": DOCUMENT, **parts}.items():
            file.writestr(name, content)
    return packed.getvalue()


def test_a_word_file_keeps_its_runs(tmp_path: Path) -> None:
    parts: dict[str, str | bytes] = {
        "word/_rels/document.xml.rels": LINKS,
        "docProps/core.xml": CORE,
        "word/media/face.png": b"a face",
        "word/styles.xml": "<styles/>",
    }
    made, summary = copied(tmp_path, "a.docx", word(**parts))
    with zipfile.ZipFile(io.BytesIO(made)) as file:
        read = {name: file.read(name) for name in file.namelist()}
    document = read["word/document.xml"].decode()
    assert "<w:t>write to </w:t>" in document
    assert "<w:b/></w:rPr><w:t>&lt;MASK&gt;</w:t>" in document
    assert read["word/styles.xml"] == b"<styles/>"
    together = b"".join(read.values())
    assert not any(word in together for word in (b"Ann", b"kovacs", b"example", b"a face"))
    assert summary["taken_out"] == 1


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


def test_of_a_pdf_file_the_text_is_written(tmp_path: Path) -> None:
    made, _ = copied(tmp_path, "a.pdf", pdf(f"write to {SECRET}"))
    assert made.decode().strip() == "write to <MASK>"


def test_of_a_document_as_an_input_is_read_what_is_shown() -> None:
    made = {
        name: [row.cells["text"] for row in FORMATS[name](io.BytesIO(data), "a", 10_000).read_records()]
        for name, data in (("html", PAGE.encode()), ("mail", MAIL.encode()), ("docx", word()))
    }
    assert made == {
        "html": [f"A & B\n\nWrite to {SECRET} \xa0 now\n\n\nhere\n\n\n 1 < 2 \n"],
        "mail": [f"Café {SECRET}\n\nCafé: write to {SECRET}\n\nwrite to {SECRET}"],
        "docx": [f"write to {SECRET}"],
    }


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.pdf", b"%PDF-1.4 broken", "broken_document"),
        ("a.pdf", pdf(""), "document_without_text"),
        ("a.docx", b"\xd0\xcf\x11\xe0 encrypted", "encrypted_document"),
        ("a.docx", b"PK broken", "broken_document"),
        ("a.docx", word(**{"word/document.xml": "<broken"}), "broken_document"),
        ("a.html", b"<meta charset='utf-8'>\xff", "undecodable"),
        ("a.eml", b"Content-Type: text/plain; charset=nonsense\n\nx", "undecodable"),
        ("a.eml", b"Content-Type: text/plain; charset=utf-8\n\n\xff\xfe", "undecodable"),
    ],
)
def test_an_unreadable_document_is_left_out_with_its_reason(
    tmp_path: Path, name: str, data: bytes, reason: str
) -> None:
    made, summary = copied(tmp_path, name, data)
    assert made == b""
    assert summary["quarantined"] == {reason: 1}
    written = [path.suffix for path in tmp_path.glob("out-*")]
    assert written == [".jsonl"], "an empty document would look like one that held nothing"


@given(data=st.binary(max_size=200), format_=st.sampled_from(["html", "mail", "mbox", "docx", "pdf"]))
def test_no_byte_breaks_a_document(data: bytes, format_: str) -> None:
    file = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]
    for row in choose_reader(format_, file)(file, "a", 1_000).read_rows():
        if not isinstance(row, bytes) and row.render is not None:
            row.render([[Edit(0, len(text), "x")] if text else [] for text in row.texts], {})
