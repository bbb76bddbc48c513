"""What the messages of a local service guarantee: its plan before the first one, and its card.

Formal guarantees: both state ``epsilon_sound`` by the same code and both accountants; the plan's is the one
that the card of such a service states, provided that its ``conditions`` hold (``docs/guarantees.md``, "Local
differential privacy").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.accounting import Spendings, event_tree, published
from redactory.training.accounting.second import NOT_FINITE
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.figures import Figures, require_reasons
from redactory.training.ldp.accounting import (
    FixedSends,
    HiddenCoins,
    Participation,
    VisibleCoins,
    confirmed_epsilon,
    epsilon_sound,
    message_spendings,
    sensitivity,
    steps_of,
)
from redactory.training.ldp.settings import LdpSettings
from redactory.training.mechanism import Relation

FORMAT = "redactory-ldp-guarantee/1"
LARGE_DELTA = 1e-4
_WORDS = WORDS["ldp"]


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

    def sampled(self, way: Participation) -> tuple[float, int] | None:
        """The p of equation 8, or q·p_query of equation 9, and T; None where nothing is sampled."""
        rate = self.rate if self.rate is not None else getattr(way, "rate", None)
        steps = self.steps or getattr(way, "steps", None)
        if rate is None:
            return None
        if steps is None:
            raise ConfigurationError("give a rate and the number of steps together")
        return rate * (self.true_share or 1.0), int(steps)

    def noise(self, settings: LdpSettings) -> float:
        """z as the paper would choose it for its epsilon."""
        assert self.epsilon is not None
        way, sampled = settings.sampling, self.sampled(settings.sampling)
        if sampled is None:
            assert isinstance(way, FixedSends)
            mu = published.mu_of_epsilon(self.epsilon, settings.delta)
            return float(way.sends**0.5 * settings.vectors / mu)
        return published.noise_published(self.epsilon, *sampled, settings.delta, settings.vectors)

    def figure(self, settings: LdpSettings, noise: float) -> float | None:
        """Epsilon as the paper would print it at z = ``noise``."""
        way, sampled = settings.sampling, self.sampled(settings.sampling)
        if sampled is None:
            assert isinstance(way, FixedSends)
            return published.epsilon_of_sends(noise, way.sends, settings.delta, settings.vectors)
        return published.epsilon_published(noise, *sampled, settings.delta, settings.vectors)


def _figures(settings: LdpSettings, noise: float, spent: Spendings, paper: Published, why: tuple[str, str]) -> Figures:
    """``epsilon_sound`` and ``epsilon_as_published``, null for the two reasons of ``why``."""
    found, terms = Figures(), (noise, settings.vectors, settings.sampling, settings.delta)
    one = confirmed_epsilon(*terms, spent)
    found.put("epsilon_sound", one.value, one.second, why[0] if one.reason in (None, NOT_FINITE) else one.reason)
    found.put("epsilon_as_published", paper.figure(settings, noise), None, why[1])
    return found


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
    kind, way, noise = str(provenance.get("kind")), settings.sampling, settings.noise(spendings)
    if kind not in _WORDS["encoders"] or (kind == "dpsgd") != bool(spendings):
        raise GuaranteeError("encoder: only a public one, or one with a recorded DP-SGD epsilon, has a guarantee")
    why = (_WORDS["too_little_noise"], _WORDS["not_published_finite"])
    found = _figures(settings, noise, spendings, Published(), why)
    found.put("epsilon", found.values["epsilon_sound"], None, found.reasons.get("epsilon_sound", ""))
    require_reasons(found.values, found.reasons)
    classes, reason = "hidden" if hides_classes(way) else "clear", _WORDS["seeded"] if seeded else None
    unit = _WORDS["units"][classes][str(settings.vectors)]
    spent, moved = message_spendings(noise, settings.vectors, way), sensitivity(settings.vectors)
    mean = way.rate if isinstance(way, VisibleCoins) else 1.0
    return {
        "format": FORMAT,
        "service": name,
        "trainer": "ldp",
        "holds": reason is None,
        "holds_reason": reason,
        "seeded": seeded,
        "unit": unit,
        "relation": Relation.SUBSTITUTION.value,
        "relation_meaning": _WORDS["meaning"][classes].format(unit=unit),
        "server_sees": server_sees(way, settings.pairs),
        "sampling": {**way.model_dump(), "meaning": participation_in_words(way.model_dump())},
        "clip_norm": settings.clip_norm,
        "noise_multiplier": noise,
        "noise": "lattice",
        "sensitivity": moved * settings.clip_norm,
        "sensitivity_in_words": "2C" if settings.vectors == 1 else "2·√2·C",
        "mu": moved / noise,
        "messages": {"most": steps_of(way), "mean": mean * steps_of(way)},
        "query": _query(settings, spendings),
        "event": None if spent is None else event_tree((*spendings, *spent)),
        "delta": settings.delta,
        **found.values,
        "reasons": found.reasons,
        "as_published": {"note": published.NOTE, "why_not": published.LDP_WHY_NOT},
        "accountants": _accountants(found, "secret_bernoulli" if spendings and way.kind == "fixed" else way.kind),
        "encoder": {**provenance, "digest": encoder},
        "assumptions": [_WORDS["encoders"][kind], *_WORDS["assumptions"]],
        "not_covered": _not_covered(settings),
        "notes": _WORDS["notes"],
    }


def hides_classes(way: Participation) -> bool:
    """Whether epsilon covers the class of a training sentence, too."""
    return isinstance(way, HiddenCoins) and way.classes is not None


def _not_covered(settings: LdpSettings) -> list[str]:
    """The class of a sentence first, unless it is hidden; what becomes of an answer last."""
    found = _WORDS["not_covered"][hides_classes(settings.sampling) :]
    hidden = isinstance(settings.questions, HiddenCoins)
    return [*found[:-1], _WORDS["hidden_answer"]] if hidden else list(found)


def _query(settings: LdpSettings, spendings: Spendings) -> dict[str, Any] | None:
    """A question's own participation, noise and epsilon; None where it is sent as a training sentence is."""
    if settings.query is None:
        return None
    own = settings.asked(spendings)
    found = figures_of_questions(own, spendings)
    words = participation_in_words(own.sampling.model_dump())
    return {"sampling": {**own.sampling.model_dump(), "meaning": words}, **found}


