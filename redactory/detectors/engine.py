"""Engines: texts in; spans and, where an engine can, the confidence that a token is plain, out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any, Literal, NamedTuple, Protocol

from redactory.detectors.settings import DEFAULT_LABELS, KNOWN_LABELS, DetectSettings, WordList, kind_of, kinds_of
from redactory.foundation.errors import ConfigurationError, did_you_mean, listed, shorten

TOO_LONG, TIMEOUT, ENGINE_ERROR, MISALIGNED = "too_long", "pattern_timeout", "engine_error", "misaligned"
"""Reason codes of texts that could not be processed."""


class Span(NamedTuple):
    """Code points [start, end) of a text, a label, a score in [0, 1] and the detector that said so."""

    start: int
    end: int
    label: str
    score: float
    detector: str


class Plain(NamedTuple):
    """Code points [start, end) of one token and the probability that it is plain, outside every entity."""

    start: int
    end: int
    probability: float
    detector: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything engines say about one text, before any policy.

    ``allowed`` holds places that an allow list vouches for.  ``failure`` is a reason code when the text
    could not be processed; then the other fields mean nothing.
    """

    spans: tuple[Span, ...] = ()
    plain: tuple[Plain, ...] = ()
    allowed: tuple[tuple[int, int], ...] = ()
    failure: str | None = None

    def moved(self, place: Callable[[int], int]) -> Reading:
        """The same reading of another text, in which each place is what ``place`` makes of it."""
        if self.failure is not None:
            return self
        return Reading(
            tuple(s._replace(start=place(s.start), end=place(s.end)) for s in self.spans),
            tuple(p._replace(start=place(p.start), end=place(p.end)) for p in self.plain),
            tuple((place(start), place(end)) for start, end in self.allowed),
        )


class Finds(NamedTuple):
    """What one part of an engine (a model, a recognizer, a list) can find, told without loading it.

    ``language`` is that of the running text it was made for, None where that is not known.  ``asked_for``
    holds those of its ``labels`` that are masked because the configuration names the part.  ``reads`` tells
    what it looks for: names in running text, with or without a word on each of the other ``tokens``, or only
    ``forms`` and listed terms.
    """

    part: str
    labels: frozenset[str]
    language: str | None = None
    asked_for: frozenset[str] = frozenset()
    reads: Literal["tokens", "names", "forms"] = "tokens"


LIKELY, SURELY, WEAK = 0.5, 0.98, 0.25
"""How probable a public kind must be for a token to be one; and a weak one, for a token that is no secret."""


def public_spans(tokens: Iterable[tuple[Plain, float, str]]) -> Iterator[Span]:
    """Runs of tokens of one public kind: each ``(token, probability that it is public, its likeliest kind)``.

    ``token.probability`` is that of being plain or public.  A token is public that is likely so, or, though
    it may as well be plain, surely no secret; a run's score is the mean of theirs.
    """

    def kind_if_public(entry: tuple[Plain, float, str]) -> str | None:
        token, public, kind = entry
        sure = public >= LIKELY or (public >= WEAK and token.probability >= SURELY)
        return kind if sure else None

    for kind, run in groupby(tokens, kind_if_public):
        if kind is not None:
            parts = [(token, max(public, LIKELY)) for token, public, _ in run]
            (first, _), (last, _) = parts[0], parts[-1]
            score = sum(public for _, public in parts) / len(parts)
            yield Span(first.start, last.end, kind, round(score, 6), first.detector)


class Engine(Protocol):
    """Reads texts; the reading of a text is a function of that text alone, never of its batch.

    An engine that raises is asked again for each text alone, and a text it cannot read alone has failed.
    Threads share it: what it keeps while it reads is kept under ``ONE_THREAD``.
    It is made of its section of the settings and the language; ``identity`` and ``finds`` load nothing.
    """

    def __init__(self, settings: Any, language: str) -> None: ...

    def read(self, texts: Sequence[str]) -> list[Reading]: ...

    @classmethod
    def identity(cls, settings: Any, language: str) -> dict[str, Any]: ...

    @classmethod
    def finds(cls, settings: Any, language: str) -> list[Finds]: ...


