"""The two policies: frozen, hashed functions from a reading to spans.

π (strict) says what is masked.  π_c (conservative) says what makes a point private.  Both see only
the point's own text and what the engines read in it (``docs/guarantees.md``, house rule on fates).
"""

from __future__ import annotations

import math
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import regex as re

from redactory.detectors.coverage import LANGUAGE_THRESHOLD, detect_language, list_covered_languages
from redactory.detectors.engine import (
    MODEL_ENGINES,
    EngineOutput,
    NonEntityScore,
    Span,
    check_labels,
    identify_engines,
    iter_capabilities,
)
from redactory.detectors.recognizers import list_custom_labels
from redactory.detectors.rules import (
    RULES,
    SOFT_RULES,
    get_forgiveness_threshold,
    hash_common_words,
    is_common_word,
    load_common_words,
    load_optional_words,
    select_active_rules,
    unlisted_words,
)
from redactory.detectors.settings import (
    AUTO,
    DEFAULT_LABELS,
    ConservativeSettings,
    DetectSettings,
    RuleName,
    StrictSettings,
    get_kind,
    get_kinds,
)
from redactory.detectors.spacy_model import package_versions
from redactory.detectors.visible_text import VISIBLE_TEXT_SHA256
from redactory.foundation.canonical import flatten_keys, json_sha256

LIST_DETECTOR = "list"
OTHER_LANGUAGE = "OTHER_LANGUAGE"
"""The label of a whole text that is in a language in which nothing finds names."""
_LISTS_SECTION = "lists"
"""The section of the settings whose engine calls itself so."""
VERSIONED_PACKAGES = ("redactory", "faker", "spacy")
"""Packages whose version can change what a policy marks, besides those that an engine names."""


_NOT_HASHED: dict[str, Any] = {
    # each policy's own settings stand beside; paths are named by their content, in the identities
    "strict": True,
    "conservative": True,
    "tagger": True,
    "spacy": True,
    "lists": True,
    "patterns": {"files"},
    "presidio": {"configuration"},
    "stanza": {"folder"},
    "transformers": {"folder"},
    "engines": True,
}


_NEUTRAL_VALUES = {"public_labels": (), "profile": "text"}
"""Settings that came later, at which a policy is the one that it was without them."""

_MIN_PUBLIC_PROBABILITY = 0.9
"""The least probability, of each token of a public thing, that it is public or plain."""


@dataclass(frozen=True)
class StrictPolicy:
    """π: an engine's span counts when its label is listed and its score reaches the label's bound.

    A hit of a deny list counts whatever its label.
    """

    settings: StrictSettings
    model_labels: tuple[str, ...] = ()
    """Labels that models and recognizers bring in which the configuration names: masked at any score."""
    recognizer_labels: tuple[str, ...] = ()
    """Those of recognizers: not even the default's bound for another engine's hits keeps one from it."""
    language: str = "en"
    name: ClassVar[str] = "strict"

    @cached_property
    def min_scores(self) -> dict[str, float]:
        """The least score of each label that is masked."""
        by_default = {label: DEFAULT_LABELS.get(label) for label in self.recognizer_labels}
        configured = self.settings.labels.items()
        labels = {label: min_score for label, min_score in configured if by_default.get(label) != min_score}
        return {
            **dict.fromkeys((*self.model_labels, *self.recognizer_labels), 0.0),
            **labels,
            **self.settings.extra_labels,
        }

    def select_spans(self, text: str, output: EngineOutput) -> Iterator[Span]:
        """The spans that are masked, those of persons to the end of the name."""
        spans = (_extend_name(text, span, self.language) for span in filter(self.reaches_min_score, output.spans))
        return _drop_allowed(spans, output)

    def reaches_min_score(self, span: Span) -> bool:
        """Whether a hit reaches the bounds of its label and of its engine."""
        min_scores, engines = self.min_scores, self.settings.engines
        min_score = max(min_scores.get(span.label, math.inf), engines.get(span.detector, 0.0))
        return span.detector == LIST_DETECTOR or span.score >= min_score

    def allow_public(self, output: EngineOutput, kinds: Collection[str]) -> EngineOutput:
        """``reading``, in which what surely is of one of ``kinds`` is allowed, as by an allow list.

        Not where it overlaps a hit with any other label, at whatever score, nor where an engine doubts that
        one of its tokens is public or plain: what may be something else is no public thing.
        """
        doubts: list[Span | NonEntityScore] = [span for span in output.spans if get_kind(span.label) not in kinds]
        doubts += [token for token in output.non_entity_scores if token.probability < _MIN_PUBLIC_PROBABILITY]
        places = tuple(
            (span.start, span.end)
            for span in output.spans
            if get_kind(span.label) in kinds
            and span.detector != LIST_DETECTOR
            and self.reaches_min_score(span)
            and not any(doubt.start < span.end and span.start < doubt.end for doubt in doubts)
        )
        return replace(output, allowed_ranges=(*output.allowed_ranges, *places)) if places else output


