"""The two policies: frozen, hashed functions from an engine output to spans.

The strict policy (π) decides what is masked, the conservative policy (π_c) what makes an example private. Both see only
the example's own text and its engine output (``docs/guarantees.md``, house rule on decisions).
"""

from __future__ import annotations

import math
import platform
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from redactory.detectors.coverage import LANGUAGE_THRESHOLD, detect_language, list_covered_languages
from redactory.detectors.engine import EngineOutput, NonEntityScore, Span
from redactory.detectors.engine_registry import MODEL_ENGINES, check_labels, identify_engines, iter_capabilities
from redactory.detectors.recognizers import list_custom_labels
from redactory.detectors.rules import RULES, choose_rules, hash_common_words, load_common_words
from redactory.detectors.settings import (
    AUTO,
    DEFAULT_LABELS,
    ConservativeSettings,
    DetectSettings,
    StrictSettings,
    get_kind,
    get_kinds,
)
from redactory.detectors.spacy_model import get_package_versions
from redactory.detectors.visible_text import VISIBLE_TEXT_SHA256
from redactory.foundation.canonical import flatten_keys, json_sha256

LIST_DETECTOR, PATTERN_DETECTOR, TAGGER = "list", "presidio", "tagger"
MIN_SURE_SCORE, MIN_HARMLESS_PROBABILITY = 0.5, 0.75
"""A pattern span with a lower score is not masked if the tagger's P(non-entity) of all its tokens is at least this."""
_ANNOUNCED_LABELS = frozenset({"ACCOUNT"})
"""Labels whose low scores also need words before them, such as "password is"."""
OTHER_LANGUAGE = "OTHER_LANGUAGE"
"""Label of a whole text in a language without coverage of names."""
VERSIONED_PACKAGES = ("redactory", "faker", "spacy")
"""Packages, besides those that engines report, whose version can change a policy's spans."""


_NOT_HASHED: dict[str, Any] = {
    # the policies' settings are recorded separately; the identities replace paths by digests
    "strict": True,
    "conservative": True,
    "sensitivity": True,
    "tagger": True,
    "spacy": True,
    "lists": True,
    "patterns": {"files"},
    "presidio": {"configuration"},
    "stanza": {"folder"},
    "transformers": {"folder"},
    "engines": True,
}


_MIN_PUBLIC_PROBABILITY = 0.9
"""Minimum P(public or non-entity) of each token of a public span."""


@dataclass(frozen=True)
class StrictPolicy:
    """π: select spans of listed labels that reach the label's minimum score, and all spans of a deny list."""

    settings: StrictSettings
    sensitivity: float = 0.5
    """Scales every minimum score: 0.5 leaves it, 0.75 halves it."""
    model_labels: tuple[str, ...] = ()
    """Labels of models and recognizers that the configuration names: masked at any score."""
    recognizer_labels: tuple[str, ...] = ()
    """The recognizers' part of these; an engine's minimum score does not apply to them."""
    name: ClassVar[str] = "strict"

    @cached_property
    def min_scores(self) -> dict[str, float]:
        """The minimum score of each masked label."""
        by_default = {label: DEFAULT_LABELS.get(label) for label in self.recognizer_labels}
        configured = self.settings.labels.items()
        labels = {label: min_score for label, min_score in configured if by_default.get(label) != min_score}
        return {
            **dict.fromkeys((*self.model_labels, *self.recognizer_labels), 0.0),
            **labels,
            **self.settings.extra_labels,
        }

    def select_spans(self, text: str, output: EngineOutput) -> Iterator[Span]:
        """Select the spans to mask."""
        spans = (
            span
            for span in filter(self.reaches_min_score, output.spans)
            if not (self._is_ambiguous(span) and _is_harmless(text, span, output))
        )
        return _drop_allowed(spans, output)

    def _is_ambiguous(self, span: Span) -> bool:
        """Whether a built-in recognizer found a form that ordinary text shares, without a context word."""
        return (
            span.detector == PATTERN_DETECTOR
            and span.score < MIN_SURE_SCORE
            and span.label not in _ANNOUNCED_LABELS
            and span.label not in (*self.model_labels, *self.recognizer_labels)
        )

    def reaches_min_score(self, span: Span) -> bool:
        """Whether a span reaches the minimum scores of its label and its engine."""
        min_scores, engines = self.min_scores, self.settings.engines
        min_score = max(min_scores.get(span.label, math.inf), engines.get(span.detector, 0.0))
        return span.detector == LIST_DETECTOR or span.score >= self.scale_min_score(min_score)

    def scale_min_score(self, min_score: float) -> float:
        """Scale a minimum score by the sensitivity; a span with score 1 of a listed label is always masked."""
        return min(round(min_score * 2 * (1 - self.sensitivity), 6), max(min_score, 1.0))

    def allow_public(self, output: EngineOutput, kinds: Collection[str]) -> EngineOutput:
        """Add ranges that certainly are of a public kind to the allowed ranges.

        Not if the range overlaps a span with any other label, at any score, or if an engine doubts that one of its
        tokens is public or outside every entity; nor if it overlaps such a range, since half of it would be masked.
        """
        doubts: list[Span | NonEntityScore] = [span for span in output.spans if get_kind(span.label) not in kinds]
        doubts += [token for token in output.non_entity_scores if token.probability < _MIN_PUBLIC_PROBABILITY]
        public = [
            span
            for span in output.spans
            if get_kind(span.label) in kinds and span.detector != LIST_DETECTOR and self.reaches_min_score(span)
        ]
        while doubts:
            doubts = [s for s in public if any(doubt.start < s.end and s.start < doubt.end for doubt in doubts)]
            public = [span for span in public if span not in doubts]
        places = tuple((span.start, span.end) for span in public)
        return replace(output, allowed_ranges=(*output.allowed_ranges, *places)) if places else output


