"""Guarantees of a local service's messages: its plan before the first message, and its card.

Formal guarantees: both state ``confirm_message_epsilon`` by the same code and both accountants. The plan's value equals
that of the service's card if the plan's ``conditions`` hold (``docs/guarantees.md``, "Local differential privacy").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, PositiveFloat

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.settings import Settings
from redactory.training.accounting import Spendings, make_event_tree, published_epsilons
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.card import describe_accountants
from redactory.training.guarantee.metrics import Metrics, find_unproved_reason, require_reasons
from redactory.training.ldp.accounting import (
    FixedSends,
    HiddenSampling,
    Participation,
    VisibleSampling,
    compute_sensitivity,
    confirm_message_epsilon,
    make_message_spending,
)
from redactory.training.ldp.settings import LdpSettings
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.settings import Rate

if TYPE_CHECKING:
    from redactory.training.ldp.encoder import SentenceEncoder

FORMAT = "redactory-ldp-guarantee/1"
MAX_USUAL_DELTA = 1e-4
_WORDS = WORDS["ldp"]


class PublishedInputs(Settings):
    """Inputs of the paper's epsilon beyond the settings."""

    epsilon: PositiveFloat | None = Field(
        None, description="The target for which the paper's Algorithm 2 or 3 chooses the noise."
    )
    true_share: Rate | None = Field(None, description="q: a share 1 − q of the queries is fictitious (equation 9).")

    def resolve_rate_and_steps(self, sampling: Participation) -> tuple[float, int] | None:
        """Return the p of equation 8, or q·p_query of equation 9, and T; None without sampling."""
        if isinstance(sampling, FixedSends):
            return None
        return sampling.rate * (self.true_share or 1.0), sampling.steps

    def compute_noise(self, settings: LdpSettings) -> float:
        """z, as the paper chooses it for its epsilon."""
        assert self.epsilon is not None
        sampling, delta, vectors = self.resolve_rate_and_steps(settings.sampling), settings.delta, settings.vectors
        if sampling is None:
            mu = published_epsilons.solve_total_mu(self.epsilon, delta)
            return float(settings.sampling.steps**0.5 * vectors / mu)
        return published_epsilons.compute_published_ldp_noise(self.epsilon, *sampling, delta, vectors)

    def compute_epsilon(self, settings: LdpSettings, noise: float) -> float | None:
        """Return epsilon as the paper computes it at z = ``noise``."""
        sampling, delta, vectors = self.resolve_rate_and_steps(settings.sampling), settings.delta, settings.vectors
        if sampling is None:
            steps = settings.sampling.steps
            return published_epsilons.compute_published_gaussian_epsilon(noise, steps, delta, vectors)
        return published_epsilons.compute_published_ldp_epsilon(noise, *sampling, delta, vectors)


class LdpPlanSettings(LdpSettings):
    """The settings of a service, and the paper's inputs, for a plan of its messages."""

    published: PublishedInputs = Field(PublishedInputs(), description="Inputs of the paper's epsilon.")


_NOTHING_PUBLISHED = PublishedInputs()


def _compute_metrics(
    settings: LdpSettings, noise: float, encoder_costs: Spendings, published: PublishedInputs = _NOTHING_PUBLISHED
) -> Metrics:
    metrics = Metrics()
    confirmed = confirm_message_epsilon(noise, settings.vectors, settings.sampling, settings.delta, encoder_costs)
    metrics.set_confirmed_epsilon("epsilon_sound", confirmed)
    as_published = published.compute_epsilon(settings, noise)
    metrics.set_value("epsilon_as_published", as_published, None, _WORDS["not_published_finite"])
    return metrics


