"""The quarantine of a finished run: what lies there, by reason and id; the content of one entry."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, part_name, parts, read_manifest, read_part
from redactory.redaction.job_folder import JobFolder
from redactory.redaction.purged import require_there

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
