"""What is wrong in a recognizer of Presidio's own YAML form, in words.

Presidio takes text for the list of its letters, and names no key where it refuses.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import regex

from redactory.foundation.settings import found

_LISTS = ("patterns", "deny_list", "context", "supported_languages")
_KEYS = (
    *_LISTS,
    "class_name",
    "config_path",
    "country_code",
    "deny_list_score",
    "enabled",
    "global_regex_flags",
    "name",
    "score_thresholds",
    "supported_entities",
    "supported_entity",
    "supported_language",
    "type",
    "version",
)


def no_lists(entry: Any) -> list[str]:
    """Keys of ``entry`` that need a list and have something else: these are wrong whatever Presidio says."""
    if not isinstance(entry, dict):
        return []
    return [
        f"{key}: a list like [one, two] is needed, and {found(entry[key])} stands there"
        for key in _LISTS
        if entry.get(key) is not None and not isinstance(entry[key], list)
    ]


def why_refused(entry: Any) -> list[str]:
    """What may be wrong in an ``entry`` that Presidio refused; nothing where that cannot be told."""
    if isinstance(entry, str):
        return ["the installed Presidio has no recognizer of this name"]
    if not isinstance(entry, dict):
        return [f"keys like name and patterns are needed, and {found(entry)} stands there"]
    return [*_keys(entry), *_patterns(entry.get("patterns") or [])]


def _keys(entry: dict[Any, Any]) -> Iterator[str]:
    if entry.get("type") == "predefined":
        return
    for key in entry:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1)
            meant = f"did you mean '{near[0]}'?" if near else f"known here: {', '.join(sorted(_KEYS))}"
            yield f"{key}: no such key; {meant}"
    if not any(entry.get(key) for key in ("supported_entity", "supported_entities")):
        yield "supported_entity: this key is needed"
    if not entry.get("patterns") and not entry.get("deny_list"):
        yield "patterns or deny_list: one of them is needed"


def _patterns(patterns: list[Any]) -> Iterator[str]:
    for number, pattern in enumerate(patterns, 1):
        place = f"patterns, entry {number}"
        if not isinstance(pattern, dict):
            yield f"{place}: keys name, regex and score are needed, and {found(pattern)} stands there"
            continue
        yield from (f"{place}: {key} is needed" for key in ("name", "regex", "score") if key not in pattern)
        score = pattern.get("score", 0)
        if isinstance(score, bool | str) or not isinstance(score, int | float) or not 0 <= score <= 1:
            yield f"{place}, score: a number from 0 to 1 is needed, and {_number_or_kind(score)} stands there"
        try:
            regex.compile(str(pattern.get("regex", "")))
        except regex.error:
            yield f"{place}, regex: this is no regular expression"


def _number_or_kind(given: Any) -> str:
    return str(given) if type(given) in (int, float) else found(given)
