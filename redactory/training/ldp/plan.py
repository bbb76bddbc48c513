"""What messages at a noise would guarantee: soundly, and as the paper would print it.

Formal guarantees: ``epsilon_sound`` is the one that the card of such a service states, by the same code and
both accountants, provided that ``conditions`` hold (``docs/guarantees.md``, "Local differential privacy").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import published
from redactory.training.accounting.second import NOT_FINITE
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.figures import Figures
from redactory.training.ldp.accounting import (
    FixedSends,
    HiddenCoins,
    Participation,
    VisibleCoins,
    confirmed_epsilon,
    epsilon_sound,
    message,
    sensitivity,
)
from redactory.training.ldp.settings import LdpSettings

LARGE_DELTA = 1e-4


@dataclass(frozen=True)
class Published:
    """What the paper's figure takes beside the settings.

    ``epsilon`` is the one that its Algorithm 2, or 3, chooses the noise for, in the place of a noise;
    ``rate`` the p of equation 8 where it is another one than the participation's; ``true_share`` q says that
    a share 1 − q of the queries is fictitious (equation 9).  ``steps`` T belong to a rate of its own.
    """

    epsilon: float | None = None
    rate: float | None = None
    steps: int | None = None
    true_share: float | None = None

    def __post_init__(self) -> None:
        rates = [rate for rate in (self.rate, self.true_share) if rate is not None]
        if not all(0.0 < rate <= 1.0 for rate in rates) or (self.epsilon is not None and self.epsilon <= 0.0):
            raise ConfigurationError("a published rate or share is in (0, 1], a published epsilon above 0")

    def rate_of(self, way: Participation) -> float | None:
        """The p of equation 8, or q·p_query of equation 9; None where nothing is sampled."""
        rate = self.rate if self.rate is not None else getattr(way, "rate", None)
        return None if rate is None else rate * (self.true_share or 1.0)

    def steps_of(self, way: Participation) -> int:
        """T."""
        steps = self.steps or getattr(way, "steps", None)
        if steps is None:
            raise ConfigurationError("a rate and the number of steps belong together")
        return int(steps)


def plan_messages(settings: LdpSettings, paper: Published | None = None) -> dict[str, Any]:
    """Figures of the messages of ``settings``, each null with a reason, as JSON.

    ``GuaranteeError`` where no noise reaches the target or the two accountants disagree.
    """
    paper, way = paper or Published(), settings.participation
    if paper.true_share is not None and isinstance(way, FixedSends):
        raise ConfigurationError("a true share needs the rate of its queries")
    noise = settings.noise() if paper.epsilon is None else _noise_published(settings, paper)
    found = Figures()
    one = confirmed_epsilon(noise, settings.vectors, way, settings.delta)
    words = WORDS["ldp"]["plan"]
    why = words["not_finite"] if one.reason in (None, NOT_FINITE) else one.reason
    found.put("epsilon_sound", one.value, one.second, why)
    found.put("epsilon_as_published", _epsilon_published(settings, paper, noise), None, words["not_finite"])
    mu = 2.0 / message(noise, settings.vectors).noise_multiplier
    total = mu * way.sends**0.5 if isinstance(way, FixedSends) else None
    found.put("mu_total", total, None, words["no_mu"])
    result = {
        "trainer": "ldp",
        "unit": "one pair of sentences" if settings.pairs else "one sentence",
        "relation": "substitution",
        "relation_meaning": "any other sentence in the same slot, with the same label",
        "delta": settings.delta,
        "noise_multiplier": noise,
        "noise_source": _source(settings, paper),
        "noise_calibrated": settings.noise_multiplier is None,
        "participation": way.model_dump(),
        "vectors": settings.vectors,
        "sensitivity": sensitivity(settings.vectors),
        "mu": mu,
        **found.values,
        "second": found.second,
        "as_published": _formula(settings, paper),
        "compared": _compared(settings, noise),
        "conditions": [*words["conditions"], words["conditions_of"][way.kind]],
        "notes": _notes(settings),
        "reasons": found.reasons,
    }
    return result if paper.true_share is None else {**result, "inference": _inference(settings, paper, noise)}


def _noise_published(settings: LdpSettings, paper: Published) -> float:
    """z as the paper would choose it."""
    assert paper.epsilon is not None
    way, delta, vectors = settings.participation, settings.delta, settings.vectors
    if (rate := paper.rate_of(way)) is None:
        assert isinstance(way, FixedSends)
        return float(way.sends**0.5 * vectors / published.mu_of_epsilon(paper.epsilon, delta))
    return published.noise_published(paper.epsilon, rate, paper.steps_of(way), delta, vectors)


def _epsilon_published(settings: LdpSettings, paper: Published, noise: float) -> float | None:
    way, delta, vectors = settings.participation, settings.delta, settings.vectors
    if (rate := paper.rate_of(way)) is None:
        assert isinstance(way, FixedSends)
        return published.epsilon_of_sends(noise, way.sends, delta, vectors)
    return published.epsilon_published(noise, rate, paper.steps_of(way), delta, vectors)


def _compared(settings: LdpSettings, noise: float) -> list[dict[str, Any]]:
    """Epsilon of the same noise with other ways to take part; null over 4096."""
    ways: list[tuple[str, Participation]] = [("one send", FixedSends())]
    way = settings.participation
    if isinstance(way, FixedSends):
        if way.sends > 1:
            ways.append((f"{way.sends} sends", way))
    else:
        often = max(1, round(way.rate * way.steps))
        ways += [
            (f"as many sends as expected: {often}", FixedSends(sends=often)),
            ("coins that are seen", VisibleCoins(kind="visible", rate=way.rate, steps=way.steps)),
            ("coins hidden by noise alone", HiddenCoins(kind="hidden", rate=way.rate, steps=way.steps)),
        ]
    return [
        {"participation": words, "epsilon": epsilon_sound(noise, settings.vectors, way, settings.delta)}
        for words, way in ways
    ]


def _inference(settings: LdpSettings, paper: Published, noise: float) -> dict[str, Any]:
    """Up-sampling with fictitious sentences: what equation 9 claims, and what a query's messages cost."""
    way, vectors, delta = settings.participation, settings.vectors, settings.delta
    assert not isinstance(way, FixedSends)
    seen = VisibleCoins(kind="visible", rate=way.rate, steps=way.steps)
    hidden = HiddenCoins(kind="hidden", rate=way.rate, steps=way.steps)
    return {
        "note": published.NOTE,
        "true_share": paper.true_share,
        "rate": way.rate,
        "rate_as_published": paper.rate_of(way),
        "steps": way.steps,
        "expected_sends": way.rate * way.steps,
        "epsilon_claimed": _epsilon_published(settings, paper, noise),
        "epsilon_visible": epsilon_sound(noise, vectors, seen, delta),
        "epsilon_hidden": epsilon_sound(noise, vectors, hidden, delta),
        "epsilon_one_send": epsilon_sound(noise, vectors, FixedSends(), delta),
        "worth": "fictitious sentences change none of the sound figures: they are the same for every share",
    }


