"""What lies in a quarantine as an input of its own: JSON lines, in memory alone.

A rejected row is parsed again by the reader of its format.  A quarantined point becomes a document with the
id and the user of the one that it was cut from; several of one document are joined by line ends.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from redactory.detectors import TextDetector
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RedactoryError, RunStateError
from redactory.foundation.files import only_one
from redactory.foundation.keys import KEY_VARIABLE, DigestKey, load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import Config
from redactory.pipelines.curate import curate
from redactory.pipelines.loading import Given, check, load_config
from redactory.pipelines.maps import StageMap
from redactory.pipelines.output_folder import check_keys
from redactory.pipelines.quarantine import POINT, UNKNOWN, Author, authors_of, entries
from redactory.pipelines.readers import InputSettings, Source, find_by_path, find_sources
from redactory.pipelines.readers.documents import DUPLICATE_ID, MISSING_ID
from redactory.pipelines.readers.files import format_of
from redactory.pipelines.readers.formats import BROKEN_ROW, FORMATS, KEPT_BYTES, Columns
from redactory.pipelines.readers.tables import Csv
from redactory.pipelines.release import COUNTS
from redactory.pipelines.release_log import Event, check_released, enter, history, read_log, standings
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.folder import JobFolder, job_of

MOST_BYTES = 1 << 30
"""What is tried again lies in memory; a night that failed as a whole is run again instead."""
_BYTE_ORDER_MARK = "\ufeff".encode()

CUT = "only their first 64 KiB were kept"
REPEATED = "their document's id occurs twice"
NO_ROW = "they are no rows of their table by themselves"
NO_HEADER = "the header of their file cannot be read any more"
FROM_COLUMNS = "they are rows of a Parquet or Arrow file: give the file to a new run"
NO_USER = "their user is not known any more"


@dataclass
class Corpus:
    """The lines to curate again; how many entries there were, are in it, and were left, by why."""

    lines: list[bytes] = field(default_factory=list)
    entries: int = 0
    retried: int = 0
    left: Counter[str] = field(default_factory=Counter)
    size: int = 0

    def add(self, line: bytes, of: int = 1) -> None:
        """One document of ``of`` entries; ``RunStateError`` where it gets too much to hold in memory."""
        self.lines.append(line)
        self.retried += of
        self.size += len(line)
        if self.size > MOST_BYTES:
            raise RunStateError(
                "the quarantine holds more than a gigabyte: mend what failed, and curate the input again as "
                "a new run"
            )


def corpus_of(run: RunFolder, before: InputSettings, now: InputSettings, key: DigestKey | None) -> Corpus:
    """The quarantine of ``run``, which was read by the settings ``before``, to be read by ``now``.

    ``key`` is the run's digest key, None where it is not to be had: fewer users are then known.
    """
    corpus = Corpus()
    rows, points = _Rows(before, now), defaultdict[str, list[tuple[int, str]]](list)
    for entry in entries(run, ["kind", "reason", "source", "point_id", "content"]):
        corpus.entries += 1
        content = entry["content"] or b""
        if entry["kind"] == POINT:
            points[entry["source"]].append((entry["point_id"], content.decode()))
            continue
        line = rows.line(entry["reason"], entry["source"], content)
        if isinstance(line, str):
            corpus.left[line] += 1
        else:
            corpus.add(line)
    for doc_id, texts, author in _with_authors(run, points, key):
        if author is UNKNOWN:
            corpus.left[NO_USER] += len(texts)
        else:
            corpus.add(_document(now, doc_id, texts, author), len(texts))
    return corpus


def _with_authors(
    run: RunFolder, points: dict[str, list[tuple[int, str]]], key: DigestKey | None
) -> Iterator[tuple[str, list[str], Author]]:
    authors = authors_of(run, {doc_id: own[0][0] for doc_id, own in points.items()}, key)
    for doc_id, own in points.items():
        yield doc_id, [text for _, text in own], authors[doc_id]


def _document(columns: InputSettings, doc_id: str, texts: Iterable[str], author: Author) -> bytes:
    row = {columns.text: "\n".join(texts), columns.id: doc_id, columns.user: author.user_id}
    if columns.label is not None:
        row[columns.label] = author.label
    return _line({name: value for name, value in row.items() if value is not None})


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


@dataclass
class _Rows:
    """Rejected rows as JSON lines; ``headers`` are those of the tables that they stood in."""

    before: InputSettings
    now: InputSettings
    headers: dict[str, bytes | None] = field(default_factory=dict)

    def line(self, reason: str, source: str, content: bytes) -> bytes | str:
        """The row as a line, or why it cannot be one."""
        kind = format_of(source) if self.before.format == "auto" else self.before.format
        if reason == DUPLICATE_ID:
            return REPEATED
        if kind is None or not FORMATS[kind].kept:
            return FROM_COLUMNS
        if len(content) >= KEPT_BYTES:
            return CUT
        if isinstance(FORMATS[kind], Csv):
            # a line that may have stood inside a quotation can look like a row of its own
            return NO_ROW if reason == BROKEN_ROW else self._of_table(kind, source, content)
        if FORMATS[kind].is_text:
            return self._of_file(source, content)
        return content.removeprefix(_BYTE_ORDER_MARK).removesuffix(b"\n") + b"\n"

    def _of_table(self, kind: str, source: str, content: bytes) -> bytes | str:
        if source not in self.headers:
            self.headers[source] = _header(self.before, source)
        header = self.headers[source]
        if header is None:
            return NO_HEADER
        rows = FORMATS[kind].records(io.BytesIO(header + content), self.now.max_row_bytes, Columns(), source)
        found = [record for _, record, _, _ in rows]
        return _line(found[0]) if len(found) == 1 and found[0] is not None else NO_ROW

    def _of_file(self, source: str, content: bytes) -> bytes | str:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            return NO_ROW
        return _line({self.now.text: text, self.now.id: PurePosixPath(source).name})


def _header(settings: InputSettings, name: str) -> bytes | None:
    """The header line of the table that the run knew by ``name``; None where it is not there any more."""
    try:
        found = [
            source
            for find in (find_sources, find_by_path)
            for source in find(settings.path, settings.format)
            if source.name == name
        ]
        return _first_row(found[0], settings.max_row_bytes) if found else None
    except (RedactoryError, OSError):
        return None


def _first_row(source: Source, limit: int) -> bytes | None:
    with source.open() as file:
        length = source.reader.header(file, limit)
    with source.open() as file:
        return file.read(length) or None


# Retry: what lies in a run's quarantine, curated again into a run of its own beside it.


_ID = InputSettings.model_fields["id"].default
_NAME = re.compile(r"(?P<of>.+?)-retry(-(?P<number>\d+))?")


def quarantine_retry(
    run: str | Path,
    config: Given | None = None,
    *,
    workers: int | None = None,
    stage_map: StageMap | None = None,
    detector: TextDetector | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Curate the quarantine of a finished ``run`` again: ``{"run", "of", "entries", "retried", "left"}``.

    ``config`` is today's configuration, of which ``input`` names the columns alone; by default the run's own.
    The new run is ``<run>-retry`` (``-retry-2``, of that one) beside it; ``run`` is None where nothing could
    be tried.  ``left`` says of how many entries nothing was made, and why; they stay where they are.  Asked
    again after a crash it goes on.  ``stage_map`` and ``detector`` are those of :func:`curate`.

    ``RunStateError`` for a run that is held or rejected, was made with another key, or was retried before.
    """
    check_keys()
    folder = RunFolder(Path(run).resolve())
    manifest = read_manifest(folder)
    check_released(folder)
    key = _key_of(folder, manifest)
    job = job_of(folder)
    with _alone(job):
        target = _target(folder, job)
        before = _settings_of(folder, manifest)
        now = _today(before if config is None else load_config(config), target, workers)
        corpus = sealed(folder.state, corpus_of, folder, before.input, now.input, key)
        told = {"entries": corpus.entries, "retried": corpus.retried, "left": dict(corpus.left.most_common())}
        if not corpus.retried:
            return {"run": None, "of": str(folder.root), **told, "state": None}
        _begin(target, job)
        with _in_memory(f"{target.root.name}.jsonl", corpus) as source:
            summary: dict[str, Any] = dict(
                curate(
                    now,
                    resume=True,
                    stage_map=stage_map,
                    detector=detector,
                    sources=[source],
                    progress=progress,
                )
            )
        counts = {name: summary[name] for name in COUNTS}
        state = _enter(folder, target, job, counts, told)
    return {
        "run": str(target.root),
        "of": str(folder.root),
        **told,
        "counts": counts,
        "state": state,
        "report": summary["report"],
    }


