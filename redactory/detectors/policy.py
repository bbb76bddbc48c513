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

from redactory.detectors.blind import SURE, language_of, languages_read
from redactory.detectors.engine import MODELS, Plain, Reading, Span, check_labels, finds_of, identities_of
from redactory.detectors.hidden import HIDDEN_SHA256
from redactory.detectors.recognizers import own_labels
from redactory.detectors.rules import (
    RULES,
    SOFT_RULES,
    holding,
    is_ordinary,
    outside,
    plain_from,
    words_identity,
    words_if_any,
    words_of,
)
from redactory.detectors.settings import (
    AUTO,
    DEFAULT_LABELS,
    ConservativeSettings,
    DetectSettings,
    RuleName,
    StrictSettings,
    kind_of,
    kinds_of,
)
from redactory.detectors.spacy_model import versions
from redactory.foundation.canonical import flat, hash_of

LISTS = "list"
OTHER_LANGUAGE = "OTHER_LANGUAGE"
"""The label of a whole text that is in a language in which nothing finds names."""
_LISTS = "lists"
"""The section of the settings whose engine calls itself so."""
VERSIONED = ("redactory", "faker", "spacy")
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


_OFF = {"public_labels": (), "profile": "text"}
"""Settings that came later, at which a policy is the one that it was without them."""

_PUBLIC_ENOUGH = 0.9
"""The least probability, of each token of a public thing, that it is public or plain."""


@dataclass(frozen=True)
class StrictPolicy:
    """π: an engine's span counts when its label is listed and its score reaches the label's bound.

    A hit of a deny list counts whatever its label.
    """

    settings: StrictSettings
    custom: tuple[str, ...] = ()
    """Labels that models and recognizers bring in which the configuration names: masked at any score."""
    written: tuple[str, ...] = ()
    """Those of recognizers: not even the default's bound for another engine's hits keeps one from it."""
    language: str = "en"
    name: ClassVar[str] = "strict"

    @cached_property
    def bounds(self) -> dict[str, float]:
        """The least score of each label that is masked."""
        by_default = {label: DEFAULT_LABELS.get(label) for label in self.written}
        given = self.settings.labels.items()
        labels = {label: bound for label, bound in given if by_default.get(label) != bound}
        return {**dict.fromkeys((*self.custom, *self.written), 0.0), **labels, **self.settings.extra_labels}

    def marks(self, text: str, reading: Reading) -> Iterator[Span]:
        """The spans that are masked, those of persons to the end of the name."""
        spans = (_to_its_end(text, span, self.language) for span in filter(self.is_sure, reading.spans))
        return _not_allowed(spans, reading)

    def is_sure(self, span: Span) -> bool:
        """Whether a hit reaches the bounds of its label and of its engine."""
        bounds, engines = self.bounds, self.settings.engines
        least = max(bounds.get(span.label, math.inf), engines.get(span.detector, 0.0))
        return span.detector == LISTS or span.score >= least

    def opened(self, reading: Reading, kinds: Collection[str]) -> Reading:
        """``reading``, in which what surely is of one of ``kinds`` is allowed, as by an allow list.

        Not where it overlaps a hit with any other label, at whatever score, nor where an engine doubts that
        one of its tokens is public or plain: what may be something else is no public thing.
        """
        others: list[Span | Plain] = [span for span in reading.spans if kind_of(span.label) not in kinds]
        others += [token for token in reading.plain if token.probability < _PUBLIC_ENOUGH]
        places = tuple(
            (span.start, span.end)
            for span in reading.spans
            if kind_of(span.label) in kinds
            and span.detector != LISTS
            and self.is_sure(span)
            and not any(other.start < span.end and span.start < other.end for other in others)
        )
        return replace(reading, allowed=(*reading.allowed, *places)) if places else reading


