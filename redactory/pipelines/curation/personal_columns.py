"""Find unmasked columns that look personal, by their names or by the spans in their values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from redactory.detectors.rules import load_optional_words
from redactory.detectors.settings import get_kind
from redactory.foundation.errors import join_words
from redactory.pipelines.curation.segment import is_known_role
from redactory.pipelines.json_paths import UNREADABLE_BYTES, Fields, NoTextError, iterate_keys, iterate_leaves
from redactory.redaction.replacements import is_listed_full_name
from redactory.redaction.values import is_identifying

_PERSONAL_NAME = re.compile(
    r"(?:^|_|\b)(?:(?:sur|user|last|first|full)?name|e?mail|phone|mobile|fax|address|street|city|zip|postcode"
    r"|born|birth|dob|ssn|iban|account|card|passport|license|ip|login)(?:$|_|\b)",
    re.IGNORECASE,
)
_COMMON_FIELD_NAMES = frozenset({"lang", "meta", "uid", "ts", "src", "sku", "asin"})
"""Names of fields that engines take for names of people."""
_PERSON_NAME_FIELD = re.compile(r"(?:^|_|\b)(?:sur|user|last|first|full)?name(?:$|_|\b)", re.IGNORECASE)
_RARE_SHARE, UNNAMED = 0.1, "…"
"""Messages do not name a field that a smaller share of the rows has: it may be a person's name used as a key."""
_TOOL_NAME_PATHS = (".function.name", ".function_call.name")
_NAME = re.compile(r"[^\W\d][\w-]{0,39}")
_ROLE_KEYS, _ID_KEYS = frozenset({"role", "from"}), frozenset({"id", "tool_call_id", "call_id", "model"})
_MACHINE_ID = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[\w.:/-]+", re.ASCII)
"""Identifiers made by machines: letters and digits in one word."""
_MAX_VALUES, _MIN_MATCHES = 50, 3
"""Values of a field that are inspected per chunk of rows; minimum matches among them that are no accident."""
_MAX_HARMLESS = 1_000
"""Maximum number of a field's values that are remembered as harmless."""

_LANGUAGES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da "
    "de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz "
    "ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln "
    "lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi "
    "pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti "
    "tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu "
)
"""The codes of ISO 639-1."""
_LOCALE_CODE = re.compile(r"(?P<first>[a-z]{2}|[A-Z]{2})(?:[-_][A-Z][a-z]{3})?(?:[-_](?P<region>[A-Z]{2}|[a-z]{2}))?")
_UNUSUAL_KEY = re.compile(r"@|\s|^#|(?:\d\D{0,2}){7}")
_NAME_KEY = re.compile(r"([A-Za-z][a-z]+)[_.-]?([A-Z][a-z]+|(?<=[_.-])[a-z]+)")
"""Two words that may be a person's names, like ``mary_smith`` and ``MarySmith``."""
_LINKED_DATA = re.compile(r"@[A-Za-z]+|[A-Za-z][\w+.-]*://\S+")
"""Keys of linked data (``@type``), and addresses used as names of properties."""

SearchResult = list[Any] | tuple[Any, ...] | str
"""The spans in a text, or the reason code why it could not be processed."""
SpanSearch = Callable[[list[str]], Sequence[SearchResult]]
"""Returns the strict policy's spans in each text, or the reason code of its failure."""


def find_personal_columns(
    values: Mapping[str, Set[Any]], search: SpanSearch, language: str
) -> Iterator[tuple[str, str]]:
    """Yield paths that look personal by their name, or because a fifth of their texts match, each with the reason."""
    words = load_optional_words(language)
    for path, column_values in values.items():
        texts = sorted(value for value in column_values - {""} if isinstance(value, str))
        identifying = _select_identifying_values(path, texts, words)
        matches = [result for result in search(identifying) if result] if identifying else []
        has_personal_name = _PERSONAL_NAME.search(path.rpartition(".")[2])
        # a tool's name identifies nobody
        if has_personal_name and column_values - {""} and not path.endswith(_TOOL_NAME_PATHS):
            yield path, "by its name"
        elif identifying and len(matches) * 5 >= len(texts):
            yield path, _describe_match_share(matches, len(texts))


def _describe_match_share(results: Sequence[SearchResult], values: int) -> str:
    return f"{len(results)} of {values:,} values look like {_describe_common_kinds(results)}"


def _describe_common_kinds(results: Sequence[SearchResult]) -> str:
    """Join the two most frequent kinds of spans; a text that was not processed counts as its reason code."""
    kinds = [{result} if isinstance(result, str) else {get_kind(span.label) for span in result} for result in results]
    counts = Counter(kind for result_kinds in kinds for kind in sorted(result_kinds))
    return join_words([kind for kind, _ in counts.most_common(2)])


def _is_locale_code(value: str) -> bool:
    """Return whether ``value`` is the code of a language or a country, like en, GB, pt-BR and zh_Hans."""
    from phonenumbers import SUPPORTED_REGIONS

    match = _LOCALE_CODE.fullmatch(value.strip())
    if match is None:
        return False
    first, region = match["first"], match["region"]
    if region is not None:
        return f"{first.lower()} " in _LANGUAGES and region.upper() in SUPPORTED_REGIONS
    return f"{first.lower()} " in _LANGUAGES or first.upper() in SUPPORTED_REGIONS


