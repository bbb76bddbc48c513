"""The guarantee card of a local service: what one sentence costs, to a server that sees every message."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from redactory.foundation.errors import GuaranteeError
from redactory.training import guarantee_figures as guarantee_text
from redactory.training.accounting import Spendings, event_tree
from redactory.training.accounting.second_opinion import NOT_FINITE, Stated
from redactory.training.guarantee_figures import require_reasons
from redactory.training.ldp import published
from redactory.training.ldp.accounting import FixedSends, confirmed_epsilon, message_spendings, sensitivity
from redactory.training.ldp.settings import LdpSettings
from redactory.training.mechanism import Relation

FORMAT = "redactory-ldp-guarantee/1"


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
    if kind not in ENCODERS or (kind == "dpsgd") != bool(spendings):
        raise GuaranteeError(
            "encoder: only a public one, or one with what its DP-SGD spent, has a guarantee behind it"
        )
    noise = settings.noise(spendings)
    told = settings.participation.model_dump()
    found = confirmed_epsilon(noise, settings.vectors, settings.participation, settings.delta, spendings)
    values, reasons = _figures(settings, noise, found)
    unit, reason = UNITS[settings.vectors], SEEDED if seeded else None
    card = {
        "format": FORMAT,
        "service": name,
        "trainer": "ldp",
        "holds": reason is None,
        "holds_reason": reason,
        "seeded": seeded,
        "unit": unit,
        "relation": Relation.SUBSTITUTION.value,
        "relation_meaning": MEANING.format(unit=unit),
        "server_sees": server_sees(told["kind"], settings.pairs),
        "participation": {**told, "meaning": participation_in_words(told)},
        **_mechanism(settings, noise, spendings),
        **values,
        "reasons": reasons,
        "as_published": {"note": published.NOTE, "why_not": published.WHY_NOT},
        "accountants": _accountants(settings, spendings, found),
        "encoder": {**provenance, "digest": encoder},
        "assumptions": [ENCODERS[kind], *ASSUMPTIONS],
        "not_covered": [*NOT_COVERED],
        "notes": NOTES,
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
    why = {"epsilon_as_published": NOT_PUBLISHED_FINITE}
    sound = _TOO_LITTLE_NOISE if found.reason in (None, NOT_FINITE) else found.reason
    reasons = {name: why.get(name, sound) for name, value in values.items() if value is None}
    return values, reasons


def _as_published(settings: LdpSettings, noise: float) -> float | None:
    told = settings.participation
    if isinstance(told, FixedSends):
        return published.epsilon_of_sends(noise, told.sends, settings.delta, settings.vectors)
    return published.epsilon_published(noise, told.rate, told.steps, settings.delta, settings.vectors)


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
    told = settings.participation
    if isinstance(told, FixedSends):
        return {"most": told.sends, "mean": float(told.sends)}
    sent = told.rate if told.kind == "visible" else 1.0
    return {"most": told.steps, "mean": sent * told.steps}


def _accountants(settings: LdpSettings, spendings: Spendings, found: Stated) -> dict[str, Any]:
    kind = settings.participation.kind
    main = MAIN["hidden" if spendings and kind == "fixed" else kind]
    if found.second is None:
        alone = ["epsilon_sound"] if found.value is not None else []
        return {"main": main, "second": None, "bounds": None, "alone": alone}
    ends = (found.second.lower, found.second.upper)
    bounds = [bound if math.isfinite(bound) else None for bound in ends]
    return {"main": main, "second": guarantee_text.SECOND_ACCOUNTANT, "bounds": bounds, "alone": []}


# The words of a local service's card that do not depend on figures.


UNITS = {1: "one sentence of a user", 2: "one pair of sentences of a user"}
"""What is protected, by the vectors of a message."""
MEANING = (
    "Two worlds are neighbours when {unit} is exchanged for any other one, with the same class "
    "(substitution). The server sees every message, and may be anybody."
)
SEEDED = (
    "test mode: seed known. Whoever knows the seed can subtract the noise; the figures hold for nobody else"
)
_TOO_LITTLE_NOISE = "no epsilon below 4096 at this delta: the noise is too small for so many messages"
NOT_PUBLISHED_FINITE = "the paper's formula has no value below 4096 here"

PARTICIPATION = {
    "fixed": "every sentence is sent {sends} time(s): that it is there, and how often, is seen",
    "visible": "in each of {steps} steps a sentence is sent with probability {rate:g}; in which is seen",
    "hidden": "in each of {steps} steps every slot sends one message: with probability {rate:g} of its "
    "sentence, else of noise alone; in which is secret",
}
_SEEN = {
    "fixed": "how many sentences there are, and in how many messages each was sent",
    "visible": "how many sentences there are, and in which steps each was sent",
    "hidden": "how many sentences there are; a message of each in every step",
}

ENCODERS = {
    "public": "The encoder was made of text, and of a folder if encoder.base names one, that are public and "
    "no part of any user's, as whoever made it declared: nothing here checks it.",
    "declared public": "The encoder's folder is public, as whoever used it declared: nothing here checks it.",
    "dpsgd": "The encoder was trained on private text by DP-SGD; its steps are composed with the messages, "
    "for a sentence that is one point of that training's private side and one slot here. A word of its "
    "public side may be in the vocabulary.",
}
ASSUMPTIONS = (
    "The encoder is frozen, and the same for all messages: none depends on another sentence.",
    "The noise and the coins came from the operating system's entropy on the user's side, unless this card "
    "says that they were seeded.",
    "Nothing else leaves the user's side that was computed from her sentence: no log, no error, no timing.",
    "Noise is an exactly rounded Gaussian, added as whole numbers, so that its addition gives nothing away. "
    "How the clipped vector itself is rounded is covered by a margin of the noise, not proved.",
)
NOT_COVERED = (
    "the class of a training sentence: it is sent in clear",
    "that a user takes part, from where and when: messages come over a network",
    "several sentences of one user together, or one sentence in training and in a query: they compose; a "
    "budget for each user (--budget) counts them",
    "what the same sentence gives away in another service, or to whoever else it was sent",
    "answers: they are a function of the noisy query, and tell no more than it; but users see them",
)
NOTES = {
    "epsilon": "of one unit over all its messages, to whoever sees all of them: as a training sentence, or "
    "as a query, which is sent in the same way",
    "as_published": "the paper's formulas at the same noise: not a guarantee",
}
MAIN = {
    "fixed": "the exact curve of one Gaussian",
    "visible": "privacy loss distributions, pessimistic, of steps whose coins are told",
    "hidden": "privacy loss distributions, pessimistic (connect the dots), composed under a tilt",
}


def server_sees(participation: str, pairs: bool) -> list[str]:
    """Everything that reaches the server, noisy vectors first."""
    vectors = "two noisy vectors" if pairs else "a noisy vector, or one of each token place,"
    return [
        f"{vectors} in each message, of a length that is the same for all",
        "the class of each training sentence, in clear",
        "a random number for each sentence (its slot), the same in all its messages",
        _SEEN[participation],
    ]


def participation_in_words(participation: dict[str, Any]) -> str:
    """How often a sentence is sent, and what of that can be seen."""
    return PARTICIPATION[participation["kind"]].format(**participation)
