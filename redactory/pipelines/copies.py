"""Where a copy of files is read from and written to: beside its place until it is whole, then by a rename.

What an unfinished copy needs to go on lies in ``OUT.unfinished``: what was found in each chunk of rows, with
a keyed digest of its texts, so that nothing found in one text is ever applied to another.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import io
import json
import lzma
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from redactory.foundation.canonical import hash_of
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import (
    PUBLIC_FILE,
    TEMPORARY_PREFIX,
    left_of,
    make_private_folder,
    only_one,
    read_json,
    remove,
    remove_leftovers,
    sync,
    write_json,
    write_text,
)
from redactory.pipelines.readers import Source, find_by_path
from redactory.pipelines.readers.files import (
    ARCHIVES,
    NOTES,
    format_named,
    format_of,
    is_hidden,
    leads_outside,
    passed_over,
    printable,
)
from redactory.pipelines.readers.formats import CHUNK, FORMATS
from redactory.pipelines.store import Store, is_url

PIPE = "-"
_PACKED = (".gz", ".zst", ".bz2", ".xz")
"""Endings by which a copy is compressed."""
QUARANTINE = ".quarantine.jsonl"
UNKNOWN_FORMAT = "unknown_format"
"""Why a file in a folder is not copied."""
_FORMAT = "redactory-copy/1"
_HEADER, _LOCK, _DONE = "header.json", "lock", "done.json"


# What is read.


@dataclass(frozen=True)
class Pipe(Source):
    """Standard input, kept in a temporary file without a name, which is gone when this process is.

    It is read twice, a row may be longer than any look ahead, and some formats begin at their end.
    """

    kept: list[BinaryIO] = field(default_factory=list)

    @classmethod
    def named(cls, format_: str) -> Pipe:
        """As JSON lines where nothing else is said."""
        return cls(PIPE, "standard input", "jsonl" if format_ == "auto" else format_named(format_))

    @contextmanager
    def open(self, **_: Any) -> Iterator[BinaryIO]:
        """All of it, from its beginning."""
        if not self.kept:
            self.kept.append(cast(BinaryIO, tempfile.TemporaryFile(prefix="redactory-")))  # noqa: SIM115
            shutil.copyfileobj(sys.stdin.buffer, self.kept[0], CHUNK)
            self.kept[0].flush()
        # whoever reads may close it
        with open(os.dup(self.kept[0].fileno()), "rb") as file:
            file.seek(0)
            yield file


def located(given: str) -> str:
    """The input's path with each ``..`` taken as the system takes it: behind a link, where that leads."""
    if given == PIPE or is_url(given) or ".." not in Path(given).parts:
        return given
    folder, name = os.path.split(given.rstrip("/"))
    return os.path.realpath(given) if name == ".." else os.path.join(os.path.realpath(folder), name)


def sources_of(given: str, format_: str) -> tuple[list[Source], bool]:
    """The files to copy, and whether ``given`` is a folder: then each is named as it is below it."""
    if given == PIPE:
        return [Pipe.named(format_)], False
    found = find_by_path((given,), format_)
    root = printable(given.partition("://")[2] if is_url(given) else os.path.abspath(given)).strip("/")
    below = [one.name.strip("/").removeprefix(root).strip("/") for one in found]
    if below == [""]:
        return [replace(found[0], name=PurePosixPath(found[0].name).name)], False
    if len(set(below)) < len(below) or any("*" in part for part in root.split("/")):
        raise ConfigurationError(f"'{given}': give one file, or a folder")
    return [replace(one, name=name) for one, name in zip(found, below, strict=True)], True


def not_copied(folder: str) -> dict[str, str]:
    """The files in the folder ``given`` that no copy is made of, by name, each with the reason."""
    return dict.fromkeys(passed_over(folder), UNKNOWN_FORMAT)


# What is written.


