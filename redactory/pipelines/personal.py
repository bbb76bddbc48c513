"""Whether what nobody masks looks personal: by its name, or because its values are hits of a policy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from redactory.detectors.rules import words_if_any
from redactory.detectors.settings import kind_of
from redactory.pipelines.fields import UNREAD, Fields, NoText, leaves
from redactory.pipelines.segment import is_role
from redactory.redaction.replacements import Found
from redactory.redaction.values import tells

_NAMED = re.compile(
    r"(?:^|_|\b)(?:(?:sur|user|last|first|full)?name|e?mail|phone|mobile|fax|address|street|city|zip|postcode"
    r"|born|birth|dob|ssn|iban|account|card|passport|license|ip|login)(?:$|_|\b)",
    re.IGNORECASE,
)
_USUAL = frozenset({"lang", "meta", "uid", "ts", "src", "sku", "asin"})
"""Names of fields that engines take for names of people."""
_OF_A_PERSON = re.compile(r"(?:^|_|\b)(?:sur|user|last|first|full)?name(?:$|_|\b)", re.IGNORECASE)
_RARE, REST = 0.1, "…"
"""A field that a smaller share of the rows has is not named: it may be somebody's name, used as a key."""
_TOOLS = (".function.name", ".function_call.name")
_NAME = re.compile(r"[^\W\d][\w-]{0,39}")
_ROLES, _IDS = frozenset({"role", "from"}), frozenset({"id", "tool_call_id", "call_id", "model"})
_MADE = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[\w.:/-]+", re.ASCII)
"""What a machine calls something: letters and digits in one piece."""
_AT_ONCE, _CLEAR = 50, 3
"""Values of a field that are looked at in a chunk of rows, and how many hits among them are no accident."""
_HARMLESS = 1_000
"""Values of a field that are remembered to be no hits."""

Search = Callable[[list[str]], Sequence[Sequence[Found] | str]]
"""What the strict policy finds in each text, or why it could not look."""


def personal(
    values: Mapping[str, Set[Any]], hits: Callable[[list[str]], Sequence[object]], language: str
) -> Iterator[str]:
    """The paths, of those that ``values`` are given of, that look personal.

    By their names, or where a fifth of their texts are hits that tell something by themselves.
    """
    words = words_if_any(language)
    for path, found in values.items():
        kept = sorted(value for value in found - {""} if isinstance(value, str))
        telling = _telling(path, kept, words)
        hit = sum(map(bool, hits(telling))) if telling else 0
        # a tool's name is nobody's
        named = found - {""} and _NAMED.search(path.rpartition(".")[2]) and not path.endswith(_TOOLS)
        if named or (telling and hit * 5 >= len(kept)):
            yield path


def _telling(path: str, values: Sequence[str], words: Set[str]) -> list[str]:
    """Of a field's values those that can point at somebody; no known role, no id a machine made."""
    key = path.rpartition(".")[2]
    return [
        value
        for value in values
        if tells(value, words)
        and not (key in _ROLES and is_role(value))
        and not (key in _IDS and _MADE.fullmatch(value))
    ]


def is_nameable(path: str, hits: Search, language: str) -> bool:
    """Whether a field may be named in a message: it looks like an identifier, and is no hit itself."""
    parts = [part.removesuffix("[]") for part in path.split(".")]
    if not all(_NAME.fullmatch(part) or part == REST for part in parts):
        return False
    words = words_if_any(language)
    telling = [part for part in parts if part not in _USUAL and tells(_NAMED.sub(" ", part), words)]
    return not any(hits(telling)) if telling else True


