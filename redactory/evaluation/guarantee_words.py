"""A card under a user or entity relation in words that need no mathematics first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redactory.foundation.errors import upwards

_WORLDS = {
    "users": "Take one user, with all that she wrote.",
    "entities": "Take one entity, with every point in which it is listed.",
    "both": "Take one user with all that she wrote, and at the same time one entity with every point in "
    "which it is listed.",
    "either": "Take one user with all that she wrote, or one entity with every point in which it is listed.",
}
_COMPARED = (
    "Compare this model with the one that the same training would have given had those points said nothing "
    "at all, all else being equal."
)


def is_of_units(card: Mapping[str, Any]) -> bool:
    """Whether ``card`` is one of a trainer that hides users or entities, or of their baselines."""
    return "epsilon_sound" in card


def unit_world(card: Mapping[str, Any]) -> str:
    """Which two worlds the card compares, for a card with a figure."""
    return f"{_WORLDS[card['protect']]} {_COMPARED}"


def unit_rows(card: Mapping[str, Any]) -> list[tuple[str, str, float | None, str]]:
    """(title, key of the reason, figure, words before it) of each figure."""
    published = card.get("epsilon_as_published")
    if isinstance(published, Mapping):
        published = published.get("epsilon")
    rows = [(f"{card['unit']}: {card['relation']}", "epsilon_sound", card["epsilon_sound"], "ε = ")]
    if card.get("epsilon_user_removal") is not None:
        name = card["adjacency_user_removal"]
        rows.append((name, "epsilon_user_removal", card["epsilon_user_removal"], "ε = "))
    rows += [
        (_size(card, size), "curve", value, "ε = ")
        for size, value in (card.get("curve") or {}).items()
        if value is not None
    ]
    if published is not None:
        rows.append(("as published, not a guarantee", "epsilon_as_published", published, "ε = "))
    return rows


def _size(card: Mapping[str, Any], size: str) -> str:
    """What a place of the curve stands for: points (``uedp-bounded``), users at once, users of an entity."""
    if card["trainer"] == "uedp-bounded":
        return f"units of at most {size} points"
    if card["protect"] == "users":
        return f"{size} users at once"
    return f"an entity in the points of at most {size} users"


# A guarantee card in words that need no mathematics first, and its figures under names people can read.


_LARGEST_ODDS = 1000.0
_LARGEST_EXPONENT = 50.0

_WORLDS_guarantee_words = {
    "crt": (
        "Take one secret in one sentence that went to the private side. Compare this model with the one that "
        "the same training would have given had that secret been blotted out beforehand."
    ),
    "dpsgd": (
        "Take one sentence that went to the private side. Compare this model with the one that the same "
        "training would have given with any other private sentence in its place."
    ),
}
_WORLDS_guarantee_words["crt-drop"] = _WORLDS_guarantee_words["crt"]
_TITLES = {
    "epsilon_substitution": "one private sentence, whatever secret it holds",
    "epsilon_bayesian": "a secret that at least one policy catches, nobody knows which",
    "epsilon_confidentiality": "every secret alike, also those that both policies miss",
}


@dataclass(frozen=True)
class Figure:
    """A number of the card as it is shown, or, where ``stated`` is false, why there is none."""

    title: str
    text: str
    stated: bool


def figures(card: Mapping[str, Any]) -> list[Figure]:
    """The card's figures, each with its meaning."""
    if is_of_units(card):
        return [
            Figure(title, _none(card, key) if value is None else before + _number(value), value is not None)
            for title, key, value, before in unit_rows(card)
        ]
    shown = [_figure(card, key, title, f"ε = {_number(card[key])}") for key, title in _TITLES.items()]
    groups = card["epsilon_group"]
    sizes, values = ", ".join(groups), ", ".join(_number(value) for value in groups.values())
    if groups:
        stated = any(value is not None for value in groups.values())
        text = f"ε = {values}" if stated else _none(card, "epsilon_group")
        shown.append(Figure(f"{sizes} private sentences at once", text, stated))
    failure = card["coverage_failure"]
    share = "" if failure is None else f"at most {_percent(failure)}"
    return [*shown, _figure(card, "coverage_failure", "share of secrets with no guarantee at all", share)]


