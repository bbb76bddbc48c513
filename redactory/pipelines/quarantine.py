"""The quarantine of a finished run: what lies there, by reason and id, and another try at it.

A try is a run of its own, whose input is JSON lines in memory alone: a rejected row is parsed again by the
reader of its format; a quarantined point becomes a document with the id and the user of the one that it was
cut from, several of one document joined by line ends.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from redactory.detectors import TextDetector
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import only_one
from redactory.foundation.keys import KEY_VARIABLE, DigestKey, load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import Config
from redactory.pipelines.curate import curate
from redactory.pipelines.loading import Given, check, load_config
from redactory.pipelines.maps import StageMap
from redactory.pipelines.output_folder import check_keys
from redactory.pipelines.readers import InputSettings, Source, find_by_path, find_sources
from redactory.pipelines.readers.documents import DUPLICATE_ID, MISSING_ID
from redactory.pipelines.readers.files import format_of
from redactory.pipelines.readers.formats import BROKEN_ROW, FORMATS, KEPT_BYTES, Columns
from redactory.pipelines.readers.tables import Csv
from redactory.pipelines.release import COUNTS
from redactory.pipelines.release_log import Event, check_released, enter, history, read_log, standings
from redactory.pipelines.sealed import sealed
from redactory.redaction import (
    RunFolder,
    is_finished,
    part_name,
    parts,
    read_batches,
    read_manifest,
    read_part,
)
from redactory.redaction.folder import JobFolder, job_of
from redactory.redaction.shards import CLASS, require_there

ROW, POINT = "row", "point"
LISTED = 100
MOST_BYTES = 1 << 30
"""What is tried again lies in memory; a run that failed as a whole is curated again instead."""


def quarantine_list(place: str | Path, limit: int = LISTED) -> dict[str, Any]:
    """What lies in the quarantine of a run, or of every finished run of a job; no text, no document's id.

    ``{"runs": [{"run", "entries", "reasons": [{reason, kind, count, bytes}], "listed": [...]}]}``; of
    each run the first ``limit`` entries are listed: ``id`` (as :func:`content_of_entry` takes it), ``kind``
    (row or point), ``reason``, ``bytes``, and where it came from: ``source`` and ``row``, or ``point_id``.
    A quarantine that was purged has ``purged`` True.  ``RunStateError`` where there is no finished run.
    """
    root, runs = Path(place), [RunFolder(Path(place))]
    if JobFolder(root).exists():
        # "latest" is a link to one of them
        finished = sorted(path.parent for path in root.glob(f"*/{runs[0].success.name}"))
        runs = [RunFolder(path) for path in finished if not path.is_symlink()]
    else:
        read_manifest(runs[0])
    return {"runs": [sealed(run.state, _listed, run, limit) for run in runs]}


def entries(run: RunFolder, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Each entry's ``columns`` and its ``id``, in order, a part at a time."""
    require_there(run.quarantine)
    for number, path in enumerate(parts(run.quarantine)):
        for offset, entry in enumerate(read_part(path, columns).to_pylist()):
            yield {"id": f"{number}-{offset}", **entry}


def _listed(run: RunFolder, limit: int) -> dict[str, Any]:
    found, size = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    listed: list[dict[str, Any]] = []
    if "quarantine" in read_manifest(run).get("purged", ()):
        return {"run": str(run.root), "purged": True, "entries": 0, "reasons": [], "listed": []}
    for entry in entries(run, ["kind", "reason", "source", "row", "point_id", "content"]):
        key, bytes_ = (entry["reason"], entry["kind"]), len(entry["content"] or b"")
        found[key] += 1
        size[key] += bytes_
        if len(listed) < limit:
            # without text: a point's source is its document's id, and stays where it is
            own = ("source", "row") if entry["kind"] == ROW else ("point_id",)
            listed.append({n: entry[n] for n in ("id", "kind", "reason", *own)} | {"bytes": bytes_})
    reasons = [
        {"reason": reason, "kind": kind, "count": count, "bytes": size[reason, kind]}
        for (reason, kind), count in found.most_common()
    ]
    return {"run": str(run.root), "entries": found.total(), "reasons": reasons, "listed": listed}


def content_of_entry(run: str | Path, entry: str) -> bytes:
    """The content of one entry: a rejected row as far as it was kept, or a point's text (UTF-8).

    It is original text: show it to people alone, and store it nowhere.  ``ConfigurationError`` where there
    is no entry of that id.
    """
    folder = RunFolder(Path(run))
    read_manifest(folder)
    require_there(folder.quarantine)
    return sealed(folder.state, _content, folder, entry)


