"""π and π_c of a corpus whose secrets are known: π misses a share of them by construction, π_c none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ahocorasick

from redactory.detectors.detector import Detection
from redactory.detectors.engine import Span
from redactory.foundation.stream import RandomStream


@dataclass(frozen=True)
class LabelledPolicies:
    """A ``TextDetector`` for curation; what it marks is a function of one text and of public constants.

    π marks the labelled values but those that it misses: a value is missed wherever it stands, with
    probability ``gamma``, and the missed values grow with ``gamma``.  Of the values ``counted`` it misses the
    first ⌊γK + ½⌋, so that ten canaries at γ = 0.1 are one missed canary in every corpus, not one on average.
    π_c suspects every labelled value, every digit and every capital letter that begins no sentence, so that
    no labelled value is missed by both (δ₂ = 0 on the labels).
    """

    values: Any = field(repr=False)
    gamma: float
    seed: int
    counted: Mapping[str, int] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, rows: Iterable[Mapping[str, Any]], gamma: float, seed: int, counted: Sequence[str] = ()
    ) -> LabelledPolicies:
        """The policies that know the labelled values of ``rows`` ({text, spans: [{start, end, label}]})."""
        automaton = ahocorasick.Automaton()
        for row in rows:
            for span in row["spans"]:
                value = row["text"][span["start"] : span["end"]]
                automaton.add_word(value, (value, span["label"]))
        automaton.make_automaton()
        return cls(automaton, gamma, seed, {value: place for place, value in enumerate(counted)})

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """What both policies mark in each text."""
        for text in texts:
            found = [s for s in self._labelled(text) if _stands_alone(text, s)]
            suspected = [
                Span(place, place + 1, "SUSPECT", 1.0, "rule")
                for place, sign in enumerate(text)
                if sign.isdigit() or (place and sign.isupper() and text[place - 1 : place] != "I")
            ]
            kept = [s for s in found if not self.misses(text[s.start : s.end])]
            yield Detection(tuple(kept), (*found, *suspected))

    def misses(self, value: str) -> bool:
        """Whether π misses ``value``: the same wherever it stands."""
        if value in self.counted:
            return (self.counted[value] + 0.5) / len(self.counted) < self.gamma
        draw = RandomStream.from_seed(self.seed).uniform(f"miss {value}", 0, 1)
        return bool(draw[0] < self.gamma)

    def _labelled(self, text: str) -> Iterator[Span]:
        # an automaton without words cannot be asked
        if len(self.values):
            for end, (value, label) in self.values.iter(text):
                yield Span(end + 1 - len(value), end + 1, label, 1.0, "labels")


def _stands_alone(text: str, span: Span) -> bool:
    return not (text[span.end : span.end + 1].isalnum() or text[: span.start][-1:].isalnum())
