"""A part of a file that is read as if it were the file: what one night reads of a file that grows."""

from __future__ import annotations

import dataclasses
import datetime
import io
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.keys import load_digest_key
from redactory.pipelines.readers.arrow import without_notes
from redactory.pipelines.readers.records import ENDINGS, broken, damaged, decompressed
from redactory.pipelines.store import (
    cause_of,
    filesystem_of,
    is_url,
    kind_of,
    names_below,
    without_secrets,
)

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Slice:
    """Bytes ``from_byte`` up to ``to_byte`` of a file; ``from_row`` rows of it come before.

    ``header`` is the length in bytes of a table's header line, which is read in front of a later slice; 0
    where the format has none, and for the slice that begins with it.
    """

    from_byte: int
    to_byte: int
    from_row: int = 0
    header: int = 0

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.to_byte - self.from_byte

    def row(self, number: int) -> int:
        """The number in the whole file of the row that a reader of this slice counts as ``number``."""
        return self.from_row + number - (1 if self.header else 0)

    def without_header(self) -> Slice:
        """The same bytes by themselves, to be compared."""
        return Slice(self.from_byte, self.to_byte, self.from_row)


def sliced(file: BinaryIO, part: Slice) -> BinaryIO:
    """``file`` cut to ``part``; ``EOFError`` where it ends before."""
    spans = [(part.from_byte, part.to_byte)]
    if part.header:
        spans.insert(0, (0, part.header))
    return io.BufferedReader(_Spans(file, spans), _BUFFER_BYTES)


