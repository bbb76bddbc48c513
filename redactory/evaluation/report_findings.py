"""What was measured of a model, and what attacks found, each figure with a sentence for everybody.

The sentences are written for a person who trained no model: what was tried, what came out, what chance
would have given.  A result that lacks a figure gives no finding; nothing here computes a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redactory.evaluation.exposure_intervals import highest_quantile
from redactory.evaluation.report_facts import amount

Result = Mapping[str, Any]
NO_UTILITY = "How good the model is was not measured (redactory evaluate perplexity)."
NO_ATTACK = (
    "No attack on this model was tried (redactory evaluate canary, extraction, membership, audit). That "
    "says nothing of what it gives away."
)
_UNLIKELY = 0.05


@dataclass(frozen=True)
class Finding:
    """A figure, what it is of, and what it means; ``alarming`` where an attack did better than chance."""

    title: str
    figure: str
    sentence: str
    alarming: bool = False


def utility(results: Mapping[str, Result]) -> list[Finding]:
    """How good the model is, from its results by evaluation."""
    found = list(_perplexity(results.get("perplexity", {})))
    error_rate = results.get("accuracy", {}).get("error_rate")
    if error_rate is not None:
        found.append(
            Finding(
                "test errors",
                _percent(error_rate),
                f"Of a hundred texts that it had not seen, it puts about {100 * error_rate:.0f} into the "
                "wrong class.",
            )
        )
    return found


def attacks(results: Mapping[str, Result]) -> list[Finding]:
    """What attacks on the model found, the strongest kind of evidence last."""
    return [
        *_exposure(results.get("canary", {})),
        *_extraction(results.get("extraction", {})),
        *_membership(results.get("membership", {})),
        *_audit(results.get("audit", {})),
    ]


def _perplexity(result: Result) -> Iterator[Finding]:
    forms = (("as_is", "perplexity"), ("masked", "perplexity, masked by π"))
    for form, title in forms:
        value = (result.get(form) or {}).get("perplexity")
        if value is not None:
            text = "text" if form == "as_is" else "text with its secrets masked"
            yield Finding(
                title,
                amount(value),
                f"On {text} that it had not seen, it is as unsure of each next word as somebody who has to "
                f"choose among {amount(value)} equally likely ones. Lower is better; compare models on the "
                "same text only.",
            )


def _exposure(result: Result) -> Iterator[Finding]:
    highest = result.get("highest_exposure")
    if highest is None:
        return
    planted = sum(bool(row.get("inserted")) for row in result.get("canaries", ()))
    chance = (result.get("chance") or {}).get("highest_95")
    if chance is None and planted:
        chance = highest_quantile(planted)
    above = chance is not None and highest > chance
    told = ""
    if chance is not None:
        verdict = "this is more than chance gives" if above else "this is no more than chance gives"
        told = f" In 95 of 100 cases chance alone stays under {amount(chance)} bits: {verdict}."
    candidates = result.get("candidates")
    place = ""
    if candidates:
        rank = max(round(candidates / 2.0**highest), 1)
        place = (
            f" The one that the model gives away most stands at place {rank:,} of {candidates:,} when all "
            "that could stand there are put in the order of likelihood."
        )
    yield Finding(
        "canary exposure, highest",
        f"{amount(highest)} bits",
        f"Invented numbers were planted in the text.{place}{told}",
        above,
    )


def _extraction(result: Result) -> Iterator[Finding]:
    found, sought = result.get("secrets_found"), result.get("secrets")
    if found is None or sought is None:
        return
    control, p_value = result.get("controls_found"), result.get("p_value")
    beside = "" if control is None else f" Of made-up values that were never there, it wrote {control:,}."
    yield Finding(
        "secrets that it wrote by itself",
        f"{found:,} of {sought:,}",
        "The model was left to write, and what it wrote was searched for the secrets of its training text."
        f"{beside}",
        found > (control or 0) if p_value is None else p_value < _UNLIKELY,
    )


def _membership(result: Result) -> Iterator[Finding]:
    kinds = (
        ("individual", "membership, single sentences", "a sentence with a secret"),
        ("group", "membership, groups", "a group of sentences with secrets"),
        ("rmia", "membership, beside a second model", "a sentence, with a second model to compare"),
    )
    for kind, title, what in kinds:
        accuracy = ((result.get(kind) or {}).get("accuracy")) or {}
        if accuracy.get("value") is None:
            continue
        beyond = accuracy["low"] is not None and accuracy["low"] > 0.5
        verdict = "better than a coin" if beyond else "no better than a coin, as far as this can tell"
        yield Finding(
            title,
            _percent(accuracy["value"]),
            f"Shown {what}, an attacker says whether the model was trained on that, and is right in "
            f"{_percent(accuracy['value'])} of the cases ({_percent(accuracy['low'])} to "
            f"{_percent(accuracy['high'])}): {verdict}.",
            beyond,
        )


def _audit(result: Result) -> Iterator[Finding]:
    lower, upper = result.get("epsilon_lower"), result.get("epsilon_upper")
    if lower is None:
        return
    broken = result.get("holds") is False
    promised = "nothing is promised of it" if upper is None else f"promised is {amount(upper)}"
    verdict = (
        " The promise is broken: do not release this model."
        if broken
        else ""
        if upper is None
        else " That does not contradict the promise."
    )
    yield Finding(
        "audit: epsilon is at least",
        amount(lower),
        "Texts were put into the training by the toss of a coin, and the coins guessed from the model. So "
        f"many were right that its epsilon is at least {amount(lower)}; {promised}.{verdict}",
        broken,
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"
