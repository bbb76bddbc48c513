"""Label the rows of a file: spans are saved beside it, in the format that measuring and fitting read."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import regex

from redactory.detectors.settings import get_kind
from redactory.evaluation.agreement import compare_labels
from redactory.evaluation.labelled import read_labelled_rows, write_labelled_rows
from redactory.evaluation.sample import LabelledSpan, select_prefilled_spans
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.policy import Policy
from redactory.pipelines.readers import Document, find_sources
from redactory.pipelines.readers.documents import RowCounts
from redactory.redaction import find_run_key

DEFAULT_ANNOTATOR = "labelled"
ROW_KEY, REVISED_KEY = "review_row", "revised"
"""Keys of a saved row: its number in the file, and whether it was changed after the policy's spans were shown."""
MAX_ROWS = 10_000
"""Rows of one file: more than people label, and few enough to keep in memory."""
_ANNOTATOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_ANSWERS = re.compile(rf"(.*)\.({_ANNOTATOR.pattern})\.jsonl", re.DOTALL)
# scripts without spaces between words are selected by character
_WORD = regex.compile(r"(?s)[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*|[^\W_]+|\s+|.")


def split_words(text: str) -> list[tuple[int, int]]:
    """Split a text into words, punctuation marks and white space: code points [start, end) that cover all of it."""
    return [match.span() for match in _WORD.finditer(text)]