def _notes(settings: LdpSettings) -> list[str]:
    """What a reader should know of the numbers that were asked for."""
    found, way = [], settings.participation
    if settings.delta > LARGE_DELTA:
        found.append(
            f"delta {settings.delta:g} is large: of n sentences delta*n may be given away altogether; take "
            "far less than one over the number of sentences"
        )
    if isinstance(way, FixedSends) and way.sends > 1:
        found.append(
            f"{way.sends} sends carry what one send at noise_multiplier / √{way.sends} carries, at the same "
            "epsilon: send once"
        )
    return found


def _formula(settings: LdpSettings, paper: Published) -> dict[str, Any]:
    rate = paper.rate_of(settings.participation)
    formula = "section 4.1: √J·C/σ"
    if rate is not None:
        formula = "equation 8" if paper.true_share is None else "equation 9"
    wrong = {
        "sensitivity": True,
        "composition": rate is not None,
        "sampling": rate is not None and settings.participation.kind != "hidden",
        "fictitious": paper.true_share is not None,
    }
    why = {key: words for key, words in published.LDP_WHY_NOT.items() if wrong[key]}
    return {"note": published.NOTE, "formula": formula, "rate": rate, "why_not": why}


def _source(settings: LdpSettings, paper: Published) -> str:
    if paper.epsilon is not None:
        return f"as published for epsilon {paper.epsilon:g}"
    return "found for the target" if settings.noise_multiplier is None else "as given"
