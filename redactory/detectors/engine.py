"""Engines: texts in; spans and, where an engine can, the confidence that a token is plain, out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any, Literal, NamedTuple, Protocol

from redactory.detectors.settings import DEFAULT_LABELS, KNOWN_LABELS, DetectSettings, WordList, get_kind, get_kinds
from redactory.foundation.errors import ConfigurationError, did_you_mean, join_words, shorten

TOO_LONG, TIMEOUT, ENGINE_ERROR, MISALIGNED = "too_long", "pattern_timeout", "engine_error", "misaligned"
"""Reason codes of texts that could not be processed."""


class Span(NamedTuple):
    """Code points [start, end) of a text, a label, a score in [0, 1] and the detector that said so."""

    start: int
    end: int
    label: str
    score: float
    detector: str


class NonEntityScore(NamedTuple):
    """Code points [start, end) of one token and the probability that it is plain, outside every entity."""

    start: int
    end: int
    probability: float
    detector: str


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """Everything engines say about one text, before any policy.

    ``allowed`` holds places that an allow list vouches for.  ``failure`` is a reason code when the text
    could not be processed; then the other fields mean nothing.
    """

    spans: tuple[Span, ...] = ()
    non_entity_scores: tuple[NonEntityScore, ...] = ()
    allowed_ranges: tuple[tuple[int, int], ...] = ()
    failure: str | None = None

    def remap_offsets(self, map_offset: Callable[[int], int]) -> EngineOutput:
        """The same reading of another text, in which each place is what ``place`` makes of it."""
        if self.failure is not None:
            return self
        return EngineOutput(
            tuple(s._replace(start=map_offset(s.start), end=map_offset(s.end)) for s in self.spans),
            tuple(p._replace(start=map_offset(p.start), end=map_offset(p.end)) for p in self.non_entity_scores),
            tuple((map_offset(start), map_offset(end)) for start, end in self.allowed_ranges),
        )


class Capability(NamedTuple):
    """What one part of an engine (a model, a recognizer, a list) can find, told without loading it.

    ``language`` is that of the running text it was made for, None where that is not known.  ``asked_for`` holds those
    of its ``labels`` that are masked because the configuration names the part.  ``reads`` tells what it looks for:
    names in running text, with or without a word on each of the other ``tokens``, or only ``forms`` and listed terms.
    """

    component: str
    labels: frozenset[str]
    language: str | None = None
    requested_labels: frozenset[str] = frozenset()
    scope: Literal["tokens", "names", "forms"] = "tokens"


PUBLIC_THRESHOLD, SURE_THRESHOLD, WEAK_THRESHOLD = 0.5, 0.98, 0.25
"""How probable a public kind must be for a token to be one; and a weak one, for a token that is no secret."""


def find_public_spans(tokens: Iterable[tuple[NonEntityScore, float, str]]) -> Iterator[Span]:
    """Runs of tokens of one public kind: each ``(token, probability that it is public, its likeliest kind)``.

    ``token.probability`` is that of being plain or public.  A token is public that is likely so, or, though
    it may as well be plain, surely no secret; a run's score is the mean of theirs.
    """

    def get_public_kind(entry: tuple[NonEntityScore, float, str]) -> str | None:
        token, public, kind = entry
        sure = public >= PUBLIC_THRESHOLD or (public >= WEAK_THRESHOLD and token.probability >= SURE_THRESHOLD)
        return kind if sure else None

    for kind, run in groupby(tokens, get_public_kind):
        if kind is not None:
            parts = [(token, max(public, PUBLIC_THRESHOLD)) for token, public, _ in run]
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

    def read(self, texts: Sequence[str]) -> list[EngineOutput]: ...

    @classmethod
    def describe_identity(cls, settings: Any, language: str) -> dict[str, Any]: ...

    @classmethod
    def list_capabilities(cls, settings: Any, language: str) -> list[Capability]: ...


def merge_outputs(outputs: Iterable[EngineOutput]) -> EngineOutput:
    """What several engines, or several windows, say of one text; a failure of one is a failure of all."""
    outputs = list(outputs)
    for output in outputs:
        if output.failure is not None:
            return EngineOutput(failure=output.failure)
    if len(outputs) == 1:
        return outputs[0]
    return EngineOutput(
        tuple(span for output in outputs for span in output.spans),
        tuple(token for output in outputs for token in output.non_entity_scores),
        tuple(place for output in outputs for place in output.allowed_ranges),
    )


class _EngineEntry(NamedTuple):
    """Where an engine's class stands, imported only when its section is on, and the extra that it needs."""

    class_path: str
    extra: str | None = None


_ENGINES = {
    "tagger": _EngineEntry("tagger:TaggerEngine"),
    "spacy": _EngineEntry("spacy_ner:SpacyEngine"),
    "patterns": _EngineEntry("patterns:PatternEngine"),
    "presidio": _EngineEntry("presidio_engine:PresidioEngine"),
    "stanza": _EngineEntry("stanza_ner:StanzaEngine", "stanza"),
    "transformers": _EngineEntry("classifier.engine:TransformersEngine", "train"),
    "lists": _EngineEntry("lists:ListEngine"),
}
"""The engines by their section of the settings, in the order in which they read."""
MODEL_ENGINES = ("tagger", "spacy", "presidio", "stanza", "transformers")
"""Engines that read running text, and so find names that nobody listed."""
_WHOLE_TEXT_ENGINES = frozenset({"lists"})
"""Engines that read a long text whole: their cost is bounded, and a term may be longer than an overlap."""


