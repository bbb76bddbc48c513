"""The engine of pattern recognizers: Presidio's, ours, and those of the configuration.

Its hits are those of Presidio's analyzer with the same recognizers, found without it: each recognizer
runs only where its trigger says that it could hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redactory.detectors.chosen import (
    custom_recognizer,
    file_recognizers,
    own_labels,
    predefined_recognizers,
)
from redactory.detectors.context import ContextWords
from redactory.detectors.engine import TIMEOUT, Finds, Reading
from redactory.detectors.matching import Chosen, Hit, PatternTimeout, outermost
from redactory.detectors.presidio_messages import listen, stay_offline
from redactory.detectors.recognizers import FAMILIES
from redactory.detectors.settings import PatternSettings
from redactory.detectors.span import Span
from redactory.detectors.triggers import MANY, Lexicon, triggers_of
from redactory.foundation.canonical import file_sha256
from redactory.foundation.versions import version_of

DETECTOR = "presidio"
VERSIONED = ("presidio-analyzer", "phonenumbers", "tldextract", "regex", "spacy")
"""Packages whose version can change a hit."""


class PatternEngine:
    """Pattern hits of texts, with checksums and context words."""

    def __init__(self, settings: PatternSettings, language: str) -> None:
        """``ConfigurationError`` for a recognizer that cannot be had, or a file that cannot be read."""
        listen()
        stay_offline()
        self._context = ContextWords(language)
        self._lexicon = Lexicon()
        self.steps = [chosen.step(self._lexicon) for chosen in recognizers_of(settings, language)]
        # by the number of digits of a text: what may hit it, and the words and shapes that takes
        self._by_digits = [
            [
                (groups, one.gate.shapes, one.gate.form, one)
                for one in self.steps
                if (groups := one.groups(digits)) is not None
            ]
            for digits in range(MANY + 1)
        ]

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text; one in which an expression did not come to an end has failed."""
        return [self._read(text) for text in texts]

    def _read(self, text: str) -> Reading:
        try:
            hits = self._hits(text)
        except PatternTimeout:
            return Reading(failure=TIMEOUT)
        if not hits:
            return Reading()
        return Reading(
            tuple(sorted(Span(h.start, h.end, h.label, round(h.score, 6), DETECTOR) for h in hits))
        )

    def _hits(self, text: str) -> list[Hit]:
        traits = self._lexicon.traits(text)
        around = None
        hits: list[Hit] = []
        for groups, shapes, form, one in self._by_digits[traits.many]:
            if groups and not groups & traits.groups:
                continue
            for shape in shapes:
                if shape in traits.shape:
                    break
            else:
                continue
            if form is not None and form.search(text) is None:
                continue
            for hit in one.matches(traits):
                around = around or self._context.of(text)
                score = around.raised(hit.score, hit.start, one.context) if one.context else hit.score
                if not one.bounds or score >= one.least(hit.label):
                    hits.append(hit if score == hit.score else hit._replace(score=score))
        return outermost(hits) if hits else hits

    @classmethod
    def finds(cls, settings: PatternSettings, language: str) -> list[Finds]:
        """The labels of each recognizer; patterns find forms and listed terms, no names in running text."""
        own = frozenset(own_labels(settings, language))
        given = (one.recognizer for one in recognizers_of(settings, language))
        labels = ((str(getattr(one, "name", "")), frozenset(one.supported_entities)) for one in given)
        return [Finds(name, found, None, found & own) for name, found in labels]

    @classmethod
    def identity(cls, settings: PatternSettings, language: str) -> dict[str, Any]:
        """The versions of the packages and the contents of the files that can change a hit."""
        return {
            "versions": {name: version_of(name) for name in VERSIONED},
            "files": [file_sha256(Path(file)) for file in settings.files],
        }


def recognizers_of(settings: PatternSettings, language: str) -> list[Chosen]:
    """Every recognizer of the settings, and those that are shipped, in a fixed order."""
    predefined = predefined_recognizers(settings.recognizers, language)
    own = [custom_recognizer(recognizer, language) for recognizer in settings.custom]
    from_files = [one for file in settings.files for one in file_recognizers(file, language)]
    return [
        *(Chosen(recognizer, *triggers_of(recognizer)) for recognizer in predefined),
        *(Chosen(f.recognizer(language), f.needs, f.within(), linear=True) for f in FAMILIES),
        *(Chosen(recognizer) for recognizer in (*own, *from_files)),
    ]
