"""Redact: files in, the same files out, with every hit of the strict policy replaced and all else as it was.

Rows are taken in chunks: engines look for hits (in worker processes, if asked for), and this process puts the
replacements in and writes the rows in their order.  What was found in a finished chunk is kept, without text,
until the end, so that a run that was killed goes on where it was (:mod:`redactory.pipelines.copies`).
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice, product
from operator import add
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from redactory.detectors.engine import labels_found, require_labels
from redactory.detectors.settings import ConservativeSettings, kind_of
from redactory.foundation.canonical import hash_of
from redactory.foundation.errors import ConfigurationError, listed, shorten, some
from redactory.foundation.files import make_folder
from redactory.foundation.keys import load_digest_key
from redactory.foundation.processes import process_pool
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import DROP, KEEP, Config, Redaction
from redactory.pipelines.copies import (
    PIPE,
    Chunk,
    copy_notes,
    located,
    not_copied,
    noted,
    packed,
    require_apart,
    require_named_as_written,
    sources_of,
    standard_output,
    unfinished,
)
from redactory.pipelines.fields import Fields, NoText, Under
from redactory.pipelines.loading import Given, load_for_texts, settings_of
from redactory.pipelines.personal import REST, Judge, is_nameable, label_of, shown
from redactory.pipelines.policy import Policy
from redactory.pipelines.readers import Source
from redactory.pipelines.readers.documents import RowCounts
from redactory.pipelines.readers.formats import DamagedFile, Format, Render, Row, reader_of
from redactory.pipelines.sealed import wordless
from redactory.pipelines.store import is_url
from redactory.pipelines.unmask import Vault
from redactory.redaction import MASK
from redactory.redaction.known import with_known
from redactory.redaction.replacements import REPLACEMENTS, Found, Put, Replacement, edited, edits, values_of
from redactory.redaction.spellings import Spellings

USUAL = ("text", "messages", "conversations")
"""Fields that are read where none is named."""
_AT_ONCE, _CHUNK = 500, 1 << 19
"""Rows and characters of a chunk."""
_LOOKED_AT = 1_000
"""Rows that columns are judged by."""
_DEEP = 6
"""Parts of a path for which it is tried whether lists stand there."""
NEW_FIELD, PERSONAL_KEY = "new_field", "personal_key"
"""Why a row is left out that has a field which none of these rows had, or a key that looks personal."""


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
    ``InputError`` for a file that cannot be read; a damaged file of a folder is left out and counted.
    ``CheckFailed`` if more than ``input.max_rejected_share`` of the rows or files are left out.
    """
    given, out = located(str(given)), str(out)
    asked = settings_of(Redaction, redaction)
    settings = load_for_texts(config, (given,), **({"text": tuple(text)} if text else {}))
    redaction = settings.redact.but(asked)
    columns = {name: label for name, label in redaction.secret.items() if label != DROP}
    if columns:
        place = f"--column {', '.join(columns)} (redact.columns)"
        require_labels(place, columns.values(), labels_found(settings.detect))
    require_apart(given, out)
    sources, inside = sources_of(given, format_)
    if inside and out == PIPE:
        raise ConfigurationError("--out: a folder needs a folder or a URL, not standard output")
    require_named_as_written(out, sources, inside)
    if redaction.vault is not None and redaction.replace != "pseudonym":
        raise ConfigurationError("vault: only pseudonyms can be unmasked: add --replace pseudonym")
    if redaction.vault is not None:
        # before hours of work whose pseudonyms nobody could restore
        Vault.begun(Path(redaction.vault))
    key = load_digest_key()
    kind = REPLACEMENTS[redaction.replace]
    if kind.needs_key and key.fresh:
        raise ConfigurationError(f"replace: {kind.name} needs a permanent key: set REDACTORY_KEY")
    copy = _Copy(redaction, settings, kind(key, settings.detect.language), progress)
    copy.not_copied = not_copied(given) if inside else {}
    return wordless("rows were redacted", copy.run, given, out, sources, inside, workers)


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
    files: int = 0
    not_copied: dict[str, str] = field(default_factory=dict)
    """The files of a folder that are left out, with the reason."""
    quarantined: Counter[str] = field(default_factory=Counter)
    damage: list[DamagedFile] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    vault: Vault = field(default_factory=Vault)
    judges: dict[str, Judge] = field(default_factory=dict)
    """Of each file who says which of its fields look personal."""
    dropped: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each file the labels of the columns that are taken out."""
    hidden: dict[str, set[str]] = field(default_factory=dict)
    """Of each file the columns whose values need not be looked at."""

    @cached_property
    def hash(self) -> str:
        """The hash of the policies."""
        return Policy(self.settings).hash

    def run(self, given: str, out: str, sources: Sequence[Source], inside: bool, workers: int) -> dict[str, Any]:
        """Every file; the output appears under its name when all of it is there."""
        fields = list[tuple[Source, Fields]]()
        for source in sources:
            with self._damage_left_out(source, inside):
                fields.append((source, self._fields(source)))
        made = {"policy": self.hash, "settings": hash_of(_portable(self.settings))}
        how = self.redaction.model_dump(mode="json")
        with unfinished(out, sources, made, how) as work, _finder(self.settings, workers) as find:
            if (done := work.finished(out)) is not None:
                return done
            for number, (source, own) in enumerate(fields):
                # what is written of a PDF file is text
                name = source.name + ".txt" * (source.format == "pdf") if inside else ""
                written = self.rows - self.quarantined.total()
                place = work.staged / name
                make_folder(place.parent)
                with (
                    self._damage_left_out(source, inside),
                    standard_output() if out == PIPE else packed(place, name or out) as target,
                    work.quarantine.open("a", encoding="utf-8", errors="backslashreplace") as notes,
                ):
                    self._file(source, own, target, partial(find, partial(work.chunk, number)), notes)
                is_empty = source.reader.is_text and self.rows - self.quarantined.total() == written
                if source.name in self.not_copied or (is_empty and out != PIPE):
                    # a part of a file, or an empty document, would look like a whole one
                    place.unlink()
                else:
                    self.files += 1
                    self.as_text += source.format == "pdf"
            self._counts(sources).check(True, f"they are listed in {work.quarantine}")
            if inside and not is_url(given):
                secret = self.redaction.secret.items()
                columns = {name: None if label == DROP else label for name, label in secret}
                copy_notes(Path(given), work.staged, sources, columns)
            if self.redaction.vault is not None:
                paths = [*dict.fromkeys(path for _, own in fields for path in own.paths)]
                self.vault.fields = paths + [n for n, label in self.redaction.secret.items() if label != DROP]
                self.vault.add_to(Path(self.redaction.vault))
            with work.quarantine.open("a", encoding="utf-8") as notes:
                notes.writelines(noted(name, 0, reason) for name, reason in self.not_copied.items())
            if out != PIPE:
                work.finish(out, self._summary())
        return self._summary()

    @contextmanager
    def _damage_left_out(self, source: Source, inside: bool) -> Iterator[None]:
        """Leave a damaged file of a folder out; a single file raises ``DamagedFile``."""
        written, taken_out = self.rows - self.quarantined.total(), self.taken_out
        labels = Counter(self.labels)
        try:
            yield
        except DamagedFile as error:
            if not inside:
                raise
            self.damage.append(error)
            self.not_copied[source.name] = error.reason
            # the rows before the damage go with their file
            self.quarantined[error.reason] += self.rows - self.quarantined.total() - written
            self.taken_out, self.labels = taken_out, labels

    def _counts(self, sources: Sequence[Source]) -> RowCounts:
        """The rows of all files, to be judged together."""
        names = [source.name for source in sources]
        return RowCounts(self.settings.input, self.rows, names, self.quarantined, self.damage)

    def _summary(self) -> dict[str, Any]:
        left_out = self.quarantined.total()
        return {
            "rows": self.rows,
            "written": self.rows - left_out,
            "quarantined": dict(+self.quarantined),
            "files": self.files,
            "files_left_out": dict(Counter(self.not_copied.values())),
            "taken_out": self.taken_out,
            "as_text": self.as_text,
            "replaced": dict(self.labels.most_common()),
            "replacement": self.replacement.name,
            "gives_away": self.replacement.gives_away,
            "masks_nothing": _policy_of(_portable(self.settings)).masks_nothing(),
            "policy": self.hash,
        }

    # Before anything is written: the fields and the columns of each file.

    def _fields(self, source: Source) -> Fields:
        """The text fields of a file; ``ConfigurationError`` where they or the columns cannot be as said."""
        if source.reader.is_text:
            return Fields(())
        with source.open(expansion=self.settings.input.max_expansion) as file:
            reader = reader_of(source.format, file)(file, source.name, self.settings.input.max_row_bytes)
            rows = list(islice((row.cells for row in reader.records() if row.cells), _LOOKED_AT))
            header = reader.header
        seen = Counter(name for row in rows for name in row)
        self.hidden[source.name] = seen.keys() - self.redaction.secret.keys()
        asked = "text" in self.settings.input.model_fields_set
        usual = tuple(name for name in USUAL if name in seen)
        fields = Fields(self.settings.input.fields.paths if asked else usual)
        wrong = [*fields.missing(rows), *(name for name in self.redaction.columns if name not in seen)]
        if rows and (wrong or not (fields.paths or self.redaction.columns)):
            what = "name the text fields with --text"
            if wrong:
                what = f"there is no field '{shorten(wrong[0])}'{_meant(wrong[0], rows)}"
            told = [name for name in seen if shown(name, seen, len(rows)) == name] or ["others in every row"]
            named = [name for name in told if self._is_nameable(name)]
            # a schema was written on purpose; a first line, or keys, may be rows of data
            if len(named) < len(told) and source.format not in ("parquet", "arrow"):
                raise ConfigurationError(
                    f"{source.name}: {what}; its fields ({len(told):,}) are not named here, since they may "
                    "be data; is the first line a header?"
                )
            others = [f"{some(len(told) - len(named), 'other')} that may be data"] * (len(named) < len(told))
            raise ConfigurationError(f"{source.name}: {what}; its fields are {listed([*named, *others])}")
        self.dropped[source.name] = {
            name: label_of(name, [*{str(row[name]) for row in rows if row.get(name)}][:50], self._hits)
            for name, label in self.redaction.columns.items()
            if label == DROP
        }
        if not self.redaction.keep_other_columns:
            judge = Judge(fields, self.redaction.columns.keys(), self._hits, self.settings.detect.language)
            self.judges[source.name] = judge
            looks = judge.first(rows, header)
            self._refuse(source.name, looks, judge, rows or [dict.fromkeys(header)])
            # whoever finds a text in a column looks at all of it
            self.hidden[source.name] &= judge.judged - judge.of_text | self.redaction.columns.keys()
        return fields

    def _hits(self, texts: list[str]) -> list[Finds]:
        return _search(_portable(self.settings), texts)

    def _is_nameable(self, path: str) -> bool:
        return is_nameable(path, self._hits, self.settings.detect.language)

    def _refuse(self, where: str, looks: list[str], judge: Judge, rows: list[Mapping[str, Any]]) -> None:
        """``ConfigurationError`` where fields look personal, or are bytes that nobody can look at."""
        paths = looks or judge.unread
        if not paths:
            return
        what = "fields that look personal would be kept unmasked" if looks else "bytes cannot be checked"
        named = [path for path in paths if self._is_nameable(path)]
        # what is not named may be data; where it stands is told
        told = [
            (path if path in named else _place(path, rows)) + (f" ({judge.reasons[path]})" if looks else "")
            for path in paths
        ]
        mends = [_mend(path, rows) for path in named] + ["--column NAME=WHAT"] * (len(named) < len(told))
        raise ConfigurationError(
            f"{where}: {what}: {listed([*dict.fromkeys(told)])}. Choose per column with "
            f"{' '.join(dict.fromkeys(filter(None, mends)))} (WHAT is {KEEP}, a label like PERSON, or "
            f"{DROP}), or give --keep-other-columns"
        )

    def _require_as_judged(self, source: Source, rows: Rows) -> None:
        """``ConfigurationError`` where a field turned personal behind the rows by which it was judged."""
        judge = self.judges.get(source.name)
        later = [row for row in rows if isinstance(row, Row) and row.reason is None and row.cells]
        if judge is None or not later or later[-1].number <= _LOOKED_AT:
            return
        where = f"{source.name}, rows {later[0].number:,} to {later[-1].number:,}"
        cells = [row.cells for row in later]
        looks, judge.unread = judge.later(cells)
        self._refuse(where, looks, judge, cells)

    def _unjudged(self, source: Source, row: Row) -> str | None:
        """The reason code of a row with a field, or a key, by which none of the first rows was judged."""
        judge = self.judges.get(source.name)
        if judge is None or row.number <= _LOOKED_AT:
            return None
        if judge.personal_keys([row.cells]):
            return PERSONAL_KEY
        return NEW_FIELD if judge.is_new(row.cells) else None

    # Row by row.

    def _file(self, source: Source, fields: Fields, target: BinaryIO, find: Find, notes: TextIO) -> None:
        limits = self.settings.input
        with source.open(expansion=limits.max_expansion) as file:
            hidden = self.hidden.get(source.name, ())
            reader = reader_of(source.format, file)(file, source.name, limits.max_row_bytes, fields, hidden)

            def pieces() -> Iterator[Any]:
                for rows, found in find(_chunks(reader, limits.max_chars)):
                    self._require_as_judged(source, rows)
                    coming = iter(found)
                    for row in rows:
                        if isinstance(row, bytes):
                            yield row
                            continue
                        own = [next(coming) for _ in row.texts]
                        self.rows += row.number > 0
                        reason = row.reason or next((one for one in own if isinstance(one, str)), None)
                        reason = reason or self._unjudged(source, row)
                        if reason is None and row.render is not None:
                            yield self._piece(source, row, row.render, cast(list[list[Found]], own))
                            continue
                        self.quarantined[str(reason)] += 1
                        notes.write(noted(source.name, row.number, str(reason)))
                    self.progress("redact", self.rows, None, "rows")

            reader.write(target, pieces())

    def _piece(self, source: Source, row: Row, render: Render, found: Sequence[Sequence[Found]]) -> Any:
        """What stands for a row in the output."""
        hits = [list(one) for one in found]
        for own, sure in zip(hits, row.sure, strict=False):
            own += sure
        self.taken_out += row.taken_out
        secret = {name: (row.cells.get(name), label) for name, label in self.redaction.secret.items()}
        if self.redaction.known_values:
            labels = self.redaction.secret | self.dropped.get(source.name, {})
            declared = {str(value): labels[name] for name, (value, _) in secret.items() if value not in (None, "")}
            hits = with_known(row.texts, hits, declared, self.settings.detect.language)
        columns = [
            (kind_of(label), str(value))
            for value, label in secret.values()
            if label != DROP and value not in (None, "")
        ]
        values = [*values_of(row.texts, hits), *columns]
        put = self.replacement.of_document(f"{source.name}:{row.number}", row.texts, values)
        changes = [edits(text, own, put) for text, own in zip(row.texts, hits, strict=True)]
        self.labels.update(change.kind for own in changes for change in own)
        whole = {name: _whole(value, label, put) for name, (value, label) in secret.items()}
        if put is not None and self.redaction.vault is not None:
            first = Spellings(values, self.settings.detect.language).first
            self.vault.values |= {put(*value): first(*value)[1] for value in values}
            for text, made in zip(row.texts, changes, strict=True):
                spelled = [text[change.start : change.end] for change in made]
                self.vault.note(row.number, edited(text, made), [change.new for change in made], spelled)
            for new, (_, value) in zip(filter(None, whole.values()), columns, strict=True):
                self.vault.note(row.number, new, [new], [value])
        return render(changes, whole)


def _meant(path: str, rows: list[Mapping[str, Any]]) -> str:
    """What was meant: a path where a column is asked for, or the same path through lists, if there."""
    if not Fields((path,)).missing(rows):
        return " among the columns; --column handles whole columns, use --text for fields inside one"
    parts = path.split(".")[:_DEEP]
    for marks in product(("", "[]"), repeat=len(parts)):
        meant = ".".join(map(add, parts, marks))
        if any(marks) and not Fields((meant,)).missing(rows):
            return f"; did you mean '{meant}'?"
    return ""


def _place(path: str, rows: list[Mapping[str, Any]]) -> str:
    """The number of the field that a path begins with."""
    for place, name in enumerate(Counter(name for row in rows for name in row), 1):
        if path == name or path.startswith((f"{name}.", f"{name}[]")):
            return f"field {place}"
    return REST


def _mend(path: str, rows: list[Mapping[str, Any]]) -> str:
    """The option that says what becomes of a field; nothing where it may not be named."""
    column = path.partition(".")[0] if path.endswith(REST) else path
    if column != path or any(path in row for row in rows):
        return "" if column == REST else f"--column {column}=WHAT"
    fields = Fields((path,))
    try:
        for row in rows:
            fields.texts(row)
    except NoText:
        # each row in which it is a number, say, would be left out
        return f"--column {fields.columns[0]}=WHAT"
    return f"--text {path!r}"


def _whole(value: Any, label: str, put: Put | None) -> str | None:
    """What stands in place of a column that is a secret; None where it is taken out."""
    if label == DROP or value in (None, ""):
        return None if label == DROP else ""
    return MASK if put is None else put(kind_of(label), str(value))


# Chunks of rows, and what is found in them.

Finds = list[Found] | str
"""What was found in a text, or the reason why it could not be looked at in whole."""
Rows = list[Row | bytes]
Ready = Iterator[tuple[Rows, list[Finds]]]
Find = Callable[[Iterator[Rows]], Ready]
Kept = Callable[[int, list[str]], Chunk]


def _chunks(reader: Format, max_chars: int) -> Iterator[Rows]:
    """The rows of a file in chunks that depend on the file alone."""
    chunk: Rows = []
    size = 0
    for row in reader.rows():
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
def _finder(settings: Config, workers: int) -> Iterator[Callable[[Kept, Iterator[Rows]], Ready]]:
    """Finds what is in chunks: here, or in ``workers`` processes; chunks come back in their order."""
    given = _portable(settings)
    with process_pool(workers) if workers > 1 else nullcontext() as pool:

        def find(kept: Kept, chunks: Iterator[Rows]) -> Ready:
            waiting: deque[tuple[Chunk, Rows, Any]] = deque()
            for number, rows in enumerate(chunks):
                texts = [text for row in rows if isinstance(row, Row) for text in row.texts]
                chunk = kept(number, texts)
                result: Any = chunk.saved()
                if result is not None:
                    result = [one if isinstance(one, str) else [Found(*hit) for hit in one] for one in result]
                else:
                    result = pool.submit(_search, given, texts) if pool else _search(given, texts)
                waiting.append((chunk, rows, result))
                if len(waiting) > (2 * workers if pool else 0):
                    yield _ready(*waiting.popleft())
            while waiting:
                yield _ready(*waiting.popleft())

        yield find


def _ready(chunk: Chunk, rows: Rows, result: list[Finds] | Future[list[Finds]]) -> tuple[Rows, list[Finds]]:
    found = result.result() if isinstance(result, Future) else result
    chunk.save(found)
    return rows, found


def _portable(settings: Config) -> str:
    """What a policy follows from, for another process, which keeps its engines by it."""
    return settings.model_dump_json(exclude_unset=True, include={"input", "detect", "segment"})


@lru_cache(maxsize=1)
def _policy_of(settings: str) -> Policy:
    config = Config.model_validate(json.loads(settings))
    # what is suspected alone makes a point private, and is masked nowhere: it is not looked for
    nothing = ConservativeSettings(rules=(), min_non_entity_probability=0, confident_threshold=1)
    detect = config.detect.model_copy(update={"conservative": nothing})
    return Policy(config.model_copy(update={"detect": detect}))


def _search(settings: str, texts: Sequence[str]) -> list[Finds]:
    return _found(_policy_of(settings), texts)


def _found(policy: Policy, texts: Sequence[str]) -> list[Finds]:
    """What the strict policy finds in each text, or the reason code of a part that was not processed."""
    # a user's name or a number in JSON is told by its key
    keys = [f"{text.key}: " if isinstance(text, Under) and text.key else "" for text in texts]
    read = [key + text for key, text in zip(keys, texts, strict=True)]
    distinct: dict[str, Finds] = {one: [] for one, text in zip(read, texts, strict=True) if text.strip()}
    for text, points in zip(list(distinct), policy.split_many(list(distinct)), strict=True):
        failures = sorted(point.failure for point in points if point.failure is not None)
        hits = [Found(h.start, h.end, h.label, h.score) for p in points for h in p.hits if h.policy == "strict"]
        distinct[text] = failures[0] if failures else hits
    return [_behind(len(key), distinct.get(one, [])) for key, one in zip(keys, read, strict=True)]


def _behind(start: int, found: Finds) -> Finds:
    """What was found behind the first ``start`` code points, counted from there."""
    if isinstance(found, str) or not start:
        return found
    return [h._replace(start=max(h.start - start, 0), end=h.end - start) for h in found if h.end > start]