def _content(run: RunFolder, entry: str) -> bytes:
    named = re.fullmatch(r"(\d{1,9})-(\d{1,9})", entry)
    path = run.quarantine / part_name(int(named[1])) if named else None
    if named is not None and path is not None and path.is_file():
        column = read_part(path, ["content"])["content"]
        if int(named[2]) < len(column):
            return column[int(named[2])].as_py() or b""
    raise ConfigurationError(
        f"{run.root.name} has no entry of that id in quarantine: see redactory quarantine list {run.root}"
    )


def harmless(content: bytes) -> str:
    """``content`` for a terminal: escapes in place of what cannot be seen, or could steer the terminal."""
    text = content.decode("utf-8", "backslashreplace")
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode()
        for sign in text
    )


# Whose the quarantined points of a run are: ``vault/`` has the users, ``audit/points`` their keyed ids.


@dataclass(frozen=True)
class Author:
    """Who wrote a document (None: it names nobody, and is its own user), and its class."""

    user_id: str | None
    label: str | None = None


def authors_of(run: RunFolder, documents: Mapping[str, int], key: DigestKey | None) -> dict[str, Author]:
    """The author of each document, given with the id of one of its points, where that is still known.

    A point in quarantine is not in ``vault/``.  Its user is known from another point of its document, or
    from any point of the same user: their keyed ids agree, which needs the run's ``key``.  Where neither is
    there, it is never taken for a user of its own: one person must not become two.
    """
    of_points = {point: doc_id for doc_id, point in documents.items()}
    keyed: dict[str, str] = {}
    for batch in read_batches(run.points, ["point_id", "user"]) if documents else ():
        for point, user in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if point in of_points:
                keyed[of_points[point]] = user
    found: dict[str, Author] = {}
    if key is not None:
        # a document that names nobody has an id of its own
        lone = (doc_id for doc_id, user in keyed.items() if user == key.pseudonym("lone-user", doc_id))
        found = {doc_id: Author(None) for doc_id in lone}
    by_user: dict[str, Author] = {}
    for doc_id, user_id, label in _vault(run):
        if doc_id in documents:
            found[doc_id] = Author(user_id, label)
        if key is not None and user_id is not None:
            by_user.setdefault(user_id, Author(user_id))
    if key is not None:
        by_user = {key.pseudonym("user", user): author for user, author in by_user.items()}
    return {d: by_user[keyed[d]] for d in documents if keyed.get(d) in by_user} | found


def _vault(run: RunFolder) -> Iterator[tuple[str, str | None, str | None]]:
    """Document, user and class of every point there; nothing where it was purged."""
    manifest = read_manifest(run)
    if "vault" in manifest.get("purged", ()):
        return
    labelled = manifest["configuration"]["input"].get("label") is not None
    for batch in read_batches(run.vault, ["doc_id", "user_id", *([CLASS] if labelled else [])]):
        columns = [column.to_pylist() for column in batch.columns]
        yield from zip(*columns, *([] if labelled else [[None] * batch.num_rows]), strict=True)


# What lies in a quarantine as an input of its own.


CUT = "only their first 64 KiB were kept"
REPEATED = "their document's id occurs twice"
NO_ROW = "by themselves they are not rows of their table"
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
    corpus, rows = Corpus(), _Rows(before, now)
    texts: dict[str, list[str]] = defaultdict(list)
    points: dict[str, int] = {}
    for entry in entries(run, ["kind", "reason", "source", "point_id", "content"]):
        corpus.entries += 1
        content = entry["content"] or b""
        if entry["kind"] == POINT:
            points.setdefault(entry["source"], entry["point_id"])
            texts[entry["source"]].append(content.decode())
            continue
        line = rows.line(entry["reason"], entry["source"], content)
        if isinstance(line, str):
            corpus.left[line] += 1
        else:
            corpus.add(line)
    authors = authors_of(run, points, key)
    for doc_id, own in texts.items():
        if (author := authors.get(doc_id)) is None:
            corpus.left[NO_USER] += len(own)
            continue
        row = {now.text: "\n".join(own), now.id: doc_id, now.user: author.user_id}
        row |= {} if now.label is None else {now.label: author.label}
        corpus.add(_line({name: value for name, value in row.items() if value is not None}), len(own))
    return corpus


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
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError:
                return NO_ROW
            return _line({self.now.text: text, self.now.id: PurePosixPath(source).name})
        return content.removeprefix("\ufeff".encode()).removesuffix(b"\n") + b"\n"

    def _of_table(self, kind: str, source: str, content: bytes) -> bytes | str:
        if source not in self.headers:
            self.headers[source] = _header(self.before, source)
        header = self.headers[source]
        if header is None:
            return NO_HEADER
        rows = FORMATS[kind].records(io.BytesIO(header + content), self.now.max_row_bytes, Columns(), source)
        found = [record for _, record, _, _ in rows]
        return _line(found[0]) if len(found) == 1 and found[0] is not None else NO_ROW


