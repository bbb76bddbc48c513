"""Masked documents: HTML, mail, mailboxes and Word files are written anew, of PDF the text."""

from __future__ import annotations

import email
import email.policy
import io
import re
import zipfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from redactory.pipelines.documents.redact import redact
from redactory.pipelines.readers.document_formats import Node, assign_edits_to_nodes
from redactory.pipelines.readers.formats import FORMATS, Row, choose_reader
from redactory.redaction.mask import Edit, apply_edits
from redactory.redaction.replacements import ReplacedSpan, plan_edits
from tests.pipelines.test_document_corners import ENVELOPE, PLAIN, RUNS, SECRET, word


def copied(tmp_path: Path, name: str, data: bytes) -> tuple[bytes, dict[str, Any]]:
    (tmp_path / name).write_bytes(data)
    out = tmp_path / f"out-{name}".replace(".pdf", ".txt")
    summary = redact(tmp_path / name, out, config={"detect": {"tagger": None}})
    return out.read_bytes() if out.exists() else b"", summary


def masked(format_: str, data: bytes, pattern: str) -> bytes | None:
    """The copy of one document with all matches replaced; None if it is left out."""
    file = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]
    for row in choose_reader(format_, file)(file, "a", 1_000).read_rows():
        if isinstance(row, Row) and row.render is not None:
            spans = [
                [*known, *(ReplacedSpan(*match.span(), "PERSON") for match in re.finditer(pattern, text))]
                for known, text in zip(row.structural_spans, row.texts, strict=True)
            ]
            changes = [plan_edits(text, found) for text, found in zip(row.texts, spans, strict=True)]
            return bytes(row.render(changes, {}))
    return None


@given(st.lists(st.text("ab\xad", max_size=5), max_size=5), st.data())
def test_a_change_of_joined_text_is_one_of_its_pieces(texts: list[str], data: st.DataObject) -> None:
    nodes = [Node(text, texts.append) for text in texts]
    whole = "".join(node.text for node in nodes)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    changes = [Edit(start, end, "<X>")] if end > start else []
    edits = {id(node): own for node, own in assign_edits_to_nodes([nodes], [changes])}
    copies = [apply_edits(node.source, list(map(node.map_edit, edits.get(id(node), [])))) for node in nodes]
    assert "".join(copies).replace("\xad", "") == apply_edits(whole, changes)


MARKUP = st.text(alphabet="<>/!-?[]ab\"'= &;{}\n", max_size=30)


@given(
    MARKUP, MARKUP, st.sampled_from(["secret", "sec<b>ret", "s&#101;cret", "<script>secret", "<!--secret", "<secret "])
)
def test_what_a_page_hides_is_read_or_not_written(before: str, behind: str, secret: str) -> None:
    made = masked("html", f"{before}{secret}{behind}".encode(), "secret")
    assert b"secret" not in re.sub(rb"<[^>]*>|\xad", b"", made or b"")
    assert b"<secret" not in (made or b"")


PAGE = f"""<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>A &amp; B</title><style>b {{ color: red }}</style></head>
<body class="x"><p>Write to <b>ann.kovacs</b>@example.org &nbsp; now</p>
<a href="mailto:{SECRET}" title="plain">here</a><!-- {SECRET} -->
<script>var to = "{SECRET}";</script> 1 &lt; 2 <br></body></html>
"""


def test_a_page_keeps_its_tags(tmp_path: Path) -> None:
    made, _ = copied(tmp_path, "a.html", PAGE.encode())
    expected = (
        PAGE.replace("<b>ann.kovacs</b>@example.org &nbsp; now", "<b>&lt;MASK&gt;</b> \xa0 now")
        .replace(f"mailto:{SECRET}", "mailto:&lt;MASK&gt;")
        .replace(f"<!-- {SECRET} -->", "")
        .replace(SECRET, "<MASK>")
    )
    assert re.sub(r"\n\s*", "", made.decode()) == re.sub(r"\n\s*", "", expected)


MAIL = f"""Return-Path: <{SECRET}>
DKIM-Signature: v=1; b=abc
From: "Ann Kovacs" <{SECRET}>
To: Quirin Ozols <q@ozols.org>, other@example.net
Subject: =?utf-8?q?Caf=C3=A9?= {SECRET}
X-Note: =?utf-8?b?SsO8cmdlbiDDhHJt?= and a long line that does not fit into the seventy-eight columns of mail
Message-ID: <123@mail.example.org>
Content-Type: multipart/mixed; boundary="b"

--b
Content-Type: text/plain; charset="iso-8859-1"
Content-Transfer-Encoding: quoted-printable

Caf=E9: write to ann.kovacs=40example.org
--=_0
--b
Content-Type: text/html; charset="utf-8"
Content-Transfer-Encoding: base64

PHA+d3JpdGUgdG8gPGI+YW5uLmtvdmFjczwvYj5AZXhhbXBsZS5vcmc8L3A+
--b
Content-Type: application/pdf; name="ann-kovacs.pdf"
Content-Disposition: attachment; filename="ann-kovacs.pdf"
Content-Transfer-Encoding: base64

aGVsbG8=
--b
Content-Type: message/rfc822

Subject: {SECRET}

--b--
"""


