"""``uedp-bounded``: bounded examples per user and entity (``docs/explanation/uedp.md``, "What is promised instead")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redactory.training.mechanisms.mechanism import Relation
from redactory.training.trainers.base import Trainer

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings


class UedpBounded(Trainer):
    """DP-SGD on the examples that a stable rule keeps under its caps."""

    name = "uedp-bounded"
    description = "users and entities hidden at once, by bounded contributions"
    noised_folder = "vault"
    can_classify = can_chat = has_units = hides_units = True
    relation = Relation.ADD_OR_REMOVE
    noise_search = (1.0, 0.01, 1e6)

    def find_settings_problem(self, settings: TrainSettings) -> str | None:
        """Require the caps of the privacy unit and settings that the rule's proof covers."""
        bounding, units = settings.bounding, settings.units
        missing_cap = bounding.find_missing_cap(units.privacy_unit)
        if missing_cap is not None:
            return (
                f"train.bounding.{missing_cap}: units.privacy_unit is {units.privacy_unit.value}, so a cap is "
                "needed; redactory plan suggests one from the numbers of users and examples"
            )
        if bounding.rule == "none" and settings.noise_multiplier is None:
            return "train.noise_multiplier: rule none has no epsilon to calibrate to; set the noise"
        if bounding.rule == "none" and settings.budget is not None:
            return "train.budget: rule none has no epsilon to record; use a rule with caps"
        if bounding.rule == "r-loc" and units.duplicates == "merge":
            return "train.units.duplicates: r-loc is proved for examples of one user each: set it to keep"
        return None

    def count_exchanged_rows(self, settings: TrainSettings, group_size: int | None) -> int:
        """Return K; 1 without a cap, where no epsilon is stated for a unit."""
        from redactory.training.uedp.bounded_accounting import BoundedTraining, count_affected_examples

        if settings.bounding.rule == "none":
            return 1
        return count_affected_examples(BoundedTraining.from_settings(settings, 1.0, 0))

    def bound_contributions(self, incidence: Any, settings: TrainSettings) -> Any:
        """Select rows under the caps and verify them: a function of the hypergraph and ids (condition (b))."""
        from redactory.training.uedp.bounding import bound_contributions

        bounding = settings.bounding
        if bounding.rule == "none":
            return incidence
        kept = bound_contributions(incidence, bounding.k_user, bounding.k_entity, bounding.entities_per_point)
        return incidence.select_examples(kept)
