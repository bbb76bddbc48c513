"""The secrets of a run as values, cut out of its vault where the span ledger says: in memory only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from redactory.evaluation.value_search import ValueSearch
from redactory.redaction.folder import RunFolder
from redactory.redaction.shards import read_batches

STRICT = "strict"
SURE_RULES = frozenset({"DIGIT", "SYMBOL"})
"""Rules whose hits have the form of an identifier."""
_NO_VALUES = frozenset({"EVERYTHING", "UNSURE", "CAPITAL", "NAME", "WORD"})
"""Hits of π_c that say where a secret may be, not what it is."""
LEAST_CHARS = 4


@dataclass(frozen=True)
class Secret:
    """A value with its label; nothing of it may be printed, logged or written.

    ``copies`` is how often the vault holds it, ``times_seen`` how often what the model was trained on does;
    ``prefix`` is the text before its first place in a point.
    """

    value: str = field(repr=False)
    label: str
    copies: int
    times_seen: int
    prefix: str = field(repr=False)


def vault_secrets(run: RunFolder, seen: Iterable[Path], least_chars: int = LEAST_CHARS) -> list[Secret]:
    """Every distinct value (but for its case) that the policies marked in the vault, in order of first place.

    A value that π marked has π's label; one that only π_c did, the engine's, or DIGIT or SYMBOL for a word
    with a digit or a sign of an address; hits of its other rules are no values.  Values shorter than
    ``least_chars`` code points are left out: they stand in any text.  ``seen`` are the data folders that the
    model was trained on.
    """
    first, labels = _values(run, least_chars)
    values = list(first)
    search = ValueSearch(values)
    vault = search.count(_texts([run.vault]))
    told = search.count(_texts(seen))
    return [
        Secret(first[key][0], labels[key], vault[index], told[index], first[key][1])
        for index, key in enumerate(values)
    ]


def _values(run: RunFolder, least_chars: int) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """By folded value: (value, prefix) at its first place; its label."""
    spans = _spans(run)
    first: dict[str, tuple[str, str]] = {}
    labels: dict[str, tuple[bool, str]] = {}
    for batch in read_batches(run.vault, ["point_id", "text"]):
        for point_id, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            for start, end, label, strict in spans.pop(point_id, ()):
                value = text[start:end].strip()
                key = value.casefold()
                if len(value) < least_chars:
                    continue
                first.setdefault(key, (value, text[:start]))
                if key not in labels or (strict and not labels[key][0]):
                    labels[key] = strict, label
    return first, {key: label for key, (_, label) in labels.items()}


def _spans(run: RunFolder) -> dict[int, list[tuple[int, int, str, bool]]]:
    """The hits of each point that are values: (start, end, label, marked by π), π's first."""
    found: dict[int, list[tuple[int, int, str, bool]]] = defaultdict(list)
    for batch in read_batches(run.spans, ["point_id", "start", "end", "label", "policy"]):
        for point_id, start, end, label, policy in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if label not in _NO_VALUES:
                found[point_id].append((start, end, label, policy == STRICT))
    for own in found.values():
        own.sort(key=lambda hit: (not hit[3], hit[2] in SURE_RULES, hit[:2]))
    return found


def _texts(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for batch in read_batches(folder, ["text"]):
            yield from (str(text) for text in batch.column(0).to_pylist())
