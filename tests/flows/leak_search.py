"""Searching everything below a folder for secrets, in every form in which they could have been written.

Files are searched as they lie there, with line ends taken out (wrapped base64), and opened where bytes alone
would hide what they hold: Parquet, SQLite, gzip, zstd, zip.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import html
import io
import json
import sqlite3
import urllib.parse
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import ahocorasick
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard


def forms(value: str) -> dict[str, bytes]:
    """``value`` by the name of each form in which it is searched for."""
    utf8 = value.encode()
    found = {
        "utf-8": utf8,
        "utf-16-le": value.encode("utf-16-le"),
        "utf-16-be": value.encode("utf-16-be"),
        "url": urllib.parse.quote(value, safe="").encode(),
        "url path": urllib.parse.quote(value).encode(),
        "form": urllib.parse.quote_plus(value).encode(),
        "json": json.dumps(value)[1:-1].encode(),
        "python": value.encode("unicode_escape"),
        "html": html.escape(value).encode(),
        "latin-1": value.encode("latin-1", "replace"),
        "hex": binascii.hexlify(utf8),
        "lower": value.lower().encode(),
        "upper": value.upper().encode(),
    }
    for name, data in (("utf-8", utf8), ("utf-16-le", value.encode("utf-16-le"))):
        for shift in range(3):
            found[f"base64 of {name} at {shift}"] = aligned(data, shift)
            found[f"base64url of {name} at {shift}"] = aligned(data, shift, urlsafe=True)
    return found


def aligned(data: bytes, shift: int, urlsafe: bool = False) -> bytes:
    """The characters that ``data`` surely has in base64 where ``shift`` (0 to 2) bytes stand before it."""
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    text = encode(bytes(shift) + data)
    first = (0, 2, 3)[shift]
    last = {0: len(text), 1: len(text) - 3, 2: len(text) - 2}[(shift + len(data)) % 3]
    return text[first:last]


class Search:
    """An automaton over every form of every value."""

    def __init__(self, values: Iterable[str]) -> None:
        self.seen = Counter[str]()
        self._automaton = ahocorasick.Automaton()
        for value in values:
            for name, data in forms(value).items():
                word = data.decode("latin-1")
                if word not in self._automaton:
                    self._automaton.add_word(word, (value, name))
        self._automaton.make_automaton()

    def in_bytes(self, data: bytes) -> set[tuple[str, str]]:
        """(value, form) of everything that ``data`` holds."""
        # a character a byte: the automaton goes over text
        shapes = [data, data.replace(b"\r", b"").replace(b"\n", b"").replace(b"\\n", b"")]
        return {hit for shape in shapes for _, hit in self._automaton.iter(shape.decode("latin-1"))}

    def in_file(self, path: Path) -> set[tuple[str, str]]:
        """The same of a file, as it is and opened."""
        self.seen["files"] += 1
        self.seen["bytes"] += path.stat().st_size
        return {hit for data in (path.read_bytes(), *opened(path)) for hit in self.in_bytes(data)}

    def below(self, folder: Path) -> dict[Path, set[tuple[str, str]]]:
        """The same of each file below ``folder``, and of its name; files without a hit are left out."""
        found: dict[Path, set[tuple[str, str]]] = defaultdict(set)
        for path in sorted(folder.rglob("*")):
            found[path] |= self.in_bytes(path.name.encode())
            if path.is_file():
                found[path] |= self.in_file(path)
        return {path: hits for path, hits in found.items() if hits}


def opened(path: Path) -> Iterator[bytes]:
    """What a file holds that its bytes do not show."""
    data = path.read_bytes()
    if data[:4] == b"PAR1":
        # an encrypted file cannot be opened, which is what it is encrypted for
        try:
            yield repr(pq.read_table(io.BytesIO(data)).to_pylist()).encode("utf-8", "surrogatepass")
        except (pa.ArrowException, OSError):
            return
    elif data[:15] == b"SQLite format 3":
        yield from _database(path)
    elif data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        yield zstandard.ZstdDecompressor().stream_reader(data).read()
    elif data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist())


def _database(path: Path) -> Iterator[bytes]:
    """Every cell: a long one is in pieces in the file."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        database.text_factory = bytes
        tables = [name.decode() for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        for table in tables:
            for row in database.execute(f'SELECT * FROM "{table}"'):
                yield b"\x00".join(cell if isinstance(cell, bytes) else repr(cell).encode() for cell in row)
