"""Answer a person's access request: where their data are, and their original text without that of other people."""

from __future__ import annotations

import datetime
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from redactory.evaluation.report import load_template
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import remove_path, write_json, write_text
from redactory.foundation.keys import load_digest_key, unicode_variants
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.output_folder import create_folder_atomically, lock_folders
from redactory.pipelines.curation.release_log import Event, append_event, require_one_line
from redactory.pipelines.operations.erase import compute_request_digest, list_remaining_traces
from redactory.pipelines.operations.erase_examples import Person
from redactory.pipelines.operations.persons import OriginalRow, get_run_state, read_original_rows
from redactory.redaction import RunFolder, is_finished, read_batches
from redactory.redaction.folder import find_containing_job, find_runs
from redactory.redaction.mask import MASK, mask_intervals, merge_intervals
from redactory.redaction.name_search import CLEAR_KINDS, MATCH_KINDS, NameSearch
from redactory.redaction.spellings import Spellings, split_name

FORMAT = "redactory-access/1"
_PUBLIC_LABELS = "public"
"""The policy whose spans stay unchanged in the shards."""
_ROLES = frozenset(("agent", "assistant", "bot", "client", "customer", "operator", "support", "system", "user"))
"""Speakers' labels that name nobody."""
_WORD = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")


def access(
    paths: Iterable[str | Path],
    *,
    out: str | Path,
    by: str,
    person: str | None = None,
    doc_ids: Iterable[str] = (),
    user_ids: Iterable[str] = (),
) -> dict[str, Any]:
    """Write a subject-access report to the new folder ``out`` (mode 0700): ``report.html`` and ``report.json``.

    The page is for the person; the JSON adds the ids of rows and users, which may name other people.

    ``doc_ids`` and ``user_ids`` choose the rows; without them, rows with the full name or e-mail address of ``person``
    are chosen, and other matches are counted in ``unclear``. In the text of chosen rows every sensitive span is masked
    unless it names ``person``. Text that detection did not process is ``withheld``. Returns {ok, out, runs, unclear,
    problems} without text; ``runs`` have run, state, documents, examples, withheld, splits, models, exports and
    samples. Each run's log records the access ``by`` somebody before the text is written. ``ConfigurationError``
    without a person or an id, ``RunStateError`` if ``out`` exists or no row is found.
    """
    require_one_line(by)
    ids = Person(frozenset(doc_ids), frozenset(user_ids))
    search, key = None if person is None else NameSearch(person), load_digest_key()
    if (search is None and not ids.doc_ids | ids.user_ids) or "" in ids.doc_ids | ids.user_ids:
        raise ConfigurationError("say whose data: --person, --doc-id, --user-id, or a file with ids")
    runs = list(dict.fromkeys(run for place in paths for run in find_runs(place)))
    results, problems, unclear = list[dict[str, Any]](), list[dict[str, Any]](), Counter[str]()
    if Path(out).exists():
        raise RunStateError(f"{out} exists; give a new folder")
    with lock_folders(*map(find_containing_job, runs)):
        for run in runs:
            try:
                result = run_with_sealed_traceback(run.state, _collect_run, run, ids, search, person, unclear)
                results += [result] if result["rows"] else []
            except RedactoryError as error:
                problems.append({"run": str(run.root), "problem": str(error), "exit_code": error.exit_code})
        if not results:
            reasons = "".join(f"; {problem['run']}: {problem['problem']}" for problem in problems)
            hint = " Rows with the surname only: redactory erase --person lists them" if unclear else ""
            raise RunStateError(f"no row of this person is in these runs{reasons}.{hint}")
        request = compute_request_digest(ids, key, person or "")
        for result in results:
            counts = {name: result[name] for name in ("documents", "examples", "withheld")}
            append_event(RunFolder(Path(result["run"])), Event.ACCESSED, by=by, request=request, **counts)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        report = {"format": FORMAT, "time": now, "by": by, "person": person, "runs": results, "not_searched": problems}
        _write_report(Path(out), report)
    summary = [{name: value for name, value in result.items() if name != "rows"} for result in results]
    return {"ok": not problems, "out": str(out), "runs": summary, "unclear": dict(unclear), "problems": problems}


def _write_report(out: Path, report: Mapping[str, Any]) -> None:
    with create_folder_atomically(out) as folder:
        try:
            write_json(folder / "report.json", report)
            write_text(folder / "report.html", load_template("access.html.j2").render(report=report, mask=MASK))
        except BaseException:
            # original text does not stay in a hidden folder
            remove_path(folder)
            raise


