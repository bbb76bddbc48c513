"""A noisy histogram of labels and text lengths of a corpus, and its privacy cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import read_result
from redactory.training.accounting.spendings import Spending
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from redactory.training.trainers import Trainer

HISTOGRAM_FOLDER = "histogram"
"""The folder inside a model's folder that holds its sealed histogram."""
LENGTH_BINS = (3, 6, 12, 24, 48)
"""Public constants: maximum number of words of each length bin; the last bin is open."""


@dataclass(frozen=True)
class Histogram:
    """``counts`` {label: a number for each length bin}, each with noise of standard ``deviation``.

    Formal guarantees: a row that the model learns is in at most one cell, so exchanging one moves the counts by √2
    (L2), and adding or removing one by 1. :meth:`compute_spending` accounts for a Gaussian whose sum they move by 2 and
    by 1 per row, which is no less; an example moves as many rows as in the training's steps. A histogram is drawn once
    per model and then always read (``docs/guarantees.md``, "Text that a model wrote").
    """

    deviation: float
    counts: Mapping[str, Sequence[float]]

    @classmethod
    def draw_noisy_counts(
        cls, rows: Iterable[tuple[str, str | None]], labels: Sequence[str], deviation: float, stream: RandomStream
    ) -> Self:
        """Draw the noisy histogram of ``rows`` (text, label); rows outside the public ``labels`` are not counted."""
        import torch

        row_by_label = {label: row for row, label in enumerate(labels)}
        exact_counts = np.zeros((len(labels), len(LENGTH_BINS) + 1))
        for text, label in rows:
            if label in row_by_label:
                exact_counts[row_by_label[label], find_length_bin(text)] += 1.0
        noisy_counts = make_histogram_mechanism(deviation).compute_noisy_sum(torch.from_numpy(exact_counts), stream, 0)
        return cls(deviation, dict(zip(labels, noisy_counts.tolist(), strict=True)))

    @classmethod
    def read_model_histogram(cls, run: RunFolder, model: str) -> Self | None:
        """Read the histogram drawn for ``model``, or None."""
        result = read_result(run.get_model_folder(model), HISTOGRAM_FOLDER)
        return None if result is None else cls(result["deviation"], result["counts"])

    def to_json(self) -> dict[str, Any]:
        """Return the sealed values, all of which are released."""
        return {"deviation": self.deviation, "counts": dict(self.counts)}

    def compute_spending(self, rows: int) -> Spending:
        """Return the privacy spending for an example that moves ``rows`` counted rows."""
        return Spending(make_histogram_mechanism(self.deviation), 1, rows)

    def compute_quotas(self, rows: int) -> dict[str, list[int]]:
        """Distribute ``rows`` over labels and length bins; counts that noise made negative are 0."""
        shares = np.maximum(np.array(list(self.counts.values())), 0.0)
        if not shares.sum():
            raise ConfigurationError(
                "synthesize: noise hides every count of the histogram: do not use one (omit --histogram)"
            )
        exact_quotas = rows * shares / shares.sum()
        counts = np.floor(exact_quotas).astype(np.int64)
        # the largest remainders get the remaining rows
        largest_remainders = np.argsort(counts - exact_quotas, axis=None, kind="stable")[: rows - int(counts.sum())]
        counts.ravel()[largest_remainders] += 1
        return dict(zip(self.counts, counts.tolist(), strict=True))


def find_length_bin(text: str) -> int:
    """Return the length bin of ``text``, a function of the text alone."""
    return int(np.searchsorted(LENGTH_BINS, len(text.split())))


def make_histogram_mechanism(deviation: float) -> PoissonGaussian:
    """Make the mechanism: every example in one sum, clipped to 1, with noise of ``deviation``."""
    if not 0.1 <= deviation <= 1e6:
        raise ConfigurationError(f"synthesize: --histogram {deviation:g}: needs a standard deviation from 0.1 to 1e6")
    return PoissonGaussian(1.0, deviation, 1.0, 1.0, "lattice")


def require_histogram_guarantee(trainer: Trainer, relation: Relation) -> None:
    """Raise ``GuaranteeError`` unless the model's epsilons are for one exchanged example."""
    if trainer.has_units or relation is not Relation.SUBSTITUTION:
        raise GuaranteeError(
            f"synthesize: --histogram: no epsilon is proved for a histogram with {trainer.name}, whose "
            "guarantee does not exchange examples; omit it: labels are then drawn from public constants"
        )