def _describe_messages(
    settings: LdpSettings, noise: float, encoder_costs: Spendings, metrics: Metrics
) -> dict[str, Any]:
    """Describe the privacy unit, the noise and the metrics: what a plan and a card have in common."""
    way, moved = settings.sampling, compute_sensitivity(settings.vectors)
    classes = "hidden" if is_class_hidden(way) else "clear"
    unit = _WORDS["units"][classes][str(settings.vectors)]
    query_settings = settings.make_query_settings(encoder_costs) if settings.query else None
    return {
        "trainer": "ldp",
        "unit": unit,
        "relation": Relation.SUBSTITUTION.value,
        "neighbouring_relation": WORDS["described"][Relation.SUBSTITUTION.value],
        "relation_meaning": _WORDS["meaning"][classes].format(unit=unit),
        "sampling": _describe_participation(way),
        "noise_multiplier": noise,
        "sensitivity": moved * settings.clip_norm,
        "sensitivity_in_words": "2C" if settings.vectors == 1 else "2·√2·C",
        "mu": moved / noise,
        "query": compute_query_metrics(query_settings, encoder_costs) if query_settings else None,
        "delta": settings.delta,
        **metrics.values,
        "reasons": metrics.reasons,
    }


def make_service_card(name: str, settings: LdpSettings, encoder: SentenceEncoder) -> dict[str, Any]:
    """Make the card of service ``name`` as JSON, from constants alone; every null has its reason.

    Raises ``GuaranteeError`` for an encoder of unknown origin, for one trained by DP-SGD without its spendings, or if
    two accountants disagree (``docs/guarantees.md``, "Local differential privacy").
    """
    spendings, kind = encoder.spendings, str(encoder.provenance.get("kind"))
    way, noise = settings.sampling, settings.resolve_noise(spendings)
    if kind not in _WORDS["encoders"] or (kind == "dpsgd") != bool(spendings):
        raise GuaranteeError("encoder: only a public one, or one with a recorded DP-SGD epsilon, has a guarantee")
    metrics = _compute_metrics(settings, noise, spendings)
    metrics.copy_value("epsilon_sound", "epsilon")
    require_reasons(metrics.values, metrics.reasons)
    seeded = settings.seed is not None
    failure_reason = _WORDS["seeded"] if seeded else find_unproved_reason(metrics.reasons)
    spent = make_message_spending(noise, settings.vectors, way)
    vectors = "two noisy vectors" if settings.pairs else "a noisy vector"
    vectors += " for each token place" if settings.represent == "token" else ""
    is_hidden, hides_queries = is_class_hidden(way), isinstance(settings.query_participation, HiddenSampling)
    first, randomness, *others = _WORDS["assumptions"]
    *not_covered, last = _WORDS["not_covered"][is_hidden:]
    return {
        "format": FORMAT,
        "service": name,
        "holds": failure_reason is None,
        "holds_reason": failure_reason,
        "seeded": seeded,
        **_describe_messages(settings, noise, spendings, metrics),
        "classes": list(settings.classes),
        "server_sees": [
            f"{vectors} in each message, of the same length for all",
            _WORDS["seen"]["drawn_class" if is_hidden else "class"],
            "a random number for each sentence (its slot), the same in all its messages",
            _WORDS["seen"][way.kind],
        ],
        "clip_norm": settings.clip_norm,
        "noise": "lattice",
        "messages": {
            "most": way.steps,
            "mean": way.rate * way.steps if isinstance(way, VisibleSampling) else float(way.steps),
        },
        "event": None if isinstance(way, VisibleSampling) else make_event_tree((*spendings, spent)),
        "as_published": {"note": published_epsilons.PUBLISHED_NOTE, "why_not": published_epsilons.LDP_CAVEATS},
        "accountants": describe_accountants(metrics, WORDS["second_accountant"] if metrics.bounds else None),
        "encoder": {**encoder.provenance, "digest": encoder.digest},
        "assumptions": [_WORDS["encoders"][kind], first, *([] if seeded else [randomness]), *others],
        "not_covered": [*not_covered, _WORDS["hidden_answer"] if hides_queries else last],
        "notes": _WORDS["notes"],
    }


def is_class_hidden(sampling: Participation) -> bool:
    """Whether epsilon also covers the class of a training sentence."""
    return isinstance(sampling, HiddenSampling) and sampling.classes is not None


