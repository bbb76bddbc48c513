"""Perplexity of the text outside of secrets, which models trained on masked and on plain text can share.

A model that was trained on masked text does not foretell a name, and one trained on plain text foretells no
mask.  What they have in common is everything else: each reads a held-out point in the form that it was
trained on, and the same characters are scored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.redaction.mask import MASK, mask_intervals

if TYPE_CHECKING:
    from redactory.training import LanguageModel

Places = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class HeldOut:
    """Held-out ``texts``, and where secrets stand in each (code points, end exclusive)."""

    texts: Sequence[str] = field(repr=False)
    spans: Sequence[Places] = field(repr=False)

    @classmethod
    def of(cls, points: Iterable[tuple[str, Places]], most: int) -> HeldOut:
        """The first ``most`` of ``points``; ``InputError`` where there is none."""
        some = [point for point, _ in zip(points, range(most), strict=False)]
        if not some:
            raise InputError("test: there is no held-out point to measure on")
        return cls([text for text, _ in some], [spans for _, spans in some])

    def measure(self, model: LanguageModel, masked: bool) -> dict[str, float]:
        """{per_word, perplexity, as_is, masked}: outside of secrets per word and per token; of all the text.

        ``masked`` says which form the model was trained on.  Words are parted by white space, secrets being
        left out: as many for every tokenizer.  The end of a text is scored as well.
        ``ConfigurationError`` for a model with a folder's tokenizer, whose tokens have no places.
        """
        places = getattr(model.tokenizer, "token_offsets", None)
        if places is None:
            raise ConfigurationError("model.folder: its tokenizer does not say where a token stands")
        hidden = [mask_intervals(text, own) for text, own in zip(self.texts, self.spans, strict=True)]
        plain_scores, hidden_scores = (model.compute_token_log_probs(texts) for texts in (self.texts, hidden))
        outside, count = 0.0, 0
        for row, text in enumerate(self.texts):
            inside = [*_inside(places(text), self.spans[row]), False]
            count += len(inside) - sum(inside)
            if masked:
                ids = [*model.tokenizer.encode(hidden[row]), model.tokenizer.end_id]
                kept = [i != model.tokenizer.mask_id for i in ids]
                outside += float(hidden_scores[row][kept].sum())
            else:
                outside += float(plain_scores[row][~np.array(inside)].sum())
        words = sum(len(text.replace(MASK, " ").split()) for text in hidden)
        return {
            "per_word": math.exp(-outside / words),
            "perplexity": math.exp(-outside / count),
            "as_is": math.exp(-float(np.concatenate(plain_scores).mean())),
            "masked": math.exp(-float(np.concatenate(hidden_scores).mean())),
        }


def _inside(places: Places, spans: Places) -> list[bool]:
    """Which tokens lie within a secret."""
    return [any(start < high and low < end for low, high in spans) for start, end in places]