@dataclass(frozen=True)
class ConservativePolicy:
    """π_c: select everything tagged at any score, every token not surely a non-entity, and every rule's span.

    CRT, appendix A.4: "all predictions with tags and all plain texts with scores smaller than 0.9".
    """

    settings: ConservativeSettings
    """With ``rules`` chosen."""
    language: str = "en"
    covered_languages: frozenset[str] | None = None
    """With ``detect.language: auto``, the languages whose names are found; ``xx`` means any."""
    name: ClassVar[str] = "conservative"

    def select_spans(self, text: str, output: EngineOutput) -> Iterator[Span]:
        """Select the spans that make the example private; they are masked only if π selects them too."""
        yield from _drop_allowed(self._find_sensitive_spans(text, output), output)
        if self.covered_languages is not None and not self.covered_languages & {"xx", detect_language(text)}:
            yield Span(0, len(text), OTHER_LANGUAGE, 1.0, "rule")
        if self.settings.flags_everything:
            yield Span(0, len(text), "EVERYTHING", 1.0, "rule")

    def _find_sensitive_spans(self, text: str, output: EngineOutput) -> Iterator[Span]:
        yield from output.spans
        bound = self.settings.min_non_entity_probability
        for start, end, plain, detector in output.non_entity_scores:
            if plain < bound:
                yield Span(start, end, "UNSURE", round(1.0 - plain, 6), f"{detector}-plain")
        for rule in self.settings.rules or ():
            for start, end in RULES[rule](text, self.language):
                yield Span(start, end, rule.upper(), 1.0, "rule")


def _is_harmless(text: str, span: Span, output: EngineOutput) -> bool:
    """Whether the built-in tagger reads all of a span, and holds every token in it for a non-entity."""
    tokens = [
        token
        for token in output.non_entity_scores
        if token.detector == TAGGER and token.start < span.end and span.start < token.end
    ]
    unread = set(range(span.start, span.end)).difference(*(range(token.start, token.end) for token in tokens))
    is_sure = all(token.probability >= MIN_HARMLESS_PROBABILITY for token in tokens)
    return is_sure and not any(text[place : place + 1].strip() for place in unread)


def _drop_allowed(spans: Iterator[Span], output: EngineOutput) -> Iterator[Span]:
    """Drop spans inside an allowed range; a deny list overrides an allow list."""
    if not output.allowed_ranges:
        return spans
    return (
        span
        for span in spans
        if span.detector == LIST_DETECTOR
        or not any(a <= span.start and span.end <= b for a, b in output.allowed_ranges)
    )


def build_policies(settings: DetectSettings) -> tuple[StrictPolicy, ConservativePolicy]:
    """Build π and π_c of a configuration; ``ConfigurationError`` for a label that nothing in it finds."""
    check_labels(settings)
    written = list_custom_labels(settings.patterns, settings.language) if settings.patterns else ()
    named = {
        label for _, capability in iter_capabilities(settings, MODEL_ENGINES) for label in capability.requested_labels
    }
    language, covered = (
        ("en", list_covered_languages(settings)) if settings.language == AUTO else (settings.language, None)
    )
    rules = choose_rules(settings.conservative.rules, language, settings.has_builtin_tagger)
    if "word" in rules:
        load_common_words(language)
    conservative = settings.conservative.model_copy(update={"rules": rules})
    return (
        StrictPolicy(settings.strict, settings.sensitivity, tuple(sorted(named)), written),
        ConservativePolicy(conservative, language, covered),
    )