@dataclass(frozen=True)
class ConservativePolicy:
    """π_c: everything tagged at any score, every token not surely plain, and every rule's hit.

    CRT, appendix A.4: "all predictions with tags and all plain texts with scores smaller than 0.9". A hit of a soft
    rule alone is forgiven where the engines hold its words surely plain; a word in a common form and a number by itself
    from a lower bound on.  Of an ordinary word in small letters the engines may doubt twice as much.
    """

    settings: ConservativeSettings
    language: str = "en"
    covered_languages: frozenset[str] | None = None
    """With ``detect.language: auto`` the languages whose names are found, ``xx`` for any."""
    name: ClassVar[str] = "conservative"

    def select_spans(self, text: str, output: EngineOutput) -> Iterator[Span]:
        """What makes the point private; nothing of it is masked unless π marks it too."""
        language = self.language if self.covered_languages is None else detect_language(text)
        yield from _drop_allowed(self._find_sensitive(text, output, *self._rules_for(language)), output)
        if self.covered_languages is not None and language and self.covered_languages.isdisjoint((language, "xx")):
            yield Span(0, len(text), OTHER_LANGUAGE, 1.0, "rule")
        if self.settings.flags_everything:
            yield Span(0, len(text), "EVERYTHING", 1.0, "rule")

    def _rules_for(self, language: str | None) -> tuple[tuple[RuleName, ...], float, frozenset[str]]:
        """The rules for a text in ``language``, what forgives them, and the words that are ordinary there.

        With ``auto`` every rule holds, unforgiven, of a text whose language is not certain: each of its words
        is then an ordinary one of English.  Rules of English words hold of no other language.
        """
        if language is None:
            return tuple(RULES), 1.0, frozenset()
        rules = select_active_rules(self.settings.rules, language)
        return rules, self.settings.confident_threshold, load_optional_words(language)

    def _find_sensitive(
        self,
        text: str,
        output: EngineOutput,
        rules: Sequence[RuleName],
        confident_from: float,
        common_words: frozenset[str],
    ) -> Iterator[Span]:
        yield from output.spans
        forgiving = confident_from < 1
        bound = self.settings.min_non_entity_probability
        ordinary = 2 * bound - 1 if forgiving else 1.0
        for start, end, plain, detector in output.non_entity_scores:
            if plain < bound and not (plain >= ordinary and is_common_word(text, start, end, common_words)):
                yield Span(start, end, "UNSURE", round(1.0 - plain, 6), f"{detector}-plain")
        # the least that any engine gives a code point, for those that one scores
        probabilities: dict[int, float] = {}
        for token in output.non_entity_scores if forgiving else ():
            for place in range(token.start, token.end):
                probabilities[place] = min(token.probability, probabilities.get(place, 1.0))
        for rule in rules:
            usual = confident_from if rule in SOFT_RULES else math.inf
            for start, end in RULES[rule](text, self.language):
                threshold = get_forgiveness_threshold(text, start, end, usual, confident_from, common_words)
                if not all(probabilities.get(place, -1.0) >= threshold for place in range(start, end)):
                    yield Span(start, end, rule.upper(), 1.0, "rule")


_FAMILY_NAME = re.compile(r" (\p{Lu}[\p{L}\p{M}'’-]+)(?![\w@])")
"""What may go on with a name: one more capitalised word."""
_MAX_FAMILY_NAMES = 3


def _extend_name(text: str, span: Span, language: str) -> Span:
    """``span``; of a person's name to the end of capitalised words behind it that are no ordinary ones.

    Taggers know fewer family names than given ones.  Only in languages with a list of ordinary words.
    """
    name = get_kind(span.label) == "PERSON" and span.detector != LIST_DETECTOR
    if not name or not re.fullmatch(r"\p{Lu}.*\p{L}", text[span.start : span.end]):
        return span
    end = span.end
    for _ in range(_MAX_FAMILY_NAMES):
        family_name = _FAMILY_NAME.match(text, end)
        if not family_name:
            break
        words = load_optional_words((detect_language(text) or "") if language == AUTO else language)
        if not words or not any(unlisted_words(family_name[1], words)):
            break
        end = family_name.end()
    return span._replace(end=end)


def _drop_allowed(spans: Iterator[Span], output: EngineOutput) -> Iterator[Span]:
    """Less the hits inside an allowed place; a deny list is stronger than an allow list."""
    if not output.allowed_ranges:
        return spans
    return (
        span
        for span in spans
        if span.detector == LIST_DETECTOR
        or not any(a <= span.start and span.end <= b for a, b in output.allowed_ranges)
    )


