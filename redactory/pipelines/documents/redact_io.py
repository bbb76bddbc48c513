"""Input and output of a copy: it is written beside its destination and renamed when it is complete.

``OUT.unfinished`` holds what a killed copy needs to resume: the spans of each chunk of rows, without text, under a
keyed digest of the texts and settings, so that spans of one text are never applied to another.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import json
import lzma
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from zstandard import ZstdCompressor

from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import (
    PUBLIC_FILE,
    file_lock,
    make_private_folder,
    parse_temporary_name,
    read_json,
    remove_leftovers,
    remove_path,
    sync_to_disk,
    write_json,
)
from redactory.pipelines.json_paths import KeyedText
from redactory.pipelines.readers import Source, find_sources_by_path
from redactory.pipelines.readers.files import (
    ARCHIVE_ENDINGS,
    METADATA_FILES,
    detect_format,
    escape_unprintable,
    is_hidden,
    is_link_outside,
    resolve_format,
)
from redactory.pipelines.readers.formats import CHUNK_BYTES, FORMATS
from redactory.pipelines.store import Store, is_url

PIPE = "-"
_COMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    # no name or time, so that the same input gives the same bytes
    ".gz": lambda file: gzip.GzipFile("", "wb", fileobj=file, mtime=0),
    ".zst": lambda file: ZstdCompressor().stream_writer(file, closefd=False),
    ".bz2": partial(bz2.BZ2File, mode="wb"),
    ".xz": partial(lzma.LZMAFile, mode="wb"),
}
"""Compressors of copies by the ending of their name."""
_FOREIGN_ENDINGS = (".xls", ".xlsm", ".xlsb", ".ods", ".doc", ".docm", ".odt", ".rtf", ".pst")
"""Endings of formats that are not written."""
QUARANTINE_SUFFIX = ".quarantine.jsonl"
UNKNOWN_FORMAT = "unknown_format"
"""Why a file in a folder is not copied."""
_FORMAT = "redactory-copy/1"
_STATE, _LOCK = "state.json", "lock"


# Input.


@dataclass(frozen=True)
class StandardInput(Source):
    """Standard input in an unnamed temporary file, since it is read twice and some formats start at the end."""

    buffers: list[BinaryIO] = field(default_factory=list)

    @contextmanager
    def open(self, **_: Any) -> Iterator[BinaryIO]:
        """Open the whole input at its beginning."""
        if not self.buffers:
            self.buffers.append(cast(BinaryIO, tempfile.TemporaryFile(prefix="redactory-")))  # noqa: SIM115
            shutil.copyfileobj(sys.stdin.buffer, self.buffers[0], CHUNK_BYTES)
            self.buffers[0].flush()
        # whoever reads may close it
        with open(os.dup(self.buffers[0].fileno()), "rb") as file:
            file.seek(0)
            yield file


def resolve_input_path(input_path: str) -> str:
    """Resolve each ``..`` of the input path like the system does: after a link, relative to its target."""
    if input_path == PIPE or is_url(input_path) or ".." not in Path(input_path).parts:
        return input_path
    folder, name = os.path.split(input_path.rstrip("/"))
    return os.path.realpath(input_path) if name == ".." else os.path.join(os.path.realpath(folder), name)


def find_copy_sources(input_path: str, format_: str) -> tuple[list[Source], bool]:
    """Return the files to copy, and whether ``input_path`` is a folder; its files get relative names."""
    if input_path == PIPE:
        return [StandardInput(PIPE, "standard input", "jsonl" if format_ == "auto" else resolve_format(format_))], False
    sources = find_sources_by_path((input_path,), format_)
    whole_path = input_path.partition("://")[2] if is_url(input_path) else os.path.abspath(input_path)
    root = escape_unprintable(whole_path).strip("/")
    relative_names = [source.name.strip("/").removeprefix(root).strip("/") for source in sources]
    if relative_names == [""]:
        return [replace(sources[0], name=PurePosixPath(sources[0].name).name)], False
    if len(set(relative_names)) < len(relative_names) or any("*" in part for part in root.split("/")):
        raise ConfigurationError(f"'{input_path}': give one file, or a folder")
    return [replace(source, name=name) for source, name in zip(sources, relative_names, strict=True)], True


# Output.


def require_separate_output(input_path: str, out: str) -> None:
    """Raise ``ConfigurationError`` if ``out`` exists, or is ``input_path`` or inside it."""
    if out == PIPE or is_url(out):
        return
    output = Path(out)
    work = _get_work_folder(out)
    remove_leftovers(work.parent, glob.escape(work.name))
    _reject_foreign_work_folder(work)
    if not (work / _STATE).is_file():
        _require_absent_output(out)
    if input_path != PIPE and not is_url(input_path) and output.resolve().is_relative_to(Path(input_path).resolve()):
        raise ConfigurationError(f"--out: {out} is inside the input: choose a folder outside of it")
    if not output.absolute().parent.is_dir():
        raise ConfigurationError(f"--out: the folder {output.parent} does not exist: create it first")
    if not os.access(output.absolute().parent, os.W_OK | os.X_OK):
        raise _make_unwritable_error(output.parent)


def _make_unwritable_error(folder: Path) -> ConfigurationError:
    return ConfigurationError(
        f"--out: the folder {folder} is not writable (no permission, or mounted read-only); choose another one"
    )


def require_matching_format(out: str, sources: Sequence[Source], is_folder: bool) -> None:
    """Raise ``ConfigurationError`` if the name ``out`` implies another format than the copy has."""
    if out == PIPE:
        return
    path = PurePosixPath(out.rstrip("/"))
    ending = path.suffix.lower()
    base_path = path.with_suffix("") if ending in _COMPRESSORS else path
    if ending in ARCHIVE_ENDINGS:
        raise ConfigurationError(f"--out: archives are not written: give {path.stem}, or {path.stem}.gz")
    named_format = detect_format(base_path.name)
    if is_folder:
        if named_format or base_path != path:
            raise ConfigurationError(f"--out: {path.name} names a file; the copy of a folder is a folder")
        return
    written_format = sources[0].reader.written_format or sources[0].format
    suffix = base_path.suffix.lower()
    if suffix in _FOREIGN_ENDINGS or named_format not in (None, written_format):
        suggestion = base_path.with_suffix(FORMATS[written_format].endings[0]).name + path.name[len(base_path.name) :]
        raise ConfigurationError(
            f"--out: {path.name} names a {named_format or suffix} file, but a copy of {sources[0].name} is written as "
            f"{written_format}: give {suggestion}"
        )


def _require_absent_output(out: str) -> None:
    if os.path.lexists(out):
        raise ConfigurationError(f"--out: {out} already exists: remove it, or give another name")


@dataclass(frozen=True)
class UnfinishedCopy:
    """A copy in progress: its files in ``staging``, its quarantine, and the spans found so far."""

    folder: Path
    copy_hash: str
    """Identifies the input and all options of the copy."""
    span_hash: str
    """Identifies the settings that decide about spans."""
    salt: bytes

    @classmethod
    def open(cls, folder: Path, copy_hash: str = "", span_hash: str = "") -> UnfinishedCopy:
        """Open the copy in ``folder``, or begin one."""
        if not (folder / _STATE).exists():
            write_json(folder / _STATE, {"format": _FORMAT, "salt": secrets.token_hex(16)})
        return cls(folder, copy_hash, span_hash, bytes.fromhex(read_json(folder / _STATE)["salt"]))

    def restart(self) -> None:
        """Remove everything but the spans."""
        remove_leftovers(self.folder, recursive=True)
        remove_path(self.staging_path)
        self.quarantine_path.write_bytes(b"")

    @property
    def staging_path(self) -> Path:
        """The file or folder that becomes the output."""
        return self.folder / "out"

    @property
    def quarantine_path(self) -> Path:
        """The list of rows that are left out."""
        return self.folder / "quarantine.jsonl"

    def finish(self, out: str, summary: dict[str, Any]) -> None:
        """Record ``summary`` and :meth:`publish`; if killed right after, the next call finds the summary."""
        inode = self.staging_path.stat().st_ino if self.staging_path.exists() else None
        done = {"copy": self.copy_hash, "inode": inode, "summary": summary}
        write_json(self.folder / _STATE, {"format": _FORMAT, "salt": self.salt.hex(), "done": done})
        self.publish(out)

    def load_summary(self, out: str) -> dict[str, Any] | None:
        """Return the summary of the copy at ``out`` if its call was killed at the end, or None."""
        done = read_json(self.folder / _STATE).get("done")
        if done is None or self.staging_path.exists() or not os.path.lexists(out):
            return None
        is_same = done["copy"] == self.copy_hash and done["inode"] == os.lstat(out).st_ino
        return cast(dict[str, Any], done["summary"]) if is_same else None

    def get_spans_path(self, texts: Sequence[str]) -> Path:
        """Return the path of the spans in these texts; an earlier call may have written them."""
        digest = hashlib.blake2b(self.span_hash.encode(), key=self.salt, digest_size=16)
        for text in texts:
            # the key before a text in JSON counts, since it is searched with it
            for part in (text.key if isinstance(text, KeyedText) else "", text):
                data = part.encode("utf-8", "surrogatepass")
                digest.update(len(data).to_bytes(8) + data)
        return self.folder / "spans" / f"{digest.hexdigest()}.json"

    def publish(self, out: str) -> None:
        """Rename the output and its quarantine; an old quarantine is removed if there is no new one."""
        if out == PIPE:
            if self.staging_path.exists():
                _write_standard_output(self.staging_path)
            return
        has_quarantine = self.quarantine_path.stat().st_size > 0
        quarantine_path = out.rstrip("/") + QUARANTINE_SUFFIX
        if is_url(out):
            self._upload(out.rstrip("/"), has_quarantine)
            return
        for path in (self.staging_path, *self.staging_path.rglob("*")):
            if path.exists():
                sync_to_disk(path)
        if has_quarantine:
            sync_to_disk(self.quarantine_path)
            self.quarantine_path.replace(quarantine_path)
        else:
            Path(quarantine_path).unlink(missing_ok=True)
        if self.staging_path.exists():
            # never overwrite what somebody else wrote there meanwhile
            _require_absent_output(out)
            self.staging_path.rename(out)
        sync_to_disk(Path(out).absolute().parent)

    def _upload(self, out: str, has_quarantine: bool) -> None:
        base, _, name = out.rpartition("/")
        store = Store.from_url(base)
        for path in sorted(p for p in (self.staging_path, *self.staging_path.rglob("*")) if p.is_file()):
            store.upload_file(path, "/".join((name, *path.relative_to(self.staging_path).parts)))
        if has_quarantine:
            store.upload_file(self.quarantine_path, name + QUARANTINE_SUFFIX)
        elif store.get_file_size(name + QUARANTINE_SUFFIX) is not None:
            store.remove_file(name + QUARANTINE_SUFFIX)


@contextmanager
def open_unfinished_copy(
    out: str, sources: Sequence[Source], identity: Mapping[str, Any], options: Any = None
) -> Iterator[UnfinishedCopy]:
    """Yield the copy of ``sources`` in progress beside ``out``, locked for one call; remove it once it is finished.

    The next call reuses the spans of equal ``identity``, or with equal ``options`` learns that the copy is complete.
    Raises ``ConfigurationError`` if something else is in its place, ``RunStateError`` if another call has it.
    """
    if out == PIPE or is_url(out):
        with tempfile.TemporaryDirectory(prefix="redactory-") as folder:
            copy = UnfinishedCopy.open(Path(folder))
            copy.restart()
            yield copy
        return
    # a pipe cannot be read again: a random value never matches
    sizes = [secrets.token_hex() if source.url == PIPE else source.size() for source in sources]
    copy_hash = json_sha256([dict(identity), options, [source.url for source in sources], sizes])
    work = _get_work_folder(out)
    _reject_foreign_work_folder(work)
    try:
        make_private_folder(work)
    except PermissionError:
        raise _make_unwritable_error(work.parent) from None
    with file_lock(work / _LOCK, out):
        copy = UnfinishedCopy.open(work, copy_hash, json_sha256(dict(identity)))
        if copy.load_summary(out) is None:
            _require_absent_output(out)
            copy.restart()
        yield copy
        try:
            for path in (work / "spans", copy.quarantine_path, work):
                remove_path(path)
        except OSError:
            # without the state the next call could not tell that this copy is complete; it removes what is left
            if (work / _STATE).exists():
                raise


def _get_work_folder(out: str) -> Path:
    return Path(f"{out.rstrip('/')}.unfinished").absolute()


def _reject_foreign_work_folder(work: Path) -> None:
    """Raise ``ConfigurationError`` if a folder exists that is not ours: it would be lost."""
    if not os.path.lexists(work):
        return
    try:
        # a call that was killed at its very beginning left no state
        is_empty = all(path.name == _LOCK or parse_temporary_name(path.name) == _STATE for path in work.iterdir())
        is_ours = is_empty or read_json(work / _STATE)["format"] == _FORMAT
    except (OSError, ValueError, TypeError, KeyError):
        is_ours = False
    if work.is_symlink() or not is_ours:
        raise ConfigurationError(
            f"--out: {work.name} is needed for the unfinished copy, but something else is there: move it, "
            "or give another --out"
        )


@contextmanager
def open_compressed(path: Path, name: str) -> Iterator[BinaryIO]:
    """Open ``path`` for writing, compressed according to the ending of ``name``."""
    compress = _COMPRESSORS.get(PurePosixPath(name).suffix.lower(), nullcontext)
    with path.open("wb") as file, compress(file) as target:
        yield target


def _write_standard_output(path: Path) -> None:
    """Write the file to standard output; ``InputError`` gives the reason if this fails."""
    try:
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer, CHUNK_BYTES)
        sys.stdout.buffer.flush()
    except OSError as error:
        # discard the buffer, because the interpreter would write it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = "was closed by its reader" if isinstance(error, BrokenPipeError) else f"failed: {error.strerror}"
        raise InputError(f"standard output {reason}: the copy is incomplete") from None


# Metadata of a data set's folder.


def copy_dataset_metadata(
    input_folder: Path, out: Path, sources: Sequence[Source], columns: Mapping[str, str | None]
) -> None:
    """Copy the metadata files of Hugging Face data sets in ``input_folder`` beside the copies of ``sources``.

    Only the column types of a description are copied, because the rest is prose. ``columns`` became text, or were
    dropped (None).
    """
    source_names = {source.name for source in sources}
    for metadata_file in sorted(input_folder.rglob("*.json")):
        name = metadata_file.relative_to(input_folder).as_posix()
        # a file of rows may have such a name
        if (
            metadata_file.name not in METADATA_FILES
            or name in source_names
            or is_hidden(name)
            or is_link_outside(str(metadata_file), str(input_folder))
        ):
            continue
        value = read_json(metadata_file)
        if metadata_file.name == "dataset_info.json":
            types = {key: type_ for key, type_ in value["features"].items() if columns.get(key, "") is not None}
            types |= {key: {"dtype": "string", "_type": "Value"} for key in types.keys() & columns.keys()}
            value = {"features": types}
        elif metadata_file.name == "state.json":
            value["_fingerprint"] = json_sha256([value.get("_fingerprint"), "redacted"])[:16]
        write_json(out / name, value, PUBLIC_FILE)


def format_quarantine_line(file: str, row: int, reason: str) -> str:
    """Format a line of the quarantine."""
    return json.dumps({"file": file, "row": row, "reason": reason}, ensure_ascii=False) + "\n"
