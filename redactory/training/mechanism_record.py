"""The mechanism of a ledger's head, read back: what is not proved here is refused."""

from __future__ import annotations

from typing import Any

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.mechanism import Mechanism, PoissonGaussian, TruncatedPoissonGaussian
from redactory.training.units.federated_mechanism import PoissonUsersGaussian, users_mechanism_from_json

AnyMechanism = Mechanism | PoissonUsersGaussian
"""A mechanism that samples points, or one that samples users."""


def any_mechanism_from_json(value: dict[str, Any]) -> AnyMechanism:
    """The mechanism of a ledger's head; ``GuaranteeError`` for anything but what is proved somewhere."""
    event = value.get("event") if isinstance(value, dict) else None
    if isinstance(event, dict) and event.get("class") == "PoissonSampledUsersEvent":
        return users_mechanism_from_json(value)
    return mechanism_from_json(value)


def mechanism_from_json(value: dict[str, Any]) -> Mechanism:
    """A mechanism that samples points; ``GuaranteeError`` for anything but what is proved here."""
    mechanism: Mechanism | None = None
    try:
        event = value["event"]
        shared: dict[str, Any] = {
            "sampling_rate": event["sampling_probability"],
            "clip_norm": value["clip_norm"],
            "normaliser": value["normaliser"]["value"],
            "noise": value["noise"],
        }
        if event["class"] == "PoissonSampledDpEvent":
            mechanism = PoissonGaussian(noise_multiplier=event["event"]["noise_multiplier"], **shared)
        elif event["class"] == "TruncatedSubsampledGaussianDpEvent":
            mechanism = TruncatedPoissonGaussian(
                noise_multiplier=event["noise_multiplier"],
                truncated_batch_size=event["truncated_batch_size"],
                points=event["dataset_size"],
                **shared,
            )
        known = mechanism is not None and mechanism.noise in ("float", "lattice")
        known = known and mechanism is not None and mechanism.to_json() == value
    except (KeyError, TypeError, ConfigurationError):
        known = False
    if mechanism is None or not known:
        raise GuaranteeError("the ledger describes a mechanism for which no guarantee is proved")
    return mechanism