def figures_of_questions(own: LdpSettings, spendings: Spendings = ()) -> dict[str, Any]:
    """Noise and epsilons of one question, all its messages together; ``own`` are the settings that ask it."""
    noise, why = own.noise(), _WORDS["too_little_noise"]
    found = _figures(own, noise, spendings, Published(), (why, _WORDS["not_published_finite"]))
    return {"noise_multiplier": noise, **found.values, "reasons": found.reasons}


def _accountants(found: Figures, main: str) -> dict[str, Any]:
    """Who computed ``epsilon_sound``, and between which bounds the second accountant holds it."""
    bounds, stated = found.second.get("epsilon_sound"), found.values["epsilon_sound"] is not None
    return {
        "main": _WORDS["main"][main],
        "second": None if bounds is None else WORDS["second_accountant"],
        "bounds": None if bounds is None else [bounds["lower"], bounds["upper"]],
        "alone": ["epsilon_sound"] if bounds is None and stated else [],
    }


def server_sees(way: Participation, pairs: bool) -> list[str]:
    """Everything that reaches the server, noisy vectors first."""
    vectors = "two noisy vectors" if pairs else "a noisy vector, or one of each token place,"
    return [
        f"{vectors} in each message, of a length that is the same for all",
        _WORDS["seen"]["drawn_class" if hides_classes(way) else "class"],
        "a random number for each sentence (its slot), the same in all its messages",
        _WORDS["seen"][way.kind],
    ]


def participation_in_words(participation: dict[str, Any]) -> str:
    """How often a sentence is sent, and what of that can be seen."""
    return str(_WORDS["sampling"][participation["kind"]].format(**participation))


