"""Finding the files of an input: paths, folders, globs and any URL that fsspec knows."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.readers.compression import ENDINGS, broken, decompressed

FORMATS: dict[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
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
    """One file of the input: what fsspec opens, the name that users see, its format."""

    url: str
    name: str
    format: str

    @contextmanager
    def open(self, *, decompress: bool = True) -> Iterator[BinaryIO]:
        """The file's bytes, decompressed by its ending; ``InputError`` where it is broken or cut off."""
        try:
            with self._raw() as file:
                peeks = hasattr(file, "peek")
                buffered = cast(io.BufferedReader, file if peeks else io.BufferedReader(file, _CHUNK))
                yield decompressed(buffered, self.url) if decompress else buffered
        except broken() as error:
            what = "it is cut off" if isinstance(error, EOFError) else type(error).__name__
            raise InputError(f"{self.name} cannot be read: {what}") from None

    def _raw(self) -> Any:
        if self.url.startswith(_LOCAL):
            # opened here: to fsspec, some signs in a file's name are chains of file systems
            return open(self.url.removeprefix(_LOCAL), "rb")
        import fsspec

        return fsspec.open(self.url, "rb")


def find_sources(paths: tuple[str, ...], format_: str) -> list[Source]:
    """The files that ``paths`` name, in a fixed order.

    A folder stands for every file below it with a known ending.  ``ConfigurationError`` where a path
    names nothing, or a file's format can neither be told from its ending nor is given.
    """
    urls: dict[str, str] = {}
    for path in paths:
        matches = list(_expand(path))
        if not matches:
            raise ConfigurationError(f"input.path: nothing is there to read at '{path}'")
        urls.update((url, _printable(name)) for url, name in matches)
    # a file's name goes into ids and messages: short where that is clear, else the whole path
    short = Counter(PurePosixPath(name).name for name in urls.values())
    return [
        _source(url, last if short[last := PurePosixPath(name).name] == 1 else name, format_)
        for url, name in urls.items()
    ]


def fingerprint(source: Source) -> dict[str, Any]:
    """The name, size in bytes and sha256 of a file as it lies on the disk."""
    digest, size = hashlib.sha256(), 0
    with source.open(decompress=False) as file:
        while block := file.read(_CHUNK):
            digest.update(block)
            size += len(block)
    return {"path": source.name, "bytes": size, "sha256": digest.hexdigest()}


def size_of(source: Source) -> int | None:
    """The bytes of a file as it lies on the disk, without reading it; None where that cannot be told."""
    if source.url.startswith(_LOCAL):
        return os.path.getsize(source.url.removeprefix(_LOCAL))
    filesystem, inner = _place(source.url)
    size: int | None = filesystem.size(inner)
    return size


def _expand(path: str) -> Iterator[tuple[str, str]]:
    try:
        filesystem, inner = _place(path)
        if filesystem.isdir(inner):
            names = [n for n in filesystem.find(inner) if _format_of(n) and not is_hidden(n[len(inner) :])]
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
        raise ConfigurationError(f"input.path: '{path}' cannot be opened: {type(error).__name__}") from None
    if irregular:
        # a pipe would be waited for, and an input is read twice
        raise ConfigurationError(
            f"input.path: '{_printable(irregular[0])}' is no file (a pipe, a device, a broken link)"
        )
    for name in sorted(names):
        yield filesystem.unstrip_protocol(name), name


def _place(path: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it."""
    import fsspec

    if "://" in path:
        filesystem, inner = fsspec.core.url_to_fs(path)
        return filesystem, inner
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


def _format_of(name: str) -> str | None:
    path = PurePosixPath(name)
    if path.suffix.lower() in ENDINGS:
        path = path.with_suffix("")
    return FORMATS.get(path.suffix.lower())


def _source(url: str, name: str, format_: str) -> Source:
    if PurePosixPath(name).suffix.lower() in _ARCHIVES:
        raise ConfigurationError(f"input.path: '{name}' is an archive of files; unpack it first")
    kind = _format_of(url) if format_ == "auto" else format_
    if kind is None:
        raise ConfigurationError(
            f"input.format: the format of '{name}' cannot be told from its ending; "
            "set it to one of jsonl, parquet, csv, tsv, text"
        )
    return Source(url, name, kind)