def _describe_personal_key(key: str, spans: SearchResult) -> str:
    """Describe the personal data in a key; empty if it looks like the name of a field.

    Headers contain single names, places and dates ("Q3. Where do you live?"): only two names, a long number or an
    address make a key personal.
    """
    if isinstance(spans, str):
        return spans
    name_spans = {(span.start, span.end) for span in spans if get_kind(span.label) == "PERSON"}
    names = [part for start, end in name_spans for part in re.findall(r"[^\W\d_]{2,}", key[start:end])]
    is_named = len(names) > 1 and all(name[0].isupper() for name in names)
    dates = {(span.start, span.end) for span in spans if get_kind(span.label) == "DATE"}
    identifying = [
        span
        for span in spans
        if (is_named and get_kind(span.label) == "PERSON")
        or "@" in key[span.start : span.end]
        or (sum(map(str.isdigit, key[span.start : span.end])) >= 7 and (span.start, span.end) not in dates)
    ]
    return _describe_common_kinds([identifying]) if identifying else ""


def _is_name_key(key: str, words: Set[str]) -> bool:
    """Return whether ``key`` is a listed given name and surname; ``max`` is a word of programs."""
    match = _NAME_KEY.fullmatch(key)
    if match is None or match[1].lower() == "max" or match[1].lower() in words:
        return False
    return is_listed_full_name(match[1], match[2])


def _select_identifying_values(path: str, values: Sequence[str], words: Set[str]) -> list[str]:
    """Select the values that can identify a person: no known roles, no ids made by machines."""
    key = path.rpartition(".")[2]
    if all(map(_is_locale_code, values)):
        return []
    return [
        value
        for value in values
        if is_identifying(value, words)
        and not (key in _ROLE_KEYS and is_known_role(value))
        and not (key in _ID_KEYS and _MACHINE_ID.fullmatch(value))
    ]


def is_safe_to_name(path: str, search: SpanSearch, language: str) -> bool:
    """Return whether a message may name a field: it looks like an identifier, and the policy finds no span in it."""
    parts = [part.removesuffix("[]") for part in path.split(".")]
    if not all(_NAME.fullmatch(part) or part == UNNAMED for part in parts):
        return False
    words = load_optional_words(language)
    identifying = [
        part
        for part in parts
        if part not in _COMMON_FIELD_NAMES and is_identifying(_PERSONAL_NAME.sub(" ", part), words)
    ]
    return not any(search(identifying)) if identifying else True