def joined(readings: Iterable[Reading]) -> Reading:
    """What several engines, or several windows, say of one text; a failure of one is a failure of all."""
    readings = list(readings)
    for reading in readings:
        if reading.failure is not None:
            return Reading(failure=reading.failure)
    if len(readings) == 1:
        return readings[0]
    return Reading(
        tuple(span for reading in readings for span in reading.spans),
        tuple(token for reading in readings for token in reading.plain),
        tuple(place for reading in readings for place in reading.allowed),
    )


class _Registered(NamedTuple):
    """Where an engine's class stands, imported only when its section is on, and the extra that it needs."""

    place: str
    extra: str | None = None


_ENGINES = {
    "tagger": _Registered("tagger:TaggerEngine"),
    "spacy": _Registered("spacy_ner:SpacyEngine"),
    "patterns": _Registered("patterns:PatternEngine"),
    "presidio": _Registered("presidio_engine:PresidioEngine"),
    "stanza": _Registered("stanza_ner:StanzaEngine", "stanza"),
    "transformers": _Registered("classifier.engine:TransformersEngine", "train"),
    "lists": _Registered("lists:ListEngine"),
}
"""The engines by their section of the settings, in the order in which they read."""
MODELS = ("tagger", "spacy", "presidio", "stanza", "transformers")
"""Engines that read running text, and so find names that nobody listed."""
_WHOLE = frozenset({"lists"})
"""Engines that read a long text whole: their cost is bounded, and a term may be longer than an overlap."""


def engines_of(settings: DetectSettings) -> tuple[list[Engine], list[Engine]]:
    """The engines that are switched on, loaded: those that read windows, those that read whole texts.

    ``ConfigurationError`` where one cannot be had here.
    """
    loaded = {name: make(section, settings.language) for name, make, section in _switched_on(settings)}
    if settings.public_labels:
        _open(settings, loaded)
    windowed = [engine for name, engine in loaded.items() if name not in _WHOLE]
    return windowed, [engine for name, engine in loaded.items() if name in _WHOLE]


def _open(settings: DetectSettings, loaded: Mapping[str, Engine]) -> None:
    """Have the models hold public kinds for plain: only one that gives their probability can tell them.

    ``ConfigurationError`` for a model that does not.
    """
    kinds = kinds_of(settings.public_labels)
    for name, engine in loaded.items():
        fold = getattr(engine, "fold", None)
        if fold is not None:
            fold(kinds)
        elif name in MODELS:
            raise ConfigurationError(
                f"detect.public_labels: detect.{name} gives no probability for each label, so public labels "
                "cannot be separated from others; disable it, or remove public_labels"
            )


def labels_found(settings: DetectSettings, engines: Collection[str] = _ENGINES) -> frozenset[str]:
    """Every label that a hit of the switched-on ones of ``engines`` can have."""
    return frozenset(label for _, part in finds_of(settings, engines) for label in part.labels)


