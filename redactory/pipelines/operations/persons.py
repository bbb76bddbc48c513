"""Find a person's rows by name in the original text of runs, also of failed, held and rejected ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from redactory.foundation.errors import RedactoryError, RunStateError
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.keys import describe_shredding, find_shred_record
from redactory.pipelines.curation.output_folder import lock_folders
from redactory.pipelines.curation.release_log import read_history, run_statuses
from redactory.pipelines.operations.quarantine import escape_for_terminal
from redactory.redaction import RunFolder, is_finished, list_parts, read_manifest, read_part, require_regular_files
from redactory.redaction.folder import find_containing_job, find_runs
from redactory.redaction.name_search import MATCH_KINDS, NameMatch, NameSearch

ShowContext = Callable[[dict[str, Any], str], None]
"""Gets a candidate and the original text around a match: for a terminal only."""
_CONTEXT_CHARS = 40


@dataclass(frozen=True)
class OriginalRow:
    """A document of the vault, or a row or an example of the quarantine, with a ``reason``.

    ``doc_id`` is None for a rejected row whose id cannot be read. ``examples`` are rows of the vault.
    """

    doc_id: str | None
    user_id: str | None
    text: str
    source: str | None = None
    reason: str | None = None
    examples: tuple[dict[str, Any], ...] = ()


def find_candidates(
    paths: Iterable[str | Path], name: str, show_context: ShowContext | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows that may name a person, the clearest matches first, and the runs that cannot be searched.

    A candidate is {run, state, doc_id, user_id, source, reason, matches {kind: count}}, without text.
    """
    search, candidates, problems = NameSearch(name), list[dict[str, Any]](), list[dict[str, Any]]()
    runs = list(dict.fromkeys(run for place in paths for run in find_runs(place)))
    with lock_folders(*map(find_containing_job, runs)):
        for run in runs:
            try:
                candidates += run_with_sealed_traceback(run.state, _search_run, run, search, show_context)
            except RedactoryError as error:
                problems.append({"run": str(run.root), "problem": str(error), "exit_code": error.exit_code})
    return sorted(candidates, key=lambda c: min(map(MATCH_KINDS.index, c["matches"]))), problems


def _search_run(run: RunFolder, search: NameSearch, show_context: ShowContext | None) -> list[dict[str, Any]]:
    state, candidates = get_run_state(run), []
    for row in read_original_rows(run):
        matches = search.find_matches(row.text)
        by_id = [match for field in (row.doc_id, row.user_id) for match in search.find_matches(field or "")]
        if not matches and not by_id:
            continue
        origin = {"doc_id": row.doc_id, "user_id": row.user_id, "source": row.source, "reason": row.reason}
        counts = Counter(match.kind for match in (*matches, *by_id))
        ordered = {kind: counts[kind] for kind in MATCH_KINDS if kind in counts}
        candidates.append({"run": str(run.root), "state": state, **origin, "matches": ordered})
        if show_context is not None and matches:
            clearest = min(matches, key=lambda match: MATCH_KINDS.index(match.kind))
            show_context(candidates[-1], _quote_context(row.text, clearest))
    return candidates


def get_run_state(run: RunFolder) -> str:
    """Return the state of ``run`` in its log; "finished" or "unfinished" if it is in no job."""
    status = next(iter(run_statuses(read_history(run)).values()), None)
    return status.state if status is not None else "finished" if is_finished(run) else "unfinished"


def _quote_context(text: str, match: NameMatch) -> str:
    start, end = max(0, match.start - _CONTEXT_CHARS), match.end + _CONTEXT_CHARS
    return escape_for_terminal(" ".join(text[start:end].split()).encode("utf-8", "replace"))


def read_original_rows(run: RunFolder) -> Iterator[OriginalRow]:
    """Read the original text of ``run``: of an unfinished one what its stages have read so far.

    ``RunStateError`` if text was purged or shredded, so that a person in it would be overlooked.
    """
    require_regular_files(run)
    id_column: str | None = None
    user_column: str | None = None
    if is_finished(run):
        manifest = read_manifest(run)
        if not run.data_key.is_file() and (record := find_shred_record(run)) is not None:
            raise RunStateError(f"{run.root.name} {describe_shredding(record)}, so its text cannot be searched")
        if "vault" in manifest.get("purged", ()):
            raise RunStateError(
                f"the vault of {run.root.name} was purged, so its text cannot be searched; "
                "an erasure by --doc-id or --user-id still works"
            )
        columns = Config.from_manifest(manifest["configuration"]).input
        id_column, user_column = columns.id, columns.user
    for path in list_parts(run.vault if is_finished(run) else run.work / "examples"):
        columns_read = ["example_id", "doc_id", "user_id", "prefix", "text", "suffix"]
        for doc_id, rows in groupby(read_part(path, columns_read).to_pylist(), itemgetter("doc_id")):
            examples = tuple(rows)
            text = "".join(row[name] or "" for row in examples for name in ("prefix", "text", "suffix"))
            yield OriginalRow(doc_id, examples[0]["user_id"], text, examples=examples)
    folders = [run.quarantine] if is_finished(run) else [run.work / "rejected", run.work / "repeated"]
    for path in (path for folder in folders for path in list_parts(folder)):
        for row in read_part(path).to_pylist():
            text = (row["content"] or b"").decode("utf-8", "replace")
            if row.get("example_id") is not None:
                yield OriginalRow(row["source"], row["user_id"], text, reason=row["reason"])
            else:
                ids = [_read_json_id(text, column) for column in (id_column, user_column)]
                yield OriginalRow(ids[0], ids[1], text, f"{row['source']}:{row['row']}", row["reason"])


def _read_json_id(text: str, column: str | None) -> str | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    value = value.get(column) if isinstance(value, dict) else None
    return None if value is None else str(value)
