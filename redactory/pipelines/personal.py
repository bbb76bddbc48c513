"""Whether what nobody masks looks personal: by its name, or because its values are hits of a policy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from redactory.detectors.rules import words_if_any
from redactory.detectors.settings import kind_of
from redactory.foundation.errors import listed
from redactory.pipelines.fields import UNREAD, Fields, NoText, keys_of, leaves
from redactory.pipelines.segment import is_role
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

_LANGUAGES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da "
    "de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz "
    "ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln "
    "lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi "
    "pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti "
    "tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu "
)
"""The codes of ISO 639-1."""
_CODE = re.compile(r"(?P<first>[a-z]{2}|[A-Z]{2})(?:[-_][A-Z][a-z]{3})?(?:[-_](?P<region>[A-Z]{2}|[a-z]{2}))?")
_UNUSUAL = re.compile(r"@|\s|^#|(?:\d\D{0,2}){7}")
_LINKED_DATA = re.compile(r"@[A-Za-z]+|[A-Za-z][\w+.-]*://\S+")
"""Keys of linked data (``@type``), and addresses that are names of properties."""

Hits = list[Any] | tuple[Any, ...] | str
"""What was found in a text, or the reason code why it was not looked at."""
Search = Callable[[list[str]], Sequence[Hits]]
"""What the strict policy finds in each text, or why it could not look."""


def personal(values: Mapping[str, Set[Any]], hits: Search, language: str) -> Iterator[tuple[str, str]]:
    """The paths, of those that ``values`` are given of, that look personal, each with the reason.

    By their names, or where a fifth of their texts are hits that tell something by themselves.
    """
    words = words_if_any(language)
    for path, found in values.items():
        kept = sorted(value for value in found - {""} if isinstance(value, str))
        telling = _telling(path, kept, words)
        found_in = [one for one in hits(telling) if one] if telling else []
        # a tool's name is nobody's
        named = found - {""} and _NAMED.search(path.rpartition(".")[2]) and not path.endswith(_TOOLS)
        if named:
            yield path, "by its name"
        elif telling and len(found_in) * 5 >= len(kept):
            yield path, _share(found_in, len(kept))


def _share(results: Sequence[Hits], values: int) -> str:
    """How many of so many values look like what."""
    return f"{len(results)} of {values:,} values look like {_kinds(results)}"


def _kinds(results: Sequence[Hits]) -> str:
    """The kinds of hits, the most frequent first; a text that was not looked at has its reason code."""
    kinds = [{one} if isinstance(one, str) else {kind_of(hit.label) for hit in one} for one in results]
    counts = Counter(kind for own in kinds for kind in sorted(own))
    return listed([kind for kind, _ in counts.most_common(2)])


def _is_code(value: str) -> bool:
    """Whether ``value`` is the code of a language or a country, as en, GB, pt-BR and zh_Hans are."""
    from phonenumbers import SUPPORTED_REGIONS

    match = _CODE.fullmatch(value.strip())
    if match is None:
        return False
    first, region = match["first"], match["region"]
    if region is not None:
        return f"{first.lower()} " in _LANGUAGES and region.upper() in SUPPORTED_REGIONS
    return f"{first.lower()} " in _LANGUAGES or first.upper() in SUPPORTED_REGIONS


def _personal_kinds(key: str, hits: Hits) -> str:
    """The kinds of what a key tells about somebody; empty for the name of a field.

    Headers hold single names, places and dates ("Q3. Where do you live?"): only two names, a long number or
    an address make one personal.
    """
    if isinstance(hits, str):
        return hits
    places = {(hit.start, hit.end) for hit in hits if kind_of(hit.label) == "PERSON"}
    names = [part for start, end in places for part in re.findall(r"[^\W\d_]{2,}", key[start:end])]
    is_named = len(names) > 1 and all(name[0].isupper() for name in names)
    dates = {(hit.start, hit.end) for hit in hits if kind_of(hit.label) == "DATE"}
    telling = [
        hit
        for hit in hits
        if (is_named and kind_of(hit.label) == "PERSON")
        or "@" in key[hit.start : hit.end]
        or (sum(map(str.isdigit, key[hit.start : hit.end])) >= 7 and (hit.start, hit.end) not in dates)
    ]
    return _kinds([telling]) if telling else ""


def _telling(path: str, values: Sequence[str], words: Set[str]) -> list[str]:
    """Of a field's values those that can point at somebody; no known role, no id a machine made."""
    key = path.rpartition(".")[2]
    if all(map(_is_code, values)):
        return []
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
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a field that was judged last looks personal, by what it is called."""
    _seen: Counter[str] = field(default_factory=Counter)
    _keys: dict[str, str] = field(default_factory=dict)
    """What keys that are no plain identifiers tell about somebody."""
    _harmless: dict[str, set[str]] = field(default_factory=dict)

    def first(self, rows: Sequence[Mapping[str, Any]], header: Sequence[str] = ()) -> list[str]:
        """The fields that look personal in the first rows of a file, as far as they may be named.

        The names of a ``header`` are judged even if no row could be read.
        """
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
        looks = dict(personal(values, self.hits, self.language))
        rows = [dict.fromkeys(header), *rows]
        self._seen.update({name for row in rows for name in row} - self._seen.keys())
        return self._explained(looks | self.personal_keys(rows))

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
        turned = {path: why for path, kept in values.items() if (why := self._turned(path, kept))}
        return self._explained(turned), self._shown(unread)

    def personal_keys(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """The columns whose names, or keys in them, are copied and look personal, each with the reason."""
        chosen = {*self.fields.paths, *(step for steps in self.fields.steps for step in steps)}
        places: dict[str, set[str]] = {}
        for row in rows:
            for name in row.keys() - set(self.columns):
                for key in (name, *keys_of(row[name])):
                    if _UNUSUAL.search(key) and not _LINKED_DATA.fullmatch(key) and key not in chosen:
                        places.setdefault(key, set()).add(name)
        new = [key for key in places if key not in self._keys]
        if len(self._keys) > _HARMLESS:
            self._keys = {key: kinds for key, kinds in self._keys.items() if key in places}
        results = self.hits(new) if new else ()
        self._keys.update({key: _personal_kinds(key, one) for key, one in zip(new, results, strict=True)})
        return {
            name: f"{'its name looks' if name == key else 'a key in it looks'} like {kinds}"
            for key, names in places.items()
            for name in names
            if (kinds := self._keys[key])
        }

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

    def _explained(self, looks: Mapping[str, str]) -> list[str]:
        """The fields of ``looks`` as they may be named; their reasons are in ``reasons``."""
        self.reasons = {shown(path, self._seen, self.rows): why for path, why in looks.items()}
        return [*self.reasons]

    def _turned(self, path: str, kept: list[str]) -> str:
        """Why a field turned personal: two fifths of its values are hits, more than by chance."""
        harmless = self._harmless.setdefault(path, set())
        telling = [value for value in _telling(path, kept, words_if_any(self.language)) if value not in harmless]
        if len(telling) < _CLEAR:
            return ""
        found = self.hits(telling)
        if len(harmless) < _HARMLESS:
            harmless.update(value for value, hit in zip(telling, found, strict=True) if not hit)
        clear = [one for one in found if one]
        return _share(clear, len(kept)) if len(clear) >= _CLEAR and len(clear) * 5 >= 2 * len(kept) else ""


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
