"""Goldens of curation: what fifteen runs write, and 1,458 values planted in documents, before and after a redesign.

    python benchmarks/goldens_curation.py --write FILE     make them, and keep them in FILE
    python benchmarks/goldens_curation.py --check FILE     make them again; each difference is a line, exit 1

Twelve runs read one format each, whole and broken, and write shards, a masked copy and their quarantines. One run
is killed and resumed, one has all its commands (retry, erase, purge, export, verify), one is a job of three nights.
The planted values stand in 81 places of mail, HTML, Word and PDF files; a value counts as left if any decoding of
the masked copy shows it.
"""

from __future__ import annotations

import argparse
import base64
import email.header
import gzip
import html
import io
import json
import os
import quopri
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from goldens import KEYS, differences, digest, digest_of_folder, shards, steady

import redactory

FAST = {"segment": {"mode": "line"}, "detect": {"tagger": None}}
ADDRESSES = [f"{name}.kovacs{number}@mail{number}.example.org" for number, name in enumerate(("ann", "bo", "cy"))]
VALUES = [
    *ADDRESSES,
    *(f"+1 415 555 01{number:02d}" for number in range(3)),
    *("4111 1111 1111 1111", "5500 0000 0000 0004", "3400 000000 00009"),
    *("DE89370400440532013000", "GB82WEST12345698765432", "FR1420041010050500013M02606"),
    *("192.168.77.14", "203.0.113.99", "2001:db8:0:0:8:800:200c:417a"),
    *("AKIAIOSFODNN7EXAMPLE", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "078-05-1120"),
]
SENTENCES = ("The parcel came late again.", "Write to {value} about it.", "Thank you for the quick help.")


def list_rows() -> list[dict[str, Any]]:
    """Forty rows: repeated texts, values, users, an id twice."""
    rows = []
    for number in range(40):
        text = "\n".join(SENTENCES).format(value=VALUES[number % len(VALUES)]) + f"\nOrder {number % 25} is open."
        rows.append({"id": f"d{number}", "user_id": f"user {number % 7}", "text": text})
    return [*rows, {"id": "d3", "user_id": "user 3", "text": "This number is taken."}]