def _header(settings: InputSettings, name: str) -> bytes | None:
    """The header line of the table that the run knew by ``name``; None where it is not there any more."""
    try:
        found = (
            source for find in (find_sources, find_by_path) for source in find(settings.path, settings.format)
        )
        source = next((source for source in found if source.name == name), None)
        if source is None:
            return None
        with source.open() as file:
            length = source.reader.header(file, settings.max_row_bytes)
        with source.open() as file:
            return file.read(length) or None
    except (RedactoryError, OSError):
        return None


# Retry: what lies in a run's quarantine, curated again into a run of its own beside it.


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
    key, job = _key_of(folder, manifest), job_of(folder)
    with nullcontext() if job is None else only_one(job.lock, str(job.root)):
        target, before = _target(folder, job), _settings_of(folder, manifest)
        now = _today(before if config is None else load_config(config), target, workers)
        corpus = sealed(folder.state, corpus_of, folder, before.input, now.input, key)
        result = {
            "entries": corpus.entries,
            "retried": corpus.retried,
            "left": dict(corpus.left.most_common()),
        }
        if not corpus.retried:
            return {"run": None, "of": str(folder.root), **result, "state": None}
        if job is not None and target.root.name not in standings(read_log(job)):
            # at no moment is it taken for a run of no job
            enter(target, Event.BEGUN, date=None, plan={"slices": [], "waiting": []}, config=None)
        with _in_memory(f"{target.root.name}.jsonl", corpus) as source:
            how: dict[str, Any] = {"stage_map": stage_map, "detector": detector, "progress": progress}
            summary = dict(curate(now, resume=True, sources=[source], **how))
        counts = {name: summary[name] for name in COUNTS}
        if job is not None and standings(read_log(job))[target.root.name].state == "unfinished":
            findings = [{"metric": "retried", "label": folder.root.name, "count": corpus.retried}]
            digest = file_sha256(target.manifest)
            enter(target, Event.HELD, manifest=digest, counts=counts, findings=findings)
        left = sum(corpus.left.values())
        enter(folder, Event.RETRIED, into=target.root.name, retried=corpus.retried, left=left)
    ended = {"counts": counts, "state": None if job is None else "held", "report": summary["report"]}
    return {"run": str(target.root), "of": str(folder.root), **result, **ended}


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
    rejected = {name for name, own in states.items() if own.state == "rejected"}
    for name in into:
        if is_finished(RunFolder(run.root.parent / name)) and name not in rejected:
            raise RunStateError(
                f"{run.root.name} was tried again in {name}: what failed once more lies in the quarantine of "
                f"that one (redactory quarantine retry {run.root.parent / name})"
            )
    found = re.fullmatch(r"(?P<of>.+?)-retry(-(?P<number>\d+))?", run.root.name)
    of, number = (found["of"], int(found["number"] or 1)) if found else (run.root.name, 0)
    while True:
        number += 1
        name = f"{of}-retry" if number == 1 else f"{of}-retry-{number}"
        place = RunFolder(run.root.parent / name)
        if name in rejected:
            continue
        if not os.path.lexists(place.root) or not is_finished(place):
            return place
        # one that is finished and stands in no record was interrupted at the very end
        if name not in into and [e["path"] for e in read_manifest(place)["inputs"]] == [f"{name}.jsonl"]:
            return place


def _settings_of(run: RunFolder, manifest: dict[str, Any]) -> Config:
    """The configuration that the run was made by."""
    made, default = manifest["configuration"], InputSettings.model_fields["id"].default
    if MISSING_ID not in manifest["rejected"]:
        # a manifest names every column: whether a row needs an id follows from whether one was rejected
        made = {**made, "input": {k: v for k, v in made["input"].items() if k != "id" or v != default}}
    try:
        return Config.read_back(made)
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