def describe_label_coverage(settings: DetectSettings) -> list[dict[str, Any]]:
    """Describe each label: ``[{"label", "masks": {part: least score}, "suspects": [part], "public"}]``.

    Parts are models, recognizers, lists and rules. A part that suspects makes an example private and masks nothing. For
    a public label, the engines mask only what they are not sure of.
    """
    strict, conservative = build_policies(settings)
    min_scores, open_ = strict.min_scores, get_kinds(settings.public_labels)
    rows: dict[str, dict[str, Any]] = {}

    def describe_label(label: str) -> dict[str, Any]:
        public = get_kind(label) in open_
        return rows.setdefault(label, {"label": label, "masks": {}, "suspects": [], "public": public})

    for engine, part in iter_capabilities(settings):
        for label in part.labels:
            # pattern spans carry Presidio's engine name
            detector = "presidio" if engine == "patterns" else engine
            min_score = max(min_scores.get(label, math.inf), strict.settings.engines.get(detector, 0.0))
            min_score = 0.0 if engine == "lists" else strict.scale_min_score(min_score)
            if min_score <= 1:
                describe_label(label)["masks"][part.component] = min_score
            else:
                describe_label(label)["suspects"].append(part.component)
    for rule in conservative.settings.rules or ():
        describe_label(rule.upper())["suspects"].append(f"rule {rule}")
    if settings.language == AUTO:
        describe_label(OTHER_LANGUAGE)["suspects"].append("detect.language")
    return [rows[label] for label in sorted(rows)]


def build_policy_records(settings: DetectSettings) -> dict[str, dict[str, Any]]:
    """Return each policy's manifest record by name: settings, dependencies, and the hash of both."""
    return {policy.name: _build_policy_record(settings, policy) for policy in build_policies(settings)}


def compute_policy_hashes(settings: DetectSettings) -> dict[str, str]:
    """The hash of each policy, by name."""
    return {name: record["hash"] for name, record in build_policy_records(settings).items()}


def _build_policy_record(settings: DetectSettings, policy: StrictPolicy | ConservativePolicy) -> dict[str, Any]:
    dependencies: dict[str, Any] = {
        "engines": settings.model_dump(mode="json", exclude=_NOT_HASHED, exclude_none=True),
        "identities": identify_engines(settings),
        "hidden": VISIBLE_TEXT_SHA256,
        "versions": get_package_versions(*VERSIONED_PACKAGES),
        "python": platform.python_version(),
    }
    if isinstance(policy, ConservativePolicy):
        dependencies["words"] = hash_common_words(policy.language)
        if policy.covered_languages is not None:
            dependencies["languages"] = {
                "read": sorted(policy.covered_languages),
                "versions": get_package_versions("py3langid"),
                "sure": LANGUAGE_THRESHOLD,
            }
    policy_settings = policy.settings.model_dump(mode="json")
    if isinstance(policy, StrictPolicy):
        policy_settings["sensitivity"] = policy.sensitivity
    # the record of a fit changes no output
    hashed = {name: value for name, value in policy_settings.items() if name != "fitted"}
    body = {"policy": policy.name, "settings": hashed, "dependencies": dependencies}
    return {"hash": json_sha256(body), **policy_settings, "dependencies": dependencies}


MAX_LISTED_CHANGES = 4
"""Maximum differences in a message."""


def describe_policy_changes(settings: DetectSettings, records: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Describe how the current policies differ from a run's ``records``; None if they do not.

    Names keys and package versions only: other values may be list terms.
    """
    for name, record in build_policy_records(settings).items():
        if record["hash"] != records[name]["hash"]:
            changes = [change for change in diff_records(records[name], record) if change["key"] != "hash"]
            words = [_describe_change(**change) for change in changes[:MAX_LISTED_CHANGES]] + ["and more"] * (
                len(changes) > MAX_LISTED_CHANGES
            )
            summary = ", ".join(words) or "its hash differs"
            return f"the {name} policy no longer matches the run: {summary}"
    return None


def _describe_change(key: str, old: Any, new: Any) -> str:
    package = key.partition("versions.")[2]
    return f"{package} was {old} and is {new}" if package else f"{key} differs"


def diff_records(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the keys whose values differ as [{key, old, new}]; a missing value is null."""
    left, right = flatten_keys(old), flatten_keys(new)
    return [
        {"key": key, "old": left.get(key), "new": right.get(key)}
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]