def _collect_run(
    run: RunFolder, ids: Person, search: NameSearch | None, person: str | None, unclear: Counter[str]
) -> dict[str, Any]:
    """Collect the chosen rows of one run; count the matches that are not clear enough to choose a row."""
    users = {spelling for user in ids.user_ids for spelling in unicode_variants(user)}
    has_ids, chosen = bool(ids.doc_ids or users), list[OriginalRow]()
    for row in read_original_rows(run):
        kinds = set[str]()
        if search is not None and not has_ids:
            kinds = {m.kind for field in (row.text, row.user_id, row.doc_id) for m in search.find_matches(field or "")}
        if kinds & CLEAR_KINDS or row.doc_id in ids.doc_ids or row.user_id in users:
            chosen.append(row)
        else:
            unclear.update(sorted(kinds, key=MATCH_KINDS.index)[:1])
    result: dict[str, Any] = {"run": str(run.root), "state": get_run_state(run), "documents": 0, "examples": 0}
    result |= {"withheld": 0, "splits": {}, "models": [], "exports": [], "samples": [], "rows": []}
    if not chosen:
        return result
    example_ids = {example["example_id"] for row in chosen for example in row.examples}
    spans = _read_spans(run, example_ids) if is_finished(run) else None
    decisions = _read_decisions(run, example_ids) if is_finished(run) else {}
    rows = []
    for row in chosen:
        origin = {name: getattr(row, name) for name in ("doc_id", "user_id", "source", "reason")}
        origin["is_author"] = row.user_id in users or bool(search and search.find_matches(row.user_id or ""))
        counts = Counter(decisions[example["example_id"]] for example in row.examples if decisions)
        # nothing looked for other people's data in what detection did not process
        text = None if spans is None or not row.examples else _mask_others(row, spans, person)
        rows.append({**origin, "splits": dict(counts), "text": text})
    if is_finished(run):
        traces = list_remaining_traces(run, example_ids)
        result |= {name: traces[name] for name in ("models", "exports", "samples")}
    splits = Counter(name for row in rows for name in Counter(row["splits"]).elements())
    withheld = sum(row["text"] is None for row in rows)
    counts = {"documents": len(rows), "examples": len(example_ids), "withheld": withheld}
    return {**result, **counts, "splits": dict(splits), "rows": rows}


def _read_spans(run: RunFolder, example_ids: Collection[int]) -> dict[int, list[tuple[int, int]]]:
    """Read the spans of both policies by example, without those of public labels."""
    ids, spans = pa.array(sorted(example_ids), pa.int64()), defaultdict[int, list[tuple[int, int]]](list)
    for batch in read_batches(run.spans, ["example_id", "start", "end", "policy"]):
        for span in batch.filter(pc.is_in(batch["example_id"], ids)).to_pylist():
            if span["policy"] != _PUBLIC_LABELS:
                spans[span["example_id"]].append((span["start"], span["end"]))
    return spans


def _read_decisions(run: RunFolder, example_ids: Collection[int]) -> dict[int, str]:
    ids, decisions = pa.array(sorted(example_ids), pa.int64()), dict[int, str]()
    for batch in read_batches(run.examples, ["example_id", "decision"]):
        rows = batch.filter(pc.is_in(batch["example_id"], ids)).to_pylist()
        decisions.update((row["example_id"], row["decision"]) for row in rows)
    return decisions


def _mask_others(row: OriginalRow, spans: Mapping[int, list[tuple[int, int]]], person: str | None) -> str:
    """Return the text of a document with every span masked that does not name ``person``."""
    values = [
        example["text"][start:end] for example in row.examples for start, end in spans.get(example["example_id"], ())
    ]
    is_person = _PersonSpans(person, values)
    pieces = []
    for example in row.examples:
        text = example["text"]
        kept = {i for s, e in spans.get(example["example_id"], ()) if is_person(text[s:e]) for i in range(s, e)}
        hidden = [(i, i + 1) for s, e in spans.get(example["example_id"], ()) for i in range(s, e) if i not in kept]
        # what is left of a span that also contains the person may be a full stop
        masked = [(s, e) for s, e in merge_intervals(text, hidden) if any(map(str.isalnum, text[s:e]))]
        prefix, suffix = (_mask_speaker(example[name] or "", is_person) for name in ("prefix", "suffix"))
        pieces.append(prefix + mask_intervals(text, masked) + suffix)
    return "".join(pieces)


def _mask_speaker(text: str, is_person: _PersonSpans) -> str:
    """Mask the words of a label before or after a text, such as a speaker's name, which detection did not process."""
    words = [match.span() for match in _WORD.finditer(text) if match[0].casefold() not in _ROLES]
    return text if not words or is_person(text[words[0][0] : words[-1][1]]) else mask_intervals(text, words)


class _PersonSpans:
    """Decides which spans of a document name the person, and nobody else of that document."""

    def __init__(self, person: str | None, values: Iterable[str]) -> None:
        self._person = person
        if person is not None:
            self._search, self._words = NameSearch(person), set(split_name(person))
            self._spellings = Spellings(
                [("PERSON", person), *(("PERSON", value) for value in values if any(map(str.isalpha, value)))]
            )

    def __call__(self, value: str) -> bool:
        if self._person is None:
            return False
        matches = self._search.find_matches(value)
        if any(match.kind in CLEAR_KINDS and match.end - match.start == len(value.strip()) for match in matches):
            return True
        words = split_name(value)
        is_part = bool(words) and all(word in self._words or len(word) == 1 for word in words)
        key = self._spellings.get_canonical_key
        return is_part and key("PERSON", value) == key("PERSON", self._person)
