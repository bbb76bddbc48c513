"""The deduplication index across runs: a folder with one entry per run, which counts once its run is finished.

::

    FOLDER/                          mode 0700
      index.json                     format, id, and all parameters of its digests
      runs/000001-NAME/              entries that count, in commit order
      pending/TOKEN/                 drafts of unfinished runs; sealed by entry.json just before _SUCCESS
      lock                           held while an entry is committed or removed

An entry moves from ``pending/`` to ``runs/`` by one rename, and is removed by one to a temporary name. The caller of
:meth:`IndexFolder.commit_entry` must know that the run is finished.
"""

from __future__ import annotations

import datetime
import re
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256, flatten_keys
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import (
    file_lock,
    make_private_folder,
    read_json,
    remove_leftovers,
    remove_path,
    sync_to_disk,
    write_json,
)
from redactory.foundation.records import estimate_record_ages

FORMAT = "redactory-index/2"
LOCK_TIMEOUT = 60.0
"""Seconds to wait for another committing run; our own text is on disk by then."""
_DRAFT_OWNER = "begun.json"
_NAME = re.compile(r"(\d{6,})-.+")


@dataclass(frozen=True)
class Entry:
    """One run's entry: its folder and the content of ``entry.json``."""

    folder: Path
    body: dict[str, Any]

    @property
    def name(self) -> str:
        """Its number, which counts commits, and its run's name."""
        return self.folder.name

    @property
    def number(self) -> int:
        """Its number; 0 while pending."""
        match = _NAME.fullmatch(self.folder.name)
        return int(match[1]) if match else 0

    @property
    def created_at(self) -> datetime.datetime:
        """When the entry was written."""
        return datetime.datetime.fromisoformat(self.body["created"])

    def verify_files(self) -> None:
        """Compare the entry's files with their digests; ``CheckFailed`` names one that differs."""
        for name, digest in self.body["files"].items():
            path = self.folder / name
            if not path.is_file() or file_sha256(path) != digest:
                raise CheckFailed(f"{path} differs from what was written: restore it, or start a new index")


class IndexFolder:
    """The index folder; hold :meth:`hold_lock` while calling methods that change it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.header_path, self.runs, self.pending = root / "index.json", root / "runs", root / "pending"
        self.lock = root / "lock"

    def exists(self) -> bool:
        """Whether an index was created here."""
        return self.header_path.is_file()

    def hold_lock(self) -> AbstractContextManager[None]:
        """Lock the index for changes; ``RunStateError`` if another process keeps it locked."""
        make_private_folder(self.root)
        return file_lock(self.lock.parent.resolve() / self.lock.name, str(self.root), LOCK_TIMEOUT)

    def open_or_create(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Read ``index.json``; create the index if there is none.

        ``RunStateError`` for ``parameters`` that differ from the index's, and for a folder with other files.
        """
        if not self.exists():
            unexpected = [p.name for p in self.root.iterdir() if p.name != "lock" and not p.name.startswith(".tmp-")]
            if unexpected:
                raise RunStateError(
                    f"{self.root} contains {min(unexpected)}, but no index: use an empty folder (dedup.index.path)"
                )
            body = {"format": FORMAT, "id": secrets.token_hex(8), "last": 0, "parameters": parameters}
            write_json(self.header_path, body)
        for folder in (self.runs, self.pending):
            make_private_folder(folder)
            remove_leftovers(folder)
        remove_leftovers(self.root)
        return self.read_matching_header(parameters)

    def read_header(self) -> dict[str, Any]:
        """Read ``index.json``; ``RunStateError`` if it is missing or of another format."""
        if not self.exists():
            raise RunStateError(f"{self.root} is not an index: {self.header_path.name} is missing")
        body: dict[str, Any] = read_json(self.header_path)
        if body.get("format") != FORMAT:
            raise RunStateError(
                f"{self.root} has the format {body.get('format')}, but this version writes {FORMAT}: start "
                "a new index in another folder (dedup.index.path)"
            )
        return body

    def read_matching_header(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Call :meth:`read_header`, and raise ``RunStateError`` if the index has other ``parameters``."""
        body = self.read_header()
        recorded, expected = flatten_keys(body["parameters"]), flatten_keys(parameters)
        for key in {**expected, **recorded}:
            if recorded.get(key) != expected.get(key):
                raise RunStateError(
                    f"{self.root} was created with {key} {recorded.get(key)}, but this run has {key} "
                    f"{expected.get(key)}; an index cannot mix parameters: use the original value, or start a "
                    "new index in another folder (dedup.index.path)"
                )
        return body

    def list_entries(self) -> list[Entry]:
        """Return the entries that count, in commit order."""
        entries = [_read_entry(folder) for folder in sorted(self.runs.glob("*-*")) if _NAME.fullmatch(folder.name)]
        return sorted(entries, key=lambda entry: entry.number)

    def list_pending_entries(self) -> list[Entry]:
        """Entries that are sealed but do not count yet."""
        return [_read_entry(path.parent) for path in self._list_drafts("entry.json")]

    def get_draft_folder(self, token: str) -> Path:
        """The folder in which a run drafts its entry."""
        return self.pending / token

    def create_draft(self, token: str, run: Path) -> None:
        """Create the draft folder, and record the run that owns it."""
        write_json(make_private_folder(self.get_draft_folder(token)) / _DRAFT_OWNER, {"path": str(run)})

    def map_drafts_to_runs(self) -> dict[Path, Path]:
        """Return the run folder of each folder in ``pending/``, sealed or not."""
        return {path.parent: Path(read_json(path)["path"]) for path in self._list_drafts(_DRAFT_OWNER)}

    def _list_drafts(self, name: str) -> list[Path]:
        # a killed removal may have left a temporary name
        return sorted(self.pending.glob(f"[!.]*/{name}"))

    def commit_entry(self, entry: Entry) -> Entry:
        """Make a pending entry count, as the last one or in place of its former version. Its run must be finished."""
        body = self.read_header()
        number = max([body["last"], *(other.number for other in self.list_entries())]) + 1
        former = entry.body.get("replaces")
        target = self.runs / (former or f"{number:06d}-{entry.body['run']}")
        if target.exists():
            remove_path(target)
        # a killed removal may have left the former version
        remove_leftovers(self.runs)
        entry.folder.replace(target)
        sync_to_disk(self.runs)
        sync_to_disk(self.pending)
        if former is None:
            write_json(self.header_path, {**body, "last": number})
        return _read_entry(target)

    def prune_entries(self, keep_runs: int | None, keep_days: int | None, now: datetime.datetime) -> list[str]:
        """Remove entries before the last ``keep_runs`` or older than ``keep_days``; return their names.

        The selection depends only on numbers and dates, never on an entry's content.
        """
        entries = self.list_entries()
        expired = entries[: max(0, len(entries) - keep_runs)] if keep_runs is not None else []
        if keep_days is not None:
            # compare entries with each other: a clock years ahead would empty the index
            ages = estimate_record_ages([*(entry.created_at for entry in entries), now])
            limit = datetime.timedelta(days=keep_days)
            expired += [e for e, age in zip(entries, ages, strict=False) if age > limit and e not in expired]
        for entry in expired:
            remove_path(entry.folder)
        return sorted(entry.name for entry in expired)


def _read_entry(folder: Path) -> Entry:
    try:
        return Entry(folder, read_json(folder / "entry.json"))
    except (OSError, ValueError):
        raise CheckFailed(f"{folder}/entry.json cannot be read: restore it, or start a new index") from None
