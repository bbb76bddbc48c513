"""Decide which columns may be copied unmasked: the rule of masked copies, and the check of metadata columns."""

from __future__ import annotations

import datetime
import decimal
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from redactory.detectors.rules import load_optional_words
from redactory.detectors.settings import get_kind
from redactory.foundation.errors import join_words, pluralize
from redactory.pipelines.curation.segment import is_known_role
from redactory.pipelines.json_paths import Fields, NoTextError, is_arrow_map
from redactory.redaction.names import is_listed_full_name
from redactory.redaction.values import is_identifying

_PERSONAL_NAME = re.compile(
    r"(?:^|_|\b)(?:(?:sur|user|last|first|full)?name|e?mail|phone|mobile|fax|address|street|city|zip|postcode"
    r"|born|birth|dob|ssn|iban|account|card|passport|license|ip|login)(?:$|_|\b)",
    re.IGNORECASE,
)
_PERSON_NAME_FIELD = re.compile(r"(?:^|_|\b)(?:sur|user|last|first|full)?name(?:$|_|\b)", re.IGNORECASE)
_TOOL_NAME_PATHS = (".function.name", ".function_call.name")
_FIELD_NAME = re.compile(r"[^\W\d][\w-]{0,39}|\d{1,6}")
_LONG_NUMBER = re.compile(r"(?:\d\D{0,2}){7}")
_NAME_KEY = re.compile(r"([A-Za-z][a-z]+)[_.-]?([A-Z][a-z]+|(?<=[_.-])[a-z]+)")
"""Two words that may be a person's names, like ``mary_smith`` and ``MarySmith``."""
_NUMBERS = (int, float, decimal.Decimal, datetime.date, datetime.time, datetime.timedelta)
UNNAMED = "…"
"""Stands for a key that messages do not name, because it may be data."""

_SHORT_NUMBER = re.compile(r"[+-]?\d{1,6}(?:[.,]\d+)?(?:e[+-]?\d+)?|true|false", re.IGNORECASE | re.ASCII)
_MACHINE_ID = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[\w.:/-]{1,128}", re.ASCII)
_LOCALE = re.compile(r"[A-Za-z]{2}(?:[-_][A-Za-z]{4})?(?:[-_][A-Za-z]{2})?")
_KIND = re.compile(r"[a-z][a-z_]{0,39}")
_TOOL_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
PUBLIC_COLUMNS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("id", "model", "call_id", "tool_call_id"), _MACHINE_ID.fullmatch),
    **dict.fromkeys(("lang", "language", "locale", "country"), _LOCALE.fullmatch),
    **dict.fromkeys(("role", "from"), is_known_role),
    "type": _KIND.fullmatch,
}
"""Names of columns and keys whose strings may be copied, and the form that such a string has."""
_LANGUAGE_KEY = re.compile(r"[a-z_]*_(?:lang|language|locale|country)(?:_code)?|(?:lang|language|country)_code")

SearchResult = list[Any] | tuple[Any, ...] | str
"""The spans in a text, or the reason code why it could not be processed."""
SpanSearch = Callable[[list[str]], Sequence[SearchResult]]
"""Returns the strict policy's spans in each text, or the reason code of its failure."""


# Masked copies: what is copied without being declared.


def find_undeclared_paths(
    cells: Mapping[str, Any], fields: Fields, columns: Collection[str], language: str
) -> Iterator[str]:
    """Yield the path of each value of a row that a copy may not keep, unless its column is declared in ``columns``.

    Kept are texts of ``fields`` (they are masked), numbers and dates under an impersonal name, and strings that are
    short numbers or have the form of :data:`PUBLIC_COLUMNS`. Any other value, and a key that is not a field name, needs
    a declaration.
    """
    try:
        cells = fields.clear_texts(cells)
    except NoTextError:
        # such a row is left out
        return
    text_keys = {*fields.paths, *(step for steps in fields.path_steps for step in steps)}

    def walk(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, dict) or is_arrow_map(value):
            for key, child in value.items() if isinstance(value, dict) else value:
                is_named = key in text_keys or is_field_name(str(key), language)
                # the name of a column is needed to find it, a key below it is not
                yield from walk(child, f"{path}.{key}") if is_named else [f"{path}.{UNNAMED if path else key}"]
        elif isinstance(value, list):
            path = path if path.endswith("[]") else f"{path}[]"
            for child in value:
                # most entries of a long list are numbers
                if isinstance(child, (dict, list)) or not _is_public(path, child):
                    yield from walk(child, path)
        elif not _is_public(path, value):
            yield path

    for path in walk({name: value for name, value in cells.items() if name not in columns}, ""):
        yield path.removeprefix(".")