def up(path: str) -> Iterator[str]:
    """A path, and those above it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def shown(path: str, seen: Mapping[str, int], rows: int) -> str:
    """``path``, as far down as many of the ``rows`` have it; ``seen`` says how many have which."""
    known = next((above for above in up(path) if seen[above] >= _RARE * rows), "")
    return path if known == path else f"{known}.{REST}".lstrip(".")


@dataclass
class Judge:
    """Judges the fields of one file that are neither read nor in ``columns``, of which something is said."""

    fields: Fields
    columns: Collection[str]
    hits: Search
    language: str
    rows: int = 0
    judged: set[str] = field(default_factory=set)
    """The paths that had a value in the first rows."""
    of_text: set[str] = field(default_factory=set)
    """Those of them that had a text."""
    unread: list[str] = field(default_factory=list)
    """The fields with bytes that are no text, as far as they may be named."""
    _seen: Counter[str] = field(default_factory=Counter)
    _harmless: dict[str, set[str]] = field(default_factory=dict)

    def first(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """The fields that look personal in the first rows of a file, as far as they may be named."""
        values: dict[str, set[Any]] = {}
        for row in rows:
            own = self.left(row)
            for path, value in own:
                values.setdefault(path, set()).add(value)
            self._seen.update({above for path, _ in own for above in up(path)})
        self.rows = len(rows)
        # a column that was empty so far is not judged
        self.judged = {path for path, found in values.items() if found - {""}}
        self.of_text = {path for path in self.judged if any(isinstance(one, str) for one in values[path])}
        self.unread = self._shown(path for path in values if UNREAD in values[path])
        return self._shown(personal(values, self.hits, self.language))

    def later(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
        """The fields that turned personal in later rows, and those that turned to bytes that are no text."""
        values: dict[str, list[str]] = {}
        unread: dict[str, None] = {}
        for row in rows:
            for path, value in self.left(row):
                if value == UNREAD:
                    unread[path] = None
                elif isinstance(value, str) and value:
                    kept = values.setdefault(path, [])
                    if len(kept) < _AT_ONCE and value not in kept:
                        kept.append(value)
        turned = [path for path, kept in values.items() if self._turned(path, kept)]
        return self._shown(turned), self._shown(unread)

    def is_new(self, cells: Mapping[str, Any]) -> bool:
        """Whether a row has a field, read by nobody, that no row had by which fields were judged."""
        new = {path for path, _ in self._undeclared(cells)} - self.judged
        # of a field that is read nothing is left here
        return bool(new) and any(path in new and value != "" for path, value in self.left(cells))

    def left(self, cells: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The values of a row that nobody reads and of which nothing is said, with their paths."""
        try:
            return self._undeclared(self.fields.without(cells))
        except NoText:
            # such a row is left out
            return []

    def _undeclared(self, cells: Mapping[str, Any]) -> list[tuple[str, Any]]:
        names = cells.keys() - set(self.columns)
        return [leaf for name, value in cells.items() if name in names for leaf in leaves(value, name)]

    def _shown(self, paths: Collection[str] | Iterator[str]) -> list[str]:
        return [*dict.fromkeys(shown(path, self._seen, self.rows) for path in paths)]

    def _turned(self, path: str, kept: list[str]) -> bool:
        """Whether two fifths of some values are hits: more than chance makes of a field that has fewer."""
        harmless = self._harmless.setdefault(path, set())
        telling = [
            value for value in _telling(path, kept, words_if_any(self.language)) if value not in harmless
        ]
        if len(telling) < _CLEAR:
            return False
        found = [bool(one) for one in self.hits(telling)]
        if len(harmless) < _HARMLESS:
            harmless.update(value for value, hit in zip(telling, found, strict=True) if not hit)
        return sum(found) >= _CLEAR and sum(found) * 5 >= 2 * len(kept)


def label_of(column: str, values: Sequence[str], hits: Search) -> str:
    """The label of a column's values by its name, or by what the strict policy finds most often in them."""
    if _OF_A_PERSON.search(column):
        return "PERSON"
    labels = Counter(
        label
        for found in (hits(list(values)) if values else ())
        if not isinstance(found, str)
        for label in {kind_of(one.label) for one in found}
    )
    # a name costs most where it stays
    return (
        "PERSON"
        if labels["PERSON"] * 5 >= max(len(values), 1)
        else next((label for label, _ in labels.most_common(1)), "IDENTIFIER")
    )
