"""Find the files of an input by path, folder, glob or URL, decompress them, and read them whole or in slices."""

from __future__ import annotations

import codecs
import datetime
import errno
import glob
import io
import json
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from redactory.foundation.errors import ConfigurationError, InputError, shorten_name
from redactory.foundation.keys import load_digest_key
from redactory.pipelines.readers.formats import (
    CHUNK_BYTES,
    FORMATS,
    MAX_EXPANSION,
    SMALL_FILE_BYTES,
    DamagedFile,
    Format,
    OpenFile,
    RowScan,
    check_expansion,
    choose_reader,
)
from redactory.pipelines.store import (
    classify_store_error,
    describe_store_error,
    is_url,
    list_files_recursively,
    open_filesystem,
    remove_credentials,
)

_FILE_SCHEME = "file://"
ARCHIVE_ENDINGS = (".zip", ".tar", ".tgz", ".7z", ".rar")
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_STREAM_COMPRESSIONS = (".gz", ".zst")
"""Endings that are removed before the format is detected from the ending before them."""
_COMPRESSION_FACTOR = 8.0
"""Assumed decompressed bytes per compressed byte; English text compresses 3 to 8 times."""


@dataclass(frozen=True)
class Slice:
    """Bytes ``from_byte`` up to ``to_byte`` of a file, preceded by ``from_row`` rows.

    ``header`` is the length in bytes of the header line that is read before a later slice of a table; 0 if the
    format has no header, or if the slice begins with it.
    """

    from_byte: int
    to_byte: int
    from_row: int = 0
    header: int = 0

    @property
    def size(self) -> int:
        """Number of bytes, without the header."""
        return self.to_byte - self.from_byte

    def to_file_row(self, number: int) -> int:
        """Convert a row number within this slice to a row number of the file."""
        return self.from_row + number - (1 if self.header else 0)


