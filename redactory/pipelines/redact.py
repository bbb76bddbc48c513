"""Redact: files in, the same files out, with every hit of the strict policy replaced and all else as it was.

Rows are taken in chunks: engines look for hits (in worker processes, if asked for), and this process puts the
replacements in and writes the rows in their order.  What was found in a finished chunk is kept, without text,
until the end, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from redactory.detectors.settings import kind_of
from redactory.foundation.canonical import hash_of
from redactory.foundation.errors import ConfigurationError, listed
from redactory.foundation.files import make_private_folder, read_json, write_json
from redactory.foundation.keys import load_digest_key
from redactory.foundation.processes import process_pool
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import DROP, KEEP, Config, Redaction
from redactory.pipelines.fields import Fields, NoText, leaves
from redactory.pipelines.loading import Given, load_for_texts, settings_of
from redactory.pipelines.personal import personal
from redactory.pipelines.policy import Policy
from redactory.pipelines.readers import Source, find_by_path
from redactory.pipelines.readers.shape import Row, Shape
from redactory.pipelines.readers.shape_documents import shape_of
from redactory.pipelines.sealed import wordless
from redactory.pipelines.store import Store, is_url
from redactory.pipelines.unmask import Vault
from redactory.redaction import MASK
from redactory.redaction.known import with_known
from redactory.redaction.replacements import REPLACEMENTS, Found, Put, Replacement, edits

PIPE = "-"
USUAL = ("text", "messages", "conversations")
"""Fields that are read where none is named."""
_AT_ONCE, _CHUNK = 500, 1 << 19
"""Rows and characters of a chunk."""
_LOOKED_AT = 1_000
"""Rows that columns are judged by."""


def redact(
    given: str | Path,
    out: str | Path,
    redaction: Redaction | Mapping[str, Any] | None = None,
    *,
    text: Sequence[str] = (),
    config: Given | None = None,
    format_: str = "auto",
    workers: int = 1,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write a copy of the file, folder or URL ``given`` to ``out`` with hits replaced; counts, no text.

    ``-`` is standard input or output.  What is set in ``redaction``, and the fields of ``text``, count before
    the configuration's ``redact`` and ``input.text``.  A row that cannot be processed is left out, and named
    with its reason in ``OUT.quarantine.jsonl``.  ``ConfigurationError`` for a path that names no field, for a
    column that looks personal and of which nothing is said, for an output that is there or lies in the input;
    ``InputError`` for a file that cannot be read.
    """
    given, out = str(given), str(out)
    asked = settings_of(Redaction, redaction)
    settings = load_for_texts(config, (given,), **({"text": tuple(text)} if text else {}))
    redaction = settings.redact.but(asked)
    _require_apart(given, out)
    sources, inside = _sources(given, format_)
    if redaction.vault is not None and redaction.replace != "pseudonym":
        raise ConfigurationError("vault: only pseudonyms can be unmasked: give --replace pseudonym")
    key = load_digest_key()
    kind = REPLACEMENTS[redaction.replace]
    if kind.needs_key and key.fresh:
        raise ConfigurationError(f"replace: {kind.name} needs a key that lasts: set REDACTORY_KEY")
    copy = _Copy(redaction, settings, kind(key, settings.detect.language), progress)
    return wordless("rows were redacted", copy.run, given, out, sources, inside, workers)


def _sources(given: str, format_: str) -> tuple[list[Source], bool]:
    """The files to copy, and whether ``given`` is a folder: then each is named as it is below it."""
    if given == PIPE:
        return [_Pipe.named(format_)], False
    found = find_by_path((given,), format_)
    root = (
        given.partition("://")[2].strip("/")
        if is_url(given)
        else Path(given).absolute().as_posix().strip("/")
    )
    below = [one.name.strip("/").removeprefix(root).strip("/") for one in found]
    if below == [""]:
        return [replace(found[0], name=PurePosixPath(found[0].name).name)], False
    if len(set(below)) < len(below) or any("*" in part for part in root.split("/")):
        raise ConfigurationError(f"'{given}': give one file, or a folder")
    return [replace(one, name=name) for one, name in zip(found, below, strict=True)], True


