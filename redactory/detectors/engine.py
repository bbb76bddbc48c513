"""Engines: find spans in texts and, if they can, the probability that a token is outside every entity."""

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
    """Code points [start, end) of a text, a label, a score in [0, 1] and the detector that found it."""

    start: int
    end: int
    label: str
    score: float
    detector: str


class NonEntityScore(NamedTuple):
    """Code points [start, end) of one token, and the probability that it is outside every entity."""

    start: int
    end: int
    probability: float
    detector: str


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """Raw engine output for one text, before any policy.

    ``allowed_ranges`` are matches of an allow list. ``failure`` is a reason code if the text could not be processed;
    then the other fields are empty.
    """

    spans: tuple[Span, ...] = ()
    non_entity_scores: tuple[NonEntityScore, ...] = ()
    allowed_ranges: tuple[tuple[int, int], ...] = ()
    failure: str | None = None

    def remap_offsets(self, map_offset: Callable[[int], int]) -> EngineOutput:
        """The same output for another text; ``map_offset`` maps each offset to its place there."""
        if self.failure is not None:
            return self
        return EngineOutput(
            tuple(s._replace(start=map_offset(s.start), end=map_offset(s.end)) for s in self.spans),
            tuple(p._replace(start=map_offset(p.start), end=map_offset(p.end)) for p in self.non_entity_scores),
            tuple((map_offset(start), map_offset(end)) for start, end in self.allowed_ranges),
        )


class Capability(NamedTuple):
    """What one component (a model, a recognizer, a list) can find, known without loading it.

    ``language`` is the language of running text it was made for, None if unknown. ``requested_labels`` are masked
    because the configuration names the component. ``scope``: "names" in running text, "tokens" if it also scores each
    other token, "forms" for patterns and listed terms only.
    """

    component: str
    labels: frozenset[str]
    language: str | None = None
    requested_labels: frozenset[str] = frozenset()
    scope: Literal["tokens", "names", "forms"] = "tokens"


PUBLIC_THRESHOLD, SURE_THRESHOLD, WEAK_THRESHOLD = 0.5, 0.98, 0.25
"""Minimum P(public) of a public token; or minimum P(non-entity or public) with a weaker minimum P(public)."""


def find_public_spans(tokens: Iterable[tuple[NonEntityScore, float, str]]) -> Iterator[Span]:
    """Yield runs of tokens of one public kind; each token is ``(token, P(public), most probable kind)``.

    ``token.probability`` is P(non-entity or public). A token is public if P(public) reaches ``PUBLIC_THRESHOLD``, or
    ``WEAK_THRESHOLD`` for a token that is surely not sensitive. The score of a run is the mean over its tokens.
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
    """Protocol of an engine: the output for a text is a function of that text alone, never of its batch.

    ``read`` returns one output per text. If it raises, it gets each text again by itself; a text that raises then has
    failed. Threads share engines, so state during a read is guarded by ``ONE_THREAD``. ``collect_fingerprint`` returns
    digests and versions for the policy hash, ``list_capabilities`` what the engine can find; neither loads anything.
    The optional ``treat_as_public`` makes tokens of public kinds count as non-entity tokens.
    """

    def __init__(self, settings: Any, language: str) -> None: ...

    def read(self, texts: Sequence[str]) -> list[EngineOutput]: ...

    @classmethod
    def collect_fingerprint(cls, settings: Any, language: str) -> dict[str, Any]: ...

    @classmethod
    def list_capabilities(cls, settings: Any, language: str) -> list[Capability]: ...


def merge_outputs(outputs: Iterable[EngineOutput]) -> EngineOutput:
    """Merge the outputs of several engines or windows for one text; if one failed, the result is a failure."""
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
    """The import path of an engine class, imported only if its section is on, and the extra it needs."""

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
"""Engines by settings section, in reading order."""
MODEL_ENGINES = ("tagger", "spacy", "presidio", "stanza", "transformers")
"""Engines that read running text, and so find unlisted names."""
_WHOLE_TEXT_ENGINES = frozenset({"lists"})
"""Engines that read long texts whole: their cost is bounded, and a term may exceed a window overlap."""


def load_engines(settings: DetectSettings) -> tuple[list[Engine], list[Engine]]:
    """Load the enabled engines: those for windows, those for whole texts; ``ConfigurationError`` if unavailable."""
    engines = {name: make(section, settings.language) for name, make, section in _iter_enabled_engines(settings)}
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


def collect_labels(settings: DetectSettings, engines: Collection[str] = _ENGINES) -> frozenset[str]:
    """Return every label that the enabled ``engines`` can produce."""
    return frozenset(label for _, part in iter_capabilities(settings, engines) for label in part.labels)


def check_labels(settings: DetectSettings) -> None:
    """Raise ``ConfigurationError`` if the policies name a label or engine that no span can have.

    Otherwise it would be ignored, and sensitive text would stay.
    """
    strict, public = settings.strict, settings.public_labels
    # pattern spans carry Presidio's engine name; list spans have no minimum score
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
"""Maximum unknown labels in a message."""


def require_known_labels(key: str, labels: Iterable[str], known_labels: Collection[str]) -> None:
    """Raise ``ConfigurationError`` for ``labels`` that are neither in ``known_labels`` nor common."""
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
    """Return the content hashes and versions that each engine depends on; load nothing."""
    identities = {}
    for name, make, section in _iter_enabled_engines(settings):
        with _explain_missing_package(name):
            identities[name] = make.collect_fingerprint(section, settings.language)
    return identities


def iter_capabilities(
    settings: DetectSettings, engines: Collection[str] = _ENGINES
) -> Iterator[tuple[str, Capability]]:
    """Yield engine name and capability for the enabled ``engines``, and always for those of other packages."""
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
    try:
        yield
    except ImportError as error:
        extra = _ENGINES[engine].extra
        fix = f"pip install 'redactory[{extra}]'" if extra else "reinstall Redactory"
        raise ConfigurationError(
            f"detect.{engine}: this engine needs {error.name}, which is not installed: {fix}"
        ) from None
