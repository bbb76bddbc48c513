"""What messages at a noise would guarantee, from numbers alone: soundly, and as the paper would print it.

Formal guarantees: ``epsilon_sound`` is the one that the card of such a service states, by the same code and
both accountants, provided that ``conditions`` hold (``docs/guarantees.md``, "Local differential privacy").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from redactory.training.accounting import second_opinion
from redactory.training.guarantee_figures import Figures
from redactory.training.ldp import published
from redactory.training.ldp.accounting import (
    FixedSends,
    HiddenCoins,
    Participation,
    VisibleCoins,
    calibrated_noise,
    confirmed_epsilon,
    epsilon_sound,
    message,
    sensitivity,
)
from redactory.training.uedp.forecast import common_problems, require

LARGE_DELTA = 1e-4
NOT_FINITE = "no epsilon below 4096 at this delta: the noise hides nothing from whoever has all messages"
NO_MU = "a coin decides how often a sentence is sent: the messages together are no Gaussian mechanism"
CONDITIONS = (
    "the encoder is frozen before the first message, and was trained without these sentences (or its own "
    "cost is composed with the messages')",
    "the label of a message is sent in clear and is not protected",
    "the noise is drawn afresh for every message, by nobody but the user",
)
CONDITIONS_OF: dict[str, str] = {
    "fixed": "every sentence is sent exactly this often, in every world",
    "visible": "coins are thrown without looking at the sentence; who sends is seen and not protected",
    "hidden": "every slot sends one message in every step, its own label on it; the coins stay secret",
}


@dataclass(frozen=True)
class LdpRequest:
    """The public constants of messages that are thought of.

    Exactly one of ``noise`` (z = σ/C), ``target`` (a sound epsilon) and ``published_target`` (the noise that
    the paper's Algorithm 2, or 3, takes for this epsilon) is given.  Of the ways to take part there is
    ``sends``, or one rate with ``steps``.  ``published_rate`` is the p of equation 8 where it is another
    one; ``true_share`` q says that a share 1 − q of the queries is fictitious (equation 9).
    """

    trainer: Literal["ldp"] = "ldp"
    noise: float | None = None
    target: float | None = None
    published_target: float | None = None
    delta: float = 1e-5
    sends: int = 1
    visible_rate: float | None = None
    hidden_rate: float | None = None
    published_rate: float | None = None
    steps: int | None = None
    true_share: float | None = None
    pairs: bool = False

    @property
    def vectors(self) -> int:
        """1, or 2 for pairs; also the paper's |x_t| of one message."""
        return 2 if self.pairs else 1

    @property
    def participation(self) -> Participation:
        """How often a sentence is sent, and whether that is seen."""
        if self.visible_rate is not None:
            return VisibleCoins(kind="visible", rate=self.visible_rate, steps=self.steps or 1)
        if self.hidden_rate is not None:
            return HiddenCoins(kind="hidden", rate=self.hidden_rate, steps=self.steps or 1)
        return FixedSends(sends=self.sends)

    @property
    def rate_as_published(self) -> float | None:
        """The p of equation 8, or q·p_query of equation 9; None where nothing is sampled."""
        known = (self.published_rate, self.visible_rate, self.hidden_rate)
        rate = next((one for one in known if one is not None), None)
        return None if rate is None else rate * (self.true_share or 1.0)


def forecast_ldp(request: LdpRequest) -> dict[str, Any]:
    """Figures of ``request``, each null with a reason, as JSON.

    ``ConfigurationError`` where the numbers are not those of messages, ``GuaranteeError`` where no noise
    reaches the target or the two accountants disagree.
    """
    _check(request)
    noise, told = noise_of(request), request.participation
    found = Figures()
    one = confirmed_epsilon(noise, request.vectors, told, request.delta)
    why = NOT_FINITE if one.reason in (None, second_opinion.NOT_FINITE) else one.reason
    found.put("epsilon_sound", one.value, one.second, why)
    found.put("epsilon_as_published", _published(request, noise), None, NOT_FINITE)
    mu = 2.0 / message(noise, request.vectors).noise_multiplier
    total = mu * told.sends**0.5 if isinstance(told, FixedSends) else None
    found.put("mu_total", total, None, NO_MU)
    result = {
        "trainer": "ldp",
        "unit": "one pair of sentences" if request.pairs else "one sentence",
        "relation": "substitution",
        "relation_meaning": "any other sentence in the same slot, with the same label",
        "delta": request.delta,
        "noise_multiplier": noise,
        "noise_source": _source(request),
        "noise_calibrated": request.noise is None,
        "participation": told.model_dump(),
        "vectors": request.vectors,
        "sensitivity": sensitivity(request.vectors),
        "mu": mu,
        **found.values,
        "second": found.second,
        "as_published": _formula(request),
        "compared": compared(request, noise),
        "conditions": [*CONDITIONS, CONDITIONS_OF[told.kind]],
        "notes": notes(request),
        "reasons": found.reasons,
    }
    return result if request.true_share is None else {**result, "inference": inference(request, noise)}


def noise_of(request: LdpRequest) -> float:
    """z: as given, or found for the sound target, or as the paper would choose it."""
    if request.noise is not None:
        return request.noise
    if request.target is not None:
        return calibrated_noise(request.target, request.vectors, request.participation, request.delta)
    assert request.published_target is not None
    if (rate := request.rate_as_published) is None:
        mu = published.mu_of_epsilon(request.published_target, request.delta)
        return float(request.sends**0.5 * request.vectors / mu)
    assert request.steps is not None
    return published.noise_published(
        request.published_target, rate, request.steps, request.delta, request.vectors
    )


def compared(request: LdpRequest, noise: float) -> list[dict[str, Any]]:
    """Epsilon of the same noise with other ways to take part; null over 4096."""
    ways: list[tuple[str, Participation]] = [("one send", FixedSends())]
    told = request.participation
    if isinstance(told, FixedSends):
        if told.sends > 1:
            ways.append((f"{told.sends} sends", told))
    else:
        often = max(1, round(told.rate * told.steps))
        ways += [
            (f"as many sends as expected: {often}", FixedSends(sends=often)),
            ("coins that are seen", VisibleCoins(kind="visible", rate=told.rate, steps=told.steps)),
            ("coins hidden by noise alone", HiddenCoins(kind="hidden", rate=told.rate, steps=told.steps)),
        ]
    return [
        {"participation": words, "epsilon": epsilon_sound(noise, request.vectors, way, request.delta)}
        for words, way in ways
    ]


def inference(request: LdpRequest, noise: float) -> dict[str, Any]:
    """Up-sampling with fictitious sentences: what equation 9 claims, and what a query's messages cost."""
    told, vectors, delta = request.participation, request.vectors, request.delta
    assert not isinstance(told, FixedSends)
    seen = VisibleCoins(kind="visible", rate=told.rate, steps=told.steps)
    hidden = HiddenCoins(kind="hidden", rate=told.rate, steps=told.steps)
    return {
        "note": published.NOTE,
        "true_share": request.true_share,
        "rate": told.rate,
        "rate_as_published": request.rate_as_published,
        "steps": told.steps,
        "expected_sends": told.rate * told.steps,
        "epsilon_claimed": _published(request, noise),
        "epsilon_visible": epsilon_sound(noise, vectors, seen, delta),
        "epsilon_hidden": epsilon_sound(noise, vectors, hidden, delta),
        "epsilon_one_send": epsilon_sound(noise, vectors, FixedSends(), delta),
        "worth": "fictitious sentences change none of the sound figures: they are the same for every share",
    }


def notes(request: LdpRequest) -> list[str]:
    """What a reader should know of the numbers that were asked for."""
    found = []
    if request.delta > LARGE_DELTA:
        found.append(
            f"delta {request.delta:g} is large: of n sentences delta*n may be given away altogether; take "
            "far less than one over the number of sentences"
        )
    if isinstance(request.participation, FixedSends) and request.sends > 1:
        found.append(
            f"{request.sends} sends carry what one send at noise_multiplier / √{request.sends} carries, at "
            "the same epsilon: send once"
        )
    return found


def _published(request: LdpRequest, noise: float) -> float | None:
    if (rate := request.rate_as_published) is None:
        return published.epsilon_of_sends(noise, request.sends, request.delta, request.vectors)
    assert request.steps is not None
    return published.epsilon_published(noise, rate, request.steps, request.delta, request.vectors)


def _formula(request: LdpRequest) -> dict[str, Any]:
    rate = request.rate_as_published
    formula = "section 4.1: √J·C/σ"
    if rate is not None:
        formula = "equation 8" if request.true_share is None else "equation 9"
    wrong = {
        "sensitivity": True,
        "composition": rate is not None,
        "sampling": rate is not None and request.hidden_rate is None,
        "fictitious": request.true_share is not None,
    }
    why = {key: words for key, words in published.WHY_NOT.items() if wrong[key]}
    return {"note": published.NOTE, "formula": formula, "rate": rate, "why_not": why}


def _source(request: LdpRequest) -> str:
    if request.noise is not None:
        return "as given"
    if request.target is not None:
        return "found for the target"
    return f"as published for epsilon {request.published_target:g}"


def _check(request: LdpRequest) -> None:
    rates = (request.visible_rate, request.hidden_rate, request.published_rate, request.true_share)
    coins = [rate for rate in (request.visible_rate, request.hidden_rate) if rate is not None]
    sampled = bool(coins) or request.published_rate is not None
    known = [one for one in (request.noise, request.target, request.published_target) if one is not None]
    problems = [
        (len(known) != 1, "give one of the noise, a target epsilon, and an epsilon as published"),
        (any(rate is not None and not 0.0 < rate <= 1.0 for rate in rates), "a rate or share is in (0, 1]"),
        (len(coins) > 1, "coins are seen or hidden: give one of the two rates"),
        (sampled != (request.steps is not None), "a rate and the number of steps belong together"),
        (request.sends < 1, "a sentence is sent at least once"),
        (bool(coins) and request.sends != 1, "coins decide how often a sentence is sent: leave out sends"),
        (request.true_share is not None and not coins, "a true share needs the rate of its queries"),
    ]
    steps, noise = 1 if request.steps is None else request.steps, known[0] if known else None
    require([*problems, *common_problems(steps, request.delta, noise, None)])