@dataclass(frozen=True)
class ConservativePolicy:
    """π_c: everything tagged at any score, every token not surely plain, and every rule's hit.

    CRT, appendix A.4: "all predictions with tags and all plain texts with scores smaller than 0.9".
    A hit of a soft rule alone is forgiven where the engines hold its words surely plain; a word in a
    common form and a number by itself from a lower bound on.  Of an ordinary word in small letters the
    engines may doubt twice as much.
    """

    settings: ConservativeSettings
    language: str = "en"
    reads: frozenset[str] | None = None
    """With ``detect.language: auto`` the languages whose names are found, ``xx`` for any."""
    name: ClassVar[str] = "conservative"

    def marks(self, text: str, reading: Reading) -> Iterator[Span]:
        """What makes the point private; nothing of it is masked unless π marks it too."""
        language = self.language if self.reads is None else language_of(text)
        yield from _not_allowed(self._hits(text, reading, *self._rules(language)), reading)
        if self.reads is not None and language and self.reads.isdisjoint((language, "xx")):
            yield Span(0, len(text), OTHER_LANGUAGE, 1.0, "rule")
        if self.settings.flags_everything:
            yield Span(0, len(text), "EVERYTHING", 1.0, "rule")

    def _rules(self, language: str | None) -> tuple[tuple[RuleName, ...], float, frozenset[str]]:
        """The rules for a text in ``language``, what forgives them, and the words that are ordinary there.

        With ``auto`` every rule holds, unforgiven, of a text whose language is not certain: each of its words
        is then an ordinary one of English.  Rules of English words hold of no other language.
        """
        if language is None:
            return tuple(RULES), 1.0, frozenset()
        rules = holding(self.settings.rules, language)
        return rules, self.settings.confident_threshold, words_if_any(language)

    def _hits(
        self, text: str, reading: Reading, rules: Sequence[RuleName], sure_from: float, words: frozenset[str]
    ) -> Iterator[Span]:
        yield from reading.spans
        forgiving = sure_from < 1
        bound = self.settings.min_non_entity_probability
        ordinary = 2 * bound - 1 if forgiving else 1.0
        for start, end, plain, detector in reading.plain:
            if plain < bound and not (plain >= ordinary and is_ordinary(text, start, end, words)):
                yield Span(start, end, "UNSURE", round(1.0 - plain, 6), f"{detector}-plain")
        # the least that any engine gives a code point, for those that one scores
        plainness: dict[int, float] = {}
        for token in reading.plain if forgiving else ():
            for place in range(token.start, token.end):
                plainness[place] = min(token.probability, plainness.get(place, 1.0))
        for rule in rules:
            usual = sure_from if rule in SOFT_RULES else math.inf
            for start, end in RULES[rule](text, self.language):
                enough = plain_from(text, start, end, usual, sure_from, words)
                if not all(plainness.get(place, -1.0) >= enough for place in range(start, end)):
                    yield Span(start, end, rule.upper(), 1.0, "rule")


_FAMILY_NAME = re.compile(r" (\p{Lu}[\p{L}\p{M}'’-]+)(?![\w@])")
"""What may go on with a name: one more capitalised word."""
_MOST_NAMES = 3


def _to_its_end(text: str, span: Span, language: str) -> Span:
    """``span``; of a person's name to the end of capitalised words behind it that are no ordinary ones.

    Taggers know fewer family names than given ones.  Only in languages with a list of ordinary words.
    """
    name = kind_of(span.label) == "PERSON" and span.detector != LISTS
    if not name or not re.fullmatch(r"\p{Lu}.*\p{L}", text[span.start : span.end]):
        return span
    end = span.end
    for _ in range(_MOST_NAMES):
        family_name = _FAMILY_NAME.match(text, end)
        if not family_name:
            break
        words = words_if_any((language_of(text) or "") if language == AUTO else language)
        if not words or not any(outside(family_name[1], words)):
            break
        end = family_name.end()
    return span._replace(end=end)


def _not_allowed(spans: Iterator[Span], reading: Reading) -> Iterator[Span]:
    """Less the hits inside an allowed place; a deny list is stronger than an allow list."""
    if not reading.allowed:
        return spans
    return (
        span
        for span in spans
        if span.detector == LISTS or not any(a <= span.start and span.end <= b for a, b in reading.allowed)
    )


def policies_of(settings: DetectSettings) -> tuple[StrictPolicy, ConservativePolicy]:
    """π and π_c of a configuration; ``ConfigurationError`` for a label that nothing in it finds."""
    check_labels(settings)
    written = own_labels(settings.patterns, settings.language) if settings.patterns else ()
    named = {label for _, found in finds_of(settings, MODELS) for label in found.asked_for}
    asked = settings.conservative.rules
    if "word" in asked and settings.language != AUTO and asked != ConservativeSettings().rules:
        # one who lists it by name means it
        words_of(settings.language)
    return (
        StrictPolicy(settings.strict, tuple(sorted(named)), written, settings.language),
        ConservativePolicy(settings.conservative, "en", languages_read(settings))
        if settings.language == AUTO
        else ConservativePolicy(settings.conservative, settings.language),
    )


