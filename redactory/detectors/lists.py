"""Deny and allow lists: match terms in any spelling, and map each match back to the source text.

A term that begins with ``re:`` is a regular expression. It matches the text as it stands, in any case.

Folding ignores case, accents, width and other compatibility forms, the kind of apostrophe and hyphen, runs of white
space (line breaks and no-break spaces too), and invisible characters such as zero-width spaces.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import ahocorasick
import regex

from redactory.detectors.engine import TIMEOUT, Capability, EngineOutput, MappedText, Span
from redactory.detectors.settings import ListSettings, TermList, WordList
from redactory.foundation.canonical import get_package_version, json_sha256
from redactory.foundation.errors import ConfigurationError

_APOSTROPHES = "'`´\u1ffd‘’‛′ʹʻʼʽˈ＇"
_STROKES = {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe"}
_REPLACEMENTS = {
    **dict.fromkeys(_APOSTROPHES, "'"),
    **dict.fromkeys("“”„‟″", '"'),
    **dict.fromkeys("−⁃", "-"),
    **_STROKES,
}
# invisible marks, which have no combining class
_INVISIBLE_MARKS = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_NEEDS_FOLDING = re.compile("[^!-~]{2,}|[^ -_a-~]")
# re would split a word at its vowel signs
_TOKEN = regex.compile(r"\w+|[^\w\s]")


def fold_text(text: str) -> MappedText:
    """Fold ``text`` letter by letter; each letter folds independently of the others."""
    if _NEEDS_FOLDING.search(text) is None:
        return MappedText(text.lower(), range(len(text) + 1))
    letters, origins, spaced = list[str](), array("q"), False
    for position, letter in enumerate(text):
        for part in _FOLD_TABLE[letter]:
            if part != " " or not spaced:
                letters.append(part)
                origins.append(position)
            spaced = part == " "
    origins.append(len(text))
    return MappedText("".join(letters), origins)


def fold_term(term: str) -> str:
    """Fold a term as in a folded text; empty if nothing of it is visible."""
    return fold_text(term).text.strip(" ")


def split_tokens(text: str) -> list[tuple[str, int, int]]:
    """Return the folded words and signs of ``text``, each with its range of source code points."""
    folded = fold_text(text)
    return [(match[0], *folded.get_source_range(*match.span())) for match in _TOKEN.finditer(folded.text)]


class _FoldTable(dict[str, str]):
    """The folding of each code point, computed on first use."""

    def __missing__(self, letter: str) -> str:
        parts = letter
        if letter not in _REPLACEMENTS:
            # a compatibility form may decompose to a capital, and its case folding may have accents
            parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", letter).casefold())
        return self.setdefault(letter, "".join(map(_fold_character, parts)))


def _fold_character(part: str) -> str:
    if part in _REPLACEMENTS:
        return _REPLACEMENTS[part]
    if part.isspace():
        return " "
    kind = unicodedata.category(part)
    if kind == "Pd":
        return "-"
    # accents are optional, unlike vowel signs of Indic scripts, voicing marks and viramas
    combining = unicodedata.combining(part)
    is_accent = combining == 1 or 10 <= combining <= 35 or combining >= 200
    return "" if kind in ("Cc", "Cf", "Me") or is_accent or _INVISIBLE_MARKS.match(part) else part


_FOLD_TABLE = _FoldTable()


# Terms of word lists, from settings and files; no message quotes a term.


_LABEL = re.compile("[A-Z][A-Z0-9_]*")
_OTHER_FORMATS = frozenset({".json", ".csv", ".tsv", ".yaml", ".yml", ".xlsx", ".parquet", ".gz", ".zip"})


EXPRESSION_MARK, _EXPRESSION_KEY = "re:", "RE:"
"""Begins a regular expression in a list, and among folded terms, none of which has a capital."""
_TIMEOUT_SECONDS = 60.0


class Term(NamedTuple):
    """A term folded by :func:`fold_term`, never empty, and its label; or a regular expression behind its key."""

    folded_text: str
    label: str


def load_terms(lists: Iterable[TermList], key: str) -> Iterator[Term]:
    """Yield every term of ``lists`` in order, repeats included; ``key`` is their path in the configuration.

    ``ConfigurationError``, with the key or with file and line, for an unreadable file, a term that folds to nothing, an
    invalid label, or an empty list.
    """
    for number, term_list in enumerate(lists):
        location = f"{key}.{number}"
        # a public term makes no span, so it needs no label
        label = _check_label(term_list.label, f"{location}.label") if isinstance(term_list, WordList) else ""
        if not term_list.words and term_list.file is None:
            raise ConfigurationError(f"{location}: this list is empty; give words or a file")
        for index, word in enumerate(term_list.words):
            yield _make_term(word, label, f"{location}.words.{index}")
        if term_list.file is not None:
            yield from _load_file_terms(Path(term_list.file), label, f"{location}.file")


def _load_file_terms(path: Path, label: str, key: str) -> Iterator[Term]:
    suffix = path.suffix.lower()
    if suffix in _OTHER_FORMATS:
        raise ConfigurationError(f"{key}: expected a .jsonl file or a text file with one term per line")
    has_terms = False
    for location, line in _read_lines(path, key):
        if suffix != ".jsonl" and line.startswith("#"):
            continue
        has_terms = True
        yield _parse_row(line, label, location) if suffix == ".jsonl" else _make_term(line, label, location)
    if not has_terms:
        raise ConfigurationError(f"{key}: {path} contains no terms")


def _read_lines(path: Path, key: str) -> Iterator[tuple[str, str]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{key}: {path} cannot be read: {error.strerror}; give an existing file") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path}, line {number}: this is not UTF-8") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}, line {number}", line.strip()


def _parse_row(line: str, label: str, location: str) -> Term:
    try:
        row = json.loads(line)
    except ValueError:
        raise ConfigurationError(f"{location}: this is not JSON") from None
    is_valid = isinstance(row, dict) and row.keys() <= {"text", "label"}
    if not is_valid or not isinstance(row.get("text"), str):
        raise ConfigurationError(f'{location}: expected {{"text": "…"}} or {{"text": "…", "label": "…"}}')
    return _make_term(row["text"], _check_label(row["label"], location) if "label" in row else label, location)


def _make_term(text: str, label: str, location: str) -> Term:
    if text.startswith(EXPRESSION_MARK):
        expression = text.removeprefix(EXPRESSION_MARK).strip()
        _compile_expression(expression, location)
        return Term(_EXPRESSION_KEY + expression, label)
    folded = fold_term(text)
    if not folded:
        raise ConfigurationError(f"{location}: an empty term")
    if any("\ud800" <= letter <= "\udfff" for letter in folded):
        raise ConfigurationError(f"{location}: this term is not Unicode: it contains half of a surrogate pair")
    return Term(folded, label)


@functools.lru_cache(maxsize=1024)
def _compile_expression(text: str, location: str = "") -> regex.Pattern[str]:
    """Compile a regular expression; ``ConfigurationError`` names its place and does not quote it."""
    try:
        expression: regex.Pattern[str] = regex.compile(text, regex.IGNORECASE)
    except regex.error as error:
        raise ConfigurationError(
            f"{location}: invalid regular expression at character {(error.pos or 0) + 1} after '{EXPRESSION_MARK}'"
        ) from None
    except RecursionError:
        raise ConfigurationError(
            f"{location}: this regular expression has too many nested parentheses; use fewer"
        ) from None
    if expression.search("") is not None:
        raise ConfigurationError(f"{location}: this regular expression matches an empty text; make it match something")
    return expression


def _check_label(label: object, location: str) -> str:
    # labels are published, so reject anything that could be a term in the wrong column
    if not isinstance(label, str) or not _LABEL.fullmatch(label):
        raise ConfigurationError(f"{location}: a label consists of capital letters A-Z, digits and _")
    return label


DETECTOR = "list"
Entry = TypeVar("Entry")
# scripts without spaces: a word may end anywhere
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


class TermSearch(Generic[Entry]):
    """Finds every whole-word occurrence of folded terms (:func:`fold_term`), in any spelling, overlaps included.

    An end of a term that is a letter or digit must be the end of a word.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._automaton = ahocorasick.Automaton()
        for folded, entry in entries.items():
            self._automaton.add_word(folded, (len(folded), entry))
        if entries:
            self._automaton.make_automaton()

    def find_matches(self, text: str) -> Iterator[tuple[int, int, Entry]]:
        """Yield the source range and the entry of each occurrence, in the order of their ends."""
        if not len(self._automaton):
            return
        folded = fold_text(text)
        letters = folded.text
        for last, (length, entry) in self._automaton.iter(letters):
            end = last + 1
            start = end - length
            if start and _is_within_word(letters[start - 1], letters[start]):
                continue
            if end < len(letters) and _is_within_word(letters[last], letters[end]):
                continue
            yield *folded.get_source_range(start, end), entry


