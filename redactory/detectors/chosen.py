"""What is wrong in a recognizer of Presidio's own YAML form, in words.

Presidio takes text for the list of its letters, and names no key where it refuses.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regex

from redactory.detectors.settings import DEFAULT_RECOGNIZERS, CustomRecognizer, PatternSettings
from redactory.detectors.spacy_model import lean_imports
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.settings import found

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer


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


# The recognizers that a configuration chooses, made here or refused by name.


def predefined_recognizers(names: Iterable[str], language: str) -> list[EntityRecognizer]:
    """Presidio's recognizers by class name; ``ConfigurationError`` for one that cannot be had here."""
    with lean_imports():
        import presidio_analyzer.predefined_recognizers as predefined
        from presidio_analyzer import EntityRecognizer

    found: list[EntityRecognizer] = []
    for name in names:
        recognizer: Any = getattr(predefined, name, None)
        known = isinstance(recognizer, type) and issubclass(recognizer, EntityRecognizer)
        if not known:
            near = difflib.get_close_matches(name, dir(predefined), n=1)
            meant = f"did you mean '{near[0]}'?" if near else "its documentation lists those that there are"
            raise ConfigurationError(
                f"detect.patterns.recognizers: the installed Presidio has no '{name}'; {meant}"
            )
        try:
            found.append(_by_pattern(recognizer(supported_language=language)))
        except Exception as error:
            raise ConfigurationError(
                f"detect.patterns.recognizers: '{name}' cannot be made here ({_kind(error)})"
            ) from None
    return found


def custom_recognizer(settings: CustomRecognizer, language: str) -> EntityRecognizer:
    """A recognizer of the configuration's own; ``ConfigurationError`` names the one that is wrong."""
    with lean_imports():
        from presidio_analyzer import Pattern, PatternRecognizer

    key = f"detect.patterns.custom: '{settings.name}'"
    if not settings.patterns and not settings.deny_list:
        raise ConfigurationError(f"{key} has neither patterns nor a deny_list")
    patterns = []
    for number, (expression, score) in enumerate(settings.patterns.items()):
        try:
            # Presidio's own check: its dialect is that of the regex package, not of re
            patterns.append(Pattern(f"{settings.name} {number + 1}", expression, score))
        except ValueError:
            raise ConfigurationError(
                f"{key}, pattern {number + 1} is no regular expression, or its score is not between 0 and 1"
            ) from None
    given: dict[str, Any] = {
        "supported_entity": settings.label,
        "name": settings.name,
        "supported_language": language,
        "patterns": patterns or None,
        "deny_list": list(settings.deny_list) or None,
        "deny_list_score": 1.0,
        "context": list(settings.context) or None,
    }
    return PatternRecognizer(**given)


def file_recognizers(file: str, language: str) -> list[EntityRecognizer]:
    """The recognizers of ``language`` in a YAML file of Presidio's own form, taken as they are.

    ``ConfigurationError`` names the file and, where it is one of them that is wrong, the recognizer; so
    does a file that has none for the language.
    """
    with lean_imports():
        from presidio_analyzer.recognizer_registry.recognizers_loader_utils import RecognizerListLoader

    document = _document(file)
    flags = document.get("global_regex_flags", _PRESIDIOS_FLAGS)
    found: list[EntityRecognizer] = []
    for number, entry in enumerate(document["recognizers"]):
        name = entry.get("name") if isinstance(entry, dict) else entry
        where = f"detect.patterns.files: {file}, recognizer {number + 1} ('{name}')"
        if wrong := no_lists(entry):
            raise ConfigurationError(f"{where}: {'; '.join(wrong)}")
        try:
            # a name alone stands for a recognizer of Presidio's
            given: Any = [{"name": entry, "type": "predefined"} if isinstance(entry, str) else entry]
            found += map(_by_pattern, RecognizerListLoader.get(given, [language], flags))
        except _NoPatterns as error:
            raise ConfigurationError(f"{where}: {_kind(error)}") from None
        except Exception as error:
            raise ConfigurationError(f"{where}: {'; '.join(why_refused(entry)) or _kind(error)}") from None
    if not found:
        raise ConfigurationError(
            f"detect.patterns.files: {file} has no recognizer that is enabled for '{language}'"
        )
    return found


def check_patterns(settings: PatternSettings, language: str) -> None:
    """Make every recognizer of the settings once; ``ConfigurationError`` names the one that is wrong."""
    predefined_recognizers(settings.recognizers, language)
    for recognizer in settings.custom:
        custom_recognizer(recognizer, language)
    for file in settings.files:
        file_recognizers(file, language)


def own_labels(settings: PatternSettings, language: str) -> tuple[str, ...]:
    """Labels of the recognizers that the configuration brings in, masked whatever the score of a hit.

    Those that it writes or has in files, and those of Presidio's that it names beyond the default.
    """
    named = [name for name in settings.recognizers if name not in DEFAULT_RECOGNIZERS]
    found = predefined_recognizers(named, language) if named else []
    for file in settings.files:
        found += file_recognizers(file, language)
    labels = {recognizer.label for recognizer in settings.custom}
    return tuple(sorted(labels.union(*(one.supported_entities for one in found))))


_PRESIDIOS_FLAGS = 26
"""DOTALL, MULTILINE and IGNORECASE: what Presidio gives a recognizer that says nothing of it."""


class _NoPatterns(Exception):
    """The recognizer needs a model or another machine."""


def _by_pattern(recognizer: Any) -> EntityRecognizer:
    """``recognizer``, if it finds by itself; one that waits for a model's entities would never hit."""
    from presidio_analyzer import PatternRecognizer
    from presidio_analyzer.predefined_recognizers import PhoneRecognizer

    if not isinstance(recognizer, PatternRecognizer | PhoneRecognizer):
        raise _NoPatterns
    found: EntityRecognizer = recognizer
    return found


def _kind(error: Exception) -> str:
    """What went wrong, without the message: it may quote an expression."""
    if isinstance(error, _NoPatterns):
        return "it is no pattern recognizer; models are engines of their own"
    return type(error).__name__


def _document(file: str) -> dict[str, Any]:
    with lean_imports():
        from presidio_analyzer.recognizer_registry.recognizers_loader_utils import (
            RecognizerConfigurationLoader,
        )

    if not Path(file).is_file():
        raise ConfigurationError(f"detect.patterns.files: {file} is no file")
    try:
        document = RecognizerConfigurationLoader.get(conf_file=file)
    except Exception as error:
        raise ConfigurationError(
            f"detect.patterns.files: {file} is no YAML file with a list 'recognizers' "
            f"({type(error).__name__})"
        ) from None
    if not isinstance(document.get("recognizers"), list):
        raise ConfigurationError(f"detect.patterns.files: {file} has no list 'recognizers'")
    return document