def who_finds(settings: DetectSettings) -> list[dict[str, Any]]:
    """``[{"label", "masks": {part: least score}, "suspects": [part], "public"}]``: who makes what of a label.

    Parts are models, recognizers, lists and rules; one that suspects makes a point private and masks nothing.
    Of one that is ``public`` the engines mask what they are not sure of.
    """
    strict = policies_of(settings)[0]
    bounds, open_ = strict.bounds, kinds_of(settings.public_labels)
    found: dict[str, dict[str, Any]] = {}

    def row(label: str) -> dict[str, Any]:
        public = kind_of(label) in open_
        return found.setdefault(label, {"label": label, "masks": {}, "suspects": [], "public": public})

    for engine, part in finds_of(settings):
        for label in part.labels:
            # hits of patterns are named as Presidio's own are
            named = "presidio" if engine == "patterns" else engine
            least = max(bounds.get(label, math.inf), strict.settings.engines.get(named, 0.0))
            if engine == _LISTS or least <= 1:
                row(label)["masks"][part.part] = 0.0 if engine == _LISTS else least
            else:
                row(label)["suspects"].append(part.part)
    for rule in settings.conservative.rules:
        row(rule.upper())["suspects"].append(f"rule {rule}")
    if settings.language == AUTO:
        row(OTHER_LANGUAGE)["suspects"].append("detect.language")
    return [found[label] for label in sorted(found)]


def policy_records(settings: DetectSettings) -> dict[str, dict[str, Any]]:
    """What a manifest says of each policy, by name: its settings, all that it stands on, the hash of both."""
    return {policy.name: _record(settings, policy) for policy in policies_of(settings)}


def policy_hashes(settings: DetectSettings) -> dict[str, str]:
    """The hash of each policy, by name."""
    return {name: record["hash"] for name, record in policy_records(settings).items()}


def _record(settings: DetectSettings, policy: StrictPolicy | ConservativePolicy) -> dict[str, Any]:
    unset = {name: True for name, off in _OFF.items() if getattr(settings, name) == off}
    stands_on: dict[str, Any] = {
        "engines": settings.model_dump(mode="json", exclude=_NOT_HASHED | unset, exclude_none=True),
        "identities": identities_of(settings),
        "hidden": HIDDEN_SHA256,
        "versions": versions(*VERSIONED),
        "python": platform.python_version(),
    }
    if isinstance(policy, ConservativePolicy):
        stands_on["words"] = words_identity(policy.language)
        if policy.reads is not None:
            stands_on["languages"] = {"read": sorted(policy.reads), "versions": versions("py3langid"), "sure": SURE}
    own = policy.settings.model_dump(mode="json")
    # how the numbers were found changes no output
    hashed = {name: value for name, value in own.items() if name != "fitted"}
    body = {"policy": policy.name, "settings": hashed, "stands_on": stands_on}
    return {"hash": hash_of(body), **own, "stands_on": stands_on}


# How a policy differs here and now from the record of a run.


NAMED = 4
"""Differences that a message lists."""


def changed_since(settings: DetectSettings, records: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Which policy differs here and now from a run's ``records``, and in what; None where none does.

    Keys are named, and of packages the versions: the other values may be words of a list.
    """
    for name, record in policy_records(settings).items():
        if record["hash"] != records[name]["hash"]:
            found = [one for one in differing(records[name], record) if one["key"] != "hash"]
            words = [_in_words(**one) for one in found[:NAMED]] + ["and more"] * (len(found) > NAMED)
            changed = ", ".join(words) or "its hash differs"
            return f"the {name} policy no longer matches the run: {changed}"
    return None


def _in_words(key: str, old: Any, new: Any) -> str:
    package = key.partition("versions.")[2]
    return f"{package} was {old} and is {new}" if package else f"{key} differs"


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The keys whose values differ: [{key, old, new}]; what only one of the two has is null in the other."""
    left, right = flat(before), flat(after)
    return [
        {"key": key, "old": left.get(key), "new": right.get(key)}
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]
