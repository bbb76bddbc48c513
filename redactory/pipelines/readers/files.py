"""The files of an input: found by path, folder, glob or URL; decompressed; read whole or in slices."""

from __future__ import annotations

import bz2
import datetime
import io
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.keys import load_digest_key
from redactory.pipelines.readers.arrow import without_notes
from redactory.pipelines.readers.formats import CHUNK, FORMATS, Format, Rows
from redactory.pipelines.store import (
    cause_of,
    filesystem_of,
    is_url,
    kind_of,
    names_below,
    without_secrets,
)

_LOCAL = "file://"
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar")


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


@dataclass(frozen=True)
class Source:
    """One file of the input: what fsspec opens, the name that users see, its format.

    ``slices`` are the parts of it that are read, in order; without any it is read whole.
    """

    url: str
    name: str
    format: str
    slices: tuple[Slice, ...] = ()

    @property
    def reader(self) -> Format:
        """What reads it."""
        return FORMATS[self.format]

    @property
    def grows(self) -> bool:
        """Whether rows can be added to its end."""
        return self.reader.grows and _compression(self.url) is None

    @contextmanager
    def open(self, *, decompress: bool = True, part: Slice | None = None) -> Iterator[BinaryIO]:
        """The file's bytes, decompressed by its ending, or a ``part`` of a file that is not compressed.

        ``InputError`` where it is broken or cut off.
        """
        from zstandard import ZstdError

        try:
            with self._raw() as file:
                peeks = hasattr(file, "peek")
                buffered = cast(io.BufferedReader, file if peeks else io.BufferedReader(file, CHUNK))
                if part is not None:
                    spans = [(0, part.header)] if part.header else []
                    spans.append((part.from_byte, part.to_byte))
                    yield io.BufferedReader(_Spans(buffered, spans), CHUNK)
                else:
                    yield _decompressed(buffered, self.url) if decompress else buffered
        except (OSError, EOFError, zlib.error, lzma.LZMAError, ZstdError) as error:
            what = _damage(error) or _what(self.url, error)
            raise InputError(f"{self.name} cannot be read: {what}") from None

    def _raw(self) -> Any:
        if self.url.startswith(_LOCAL):
            # opened here: to fsspec, some characters in a file's name are chains of file systems
            return open(self.url.removeprefix(_LOCAL), "rb")
        filesystem, inner = filesystem_of(self.url)
        return filesystem.open(inner, "rb")

    def header(self, limit: int, size: int) -> int:
        """The length in bytes of its header line; 0 for a format without one, or where it is not whole."""
        with self.open(part=Slice(0, size)) as file:
            return self.reader.header(file, limit)

    def rows_in(self, part: Slice, limit: int) -> Rows:
        """The rows of ``part`` of a file that grows, counted as its reader counts them."""
        with self.open(part=part) as file:
            return self.reader.rows_in(file, part.from_byte, part.header, limit)

    def blocks(self, part: Slice | None = None) -> Iterator[bytes]:
        """The bytes as they lie on the disk, or of a ``part`` of them, in pieces."""
        with self.open(decompress=False, part=part) as file:
            while block := file.read(CHUNK):
                yield block

    def fingerprint(self) -> dict[str, Any]:
        """Name, size in bytes and keyed digest of the file as it lies on the disk, or of its slices."""
        size = 0

        def blocks() -> Iterator[bytes]:
            nonlocal size
            for part in self.slices or (None,):
                for block in self.blocks(part and part.without_header()):
                    size += len(block)
                    yield block

        # before the size, which is known once all of it is read
        digest = load_digest_key().file_digest(blocks())
        found = {"path": self.name, "bytes": size, "digest": digest}
        if self.slices:
            found["slices"] = [[part.from_byte, part.to_byte, part.from_row] for part in self.slices]
        return found

    def size(self) -> int | None:
        """The bytes of the file, or of its slices, without reading them; None where that cannot be told."""
        if self.slices:
            return sum(part.bytes for part in self.slices)
        if self.url.startswith(_LOCAL):
            return os.path.getsize(self.url.removeprefix(_LOCAL))
        filesystem, inner = _place(self.url)
        size: int | None = filesystem.size(inner)
        return size

    def modified(self) -> datetime.datetime | None:
        """When it was last written (UTC); None where its file system does not say."""
        if self.url.startswith(_LOCAL):
            when = os.path.getmtime(self.url.removeprefix(_LOCAL))
            return datetime.datetime.fromtimestamp(when, datetime.UTC)
        filesystem, inner = _place(self.url)
        try:
            found: datetime.datetime = filesystem.modified(inner)
        except (NotImplementedError, AttributeError, KeyError):
            return None
        return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)

    def stamp(self, settled: datetime.datetime) -> str | None:
        """What stays the same as long as the file is not written, without reading it; None without any.

        Nor has one a file that was written after ``settled``: it may be written again at what its clock
        calls the same time.  On this machine it holds the time at which the system says that anything of the
        file changed, which nobody can put back as they can the time of its last writing.
        """
        written = self.modified()
        if written is None or written > settled:
            return None
        if self.url.startswith(_LOCAL):
            found = os.stat(self.url.removeprefix(_LOCAL))
            if found.st_ctime > settled.timestamp():
                return None
            return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ino}-{found.st_ctime_ns}"
        filesystem, inner = _place(self.url)
        try:
            key: str = filesystem.ukey(inner)
        except (NotImplementedError, OSError):
            return None
        return key


