"""Baselines without noise, and so without any guarantee: on masked texts, on originals, without entities."""

from __future__ import annotations

from redactory.training.mechanism import Relation
from redactory.training.trainers.base import Trainer


class RedactOnly(Trainer):
    """SGD on both sides' masked points."""

    name = "redact-only"
    about = "no noise, on both sides' masked points; no guarantee"
    plain = ("public", "private")
    nothing = (
        "no noise: this trainer learns the masked texts as they are; a secret that π missed is learnt "
        "without noise, nothing is guaranteed"
    )


class Sgd(Trainer):
    """SGD on the originals."""

    name = "sgd"
    about = "no noise, on all original points; no guarantee"
    plain = ("vault",)
    nothing = "no noise: this trainer learns the original texts as they are, nothing is guaranteed"


class Noiseless(Trainer):
    """The originals, as the trainers that hide users and entities see them."""

    name = "noiseless"
    about = "no noise, on all original points, as users and entities hold them; no guarantee"
    plain = ("vault",)
    classifies = of_units = True
    relation = Relation.ADD_OR_REMOVE
    nothing = Sgd.nothing


class DeIdentification(Noiseless):
    """The same with their entities masked."""

    name = "de-identification"
    about = "the same without their entities; no guarantee"
    masks_entities = True
    nothing = (
        "no noise: this trainer learns the texts with their entities masked; an entity that no detector and "
        "no list marks is learnt as it is, and so is everything else of a user; nothing is guaranteed"
    )