class _Spans(io.RawIOBase):
    """Spans of a file one after the other; the file may grow meanwhile."""

    def __init__(self, file: BinaryIO, spans: list[tuple[int, int]]) -> None:
        self._file = file
        self._spans = spans
        self._at: int | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` as far as the span goes; 0 at the end of the last one."""
        while self._spans:
            start, end = self._spans[0]
            if self._at is None:
                self._file.seek(start)
                self._at = start
            if self._at < end:
                block = self._file.read(min(len(buffer), end - self._at))
                if not block:
                    raise EOFError
                buffer[: len(block)] = block
                self._at += len(block)
                return len(block)
            del self._spans[0]
            self._at = None
        return 0


# Finding the files of an input: paths, folders, globs and any URL that fsspec knows.


FORMATS: dict[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
_CHUNK = 1 << 20
_LOCAL = "file://"
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar")


@dataclass(frozen=True)
class Source:
    """One file of the input: what fsspec opens, the name that users see, its format.

    ``slices`` are the parts of it that are read, in order; without any it is read whole.
    """

    url: str
    name: str
    format: str
    slices: tuple[Slice, ...] = ()

    @contextmanager
    def open(self, *, decompress: bool = True, part: Slice | None = None) -> Iterator[BinaryIO]:
        """The file's bytes, decompressed by its ending, or a ``part`` of a file that is not compressed.

        ``InputError`` where it is broken or cut off.
        """
        try:
            with self._raw() as file:
                peeks = hasattr(file, "peek")
                buffered = cast(io.BufferedReader, file if peeks else io.BufferedReader(file, _CHUNK))
                if part is not None:
                    yield sliced(buffered, part)
                else:
                    yield decompressed(buffered, self.url) if decompress else buffered
        except broken() as error:
            what = damaged(error) or _what(self.url, error)
            raise InputError(f"{self.name} cannot be read: {what}") from None

    def _raw(self) -> Any:
        if self.url.startswith(_LOCAL):
            # opened here: to fsspec, some signs in a file's name are chains of file systems
            return open(self.url.removeprefix(_LOCAL), "rb")
        filesystem, inner = filesystem_of(self.url)
        return filesystem.open(inner, "rb")


def find_sources(paths: tuple[str, ...], format_: str, key: str = "input.path") -> list[Source]:
    """The files that ``paths`` name, in a fixed order.

    A folder stands for every file below it with a known ending.  ``key`` is the setting that the paths
    stand in, for messages.  ``ConfigurationError`` where a path
    names nothing, or a file's format can neither be told from its ending nor is given.
    """
    sources = find_by_path(paths, format_, key)
    # a file's name goes into ids and messages: short where that is clear, else the whole path
    last = [PurePosixPath(source.name).name for source in sources]
    times = Counter(last)
    return [
        dataclasses.replace(source, name=name) if times[name] == 1 else source
        for source, name in zip(sources, last, strict=True)
    ]


def find_by_path(paths: tuple[str, ...], format_: str, key: str = "input.path") -> list[Source]:
    """As :func:`find_sources`, each named by its whole path, whatever other files there are."""
    urls: dict[str, str] = {}
    for path in paths:
        matches = list(_expand(path, key))
        if not matches:
            raise ConfigurationError(
                f"{key}: nothing is there to read at '{without_secrets(path)}'{_why_nothing(path)}"
            )
        urls.update((url, _printable(name)) for url, name in matches)
    return [_source(url, name, format_) for url, name in urls.items()]


def _why_nothing(path: str) -> str:
    """What may have been meant, of a path that names no file to read."""
    if any(sign in path for sign in "*?["):
        return ": no file matches this pattern"
    if is_url(path):
        return ""
    if os.path.isdir(path):
        return (
            f": no file below this folder ends in {', '.join(FORMATS)}; name files of another kind one by one"
        )
    # a path that stands in a configuration has become absolute by now
    start = "; relative paths start at the configuration's own folder" if os.path.isabs(path) else ""
    return f": there is no such file or folder{start}"


def fingerprint(source: Source) -> dict[str, Any]:
    """The name, size in bytes and keyed digest of a file as it lies on the disk, or of the slices of it."""
    size = 0

    def blocks() -> Iterator[bytes]:
        nonlocal size
        for part in source.slices or (None,):
            for block in blocks_of(source, part and part.without_header()):
                size += len(block)
                yield block

    # before the size, which is known once all of it is read
    digest = load_digest_key().file_digest(blocks())
    found = {"path": source.name, "bytes": size, "digest": digest}
    if source.slices:
        found["slices"] = [[part.from_byte, part.to_byte, part.from_row] for part in source.slices]
    return found


def blocks_of(source: Source, part: Slice | None = None) -> Iterator[bytes]:
    """The bytes of a file as it lies on the disk, or of a ``part`` of it, in pieces."""
    with source.open(decompress=False, part=part) as file:
        while block := file.read(_CHUNK):
            yield block


def size_of(source: Source) -> int | None:
    """The bytes of a file as it lies on the disk, without reading it; None where that cannot be told.

    Of a source in slices, the bytes of these.
    """
    if source.slices:
        return sum(part.bytes for part in source.slices)
    if source.url.startswith(_LOCAL):
        return os.path.getsize(source.url.removeprefix(_LOCAL))
    filesystem, inner = _place(source.url)
    size: int | None = filesystem.size(inner)
    return size


def modified(source: Source) -> datetime.datetime | None:
    """When a file was last written (UTC); None where its file system does not say."""
    if source.url.startswith(_LOCAL):
        when = os.path.getmtime(source.url.removeprefix(_LOCAL))
        return datetime.datetime.fromtimestamp(when, datetime.UTC)
    filesystem, inner = _place(source.url)
    try:
        found: datetime.datetime = filesystem.modified(inner)
    except (NotImplementedError, AttributeError, KeyError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def stamp_of(source: Source, settled: datetime.datetime) -> str | None:
    """A sign that stays as long as a file is not written, without reading it; None where there is none.

    Nor has one a file that was written after ``settled``: it may be written again at what its clock calls
    the same time.  On this machine the sign has the time at which the system says that anything of the file
    changed, which nobody can put back as they can the time of its last writing.
    """
    written = modified(source)
    if written is None or written > settled:
        return None
    if source.url.startswith(_LOCAL):
        found = os.stat(source.url.removeprefix(_LOCAL))
        if found.st_ctime > settled.timestamp():
            return None
        return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ino}-{found.st_ctime_ns}"
    filesystem, inner = _place(source.url)
    try:
        key: str = filesystem.ukey(inner)
    except (NotImplementedError, OSError):
        return None
    return key


def _expand(path: str, key: str) -> Iterator[tuple[str, str]]:
    linked = None
    try:
        filesystem, inner = _place(path)
        if filesystem.isdir(inner):
            found = names_below(filesystem, inner) if is_url(path) else filesystem.find(inner)
            names = [n for n in found if not is_hidden(n[len(inner) :])]
            linked = next((n for n in names if "://" not in path and os.path.isdir(n)), None)
            names = [n for n in names if format_of(n)]
        elif filesystem.exists(inner):
            # before it is taken for a glob: a file's name may hold the signs of one
            names = [inner]
        elif any(sign in path for sign in "*?["):
            names = [n for n in filesystem.glob(inner) if not is_hidden(PurePosixPath(n).name)]
            names = [n for n in names if not filesystem.isdir(n)]
        else:
            names = []
        irregular = [n for n in names if "://" not in path and not filesystem.isfile(n)]
    except (ValueError, ImportError, OSError) as error:
        shown = without_secrets(path)
        raise ConfigurationError(f"{key}: '{shown}' cannot be opened: {_what(path, error)}") from None
    if linked is not None:
        # what it leads to would be left out without a word, and may be this very folder
        raise ConfigurationError(
            f"{key}: '{_printable(linked)}' is a link to a folder, which is not followed: name that folder "
            f"in {key} too, or take the link out"
        )
    if irregular:
        # a pipe would be waited for, and an input is read twice
        raise ConfigurationError(
            f"{key}: '{_printable(irregular[0])}' is no file (a pipe, a device, a broken link); take it out"
        )
    notes_left_out = without_notes(names, lambda name: _beginning(filesystem, name))
    for name in sorted(notes_left_out):
        yield filesystem.unstrip_protocol(name), name


def _beginning(filesystem: Any, name: str) -> bytes:
    """The first 16 MiB of a file; nothing of one that cannot be read, which its reader will say."""
    try:
        with filesystem.open(name, "rb") as file:
            return bytes(file.read(16 * _CHUNK))
    except OSError:
        return b""


def _what(url: str, error: Exception) -> str:
    """What is wrong with a file, by the kind of its error; of one on this machine in the system's words."""
    if is_url(url) and not url.startswith(_LOCAL):
        return f"{kind_of(error).value} ({cause_of(url, error)})"
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


def _place(path: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it."""
    import fsspec

    if "://" in path:
        return filesystem_of(path)
    local = fsspec.filesystem("file")
    return local, local._strip_protocol(path)


def _printable(name: str) -> str:
    """``name`` with an escape for every sign that is none to see, or that UTF-8 cannot hold."""
    # a backslash of the name's own is doubled, so that no two names become one
    shown = (c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode("ascii") for c in name)
    return "".join(shown)


def is_hidden(relative: str) -> bool:
    """Whether a path below an input folder is passed over: a part of it starts with ``.`` or ``_``."""
    return any(part.startswith((".", "_")) for part in PurePosixPath(relative).parts)


def format_of(name: str) -> str | None:
    """The format that a file's ending tells; None where it tells none."""
    path = PurePosixPath(name)
    if path.suffix.lower() in ENDINGS:
        path = path.with_suffix("")
    return FORMATS.get(path.suffix.lower())


def _source(url: str, name: str, format_: str) -> Source:
    if PurePosixPath(name).suffix.lower() in _ARCHIVES:
        raise ConfigurationError(f"input.path: '{name}' is an archive of files; unpack it first")
    kind = format_of(url) if format_ == "auto" else format_
    if kind is None:
        raise ConfigurationError(
            f"input.format: the format of '{name}' cannot be told from its ending; "
            "set it to one of jsonl, parquet, arrow, csv, tsv, text"
        )
    return Source(url, name, kind)
