"""The card under a user or entity relation as a page for people: the model card of a trained model."""

from __future__ import annotations

from typing import Any

from redactory.foundation.wording import some, upwards
from redactory.training.card_opening import computed_once, front_matter, verdict
from redactory.training.opened_with import opened_with

_TITLES = {
    "epsilon_sound": "The unit above (epsilon_sound)",
    "epsilon_user_removal": "The same, where the user's points vanish (epsilon_user_removal)",
    "epsilon_as_published": "As published, not a guarantee (epsilon_as_published)",
}
_PIPELINES = {"next-word": "text-generation", "classify": "text-classification"}
_MODELS = {"next-word": "A language model", "classify": "A text classifier"}


def units_page(card: dict[str, Any]) -> str:
    """``card`` (of ``units_card``) in Markdown with YAML front matter, free of corpus text."""
    sections = [front_matter(card, _PIPELINES[card["task"]], "user-entity-privacy")]
    sections += [_opening(card), _figures(card), _curve(card), _how(card)]
    sections += [_conditions(card), _listed("What this rests on", card["assumptions"])]
    sections.append(_listed("What is not covered", card["not_covered"]))
    return "\n\n".join(section for section in sections if section) + "\n"


def _opening(card: dict[str, Any]) -> str:
    return (
        f"# {card['model']}\n\n{_MODELS[card['task']]} (`{card['kind']}`), "
        f"trained with `{card['trainer']}`.\n\n"
        f"{opened_with(card['kind'])}\n\n"
        f"## The guarantee\n\n{verdict(card)}\n\nProtected unit: {card['unit']}.\n\n"
        f"Relation: **{card['relation']}**. {card['relation_meaning']}"
    )


def _figures(card: dict[str, Any]) -> str:
    lines = [f"| what (delta = {card['delta']:g}) | figure |", "|---|---|"]
    for name, title in _TITLES.items():
        value = card[name]
        if isinstance(value, dict):
            value = value["epsilon"]
        shown = f"none: {card['reasons'][name]}" if value is None else upwards(value)
        lines.append(f"| {title} | {shown} |")
    return "\n".join(lines)


def _curve(card: dict[str, Any]) -> str:
    """C0: what a unit of any size costs."""
    curve = card["curve"]
    if not curve or card["sampling_rate"] is None:
        return ""
    said = card.get("adjacency_curve") or card["curve_meaning"]
    lines = [f"## Units of other sizes\n\n{said[:1].upper()}{said[1:]}.\n", "| size | epsilon |", "|---|---|"]
    lines += [f"| {size} | {'none' if value is None else upwards(value)} |" for size, value in curve.items()]
    return "\n".join(lines)


def _how(card: dict[str, Any]) -> str:
    if card["sampling_rate"] is None:
        return ""
    bounds = (card["accountants"]["bounds"] or {}).get("epsilon_sound")
    second = "" if bounds is None else f" Its bounds: {bounds['lower']} and {bounds['upper']}."
    size = "M" if card.get("M") is not None else "K"
    size = f"; {size} = {card[size]}" if card[size] is not None else ""
    return (
        "## How it was computed\n\n"
        f"- {card['steps']} noisy steps, each on a {card['sampler_run']} sample at rate "
        f"{card['sampling_rate']:g}, accounted as {card['sampler_accounted']}{size}.\n"
        f"- Each contribution clipped to {card['clip_norm']:g}; noise ({card['noise']}) "
        f"{card['noise_multiplier']:g} times the clipping norm; the sum divided by the constant "
        f"{card['normaliser']:g}.\n"
        f"- Computed on {card.get('device', 'cpu')}.\n"
        f"- Main accountant: {card['accountants']['main']}.\n"
        f"- Second accountant: {card['accountants']['second']}.{second}\n{computed_once(card)}"
        f"- Ledger of {some(card['ledger']['steps'], 'step')}, sha256 `{card['ledger']['head']}`; "
        f"curated run `{card['ledger']['parent']}`."
    )


def _conditions(card: dict[str, Any]) -> str:
    if not card["conditions"]:
        return ""
    rows = [
        f"| {one['item']} | {'holds' if one['holds'] else '**fails**'} | {one['why']} |"
        for one in card["conditions"]
    ]
    return "## Conditions\n\n| | | how |\n|---|---|---|\n" + "\n".join(rows)


def _listed(title: str, items: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {item}" for item in items) if items else ""