@dataclass(frozen=True)
class Source:
    """One file of the input: its fsspec URL, the name that users see, and its format.

    Only the ``slices`` are read, in order; without slices, the whole file. ``may_be_unusable`` allows a file
    without usable rows, such as one that a scheduled run adds. ``refusal`` is the reason code of a folder entry
    that must not be opened.
    """

    url: str
    name: str
    format: str
    slices: tuple[Slice, ...] = ()
    may_be_unusable: bool = False
    refusal: str | None = None

    @property
    def reader(self) -> type[Format]:
        """The format class that reads the file."""
        return FORMATS[self.format]

    @property
    def is_appendable(self) -> bool:
        """Whether rows can be appended to the file; a JSON array ends with a bracket, so none can."""
        if not self.reader.is_appendable or _detect_compression(self.url) is not None:
            return False
        with self.open() as file:
            return choose_reader(self.format, file).is_appendable

    @property
    def _local_path(self) -> str | None:
        return self.url.removeprefix(_FILE_SCHEME) if self.url.startswith(_FILE_SCHEME) else None

    @contextmanager
    def open(
        self, *, decompress: bool = True, part: Slice | None = None, max_expansion: float = MAX_EXPANSION
    ) -> Iterator[BinaryIO]:
        """Open the file, decompressed according to its ending, or a ``part`` of an uncompressed file.

        ``DamagedFile`` if it is broken, truncated or refused, or expands to more than ``max_expansion`` times its size.
        """
        if self.refusal is not None:
            error = DamagedFile(f"{self.name} {_REFUSAL_MESSAGES[self.refusal]}")
            error.reason = self.refusal
            raise error
        packed = _detect_compression(self.url) if decompress and part is None else None
        try:
            with self._open_raw() as raw:
                file = OpenFile(raw, CHUNK_BYTES)
                if decompress and part is None:
                    file.most = max(SMALL_FILE_BYTES, int(max_expansion * (self.size() or 0)))
                if part is not None:
                    ranges = [(0, part.header), (part.from_byte, part.to_byte)]
                    yield _buffer_blocks(_read_ranges(file, ranges))
                elif packed is None:
                    yield file
                else:
                    import pyarrow as pa

                    if not file.peek(1):
                        # compressing an empty file yields some bytes
                        raise EOFError
                    # in blocks: a few bytes may expand to gigabytes, which must not fill the memory
                    stream = pa.CompressedInputStream(pa.PythonFile(file), packed)
                    yield _buffer_blocks(_read_expanding(stream, self.name, file.most or SMALL_FILE_BYTES))
        except (OSError, EOFError) as error:
            if not self._is_read_error(error):
                raise
            damage = _describe_damage(self.url, error)
            kind, reason = (InputError, _describe_error(self.url, error)) if damage is None else (DamagedFile, damage)
            raise kind(f"{self.name} cannot be read: {reason}") from None

    @contextmanager
    def open_rows(self, encoding: str = "utf-8", **options: Any) -> Iterator[BinaryIO]:
        """Open the file like :meth:`open`, with text, CSV and JSON of another ``encoding`` converted to UTF-8."""
        with self.open(**options) as file:
            is_recoded = self.reader.is_recodable and not is_utf8(encoding)
            yield _buffer_blocks(_recode(file, self.name, encoding)) if is_recoded else file

    def _is_read_error(self, error: OSError | EOFError) -> bool:
        """Whether the error comes from reading this file, not from writing an output at the same time."""
        filename = getattr(error, "filename", None)
        if filename is not None and self._local_path is not None:
            return os.fsdecode(filename) == self._local_path
        return getattr(error, "errno", None) not in _WRITE_ERRNOS

    def _open_raw(self) -> Any:
        if self._local_path is not None:
            # not with fsspec, which takes some characters in a file name for chained file systems
            return open(self._local_path, "rb", buffering=0)
        filesystem, inner = open_filesystem(self.url)
        return filesystem.open(inner, "rb")

    def measure_header(self, limit: int, size: int) -> int:
        """Measure the header line in bytes; 0 if the format has none, or if the line is incomplete."""
        with self.open(part=Slice(0, size)) as file:
            return self.reader(file, self.name, limit).measure_header()

    def count_rows(self, part: Slice, limit: int) -> RowScan:
        """Count the rows in a ``part`` of a growing file, as its reader does."""
        with self.open(part=part) as file:
            return self.reader(file, self.name, limit).count_rows(part.from_byte, part.header)

    def is_complete(self) -> bool:
        """Whether the file can be read to its end."""
        try:
            with self.open() as file:
                deque(choose_reader(self.format, file)(file, self.name, SMALL_FILE_BYTES).read_records(), maxlen=0)
        except DamagedFile:
            return False
        return True

    def read_blocks(self, part: Slice | None = None) -> Iterator[bytes]:
        """Read the stored bytes, or a ``part`` of them without its header, in blocks."""
        with self.open(decompress=False, part=part and replace(part, header=0)) as file:
            while block := file.read(CHUNK_BYTES):
                yield block

    def compute_fingerprint(self) -> dict[str, Any]:
        """Return the name, size in bytes and keyed digest of the stored file or its slices."""
        size = 0

        def iterate_blocks() -> Iterator[bytes]:
            nonlocal size
            for part in () if self.refusal else self.slices or (None,):
                for block in self.read_blocks(part):
                    size += len(block)
                    yield block

        # first, because reading the blocks determines the size
        digest = load_digest_key().compute_file_digest(iterate_blocks())
        record = {"path": self.name, "bytes": size, "digest": digest}
        if self.slices:
            record["slices"] = [[part.from_byte, part.to_byte, part.from_row] for part in self.slices]
        return record

    def size(self) -> int | None:
        """Return the stored size of the file or its slices in bytes, without reading; None if unknown."""
        if self.slices or self.refusal:
            return sum(part.size for part in self.slices)
        if self._local_path is not None:
            return os.path.getsize(self._local_path)
        filesystem, inner = open_filesystem(self.url)
        size: int | None = filesystem.size(inner)
        return size

    def read_modified_time(self) -> datetime.datetime | None:
        """Return the time of the last write (UTC); None if the file system does not report it."""
        if self._local_path is not None:
            return datetime.datetime.fromtimestamp(os.path.getmtime(self._local_path), datetime.UTC)
        filesystem, inner = open_filesystem(self.url)
        try:
            modified: datetime.datetime = filesystem.modified(inner)
        except (NotImplementedError, AttributeError, KeyError):
            return None
        return modified if modified.tzinfo else modified.replace(tzinfo=datetime.UTC)

    def read_change_stamp(self, cutoff: datetime.datetime) -> str | None:
        """Return a value that changes when the file is written, without reading the file; None if there is none.

        None also if the file was written after ``cutoff``: another write within the clock's resolution would not show.
        For local files it includes the status change time; unlike the modification time, nobody can set it back.
        """
        if self._local_path is not None:
            status = os.stat(self._local_path)
            is_settled = max(status.st_mtime, status.st_ctime) <= cutoff.timestamp()
            stamp = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}-{status.st_ctime_ns}"
            return stamp if is_settled else None
        modified, (filesystem, inner) = self.read_modified_time(), open_filesystem(self.url)
        return f"{modified}-{filesystem.ukey(inner)}" if modified is not None and modified <= cutoff else None