@dataclass(frozen=True, slots=True)
class ListEntry:
    """The labels that deny a term, and whether it is allowed."""

    labels: tuple[str, ...]
    allowed: bool


class ListEngine:
    """Finds every whole-word occurrence of a denied term, overlaps included, with score 1.

    Also serves for a client's list of sensitive entities (the "entities" of UeDP). Terms match in any spelling
    (:class:`TermSearch`), regular expressions as written. A match of an allowed term counts unless a denied term
    overlaps it.
    """

    def __init__(self, settings: ListSettings, language: str) -> None:
        every = _load_entries(settings)
        entries = {term: entry for term, entry in every.items() if not term.startswith(_EXPRESSION_KEY)}
        self._expressions = [
            (_compile_expression(term.removeprefix(_EXPRESSION_KEY)), every[term])
            for term in sorted(every.keys() - entries.keys())
        ]
        self._terms = TermSearch(entries)

    @classmethod
    def collect_fingerprint(cls, settings: ListSettings, language: str) -> dict[str, Any]:
        """Return the sha256 of the folded terms and labels, and the versions that folding depends on."""
        terms = sorted((folded, entry.labels, entry.allowed) for folded, entry in _load_entries(settings).items())
        return {
            "terms_sha256": json_sha256(terms),
            "unicode": unicodedata.unidata_version,
            "pyahocorasick": get_package_version("pyahocorasick"),
            **(
                {"regex": get_package_version("regex")} if any(t.startswith(_EXPRESSION_KEY) for t, *_ in terms) else {}
            ),
        }

    @classmethod
    def list_capabilities(cls, settings: ListSettings, language: str) -> list[Capability]:
        """Return the labels of denied terms, which every policy masks."""
        labels = frozenset(label for entry in _load_entries(settings).values() for label in entry.labels)
        return [Capability("deny lists", labels, None, labels)]

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text; only a text on which a regular expression takes too long fails."""
        return [self._read_text(text) for text in texts]

    def _read_text(self, text: str) -> EngineOutput:
        denied: set[Span] = set()
        allowed: set[tuple[int, int]] = set()
        try:
            for start, end, entry in itertools.chain(self._terms.find_matches(text), self._match_expressions(text)):
                denied.update(Span(start, end, label, 1.0, DETECTOR) for label in entry.labels)
                if entry.allowed:
                    allowed.add((start, end))
        except TimeoutError:
            return EngineOutput(failure=TIMEOUT)
        spans = tuple(sorted(denied))
        return EngineOutput(spans=spans, allowed_ranges=tuple(_drop_overlapping_ranges(spans, sorted(allowed))))

    def _match_expressions(self, text: str) -> Iterator[tuple[int, int, ListEntry]]:
        for expression, entry in self._expressions:
            for match in expression.finditer(text, timeout=_TIMEOUT_SECONDS):
                if match[0]:
                    yield match.start(), match.end(), entry


def _load_entries(settings: ListSettings) -> dict[str, ListEntry]:
    labels: dict[str, set[str]] = {}
    for term in load_terms(settings.deny, "detect.lists.deny"):
        labels.setdefault(term.folded_text, set()).add(term.label)
    allowed = {term.folded_text for term in load_terms(settings.allow, "detect.lists.allow")}
    return {
        folded: ListEntry(tuple(sorted(labels.get(folded, ()))), folded in allowed)
        for folded in labels.keys() | allowed
    }


def _drop_overlapping_ranges(spans: Sequence[Span], ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    starts = [span.start for span in spans]
    reach = list(itertools.accumulate((span.end for span in spans), max))
    for start, end in ranges:
        preceding = bisect_left(starts, end)
        if not preceding or reach[preceding - 1] <= start:
            yield start, end


def _is_within_word(left: str, right: str) -> bool:
    """Return whether two neighbouring letters belong to one word, so no term may begin or end between them."""
    return _is_combining_mark(right) or (_is_word_letter(left) and _is_word_letter(right))


@functools.cache
def _is_word_letter(letter: str) -> bool:
    return not _SPACELESS.match(letter) and (letter.isalnum() or _is_combining_mark(letter))


@functools.cache
def _is_combining_mark(letter: str) -> bool:
    return unicodedata.category(letter).startswith("M")