def plan_messages(settings: LdpSettings, paper: Published | None = None) -> dict[str, Any]:
    """Figures of the messages of ``settings``, each null with a reason, as JSON.

    ``GuaranteeError`` where no noise reaches the target or the two accountants disagree.
    """
    paper, way, words = paper or Published(), settings.sampling, _WORDS["plan"]
    if paper.true_share is not None and isinstance(way, FixedSends):
        raise ConfigurationError("a true share needs the rate of its queries")
    noise = settings.noise() if paper.epsilon is None else paper.noise(settings)
    found = _figures(settings, noise, (), paper, (words["not_finite"], words["not_finite"]))
    mu = sensitivity(settings.vectors) / noise
    total = mu * way.sends**0.5 if isinstance(way, FixedSends) else None
    found.put("mu_total", total, None, words["no_mu"])
    source = "found for the target" if settings.noise_multiplier is None else "as given"
    if paper.epsilon is not None:
        source = f"as published for epsilon {format_upper(paper.epsilon)}"
    hidden, notes = hides_classes(way), []
    other = "any" if hidden else "the same"
    if settings.delta > LARGE_DELTA:
        notes.append(words["large_delta"].format(delta=settings.delta))
    if isinstance(way, FixedSends) and way.sends > 1:
        notes.append(words["several_sends"].format(sends=way.sends))
    inference = {} if paper.true_share is None else {"inference": _inference(settings, paper, noise)}
    return {
        "trainer": "ldp",
        "unit": f"one {'pair of sentences' if settings.pairs else 'sentence'}{', with its class' * hidden}",
        "relation": "substitution",
        "relation_meaning": f"any other sentence in the same slot, with {other} class",
        "delta": settings.delta,
        "noise_multiplier": noise,
        "noise_source": source,
        "noise_calibrated": settings.noise_multiplier is None,
        "sampling": way.model_dump(),
        "query": _query(settings, ()),
        "vectors": settings.vectors,
        "sensitivity": sensitivity(settings.vectors),
        "mu": mu,
        **found.values,
        "second": found.second,
        "as_published": _formula(way, paper),
        "compared": _compared(settings, noise),
        "conditions": [*words["conditions"][hidden:], words["conditions_of"][way.kind]],
        "notes": notes,
        "reasons": found.reasons,
        **inference,
    }


def _compared(settings: LdpSettings, noise: float) -> list[dict[str, Any]]:
    """Epsilon of the same noise with other ways to take part; null over 4096."""
    ways: list[tuple[str, Participation]] = [("one send", FixedSends())]
    way = settings.sampling
    if not isinstance(way, FixedSends):
        often = max(1, round(way.rate * way.steps))
        ways += [
            (f"as many sends as expected: {often}", FixedSends(sends=often)),
            ("visible coins", VisibleCoins(kind="public_bernoulli", rate=way.rate, steps=way.steps)),
            ("coins hidden by noise alone", HiddenCoins(kind="secret_bernoulli", rate=way.rate, steps=way.steps)),
        ]
        if hides_classes(way):
            ways.append(("the same, with the class", way))
    elif way.sends > 1:
        ways.append((f"{way.sends} sends", way))
    return [
        {"sampling": words, "epsilon": epsilon_sound(noise, settings.vectors, way, settings.delta)}
        for words, way in ways
    ]


def _inference(settings: LdpSettings, paper: Published, noise: float) -> dict[str, Any]:
    """Up-sampling with fictitious sentences: what equation 9 claims, and what a query's messages cost."""
    way = settings.sampling
    assert not isinstance(way, FixedSends)
    one, _, seen, hidden = (row["epsilon"] for row in _compared(settings, noise)[:4])
    sampled = paper.sampled(way)
    return {
        "note": published.NOTE,
        "true_share": paper.true_share,
        "rate": way.rate,
        "rate_as_published": sampled and sampled[0],
        "steps": way.steps,
        "expected_sends": way.rate * way.steps,
        "epsilon_claimed": paper.figure(settings, noise),
        "epsilon_visible": seen,
        "epsilon_hidden": hidden,
        "epsilon_one_send": one,
        "worth": "fictitious sentences do not change the sound epsilons: they are equal for every share",
    }


def _formula(way: Participation, paper: Published) -> dict[str, Any]:
    sampled = paper.sampled(way)
    formula = "section 4.1: √J·C/σ"
    if sampled is not None:
        formula = "equation 8" if paper.true_share is None else "equation 9"
    wrong = {
        "sensitivity": True,
        "composition": sampled is not None,
        "sampling": sampled is not None and way.kind != "secret_bernoulli",
        "fictitious": paper.true_share is not None,
    }
    why = {key: words for key, words in published.LDP_WHY_NOT.items() if wrong[key]}
    return {"note": published.NOTE, "formula": formula, "rate": sampled and sampled[0], "why_not": why}
