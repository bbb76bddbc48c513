"""``uedp-alg1`` and ``user-level``: users are sampled, and the whole update of each is clipped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redactory.foundation.errors import CheckFailed
from redactory.training.mechanism import EntitySampling, PoissonUsersGaussian, Relation
from redactory.training.trainers.base import Trainer
from redactory.training.units import Protect

if TYPE_CHECKING:
    from redactory.training.accounting import Spending
    from redactory.training.ledger import Admission
    from redactory.training.loop import Ingredients
    from redactory.training.mechanism import AnyMechanism
    from redactory.training.settings import TrainSettings
    from redactory.training.steps import Descent, Phase

_MOST_NOISE, _TOLERANCE, _ROUGH = 1e9, 1e-4, 8.0


class UserLevel(Trainer):
    """DP-FedAvg (McMahan et al. 2018)."""

    name = "user-level"
    about = "users alone are hidden, by federated averaging"
    noised = "vault"
    classifies = chats = of_units = hides_units = samples_users = True
    relation = Relation.ADD_OR_REMOVE

    def problem(self, settings: TrainSettings) -> str | None:
        """|U|, copies as points of their own, a cap for entities alone, and a budget for users alone."""
        own = settings.federated
        if own.users is None:
            return f"train.federated.users: {self.name} needs |U|, a public bound on the number of users"
        if self.sampling(settings) is None and own.max_users_per_entity is not None:
            return f"train.federated.max_users_per_entity: {self.name} does not protect entities; remove it"
        if self.sampling(settings) is not None and settings.budget is not None:
            return f"train.budget: trainings with {self.name} cannot be composed with others: remove it"
        if settings.units.duplicates == "merge":
            return f"train.units.duplicates: {self.name} is proved for examples of one user each: set it to keep"
        return None

    def rate(self, settings: TrainSettings) -> float:
        """q_u."""
        return settings.federated.user_rate

    def protects(self, settings: TrainSettings) -> Protect:
        """DP-FedAvg hides users and nothing else."""
        return Protect.USERS

    def mechanism(
        self, settings: TrainSettings, group_size: int | None = None, steps: int | None = None
    ) -> PoissonUsersGaussian:
        """The mechanism of every one of ``steps``, its noise calibrated where the settings give none."""
        own = settings.federated
        assert own.users is not None
        quiet = PoissonUsersGaussian(
            sampling_rate=own.user_rate,
            noise_multiplier=1.0,
            clip_norm=settings.clip_norm,
            normaliser=own.user_rate * own.users,
            noise=settings.noise,
            users=own.users,
            entities=self.sampling(settings),
        )
        steps = self.steps(settings) if steps is None else steps
        noise = settings.noise_multiplier or self.noise_for(quiet, settings, steps)
        return replace(quiet, noise_multiplier=noise)

    def sampling(self, settings: TrainSettings) -> EntitySampling | None:
        """How entities are sampled: not at all."""
        return None

    def noise_for(self, quiet: PoissonUsersGaussian, settings: TrainSettings, steps: int) -> float:
        """About the least ζ >= 0.5 whose sound epsilon over all ``steps`` is at most the target."""
        from redactory.training.accounting import calibrate_noise
        from redactory.training.accounting.bounds import LARGEST_EPSILON
        from redactory.training.accounting.figures import Search, noise_for
        from redactory.training.uedp.algorithm1 import figures_of

        target, delta = settings.epsilon, settings.delta
        protect = self.protects(settings)
        if protect is Protect.USERS:
            return calibrate_noise(target, delta, quiet.sampling_rate, steps, relation=self.relation)

        def spent(coarser: float, ratio: float) -> float:
            tried = replace(quiet, noise_multiplier=ratio)
            found = figures_of(tried, steps, delta, protect, coarser).sound.epsilon
            return LARGEST_EPSILON if found is None else max(found, 1e-9)

        return noise_for(target, spent, _ROUGH, Search(1.0, 0.5, _MOST_NOISE, _TOLERANCE))

    def spending(self, mechanism: AnyMechanism | None, steps: int, rows: int) -> Spending | None:
        """Of one user; Algorithm 1 has no pair to compose."""
        from redactory.training.accounting import Spending

        if not isinstance(mechanism, PoissonUsersGaussian) or mechanism.entities is not None:
            return None
        return Spending(mechanism.of_one_user(), steps)

    def noisy_steps(self, made: Ingredients, descent: Descent, mechanism: AnyMechanism, ledger: Admission) -> Phase:
        """Sampled users, each training on their own points; the mean of their updates moves the model."""
        from redactory.training.steps import Descent, make_optimizer
        from redactory.training.uedp.federated import FederatedPhase, users_of, weights_of
        from redactory.training.uedp.local_update import LocalRule

        assert isinstance(mechanism, PoissonUsersGaussian)
        assert made.originals is not None
        incidence, points, own = made.originals.incidence, made.learnt().points, made.settings.federated
        if incidence is None or len(incidence) != len(points):
            raise CheckFailed("the hypergraph is not that of the examples that are trained on")
        return FederatedPhase(
            network=made.network,
            descent=Descent(make_optimizer(made.network, "sgd"), 1.0),
            points=points,
            users=users_of(incidence, mechanism),
            mechanism=mechanism,
            weights=weights_of(incidence, mechanism),
            rule=LocalRule(
                own.local_epochs,
                own.local_batch_size,
                own.local_learning_rate,
                mechanism.clip_norm,
                made.settings.max_physical_batch_tokens,
            ),
            stream=made.stream,
            ledger=ledger,
            every=made.every,
        )


class Algorithm1(UserLevel):
    """Algorithm 1 of the UeDP paper, soundly accounted."""

    name = "uedp-alg1"
    chats = False
    about = "users and entities hidden at once, by Algorithm 1 of the UeDP paper"

    def protects(self, settings: TrainSettings) -> Protect:
        """As the settings say."""
        return settings.units.privacy_unit

    def sampling(self, settings: TrainSettings) -> EntitySampling:
        """The second level: entities, and points without one, throw coins as well."""
        own = settings.federated
        return EntitySampling(
            entity_rate=own.entity_rate,
            related_entity_rate=own.related_entity_rate,
            estimator="f_E+" if own.related_entity_rate else "f_E",
            rule=own.rule,
            max_users_per_entity=own.max_users_per_entity,
        )