def _require_apart(given: str, out: str) -> None:
    """``ConfigurationError`` where ``out`` is there, or is or lies in ``given``."""
    if out == PIPE or is_url(out):
        return
    place = Path(out)
    if place.exists():
        raise ConfigurationError(f"--out: {out} is there already: remove it, or give another name")
    if given != PIPE and not is_url(given) and place.resolve().is_relative_to(Path(given).resolve()):
        raise ConfigurationError(f"--out: {out} lies in the input: give a place outside of it")
    if not place.absolute().parent.is_dir():
        raise ConfigurationError(f"--out: the folder {place.parent} is not there: make it first")


@dataclass
class _Copy:
    """One copy that is being made."""

    redaction: Redaction
    settings: Config
    replacement: Replacement
    progress: Progress
    rows: int = 0
    taken_out: int = 0
    as_text: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    notes: list[dict[str, Any]] = field(default_factory=list)
    vault: Vault = field(default_factory=Vault)

    @cached_property
    def policy(self) -> Policy:
        """The policies; their engines are loaded by the first text."""
        return _policy_of(_portable(self.settings))

    def run(
        self, given: str, out: str, sources: Sequence[Source], inside: bool, workers: int
    ) -> dict[str, Any]:
        """Every file; the output appears under its name when all of it is there."""
        fields = [self._fields(source) for source in sources]
        with _work_folder(out) as work, _finder(self.settings, workers) as find:
            self._begin(work, sources)
            for number, (source, own) in enumerate(zip(sources, fields, strict=True)):
                # what is written of a PDF file is text
                name = source.name + ".txt" * (source.format == "pdf") if inside else ""
                kept = make_private_folder(work / "found" / f"{number:05d}")
                self.as_text += source.format == "pdf"
                written = self.rows - self.quarantined.total()
                with _opened(work / "out" / name, source.url, out) as target:
                    self._file(source, own, target, partial(find, kept))
                if source.reader.is_text and self.rows - self.quarantined.total() == written and out != PIPE:
                    # an empty document would look like one that held nothing
                    (work / "out" / name).unlink()
            if inside and not is_url(given):
                _copy_notes(Path(given), work / "out")
            if self.redaction.vault is not None:
                paths = [*dict.fromkeys(path for own in fields for path in own.paths)]
                self.vault.fields = paths + [n for n, label in self.redaction.secret.items() if label != DROP]
                self.vault.write(Path(self.redaction.vault))
            if out != PIPE:
                self._publish(work / "out", out)
        return self._summary()

    def _begin(self, work: Path, sources: Sequence[Source]) -> None:
        """Go on with what an earlier call for the same left behind; begin anew where it was for another."""
        made = {
            "policy": self.policy.hash,
            "redaction": hash_of(self.redaction.model_dump(mode="json")),
            "text": self.settings.input.model_dump(mode="json", include={"text"}, exclude_unset=True),
            "input": [[source.name, *_stamp(source)] for source in sources],
        }
        header = work / "header.json"
        if header.exists() and read_json(header) != made:
            shutil.rmtree(work)
        write_json(make_private_folder(work) / "header.json", made)
        shutil.rmtree(work / "out", ignore_errors=True)

    def _publish(self, staged: Path, out: str) -> None:
        noted = "".join(json.dumps(note, ensure_ascii=False) + "\n" for note in self.notes)
        if is_url(out):
            base, _, name = out.rstrip("/").rpartition("/")
            store = Store.at(base)
            for path in sorted(p for p in (staged, *staged.rglob("*")) if p.is_file()):
                store.put(path, "/".join((name, *path.relative_to(staged).parts)))
            return
        if noted:
            Path(out + ".quarantine.jsonl").write_text(noted)
        if staged.exists():
            os.replace(staged, out)

    def _summary(self) -> dict[str, Any]:
        left_out = self.quarantined.total()
        return {
            "rows": self.rows,
            "written": self.rows - left_out,
            "quarantined": dict(self.quarantined),
            "taken_out": self.taken_out,
            "as_text": self.as_text,
            "replaced": dict(self.labels.most_common()),
            "replacement": self.replacement.name,
            "gives_away": self.replacement.gives_away,
            "policy": self.policy.hash,
        }

    # Before anything is written: the fields and the columns of each file.

    def _fields(self, source: Source) -> Fields:
        """The text fields of a file; ``ConfigurationError`` where they or the columns cannot be as said."""
        if source.reader.is_text:
            return Fields(())
        rows = list(islice(self._cells(source), _LOOKED_AT))
        columns = list(dict.fromkeys(name for row in rows for name in row))
        asked = "text" in self.settings.input.model_fields_set
        usual = tuple(name for name in USUAL if name in columns)
        fields = Fields(self.settings.input.fields.paths if asked else usual)
        wrong = [*fields.missing(rows), *(name for name in self.redaction.columns if name not in columns)]
        if rows and (wrong or not fields.paths):
            what = f"there is no field '{wrong[0]}'" if wrong else "say with --text where the text is"
            raise ConfigurationError(f"{source.name}: {what}; its fields are {listed(columns)}")
        looks = [] if self.redaction.keep_columns else self._personal(fields, rows)
        if looks:
            options = " ".join(f"--column {name}={DROP}" for name in looks if name in columns)
            below = " ".join(f"--text {name!r}" for name in looks if name not in columns)
            raise ConfigurationError(
                f"{source.name}: fields that look personal would stay as they are: {listed(looks)}. Say "
                f"what becomes of each ({' '.join(filter(None, (options, below)))}; of a column a label, "
                f"{DROP} or {KEEP}), or give --keep-columns"
            )
        return fields

    def _cells(self, source: Source) -> Iterator[Mapping[str, Any]]:
        with source.open() as file:
            shape = shape_of(source.format, file)
            for row in shape(file, source.name, source.format, self.settings.input.max_row_bytes).rows():
                if isinstance(row, Row) and row.cells:
                    yield row.cells

    def _personal(self, fields: Fields, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """The fields that are neither read nor declared and look personal."""
        values: dict[str, set[str]] = {}
        for row in rows:
            try:
                rest = fields.changed(row, lambda _: "")
            except NoText:
                continue
            for name, value in rest.items():
                for path, text in leaves(value, name) if name not in self.redaction.columns else ():
                    values.setdefault(path, set()).add(text)
        return list(personal(values, partial(_found, self.policy), self.settings.detect.language))

    # Row by row.

    def _file(self, source: Source, fields: Fields, target: BinaryIO, find: Find) -> None:
        limits = self.settings.input
        with source.open() as file:
            shape = shape_of(source.format, file)(
                file, source.name, source.format, limits.max_row_bytes, fields, self.redaction.secret
            )

            def pieces() -> Iterator[Any]:
                for chunk, found in find(_chunks(shape, limits.max_chars)):
                    coming = iter(found)
                    for row in chunk:
                        if isinstance(row, bytes):
                            yield row
                        elif (
                            piece := self._piece(source, row, [next(coming) for _ in row.texts])
                        ) is not None:
                            yield piece
                    self.progress("redact", self.rows, None, "rows")

            shape.write(target, pieces())

    def _piece(self, source: Source, row: Row, found: Sequence[Finds]) -> Any | None:
        """What stands for a row in the output; None where it is quarantined."""
        self.rows += row.number > 0
        reason = row.reason or next((one for one in found if isinstance(one, str)), None)
        if reason is not None or row.render is None:
            self.quarantined[str(reason)] += 1
            self.notes.append({"file": source.name, "row": row.number, "reason": reason})
            return None
        put = self._noting(self.replacement.of_document(f"{source.name}:{row.number}"))
        hits = [list(one) for one in found if not isinstance(one, str)]
        for own, sure in zip(hits, row.sure, strict=False):
            own += sure
        self.taken_out += row.taken_out
        secret = {name: (row.cells.get(name), label) for name, label in self.redaction.secret.items()}
        if self.redaction.known_values:
            declared = {str(value): label for value, label in secret.values() if value not in (None, "")}
            hits = with_known(row.texts, hits, declared, self.settings.detect.language)
        changes = [edits(text, own, put) for text, own in zip(row.texts, hits, strict=True)]
        self.labels.update(change.kind for own in changes for change in own)
        whole = {name: _whole(value, label, put) for name, (value, label) in secret.items()}
        return row.render(changes, whole)

    def _noting(self, put: Put | None) -> Put | None:
        """``put``, of which the vault knows what it replaced."""
        if put is None or self.redaction.vault is None:
            return put

        def noting(kind: str, value: str) -> str:
            new = put(kind, value)
            self.vault.values.setdefault(new, value)
            return new

        return noting


def _whole(value: Any, label: str, put: Put | None) -> str | None:
    """What stands in place of a column that is a secret; None where it is taken out."""
    if label == DROP or value in (None, ""):
        return None if label == DROP else ""
    return MASK if put is None else put(kind_of(label), str(value))


# Chunks of rows, and what is found in them.

Finds = list[Found] | str
"""What was found in a text, or the reason why it could not be looked at in whole."""
Chunk = list[Row | bytes]
Ready = Iterator[tuple[Chunk, list[Finds]]]
Find = Callable[[Iterator[Chunk]], Ready]


def _chunks(shape: Shape, max_chars: int) -> Iterator[Chunk]:
    """The rows of a file in chunks that depend on the file alone."""
    chunk: Chunk = []
    size = 0
    for row in shape.rows():
        if isinstance(row, Row) and any(len(text) > max_chars for text in row.texts):
            row = Row(row.number, reason="too_long")
        chunk.append(row)
        size += sum(map(len, row.texts)) if isinstance(row, Row) else 0
        if len(chunk) >= _AT_ONCE or size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@contextmanager
def _finder(settings: Config, workers: int) -> Iterator[Callable[[Path, Iterator[Chunk]], Ready]]:
    """Finds what is in chunks: here, or in ``workers`` processes; chunks come back in their order."""
    given = _portable(settings)
    with process_pool(workers) if workers > 1 else nullcontext() as pool:

        def find(kept: Path, chunks: Iterator[Chunk]) -> Ready:
            waiting: deque[tuple[Path, Chunk, Any]] = deque()
            for number, chunk in enumerate(chunks):
                texts = [text for row in chunk if isinstance(row, Row) for text in row.texts]
                place = kept / f"{number}.json"
                result: Any = _saved(place, len(texts))
                if result is None:
                    result = pool.submit(_search, given, texts) if pool else _search(given, texts)
                waiting.append((place, chunk, result))
                if len(waiting) > (2 * workers if pool else 0):
                    yield _ready(*waiting.popleft())
            while waiting:
                yield _ready(*waiting.popleft())

        yield find


def _ready(place: Path, chunk: Chunk, result: list[Finds] | Future[list[Finds]]) -> tuple[Chunk, list[Finds]]:
    found = result.result() if isinstance(result, Future) else result
    write_json(place, found)
    return chunk, found


def _saved(place: Path, texts: int) -> list[Finds] | None:
    """What an earlier call found in a chunk; None without one."""
    if not place.exists():
        return None
    found = [one if isinstance(one, str) else [Found(*hit) for hit in one] for one in read_json(place)]
    return found if len(found) == texts else None


def _portable(settings: Config) -> str:
    """What a policy follows from, for another process, which keeps its engines by it."""
    return settings.model_dump_json(exclude_unset=True, include={"input", "detect", "segment"})


@lru_cache(maxsize=1)
def _policy_of(settings: str) -> Policy:
    return Policy(Config.model_validate(json.loads(settings)))


def _search(settings: str, texts: Sequence[str]) -> list[Finds]:
    return _found(_policy_of(settings), texts)


def _found(policy: Policy, texts: Sequence[str]) -> list[Finds]:
    """What the strict policy finds in each text, or the reason code of a part that was not processed."""
    distinct: dict[str, Finds] = {text: [] for text in texts if text.strip()}
    for text, points in zip(list(distinct), policy.split_many(list(distinct)), strict=True):
        failures = sorted(point.failure for point in points if point.failure is not None)
        hits = [
            Found(h.start, h.end, h.label, h.score) for p in points for h in p.hits if h.policy == "strict"
        ]
        distinct[text] = failures[0] if failures else hits
    return [distinct.get(text, []) for text in texts]


# Where it is read from and written to.


@dataclass(frozen=True)
class _Pipe(Source):
    """Standard input: its first bytes can be looked at, and are read again."""

    looked_at: list[io.BufferedReader] = field(default_factory=list)

    @classmethod
    def named(cls, format_: str) -> _Pipe:
        """As JSON lines where nothing else is said."""
        return cls(PIPE, "standard input", "jsonl" if format_ == "auto" else format_)

    @contextmanager
    def open(self, **_: Any) -> Iterator[BinaryIO]:
        """A look at what is there already, then all of it."""
        if self.looked_at:
            yield cast(BinaryIO, self.looked_at.pop())
            return
        self.looked_at.append(io.BufferedReader(cast(Any, sys.stdin.buffer), 1 << 20))
        start = self.looked_at[0].peek(1 << 20)
        whole = start[: start.rfind(b"\n") + 1] or start
        yield cast(BinaryIO, io.BufferedReader(cast(Any, io.BytesIO(whole))))


@contextmanager
def _work_folder(out: str) -> Iterator[Path]:
    """Where the state of an unfinished copy lies: beside the output, so that the same command goes on."""
    if out == PIPE or is_url(out):
        with tempfile.TemporaryDirectory(prefix="redactory-") as folder:
            yield Path(folder) / "work"
        return
    work = Path(out + ".unfinished")
    yield work
    shutil.rmtree(work)


@contextmanager
def _opened(path: Path, source: str, out: str) -> Iterator[BinaryIO]:
    """A file to be written, compressed as the name says that it will have: the output's or the source's."""
    if out == PIPE:
        yield cast(BinaryIO, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = PurePosixPath(source if path.name != "out" else out).suffix.lower()
    with path.open("wb") as file:
        if ending == ".gz":
            # no name and no time: the same input gives the same bytes
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                yield cast(BinaryIO, packed)
        elif ending == ".zst":
            from zstandard import ZstdCompressor

            with ZstdCompressor().stream_writer(file, closefd=False) as stream:
                yield cast(BinaryIO, stream)
        elif ending in (".bz2", ".xz"):
            with (bz2.BZ2File if ending == ".bz2" else lzma.LZMAFile)(file, "wb") as packed_too:
                yield cast(BinaryIO, packed_too)
        else:
            yield file


def _stamp(source: Source) -> list[Any]:
    if not source.url.startswith("file://"):
        return []
    found = os.stat(source.url.removeprefix("file://"))
    return [found.st_size, found.st_mtime_ns]


def _copy_notes(given: Path, out: Path) -> None:
    """What a data set's folder says of itself, which is no text of a row."""
    for note in given.rglob("*.json"):
        if note.name in ("dataset_info.json", "state.json", "dataset_dict.json"):
            value = read_json(note)
            if note.name == "state.json":
                value["_fingerprint"] = hash_of([value.get("_fingerprint"), "redacted"])[:16]
            write_json(out / note.relative_to(given), value, 0o644)