def parent_paths(path: str) -> Iterator[str]:
    """Yield a path, then its parents."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def shorten_rare_path(path: str, path_counts: Mapping[str, int], rows: int) -> str:
    """Cut ``path`` to the longest parent that enough of the ``rows`` have; ``path_counts`` are rows per path."""
    common = next((parent for parent in parent_paths(path) if path_counts[parent] >= _RARE_SHARE * rows), "")
    return path if common == path else f"{common}.{UNNAMED}".lstrip(".")


@dataclass
class PersonalColumnDetector:
    """Inspect the fields of one file that are neither read as text nor named in ``columns``."""

    fields: Fields
    columns: Collection[str]
    search: SpanSearch
    language: str
    rows: int = 0
    inspected_paths: set[str] = field(default_factory=set)
    """Paths with a value in the first rows."""
    text_paths: set[str] = field(default_factory=set)
    """Those of them with a text."""
    unreadable_paths: list[str] = field(default_factory=list)
    """Fields with bytes that are not text, cut to what may be named."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the fields reported last look personal, by the reported name."""
    _path_counts: Counter[str] = field(default_factory=Counter)
    _key_kinds: dict[str, str] = field(default_factory=dict)
    """Description of the personal data in each unusual key."""
    _harmless_values: dict[str, set[str]] = field(default_factory=dict)

    def inspect_first_rows(self, rows: Sequence[Mapping[str, Any]], header: Sequence[str] = ()) -> list[str]:
        """Return the fields of the first rows, or of the ``header``, that look personal, cut to what may be named."""
        values: dict[str, set[Any]] = {}
        for row in rows:
            leaves = self.read_unconfigured_values(row)
            for path, value in leaves:
                values.setdefault(path, set()).add(value)
            self._path_counts.update({parent for path, _ in leaves for parent in parent_paths(path)})
        self.rows = len(rows)
        # a column that was empty so far is not inspected yet
        self.inspected_paths = {path for path, path_values in values.items() if path_values - {""}}
        self.text_paths = {
            path for path in self.inspected_paths if any(isinstance(value, str) for value in values[path])
        }
        self.unreadable_paths = self._shorten_paths(path for path in values if UNREADABLE_BYTES in values[path])
        reasons = dict(find_personal_columns(values, self.search, self.language))
        rows = [dict.fromkeys(header), *rows]
        self._path_counts.update({name for row in rows for name in row} - self._path_counts.keys())
        return self._record_reasons(reasons | self.find_personal_keys(rows))

    def inspect_later_rows(self, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
        """Return the fields that turned personal in later rows, and those that turned to bytes that are not text."""
        values: dict[str, list[str]] = {}
        unreadable: dict[str, None] = {}
        for row in rows:
            for path, value in self.read_unconfigured_values(row):
                if value == UNREADABLE_BYTES:
                    unreadable[path] = None
                elif isinstance(value, str) and value:
                    texts = values.setdefault(path, [])
                    if len(texts) < _MAX_VALUES and value not in texts:
                        texts.append(value)
        reasons = {
            path: reason for path, texts in values.items() if (reason := self._explain_personal_values(path, texts))
        }
        return self._record_reasons(reasons), self._shorten_paths(unreadable)

    def find_personal_keys(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Return the columns whose names, or keys inside, are copied and look personal, each with the reason."""
        words = load_optional_words(self.language)
        text_keys = {*self.fields.paths, *(step for steps in self.fields.path_steps for step in steps)}
        columns_by_key: dict[str, set[str]] = {}
        for row in rows:
            for name in row.keys() - set(self.columns):
                for key in (name, *iterate_keys(row[name])):
                    is_suspicious = _UNUSUAL_KEY.search(key) or _is_name_key(key, words)
                    if is_suspicious and not _LINKED_DATA.fullmatch(key) and key not in text_keys:
                        columns_by_key.setdefault(key, set()).add(name)
        new_keys = [key for key in columns_by_key if key not in self._key_kinds]
        if len(self._key_kinds) > _MAX_HARMLESS:
            self._key_kinds = {key: kinds for key, kinds in self._key_kinds.items() if key in columns_by_key}
        results = self.search(new_keys) if new_keys else ()
        self._key_kinds.update(
            (key, "PERSON" if _is_name_key(key, words) else _describe_personal_key(key, result))
            for key, result in zip(new_keys, results, strict=True)
        )
        return {
            name: f"{'its name looks' if name == key else 'a key in it looks'} like {kinds}"
            for key, names in columns_by_key.items()
            for name in names
            if (kinds := self._key_kinds[key])
        }

    def has_new_field(self, cells: Mapping[str, Any]) -> bool:
        """Return whether a row has an unclaimed field that none of the inspected rows had."""
        new_paths = {path for path, _ in self._read_unnamed_column_values(cells)} - self.inspected_paths
        # nothing remains here of a field that is read
        return bool(new_paths) and any(
            path in new_paths and value != "" for path, value in self.read_unconfigured_values(cells)
        )

    def read_unconfigured_values(self, cells: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return the values of a row, with their paths, that are neither read as text nor named in ``columns``."""
        try:
            return self._read_unnamed_column_values(self.fields.clear_texts(cells))
        except NoTextError:
            # such a row is skipped
            return []

    def _read_unnamed_column_values(self, cells: Mapping[str, Any]) -> list[tuple[str, Any]]:
        names = cells.keys() - set(self.columns)
        return [leaf for name, value in cells.items() if name in names for leaf in iterate_leaves(value, name)]

    def _shorten_paths(self, paths: Collection[str] | Iterator[str]) -> list[str]:
        return [*dict.fromkeys(shorten_rare_path(path, self._path_counts, self.rows) for path in paths)]

    def _record_reasons(self, reasons: Mapping[str, str]) -> list[str]:
        """Keep ``reasons`` under the names that messages may use, and return these names."""
        self.reasons = {
            shorten_rare_path(path, self._path_counts, self.rows): reason for path, reason in reasons.items()
        }
        return [*self.reasons]

    def _explain_personal_values(self, path: str, texts: list[str]) -> str:
        """Explain why a field turned personal: two fifths of its values match, too many for chance."""
        harmless = self._harmless_values.setdefault(path, set())
        identifying = [
            value
            for value in _select_identifying_values(path, texts, load_optional_words(self.language))
            if value not in harmless
        ]
        if len(identifying) < _MIN_MATCHES:
            return ""
        results = self.search(identifying)
        if len(harmless) < _MAX_HARMLESS:
            harmless.update(value for value, match in zip(identifying, results, strict=True) if not match)
        matches = [result for result in results if result]
        is_personal = len(matches) >= _MIN_MATCHES and len(matches) * 5 >= 2 * len(texts)
        return _describe_match_share(matches, len(texts)) if is_personal else ""


def choose_column_label(column: str, values: Sequence[str], search: SpanSearch) -> str:
    """Choose the label of a column from its name, or from the most frequent kind of span in its values."""
    if _PERSON_NAME_FIELD.search(column):
        return "PERSON"
    labels = Counter(
        label
        for spans in (search(list(values)) if values else ())
        if not isinstance(spans, str)
        for label in {get_kind(span.label) for span in spans}
    )
    if labels["PERSON"] * 5 >= max(len(values), 1):
        # a missed name is the most costly
        return "PERSON"
    return next((label for label, _ in labels.most_common(1)), "IDENTIFIER")
