"""The terms of word lists, from settings and from files; no message quotes a term."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from redactory.detectors.listing.folding import fold_term
from redactory.detectors.settings import WordList
from redactory.foundation.errors import ConfigurationError

_LABEL = re.compile("[A-Z][A-Z0-9_]*")
_OTHER_FORMATS = frozenset({".json", ".csv", ".tsv", ".yaml", ".yml", ".xlsx", ".parquet", ".gz", ".zip"})


class Term(NamedTuple):
    """A term as ``folding.fold_term`` leaves it, never empty, and its label."""

    folded: str
    label: str


def terms_of(lists: Iterable[WordList], key: str) -> Iterator[Term]:
    """Every term of ``lists``, which stand under ``key`` in the configuration, in order, repeats included.

    ``ConfigurationError``, with the key or with file and line, for a file that cannot be read, a term of
    which nothing would be matched, a label that is none, or a list without any term.
    """
    for number, given in enumerate(lists):
        where = f"{key}.{number}"
        _check_label(given.label, f"{where}.label")
        if not given.words and given.file is None:
            raise ConfigurationError(f"{where}: this list is empty; it needs words or a file")
        for place, word in enumerate(given.words):
            yield _term(word, given.label, f"{where}.words.{place}")
        if given.file is not None:
            yield from _in_file(Path(given.file), given.label, f"{where}.file")


def _in_file(path: Path, label: str, key: str) -> Iterator[Term]:
    kind = path.suffix.lower()
    if kind in _OTHER_FORMATS:
        raise ConfigurationError(f"{key}: a list is a .jsonl file or a text file with one term a line")
    some = False
    for where, line in _lines(path, key):
        if kind != ".jsonl" and line.startswith("#"):
            continue
        some = True
        yield _row(line, label, where) if kind == ".jsonl" else _term(line, label, where)
    if not some:
        raise ConfigurationError(f"{key}: {path} holds no terms")


def _lines(path: Path, key: str) -> Iterator[tuple[str, str]]:
    """The lines of a file that are not blank, each with its place for messages."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{key}: {path} cannot be read: {error.strerror}; name a file that is there"
        ) from None
    for number, raw in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        where = f"{path}, line {number}"
        try:
            line = raw.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise ConfigurationError(f"{where}: this is not UTF-8") from None
        if line:
            yield where, line


def _row(line: str, label: str, where: str) -> Term:
    try:
        row = json.loads(line)
    except ValueError:
        raise ConfigurationError(f"{where}: this is not JSON") from None
    known = isinstance(row, dict) and row.keys() <= {"text", "label"}
    if not known or not isinstance(row.get("text"), str):
        raise ConfigurationError(f'{where}: a line is {{"text": "…"}} or {{"text": "…", "label": "…"}}')
    return _term(row["text"], _check_label(row.get("label", label), where), where)


def _term(text: str, label: str, where: str) -> Term:
    folded = fold_term(text)
    if not folded:
        raise ConfigurationError(f"{where}: an empty term")
    if any("\ud800" <= letter <= "\udfff" for letter in folded):
        raise ConfigurationError(f"{where}: this term is not Unicode: it holds half of a surrogate pair")
    return Term(folded, label)


def _check_label(label: object, where: str) -> str:
    # labels are printed and published, so nothing that might be a term put in the wrong column gets through
    if not isinstance(label, str) or not _LABEL.fullmatch(label):
        raise ConfigurationError(f"{where}: a label is made of capital letters A-Z, digits and _")
    return label
