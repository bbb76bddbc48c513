"""Which engines a configuration uses: load them, list what they can find, and check the labels of the policies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from redactory.detectors.engine import Capability, Engine
from redactory.detectors.external import (
    EngineRequest,
    ExternalEngine,
    find_entry_point,
    load_engine_class,
    parse_options,
)
from redactory.detectors.settings import DEFAULT_LABELS, KNOWN_LABELS, DetectSettings, WordList, get_kind, get_kinds
from redactory.foundation.errors import ConfigurationError, did_you_mean, join_words, shorten_name

_SECTIONS = ("tagger", "spacy", "patterns", "presidio", "stanza", "transformers", "lists")
"""Sections of the settings, in reading order; the engine of this name is imported only if its section is on."""
_EXTRAS = {"stanza": "stanza", "transformers": "train"}
"""The extras that engines need."""
MODEL_ENGINES = tuple(name for name in _SECTIONS if name not in ("patterns", "lists"))
"""Engines that read running text, and so find unlisted names; the strict policy masks the labels they request."""
_WHOLE_TEXT_ENGINES = frozenset({"lists"})
"""Engines that read long texts whole: their cost is bounded, and a term may exceed a window overlap."""


def load_engines(settings: DetectSettings) -> tuple[list[Engine], list[Engine]]:
    """Load the enabled engines: those for windows, those for whole texts; ``ConfigurationError`` if unavailable."""
    engines: dict[str, Engine] = {}
    for name, make, section in _iter_enabled_engines(settings):
        with _explain_missing_package(name):
            engines[name] = make(section, settings.language)
    if settings.public_labels:
        _apply_public_labels(settings, engines)
    windowed = [engine for name, engine in engines.items() if name not in _WHOLE_TEXT_ENGINES]
    return windowed, [engine for name, engine in engines.items() if name in _WHOLE_TEXT_ENGINES]


def _apply_public_labels(settings: DetectSettings, engines: Mapping[str, Engine]) -> None:
    """Make models treat public kinds as non-entities; ``ConfigurationError`` for one without label probabilities."""
    kinds = get_kinds(settings.public_labels)
    for name, engine in engines.items():
        treat_as_public = getattr(engine, "treat_as_public", None)
        if treat_as_public is not None:
            treat_as_public(kinds)
        elif name in MODEL_ENGINES:
            raise ConfigurationError(
                f"detect.public_labels: detect.{name} gives no probability for each label, so public labels "
                "cannot be separated from others; disable it, or remove public_labels"
            )


def collect_labels(settings: DetectSettings, engines: Collection[str] = _SECTIONS) -> frozenset[str]:
    """Return every label that the enabled ``engines`` can produce."""
    return frozenset(label for _, part in iter_capabilities(settings, engines) for label in part.labels)


def check_labels(settings: DetectSettings) -> None:
    """Raise ``ConfigurationError`` if the policies name a label or engine that no span can have.

    Otherwise it would be ignored, and sensitive text would stay.
    """
    strict, public = settings.strict, settings.public_labels
    # pattern spans carry Presidio's engine name; list spans have no minimum score
    engines = {*_SECTIONS, *settings.engines} - {"patterns", "lists"}
    for name in strict.engines.keys() - engines:
        hint = "; did you mean 'presidio'?" if name == "patterns" else did_you_mean(name, engines)
        raise ConfigurationError(
            f"detect.strict.engines: no engine is named '{shorten_name(name)}'; valid names: "
            f"{join_words(sorted(engines))}{hint}"
        )
    known_labels = collect_labels(settings, {*_SECTIONS} - {"lists"}) if public else frozenset[str]()
    if unknown := [label for label in public if get_kind(label) not in get_kinds(known_labels)]:
        raise ConfigurationError(
            "detect.public_labels: no engine of this configuration finds "
            f"{join_words(map(shorten_name, unknown), 'or')}; they find {join_words(sorted(known_labels))}"
            f"{did_you_mean(unknown[0].upper(), known_labels)}"
        )
    named = strict.labels.keys() | strict.extra_labels.keys()
    if named == DEFAULT_LABELS.keys():
        return
    known_labels = collect_labels(settings)
    for key, labels in (("labels", strict.labels), ("extra_labels", strict.extra_labels)):
        require_known_labels(f"detect.strict.{key}", labels, known_labels)
        for label in sorted(labels):
            called = {candidate for candidate in known_labels if get_kind(candidate) == get_kind(label)}
            if called and not called & named:
                raise ConfigurationError(
                    f"detect.strict.{key}: in this configuration {label} is found as "
                    f"{join_words(sorted(called), 'or')} and would not be masked: use {join_words(sorted(called))}"
                )


MAX_NAMED_LABELS = 5
"""Maximum unknown labels in a message."""


def require_known_labels(key: str, labels: Iterable[str], known_labels: Collection[str]) -> None:
    """Raise ``ConfigurationError`` for ``labels`` that are neither in ``known_labels`` nor common."""
    all_known = {*known_labels, *KNOWN_LABELS, str(WordList.model_fields["label"].default)}
    unknown = sorted({*labels} - all_known)
    if not unknown:
        return
    hints = {label: did_you_mean(label.upper(), all_known).removeprefix("; ") for label in unknown[:MAX_NAMED_LABELS]}
    names = [f"'{shorten_name(label)}'" + (f" ({hint})" if hint else "") for label, hint in hints.items()]
    names += [f"{len(unknown) - MAX_NAMED_LABELS} more"] * (len(unknown) > MAX_NAMED_LABELS)
    choices = "" if all(hints.values()) else f"; valid labels: {join_words(sorted(all_known))}"
    raise ConfigurationError(f"{key}: nothing in this configuration finds the label {join_words(names, 'or')}{choices}")


def identify_engines(settings: DetectSettings) -> dict[str, Any]:
    """Return the content hashes and versions that each engine depends on; load nothing."""
    identities = {}
    for name, make, section in _iter_enabled_engines(settings):
        with _explain_missing_package(name):
            identities[name] = make.collect_fingerprint(section, settings.language)
    return identities


def iter_capabilities(
    settings: DetectSettings, engines: Collection[str] = _SECTIONS
) -> Iterator[tuple[str, Capability]]:
    """Yield engine name and capability for the enabled ``engines``, and always for those of other packages."""
    off = {name: None for name in _SECTIONS if name not in engines}
    for name, make, section in _iter_enabled_engines(settings.model_copy(update=off)):
        with _explain_missing_package(name):
            for capability in make.list_capabilities(section, settings.language):
                yield name, capability


def _iter_enabled_engines(settings: DetectSettings) -> Iterator[tuple[str, type[Engine], Any]]:
    for name in _SECTIONS:
        section = getattr(settings, name)
        if section is not None:
            with _explain_missing_package(name):
                make = find_entry_point(name).load()
            yield name, make, section
    for name, options in settings.engines.items():
        kind = load_engine_class(name)
        if hasattr(kind, "list_capabilities"):
            yield name, kind, parse_options(name, kind, options)
        else:
            yield name, ExternalEngine, EngineRequest(name, options)


@contextmanager
def _explain_missing_package(engine: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        extra = _EXTRAS.get(engine)
        fix = f"pip install 'redactory[{extra}]'" if extra else "reinstall Redactory"
        raise ConfigurationError(
            f"detect.{engine}: this engine needs {error.name or 'a package'}, which is not installed: {fix}"
        ) from None
