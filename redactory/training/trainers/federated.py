"""``uedp-alg1`` and ``user-level``: a step samples users and clips each one's whole update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redactory.foundation.errors import CheckFailed
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.mechanisms.users import EntitySampling, PoissonUsersGaussian, get_users_mechanism
from redactory.training.trainers.base import Trainer
from redactory.training.unit_settings import PrivacyUnit

if TYPE_CHECKING:
    from redactory.training.accounting import Comparison, Spending, Spendings
    from redactory.training.loop import TrainingContext
    from redactory.training.mechanisms.ledger import Admission
    from redactory.training.mechanisms.mechanism import Mechanism
    from redactory.training.settings import TrainSettings
    from redactory.training.steps import ScheduledOptimizer, StepKind


class UserLevel(Trainer):
    """DP-FedAvg (McMahan et al. 2018)."""

    name = "user-level"
    description = "users alone are hidden, by federated averaging"
    noised_folder = "vault"
    can_classify = can_chat = has_units = hides_units = samples_users = True
    relation = Relation.ADD_OR_REMOVE

    def find_settings_problem(self, settings: TrainSettings) -> str | None:
        """Require |U| and separate duplicates; refuse an entity cap for users alone, and a budget for Algorithm 1."""
        federated = settings.federated
        if federated.users is None:
            return f"train.federated.users: {self.name} needs |U|, a public bound on the number of users"
        if self.make_entity_sampling(settings) is None and federated.max_users_per_entity is not None:
            return f"train.federated.max_users_per_entity: {self.name} does not protect entities; remove it"
        if self.make_entity_sampling(settings) is not None and settings.budget is not None:
            return f"train.budget: trainings with {self.name} cannot be composed with others: remove it"
        if settings.units.duplicates == "merge":
            return f"train.units.duplicates: {self.name} is proved for examples of one user each: set it to keep"
        return None

    def get_sampling_rate(self, settings: TrainSettings) -> float:
        """Return q_u, the sampling probability of a user."""
        return settings.federated.user_rate

    def get_privacy_unit(self, settings: TrainSettings) -> PrivacyUnit:
        """Return users: DP-FedAvg protects nothing else."""
        return PrivacyUnit.USERS

    def build_mechanism(self, settings: TrainSettings, noise_multiplier: float) -> PoissonUsersGaussian:
        """Build the mechanism of one step; its sum is divided by q_u·|U|."""
        federated = settings.federated
        assert federated.users is not None
        return PoissonUsersGaussian(
            sampling_rate=federated.user_rate,
            noise_multiplier=noise_multiplier,
            clip_norm=settings.clip_norm,
            normaliser=federated.user_rate * federated.users,
            noise=settings.noise,
            users=federated.users,
            entities=self.make_entity_sampling(settings),
        )

    def make_entity_sampling(self, settings: TrainSettings) -> EntitySampling | None:
        """Return how entities are sampled; None without entity sampling."""
        return None

    def compute_spending(self, mechanism: Mechanism | None, steps: int, rows: int) -> Spending | None:
        """Return the spending of one user; None for Algorithm 1, which has no pair to compose."""
        from redactory.training.accounting import Spending

        if mechanism is None or (users := get_users_mechanism(mechanism)).entities is not None:
            return None
        return Spending(users.make_single_user_mechanism(), steps)

    def make_noisy_steps(
        self, context: TrainingContext, scheduled_optimizer: ScheduledOptimizer, mechanism: Mechanism, ledger: Admission
    ) -> StepKind:
        """Make steps in which sampled users train on their examples and the mean update moves the model."""
        from redactory.training.steps import ScheduledOptimizer, make_optimizer
        from redactory.training.uedp.federated import FederatedSteps, collect_users, make_example_weights
        from redactory.training.uedp.local_update import LocalUpdateRule

        users_mechanism = get_users_mechanism(mechanism)
        assert context.original_examples is not None
        incidence = context.original_examples.incidence
        examples = context.encode_data_folders(context.run.vault).examples
        federated = context.settings.federated
        if incidence is None or len(incidence) != len(examples):
            raise CheckFailed("the hypergraph is not that of the examples that are trained on")
        return FederatedSteps(
            network=context.network,
            scheduled_optimizer=ScheduledOptimizer(make_optimizer(context.network, "sgd"), 1.0),
            examples=examples,
            users=collect_users(incidence, users_mechanism),
            mechanism=users_mechanism,
            weights=make_example_weights(incidence, users_mechanism),
            rule=LocalUpdateRule(
                federated.local_batch_size,
                federated.local_learning_rate,
                mechanism.clip_norm,
                context.max_physical_batch_tokens,
            ),
            stream=context.stream,
            ledger=ledger,
        )


class Algorithm1(UserLevel):
    """Algorithm 1 of the UeDP paper, with sound accounting."""

    name = "uedp-alg1"
    can_chat = False
    description = "users and entities hidden at once, by Algorithm 1 of the UeDP paper"
    noise_search = (1.0, 0.5, 1e9)

    def get_privacy_unit(self, settings: TrainSettings) -> PrivacyUnit:
        """Return the configured privacy unit."""
        return settings.units.privacy_unit

    def make_entity_sampling(self, settings: TrainSettings) -> EntitySampling:
        """Make the second sampling level: entities, and examples without one, are sampled too."""
        federated = settings.federated
        return EntitySampling(
            entity_rate=federated.entity_rate,
            related_entity_rate=federated.related_entity_rate,
            max_users_per_entity=federated.max_users_per_entity,
        )

    def compare_worlds(
        self,
        mechanism: Mechanism,
        steps: int,
        rows: int,
        other_spendings: Spendings = (),
        unit: PrivacyUnit = PrivacyUnit.BOTH,
    ) -> Comparison:
        """Compare the worlds of a user, an entity, or both; sound for Algorithm 1, and no composition of pairs."""
        from redactory.training.uedp.federated_accounting import compare_federated_worlds

        return compare_federated_worlds(get_users_mechanism(mechanism), steps, unit)
