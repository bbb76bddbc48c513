"""How the page of every card begins: its front matter, and whether anything holds."""

from __future__ import annotations

from typing import Any

from redactory.training.opened_with import library_of


def front_matter(card: dict[str, Any], pipeline: str, about: str) -> str:
    """YAML for the Hub; ``pipeline`` is the Hub's name of the task, ``about`` a tag."""
    return (
        f"---\nlibrary_name: {library_of(card['kind'])}\npipeline_tag: {pipeline}\n"
        f"tags:\n- {card['trainer']}\n- {card['kind']}\n- {about}\n---"
    )


def verdict(card: dict[str, Any]) -> str:
    """One sentence."""
    if card["holds"]:
        return "The guarantee below holds under the assumptions that are listed."
    return f"**No guarantee holds for this model.** Reason: {card['holds_reason']}."


def computed_once(card: dict[str, Any]) -> str:
    """A line that names the figures which no second accountant computed."""
    alone = card["accountants"].get("alone")
    return f"- Computed by the main accountant alone: {', '.join(alone)}.\n" if alone else ""
