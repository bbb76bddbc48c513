"""The quarantine of a finished run: what lies there, by reason and id; the content of one entry."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import DigestKey
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, part_name, parts, read_batches, read_manifest, read_part
from redactory.redaction.folder import JobFolder
from redactory.redaction.shards import CLASS, require_there

ROW, POINT = "row", "point"
LISTED = 100
_ID = re.compile(r"(\d{1,9})-(\d{1,9})")
_KEPT_SIGNS = "\n\t"


def quarantine_list(place: str | Path, limit: int = LISTED) -> dict[str, Any]:
    """What lies in the quarantine of a run, or of every finished run of a job; no text, no document's id.

    ``{"runs": [{"run", "entries", "reasons": [{reason, kind, count, bytes}], "listed": [...]}]}``; of
    each run the first ``limit`` entries are listed: ``id`` (as :func:`content_of_entry` takes it), ``kind``
    (row or point), ``reason``, ``bytes``, and where it came from: ``source`` and ``row``, or ``point_id``.
    A quarantine that was purged has ``purged`` True.  ``RunStateError`` where there is no finished run.
    """
    root = Path(place)
    job = JobFolder(root)
    if not job.exists():
        run = RunFolder(root)
        read_manifest(run)
        return {"runs": [sealed(run.state, _listed, run, limit)]}
    runs = [RunFolder(path.parent) for path in sorted(root.glob(f"*/{RunFolder(root).success.name}"))]
    # "latest" is a link to one of them
    return {"runs": [sealed(r.state, _listed, r, limit) for r in runs if not r.root.is_symlink()]}


def content_of_entry(run: str | Path, entry: str) -> bytes:
    """The content of one entry: a rejected row as far as it was kept, or a point's text (UTF-8).

    It is original text: show it to people alone, and store it nowhere.  ``ConfigurationError`` where there
    is no entry of that id.
    """
    folder = RunFolder(Path(run))
    read_manifest(folder)
    require_there(folder.quarantine)
    return sealed(folder.state, _content, folder, entry)


def harmless(content: bytes) -> str:
    """``content`` for a terminal: what is no sign to see, or could steer the terminal, as an escape."""
    text = content.decode("utf-8", "backslashreplace")
    return "".join(
        sign if sign.isprintable() or sign in _KEPT_SIGNS else sign.encode("unicode_escape").decode()
        for sign in text
    )


def entries(run: RunFolder, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Each entry's ``columns`` and its ``id``, in order, a part at a time."""
    require_there(run.quarantine)
    for number, path in enumerate(parts(run.quarantine)):
        for offset, entry in enumerate(read_part(path, columns).to_pylist()):
            yield {"id": f"{number}-{offset}", **entry}


def _listed(run: RunFolder, limit: int) -> dict[str, Any]:
    found: Counter[tuple[str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    listed: list[dict[str, Any]] = []
    try:
        for entry in entries(run, ["kind", "reason", "source", "row", "point_id", "content"]):
            key = entry["reason"], entry["kind"]
            found[key] += 1
            size[key] += len(entry["content"] or b"")
            if len(listed) < limit:
                listed.append(_shown(entry))
    except RunStateError:
        if "quarantine" not in read_manifest(run).get("purged", ()):
            raise
        return {"run": str(run.root), "purged": True, "entries": 0, "reasons": [], "listed": []}
    reasons = [
        {"reason": reason, "kind": kind, "count": count, "bytes": size[reason, kind]}
        for (reason, kind), count in found.most_common()
    ]
    return {"run": str(run.root), "entries": found.total(), "reasons": reasons, "listed": listed}


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    """Without text: a point's source is its document's id, and stays where it is."""
    own = ("source", "row") if entry["kind"] == ROW else ("point_id",)
    told = {name: entry[name] for name in ("id", "kind", "reason", *own)}
    return {**told, "bytes": len(entry["content"] or b"")}


def _content(run: RunFolder, entry: str) -> bytes:
    named = _ID.fullmatch(entry)
    path = run.quarantine / part_name(int(named[1])) if named else None
    if named is not None and path is not None and path.is_file():
        column = read_part(path, ["content"])["content"]
        if int(named[2]) < len(column):
            return column[int(named[2])].as_py() or b""
    raise ConfigurationError(
        f"{run.root.name} has no entry of that id in quarantine: see redactory quarantine list {run.root}"
    )


# Whose the quarantined points of a run are: ``vault/`` has the users, ``audit/points`` their keyed ids.


@dataclass(frozen=True)
class Author:
    """Who wrote a document (None: it names nobody, and is its own user), and its class."""

    user_id: str | None
    label: str | None = None


UNKNOWN = Author(None)
"""Stands for a user that cannot be told any more (compare with ``is``)."""


def authors_of(run: RunFolder, documents: Mapping[str, int], key: DigestKey | None) -> dict[str, Author]:
    """The author of each document, given with the id of one of its points.

    A point in quarantine is not in ``vault/``.  Its user is known from another point of its document, or
    from any point of the same user: their keyed ids agree, which needs the run's ``key``.  Where neither is
    there, the answer is :data:`UNKNOWN`, and never a user of its own: one person must not become two.
    """
    keyed = _keyed(run, documents)
    found = dict.fromkeys(documents, UNKNOWN)
    by_user: dict[str, Author] = {}
    wanted = set(keyed.values())
    if key is not None:
        # a document that names nobody has an id of its own
        for doc_id, user in keyed.items():
            if user == key.pseudonym("lone-user", doc_id):
                found[doc_id] = Author(None)
    seen: set[str] = set()
    for doc_id, user_id, label in _vault(run):
        if doc_id in found:
            found[doc_id] = Author(user_id, label)
        if key is not None and user_id is not None and user_id not in seen:
            seen.add(user_id)
            if (pseudonym := key.pseudonym("user", user_id)) in wanted:
                by_user[pseudonym] = Author(user_id)
    return {
        doc_id: by_user.get(keyed[doc_id], UNKNOWN) if author is UNKNOWN else author
        for doc_id, author in found.items()
    }


def _keyed(run: RunFolder, documents: Mapping[str, int]) -> dict[str, str]:
    """The keyed user of each document."""
    documents_of = {point: doc_id for doc_id, point in documents.items()}
    found = {}
    for batch in read_batches(run.points, ["point_id", "user"]) if documents else ():
        for point, user in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if point in documents_of:
                found[documents_of[point]] = user
    return found


def _vault(run: RunFolder) -> Iterator[tuple[str, str | None, str | None]]:
    """Document, user and class of every point there; nothing where it was purged."""
    manifest = read_manifest(run)
    if "vault" in manifest.get("purged", ()):
        return
    labelled = manifest["configuration"]["input"].get("label") is not None
    columns = ["doc_id", "user_id", *([CLASS] if labelled else [])]
    for batch in read_batches(run.vault, columns):
        columns_ = [column.to_pylist() for column in batch.columns]
        if not labelled:
            columns_.append([None] * batch.num_rows)
        yield from zip(*columns_, strict=True)