def check_labels(settings: DetectSettings) -> None:
    """``ConfigurationError`` for a label or an engine that the policies name and that no hit can have.

    It would be ignored, and what was to be masked stay as it is.
    """
    strict, public = settings.strict, settings.public_labels
    # hits of patterns are named as Presidio's own are; those of lists have no bound
    engines = {*_ENGINES.keys() - {"patterns", "lists"}, *settings.engines}
    for name in strict.engines.keys() - engines:
        meant = "; did you mean 'presidio'?" if name == "patterns" else did_you_mean(name, engines)
        raise ConfigurationError(
            f"detect.strict.engines: no engine is named '{shorten(name)}'; valid names: "
            f"{listed(sorted(engines))}{meant}"
        )
    known_labels = labels_found(settings, _ENGINES.keys() - {"lists"}) if public else frozenset[str]()
    if unknown := [label for label in public if kind_of(label) not in kinds_of(known_labels)]:
        raise ConfigurationError(
            "detect.public_labels: no engine of this configuration finds "
            f"{listed(map(shorten, unknown), 'or')}; they find {listed(sorted(known_labels))}"
            f"{did_you_mean(unknown[0].upper(), known_labels)}"
        )
    named = strict.labels.keys() | strict.extra_labels.keys()
    if named == DEFAULT_LABELS.keys():
        return
    known_labels = labels_found(settings)
    for key, labels in (("labels", strict.labels), ("extra_labels", strict.extra_labels)):
        require_labels(f"detect.strict.{key}", labels, known_labels)
        for label in sorted(labels):
            called = {other for other in known_labels if kind_of(other) == kind_of(label)}
            if called and not called & named:
                raise ConfigurationError(
                    f"detect.strict.{key}: in this configuration {label} is found as "
                    f"{listed(sorted(called), 'or')} and would not be masked: use {listed(sorted(called))}"
                )


NAMED = 5
"""Unknown labels that a message names."""


def require_labels(key: str, labels: Iterable[str], known_labels: Collection[str]) -> None:
    """``ConfigurationError`` for ``labels`` that are neither ``known_labels`` nor usual ones."""
    known = {*known_labels, *KNOWN_LABELS, str(WordList.model_fields["label"].default)}
    unknown = sorted({*labels} - known)
    if not unknown:
        return
    meant = {label: did_you_mean(label.upper(), known).removeprefix("; ") for label in unknown[:NAMED]}
    names = [f"'{shorten(label)}'" + (f" ({hint})" if hint else "") for label, hint in meant.items()]
    names += [f"{len(unknown) - NAMED} more"] * (len(unknown) > NAMED)
    choices = "" if all(meant.values()) else f"; valid labels: {listed(sorted(known))}"
    raise ConfigurationError(f"{key}: nothing in this configuration finds the label {listed(names, 'or')}{choices}")


def identities_of(settings: DetectSettings) -> dict[str, Any]:
    """What each engine stands on besides its settings: content hashes and versions; nothing is loaded."""
    found = {}
    for name, make, section in _switched_on(settings):
        with _installed(name):
            found[name] = make.identity(section, settings.language)
    return found


def finds_of(settings: DetectSettings, engines: Collection[str] = _ENGINES) -> Iterator[tuple[str, Finds]]:
    """What each part of the switched-on ones of ``engines`` can find, with the name of its engine.

    Those of other packages are always among them.
    """
    off = {name: None for name in _ENGINES if name not in engines}
    for name, make, section in _switched_on(settings.model_copy(update=off)):
        with _installed(name):
            for found in make.finds(section, settings.language):
                yield name, found


def _switched_on(settings: DetectSettings) -> Iterator[tuple[str, type[Engine], Any]]:
    for name, (place, _) in _ENGINES.items():
        section = getattr(settings, name)
        if section is not None:
            module, _, kind = place.partition(":")
            with _installed(name):
                make = getattr(import_module(f"redactory.detectors.{module}"), kind)
            yield name, make, section
    if settings.engines:
        external = import_module("redactory.detectors.external")
        for name, options in settings.engines.items():
            yield name, external.ExternalEngine, external.Asked(name, options)


@contextmanager
def _installed(engine: str) -> Iterator[None]:
    """``ConfigurationError`` where what is done within needs a package that is not installed."""
    try:
        yield
    except ImportError as error:
        extra = _ENGINES[engine].extra
        fix = f"pip install 'redactory[{extra}]'" if extra else "reinstall Redactory"
        raise ConfigurationError(
            f"detect.{engine}: this engine needs {error.name}, which is not installed: {fix}"
        ) from None