def load_engines(settings: DetectSettings) -> tuple[list[Engine], list[Engine]]:
    """The engines that are switched on, loaded: those that read windows, those that read whole texts.

    ``ConfigurationError`` where one cannot be had here.
    """
    engines = {name: make(section, settings.language) for name, make, section in _iter_enabled_engines(settings)}
    if settings.public_labels:
        _apply_public_labels(settings, engines)
    windowed = [engine for name, engine in engines.items() if name not in _WHOLE_TEXT_ENGINES]
    return windowed, [engine for name, engine in engines.items() if name in _WHOLE_TEXT_ENGINES]


def _apply_public_labels(settings: DetectSettings, engines: Mapping[str, Engine]) -> None:
    """Have the models hold public kinds for plain: only one that gives their probability can tell them.

    ``ConfigurationError`` for a model that does not.
    """
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


def collect_labels(settings: DetectSettings, engines: Collection[str] = _ENGINES) -> frozenset[str]:
    """Every label that a hit of the switched-on ones of ``engines`` can have."""
    return frozenset(label for _, part in iter_capabilities(settings, engines) for label in part.labels)


def check_labels(settings: DetectSettings) -> None:
    """``ConfigurationError`` for a label or an engine that the policies name and that no hit can have.

    It would be ignored, and what was to be masked stay as it is.
    """
    strict, public = settings.strict, settings.public_labels
    # hits of patterns are named as Presidio's own are; those of lists have no bound
    engines = {*_ENGINES.keys() - {"patterns", "lists"}, *settings.engines}
    for name in strict.engines.keys() - engines:
        hint = "; did you mean 'presidio'?" if name == "patterns" else did_you_mean(name, engines)
        raise ConfigurationError(
            f"detect.strict.engines: no engine is named '{shorten(name)}'; valid names: "
            f"{join_words(sorted(engines))}{hint}"
        )
    known_labels = collect_labels(settings, _ENGINES.keys() - {"lists"}) if public else frozenset[str]()
    if unknown := [label for label in public if get_kind(label) not in get_kinds(known_labels)]:
        raise ConfigurationError(
            "detect.public_labels: no engine of this configuration finds "
            f"{join_words(map(shorten, unknown), 'or')}; they find {join_words(sorted(known_labels))}"
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
"""Unknown labels that a message names."""


def require_known_labels(key: str, labels: Iterable[str], known_labels: Collection[str]) -> None:
    """``ConfigurationError`` for ``labels`` that are neither ``known_labels`` nor usual ones."""
    all_known = {*known_labels, *KNOWN_LABELS, str(WordList.model_fields["label"].default)}
    unknown = sorted({*labels} - all_known)
    if not unknown:
        return
    hints = {label: did_you_mean(label.upper(), all_known).removeprefix("; ") for label in unknown[:MAX_NAMED_LABELS]}
    names = [f"'{shorten(label)}'" + (f" ({hint})" if hint else "") for label, hint in hints.items()]
    names += [f"{len(unknown) - MAX_NAMED_LABELS} more"] * (len(unknown) > MAX_NAMED_LABELS)
    choices = "" if all(hints.values()) else f"; valid labels: {join_words(sorted(all_known))}"
    raise ConfigurationError(f"{key}: nothing in this configuration finds the label {join_words(names, 'or')}{choices}")


def identify_engines(settings: DetectSettings) -> dict[str, Any]:
    """What each engine stands on besides its settings: content hashes and versions; nothing is loaded."""
    identities = {}
    for name, make, section in _iter_enabled_engines(settings):
        with _explain_missing_package(name):
            identities[name] = make.describe_identity(section, settings.language)
    return identities


def iter_capabilities(
    settings: DetectSettings, engines: Collection[str] = _ENGINES
) -> Iterator[tuple[str, Capability]]:
    """What each part of the switched-on ones of ``engines`` can find, with the name of its engine.

    Those of other packages are always among them.
    """
    off = {name: None for name in _ENGINES if name not in engines}
    for name, make, section in _iter_enabled_engines(settings.model_copy(update=off)):
        with _explain_missing_package(name):
            for capability in make.list_capabilities(section, settings.language):
                yield name, capability


def _iter_enabled_engines(settings: DetectSettings) -> Iterator[tuple[str, type[Engine], Any]]:
    for name, (place, _) in _ENGINES.items():
        section = getattr(settings, name)
        if section is not None:
            module, _, kind = place.partition(":")
            with _explain_missing_package(name):
                make = getattr(import_module(f"redactory.detectors.{module}"), kind)
            yield name, make, section
    if settings.engines:
        external = import_module("redactory.detectors.external")
        for name, options in settings.engines.items():
            yield name, external.ExternalEngine, external.EngineRequest(name, options)


@contextmanager
def _explain_missing_package(engine: str) -> Iterator[None]:
    """``ConfigurationError`` where what is done within needs a package that is not installed."""
    try:
        yield
    except ImportError as error:
        extra = _ENGINES[engine].extra
        fix = f"pip install 'redactory[{extra}]'" if extra else "reinstall Redactory"
        raise ConfigurationError(
            f"detect.{engine}: this engine needs {error.name}, which is not installed: {fix}"
        ) from None