def build_policies(settings: DetectSettings) -> tuple[StrictPolicy, ConservativePolicy]:
    """π and π_c of a configuration; ``ConfigurationError`` for a label that nothing in it finds."""
    check_labels(settings)
    written = list_custom_labels(settings.patterns, settings.language) if settings.patterns else ()
    named = {
        label for _, capability in iter_capabilities(settings, MODEL_ENGINES) for label in capability.requested_labels
    }
    rules = settings.conservative.rules
    if "word" in rules and settings.language != AUTO and rules != ConservativeSettings().rules:
        # one who lists it by name means it
        load_common_words(settings.language)
    return (
        StrictPolicy(settings.strict, tuple(sorted(named)), written, settings.language),
        ConservativePolicy(settings.conservative, "en", list_covered_languages(settings))
        if settings.language == AUTO
        else ConservativePolicy(settings.conservative, settings.language),
    )


def describe_label_coverage(settings: DetectSettings) -> list[dict[str, Any]]:
    """``[{"label", "masks": {part: least score}, "suspects": [part], "public"}]``: who makes what of a label.

    Parts are models, recognizers, lists and rules; one that suspects makes a point private and masks nothing.
    Of one that is ``public`` the engines mask what they are not sure of.
    """
    strict = build_policies(settings)[0]
    min_scores, open_ = strict.min_scores, get_kinds(settings.public_labels)
    rows: dict[str, dict[str, Any]] = {}

    def get_row(label: str) -> dict[str, Any]:
        public = get_kind(label) in open_
        return rows.setdefault(label, {"label": label, "masks": {}, "suspects": [], "public": public})

    for engine, part in iter_capabilities(settings):
        for label in part.labels:
            # hits of patterns are named as Presidio's own are
            detector = "presidio" if engine == "patterns" else engine
            min_score = max(min_scores.get(label, math.inf), strict.settings.engines.get(detector, 0.0))
            if engine == _LISTS_SECTION or min_score <= 1:
                get_row(label)["masks"][part.component] = 0.0 if engine == _LISTS_SECTION else min_score
            else:
                get_row(label)["suspects"].append(part.component)
    for rule in settings.conservative.rules:
        get_row(rule.upper())["suspects"].append(f"rule {rule}")
    if settings.language == AUTO:
        get_row(OTHER_LANGUAGE)["suspects"].append("detect.language")
    return [rows[label] for label in sorted(rows)]


def build_policy_records(settings: DetectSettings) -> dict[str, dict[str, Any]]:
    """What a manifest says of each policy, by name: its settings, all that it stands on, the hash of both."""
    return {policy.name: _build_record(settings, policy) for policy in build_policies(settings)}


def compute_policy_hashes(settings: DetectSettings) -> dict[str, str]:
    """The hash of each policy, by name."""
    return {name: record["hash"] for name, record in build_policy_records(settings).items()}


def _build_record(settings: DetectSettings, policy: StrictPolicy | ConservativePolicy) -> dict[str, Any]:
    unset = {name: True for name, neutral in _NEUTRAL_VALUES.items() if getattr(settings, name) == neutral}
    dependencies: dict[str, Any] = {
        "engines": settings.model_dump(mode="json", exclude=_NOT_HASHED | unset, exclude_none=True),
        "identities": identify_engines(settings),
        "hidden": VISIBLE_TEXT_SHA256,
        "versions": package_versions(*VERSIONED_PACKAGES),
        "python": platform.python_version(),
    }
    if isinstance(policy, ConservativePolicy):
        dependencies["words"] = hash_common_words(policy.language)
        if policy.covered_languages is not None:
            dependencies["languages"] = {
                "read": sorted(policy.covered_languages),
                "versions": package_versions("py3langid"),
                "sure": LANGUAGE_THRESHOLD,
            }
    policy_settings = policy.settings.model_dump(mode="json")
    # how the numbers were found changes no output
    hashed = {name: value for name, value in policy_settings.items() if name != "fitted"}
    body = {"policy": policy.name, "settings": hashed, "stands_on": dependencies}
    return {"hash": json_sha256(body), **policy_settings, "stands_on": dependencies}


# How a policy differs here and now from the record of a run.


MAX_LISTED_CHANGES = 4
"""Differences that a message lists."""


def describe_policy_changes(settings: DetectSettings, records: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Which policy differs here and now from a run's ``records``, and in what; None where none does.

    Keys are named, and of packages the versions: the other values may be words of a list.
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
    """The keys whose values differ: [{key, old, new}]; what only one of the two has is null in the other."""
    left, right = flatten_keys(old), flatten_keys(new)
    return [
        {"key": key, "old": left.get(key), "new": right.get(key)}
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]