def write_formats(folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """An input of each format, whole rows and broken ones, and what ``input`` says beside its path."""
    rows, made = list_rows(), folder / "in"
    made.mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()

    def put(name: str, data: bytes) -> Path:
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_bytes(data)
        return made / name

    def cell(row: dict[str, Any], key: str) -> str:
        return '"' + row[key].replace('"', '""') + '"'

    def table(mark: str) -> str:
        keys = ("id", "user_id", "text")
        return "\n".join([mark.join(keys), *(mark.join(cell(row, key) for key in keys) for row in rows)]) + "\n"

    broken = lines + b'{"text": 1}\nnot json\n{"id": "x"}\n{"text": "a\\u0000b"}\n\xff\xfe\n{"text": ""}\n' + lines[:40]
    wrong_table = table(",").replace("\n" + cell(rows[9], "id"), '\nd9,"only two\n' + cell(rows[9], "id"), 1)
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    pq.write_table(pa.table(columns), made / "rows.parquet")
    with pa.OSFile(str(made / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, pa.table(columns).schema) as out:
        out.write_table(pa.table(columns))
    documents = {f"docs/{name}": data for name, data in write_documents().items() if name.count("-0.")}
    for name, data in documents.items():
        put(name, data)
    put("docs/broken.docx", b"PK\3\4 no archive")
    put("docs/broken.pdf", b"%PDF-1.4 nothing")
    return {
        "jsonl": (put("rows.jsonl", lines), {}),
        "json array": (put("array.json", json.dumps(rows).encode()), {}),
        "csv": (put("rows.csv", table(",").encode()), {}),
        "semicolons": (put("semicolons.csv", table(";").encode()), {}),
        "tsv": (put("rows.tsv", table("\t").encode()), {}),
        "text": (put("rows.txt", "\n".join(row["text"] for row in rows).encode()), {}),
        "parquet": (made / "rows.parquet", {}),
        "arrow": (made / "rows.arrow", {}),
        "documents": (made / "docs", {}),
        "broken lines": (put("broken.jsonl", broken), {}),
        "broken csv": (put("broken.csv", wrong_table.encode()), {}),
        "compressed": (put("rows.jsonl.gz", gzip.compress(lines, mtime=0)), {}),
    }


def encode_plain(value: str) -> str:
    """The value as it is."""
    return value


def encode_entities(value: str) -> str:
    """As numeric character references."""
    return "".join(f"&#{ord(letter)};" for letter in value)


def encode_hex_entities(value: str) -> str:
    """As hexadecimal character references."""
    return "".join(f"&#x{ord(letter):x};" for letter in value)


def encode_percent(value: str) -> str:
    """As a URL writes it."""
    return "".join(f"%{ord(letter):02X}" for letter in value)


HTML_PLACES = [
    "<p>write to {} now</p>",
    "<img alt='{}'>",
    "<a href='https://x.example/?to={}'>x</a>",
    "<a href='mailto:{}'>x</a>",
    "<!-- {} -->",
    '<p title="{}">x</p>',
    "<meta name=author content='{}'>",
    "<td>{}</td><td>x</td>",
    '<script>var to = "{}";</script>',
]
MAIL_PLACES = [
    "To: <{v}>\n\nx\n",
    "X-To: {v}\n\nx\n",
    "Subject: about {v} again\n\nx\n",
    'Reply-To: "{v}" <x@example.net>\n\nx\n',
    "Subject: =?utf-8?b?{b}?=\n\nx\n",
    "Content-Type: text/plain\n\nwrite to {v} now\n",
    "Content-Type: text/plain\nContent-Transfer-Encoding: base64\n\n{b}\n",
    "Content-Type: text/plain\nContent-Transfer-Encoding: quoted-printable\n\n{q}\n",
    "Content-Type: text/html\n\n<p>write to {v} now</p>\n",
    "Content-Type: multipart/mixed; boundary=b\n\n--b\n\nwrite to {v}\n--b--\n",
    "Content-Type: multipart/mixed; boundary=b\n\n{v}\n--b\n\nx\n--b--\n",
    "Content-Type: multipart/mixed; boundary=b\n\n--b\n\nx\n--b--\n{v}\n",
    "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Description: {v}\n\nx\n--b--\n",
    'Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Disposition: inline; filename="{v}"\n\nx\n--b--\n',
    "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: message/rfc822\n\nSubject: {v}\n\nx\n--b--\n",
    "Content-Type: multipart/related; boundary=b\n\n--b\n\n{v}\n--b\nContent-Type: text/html\n\n<b>{v}</b>\n--b--\n",
    "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: image/png\n\n{v}\n--b--\n",
    "Content-Type: text/plain; format=flowed\n\n> write to {v} now\n",
    "Content-Type: text/calendar\n\nDESCRIPTION:write to {v}\n",
    "Content-Type: text/x-unknown\n\nwrite to {v} now\n",
    "Comments: {v}\n\nx\n",
    "Keywords: a, {v}\n\nx\n",
    "Received: from x by y; for <{v}>; 1 Jan 2024\n\nx\n",
    "To: Team: {v};\n\nx\n",
    "To: x@example.net ({v})\n\nx\n",
    "X-A: b\n {v}\n\nx\n",
    'Content-Type: application/json\n\n{{"to": "{v}"}}\n',
]
WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
WORD_PLACES = [
    ("word/document.xml", "<w:p><w:r><w:t>write to {} now</w:t></w:r></w:p>"),
    ("word/document.xml", "<w:p><w:r><w:t>write to {a}</w:t></w:r><w:r><w:t>{z} now</w:t></w:r></w:p>"),
    ("word/document.xml", "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>{}</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"),
    ("word/document.xml", "<w:p><w:del><w:r><w:delText>{}</w:delText></w:r></w:del></w:p>"),
    ("word/document.xml", "<w:p><w:r><w:instrText>HYPERLINK {}</w:instrText></w:r></w:p>"),
    ("word/document.xml", "<w:p><w:r><x descr='{}'/></w:r></w:p>"),
    ("word/comments.xml", "<w:comment w:author='{}'><w:p/></w:comment>"),
    ("word/comments.xml", "<w:comment><w:p><w:r><w:t>{}</w:t></w:r></w:p></w:comment>"),
    ("word/footnotes.xml", "<w:p><w:r><w:t>see {}</w:t></w:r></w:p>"),
    ("word/endnotes.xml", "<w:p><w:r><w:t>see {}</w:t></w:r></w:p>"),
    ("word/header1.xml", "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"),
    ("word/footer1.xml", "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"),
    ("docProps/core.xml", "<creator>{}</creator>"),
    ("docProps/custom.xml", "<property name='{}'/>"),
    ("word/settings.xml", "<w:docVar w:val='{}'/>"),
    ("customXml/item1.xml", "<to>{}</to>"),
    ("word/_rels/document.xml.rels", "<Relationship Id='r' Type='t' Target='mailto:{}' TargetMode='External'/>"),
    ("word/embeddings/a.bin", "{}"),
]


def write_word(places: list[tuple[str, str]]) -> bytes:
    """A Word file with the XML of each place in its part."""
    parts = {"word/document.xml": "<w:p><w:r><w:t>x</w:t></w:r></w:p>"}
    for name, xml in places:
        parts[name] = parts.get(name, "") + xml
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, xml in parts.items():
            body = xml if name.endswith(".bin") else f"<root {WORD}>{xml}</root>"
            if name == "word/document.xml":
                body = f"<w:document {WORD}><w:body>{xml}</w:body></w:document>"
            file.writestr(zipfile.ZipInfo(name), body)
    return packed.getvalue()


def write_pdf(texts: list[str]) -> bytes:
    """A PDF file with a page for each text, by hand: one font, no compression."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for text in texts:
        shown = text.replace("(", r"\(").replace(")", r"\)")
        stream = f"BT /F1 12 Tf 72 720 Td ({shown}) Tj ET".encode()
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 900 792] /Contents {len(objects)} 0 R "
        objects.append((page + "/Resources << /Font << /F1 3 0 R >> >> >>").encode())
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    out, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, data in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, data)
    xref = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return bytes(out + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, xref))


def write_documents() -> dict[str, bytes]:
    """81 places times 18 values; a document holds one value in one place, a PDF file a page for each place."""
    made: dict[str, bytes] = {}
    for number, value in enumerate(VALUES):
        for encoding in (encode_plain, encode_entities, encode_percent):
            for place, page in enumerate(HTML_PLACES):
                is_link = "href" in page
                encode = encode_hex_entities if encoding is encode_percent and not is_link else encoding
                body = f"<html><body><p>x</p>{page.format(encode(value))}</body></html>"
                made[f"page-{encoding.__name__}-{place}-{number}.html"] = body.encode()
        base, quoted = base64.b64encode(value.encode()).decode(), quopri.encodestring(value.encode()).decode()
        for place, text in enumerate(MAIL_PLACES):
            body = text.format(v=value, b=base, q=quoted)
            made[f"mail-{place}-{number}.eml"] = f"From: x@example.net\nDate: 1 Jan 2024\n{body}".encode()
        half = len(value) // 2
        for place, (part, xml) in enumerate(WORD_PLACES):
            made[f"word-{place}-{number}.docx"] = write_word(
                [(part, xml.format(value, a=value[:half], z=value[half:]))]
            )
        sentences = [f"Page {place}: write to {value} now" for place in range(9)]
        made[f"paper-{number}.pdf"] = write_pdf(sentences)
    return made


def decode_all(data: bytes, depth: int = 0) -> Iterator[str]:
    """Every reading of ``data``: parts of archives, MIME words, base64, quoted-printable, entities, percent signs."""
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            for name in file.namelist():
                yield name
                yield from decode_all(file.read(name), depth + 1)
        return
    text = data.decode("utf-8", "replace")
    for read in (text, re.sub(r"\n[ >\t]*", " ", text), re.sub("<[^>]*>", "", text)):
        yield unquote(html.unescape(read))
    for word in re.findall(r"=\?[^?\s]+\?[bqBQ]\?[^?\s]*\?=", text):
        yield str(email.header.make_header(email.header.decode_header(word)))
    if depth < 2:
        yield from decode_all(quopri.decodestring(data), 2)
        for run in re.findall(rb"[A-Za-z0-9+/]{12,}", data):
            yield base64.b64decode(run[: len(run) // 4 * 4]).decode("utf-8", "replace")


def count_planted(folder: Path) -> dict[str, Any]:
    """Of the planted values, those that any reading of the masked copy shows; what was quarantined, by reason."""
    source, copy = folder / "planted", folder / "planted-copy"
    source.mkdir()
    documents = write_documents()
    for name, data in documents.items():
        (source / name).write_bytes(data)
    summary = redactory.redact(source, copy, config={"detect": {"tagger": None}})
    left = []
    planted = 0
    for name in sorted(documents):
        number = int(re.findall(r"\d+", name)[-1])
        planted += 9 if name.endswith(".pdf") else 1
        squeezed = re.sub(r"\s", "", VALUES[number])
        path = next(
            (p for p in (copy / name, copy / f"{name}.txt", copy / name.replace(".pdf", ".txt")) if p.exists()), None
        )
        if path is None:
            continue
        if any(squeezed in re.sub(r"\s", "", text) for text in decode_all(path.read_bytes())):
            left.append(name)
    return {"planted": planted, "left": left, "quarantined": summary["quarantined"], "written": summary["written"]}


def describe_copy(path: Path, folder: Path, name: str) -> dict[str, Any]:
    """Counts and content of a masked copy."""
    out = (
        folder / f"copy {name}" if path.is_dir() else folder / f"copy-{name.replace(' ', '-')}{''.join(path.suffixes)}"
    )
    try:
        summary = redactory.redact(path, out, {"keep_other_columns": True}, config={"detect": {"tagger": None}})
    except redactory.RedactoryError as error:
        return {"refused": type(error).__name__}
    files = [out] if out.is_file() else sorted(p for p in out.rglob("*") if p.is_file())
    contents = {
        file.name: pq.read_table(file).to_pylist() if file.suffix == ".parquet" else file.read_bytes().hex()
        for file in files
    }
    return {"summary": steady(summary), "files": {name: digest(content) for name, content in contents.items()}}


def describe_run(run: Path) -> dict[str, Any]:
    """Tables, quarantine reasons, checks and what its manifest names."""
    manifest = json.loads((run / "manifest.json").read_text())
    checks = {check["name"]: check["ok"] for check in redactory.verify(run)["checks"]}
    listed = redactory.quarantine_list(run)
    return {**shards(run), "checks": checks, "quarantine": steady(listed), "files": sorted(manifest["files"])}


def make(folder: Path) -> Iterator[tuple[str, Any]]:
    """Each golden's name and what it is."""
    for name, (path, settings) in write_formats(folder).items():
        run = folder / f"run-{name.replace(' ', '-')}"
        try:
            redactory.curate({**FAST, "input": {"path": str(path), **settings}, "output": str(run)})
            yield f"curate {name}", describe_run(run)
        except redactory.RedactoryError as error:
            yield f"curate {name}", {"refused": type(error).__name__}
        yield f"redact {name}", describe_copy(path, folder, name)
    yield "killed and resumed", resume_killed(folder)
    yield "every command", run_every_command(folder)
    yield "nights", run_nights(folder)
    yield "planted", count_planted(folder)


def resume_killed(folder: Path) -> dict[str, Any]:
    """A run in small partitions that is killed three times, then ended: its shards."""
    rows, run = folder / "in" / "rows.jsonl", folder / "run-killed"
    config = {**FAST, "input": {"path": str(rows)}, "output": str(run), "partition": {"documents": 4}, "workers": 2}
    program = f"import redactory, json; redactory.curate(json.loads({json.dumps(config)!r}), resume=True)"
    for seconds in (4.0, 5.0, 6.0):
        process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(0.5)
    redactory.curate(config, resume=True)
    return describe_run(run)


def run_every_command(folder: Path) -> dict[str, Any]:
    """An encrypted run with bad rows: exported quarantine, erasure, purge, export, verification."""
    run = folder / "run-commands"
    redactory.curate({**FAST, "input": str(folder / "in" / "broken.jsonl"), "output": str(run)})
    exported = redactory.quarantine_export(run)
    erased = redactory.erase([run], user_ids=["user 3"])
    after = describe_run(run)
    purged = redactory.purge(run, ["vault"])
    redactory.export(run, folder / "export-commands")
    summary = {"retry": exported, "erased": erased, "purged": purged}
    names = sorted(
        p.relative_to(folder / "export-commands").as_posix() for p in (folder / "export-commands").rglob("*")
    )
    return {
        "summaries": {name: sorted(value) for name, value in summary.items()},
        "ok": erased["ok"],
        "after": after,
        "export": [names, digest_of_folder(folder / "export-commands" / "public")],
        "verified": redactory.verify(run)["ok"],
    }


def run_nights(folder: Path) -> dict[str, Any]:
    """Three nights over a file that grows, with an index: tables and kinds of events."""
    lines, growing, job = (
        (folder / "in" / "rows.jsonl").read_text().splitlines(keepends=True),
        folder / "g.jsonl",
        folder / "job",
    )
    config = {**FAST, "input": str(growing), "output": str(job), "dedup": {"index": {"path": str(folder / "index")}}}
    made: dict[str, Any] = {}
    for night in (1, 2, 3):
        growing.write_text("".join(lines[: 13 * night]))
        redactory.nightly(config)
        runs = sorted(path for path in job.iterdir() if (path / "_SUCCESS").exists() and not path.is_symlink())
        tables = shards(runs[-1])["tables"]
        made[f"night {night}"] = {name: table for name, table in tables.items() if name != "audit/examples"}
    made["log"] = [json.loads(line)["type"] for line in (job / "_job" / "log.jsonl").read_text().splitlines()]
    return {**made, "verified": [redactory.verify(run)["ok"] for run in runs]}


def main() -> int:
    """Write the goldens, or print each difference from those that were written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    arguments = parser.parse_args()
    os.environ.update({name: value for name, value in KEYS.items() if value})
    # one place: names of files are part of what some digests follow from
    folder = Path(tempfile.gettempdir()) / "redactory-goldens-curation"
    folder.mkdir()
    made = {}
    try:
        for name, value in make(folder):
            made[name] = json.loads(json.dumps(value, default=str))
            print(name, file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)
    if arguments.write:
        arguments.write.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    if arguments.check is None:
        return 0
    lines = list(differences(json.loads(arguments.check.read_text()), made, ""))
    print("\n".join(lines) or f"{len(made)} goldens, no difference")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
