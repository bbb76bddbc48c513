"""A noisy histogram of labels and lengths: how often a corpus has which, and what telling that costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import read_result
from redactory.training.accounting.dominating_pairs import Spending
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from redactory.training.trainers import Trainer

HISTOGRAM_FOLDER = "histogram"
"""The folder below a model's in which its one histogram is sealed."""
LENGTH_BINS = (3, 6, 12, 24, 48)
"""Public constants: a text of at most so many words is in the first, second, … bin; the last is open."""


@dataclass(frozen=True)
class Histogram:
    """``counts`` {label: a number for each bin of lengths}, each with noise of standard ``deviation``.

    Formal guarantees: a row that the model learns stands in one cell at most, so that one exchanged moves the counts by
    √2 (L2), one that is there or not by 1.  Accounted as :meth:`compute_spending`, a Gaussian whose sum these move by 2
    and by 1 a row, which is no less; a point moves as many rows as in the training's steps. A histogram is drawn once
    for a model, and read again ever after (``docs/guarantees.md``, "Text that a model wrote").
    """

    deviation: float
    counts: Mapping[str, Sequence[float]]

    @classmethod
    def draw(
        cls, rows: Iterable[tuple[str, str | None]], labels: Sequence[str], deviation: float, stream: RandomStream
    ) -> Self:
        """The histogram of ``rows`` (text, label), of which those with another label count nowhere.

        ``labels`` and ``deviation`` are public; the bits of the noise are those of ``stream``.
        """
        import torch

        places = {label: place for place, label in enumerate(labels)}
        exact = np.zeros((len(labels), len(LENGTH_BINS) + 1))
        for text, label in rows:
            if label in places:
                exact[places[label], find_length_bin(text)] += 1.0
        noisy = make_mechanism(deviation).compute_noisy_sum(torch.from_numpy(exact), stream, 0)
        return cls(deviation, dict(zip(labels, noisy.tolist(), strict=True)))

    @classmethod
    def read_for_model(cls, run: RunFolder, model: str) -> Self | None:
        """The one that was drawn for ``model``; None where none was."""
        result = read_result(run.model(model), HISTOGRAM_FOLDER)
        return None if result is None else cls(result["deviation"], result["counts"])

    def to_json(self) -> dict[str, Any]:
        """What is sealed of it: all of it is released."""
        return {"deviation": self.deviation, "counts": dict(self.counts)}

    def compute_spending(self, rows: int) -> Spending:
        """What it costs a point that moves so many ``rows`` of what is counted."""
        return Spending(make_mechanism(self.deviation), 1, rows)

    def compute_quotas(self, rows: int) -> dict[str, list[int]]:
        """How many of ``rows`` are to have each label and length; what noise made negative counts as 0."""
        shares = np.maximum(np.array(list(self.counts.values())), 0.0)
        if not shares.sum():
            raise ConfigurationError(
                "synthesize: noise hides every count of the histogram: do not use one (omit --histogram)"
            )
        exact = rows * shares / shares.sum()
        counts = np.floor(exact).astype(np.int64)
        # the largest remainders get what is left
        first = np.argsort(counts - exact, axis=None, kind="stable")[: rows - int(counts.sum())]
        counts.ravel()[first] += 1
        return dict(zip(self.counts, counts.tolist(), strict=True))


def find_length_bin(text: str) -> int:
    """The bin of ``text``, by its words: a function of the text alone."""
    return int(np.searchsorted(LENGTH_BINS, len(text.split())))


def make_mechanism(deviation: float) -> PoissonGaussian:
    """Every point in one sum, clipped to 1, with noise of ``deviation``."""
    if not 0.1 <= deviation <= 1e6:
        raise ConfigurationError(f"synthesize: --histogram {deviation:g}: needs a standard deviation from 0.1 to 1e6")
    return PoissonGaussian(1.0, deviation, 1.0, 1.0, "lattice")


def require_countable(trainer: Trainer, relation: Relation) -> None:
    """``GuaranteeError`` where a model's figures are not those of one exchanged point."""
    if trainer.has_units or relation is not Relation.SUBSTITUTION:
        raise GuaranteeError(
            f"synthesize: --histogram: no epsilon is proved for a histogram with {trainer.name}, whose "
            "guarantee does not exchange examples; omit it: labels are then drawn from public constants"
        )
