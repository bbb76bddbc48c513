"""Options of ``scan`` and ``redact`` that change detection; each only sets keys of the section ``detect``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from redactory.detectors import DetectSettings
from redactory.detectors.coverage import find_uncovered_kinds
from redactory.detectors.engine_registry import collect_labels
from redactory.detectors.recognizers import list_recognized_languages
from redactory.detectors.settings import AUTO, get_kind, get_kinds
from redactory.foundation.errors import ConfigurationError, did_you_mean, join_words, shorten_name
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.loading import ConfigLike, load_text_config, validate_config

_LABELLED_FILE = re.compile("([A-Z][A-Z0-9_]*)=(.+)")


def load_detection_options(
    config: ConfigLike | None,
    only: Sequence[str] | None = None,
    excluded: Sequence[str] | None = None,
    allow: Sequence[str | Path] | None = None,
    deny: Sequence[str] | None = None,
    sensitivity: float | None = None,
    language: str | None = None,
    language_column: str | None = None,
) -> Config:
    """Load a configuration with the options of a command; ``ConfigurationError`` names a wrong option or key.

    ``only`` and ``excluded`` name kinds of spans: all others, or these, become ``detect.public_labels``. ``allow`` are
    files of terms, ``deny`` files or ``LABEL=FILE``; they are added to ``detect.lists``. With a ``language_column`` the
    default language is ``auto``.
    """
    loaded = load_text_config(config)
    value = loaded.model_dump(exclude_unset=True)
    detect: dict[str, Any] = value.get("detect", {})
    if sensitivity is not None:
        detect["sensitivity"] = sensitivity
    if language or language_column:
        detect["language"] = language or AUTO
    if allow or deny:
        lists = detect.get("lists") or {}
        matches = [(entry, _LABELLED_FILE.fullmatch(entry)) for entry in deny or ()]
        denied = [{"label": match[1], "file": match[2]} if match else {"file": entry} for entry, match in matches]
        allowed = [{"file": str(file)} for file in allow or ()]
        detect["lists"] = {"deny": [*lists.get("deny", ()), *denied], "allow": [*lists.get("allow", ()), *allowed]}
    if only or excluded:
        settings = validate_config({**value, "detect": detect}).detect
        detect["public_labels"] = _list_public_kinds(settings, only or (), excluded or ())
    return validate_config({**value, "detect": detect})


def _list_public_kinds(settings: DetectSettings, only: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """List the kinds that are public: those that the configuration or an option excludes, or ``only`` does not name."""
    every = get_kinds(collect_labels(settings))
    found_by_engines = get_kinds(collect_labels(settings.model_copy(update={"lists": None})))
    wanted, unwanted = _parse_kinds("--only", only, every), _parse_kinds("--except", excluded, found_by_engines)
    if both := wanted & unwanted:
        raise ConfigurationError(f"--except: {join_words(sorted(both))} is also in --only; name it in one of them")
    public = found_by_engines - wanted if only else get_kinds(settings.public_labels)
    return sorted(public | unwanted)


def _parse_kinds(option: str, names: Sequence[str], kinds: Collection[str]) -> set[str]:
    """Parse labels in any case, separated by commas, to kinds; ``ConfigurationError`` for one that nothing finds."""
    parsed = set[str]()
    for name in (part.strip() for entry in names for part in entry.split(",")):
        kind = next((get_kind(label) for label in (name, name.upper()) if get_kind(label) in kinds), None)
        if kind is None:
            raise ConfigurationError(
                f"{option}: nothing in this configuration finds '{shorten_name(name)}'"
                f"{did_you_mean(name.upper(), kinds, 0.4) or f'; it finds {join_words(sorted(kinds))}'}"
            )
        parsed.add(kind)
    return parsed


def set_language(settings: DetectSettings, language: str) -> DetectSettings:
    """Return ``settings`` for ``language``; a public kind that nothing finds in this language is left out."""
    changed = settings.model_copy(update={"language": language})
    if not settings.public_labels or language == settings.language:
        return changed
    kinds = get_kinds(collect_labels(changed))
    public = tuple(label for label in settings.public_labels if get_kind(label) in kinds)
    return changed.model_copy(update={"public_labels": public})


def make_language_chooser(settings: DetectSettings) -> Callable[[Any], str]:
    """Return a function from a row's value to the language to read it in: its own, or ``auto``.

    Its own if recognizers know this language and names in it are found; ``auto`` looks for the identifiers of every
    country, and checks that the text is in a language whose names are found.
    """

    @cache
    def choose_language(code: str) -> str:
        language = re.split("[-_]", code.strip().lower())[0]
        if language not in list_recognized_languages():
            return AUTO
        return AUTO if find_uncovered_kinds(settings.model_copy(update={"language": language}), language) else language

    return lambda value: choose_language(value) if isinstance(value, str) else AUTO
