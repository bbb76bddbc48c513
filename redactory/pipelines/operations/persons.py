"""Find a person's rows by name in the original text of runs, also of failed, held and rejected ones."""

from __future__ import annotations

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
from redactory.pipelines.operations.erase_examples import parse_row_ids
from redactory.pipelines.operations.quarantine import escape_for_terminal
from redactory.redaction import RunFolder, is_finished, list_parts, read_manifest, read_part, require_regular_files
from redactory.redaction.folder import find_containing_job, find_runs
from redactory.redaction.name_search import MATCH_KINDS, NameSearch

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

    def count_matches(self, search: NameSearch) -> dict[str, int]:
        """Count the matches in text and ids by kind, the clearest first."""
        fields = (self.text, self.doc_id or "", self.user_id or "")
        counts = Counter(match.kind for field in fields for match in search.find_matches(field))
        return {kind: counts[kind] for kind in MATCH_KINDS if kind in counts}

    def describe_origin(self) -> dict[str, str | None]:
        """Return the row's ids, and of a quarantined row its source and the reason."""
        return {"doc_id": self.doc_id, "user_id": self.user_id, "source": self.source, "reason": self.reason}


def find_candidates(
    paths: Iterable[str | Path], name: str, show_context: ShowContext | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows that may name a person, the clearest matches first, and the runs that cannot be searched.

    A candidate is {run, state, doc_id, user_id, source, reason, matches {kind: count}}, without text.
    """
    search, candidates = NameSearch(name), list[dict[str, Any]]()

    def search_run(run: RunFolder) -> None:
        for row in read_original_rows(run):
            if counts := row.count_matches(search):
                facts = {"run": str(run.root), "state": get_run_state(run), **row.describe_origin()}
                candidates.append({**facts, "matches": counts})
                if show_context is not None and (matches := search.find_matches(row.text)):
                    start, end, _ = min(matches, key=lambda match: MATCH_KINDS.index(match.kind))
                    context = row.text[max(0, start - _CONTEXT_CHARS) : end + _CONTEXT_CHARS]
                    show_context(candidates[-1], escape_for_terminal(" ".join(context.split()).encode()))

    problems = process_runs(paths, search_run)
    return sorted(candidates, key=lambda candidate: MATCH_KINDS.index(next(iter(candidate["matches"])))), problems


def process_runs(paths: Iterable[str | Path], work: Callable[[RunFolder], None]) -> list[dict[str, Any]]:
    """Call ``work`` for each run, under the locks of the jobs; return the runs where it failed, and why."""
    runs, problems = list(dict.fromkeys(run for place in paths for run in find_runs(place))), []
    with lock_folders(*map(find_containing_job, runs)):
        for run in runs:
            try:
                run_with_sealed_traceback(run.state, work, run)
            except RedactoryError as error:
                problems.append({"run": str(run.root), "problem": str(error), "exit_code": error.exit_code})
    return problems


def get_run_state(run: RunFolder) -> str:
    """Return the state of ``run`` in its log; "finished" or "unfinished" if it is in no job."""
    status = next(iter(run_statuses(read_history(run)).values()), None)
    return status.state if status is not None else "finished" if is_finished(run) else "unfinished"


def read_original_rows(run: RunFolder) -> Iterator[OriginalRow]:
    """Read the original text of ``run``: of an unfinished one what its stages have read so far.

    ``RunStateError`` if text was purged or shredded, so that a person in it would be overlooked.
    """
    require_regular_files(run)
    columns, texts, rejected = None, run.work / "examples", [run.work / "rejected", run.work / "repeated"]
    if is_finished(run):
        manifest, texts, rejected = read_manifest(run), run.vault, [run.quarantine]
        columns = Config.from_manifest(manifest["configuration"]).input
        if not run.data_key.is_file() and (record := find_shred_record(run)) is not None:
            raise RunStateError(f"{run.root.name} {describe_shredding(record)}, so its text cannot be searched")
        if "vault" in manifest.get("purged", ()):
            raise RunStateError(
                f"the vault of {run.root.name} was purged, so its text cannot be searched; "
                "an erasure by --doc-id or --user-id still works"
            )
    names = ("prefix", "text", "suffix")
    for path in list_parts(texts):
        table = read_part(path, ["example_id", "doc_id", "user_id", *names])
        for doc_id, rows in groupby(table.to_pylist(), itemgetter("doc_id")):
            examples = tuple(rows)
            text = "".join(row[name] or "" for row in examples for name in names)
            yield OriginalRow(doc_id, examples[0]["user_id"], text, examples=examples)
    for row in (row for folder in rejected for path in list_parts(folder) for row in read_part(path).to_pylist()):
        text, source = (row["content"] or b"").decode("utf-8", "replace"), f"{row['source']}:{row['row']}"
        if row.get("example_id") is not None:
            yield OriginalRow(row["source"], row["user_id"], text, reason=row["reason"])
        else:
            ids = (None, None) if columns is None else parse_row_ids(text, columns) or (None, None)
            yield OriginalRow(*ids, text, source, row["reason"])
