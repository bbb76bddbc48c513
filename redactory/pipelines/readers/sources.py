"""Finding the files of an input: paths, folders, globs and any URL that fsspec knows."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from redactory.foundation.errors import ConfigurationError, InputError

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
_COMPRESSED = (".gz", ".zst")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """One file of the input: what fsspec opens, the name that users see, its format."""

    url: str
    name: str
    format: str

    @contextmanager
    def open(self, *, decompress: bool = True) -> Iterator[BinaryIO]:
        """The file's bytes, decompressed by its ending; ``InputError`` where it cannot be read."""
        import fsspec

        try:
            with fsspec.open(self.url, "rb", compression="infer" if decompress else None) as file:
                yield cast(BinaryIO, file if hasattr(file, "peek") else io.BufferedReader(file, _CHUNK))
        except (OSError, EOFError) as error:
            raise InputError(f"{self.name} cannot be read: {type(error).__name__}") from None


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
        urls.update(matches)
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


def _expand(path: str) -> Iterator[tuple[str, str]]:
    import fsspec

    try:
        filesystem, inner = fsspec.core.url_to_fs(path)
        if filesystem.isdir(inner):
            names = [n for n in filesystem.find(inner) if _format_of(n) and not _hidden(n[len(inner) :])]
        elif any(sign in path for sign in "*?["):
            names = [
                n
                for n in filesystem.glob(inner)
                if filesystem.isfile(n) and not _hidden(PurePosixPath(n).name)
            ]
        else:
            names = [inner] if filesystem.exists(inner) else []
    except (ValueError, ImportError, OSError) as error:
        raise ConfigurationError(f"input.path: '{path}' cannot be opened: {type(error).__name__}") from None
    for name in sorted(names):
        yield filesystem.unstrip_protocol(name), name


def _hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in PurePosixPath(relative).parts)


def _format_of(name: str) -> str | None:
    path = PurePosixPath(name)
    if path.suffix in _COMPRESSED:
        path = path.with_suffix("")
    return FORMATS.get(path.suffix.lower())


def _source(url: str, name: str, format_: str) -> Source:
    kind = _format_of(url) if format_ == "auto" else format_
    if kind is None:
        raise ConfigurationError(
            f"input.format: the format of '{name}' cannot be told from its ending; "
            "set it to one of jsonl, parquet, csv, tsv, text"
        )
    return Source(url, name, kind)
