"""CRT: SGD on public points, DP-SGD on masked private ones; its variant that drops masked points; DP-SGD."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from redactory.training.mechanism import Relation
from redactory.training.trainers.base import A_POINT, Trainer

if TYPE_CHECKING:
    from redactory.training.loop import Ingredients
    from redactory.training.settings import TrainSettings
    from redactory.training.steps import Descent, PlainPhase


class Crt(Trainer):
    """Algorithm 1 of the CRT paper.  Formal guarantees: ``docs/guarantees.md``."""

    name = "crt"
    about = "SGD on public and DP-SGD on masked private points"
    plain = ("public",)
    noised = "private"
    by_policy = classifies = chats = True
    assumptions: ClassVar[tuple[str, ...]] = (
        "The vocabulary, the network's size and every constant come from public text and the configuration "
        "alone.",
        "Where classes are learnt, a secret and its mask have the same class; that of a public point is "
        "learnt without noise.",
        "Bayesian figures are averages over the secrets of this corpus, for an adversary who does not know "
        "which of them was masked. For a secret that is known to have been missed by π, "
        "epsilon_substitution is the figure.",
    )

    def rows(self, settings: TrainSettings, group_size: int | None) -> int:
        """By the rule of deduplication; where no rule says, there will be no figure either."""
        return group_size or 1

    def plain_steps(self, made: Ingredients, descent: Descent) -> PlainPhase | None:
        """A pass over ``public/``: each distinct text once, or as often as it occurred."""
        from redactory.training.data import public_occurrences

        found = made.read(made.run.public)
        rows = found.rows
        if made.settings.public_epoch == "occurrences":
            rows = np.repeat(rows, public_occurrences(made.run)[rows])
        return made.plain_phase(descent, found.points, rows)


class CrtDrop(Crt):
    """A masked point contributes a zero gradient: a secret is compared with its point gone."""

    name = "crt-drop"
    about = "the same, but a private point with a mask contributes nothing"
    relation = Relation.ADD_OR_REMOVE
    drops_masked = True
    compared = (
        "A private point with a mask contributes a zero gradient, but counts wherever points are counted. A "
        "secret that π missed is compared with its point gone: one point there or not, and groups likewise.",
    )


class DpSgd(Trainer):
    """Noise on every original point: the baseline with a guarantee (``docs/guarantees.md``)."""

    name = "dpsgd"
    about = "DP-SGD on all original points"
    noised = "vault"
    classifies = chats = True
    unit = f"one original {A_POINT}"
    compared = (
        "The exchanged points both lie on the private side: where the vocabulary is made of public/, a word "
        "of a public point can be a token of this model.",
    )
    assumptions = (
        "Original texts are used, duplicates included: a secret that stands in K points is a group of K.",
    )