class _Spans(io.RawIOBase):
    """Spans of a file one after the other; it may grow meanwhile.  ``EOFError`` where it ends before."""

    def __init__(self, file: BinaryIO, spans: list[tuple[int, int]]) -> None:
        self._file = file
        self._spans = spans
        self._at: int | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the span goes; 0 at the end of the last one."""
        while self._spans:
            start, end = self._spans[0]
            if self._at is None:
                self._at = self._file.seek(start)
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


# Compressed files, read in pieces: a few bytes that stand for gigabytes never lie in memory whole.


_GIVEN_BYTES = 512
"""Compressed bytes handed on at once: 4 can stand for 128 KiB in zstd, so these for 16 MiB at most."""
_XZ_BYTES = 1 << 28
"""Memory that an xz file may ask for; its strongest preset asks for a quarter of that."""
_GZIP = 31
"""zlib's word for its largest window, in a file of gzip's."""
_PACKED = 8.0
"""Bytes in the open that a compressed one is taken to stand for; English text packs 3 to 8 times."""


class _Streams(io.RawIOBase):
    """The content of all compressed streams of a file; ``EOFError`` where the last one is cut off.

    ``begin`` gives a decompressor of one stream, ``padding`` are bytes that may stand between two.
    """

    def __init__(self, file: BinaryIO, begin: Callable[[], Any], padding: bytes = b"") -> None:
        self._file = file
        self._begin = begin
        self._padding = padding
        self._stream: Any = None
        self._given = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` as far as the next piece goes; 0 at the end."""
        while not self._ready and self._more():
            pass
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _more(self) -> bool:
        if self._stream is not None and not getattr(self._stream, "needs_input", True):
            # it holds back what is more than a chunk
            return self._take(b"")
        given = self._given or self._file.read(_GIVEN_BYTES)
        if not given:
            if self._stream is not None:
                raise EOFError
            return False
        if self._stream is None:
            given = given.lstrip(self._padding)
            self._stream = self._begin() if given else None
        return self._take(given)

    def _take(self, given: bytes) -> bool:
        self._given = b""
        if self._stream is not None:
            limit = (CHUNK,) if hasattr(self._stream, "needs_input") else ()
            self._ready = memoryview(self._stream.decompress(given, *limit))
            if self._stream.eof:
                self._given, self._stream = self._stream.unused_data, None
        return True


def _zstandard(file: BinaryIO) -> _Streams:
    from zstandard import ZstdDecompressor

    return _Streams(file, ZstdDecompressor().decompressobj)


_COMPRESSIONS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda file: _Streams(file, lambda: zlib.decompressobj(_GZIP), b"\0"),
    ".zst": _zstandard,
    ".bz2": lambda file: _Streams(file, bz2.BZ2Decompressor),
    ".xz": lambda file: _Streams(file, lambda: lzma.LZMADecompressor(memlimit=_XZ_BYTES), b"\0"),
}
_BEFORE_A_FORMAT = (".gz", ".zst")
"""The endings that a file's format is looked for behind."""


def _compression(name: str) -> Callable[[BinaryIO], Any] | None:
    return _COMPRESSIONS.get(PurePosixPath(name).suffix.lower())