def promises(card: Mapping[str, Any]) -> list[str]:
    """What the card promises, a few sentences each; empty where it promises nothing."""
    named = named_epsilon(card)
    if named is None:
        return []
    certainty = f", except with a probability of 1 in {round(1 / card['delta']):,}."
    world = unit_world(card) if is_of_units(card) else _WORLDS_guarantee_words[card["trainer"]]
    sentences = [
        f"{world} Whoever holds the model, and even knows every other word of the corpus, "
        f"can with its help {_odds(named)}{certainty}"
    ]
    if card["trainer"] not in ("crt", "crt-drop"):
        return sentences
    if card["epsilon_bayesian"] is not None and card["miss_rates"]["gamma_upper"] < 1:
        sentences.append(
            "Detection catches most secrets, and what is caught never reaches the model from that place. So "
            "an adversary who does not know which of this corpus's secrets was masked can, of a secret that "
            f"at least one of the two policies catches, {_odds(card['epsilon_bayesian'])}{certainty}"
        )
    sentences.append(_coverage(card["coverage_failure"], card["miss_rates"].get("measured")))
    return [*sentences, *_resting_on_labels(card["miss_rates"].get("measured"))]


def named_epsilon(card: Mapping[str, Any]) -> float | None:
    """The figure for one named secret; what an earlier version called ``epsilon_substitution`` only."""
    value: float | None = card["epsilon"] if "epsilon" in card else card["epsilon_substitution"]
    return value


def warning(card: Mapping[str, Any]) -> str:
    """Why no promise holds for this model; empty where it does."""
    return "" if card["holds"] else f"No guarantee holds for this model: {card['holds_reason']}."


def nothing_promised(card: Mapping[str, Any]) -> str:
    """What is said of a model without a promise."""
    named = "epsilon_sound" if is_of_units(card) else "epsilon_substitution"
    reason = card["reasons"].get(named, card["holds_reason"])
    return f"Nothing is promised about this model: {reason}. Treat it as you would treat the text itself."


def _resting_on_labels(measured: Mapping[str, Any] | None) -> Iterator[str]:
    """How sure the bounds on what is missed are, where they come from labels."""
    if measured:
        date = measured.get("date") or (measured.get("sample") or {}).get("date")
        each, both = measured["confidence"], max(0.0, 2 * measured["confidence"] - 1)
        yield (
            f"What detection misses was bounded from labelled secrets{f', on {date}' if date else ''}: each "
            f"of its two bounds holds with {_percent(each)} confidence, both together with {_percent(both)}, "
            "and what is said above of most secrets, or of missed ones, holds where they do. That no policy "
            "was tuned on these labels is the word of whoever gave them."
        )


def _coverage(failure: float | None, measured: Mapping[str, Any] | None) -> str:
    if failure is None:
        return (
            "How many secrets both policies miss has not been measured on this corpus. For a missed secret "
            "that stands in a public point there is no promise at all."
        )
    if failure == 0 and measured and measured.get("sample"):
        return (
            "People have labelled every public text of this corpus and found no secret in any: as far as "
            "their labels go, none stands in a public point."
        )
    if failure == 0:
        return "No secret can stand in a public point, for there are none: every point is private."
    return (
        f"Up to {_percent(failure)} of all secrets may have been missed by both policies. Such a secret "
        "stands in the open in a public point, and for it there is no promise at all."
    )


def _figure(card: Mapping[str, Any], key: str, title: str, text: str) -> Figure:
    stated = card[key] is not None
    return Figure(title, text if stated else _none(card, key), stated)


def _none(card: Mapping[str, Any], key: str) -> str:
    return f"no figure: {card['reasons'][key]}"


def _odds(epsilon: float) -> str:
    if epsilon == 0:
        return "learn nothing about it"
    times = math.exp(min(epsilon, _LARGEST_EXPONENT))
    if times > _LARGEST_ODDS:
        return (
            "raise the odds of a guess about it by a factor that is bounded "
            f"(e to the power {upwards(epsilon, 3)}), but too large to reassure anybody by itself"
        )
    number = upwards(times, 3)
    return f"raise the odds of any guess about it at most {number}-fold"


def _number(value: float | None) -> str:
    return "none" if value is None else upwards(value, 3)


def _percent(part: float) -> str:
    return f"{100 * part:.2g}%"