def _begin(target: RunFolder, job: JobFolder | None) -> None:
    """Have the log know the new run before it is finished: at no moment is it taken for one of no job."""
    if job is not None and target.root.name not in standings(read_log(job)):
        enter(target, Event.BEGUN, date=None, plan={"slices": [], "waiting": []}, config=None)


def _enter(
    run: RunFolder, target: RunFolder, job: JobFolder | None, counts: dict[str, int], told: dict[str, Any]
) -> str | None:
    """The records of a retry: that the new run is held, then that there is one."""
    state = None
    if job is not None:
        state = "held"
        if standings(read_log(job))[target.root.name].state == "unfinished":
            findings = [{"metric": "retried", "label": run.root.name, "count": told["retried"]}]
            digest = file_sha256(target.manifest)
            enter(target, Event.HELD, manifest=digest, counts=counts, findings=findings)
    enter(run, Event.RETRIED, into=target.root.name, retried=told["retried"], left=sum(told["left"].values()))
    return state


@contextmanager
def _alone(job: JobFolder | None) -> Iterator[None]:
    if job is None:
        yield
        return
    with only_one(job.lock, str(job.root)):
        yield


def _key_of(run: RunFolder, manifest: dict[str, Any]) -> DigestKey | None:
    """The run's own digest key; None where it drew one and forgot it."""
    key = load_digest_key()
    if key.fingerprint == manifest["key"]["fingerprint"]:
        return key
    if manifest["key"]["fresh"]:
        return None
    made = "a key, and none is set" if key.fresh else "another key"
    raise RunStateError(
        f"{run.root.name} was made with {made}: set {KEY_VARIABLE} to it, or its people would be others "
        "in the new run"
    )