def compute_query_metrics(query_settings: LdpSettings, spendings: Spendings = ()) -> dict[str, Any]:
    """Sampling, noise and epsilons of one query, all its messages together."""
    noise = query_settings.resolve_noise()
    metrics = _compute_metrics(query_settings, noise, spendings)
    sampling = _describe_participation(query_settings.sampling)
    return {"sampling": sampling, "noise_multiplier": noise, **metrics.values, "reasons": metrics.reasons}


def _describe_participation(sampling: Participation) -> dict[str, Any]:
    """Return the settings with their ``meaning``: how often a sentence is sent, and what the server can see of that."""
    settings = sampling.model_dump()
    times = "once" if settings.get("sends") == 1 else f"{settings.get('sends')} times"
    return {**settings, "meaning": _WORDS["sampling"][sampling.kind].format(**settings, times=times)}


def plan_message_guarantee(settings: LdpPlanSettings) -> dict[str, Any]:
    """Return the metrics of the messages of ``settings`` as JSON, each null with a reason.

    ``GuaranteeError`` if no noise reaches the target or the two accountants disagree.
    """
    published, way, texts = settings.published, settings.sampling, _WORDS["plan"]
    if published.true_share is not None and isinstance(way, FixedSends):
        raise ConfigurationError("a true share needs the rate of its queries")
    noise = settings.resolve_noise() if published.epsilon is None else published.compute_noise(settings)
    source = "calibrated to the target epsilon" if settings.noise_multiplier is None else "as set"
    if published.epsilon is not None:
        source = f"as published for epsilon {format_upper(published.epsilon)}"
    # the default noise of queries depends on it
    settings = settings.model_copy(update={"noise_multiplier": noise})
    metrics = _compute_metrics(settings, noise, (), published)
    sends = way.sends if isinstance(way, FixedSends) else None
    total_mu = compute_sensitivity(settings.vectors) / noise * sends**0.5 if sends else None
    metrics.set_value("mu_total", total_mu, None, texts["no_mu"])
    notes = [texts["large_delta"].format(delta=settings.delta)] if settings.delta > MAX_USUAL_DELTA else []
    if sends and sends > 1:
        notes.append(texts["several_sends"].format(sends=sends))
    return {
        **_describe_messages(settings, noise, (), metrics),
        "noise_source": source,
        "second": metrics.bounds,
        "as_published": _describe_published_formula(way, published),
        "compared": _compare_participations(settings, noise),
        "conditions": [*texts["conditions"][is_class_hidden(way) :], texts["conditions_of"][way.kind]],
        "notes": notes,
    }


def _compare_participations(settings: LdpSettings, noise: float) -> list[dict[str, Any]]:
    ways: list[tuple[str, Participation]] = [("one send", FixedSends())]
    way = settings.sampling
    if not isinstance(way, FixedSends):
        often = max(1, round(way.rate * way.steps))
        ways += [
            (f"as many sends as expected: {often}", FixedSends(sends=often)),
            ("visible coins", VisibleSampling(kind="public_bernoulli", rate=way.rate, steps=way.steps)),
            ("coins hidden by noise alone", HiddenSampling(kind="secret_bernoulli", rate=way.rate, steps=way.steps)),
        ]
    if all(other != way for _, other in ways):
        ways.append(("as planned", way))
    return [
        {"sampling": words, "epsilon": confirm_message_epsilon(noise, settings.vectors, way, settings.delta).value}
        for words, way in ways
    ]


def _describe_published_formula(sampling: Participation, published: PublishedInputs) -> dict[str, Any]:
    sampled = published.resolve_rate_and_steps(sampling)
    formula, wrong = "section 4.1: √J·C/σ", ["sensitivity"]
    if sampled is not None:
        formula = "equation 8" if published.true_share is None else "equation 9"
        wrong += ["composition"] if isinstance(sampling, HiddenSampling) else ["composition", "sampling"]
        wrong += ["fictitious"] if published.true_share is not None else []
    caveats = {key: published_epsilons.LDP_CAVEATS[key] for key in wrong}
    note = published_epsilons.PUBLISHED_NOTE
    return {"note": note, "formula": formula, "rate": sampled and sampled[0], "why_not": caveats}
