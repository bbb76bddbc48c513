"""Answer a person's access request: where their data are, and their original text without that of other people."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from redactory.evaluation.report import load_template
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import remove_path, write_json, write_text
from redactory.foundation.keys import load_digest_key, unicode_variants
from redactory.pipelines.curation.output_folder import create_folder_atomically
from redactory.pipelines.curation.release_log import Event, append_event, require_one_line
from redactory.pipelines.curation.segment import is_known_role
from redactory.pipelines.operations.erase import compute_request_digest, list_remaining_traces
from redactory.pipelines.operations.erase_examples import Person
from redactory.pipelines.operations.persons import OriginalRow, get_run_state, process_runs, read_original_rows
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.mask import MASK, mask_intervals, merge_intervals
from redactory.redaction.name_search import CLEAR_KINDS, NameSearch, split_name
from redactory.redaction.shards import read_values
from redactory.redaction.spellings import Spellings

FORMAT = "redactory-access/1"
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

    The page is for the person; the JSON adds the ids of rows and users, which may name other people. ``doc_ids`` and
    ``user_ids`` choose the rows; without them, rows with the full name or e-mail address of ``person`` are chosen, and
    other matches are counted in ``unclear``. In the text of chosen rows every sensitive span is masked unless it names
    ``person``. Text that detection did not process is ``withheld``. Returns {ok, out, runs, unclear, problems} without
    text; ``runs`` have run, state, documents, examples, withheld, splits, models, exports and samples. Each run's log
    records the access ``by`` somebody before the text is written. ``ConfigurationError`` without a person or an id,
    ``RunStateError`` if ``out`` exists or all runs were searched and no row is found; ``out`` is None if some
    could not be searched.
    """
    require_one_line(by)
    ids, search = Person(frozenset(doc_ids), frozenset(user_ids)), None if person is None else NameSearch(person)
    if (search is None and not ids.doc_ids | ids.user_ids) or "" in ids.doc_ids | ids.user_ids:
        raise ConfigurationError("say whose data: --person, --doc-id, --user-id, or a file with ids")
    if Path(out).exists():
        raise RunStateError(f"{out} exists; give a new folder")
    request, results, unclear = compute_request_digest(ids, load_digest_key(), person), [], Counter[str]()
    users = {spelling for user in ids.user_ids for spelling in unicode_variants(user)}

    def collect_run(run: RunFolder) -> None:
        chosen = list[OriginalRow]()
        for row in read_original_rows(run):
            matches = row.count_matches(search) if search is not None and not (ids.doc_ids or users) else {}
            if row.doc_id in ids.doc_ids or row.user_id in users or CLEAR_KINDS & matches.keys():
                chosen.append(row)
            else:
                unclear.update(list(matches)[:1])
        if chosen:
            results.append(_describe_rows(run, chosen, person, users))
            counts = {name: results[-1][name] for name in ("documents", "examples", "withheld")}
            append_event(run, Event.ACCESSED, by=by, request=request, **counts)

    problems = process_runs(paths, collect_run)
    if not results and not problems:
        hint = "; rows with the surname only are listed by redactory erase --person" if unclear else ""
        raise RunStateError(f"no row of this person is in these runs{hint}")
    if results:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        report = {"format": FORMAT, "time": now, "by": by, "person": person, "runs": results, "not_searched": problems}
        page = load_template("access.html.j2").render(report=report, mask=MASK)
        with create_folder_atomically(Path(out)) as folder:
            try:
                write_json(folder / "report.json", report)
                write_text(folder / "report.html", page)
            except BaseException:
                # original text must not stay in a hidden folder
                remove_path(folder)
                raise
    summary = [{name: value for name, value in result.items() if name != "rows"} for result in results]
    written = str(out) if results else None
    return {"ok": not problems, "out": written, "runs": summary, "unclear": dict(unclear), "problems": problems}


def _describe_rows(
    run: RunFolder, rows: Collection[OriginalRow], person: str | None, users: Collection[str]
) -> dict[str, Any]:
    """Describe where the chosen rows of one run went, with their masked texts."""
    example_ids = {example["example_id"] for row in rows for example in row.examples}
    decisions, spans, traces = dict[int, str](), dict[int, list[tuple[int, int]]](), dict[str, Any]()
    if is_finished(run):
        columns = read_values(run.examples, "example_id", "decision")
        decisions = {example: decision for example, decision in columns if example in example_ids}
        for example, start, end, policy in read_values(run.spans, "example_id", "start", "end", "policy"):
            # spans of public labels are not masked in the shards either
            if example in example_ids and policy != "public":
                spans.setdefault(example, []).append((start, end))
        traces = list_remaining_traces(run, example_ids)
    described = []
    for row in rows:
        # nothing looked for other people's data in what detection did not process
        text = _mask_others(row, spans, person) if row.examples and is_finished(run) else None
        splits = Counter(decisions[example["example_id"]] for example in row.examples if decisions)
        described.append({**row.describe_origin(), "is_author": row.user_id in users, "splits": splits, "text": text})
    return {
        "run": str(run.root),
        "state": get_run_state(run),
        "documents": len(rows),
        "examples": len(example_ids),
        "withheld": sum(row["text"] is None for row in described),
        "splits": dict(Counter(decisions.values())),
        **{name: traces.get(name, []) for name in ("models", "exports", "samples")},
        "rows": described,
    }


def _mask_others(row: OriginalRow, spans: Mapping[int, list[tuple[int, int]]], person: str | None) -> str:
    """Return the text of a document with every span masked that does not name ``person``."""
    examples = [(example, spans.get(example["example_id"], [])) for example in row.examples]
    is_person = _make_person_check(person, [example["text"][s:e] for example, places in examples for s, e in places])
    pieces = []
    for example, places in examples:
        text = example["text"]
        kept = {i for s, e in places if is_person(text[s:e]) for i in range(s, e)}
        hidden = [(i, i + 1) for s, e in places for i in range(s, e) if i not in kept]
        # what is left of a span that also contains the person may be a full stop
        masked = [(s, e) for s, e in merge_intervals(text, hidden) if any(map(str.isalnum, text[s:e]))]
        prefix, suffix = (_mask_speaker(example[name] or "", is_person) for name in ("prefix", "suffix"))
        pieces.append(prefix + mask_intervals(text, masked) + suffix)
    return "".join(pieces)


def _mask_speaker(text: str, is_person: Callable[[str], bool]) -> str:
    """Mask the words of a label before or after a text, such as a speaker's name, which detection did not process."""
    words = [match.span() for match in _WORD.finditer(text) if not is_known_role(match[0])]
    return text if not words or is_person(text[words[0][0] : words[-1][1]]) else mask_intervals(text, words)


def _make_person_check(person: str | None, values: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that decides whether a span names ``person``, and nobody else of the document's ``values``."""
    if person is None:
        return lambda value: False
    search, words = NameSearch(person), set(split_name(person))
    names = [person, *(value for value in values if any(map(str.isalpha, value)))]
    spellings = Spellings([("PERSON", name) for name in names])

    def is_person(value: str) -> bool:
        matches = search.find_matches(value)
        if any(match.kind in CLEAR_KINDS and match.end - match.start == len(value.strip()) for match in matches):
            return True
        is_part = all(word in words or len(word) == 1 for word in split_name(value) or ("",))
        keys = (spellings.get_canonical_key("PERSON", name) for name in (value, person))
        return is_part and len(set(keys)) == 1

    return is_person
