"""Arrow IPC, a record batch at a time: streams, as ``datasets`` saves them, and files with a footer.

A record batch is held whole, as large as its writer made it.  Its offsets point into memory, so they are
checked before anything is read through them.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.readers.records import BROKEN_ROW, UNDECODABLE, Columns, Record, is_compressed

_FILE = b"ARROW1"
_STREAM_IN_FILE = 8
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_PIECE = 1 << 24


def arrow(file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
    """The rows of an Arrow stream or file, only the columns that are mapped.

    ``InputError`` names the file, and the last row before the place where it breaks off.
    """
    import pyarrow as pa

    number = 0
    try:
        for cells, rows in _tables(file, columns, name):
            for row in range(rows):
                number += 1
                yield _row(cells, row, number)
        return
    except InputError:
        raise
    except OSError as error:
        if error.errno is not None:
            # the disk's or the net's, not Arrow's
            raise
    except (pa.ArrowException, ValueError, MemoryError, OverflowError, EOFError):
        pass
    raise InputError(
        f"{name} is no whole Arrow file: it cannot be read after row {number}; copy it anew, or set "
        "input.format to what it is"
    )


class _Column(NamedTuple):
    """Values whose offsets are right; text as bytes, decoded row by row, for one row's may be no UTF-8."""

    values: Any
    is_text: bool

    def at(self, row: int) -> Any:
        """A row's value; ``UnicodeDecodeError`` where it is to be text and is none."""
        value = self.values[row].as_py()
        return value.decode("utf-8") if self.is_text and value is not None else value


def _tables(file: Any, columns: Columns, name: str) -> Iterator[tuple[dict[str, _Column], int]]:
    """Of each record batch the wanted columns by name, and its number of rows; ``EOFError`` if any lacks."""
    import pyarrow as pa

    promised = _promised(file, name)
    stream = _Watched(file)
    reader = pa.ipc.open_stream(stream)
    names = reader.schema.names
    wanted = columns.among(names, name)
    found = 0
    for batch in reader:
        found += 1
        batch.validate()
        yield {c: _checked(batch.column(i)) for i, c in enumerate(names) if c in wanted}, batch.num_rows
    # what is cut off between two batches, or goes on with something else, looks finished
    if not stream.has_ended() or (bool(file.read(1)) if promised is None else promised != found):
        raise EOFError


def _promised(file: Any, name: str) -> int | None:
    """How many record batches a file's footer names, the stream in it coming next; None for a stream."""
    import pyarrow as pa

    if bytes(file.peek(len(_FILE))[: len(_FILE)]) != _FILE:
        return None
    if is_compressed(name):
        raise InputError(f"{name} is an Arrow file inside of another compression: decompress it first")
    promised = int(pa.ipc.open_file(_Watched(file)).num_record_batches)
    file.seek(_STREAM_IN_FILE)
    return promised


def _checked(column: Any) -> _Column:
    import pyarrow as pa

    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    is_text = column.type in as_bytes
    values = column.view(as_bytes[column.type]) if is_text else column
    values.validate(full=True)
    return _Column(values, is_text)


def _row(cells: dict[str, _Column], row: int, number: int) -> Record:
    try:
        return number, {name: column.at(row) for name, column in cells.items()}, None, b""
    except UnicodeDecodeError:
        return number, None, UNDECODABLE, b""
    except (ValueError, ArithmeticError, LookupError):
        # a date after the year 9999, a time zone that nobody knows
        return number, None, BROKEN_ROW, b""


class _Watched(io.RawIOBase):
    """A file that remembers the last bytes it gave, and takes no memory on the word of a length in it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._last = b""

    def has_ended(self) -> bool:
        """Whether the stream's own end was read last."""
        return self._last == _END_OF_STREAM

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """As the file itself."""
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = 0) -> int:
        """As in the file itself."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """As in the file itself."""
        return int(self._file.tell())

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, fewer at the end alone."""
        found = bytearray()
        while size < 0 or len(found) < size:
            piece = self._file.read(_PIECE if size < 0 else min(_PIECE, size - len(found)))
            if not piece:
                break
            found += piece
        kept = len(_END_OF_STREAM)
        self._last = (self._last + bytes(found[-kept:]))[-kept:]
        return bytes(found)


# Folders that ``save_to_disk`` of Hugging Face's ``datasets`` wrote: Arrow files, and notes beside them.


_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_NAME = re.compile(r"[\w.-]{1,100}")
_MADE_OF_IT = re.compile(r"cache-\w+\.arrow")
"""What ``map``, ``filter`` and ``shuffle`` leave there: the rows once more, changed, or their numbers."""


def without_notes(names: Sequence[str], read: Callable[[str], bytes]) -> list[str]:
    """The files ``names`` without the notes of data sets, and what was made of these.

    ``read`` gives what stands in a file.  ``ConfigurationError`` names the file or the split that a note
    speaks of and that is not there.
    """
    paths = {name: PurePosixPath(name) for name in names}
    there = set(paths.values())
    kept, made = [], set[PurePosixPath]()
    for name, path in paths.items():
        told = _told(path.name, read(name)) if path.name in (_STATE, _INFO, _SPLITS) else None
        if told is None:
            kept.append(name)
            continue
        if path.name == _STATE:
            made |= {own for own in there if own.parent == path.parent and _MADE_OF_IT.fullmatch(own.name)}
            made -= {path.parent / below for below in told}
        gone = [below for below in told if path.parent / below not in there]
        if gone:
            raise ConfigurationError(
                f"input.path: '{gone[0]}' is missing from the data set in '{path.parent.name}': copy the "
                "whole folder that save_to_disk wrote, or name the .arrow files themselves"
            )
    return [name for name in kept if paths[name] not in made]


def _told(kind: str, content: bytes) -> list[str] | None:
    """The files that a note says there are; None where it is somebody else's file of that name."""
    try:
        note = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(note, dict):
        return None
    if kind == _INFO:
        return [] if "features" in note else None
    listed = note.get("splits" if kind == _SPLITS else "_data_files")
    if not isinstance(listed, list):
        return None
    if kind == _SPLITS:
        return [f"{split}/{_STATE}" for split in _names(listed)]
    return _names([file.get("filename") for file in listed if isinstance(file, dict)])


def _names(listed: list[Any]) -> list[str]:
    """Those of ``listed`` that can be the name of a file in the folder."""
    return [name for name in listed if isinstance(name, str) and _NAME.fullmatch(name)]
