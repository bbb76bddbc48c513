"""The base class of all trainers: data folders, noise, mechanism and stated guarantee of one way to train.

The settings import these modules, so they must load without torch and scipy; both are imported when training begins.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from redactory.training.unit_settings import PrivacyUnit

if TYPE_CHECKING:
    from pathlib import Path

    from redactory.redaction.folder import RunFolder
    from redactory.training.accounting import Comparison, Spending, Spendings
    from redactory.training.loop import TrainingContext
    from redactory.training.mechanisms.ledger import Admission
    from redactory.training.mechanisms.mechanism import Mechanism
    from redactory.training.settings import TrainSettings
    from redactory.training.steps import NoiseFreeSteps, ScheduledOptimizer, StepKind
    from redactory.training.uedp.units import OriginalExamples

EXAMPLE_NOUN = "example (a sentence or a turn)"
"""The unit's name where examples are not whole documents or conversations."""
TRAINERS: dict[str, Trainer] = {}
"""Every trainer by its name."""


class Trainer:
    """One way to train. A subclass with a ``name`` is registered; its instance has no state.

    ``noise_free_folders`` and ``noised_folder`` name the run's folders that are trained on without and with noise.
    ``uses_policy``: the policies decide which examples are noised. ``relation``: how neighbouring noised data differ,
    by substitution or by adding or removing an example. ``drops_masked``: an example with a mask contributes nothing
    wherever it is sampled. ``has_units``: examples come from the vault, by users and entities; ``hides_units``: these
    are also the protected units. ``can_chat``: examples can be conversations. ``samples_users``: a noisy step samples
    users and clips each one's whole update. ``no_guarantee_reason`` explains why a trainer without noise guarantees
    nothing, ``comparison_notes`` how neighbouring corpora differ if policies chose the splits. ``description`` goes
    into the reference.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    noise_free_folders: ClassVar[tuple[str, ...]] = ()
    noised_folder: ClassVar[str | None] = None
    uses_policy: ClassVar[bool] = False
    relation: ClassVar[Relation] = Relation.SUBSTITUTION
    drops_masked: ClassVar[bool] = False
    can_classify: ClassVar[bool] = False
    can_chat: ClassVar[bool] = False
    has_units: ClassVar[bool] = False
    hides_units: ClassVar[bool] = False
    masks_entities: ClassVar[bool] = False
    samples_users: ClassVar[bool] = False
    privacy_unit: ClassVar[str] = f"one secret in one {EXAMPLE_NOUN}, replaced by <MASK>"
    no_guarantee_reason: ClassVar[str] = ""
    comparison_notes: ClassVar[tuple[str, ...]] = ()
    assumptions: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            TRAINERS[cls.name] = cls()

    def find_settings_problem(self, settings: TrainSettings) -> str | None:
        """Return what in ``settings`` does not suit this trainer, with a fix, or None."""
        return None

    @property
    def folder_names(self) -> tuple[str, ...]:
        """Names of all folders that the trainer learns from."""
        return self.noise_free_folders if self.noised_folder is None else (*self.noise_free_folders, self.noised_folder)

    def list_data_folders(self, run: RunFolder) -> tuple[Path, ...]:
        """Return the paths of these folders in ``run``."""
        return tuple(getattr(run, name) for name in self.folder_names)

    def samples_public(self, settings: TrainSettings) -> bool:
        """Whether a noisy step also samples public examples, without noise."""
        return False

    # the spec: mechanism, number of steps, and rows affected by one exchanged example

    def get_sampling_rate(self, settings: TrainSettings) -> float:
        """Return the probability of an example, or a user, in a noisy step."""
        return settings.sampling_rate

    def count_noisy_steps(self, settings: TrainSettings) -> int:
        """Count the noisy steps of a training: ⌈1/q⌉ per epoch, whatever the number of examples or users."""
        return 0 if self.noised_folder is None else settings.epochs * math.ceil(1.0 / self.get_sampling_rate(settings))

    def count_exchanged_rows(self, settings: TrainSettings, group_size: int | None) -> int:
        """Count the noised rows that change with one exchanged example, for a deduplication rule of ``group_size``."""
        return 1

    def get_privacy_unit(self, settings: TrainSettings) -> PrivacyUnit:
        """Return the privacy unit of the stated epsilons."""
        return settings.units.privacy_unit

    def make_mechanism(
        self,
        settings: TrainSettings,
        group_size: int | None = None,
        steps: int | None = None,
        other_spendings: Spendings = (),
    ) -> Mechanism | None:
        """Make the mechanism of ``steps`` noisy steps; calibrate its noise unless the settings give it.

        ``other_spendings`` count towards the target, too.
        """
        if self.noised_folder is None:
            return None
        noise = settings.noise_multiplier
        if noise is None:
            steps = self.count_noisy_steps(settings) if steps is None else steps
            noise = self.calibrate_noise(
                settings, steps, self.count_exchanged_rows(settings, group_size), other_spendings
            )
        return self.build_mechanism(settings, noise)

    def build_mechanism(self, settings: TrainSettings, noise_multiplier: float) -> Mechanism:
        """Build the mechanism of one step with ``noise_multiplier``."""
        return PoissonGaussian(
            settings.sampling_rate, noise_multiplier, settings.clip_norm, settings.expected_batch_size, settings.noise
        )

    noise_search: ClassVar[tuple[float, float, float]] = (1.0, 0.1, 10_000.0)
    """Where calibration starts, and the smallest and largest noise multiplier that it tries."""

    def calibrate_noise(
        self, settings: TrainSettings, steps: int, rows: int, other_spendings: Spendings = (), is_proved: bool = True
    ) -> float:
        """Find about the smallest noise multiplier with which ``steps`` have the target epsilon, at most.

        One example changes ``rows`` rows; see :func:`~redactory.training.accounting.calibration.find_noise`.
        """
        from redactory.training.accounting import NoiseSearch, find_noise

        def make_comparison(noise_multiplier: float) -> Comparison:
            mechanism = self.build_mechanism(settings, noise_multiplier)
            return self.compare_worlds(mechanism, steps, rows, other_spendings, self.get_privacy_unit(settings))

        search = NoiseSearch(*self.noise_search, 1e-4, 1e4)
        return find_noise(make_comparison, settings.epsilon, settings.delta, search, is_proved)

    def compare_worlds(
        self,
        mechanism: Mechanism,
        steps: int,
        rows: int,
        other_spendings: Spendings = (),
        unit: PrivacyUnit = PrivacyUnit.BOTH,
    ) -> Comparison:
        """Compare the neighbouring worlds of the target epsilon, under the trainer's relation.

        A protected unit, of ``rows`` rows, is there or not. An example that changes several rows, or for which a
        selection by counts was made, is exchanged.
        """
        from redactory.training.accounting import compare_examples, compare_units

        spending = self.compute_spending(mechanism, steps, rows)
        assert spending is not None
        if self.hides_units:
            return compare_units((spending, *other_spendings), 1)
        relation = Relation.SUBSTITUTION if rows > 1 or other_spendings else self.relation
        return compare_examples((spending, *other_spendings), relation)

    def compute_spending(self, mechanism: Mechanism | None, steps: int, rows: int) -> Spending | None:
        """Return the training's privacy spending for composition; None without noise or without a proved pair."""
        from redactory.training.accounting import Spending

        return None if mechanism is None else Spending(mechanism, steps, rows)

    # construction of the steps

    def read_original_examples(self, run: RunFolder, settings: TrainSettings) -> OriginalExamples | None:
        """Select the vault examples of a trainer with privacy units, with bounded contributions; otherwise None."""
        if not self.has_units:
            return None
        from redactory.training.uedp.units import OriginalExamples, load_entity_names, read_unit_incidence

        masked_names = load_entity_names(settings.units) if self.masks_entities else None
        if not self.hides_units and settings.units.duplicates != "merge":
            return OriginalExamples(run, masked_names=masked_names)
        whole_conversations = settings.has_whole_conversations
        incidence = self.bound_contributions(read_unit_incidence(run, settings.units, whole_conversations), settings)
        return OriginalExamples(run, incidence.example_ids, masked_names, incidence, whole_conversations)

    def bound_contributions(self, incidence: Any, settings: TrainSettings) -> Any:
        """Return the part of the hypergraph to train on: all of it, unless contributions are bounded."""
        return incidence

    def make_noise_free_steps(
        self, context: TrainingContext, scheduled_optimizer: ScheduledOptimizer
    ) -> NoiseFreeSteps | None:
        """Make the steps without noise, or None."""
        if not self.noise_free_folders:
            return None
        examples = context.encode_data_folders(*self.list_data_folders(context.run))
        return context.make_noise_free_steps(scheduled_optimizer, examples.examples, examples.included_rows)

    def make_noisy_steps(
        self, context: TrainingContext, scheduled_optimizer: ScheduledOptimizer, mechanism: Mechanism, ledger: Admission
    ) -> StepKind:
        """Make the steps with noise."""
        assert self.noised_folder is not None
        examples = context.encode_data_folders(getattr(context.run, self.noised_folder))
        return context.make_noisy_steps(scheduled_optimizer, examples, mechanism, ledger)
