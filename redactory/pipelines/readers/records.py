"""What a format's reader hands on, and the columns that it is asked for."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from redactory.foundation.errors import InputError

Record = tuple[int, dict[str, Any] | None, str | None, bytes]
"""(row number from 1, the record or None, a reason code or None, the raw bytes for the quarantine)"""

UNDECODABLE, BROKEN_JSON, NOT_AN_OBJECT = "undecodable", "broken_json", "not_an_object"
ROW_TOO_LONG, BROKEN_ROW = "row_too_long", "broken_row"
KEPT_BYTES = 1 << 16


@dataclass(frozen=True)
class Columns:
    """Columns of a table: those that it must have, and those that are read where it has them.

    ``mapped`` None reads all of them.
    """

    needed: tuple[str, ...] = ()
    mapped: tuple[str, ...] | None = None

    def among(self, names: Sequence[str], file: str) -> list[str]:
        """Those of ``names`` to read; ``InputError`` where a needed one is missing, or one is there twice."""
        for column in self.needed:
            if column not in names:
                raise InputError(
                    f"{file} has no column '{column}'; say under input which column holds what (text, id, "
                    "user, label). In CSV the first line names the columns, with commas between them"
                )
        wanted = [name for name in names if self.mapped is None or name in self.mapped]
        for name in wanted:
            if self.mapped is not None and wanted.count(name) > 1:
                raise InputError(
                    f"{file} has two columns '{name}': which one is meant cannot be told; rename one of them"
                )
        return wanted


# Compressed files, read in pieces: a few bytes that stand for gigabytes never lie in memory whole.


ENDINGS = (".gz", ".zst")
"""The endings that a file's format is looked for behind."""
_CHUNK = 1 << 20
_GIVEN_BYTES = 512
"""Compressed bytes handed on at once: 4 can stand for 128 KiB in zstd, so these for 16 MiB at most."""
_XZ_BYTES = 1 << 28
"""Memory that an xz file may ask for; its strongest preset asks for a quarter of that."""


def broken() -> tuple[type[Exception], ...]:
    """What reading a file raises that is no whole file of its kind."""
    from zstandard import ZstdError

    return (OSError, EOFError, zlib.error, lzma.LZMAError, ZstdError)


def damaged(error: Exception) -> str | None:
    """What is wrong with a compressed file, in words; None where ``error`` is that of a disk or a store."""
    from zstandard import ZstdError

    if isinstance(error, EOFError):
        return "it is cut off; copy it anew"
    if isinstance(error, lzma.LZMAError):
        return (
            f"it is damaged, not what its ending says, or asks for more than {_XZ_BYTES >> 20} MiB of memory"
        )
    if isinstance(error, gzip.BadGzipFile | zlib.error | ZstdError) or _is_bzip2s(error):
        return "it is damaged, or not compressed as its ending says; copy it anew, or rename it"
    return None


def _is_bzip2s(error: Exception) -> bool:
    """Whether it is the error without a number that ``bz2`` has for what is no file of its kind."""
    return isinstance(error, OSError) and error.errno is None and "data stream" in str(error)


def is_compressed(name: str) -> bool:
    """Whether the ending of ``name`` says that the file is compressed."""
    return PurePosixPath(name).suffix.lower() in _OPENERS


def decompressed(file: io.BufferedReader, name: str) -> BinaryIO:
    """``file`` itself, or what is compressed in it if the ending of ``name`` says so."""
    open_ = _OPENERS.get(PurePosixPath(name).suffix.lower())
    if open_ is None:
        return file
    if not file.peek(1):
        # even nothing takes some bytes when it is compressed
        raise EOFError
    return io.BufferedReader(open_(file), _CHUNK)


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
            limit = (_CHUNK,) if hasattr(self._stream, "needs_input") else ()
            self._ready = memoryview(self._stream.decompress(given, *limit))
            if self._stream.eof:
                self._given, self._stream = self._stream.unused_data, None
        return True


def _gzip(file: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file, mode="rb")


def _bzip2(file: BinaryIO) -> _Streams:
    return _Streams(file, bz2.BZ2Decompressor)


def _xz(file: BinaryIO) -> _Streams:
    return _Streams(file, lambda: lzma.LZMADecompressor(memlimit=_XZ_BYTES), b"\0")


def _zstandard(file: BinaryIO) -> _Streams:
    from zstandard import ZstdDecompressor

    return _Streams(file, ZstdDecompressor().decompressobj)


_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": _gzip,
    ".zst": _zstandard,
    ".bz2": _bzip2,
    ".xz": _xz,
}
