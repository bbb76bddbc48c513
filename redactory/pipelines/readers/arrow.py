"""Arrow IPC, a record batch at a time: streams, as ``datasets`` saves them, and files with a footer.

A record batch is held whole, as large as its writer made it.  Its offsets point into memory, so they are
checked before anything is read through them.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.readers.formats import Columns, Format, Record, cells_of

_FILE = b"ARROW1"
_STREAM_IN_FILE = 8
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_PIECE = 1 << 24


class Arrow(Format):
    """A stream or a file, only the columns that are mapped."""

    name = "arrow"
    endings = (".arrow",)
    kept = False

    def records(self, file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        """One a row; ``InputError`` names the file, and the last row before the place where it breaks off."""
        import pyarrow as pa

        number = 0
        try:
            for cells, rows in _tables(file, columns, name):
                for row in range(rows):
                    number += 1
                    yield cells_of(number, partial(_row, cells, row))
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


def _row(cells: dict[str, Callable[[int], Any]], row: int) -> dict[str, Any]:
    return {name: at(row) for name, at in cells.items()}


def _tables(file: Any, columns: Columns, name: str) -> Iterator[tuple[dict[str, Callable[[int], Any]], int]]:
    """Of each record batch the wanted columns by name, and its number of rows; ``EOFError`` if any lacks."""
    import pyarrow as pa

    promised = None
    if bytes(file.peek(len(_FILE))[: len(_FILE)]) == _FILE:
        if not file.seekable():
            raise InputError(f"{name} is an Arrow file inside of another compression: decompress it first")
        # its footer names the batches; the stream in it comes next
        promised = int(pa.ipc.open_file(_Watched(file)).num_record_batches)
        file.seek(_STREAM_IN_FILE)
    stream = _Watched(file)
    reader = pa.ipc.open_stream(stream)
    names = reader.schema.names
    wanted = columns.among(names, name)
    found = 0
    for batch in reader:
        found += 1
        batch.validate()
        yield {c: _cells(batch.column(i)) for i, c in enumerate(names) if c in wanted}, batch.num_rows
    # what is cut off between two batches, or goes on with something else, looks finished
    if not stream.has_ended() or (bool(file.read(1)) if promised is None else promised != found):
        raise EOFError


def _cells(column: Any) -> Callable[[int], Any]:
    """The values of a column whose offsets are right, by row: one row's text may be no UTF-8."""
    import pyarrow as pa

    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type)
    values = column if as_bytes is None else column.view(as_bytes)
    values.validate(full=True)

    def at(row: int) -> Any:
        value = values[row].as_py()
        return value if as_bytes is None or value is None else value.decode("utf-8")

    return at


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
        listed = _listed(path.name, read(name)) if path.name in (_STATE, _INFO, _SPLITS) else None
        if listed is None:
            kept.append(name)
            continue
        if path.name == _STATE:
            made |= {own for own in there if own.parent == path.parent and _MADE_OF_IT.fullmatch(own.name)}
            made -= {path.parent / below for below in listed}
        gone = [below for below in listed if path.parent / below not in there]
        if gone:
            raise ConfigurationError(
                f"input.path: '{gone[0]}' is missing from the data set in '{path.parent.name}': copy the "
                "whole folder that save_to_disk wrote, or name the .arrow files themselves"
            )
    return [name for name in kept if paths[name] not in made]


def _listed(kind: str, content: bytes) -> list[str] | None:
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
    if kind == _STATE:
        listed = [file.get("filename") for file in listed if isinstance(file, dict)]
    names = [name for name in listed if isinstance(name, str) and _NAME.fullmatch(name)]
    return [f"{split}/{_STATE}" for split in names] if kind == _SPLITS else names
