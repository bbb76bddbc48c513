"""Held-out points, and how well a language model foretells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outside_secrets import HeldOut as OutsideSecrets
from uedp_corpora import Corpus

from redactory.redaction.mask import mask_intervals


@dataclass(frozen=True)
class HeldOut:
    """Held-out points as they are and masked, and where their entities stand."""

    texts: list[str]
    spans: list[list[tuple[int, int]]]
    classes: list[str | None]

    @classmethod
    def of(cls, corpus: Corpus, part: str, most: int) -> HeldOut:
        """At most ``most`` points of a part."""
        rows = [(text, [(s["start"], s["end"]) for s in own], label) for text, own, label in corpus.points(part)]
        texts, spans, classes = zip(*rows[:most], strict=True)
        return cls(list(texts), list(spans), list(classes))

    @property
    def masked(self) -> list[str]:
        """The texts with every entity masked."""
        return [mask_intervals(text, own) for text, own in zip(self.texts, self.spans, strict=True)]

    def perplexities(self, model: Any, on_masked: bool) -> dict[str, float]:
        """Per token: outside of entities (in the form the model was trained on), as it is, and masked."""
        return OutsideSecrets(self.texts, self.spans).measure(model, on_masked)
