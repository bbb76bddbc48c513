"""What an index holds, for people; and taking old runs out of it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from redactory.dedup.index_folder import Entry, IndexFolder
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.indexes.indexing import is_of, promote_finished
from redactory.redaction import RunFolder

WAITING = {
    "finished": "its run is finished: the next run counts it",
    "unfinished": "its run is not finished: it does not count",
    "gone": "its run folder is gone: it does not count, and redactory index prune removes it",
}


def show_index(folder: str | Path) -> dict[str, Any]:
    """``{"index", "id", "parameters", "runs": [...], "pending": [...]}``; ``RunStateError`` without an index.

    Nothing is changed.  ``texts`` are what the run saw on each side (in mode ``minhash``: kept).
    """
    index = IndexFolder(Path(folder))
    head = index.read()
    sealed = {entry.folder: entry for entry in index.pending()}
    return {
        "index": str(index.root),
        "id": head["id"],
        "parameters": head["parameters"],
        "runs": [_told(entry) for entry in index.entries()],
        "pending": [
            {"draft": draft.name, "path": str(run), "state": _state(run, sealed.get(draft))}
            for draft, run in index.drafts().items()
        ],
    }


def prune_index(folder: str | Path, keep_runs: int | None, keep_days: int | None) -> dict[str, Any]:
    """Remove all but the last ``keep_runs`` runs, what is older than ``keep_days``, and drafts of no run.

    ``{"index", "removed": [names], "kept": [names]}``.  A run at work that goes by a removed one cannot go
    on.  ``ConfigurationError`` where neither limit is given, or one is below 0.
    """
    limits = [limit for limit in (keep_runs, keep_days) if limit is not None]
    if not limits or min(limits) < 0:
        raise ConfigurationError("say what is to be kept: --keep-runs N, --keep-days N, or both; 0 or more")
    index = IndexFolder(Path(folder))
    index.read()
    with index.alone():
        promote_finished(index)
        removed = index.retain(keep_runs, keep_days, datetime.datetime.now(datetime.UTC))
        for draft, run in index.drafts().items():
            if not run.exists():
                index.remove(draft)
                removed.append(draft.name)
        return {"index": str(index.root), "removed": removed, "kept": [e.name for e in index.entries()]}


def _told(entry: Entry) -> dict[str, Any]:
    return {
        "entry": entry.name,
        "created": entry.body["created"],
        "texts": entry.body["counts"],
        "path": entry.body["path"],
    }


def _state(run: Path, entry: Entry | None) -> str:
    if not run.exists():
        return "gone"
    return "finished" if entry is not None and is_of(RunFolder(run), entry) else "unfinished"
