"""The engines that a configuration switches on, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from redactory.detectors.engine import Engine, Finds
from redactory.detectors.settings import DetectSettings
from redactory.foundation.errors import ConfigurationError

_ENGINES: dict[str, tuple[str, str]] = {
    # section of the settings: module and class, imported only when the section is on
    "tagger": ("redactory.detectors.tagger", "TaggerEngine"),
    "spacy": ("redactory.detectors.spacy_ner", "SpacyEngine"),
    "patterns": ("redactory.detectors.patterns", "PatternEngine"),
    "stanza": ("redactory.detectors.stanza_ner", "StanzaEngine"),
    "transformers": ("redactory.detectors.classifier.engine", "TransformersEngine"),
    "lists": ("redactory.detectors.lists", "ListEngine"),
}
_EXTRAS = {"stanza": "stanza", "transformers": "train"}
"""Of an engine that not every installation has, the extra that brings it."""
_WHOLE = frozenset({"lists"})
"""Engines that read a long text whole: their cost is bounded, and a term may be longer than an overlap."""


def engines_of(settings: DetectSettings) -> tuple[list[Engine], list[Engine]]:
    """The engines that are switched on, loaded: those that read windows, those that read whole texts.

    ``ConfigurationError`` where one cannot be had here.
    """
    windowed: list[Engine] = []
    whole: list[Engine] = []
    for name, make, section in _switched_on(settings):
        (whole if name in _WHOLE else windowed).append(make(section, settings.language))
    return windowed, whole


def identities_of(settings: DetectSettings) -> dict[str, Any]:
    """What each engine stands on besides its settings: content hashes and versions; nothing is loaded."""
    found = {}
    for name, make, section in _switched_on(settings):
        with _installed(name):
            found[name] = make.identity(section, settings.language)  # type: ignore[attr-defined]
    return found


MODELS = ("tagger", "spacy", "stanza", "transformers")
"""Engines that read running text, and so find names that nobody listed."""


def finds_of(settings: DetectSettings, engines: Collection[str] = _ENGINES) -> Iterator[tuple[str, Finds]]:
    """What each part of the switched-on ones of ``engines`` can find, with the name of its engine."""
    off = {name: None for name in _ENGINES if name not in engines}
    for name, make, section in _switched_on(settings.model_copy(update=off)):
        with _installed(name):
            for found in make.finds(section, settings.language):  # type: ignore[attr-defined]
                yield name, found


def _switched_on(settings: DetectSettings) -> Iterator[tuple[str, Callable[..., Engine], Any]]:
    for name, (module, kind) in _ENGINES.items():
        section = getattr(settings, name)
        if section is not None:
            with _installed(name):
                make = getattr(import_module(module), kind)
            yield name, make, section


@contextmanager
def _installed(engine: str) -> Iterator[None]:
    """``ConfigurationError`` where what is done within needs a package that is not installed."""
    try:
        yield
    except ImportError as error:
        extra = _EXTRAS.get(engine)
        mend = f"pip install 'redactory[{extra}]'" if extra else "install Redactory anew"
        raise ConfigurationError(
            f"detect.{engine}: this engine needs {error.name}, not installed here: {mend}"
        ) from None
