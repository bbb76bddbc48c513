"""Guarantees of a local service's messages: its plan before the first message, and its card.

Formal guarantees: both state ``compute_message_epsilon`` by the same code and both accountants. The plan's value equals
that of the service's card if the plan's ``conditions`` hold (``docs/guarantees.md``, "Local differential privacy").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.accounting import Spendings, make_event_tree, published_epsilons
from redactory.training.accounting.confirmation import NO_FINITE_EPSILON
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.metrics import Metrics, require_reasons
from redactory.training.ldp.accounting import (
    FixedSends,
    HiddenSampling,
    Participation,
    VisibleSampling,
    compute_message_epsilon,
    compute_sensitivity,
    confirm_message_epsilon,
    count_steps,
    make_message_spendings,
)
from redactory.training.ldp.settings import LdpSettings
from redactory.training.mechanisms.mechanism import Relation

FORMAT = "redactory-ldp-guarantee/1"
MAX_USUAL_DELTA = 1e-4
_WORDS = WORDS["ldp"]


@dataclass(frozen=True)
class PublishedInputs:
    """Inputs of the paper's epsilon beyond the settings.

    ``epsilon`` is the target for which its Algorithm 2 or 3 chooses the noise. ``rate`` is the p of equation 8 if it
    differs from the participation's, with its own ``steps`` T. ``true_share`` q means that a share 1 − q of the queries
    is fictitious (equation 9).
    """

    epsilon: float | None = None
    rate: float | None = None
    steps: int | None = None
    true_share: float | None = None

    def __post_init__(self) -> None:
        rates = [rate for rate in (self.rate, self.true_share) if rate is not None]
        if not all(0.0 < rate <= 1.0 for rate in rates) or (self.epsilon is not None and self.epsilon <= 0.0):
            raise ConfigurationError("a published rate or share is in (0, 1], a published epsilon above 0")

    def resolve_rate_and_steps(self, sampling: Participation) -> tuple[float, int] | None:
        """Return the p of equation 8, or q·p_query of equation 9, and T; None without sampling."""
        rate = self.rate if self.rate is not None else getattr(sampling, "rate", None)
        steps = self.steps or getattr(sampling, "steps", None)
        if rate is None:
            return None
        if steps is None:
            raise ConfigurationError("give a rate and the number of steps together")
        return rate * (self.true_share or 1.0), int(steps)

    def compute_noise(self, settings: LdpSettings) -> float:
        """z, as the paper chooses it for its epsilon."""
        assert self.epsilon is not None
        way, sampling = settings.sampling, self.resolve_rate_and_steps(settings.sampling)
        if sampling is None:
            assert isinstance(way, FixedSends)
            mu = published_epsilons.solve_total_mu(self.epsilon, settings.delta)
            return float(way.sends**0.5 * settings.vectors / mu)
        return published_epsilons.compute_published_ldp_noise(self.epsilon, *sampling, settings.delta, settings.vectors)

    def compute_epsilon(self, settings: LdpSettings, noise: float) -> float | None:
        """Return epsilon as the paper computes it at z = ``noise``."""
        way, sampling = settings.sampling, self.resolve_rate_and_steps(settings.sampling)
        if sampling is None:
            assert isinstance(way, FixedSends)
            return published_epsilons.compute_published_gaussian_epsilon(
                noise, way.sends, settings.delta, settings.vectors
            )
        return published_epsilons.compute_published_ldp_epsilon(noise, *sampling, settings.delta, settings.vectors)


_NOT_FINITE = (_WORDS["too_little_noise"], _WORDS["not_published_finite"])
"""Reasons of a sound and of a published epsilon that are null."""


def _compute_metrics(
    settings: LdpSettings,
    noise: float,
    encoder_costs: Spendings,
    published_inputs: PublishedInputs = PublishedInputs(),
    reasons: tuple[str, str] = _NOT_FINITE,
) -> Metrics:
    metrics, arguments = Metrics(), (noise, settings.vectors, settings.sampling, settings.delta)
    confirmed = confirm_message_epsilon(*arguments, encoder_costs)
    metrics.set_value(
        "epsilon_sound",
        confirmed.value,
        confirmed.bounds,
        reasons[0] if confirmed.reason in (None, NO_FINITE_EPSILON) else confirmed.reason,
    )
    metrics.set_value("epsilon_as_published", published_inputs.compute_epsilon(settings, noise), None, reasons[1])
    return metrics


def make_service_card(
    name: str, settings: LdpSettings, *, provenance: Mapping[str, Any], encoder: str, spendings: Spendings = ()
) -> dict[str, Any]:
    """Make the card of service ``name`` as JSON, from constants alone; every null has its reason.

    ``provenance`` describes the encoder's origin (``kind`` public, declared public or dpsgd), ``encoder`` is its
    digest, ``spendings`` what its training spent on a sentence, () if public. Raises ``GuaranteeError`` for an encoder
    of another kind, for one trained by DP-SGD without its spendings, or if two accountants disagree
    (``docs/guarantees.md``, "Local differential privacy").
    """
    kind, way, noise = str(provenance.get("kind")), settings.sampling, settings.resolve_noise(spendings)
    if kind not in _WORDS["encoders"] or (kind == "dpsgd") != bool(spendings):
        raise GuaranteeError("encoder: only a public one, or one with a recorded DP-SGD epsilon, has a guarantee")
    metrics = _compute_metrics(settings, noise, spendings)
    metrics.set_value("epsilon", metrics.values["epsilon_sound"], None, metrics.reasons.get("epsilon_sound", ""))
    require_reasons(metrics.values, metrics.reasons)
    classes, seeded = "hidden" if is_class_hidden(way) else "clear", settings.seed is not None
    unit = _WORDS["units"][classes][str(settings.vectors)]
    spent, moved = make_message_spendings(noise, settings.vectors, way), compute_sensitivity(settings.vectors)
    mean = way.rate if isinstance(way, VisibleSampling) else 1.0
    return {
        "format": FORMAT,
        "service": name,
        "trainer": "ldp",
        "holds": not seeded,
        "holds_reason": _WORDS["seeded"] if seeded else None,
        "seeded": seeded,
        "unit": unit,
        "relation": Relation.SUBSTITUTION.value,
        "relation_meaning": _WORDS["meaning"][classes].format(unit=unit),
        "server_sees": list_server_observations(way, settings.pairs),
        "sampling": {**way.model_dump(), "meaning": describe_participation(way.model_dump())},
        "clip_norm": settings.clip_norm,
        "noise_multiplier": noise,
        "noise": "lattice",
        "sensitivity": moved * settings.clip_norm,
        "sensitivity_in_words": "2C" if settings.vectors == 1 else "2·√2·C",
        "mu": moved / noise,
        "messages": {"most": count_steps(way), "mean": mean * count_steps(way)},
        "query": _describe_query(settings, spendings),
        "event": None if spent is None else make_event_tree((*spendings, *spent)),
        "delta": settings.delta,
        **metrics.values,
        "reasons": metrics.reasons,
        "as_published": {"note": published_epsilons.PUBLISHED_NOTE, "why_not": published_epsilons.LDP_CAVEATS},
        "accountants": _describe_accountants(
            metrics, "secret_bernoulli" if spendings and way.kind == "fixed" else way.kind
        ),
        "encoder": {**provenance, "digest": encoder},
        "assumptions": [_WORDS["encoders"][kind], *_WORDS["assumptions"]],
        "not_covered": _list_unprotected_facts(settings),
        "notes": _WORDS["notes"],
    }


def is_class_hidden(sampling: Participation) -> bool:
    """Whether epsilon also covers the class of a training sentence."""
    return isinstance(sampling, HiddenSampling) and sampling.classes is not None


def _list_unprotected_facts(settings: LdpSettings) -> list[str]:
    texts = _WORDS["not_covered"][is_class_hidden(settings.sampling) :]
    is_hidden = isinstance(settings.query_participation, HiddenSampling)
    return [*texts[:-1], _WORDS["hidden_answer"]] if is_hidden else list(texts)


def _describe_query(settings: LdpSettings, spendings: Spendings) -> dict[str, Any] | None:
    if settings.query is None:
        return None
    query_settings = settings.make_query_settings(spendings)
    metrics = compute_query_metrics(query_settings, spendings)
    meaning = describe_participation(query_settings.sampling.model_dump())
    return {"sampling": {**query_settings.sampling.model_dump(), "meaning": meaning}, **metrics}


def compute_query_metrics(query_settings: LdpSettings, spendings: Spendings = ()) -> dict[str, Any]:
    """Noise and epsilons of one query, all its messages together."""
    noise = query_settings.resolve_noise()
    metrics = _compute_metrics(query_settings, noise, spendings)
    return {"noise_multiplier": noise, **metrics.values, "reasons": metrics.reasons}


def _describe_accountants(metrics: Metrics, main: str) -> dict[str, Any]:
    bounds, is_stated = metrics.bounds.get("epsilon_sound"), metrics.values["epsilon_sound"] is not None
    return {
        "main": _WORDS["main"][main],
        "second": None if bounds is None else WORDS["second_accountant"],
        "bounds": None if bounds is None else [bounds["lower"], bounds["upper"]],
        "alone": ["epsilon_sound"] if bounds is None and is_stated else [],
    }


def list_server_observations(sampling: Participation, pairs: bool) -> list[str]:
    """Everything that reaches the server, noisy vectors first."""
    vectors = "two noisy vectors" if pairs else "a noisy vector, or one of each token place,"
    return [
        f"{vectors} in each message, of a length that is the same for all",
        _WORDS["seen"]["drawn_class" if is_class_hidden(sampling) else "class"],
        "a random number for each sentence (its slot), the same in all its messages",
        _WORDS["seen"][sampling.kind],
    ]


def describe_participation(participation: dict[str, Any]) -> str:
    """How often a sentence is sent, and what the server can see of that."""
    return str(_WORDS["sampling"][participation["kind"]].format(**participation))


def plan_message_guarantee(settings: LdpSettings, published_inputs: PublishedInputs | None = None) -> dict[str, Any]:
    """Return the metrics of the messages of ``settings`` as JSON, each null with a reason.

    ``GuaranteeError`` if no noise reaches the target or the two accountants disagree.
    """
    published_inputs, way, texts = published_inputs or PublishedInputs(), settings.sampling, _WORDS["plan"]
    if published_inputs.true_share is not None and isinstance(way, FixedSends):
        raise ConfigurationError("a true share needs the rate of its queries")
    noise = settings.resolve_noise() if published_inputs.epsilon is None else published_inputs.compute_noise(settings)
    metrics = _compute_metrics(settings, noise, (), published_inputs, (texts["not_finite"], texts["not_finite"]))
    mu = compute_sensitivity(settings.vectors) / noise
    total_mu = mu * way.sends**0.5 if isinstance(way, FixedSends) else None
    metrics.set_value("mu_total", total_mu, None, texts["no_mu"])
    source = "found for the target" if settings.noise_multiplier is None else "as given"
    if published_inputs.epsilon is not None:
        source = f"as published for epsilon {format_upper(published_inputs.epsilon)}"
    hidden, notes = is_class_hidden(way), []
    other = "any" if hidden else "the same"
    if settings.delta > MAX_USUAL_DELTA:
        notes.append(texts["large_delta"].format(delta=settings.delta))
    if isinstance(way, FixedSends) and way.sends > 1:
        notes.append(texts["several_sends"].format(sends=way.sends))
    described = {
        "trainer": "ldp",
        "unit": f"one {'pair of sentences' if settings.pairs else 'sentence'}{', with its class' * hidden}",
        "relation": "substitution",
        "relation_meaning": f"any other sentence in the same slot, with {other} class",
        "delta": settings.delta,
        "noise_multiplier": noise,
        "noise_source": source,
        "noise_calibrated": settings.noise_multiplier is None,
        "sampling": way.model_dump(),
        "query": _describe_query(settings, ()),
        "vectors": settings.vectors,
        "sensitivity": compute_sensitivity(settings.vectors),
        "mu": mu,
        **metrics.values,
        "second": metrics.bounds,
        "as_published": _describe_published_formula(way, published_inputs),
        "compared": _compare_participations(settings, noise),
        "conditions": [*texts["conditions"][hidden:], texts["conditions_of"][way.kind]],
        "notes": notes,
        "reasons": metrics.reasons,
    }
    if published_inputs.true_share is not None:
        described["inference"] = _describe_query_upsampling(settings, published_inputs, noise)
    return described


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
        if is_class_hidden(way):
            ways.append(("the same, with the class", way))
    elif way.sends > 1:
        ways.append((f"{way.sends} sends", way))
    return [
        {"sampling": words, "epsilon": compute_message_epsilon(noise, settings.vectors, way, settings.delta)}
        for words, way in ways
    ]


def _describe_query_upsampling(
    settings: LdpSettings, published_inputs: PublishedInputs, noise: float
) -> dict[str, Any]:
    """Compare equation 9's claim for up-sampling with fictitious sentences with the cost of a query's messages."""
    way = settings.sampling
    assert not isinstance(way, FixedSends)
    single_epsilon, _, visible_epsilon, hidden = (
        row["epsilon"] for row in _compare_participations(settings, noise)[:4]
    )
    sampling = published_inputs.resolve_rate_and_steps(way)
    return {
        "note": published_epsilons.PUBLISHED_NOTE,
        "true_share": published_inputs.true_share,
        "rate": way.rate,
        "rate_as_published": sampling and sampling[0],
        "steps": way.steps,
        "expected_sends": way.rate * way.steps,
        "epsilon_claimed": published_inputs.compute_epsilon(settings, noise),
        "epsilon_visible": visible_epsilon,
        "epsilon_hidden": hidden,
        "epsilon_one_send": single_epsilon,
        "worth": "fictitious sentences do not change the sound epsilons: they are equal for every share",
    }


def _describe_published_formula(sampling: Participation, published_inputs: PublishedInputs) -> dict[str, Any]:
    sampled = published_inputs.resolve_rate_and_steps(sampling)
    formula = "section 4.1: √J·C/σ"
    if sampled is not None:
        formula = "equation 8" if published_inputs.true_share is None else "equation 9"
    is_wrong = {
        "sensitivity": True,
        "composition": sampled is not None,
        "sampling": sampled is not None and sampling.kind != "secret_bernoulli",
        "fictitious": published_inputs.true_share is not None,
    }
    caveats = {key: words for key, words in published_epsilons.LDP_CAVEATS.items() if is_wrong[key]}
    return {
        "note": published_epsilons.PUBLISHED_NOTE,
        "formula": formula,
        "rate": sampled and sampled[0],
        "why_not": caveats,
    }
