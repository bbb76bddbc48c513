"""The recognizers that a configuration chooses, made here or refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from redactory.detectors.settings import CustomRecognizer
from redactory.foundation.errors import ConfigurationError

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer


def predefined_recognizers(names: Iterable[str], language: str) -> list[EntityRecognizer]:
    """Presidio's recognizers by class name; ``ConfigurationError`` for one that cannot be had here."""
    import presidio_analyzer.predefined_recognizers as predefined
    from presidio_analyzer import EntityRecognizer

    found: list[EntityRecognizer] = []
    for name in names:
        recognizer: Any = getattr(predefined, name, None)
        known = isinstance(recognizer, type) and issubclass(recognizer, EntityRecognizer)
        if not known:
            raise ConfigurationError(f"detect.recognizers: the installed Presidio has no '{name}'")
        try:
            found.append(recognizer(supported_language=language))
        except Exception as error:
            raise ConfigurationError(
                f"detect.recognizers: '{name}' cannot be made here ({type(error).__name__})"
            ) from None
    return found


def custom_recognizer(settings: CustomRecognizer, language: str) -> EntityRecognizer:
    """A recognizer of the configuration's own; ``ConfigurationError`` names the one that is wrong."""
    from presidio_analyzer import Pattern, PatternRecognizer

    if not settings.patterns and not settings.deny_list:
        raise ConfigurationError(f"detect.custom: '{settings.name}' has neither patterns nor a deny_list")
    patterns = []
    for number, (expression, score) in enumerate(settings.patterns.items()):
        try:
            # Presidio's own check: its dialect is that of the regex package, not of re
            patterns.append(Pattern(f"{settings.name} {number + 1}", expression, score))
        except ValueError:
            raise ConfigurationError(
                f"detect.custom: '{settings.name}', pattern {number + 1} is no regular expression, "
                "or its score is not between 0 and 1"
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