def require_apart(given: str, out: str) -> None:
    """``ConfigurationError`` where ``out`` is there, or is or lies in ``given``."""
    if out == PIPE or is_url(out):
        return
    place = Path(out)
    work = _work_of(out)
    for left in work.parent.glob(f"{TEMPORARY_PREFIX}*-{glob.escape(work.name)}"):
        # of a call that was killed while it took its own folder away
        if (left / _DONE).is_file() and not work.exists():
            left.rename(work)
    remove_leftovers(work.parent, glob.escape(work.name))
    if not (work / _DONE).is_file():
        _require_free(out)
    if given != PIPE and not is_url(given) and place.resolve().is_relative_to(Path(given).resolve()):
        raise ConfigurationError(f"--out: {out} is inside the input: choose a folder outside of it")
    if not place.absolute().parent.is_dir():
        raise ConfigurationError(f"--out: the folder {place.parent} does not exist: create it first")
    if not os.access(place.absolute().parent, os.W_OK | os.X_OK):
        raise _closed(place.parent)


def _closed(folder: Path) -> ConfigurationError:
    return ConfigurationError(
        f"--out: the folder {folder} is not writable (no permission, or mounted read-only); choose another one"
    )


def require_named_as_written(out: str, sources: Sequence[Source], inside: bool) -> None:
    """``ConfigurationError`` where the name ``out`` says another format than a copy of ``sources`` has."""
    if out == PIPE:
        return
    path = PurePosixPath(out.rstrip("/"))
    ending = path.suffix.lower()
    plain = path.with_suffix("") if ending in _PACKED else path
    if ending in ARCHIVES:
        raise ConfigurationError(f"--out: archives are not written: give {path.stem}, or {path.stem}.gz")
    named_format = format_of(plain.name)
    if inside:
        if named_format or plain != path:
            raise ConfigurationError(f"--out: {path.name} names a file; the copy of a folder is a folder")
        return
    # of a PDF file its text is written
    written = "text" if sources[0].format == "pdf" else sources[0].format
    if named_format not in (None, written):
        mend = plain.with_suffix(FORMATS[written].endings[0]).name + path.name[len(plain.name) :]
        raise ConfigurationError(
            f"--out: {path.name} names a {named_format} file, but a copy of {sources[0].name} is written as "
            f"{written}: give {mend}"
        )


def _require_free(out: str) -> None:
    if os.path.lexists(out):
        raise ConfigurationError(f"--out: {out} already exists: remove it, or give another name")


