"""A card under a user or entity relation in words that need no mathematics first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
