"""What the trainers that sample users are told: public constants, all of them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from redactory.foundation.settings import Settings

FEDERATED_TRAINERS = ("uedp-alg1", "user-level")
"""The trainers whose noisy steps sample users and clip the whole update of each."""
Rate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class FederatedSettings(Settings):
    """Algorithm 1 of UeDP (``uedp-alg1``) and DP-FedAvg (``user-level``; McMahan et al. 2018).

    The clip β of a user's update is ``train.clip_norm``; ζ = ``train.noise_multiplier`` is the noise on the
    sum of updates in units of β.  Where the paper counts (w_u, w_e, w_s, W_u, W_e, W_s), these are constants:
    a number that was counted differs between two neighbouring corpora
    (``docs/explanation/uedp.md``, "What the published accounting gets wrong").
    """

    users: PositiveInt | None = Field(
        None,
        description="|U|, a public bound on the number of users; needed. With uedp-alg1 a corpus with more "
        "is refused: the spread of an entity rests on it where no cap does.",
    )
    user_rate: Rate = Field(0.05, description="q_u: probability of each user in each noisy step.")
    entity_rate: Rate = Field(0.5, description="uedp-alg1, q_e: probability of each entity in each step.")
    extended_rate: Share = Field(
        1.0,
        description="uedp-alg1, q_s: probability in each step of each point without an entity (the extended "
        "set S).",
    )
    estimator: Literal["f_E", "f_E+"] = Field(
        "f_E+",
        description="uedp-alg1: f_E learns from points with an entity, f_E+ from the extended set as well.",
    )
    rule: Literal["any", "all"] = Field(
        "any",
        description="uedp-alg1: a point is used when any of its entities is sampled (as published: q_e then "
        "hides nothing), or when all of them are.",
    )
    max_users_per_entity: PositiveInt | None = Field(
        None,
        description="uedp-alg1: cap M on the users that one entity touches, enforced on the fixed graph by "
        "leaving points out; |U| if absent.",
    )
    entity_weight: Rate = Field(1.0, description="w_e: weight of a point for each of its sampled entities.")
    extended_weight: Rate = Field(1.0, description="w_s: weight of a sampled point of the extended set.")
    total_entity_weight: PositiveFloat | None = Field(
        None,
        description="W_e of the normaliser q_u·|U|·(q_e·W_e + q_s·W_s); without them it is q_u·|U|: the "
        "mean of the sampled users' updates.",
    )
    total_extended_weight: PositiveFloat | None = Field(None, description="W_s of the normaliser.")

    noise_scale: PositiveFloat | None = Field(
        None,
        description="z of the papers, instead of train.noise_multiplier. uedp-alg1: ζ = z·(q_u·|U| + 1), or, "
        "in the patent, z·(|U| + 1); user-level: ζ = z.",
    )
    noise_form: Literal["paper", "patent"] = Field("paper", description="Which of the two noise_scale means.")
    sensitive_share: Share | None = Field(
        None,
        description="Share of sentences with an entity, for the figure as published of f_E+; a count of a "
        "private corpus unless it was published.",
    )

    local_epochs: PositiveInt = Field(1, description="Passes of a sampled user over her own points.")
    local_batch_size: PositiveInt = Field(8, description="B: points of a user's batch.")
    local_learning_rate: PositiveFloat = Field(
        0.02, description="η: step size of a user's own SGD, on the sum over a batch of the points' losses."
    )
    server: Literal["average", "optimizer"] = Field(
        "average",
        description="How the noisy mean of updates moves the model: added to it, as published, or as a "
        "gradient of train.optimizer with train.private_learning_rate.",
    )
    workers: PositiveInt | None = Field(
        None,
        description="Processes that users' local updates are computed in, train.workers if absent; the "
        "result has the same bits.",
    )
    dask: str | None = Field(
        None,
        description="Address of a Dask scheduler (tls://HOST:PORT) whose workers compute them instead, with "
        "the same bits: processes of one thread each, which are sent the points of the users who were drawn.",
    )

    @model_validator(mode="after")
    def _normaliser_has_both_totals(self) -> Self:
        both = (self.total_entity_weight is None) == (self.total_extended_weight is None)
        if not both and self.estimator == "f_E+":
            raise ValueError("total_entity_weight and total_extended_weight: give both, or neither")
        if self.total_entity_weight is None and self.total_extended_weight is not None:
            raise ValueError("estimator f_E has a total_entity_weight, and no total_extended_weight")
        return self

    @model_validator(mode="after")
    def _cap_is_a_cap(self) -> Self:
        if self.users is not None and (self.max_users_per_entity or 0) > self.users:
            raise ValueError("max_users_per_entity: at most users, the public number of users")
        return self


def federated_problem(trainer: str, own: FederatedSettings, noise_multiplier: float | None) -> str | None:
    """What ``train.federated`` lacks for ``trainer``, with the mend; None where nothing."""
    if trainer not in FEDERATED_TRAINERS:
        return None
    if own.users is None:
        return f"train.federated.users: {trainer} needs |U|, a public bound on the number of users"
    if own.noise_scale is not None and noise_multiplier is not None:
        return "train.noise_multiplier and train.federated.noise_scale: keep one of them"
    if trainer == "user-level" and own.max_users_per_entity is not None:
        return "train.federated.max_users_per_entity: user-level protects no entities; remove it"
    return None