@dataclass(frozen=True)
class Unfinished:
    """A copy that is being made: the files of it in ``staged``, its quarantine, what was found so far."""

    folder: Path
    of: str
    """Tells what is copied from any other input."""
    salt: bytes = b""

    @classmethod
    def resume(cls, folder: Path, of: str, made: Mapping[str, Any]) -> Unfinished:
        """Go on in ``folder`` where it was ``made`` with the same; begin anew where it was not."""
        header, made = folder / _HEADER, {"format": _FORMAT, **made}
        before = read_json(header) if header.exists() else {}
        if any(before.get(key) != value for key, value in made.items()):
            remove(folder / "found")
            before = made | {"salt": secrets.token_hex(16)}
            write_json(header, before)
        copy = cls(folder, of, bytes.fromhex(before["salt"]))
        remove_leftovers(folder, deep=True)
        for left in (copy.staged, folder / _DONE):
            remove(left)
        copy.quarantine.write_bytes(b"")
        return copy

    @property
    def staged(self) -> Path:
        """The file or the folder that becomes the output."""
        return self.folder / "out"

    @property
    def quarantine(self) -> Path:
        """The list of the rows that are left out."""
        return self.folder / "quarantine.jsonl"

    def finish(self, out: str, summary: dict[str, Any]) -> None:
        """:meth:`publish`; a call that comes after one that was killed just behind it finds ``summary``."""
        place = self.staged.stat().st_ino if self.staged.exists() else None
        write_json(self.folder / _DONE, {"format": _FORMAT, "of": self.of, "place": place, "summary": summary})
        self.publish(out)

    def finished(self, out: str) -> dict[str, Any] | None:
        """The summary of the copy at ``out`` where the call that made it was killed at its end, or None."""
        done = self.folder / _DONE
        if not done.is_file() or self.staged.exists() or not os.path.lexists(out):
            return None
        kept = read_json(done)
        is_it = kept["of"] == self.of and kept["place"] == os.lstat(out).st_ino
        return cast(dict[str, Any], kept["summary"]) if is_it else None

    def chunk(self, file: int, number: int, texts: Sequence[str]) -> Chunk:
        """The place of what was found in these texts, chunk ``number`` of a file."""
        digest = hashlib.blake2b(key=self.salt, digest_size=16)
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8) + data)
        return Chunk(self.folder / "found" / f"{file:05d}" / f"{number}.json", digest.hexdigest())

    def publish(self, out: str) -> None:
        """Give the output its name, and its quarantine another beside; without one an old list goes."""
        has_quarantine = self.quarantine.stat().st_size > 0
        listed = out.rstrip("/") + QUARANTINE
        if is_url(out):
            self._upload(out.rstrip("/"), has_quarantine)
            return
        for path in (self.staged, *self.staged.rglob("*")):
            if path.exists():
                sync(path)
        if has_quarantine:
            sync(self.quarantine)
            self.quarantine.replace(listed)
        else:
            Path(listed).unlink(missing_ok=True)
        if self.staged.exists():
            # whoever wrote there meanwhile keeps what is theirs
            _require_free(out)
            self.staged.rename(out)
        sync(Path(out).absolute().parent)

    def _upload(self, out: str, has_quarantine: bool) -> None:
        base, _, name = out.rpartition("/")
        store = Store.at(base)
        for path in sorted(p for p in (self.staged, *self.staged.rglob("*")) if p.is_file()):
            store.put(path, "/".join((name, *path.relative_to(self.staged).parts)))
        if has_quarantine:
            store.put(self.quarantine, name + QUARANTINE)
        elif store.size(name + QUARANTINE) is not None:
            store.remove(name + QUARANTINE)


@dataclass(frozen=True)
class Chunk:
    """The place of what was found in some texts, of which it has a keyed digest."""

    place: Path
    digest: str

    def saved(self) -> Any:
        """What an earlier call found in these very texts; None without one."""
        try:
            kept = read_json(self.place)
        except (OSError, ValueError):
            return None
        return kept["found"] if kept["texts"] == self.digest else None

    def save(self, found: Any) -> None:
        """Keep what was found."""
        # without indentation, which the fast encoder does not know
        write_text(self.place, json.dumps({"texts": self.digest, "found": found}))


@contextmanager
def unfinished(
    out: str, sources: Sequence[Source], made: Mapping[str, Any], written: Any = None
) -> Iterator[Unfinished]:
    """A copy of ``sources``, found with ``made`` and ``written`` so: beside ``out``, for one call alone.

    The next call goes on with what was found, or learns that the copy is whole.  It is gone once the copy is
    finished.  ``ConfigurationError`` where something else lies in its place, ``RunStateError`` where another
    call has it.
    """
    if out == PIPE or is_url(out):
        with tempfile.TemporaryDirectory(prefix="redactory-") as folder:
            yield Unfinished.resume(Path(folder), "", made)
        return
    # what a pipe said is gone, and another may say something else
    known = [secrets.token_hex() if one.url == PIPE else one.size() for one in sources]
    work, of = _work_of(out), hash_of([dict(made), written, [one.url for one in sources], known])
    _require_ours(work)
    try:
        make_private_folder(work)
    except PermissionError:
        raise _closed(work.parent) from None
    with only_one(work / _LOCK, out):
        left = Unfinished(work, of)
        if left.finished(out) is None:
            _require_free(out)
            left = Unfinished.resume(work, of, made)
        yield left
        for path in (work / "found", left.quarantine, work):
            remove(path)


def _work_of(out: str) -> Path:
    return Path(f"{out.rstrip('/')}.unfinished").absolute()