@dataclass
class LabelSheet:
    """The rows of a file to label, and the answers of its ``annotator``, in ``NAME.ANNOTATOR.jsonl`` (mode 0600).

    A labelled file (JSON lines of ``redactory label``) brings the policy's spans with it; the rows of any other file
    are read as ``config`` says, and its policy finds their spans. Answers are read from disk each time.
    """

    path: Path
    config: Config
    annotator: str = DEFAULT_ANNOTATOR
    policy: Policy | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if not _ANNOTATOR.fullmatch(self.annotator):
            raise ConfigurationError("--annotator: use 1 to 32 letters, digits, '-' or '_', like --annotator mary")
        self._version = self._read_version()

    def _read_version(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def is_current(self) -> bool:
        """Whether the file is the one that the rows are read from: an erasure or a purge removes samples."""
        return self._version is not None and self._read_version() == self._version

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Every row of the file; ``ConfigurationError`` for too many, or without the key of an encrypted run."""
        find_run_key(self.path)
        rows = list(read_labelled_rows(self.path, to_fit=True)) if _is_labelled(self.path) else self._read_documents()
        if not rows:
            raise InputError(f"{self.path.name}: no row with text; expected {{'text': '…'}} per line, or a text file")
        if len(rows) > MAX_ROWS:
            raise ConfigurationError(
                f"{self.path.name} has more than {MAX_ROWS:,} rows: choose some first, with redactory label active "
                f"{self.path} --out FOLDER"
            )
        return rows

    def _read_documents(self) -> list[dict[str, Any]]:
        rows, counts = list[dict[str, Any]](), RowCounts(self.config.input)
        for source in find_sources(self.config.input.path, self.config.input.format):
            for entry in counts.read_and_count(source):
                if isinstance(entry, Document):
                    user = {} if entry.user_id is None else {"user_id": entry.user_id}
                    rows.append({"id": entry.doc_id, **user, "text": entry.text})
                if len(rows) > MAX_ROWS:
                    return rows
        counts.check_totals()
        return rows

    @cached_property
    def labels(self) -> list[str]:
        """The labels to choose from: those of the file's spans by frequency, those that the policy masks, SECRET."""
        occurring = Counter(span["label"] for row in self.rows for span in row.get("spans", ()))
        labels = dict[str, str]()
        for label, _ in occurring.most_common():
            labels.setdefault(get_kind(label), label)
        strict = self.config.detect.strict
        for label in map(get_kind, (*strict.labels, *strict.extra_labels, "SECRET")):
            labels.setdefault(label, label)
        return list(labels.values())

    def get_answers_path(self, annotator: str | None = None) -> Path:
        """Return the file with the answers of this or another annotator."""
        return self.path.with_suffix(f".{annotator or self.annotator}.jsonl")

    def list_annotators(self) -> list[str]:
        """Everybody who has answered rows of this file, by name."""
        matches = (_ANSWERS.fullmatch(path.name) for path in sorted(self.path.parent.iterdir()) if path != self.path)
        return [match[2] for match in matches if match and match[1] == self.path.stem]

    def read_answers(self, annotator: str | None = None) -> dict[int, dict[str, Any]]:
        """Read the answered rows by their number, from 1; ``InputError`` if they are not rows of this file."""
        path, answers = self.get_answers_path(annotator), dict[int, dict[str, Any]]()
        for row in read_labelled_rows(path, to_fit=True) if path.exists() else ():
            number = row.get(ROW_KEY)
            if type(number) is not int or [row["text"]] != [one["text"] for one in self.rows[number - 1 : number]]:
                raise InputError(
                    f"{path.name} has answers to another file than {self.path.name}: move it away, or choose another "
                    "--annotator"
                )
            answers[number] = row
        return answers

    def save_answer(self, number: int, spans: Sequence[Mapping[str, Any]]) -> None:
        """Save the spans of row ``number`` atomically; ``InputError`` for an unknown row, label or place."""
        if not 0 < number <= len(self.rows):
            raise InputError(f"{self.path.name} has no row {number}; its last is {len(self.rows)}")
        if any(span.get("label") not in self.labels for span in spans):
            raise InputError("unknown label: reload the page, and choose one that it offers")
        unique = {(span["start"], span["end"], span["label"]) for span in spans}
        labelled = [LabelledSpan(*values)._asdict() for values in sorted(unique)]
        with self._lock:
            if not self.is_current():
                raise InputError(f"{self.path.name} was changed or removed, so nothing was saved: reload the page")
            answers = self.read_answers()
            was_revised = number in answers and answers[number]["spans"] != labelled
            revised = {REVISED_KEY: True} if was_revised or answers.get(number, {}).get(REVISED_KEY) else {}
            answers[number] = {**self.rows[number - 1], "spans": labelled, ROW_KEY: number, **revised}
            write_labelled_rows(self.get_answers_path(), [answers[key] for key in sorted(answers)])

    def find_next_row(self, number: int = 0) -> int | None:
        """Return the next row after ``number`` without an answer, from the start again at the end; None if all have."""
        answers, total = self.read_answers(), len(self.rows)
        order = (*range(number + 1, total + 1), *range(1, number + 1))
        return next((row for row in order if row not in answers), None)

    def compare_annotators(self, first: str, second: str) -> dict[str, Any]:
        """Compare two annotators like :func:`~redactory.label_agreement`, on the rows that both answered."""
        r = compare_labels(self.read_answers(first), self.read_answers(second))
        if not r["rows"]:
            raise InputError(f"{self.path.name}: {first} and {second} have not answered a common row yet")
        return r

    def find_policy_spans(self, number: int) -> list[dict[str, Any]]:
        """Return the spans of row ``number`` that the policy masks; ``InputError`` if its text cannot be processed."""
        row = self.rows[number - 1]
        if "spans" in row:
            return list(row["spans"])
        if self.policy is None:
            self.policy = Policy(self.config)
        strict = (span for span in self.policy.scan(row["text"]) if span.policy == "strict")
        return [span._asdict() for span in select_prefilled_spans(strict)]


def _is_labelled(path: Path) -> bool:
    """Whether the first row of a file is a labelled one; ``InputError`` if the file cannot be read."""
    try:
        with path.open("rb") as file:
            first = json.loads(next((line for line in file if line.strip()), b""))
        return isinstance(first, dict) and isinstance(first.get("spans"), list)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        return False


def compare_spans(text: str, sides: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, str]]:
    """Compare the spans of two ``sides`` of a row by their names, in text order: {text, result}.

    The text is original text: only show it.
    """
    (first, second), spans = sides, [{(s["start"], s["end"]): s["label"] for s in side} for side in sides.values()]
    compared = []
    for start, end in sorted({*spans[0], *spans[1]}):
        one, other = (side.get((start, end)) for side in spans)
        overlaps = any(low < end and high > start for low, high in spans[one is not None])
        if one and other:
            result = f"both: {one}" if get_kind(one) == get_kind(other) else f"{first}: {one}, {second}: {other}"
        else:
            name = f"{first}: {one}" if one else f"{second}: {other}"
            result = f"{name}, with other bounds" if overlaps else f"only {name}"
        compared.append({"text": text[start:end], "result": result})
    return compared
