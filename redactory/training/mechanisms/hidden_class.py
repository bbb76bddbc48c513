"""A message of local privacy that hides its class among fictitious messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from redactory.foundation.errors import GuaranteeError
from redactory.training.mechanisms.mechanism import Mechanism

if TYPE_CHECKING:
    from redactory.training.mechanisms.pairs import Statements


@dataclass(frozen=True)
class HiddenClassGaussian(Mechanism):
    """A message that hides its content: with probability q it is of a vector and its class, else of neither.

    The vector has norm at most C, the class is one of ``classes`` K; of neither means zero, and a class drawn
    uniformly. Noise N(0, (σC)²) is on every coordinate of the vector, none on the class.

    Formal guarantees: if another vector *and* class replace them, one step is dominated by q·N(C, σ²C²)×1_y +
    (1−q)·N(0, σ²C²)×U against the same with another y; steps compose adaptively (``docs/guarantees.md``, "Classes
    hidden too"). Nothing is proved for an example that is there or not.
    """

    classes: int = field(kw_only=True)

    sampler: ClassVar[str] = "none"
    event_class: ClassVar[str] = "HiddenClassEvent"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes < 2 or not 0.0 < self.sampling_rate < 1.0:
            raise GuaranteeError("a hidden class needs at least two classes, and a rate between 0 and 1")

    def state_pairs(self, removed: int | None = None) -> Statements:
        """State the pairs of one message for another vector and class, twice."""
        from redactory.training.mechanisms import pairs, rederived_pairs

        if removed is not None:
            return super().state_pairs(removed)
        constants = self.sampling_rate, self.noise_multiplier, self.classes
        return pairs.make_hidden_class_pairs(*constants), rederived_pairs.rederive_hidden_class_pairs(*constants)