def _decompressed(file: io.BufferedReader, name: str) -> BinaryIO:
    """``file`` itself, or what is compressed in it if the ending of ``name`` says so."""
    open_ = _compression(name)
    if open_ is None:
        return file
    if not file.peek(1):
        # even nothing takes some bytes when it is compressed
        raise EOFError
    return io.BufferedReader(open_(file), CHUNK)


def _damage(error: Exception) -> str | None:
    """What is wrong with a compressed file, in words; None where ``error`` is that of a disk or a store."""
    from zstandard import ZstdError

    if isinstance(error, EOFError):
        return "it is cut off; copy it anew"
    if isinstance(error, lzma.LZMAError):
        return (
            f"it is damaged, not what its ending says, or asks for more than {_XZ_BYTES >> 20} MiB of memory"
        )
    # bz2 has an error without a number for what is no file of its kind
    of_bzip2 = isinstance(error, OSError) and error.errno is None and "data stream" in str(error)
    if isinstance(error, zlib.error | ZstdError) or of_bzip2:
        return "it is damaged, or not compressed as its ending says; copy it anew, or rename it"
    return None


# Finding them.


def find_sources(paths: tuple[str, ...], format_: str, key: str = "input.path") -> list[Source]:
    """The files that ``paths`` name, in a fixed order.

    A folder stands for every file below it with a known ending.  ``key`` is the setting that the paths
    stand in, for messages.  ``ConfigurationError`` where a path names nothing, or a file's format can neither
    be told from its ending nor is given.
    """
    sources = find_by_path(paths, format_, key)
    # a file's name goes into ids and messages: short where that is clear, else the whole path
    last = [PurePosixPath(source.name).name for source in sources]
    times = Counter(last)
    return [
        replace(source, name=name) if times[name] == 1 else source
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


def endings() -> str:
    """The endings of every format, for messages."""
    return ", ".join(ending for format_ in FORMATS.values() for ending in format_.endings)


def format_of(name: str) -> str | None:
    """The format that a file's ending tells; None where it tells none."""
    path = PurePosixPath(name)
    if path.suffix.lower() in _BEFORE_A_FORMAT:
        path = path.with_suffix("")
    return next((f.name for f in FORMATS.values() if path.suffix.lower() in f.endings), None)


def expansion(url: str) -> float:
    """Bytes in the open that a byte of a file is taken to stand for, by its ending."""
    kind = format_of(url)
    return _PACKED if _compression(url) else 1.0 if kind is None else FORMATS[kind].packed


def is_hidden(relative: str) -> bool:
    """Whether a path below an input folder is passed over: a part of it starts with ``.`` or ``_``."""
    return any(part.startswith((".", "_")) for part in PurePosixPath(relative).parts)


def _why_nothing(path: str) -> str:
    """What may have been meant, of a path that names no file to read."""
    if any(character in path for character in "*?["):
        return ": no file matches this pattern"
    if is_url(path):
        return ""
    if os.path.isdir(path):
        return f": no file below this folder ends in {endings()}; name files of another kind one by one"
    # a path that stands in a configuration has become absolute by now
    start = "; relative paths start at the configuration's own folder" if os.path.isabs(path) else ""
    return f": there is no such file or folder{start}"


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
            # before it is taken for a glob: a file's name may hold the characters of one
            names = [inner]
        elif any(character in path for character in "*?["):
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

    def beginning(name: str) -> bytes:
        try:
            with filesystem.open(name, "rb") as file:
                return bytes(file.read(16 * CHUNK))
        except OSError:
            # its reader will say so
            return b""

    for name in sorted(without_notes(names, beginning)):
        yield filesystem.unstrip_protocol(name), name


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
    """``name`` with an escape for every character that cannot be seen, or that UTF-8 cannot hold."""
    # a backslash of the name's own is doubled, so that no two names become one
    shown = (c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode("ascii") for c in name)
    return "".join(shown)


def _source(url: str, name: str, format_: str) -> Source:
    if PurePosixPath(name).suffix.lower() in _ARCHIVES:
        raise ConfigurationError(f"input.path: '{name}' is an archive of files; unpack it first")
    kind = format_of(url) if format_ == "auto" else format_
    if kind is None:
        raise ConfigurationError(
            f"input.format: the format of '{name}' cannot be told from its ending; "
            f"set it to one of {', '.join(FORMATS)}"
        )
    return Source(url, name, kind)
