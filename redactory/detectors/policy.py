"""The two policies: frozen, hashed functions from a reading to spans.

π (strict) says what is masked.  π_c (conservative) says what makes a point private.  Both see only
the point's own text and what the engines read in it (``docs/guarantees.md``, house rule on fates).
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from redactory.detectors.engine import Reading
from redactory.detectors.model import identify
from redactory.detectors.rules import RULES
from redactory.detectors.settings import ConservativeSettings, DetectSettings, StrictSettings
from redactory.detectors.span import Span
from redactory.foundation.canonical import hash_of

VERSIONED = (
    "redactory",
    "spacy",
    "thinc",
    "presidio-analyzer",
    "phonenumbers",
    "tldextract",
    "regex",
    "faker",
)
"""Packages whose version can change what a policy marks."""


@dataclass(frozen=True)
class StrictPolicy:
    """π: an engine's span counts when its label is listed and its score reaches the label's bound."""

    settings: StrictSettings
    custom: tuple[str, ...] = ()
    name: ClassVar[str] = "strict"

    @cached_property
    def bounds(self) -> dict[str, float]:
        """The least score of each label that is masked; a custom recognizer's label counts at any."""
        return {**dict.fromkeys(self.custom, 0.0), **self.settings.labels, **self.settings.more_labels}

    def marks(self, text: str, reading: Reading) -> Iterator[Span]:
        """The spans that are masked."""
        bounds = self.bounds
        return (s for s in reading.spans if s.label in bounds and s.score >= bounds[s.label])


@dataclass(frozen=True)
class ConservativePolicy:
    """π_c: everything tagged at any score, every token not surely plain, and every rule's hit.

    CRT, appendix A.4: "all predictions with tags and all plain texts with scores smaller than 0.9".
    """

    settings: ConservativeSettings
    name: ClassVar[str] = "conservative"

    def marks(self, text: str, reading: Reading) -> Iterator[Span]:
        """What makes the point private; nothing of it is masked unless π marks it too."""
        yield from reading.spans
        bound = self.settings.plain_confidence
        for start, end, plain in reading.plain:
            if plain < bound:
                yield Span(start, end, "UNSURE", round(1.0 - plain, 6), "plain-confidence")
        for rule in self.settings.rules:
            for start, end in RULES[rule](text):
                yield Span(start, end, rule.upper(), 1.0, "rule")
        if self.settings.flags_everything and text:
            yield Span(0, len(text), "EVERYTHING", 1.0, "rule")


def policies_of(settings: DetectSettings) -> tuple[StrictPolicy, ConservativePolicy]:
    """π and π_c of a configuration."""
    custom = tuple(recognizer.label for recognizer in settings.custom)
    return StrictPolicy(settings.strict, custom), ConservativePolicy(settings.conservative)


def policy_record(settings: DetectSettings, policy: StrictPolicy | ConservativePolicy) -> dict[str, Any]:
    """What a manifest says of a policy: its settings, all that it stands on, and the hash of both."""
    model = identify(settings.model)
    stands_on = {
        "engines": settings.model_dump(
            mode="json", include={"language", "model", "recognizers", "custom", "max_chars"}
        ),
        "model_sha256": model.sha256,
        "versions": {name: importlib.metadata.version(name) for name in VERSIONED},
        "python": platform.python_version(),
    }
    own = policy.settings.model_dump(mode="json")
    body = {"policy": policy.name, "settings": own, "stands_on": stands_on}
    return {"hash": hash_of(body), **own, "stands_on": stands_on}