def test_a_message_keeps_no_name_no_address_and_no_attachment(tmp_path: Path) -> None:
    made, summary = copied(tmp_path, "a.eml", MAIL.encode())
    message = email.message_from_bytes(made, policy=email.policy.default)
    parts = [part for part in message.walk() if not part.is_multipart()]
    texts = [part.get_content() for part in parts]
    everything = made.decode("latin-1").casefold() + "".join(texts).casefold()
    assert not any(word in everything for word in ("ann", "kovacs", "quirin", "ozols", "mail.example", "dkim"))
    assert texts == [
        "Café: write to <MASK>\n--=_0\n",
        "<html><body><p>write to <b>&lt;MASK&gt;</b></p></body></html>\n",
        "An attachment was taken out.\n",
        "\n",
    ]
    assert message["Subject"] == "Café <MASK>"
    assert message["X-Note"] == "Jürgen Ärm and a long line that does not fit into the seventy-eight columns of mail"
    assert message["Message-ID"] == "<MASK>"
    assert summary["taken_out"] == 1
    assert not any(part.defects for part in message.walk())


@given(st.lists(st.tuples(st.integers(0, len(MAIL)), st.text('\r\n:;=?"<>- b(/8', max_size=3), st.integers(0, 9))))
def test_no_damage_lets_a_message_keep_an_address(damages: list[tuple[int, str, int]]) -> None:
    data = MAIL
    for place, new, length in damages:
        data = data[:place] + new + data[place + length :]
    made = masked("mail", data.encode(), "(?i)kovacs")
    parts = email.message_from_bytes(made or b"").walk()
    texts = [bytes(made or b""), *(part.get_payload(decode=True) or b"" for part in parts)]
    assert not any(b"kovacs" in text.lower() for text in texts)


def test_a_mailbox_keeps_its_messages(tmp_path: Path) -> None:
    box = f"From {SECRET} Mon\n{MAIL}\nFrom nobody Mon\nSubject: x\n\n>From here on, hello\n"
    made, summary = copied(tmp_path, "a.mbox", box.encode())
    assert (summary["rows"], summary["quarantined"]) == (2, {})
    last = f"{ENVELOPE}Subject: x\n{PLAIN}>From here on, hello\n\n".encode()
    assert made.endswith(b"\n\n" + last)
    assert SECRET.encode() not in made
    made, summary = copied(tmp_path, "b.mbox", box.replace("iso-8859-1", "utf-16").encode())
    assert summary["quarantined"] == {"undecodable": 1}
    assert made == last


def test_a_word_file_keeps_its_runs(tmp_path: Path) -> None:
    runs = "write to </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>ann.kovacs</w:t></w:r><w:r><w:t>@example.org"
    body = f'<w:p><w:r><w:t>{runs}</w:t></w:r></w:p><w:ins w:author="Ann Kovacs"/>'
    relation = f'<Relationship Id="r1" Type="t" Target="mailto:{SECRET}" TargetMode="External"/>'
    parts: dict[str, str | bytes] = {
        "word/_rels/document.xml.rels": f"<Relationships>{relation}</Relationships>",
        "docProps/core.xml": '<p xmlns:d="http://purl.org/dc/elements/1.1/"><d:creator>Ann Kovacs</d:creator></p>',
        "word/media/face.png": b"a face",
        "word/styles.xml": "<styles/>",
    }
    made, summary = copied(tmp_path, "a.docx", word(body, **parts))
    with zipfile.ZipFile(io.BytesIO(made)) as file:
        read = {name: file.read(name) for name in file.namelist()}
    document = read["word/document.xml"].decode()
    assert "<w:t>write to </w:t>" in document
    assert "<w:b/></w:rPr><w:t>&lt;MASK&gt;</w:t>" in document
    assert read["word/styles.xml"].endswith(b"<styles/>")
    together = b"".join(read.values())
    assert not any(word in together for word in (b"Ann", b"kovacs", b"example", b"a face"))
    assert summary["taken_out"] == 1


def test_of_a_document_as_an_input_is_read_what_is_shown() -> None:
    sources = (("html", PAGE.encode()), ("mail", MAIL.encode()), ("docx", word(RUNS)))
    made = {
        name: [
            re.sub(r"\s+", " ", row.cells["text"])
            for row in FORMATS[name](io.BytesIO(data), "a", 10_000).read_records()
        ]
        for name, data in sources
    }
    assert made == {
        "html": [f"A & B Write to {SECRET} now here 1 < 2 "],
        "mail": [f"Café {SECRET} Café: write to {SECRET} --=_0 write to {SECRET} {SECRET} "],
        "docx": [SECRET],
    }


@given(data=st.binary(max_size=200), format_=st.sampled_from(["html", "mail", "mbox", "docx", "pdf"]))
def test_no_byte_breaks_a_document(data: bytes, format_: str) -> None:
    masked(format_, data, "(?s)^.+$")