def describe_undeclared_path(path: str, rows_with_path: int, rows: int) -> str:
    """Describe why the values of a path need a declaration, and how many rows have one."""
    reason = (
        "an unusual key" if path.endswith(UNNAMED) else "personal by its name" if _is_personal_path(path) else "text"
    )
    return f"{reason} in {rows_with_path:,} of {pluralize(rows, 'row')}"


@lru_cache(maxsize=1 << 14)
def is_field_name(key: str, language: str) -> bool:
    """Return whether ``key`` is one word (or a short number), and not a listed given name and surname."""
    if not _FIELD_NAME.fullmatch(key) or _LONG_NUMBER.search(key):
        return False
    match = _NAME_KEY.fullmatch(key)
    # max is a word of programs
    if match is None or match[1].lower() in {"max", *load_optional_words(language)}:
        return True
    return not is_listed_full_name(match[1], match[2])


def _is_public(path: str, value: Any) -> bool:
    """Return whether a value may be copied without being declared."""
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, _NUMBERS):
        return not _is_personal_path(path)
    if not isinstance(value, str):
        return False
    if path.endswith(_TOOL_NAME_PATHS):
        # a tool's name identifies nobody
        return _TOOL_NAME.fullmatch(value) is not None
    is_harmless = _SHORT_NUMBER.fullmatch(value) or _has_public_form(_get_key(path), value)
    return not value or (bool(is_harmless) and not _is_personal_path(path))


def _get_key(path: str) -> str:
    return path.removesuffix("[]").rpartition(".")[2]


@lru_cache(maxsize=1 << 14)
def _is_personal_path(path: str) -> bool:
    return _PERSONAL_NAME.search(_get_key(path)) is not None


def _has_public_form(key: str, value: str) -> bool:
    has_form = PUBLIC_COLUMNS.get("language" if _LANGUAGE_KEY.fullmatch(key) else key)
    return has_form is not None and bool(has_form(value))


# Metadata columns of a curation, and the labels of columns.


def find_personal_columns(
    values: Mapping[str, Set[Any]], search: SpanSearch, language: str
) -> Iterator[tuple[str, str]]:
    """Yield paths that look personal by their name, or because a fifth of their texts match, each with the reason."""
    words = load_optional_words(language)
    for path, column_values in values.items():
        key = _get_key(path)
        texts = sorted(value for value in column_values - {""} if isinstance(value, str))
        identifying = [text for text in texts if is_identifying(text, words) and not _has_public_form(key, text)]
        matches = [result for result in search(identifying) if result] if identifying else []
        if _is_personal_path(path) and column_values - {""}:
            yield path, f"by its name; {pluralize(len(column_values - {''}), 'value')}"
        elif identifying and len(matches) * 5 >= len(texts):
            yield path, f"{len(matches)} of {len(texts):,} values look like {_describe_common_kinds(matches)}"


def _describe_common_kinds(results: Sequence[SearchResult]) -> str:
    """Join the two most frequent kinds of spans; a text that was not processed counts as its reason code."""
    kinds = [{result} if isinstance(result, str) else {get_kind(span.label) for span in result} for result in results]
    counts = Counter(kind for result_kinds in kinds for kind in sorted(result_kinds))
    return join_words([kind for kind, _ in counts.most_common(2)])


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
