"""Held-out points, and how well a language model foretells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from crt_figure2 import marked
from uedp_corpora import Corpus

from redactory.redaction.mask import mask


@dataclass(frozen=True)
class HeldOut:
    """Held-out points as they are and masked, and where their entities stand."""

    texts: list[str]
    spans: list[list[tuple[int, int]]]
    classes: list[str | None]

    @classmethod
    def of(cls, corpus: Corpus, part: str, most: int) -> HeldOut:
        """At most ``most`` points of a part."""
        rows = [
            (text, [(s["start"], s["end"]) for s in own], label) for text, own, label in corpus.points(part)
        ]
        texts, spans, classes = zip(*rows[:most], strict=True)
        return cls(list(texts), list(spans), list(classes))

    @property
    def masked(self) -> list[str]:
        """The texts with every entity masked."""
        return [mask(text, own) for text, own in zip(self.texts, self.spans, strict=True)]

    def perplexities(self, model: Any, on_masked: bool) -> dict[str, float]:
        """Per token: outside of entities (in the form the model was trained on), as it is, and masked."""
        masked = self.masked
        as_is, hidden = model.token_log_probs(self.texts), model.token_log_probs(masked)
        outside, count = 0.0, 0
        for row, text in enumerate(self.texts):
            inside = [*marked(model.tokenizer.places(text), self.spans[row]), False]
            count += len(inside) - sum(inside)
            scores, left_out = as_is[row], inside
            if on_masked:
                ids = [*model.tokenizer.encode(masked[row]), model.tokenizer.end_id]
                scores, left_out = hidden[row], [i == model.tokenizer.mask_id for i in ids]
            outside += sum(s for s, i in zip(scores, left_out, strict=True) if not i)
        return {
            "perplexity": float(np.exp(-outside / count)),
            "as_is": float(np.exp(-np.concatenate(as_is).mean())),
            "masked": float(np.exp(-np.concatenate(hidden).mean())),
        }
