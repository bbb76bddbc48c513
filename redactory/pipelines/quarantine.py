"""The quarantine of a finished run: what lies there, by reason and id, and another try at it.

A try is a run of its own, whose input is JSON lines in memory alone: a rejected row of JSON lines or a text
file as it stood there; a quarantined point becomes a document with the id and the user of the one that it
was cut from, several of one document joined by line ends.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any

from redactory.detectors import TextDetector
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import KEY_VARIABLE, DigestKey, load_digest_key
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import Config
from redactory.pipelines.curate import curate
from redactory.pipelines.loading import Given, check, load_config
from redactory.pipelines.output_folder import check_keys, lock_job
from redactory.pipelines.readers import InputSettings, Source
from redactory.pipelines.readers.documents import DUPLICATE_ID, MISSING_ID
from redactory.pipelines.readers.files import format_of
from redactory.pipelines.readers.formats import FORMATS, KEPT_BYTES
from redactory.pipelines.release import COUNTS
from redactory.pipelines.release_log import Event, check_released, enter, history, read_log, standings
from redactory.pipelines.sealed import sealed
from redactory.pipelines.work import StageMap
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
from redactory.redaction.shards import CLASS, ROLE, require_there

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
            own = ("source", "row") if entry["kind"] == "row" else ("point_id",)
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
    if named and (path := run.quarantine / part_name(int(named[1]))).is_file():
        column = read_part(path, ["content"])["content"]
        if int(named[2]) < len(column):
            return column[int(named[2])].as_py() or b""
    raise ConfigurationError(
        f"{run.root.name} has no entry of that id in quarantine: see redactory quarantine list {run.root}"
    )


def harmless(content: bytes) -> str:
    """``content`` for a terminal: escapes in place of what cannot be seen, or could steer the terminal."""
    shown = (
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode()
        for c in content.decode("utf-8", "backslashreplace")
    )
    return "".join(shown)


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
    with nullcontext() if job is None else lock_job(job):
        target, before = _target(folder, job), _settings_of(folder, manifest)
        given = (before if config is None else load_config(config)).model_dump(exclude_unset=True)
        # the corpus has its own form; a row without an id keeps being one where none was named
        given["input"] = {**given["input"], "path": (f"{target.root.name}.jsonl",), "format": "jsonl"}
        given |= {"output": target.root, "store": None, **({} if workers is None else {"workers": workers})}
        now = check(given)
        whole = before.release.by == "document"
        lines, retried, left = sealed(folder.state, _corpus_of, folder, before.input, now.input, key, whole)
        stays = left.total()
        result = {"entries": retried + stays, "retried": retried, "left": dict(left.most_common())}
        if not retried:
            return {"run": None, "of": str(folder.root), **result, "state": None}
        if job is not None and target.root.name not in standings(read_log(job)):
            # at no moment is it taken for a run of no job
            enter(target, Event.BEGUN, date=None, plan={"slices": [], "waiting": []}, config=None)
        with _in_memory(f"{target.root.name}.jsonl", lines) as source:
            how: dict[str, Any] = {"stage_map": stage_map, "detector": detector, "progress": progress}
            summary = dict(curate(now, resume=True, sources=[source], **how))
        counts = {name: summary[name] for name in COUNTS}
        if job is not None and standings(read_log(job))[target.root.name].state == "unfinished":
            findings = [{"metric": "retried", "label": folder.root.name, "count": retried}]
            digest = file_sha256(target.manifest)
            enter(target, Event.HELD, manifest=digest, counts=counts, findings=findings)
        enter(folder, Event.RETRIED, into=target.root.name, retried=retried, left=stays)
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
    """Where to: the first name beside the run that no retry was entered with; one may be begun there."""
    into = {record.body["into"] for record in history(run) if record.type == Event.RETRIED}
    states = standings(read_log(job)) if job is not None else {}
    rejected = {name for name, own in states.items() if own.state == "rejected"}
    for name in into - rejected:
        if is_finished(RunFolder(run.root.parent / name)):
            raise RunStateError(
                f"{run.root.name} was tried again in {name}: what failed once more lies in the quarantine of "
                f"that one (redactory quarantine retry {run.root.parent / name})"
            )
    found = re.fullmatch(r"(?P<of>.+?)-retry(-(?P<number>\d+))?", run.root.name)
    of, number = (found["of"], int(found["number"] or 1) + 1) if found else (run.root.name, 1)
    while (name := f"{of}-retry" if number == 1 else f"{of}-retry-{number}") in into | rejected:
        number += 1
    return RunFolder(run.root.parent / name)


def _settings_of(run: RunFolder, manifest: dict[str, Any]) -> Config:
    """The configuration that the run was made by."""
    made, default = manifest["configuration"], InputSettings.model_fields["id"].default
    if MISSING_ID not in manifest["rejected"]:
        # a manifest names every column: whether a row needs an id follows from whether one was rejected
        made = {**made, "input": {k: v for k, v in made["input"].items() if k != "id" or v != default}}
    return Config.read_back(made)


@contextmanager
def _in_memory(name: str, lines: list[bytes]) -> Iterator[Source]:
    """These lines as a file that no disk ever holds."""
    import fsspec

    memory: Any = fsspec.filesystem("memory")
    folder = f"/redactory-{secrets.token_hex(8)}"
    memory.pipe_file(f"{folder}/{name}", b"".join(lines))
    try:
        yield Source(f"memory:/{folder}/{name}", name, "jsonl", may_be_unusable=True)
    finally:
        memory.rm(folder, recursive=True)


# What lies in a quarantine as an input of its own.


def _corpus_of(
    run: RunFolder, before: InputSettings, now: InputSettings, key: DigestKey | None, whole: bool = False
) -> tuple[list[bytes], int, Counter[str]]:
    """The lines to curate again, how many entries are in them, and how many are not, by why.

    ``run`` was read by the settings ``before``, and they are to be read by ``now``.  ``key`` is the run's
    digest key, None where it is not to be had: fewer users are then known.  With ``whole`` documents decide
    as a whole, and no point is tried without the rest of its own.
    """
    lines: list[bytes] = []
    size, retried, left = 0, 0, Counter[str]()
    texts: dict[str, list[tuple[int, str]]] = defaultdict(list)
    points: dict[str, int] = {}
    for entry in entries(run, ["kind", "reason", "source", "point_id", "content"]):
        content = entry["content"] or b""
        size += len(content)
        if size > MOST_BYTES:
            raise RunStateError(
                "the quarantine holds more than a gigabyte: mend what failed, and curate the input again as "
                "a new run"
            )
        if entry["kind"] == "point" and whole:
            left["their documents decide as a whole: give these to a new run"] += 1
            continue
        if entry["kind"] == "point":
            points.setdefault(entry["source"], entry["point_id"])
            texts[entry["source"]].append((entry["point_id"], content.decode()))
            continue
        line = _line_of(entry["reason"], entry["source"], content, before, now)
        if isinstance(line, str):
            left[line] += 1
        else:
            lines.append(line)
            retried += 1
    users = _users_of(run, points, key)
    carried = _carried_of(run, {point for own in texts.values() for point, _ in own})
    for doc_id, own in texts.items():
        if doc_id not in users:
            left["their user is not known any more"] += len(own)
            continue
        user, label = users[doc_id]
        row = {now.fields.paths[0]: _text_of(own, carried), now.id: doc_id}
        row |= {name: value for name, value in carried[own[0][0]].items() if name in now.keep}
        row |= {} if user is None else {now.user: user}
        row |= {} if now.label is None or label is None else {now.label: label}
        lines.append(json.dumps(row).encode() + b"\n")
        retried += len(own)
    return lines, retried, left


def _line_of(
    reason: str, source: str, content: bytes, before: InputSettings, now: InputSettings
) -> bytes | str:
    """A rejected row as a JSON line, or why it cannot be one."""
    kind = format_of(source) if before.format == "auto" else before.format
    if reason == DUPLICATE_ID:
        return "their document's id occurs twice"
    if kind is None or not (kind == "jsonl" or FORMATS[kind].is_text):
        return "they are rows of a table: mend the file, and give it to a new run"
    if len(content) >= KEPT_BYTES:
        return "only their first 64 KiB were kept"
    if kind == "jsonl":
        return content.removeprefix("\ufeff".encode()).removesuffix(b"\n") + b"\n"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "they are not UTF-8"
    return json.dumps({now.fields.paths[0]: text, now.id: PurePosixPath(source).name}).encode() + b"\n"


def _carried_of(run: RunFolder, points: Set[int]) -> dict[int, dict[str, Any]]:
    """What each of these points carries beside its text (``audit/points``)."""
    rows = (row for batch in read_batches(run.points) for row in batch.to_pylist() if points)
    return {row["point_id"]: row for row in rows if row["point_id"] in points}


def _text_of(own: list[tuple[int, str]], carried: Mapping[int, dict[str, Any]]) -> Any:
    """The points of a document as a text, or as a conversation where their roles are known."""
    if any(ROLE in carried[point] for point, _ in own):
        return [{"role": carried[point][ROLE], "content": text} for point, text in own]
    return "\n".join(text for _, text in own)


def _users_of(
    run: RunFolder, documents: Mapping[str, int], key: DigestKey | None
) -> dict[str, tuple[str | None, str | None]]:
    """User (None: a document that names nobody) and class of each document, given with one of its points.

    A point in quarantine is not in ``vault/``.  Its user is known from another point of its document, or
    from any point of the same user: their keyed ids agree, which needs the run's ``key``.  Where neither is
    there, it is never taken for a user of its own: one person must not become two.
    """
    manifest = read_manifest(run)
    found: dict[str, tuple[str | None, str | None]] = {}
    seen: set[str] = set()
    if documents and "vault" not in manifest.get("purged", ()):
        labelled = [CLASS] if manifest["configuration"]["input"].get("label") is not None else []
        for batch in read_batches(run.vault, ["doc_id", "user_id", *labelled]):
            for doc_id, user, *label in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                seen |= {user} if user is not None else set()
                if doc_id in documents:
                    found[doc_id] = (user, label[0] if label else None)
    if key is None or not documents:
        return found
    by_user: dict[str, str] = {key.pseudonym("user", user): user for user in seen}
    of_points = {point: doc_id for doc_id, point in documents.items()}
    for batch in read_batches(run.points, ["point_id", "user"]):
        for point, keyed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if (doc_id := of_points.get(point)) is None or doc_id in found:
                continue
            if keyed in by_user:
                found[doc_id] = (by_user[keyed], None)
            elif keyed == key.pseudonym("lone-user", doc_id):
                # a document that names nobody has an id of its own
                found[doc_id] = (None, None)
    return found
