"""The recognizers that a configuration chooses, made here or refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.detectors.lean_imports import lean_imports
from redactory.detectors.recognizer_mistakes import no_lists, why_refused
from redactory.detectors.settings import DEFAULT_RECOGNIZERS, CustomRecognizer, PatternSettings
from redactory.foundation.errors import ConfigurationError

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer


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