def _require_ours(work: Path) -> None:
    """``ConfigurationError`` where a folder is there that no copy was begun in: it would be lost."""
    if not os.path.lexists(work):
        return
    marks = (work / _HEADER, work / _DONE)
    try:
        # a call that was killed at its very beginning left no header
        is_bare = all(path.name == _LOCK or left_of(path.name) == _HEADER for path in work.iterdir())
        is_ours = is_bare or read_json(next(filter(Path.exists, marks)))["format"] == _FORMAT
    except (OSError, ValueError, TypeError, KeyError, StopIteration):
        is_ours = False
    if work.is_symlink() or not is_ours:
        raise ConfigurationError(
            f"--out: {work.name} is needed for the unfinished copy, but something else is there: move it, "
            "or give another --out"
        )


@contextmanager
def packed(path: Path, name: str) -> Iterator[BinaryIO]:
    """The file ``path`` to be written, compressed as ``name`` ends."""
    ending = PurePosixPath(name).suffix.lower()
    with path.open("wb") as file:
        if ending == ".gz":
            # no name and no time: the same input gives the same bytes
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped:
                yield cast(BinaryIO, zipped)
        elif ending == ".zst":
            from zstandard import ZstdCompressor

            with ZstdCompressor().stream_writer(file, closefd=False) as stream:
                yield cast(BinaryIO, stream)
        elif ending in _PACKED:
            with (bz2.BZ2File if ending == ".bz2" else lzma.LZMAFile)(file, "wb") as zipped_too:
                yield cast(BinaryIO, zipped_too)
        else:
            yield file


class _Written(io.RawIOBase):
    """What is written to: its refusal is told as its own, not as one of the file that is read meanwhile."""

    def __init__(self, target: BinaryIO, name: str) -> None:
        self._target, self._name = target, name

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """All of ``data``; ``InputError`` says why it could not be."""
        with self._told():
            return self._target.write(data)

    def flush(self) -> None:
        """What was written so far."""
        with self._told():
            self._target.flush()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise InputError(f"{self._name} was closed by its reader: the copy is incomplete") from None
        except OSError as error:
            raise InputError(f"{self._name} cannot be written: {error.strerror}") from None


@contextmanager
def standard_output() -> Iterator[BinaryIO]:
    """Standard output, of which all is written at the end."""
    target = _Written(sys.stdout.buffer, "standard output")
    try:
        yield cast(BinaryIO, target)
        target.flush()
    except InputError:
        _give_up_output()
        raise


def _give_up_output() -> None:
    """What is left in the buffer goes nowhere: the interpreter would try it again at its end."""
    try:
        place = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, place)
    os.close(nowhere)


# What a data set's folder says of itself.


def copy_notes(given: Path, out: Path, sources: Sequence[Source], columns: Mapping[str, str | None]) -> None:
    """The notes of data sets of Hugging Face in the folder ``given`` beside the copies of ``sources``.

    Of descriptions the types of columns alone: the rest is words.  ``columns`` became text, or (None) went.
    """
    rows = {source.name for source in sources}
    for note in sorted(given.rglob("*.json")):
        name = note.relative_to(given).as_posix()
        # a file of rows may have such a name
        if note.name not in NOTES or name in rows or is_hidden(name) or leads_outside(str(note), str(given)):
            continue
        value = read_json(note)
        if note.name == "dataset_info.json":
            types = {key: kept for key, kept in value["features"].items() if columns.get(key, "") is not None}
            types |= {key: {"dtype": "string", "_type": "Value"} for key in types.keys() & columns.keys()}
            value = {"features": types}
        elif note.name == "state.json":
            value["_fingerprint"] = hash_of([value.get("_fingerprint"), "redacted"])[:16]
        write_json(out / name, value, PUBLIC_FILE)


def noted(file: str, row: int, reason: str) -> str:
    """A line of the quarantine."""
    return json.dumps({"file": file, "row": row, "reason": reason}, ensure_ascii=False) + "\n"
