"""How often the policies missed a secret, as a training is told of it."""

from __future__ import annotations

import datetime
from typing import Annotated, Self

from pydantic import Field, PositiveInt, model_validator

from redactory.foundation.settings import Settings

Confidence = Annotated[float, Field(ge=0.5, lt=1)]
"""Below one half an upper bound would lie below what was seen."""


class StratifiedSample(Settings):
    """The sample of the run's points that the labels come from, with bounds of its own.

    Where public points are over-sampled, misses over labels bound nothing: the bounds are those that
    ``redactory audit score`` joined over the strata (``docs/how-to/audit.md``).
    """

    name: str = Field(description="The sample's name.")
    date: datetime.date = Field(description="When its labels were scored.")
    texts: PositiveInt = Field(description="Distinct texts that were labelled.")
    gamma_upper: Annotated[float, Field(ge=0, le=1)] = Field(description="Upper bound of γ.")
    delta_2_upper: Annotated[float, Field(ge=0, le=1)] = Field(description="Upper bound of δ₂.")


class RecallMeasurement(Settings):
    """How often the policies missed a labelled secret (``docs/guarantees.md``, "Coverage failure").

    The labels must be drawn i.i.d. from the secrets of this corpus, or be those of a stratified sample
    with bounds of its own, and must not have been used to tune a policy: whoever gives them vouches for
    that.  A secret counts as missed by
    the strict policy unless masking it perfectly would have left the same masked point; it counts as
    missed by both when any part of it went public.
    """

    labels: PositiveInt = Field(description="Labelled secrets that were checked.")
    missed_by_strict: int = Field(ge=0, description="Of those, how many the strict policy π missed.")
    missed_by_both: int = Field(ge=0, description="Of those, how many stand open in a public point.")
    confidence: Confidence = Field(0.95, description="One-sided confidence of each upper bound.")
    date: datetime.date | None = Field(None, description="When that was measured.")
    sample: StratifiedSample | None = Field(
        None, description="The stratified sample that was labelled; its bounds stand for those of the counts."
    )

    @model_validator(mode="after")
    def _misses_are_nested(self) -> Self:
        if not self.missed_by_both <= self.missed_by_strict <= self.labels:
            raise ValueError("misses must satisfy missed_by_both <= missed_by_strict <= labels")
        return self

    @model_validator(mode="after")
    def _bounds_are_not_below_what_was_seen(self) -> Self:
        if self.sample is None:
            return self
        gamma, delta_2 = self.sample.gamma_upper, self.sample.delta_2_upper
        if gamma < delta_2 or (self.missed_by_strict and not gamma) or (self.missed_by_both and not delta_2):
            raise ValueError("sample: a bound is below what was seen, or gamma_upper below delta_2_upper")
        return self