_WRITE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


class _BlockStream(io.RawIOBase):
    """A stream of the blocks of bytes that an iterator yields."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into ``buffer``; return 0 after the last block."""
        self._rest = self._rest or memoryview(next(filter(None, self._blocks), b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _buffer_blocks(blocks: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_BlockStream(blocks), CHUNK_BYTES)


def _read_expanding(stream: Any, name: str, max_size: int) -> Iterator[bytes]:
    """Read a decompressed stream; ``ExpandingFile`` beyond ``max_size``."""
    decoded = 0
    while block := stream.read(CHUNK_BYTES):
        decoded += len(block)
        check_expansion(name, decoded, max_size)
        yield block


def is_utf8(encoding: str) -> bool:
    """Whether a known encoding is UTF-8, with or without a byte order mark."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def _recode(stream: BinaryIO, name: str, encoding: str) -> Iterator[bytes]:
    """Convert a stream to UTF-8; ``DamagedFile`` if it has another encoding.

    An invalid byte stays as it is, so that its row is rejected.
    """
    decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
    for block in chain(iter(partial(stream.read, CHUNK_BYTES), b""), [b""]):
        try:
            recoded = decoder.decode(block, final=not block).encode("utf-8", "surrogateescape")
        except ValueError:
            raise DamagedFile(f"{name} is not {encoding}: give another --encoding") from None
        yield recoded


def _read_ranges(file: BinaryIO, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Read ranges of a file in order; the file may grow meanwhile. ``EOFError`` if it ends too early."""
    for position, end in ranges:
        while position < end:
            file.seek(position)
            if not (block := file.read(min(CHUNK_BYTES, end - position))):
                raise EOFError
            position += len(block)
            yield block


def _describe_damage(url: str, error: Exception) -> str | None:
    """Describe how the file's content is damaged; None if a disk or network failed instead."""
    if isinstance(error, EOFError) or "Truncated compressed stream" in str(error):
        return "it is truncated; copy it again"
    # errors of a decompressor have no errno, unlike those of a disk or network
    if _detect_compression(url) and isinstance(error, OSError) and error.errno is None:
        return "it is damaged, or not compressed as its file name says; copy it again, or rename it"
    return None


def _describe_error(url: str, error: Exception) -> str:
    if is_url(url) and not url.startswith(_FILE_SCHEME):
        return f"{classify_store_error(error).value} ({describe_store_error(url, error)})"
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


# File names.


def _detect_compression(name: str) -> str | None:
    return _COMPRESSIONS.get(PurePosixPath(name).suffix.lower())


def resolve_format(name: str) -> str:
    """Return the format with a given name or ending (txt, json, eml); ``ConfigurationError`` if unknown."""
    if name in FORMATS or name == "auto":
        return name
    format_name = next((f.name for f in FORMATS.values() if f".{name.lower().lstrip('.')}" in f.endings), None)
    if format_name is None:
        known = ", ".join(["auto", *FORMATS])
        raise ConfigurationError(f"--format: unknown format '{shorten_name(name)}'; expected {known}")
    return format_name


def format_known_endings() -> str:
    """List the endings of all formats, for messages."""
    return ", ".join(ending for format_ in FORMATS.values() for ending in format_.endings)


def detect_format(name: str) -> str | None:
    """Detect the format from the ending of a file name; None if the ending is unknown."""
    path = PurePosixPath(name)
    if path.suffix.lower() in _STREAM_COMPRESSIONS:
        path = path.with_suffix("")
    return next((f.name for f in FORMATS.values() if path.suffix.lower() in f.endings), None)


def estimate_expansion(url: str) -> float:
    """Estimate the decoded bytes per stored byte of a file from its ending."""
    kind = detect_format(url)
    return _COMPRESSION_FACTOR if _detect_compression(url) else 1.0 if kind is None else FORMATS[kind].expansion_factor


def is_hidden(relative: str) -> bool:
    """Whether a path below an input folder is ignored because a part of it starts with ``.`` or ``_``."""
    return any(part.startswith((".", "_")) for part in PurePosixPath(relative).parts)


def escape_unprintable(name: str) -> str:
    """Escape the characters of a name that are not printable or not valid in UTF-8."""
    # backslashes are doubled so that different names stay different
    escaped = (c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode("ascii") for c in name)
    return "".join(escaped)


# Finding files.


def find_sources(paths: tuple[str, ...], format_: str, key: str = "input.path") -> list[Source]:
    """Find the files of an input in a fixed order; a folder includes all files below it with a known ending.

    ``key`` is the configuration key of the paths, for messages. ``ConfigurationError`` if a path matches nothing, or
    if a file's format is neither configured nor clear from its ending.
    """
    sources = find_sources_by_path(paths, format_, key)
    # ids and messages contain the name: the file name if it is unique, otherwise the whole path
    last = [PurePosixPath(source.name).name for source in sources]
    times = Counter(last)
    return [
        replace(source, name=name) if times[name] == 1 else source for source, name in zip(sources, last, strict=True)
    ]


def find_sources_by_path(paths: tuple[str, ...], format_: str, key: str = "input.path") -> list[Source]:
    """Find files like :func:`find_sources`, but name each by its whole path."""
    sources: dict[str, Source] = {}
    for path in paths:
        try:
            is_local = not is_url(path) or path.startswith(_FILE_SCHEME)
            matches = _find_local_files(path, key) if is_local else _find_stored_files(path)
        except (ValueError, ImportError, OSError) as error:
            if isinstance(error, ConfigurationError):
                raise
            safe_path = remove_credentials(path)
            raise ConfigurationError(f"{key}: '{safe_path}' cannot be opened: {_describe_error(path, error)}") from None
        if not matches:
            raise ConfigurationError(f"{key}: nothing to read at '{remove_credentials(path)}'{_explain_no_match(path)}")
        folder = _find_base_folder(path) if is_local else None
        for url, path_name in matches:
            # a file that the user names directly may be a link
            is_named = url in sources and sources[url].refusal is None
            refusal = _find_refusal_reason(path_name, folder) if folder and not is_named else None
            name = escape_unprintable(path_name)
            sources[url] = Source(url, name, "text", refusal=refusal) if refusal else _make_source(url, name, format_)
    return list(sources.values())


LINK_OUTSIDE, LINKED_FOLDER, NOT_A_FILE = "link_outside", "linked_folder", "not_a_file"
_REFUSAL_MESSAGES = {
    LINK_OUTSIDE: "is a link that leads outside the input's folder: name the file itself in input.path, or "
    "remove the link",
    LINKED_FOLDER: "is a link to a folder, which is not followed: add that folder to input.path, or remove it",
    NOT_A_FILE: "is not a file (but a pipe, a device or a broken link): remove it",
}


def _find_refusal_reason(name: str, folder: str) -> str | None:
    """Return the reason code if an entry below ``folder`` must not be opened."""
    if os.path.isdir(name):
        return LINKED_FOLDER
    if not os.path.isfile(name):
        # opening a pipe would block, and inputs are read twice
        return NOT_A_FILE
    return LINK_OUTSIDE if is_link_outside(name, folder) else None


def _find_base_folder(path: str) -> str | None:
    """Return the folder that a path or glob searches; None if it names one file."""
    path = os.path.abspath(path.removeprefix(_FILE_SCHEME))
    if os.path.isfile(path):
        return None
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _find_local_files(path: str, key: str) -> list[tuple[str, str]]:
    """Return (URL, path) of each local file that ``path`` matches."""
    path = os.path.abspath(path.removeprefix(_FILE_SCHEME))
    if os.path.isdir(path):
        paths = [name for name in _list_files_and_links(path) if not is_hidden(os.path.relpath(name, path))]
        names = [name for name in paths if detect_format(name) or os.path.isdir(name)]
    elif os.path.lexists(path):
        # before glob: a file name may contain pattern characters
        if not os.path.isfile(path):
            raise ConfigurationError(f"{key}: '{escape_unprintable(path)}' {_REFUSAL_MESSAGES[NOT_A_FILE]}")
        names = [path]
    else:
        names = [name for name in glob.glob(path, recursive=True) if not is_hidden(os.path.basename(name))]
        names = [name for name in names if not os.path.isdir(name)]
    return [(_FILE_SCHEME + name, name) for name in _drop_dataset_metadata(sorted(names), _open_metadata)]


def _open_metadata(name: str) -> Any:
    # opening a pipe would block
    return open(name if os.path.isfile(name) else os.devnull, "rb")


def _list_files_and_links(folder: str) -> Iterator[str]:
    """List files, and links to folders, below ``folder``; ``OSError`` if a folder cannot be listed."""

    def raise_error(error: OSError) -> None:
        raise error

    for parent, folders, files in os.walk(folder, onerror=raise_error):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        yield from (os.path.join(parent, name) for name in (*links, *files))


def _find_stored_files(url: str) -> list[tuple[str, str]]:
    """Return (URL, path) of each file in a store that ``url`` matches."""
    filesystem, inner = open_filesystem(url)
    if filesystem.isdir(inner):
        candidates = list_files_recursively(filesystem, inner)
        names = [name for name in candidates if not is_hidden(name[len(inner) :]) and detect_format(name)]
    elif filesystem.exists(inner):
        names = [inner]
    else:
        candidates = filesystem.glob(inner) if glob.has_magic(url) else []
        names = [n for n in candidates if not is_hidden(PurePosixPath(n).name) and not filesystem.isdir(n)]
    files = _drop_dataset_metadata(sorted(names), lambda name: filesystem.open(name, "rb"))
    return [(filesystem.unstrip_protocol(name), name) for name in files]


def list_ignored_files(folder: str) -> list[str]:
    """List the files below ``folder`` that are not read: hidden files and unknown endings."""
    if is_url(folder) and not folder.startswith(_FILE_SCHEME):
        filesystem, top = open_filesystem(folder)
        paths = list_files_recursively(filesystem, top)
    else:
        top = os.path.abspath(folder.removeprefix(_FILE_SCHEME))
        paths = [os.path.join(parent, name) for parent, _, files in os.walk(top) for name in files]
    below = sorted(name[len(top) :].strip("/") for name in paths)
    return [escape_unprintable(name) for name in below if is_hidden(name) or detect_format(name) is None]


def is_link_outside(path: str, folder: str) -> bool:
    """Whether a file below ``folder`` is a link that leads outside it."""
    return os.path.commonpath((os.path.realpath(path), top := os.path.realpath(folder))) != top


def _explain_no_match(path: str) -> str:
    if glob.has_magic(path):
        return ": no file matches this pattern"
    if is_url(path):
        return ""
    if os.path.isdir(path):
        return f": no file in this folder ends in {format_known_endings()}; name files of another kind one by one"
    # paths from a configuration are absolute by now
    start = "; relative paths start at the folder of the configuration" if os.path.isabs(path) else ""
    return f": there is no such file or folder{start}"


def _make_source(url: str, name: str, format_: str) -> Source:
    if PurePosixPath(name).suffix.lower() in (*ARCHIVE_ENDINGS, ".xz"):
        raise ConfigurationError(
            f"input.path: '{name}' is an archive, or compressed in an unsupported way: unpack it first"
        )
    kind = detect_format(url) if format_ == "auto" else resolve_format(format_)
    if kind is None:
        raise ConfigurationError(
            f"input.format: cannot tell the format of '{name}' from its file name; set it to one of "
            f"{', '.join(FORMATS)}"
        )
    return Source(url, name, kind)


# Folders written by ``save_to_disk`` of Hugging Face's ``datasets``: Arrow files and metadata files.

METADATA_FILES = ("state.json", "dataset_info.json", "dataset_dict.json")


def _drop_dataset_metadata(names: Sequence[str], open_: Callable[[str], Any]) -> list[str]:
    """Drop the metadata and cache files of data sets; ``ConfigurationError`` if a listed file or split is missing."""
    existing, dropped = set(names), set[str]()
    for name in names:
        folder, _, kind = name.rpartition("/")
        listed = _read_listed_files(kind, name, open_) if kind in METADATA_FILES else None
        if listed is None:
            continue
        dropped.add(name)
        due = [f"{folder}/{file}" for file in listed]
        if missing := [file for file in due if file not in existing]:
            raise ConfigurationError(
                f"input.path: '{missing[0].removeprefix(folder + '/')}' is missing from the data set in "
                f"'{PurePosixPath(folder).name}': copy the whole folder that save_to_disk wrote, or name the "
                ".arrow files themselves"
            )
        if kind == METADATA_FILES[0]:
            pattern = re.compile(rf"{re.escape(folder)}/cache-\w+\.arrow")
            # caches of ``map``, ``filter`` and ``shuffle``: changed copies of the rows, or row indices
            dropped |= set(filter(pattern.fullmatch, existing)).difference(due)
    return [name for name in names if name not in dropped]


def _read_listed_files(kind: str, name: str, open_: Callable[[str], Any]) -> list[str] | None:
    """Read which files a metadata file lists; None if the file only happens to have such a name."""
    state, info, _ = METADATA_FILES
    try:
        with open_(name) as file:
            metadata = json.loads(file.read(16 * CHUNK_BYTES))
        if kind == info:
            return [] if "features" in metadata else None
        if kind == state:
            return [str(file["filename"]) for file in metadata["_data_files"]]
        return [f"{split}/{state}" for split in metadata["splits"]]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return None