def _target(run: RunFolder, job: JobFolder | None) -> RunFolder:
    """Where to: the first free name beside the run, or the one of a retry that was interrupted."""
    into = [record.body["into"] for record in history(run) if record.type == Event.RETRIED]
    states = standings(read_log(job)) if job is not None else {}
    for name in into:
        rejected = name in states and states[name].state == "rejected"
        if is_finished(RunFolder(run.root.parent / name)) and not rejected:
            raise RunStateError(
                f"{run.root.name} was tried again in {name}: what failed once more lies in the quarantine of "
                f"that one (redactory quarantine retry {run.root.parent / name})"
            )
    found = _NAME.fullmatch(run.root.name)
    of, number = (found["of"], int(found["number"] or 1)) if found else (run.root.name, 0)
    while True:
        number += 1
        name = f"{of}-retry" if number == 1 else f"{of}-retry-{number}"
        if name in states and states[name].state == "rejected":
            continue
        place = RunFolder(run.root.parent / name)
        # one that is finished and stands in no record was interrupted at the very end
        if not os.path.lexists(place.root) or not is_finished(place) or _is_ours(place, run, into):
            return place


def _is_ours(place: RunFolder, run: RunFolder, into: list[str]) -> bool:
    of = read_manifest(place)["inputs"]
    return place.root.name not in into and [entry["path"] for entry in of] == [f"{place.root.name}.jsonl"]


def _settings_of(run: RunFolder, manifest: dict[str, Any]) -> Config:
    """The configuration that the run was made by."""
    made = manifest["configuration"]
    if MISSING_ID not in manifest["rejected"]:
        # a manifest names every column: whether a row needs an id follows from whether one was rejected
        made = {**made, "input": {k: v for k, v in made["input"].items() if k != "id" or v != _ID}}
    try:
        return Config.model_validate(made)
    except ValidationError:
        raise RunStateError(
            f"{run.root.name} was made by a version with other settings: curate its input again as a new run"
        ) from None


def _today(config: Config, target: RunFolder, workers: int | None) -> Config:
    """``config`` for a corpus in memory and the folder ``target``."""
    given = config.model_dump(exclude_unset=True)
    # the corpus has its own form; a row without an id keeps being one where none was named
    given["input"] = {**given["input"], "path": (f"{target.root.name}.jsonl",), "format": "jsonl"}
    given |= {"output": target.root, "store": None}
    return check(given if workers is None else {**given, "workers": workers})


@contextmanager
def _in_memory(name: str, corpus: Corpus) -> Iterator[Source]:
    """The corpus as a file that no disk ever holds."""
    import fsspec

    memory: Any = fsspec.filesystem("memory")
    folder = f"/redactory-{secrets.token_hex(8)}"
    memory.pipe_file(f"{folder}/{name}", b"".join(corpus.lines))
    try:
        yield Source(f"memory:/{folder}/{name}", name, "jsonl")
    finally:
        memory.rm(folder, recursive=True)
