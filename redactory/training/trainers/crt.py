"""CRT: SGD on public points, DP-SGD on masked private ones; and its variant that drops masked points."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from redactory.training.mechanism import Relation
from redactory.training.trainers.base import Trainer

if TYPE_CHECKING:
    from redactory.training.ingredients import Ingredients
    from redactory.training.phases import Descent, PlainPhase
    from redactory.training.settings import TrainSettings


class Crt(Trainer):
    """Algorithm 1 of the CRT paper.  Formal guarantees: ``docs/guarantees.md``."""

    name = "crt"
    about = "SGD on public and DP-SGD on masked private points"
    plain = ("public",)
    noised = "private"
    by_policy = True
    assumptions: ClassVar[tuple[str, ...]] = (
        "The vocabulary, the network's size and every constant come from public text and the configuration "
        "alone.",
        "Bayesian figures are averages over the secrets of this corpus, for an adversary who does not know "
        "which of them was masked. For a secret that is known to have been missed by π, "
        "epsilon_substitution is the figure.",
    )

    def rows(self, settings: TrainSettings, group_size: int | None) -> int:
        """By the rule of deduplication; where no rule says, there will be no figure either."""
        return group_size or 1

    def plain_steps(self, made: Ingredients, descent: Descent) -> PlainPhase | None:
        """A pass over ``public/``: each distinct text once, or as often as it occurred."""
        from redactory.training.runinput import public_occurrences

        points = made.encode(made.run.public)
        often = public_occurrences(made.run) if made.settings.public_epoch == "occurrences" else None
        return made.plain_phase(descent, points, made.passes(len(points), often))


class CrtDrop(Crt):
    """A masked point contributes a zero gradient: a secret is compared with its point gone."""

    name = "crt-drop"
    about = "the same, but a private point with a mask contributes nothing"
    relation = Relation.ADD_OR_REMOVE
    drops_masked = True
    assumptions = (
        "A private point with a mask contributes a zero gradient, but counts wherever points are counted. A "
        "secret that π missed is compared with its point gone: one point there or not, and groups likewise.",
        *Crt.assumptions,
    )
