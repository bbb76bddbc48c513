"""The guarantee card of a local service: what one sentence costs, to a server that sees every message."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import Spendings, event_tree, published
from redactory.training.accounting.second import NOT_FINITE, Stated
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.figures import require_reasons
from redactory.training.ldp.accounting import FixedSends, confirmed_epsilon, message_spendings, sensitivity
from redactory.training.ldp.settings import LdpSettings
from redactory.training.mechanism import Relation

FORMAT = "redactory-ldp-guarantee/1"
_WORDS = WORDS["ldp"]


def service_card(
    name: str,
    settings: LdpSettings,
    *,
    provenance: Mapping[str, Any],
    encoder: str,
    spendings: Spendings = (),
    seeded: bool = False,
) -> dict[str, Any]:
    """The card of service ``name`` as JSON, derived from constants alone; every null has its reason.

    ``provenance`` says what the encoder was made of (``kind`` public, declared public or dpsgd), ``encoder``
    is its digest, ``spendings`` what its own training spent on a sentence, () where it is public.
    Raises ``GuaranteeError`` where an encoder of another kind is given, or one trained by DP-SGD without what
    it spent, or where two accountants disagree (``docs/guarantees.md``, "Local differential privacy").
    """
    kind = str(provenance.get("kind"))
    if kind not in _WORDS["encoders"] or (kind == "dpsgd") != bool(spendings):
        raise GuaranteeError(
            "encoder: only a public one, or one with what its DP-SGD spent, has a guarantee behind it"
        )
    noise = settings.noise(spendings)
    way = settings.participation.model_dump()
    found = confirmed_epsilon(noise, settings.vectors, settings.participation, settings.delta, spendings)
    values, reasons = _figures(settings, noise, found)
    unit, reason = _WORDS["units"][str(settings.vectors)], WORDS["seeded"] if seeded else None
    card = {
        "format": FORMAT,
        "service": name,
        "trainer": "ldp",
        "holds": reason is None,
        "holds_reason": reason,
        "seeded": seeded,
        "unit": unit,
        "relation": Relation.SUBSTITUTION.value,
        "relation_meaning": _WORDS["meaning"].format(unit=unit),
        "server_sees": server_sees(way["kind"], settings.pairs),
        "participation": {**way, "meaning": participation_in_words(way)},
        **_mechanism(settings, noise, spendings),
        **values,
        "reasons": reasons,
        "as_published": {"note": published.NOTE, "why_not": published.LDP_WHY_NOT},
        "accountants": _accountants(settings, spendings, found),
        "encoder": {**provenance, "digest": encoder},
        "assumptions": [_WORDS["encoders"][kind], *_WORDS["assumptions"]],
        "not_covered": _WORDS["not_covered"],
        "notes": _WORDS["notes"],
    }
    require_reasons(values, reasons)
    return card


def _figures(
    settings: LdpSettings, noise: float, found: Stated
) -> tuple[dict[str, float | None], dict[str, str]]:
    values = {
        "epsilon": found.value,
        "epsilon_sound": found.value,
        "epsilon_as_published": _as_published(settings, noise),
    }
    why = {"epsilon_as_published": _WORDS["not_published_finite"]}
    sound = _WORDS["too_little_noise"] if found.reason in (None, NOT_FINITE) else found.reason
    reasons = {name: why.get(name, sound) for name, value in values.items() if value is None}
    return values, reasons


def _as_published(settings: LdpSettings, noise: float) -> float | None:
    way = settings.participation
    if isinstance(way, FixedSends):
        return published.epsilon_of_sends(noise, way.sends, settings.delta, settings.vectors)
    return published.epsilon_published(noise, way.rate, way.steps, settings.delta, settings.vectors)


def _mechanism(settings: LdpSettings, noise: float, spendings: Spendings) -> dict[str, Any]:
    spent = message_spendings(noise, settings.vectors, settings.participation)
    moved = sensitivity(settings.vectors)
    return {
        "clip_norm": settings.clip_norm,
        "noise_multiplier": noise,
        "noise": "lattice",
        "sensitivity": moved * settings.clip_norm,
        "sensitivity_in_words": "2C" if settings.vectors == 1 else "2·√2·C",
        "mu": moved / noise,
        "messages": _messages(settings),
        "event": None if spent is None else event_tree((*spendings, *spent)),
        "delta": settings.delta,
    }


def _messages(settings: LdpSettings) -> dict[str, float]:
    """How many messages one sentence's slot sends: at most, and on average."""
    way = settings.participation
    if isinstance(way, FixedSends):
        return {"most": way.sends, "mean": float(way.sends)}
    sent = way.rate if way.kind == "visible" else 1.0
    return {"most": way.steps, "mean": sent * way.steps}


def _accountants(settings: LdpSettings, spendings: Spendings, found: Stated) -> dict[str, Any]:
    kind = settings.participation.kind
    main = _WORDS["main"]["hidden" if spendings and kind == "fixed" else kind]
    if found.second is None:
        alone = ["epsilon_sound"] if found.value is not None else []
        return {"main": main, "second": None, "bounds": None, "alone": alone}
    ends = (found.second.lower, found.second.upper)
    bounds = [bound if math.isfinite(bound) else None for bound in ends]
    return {"main": main, "second": WORDS["second_accountant"], "bounds": bounds, "alone": []}


def server_sees(participation: str, pairs: bool) -> list[str]:
    """Everything that reaches the server, noisy vectors first."""
    vectors = "two noisy vectors" if pairs else "a noisy vector, or one of each token place,"
    return [
        f"{vectors} in each message, of a length that is the same for all",
        "the class of each training sentence, in clear",
        "a random number for each sentence (its slot), the same in all its messages",
        _WORDS["seen"][participation],
    ]


def participation_in_words(participation: dict[str, Any]) -> str:
    """How often a sentence is sent, and what of that can be seen."""
    return str(_WORDS["participation"][participation["kind"]].format(**participation))
