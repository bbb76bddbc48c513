"""What the terminal shows of a guarantee under a user or entity relation."""

from __future__ import annotations

from typing import Any

from redactory.flows.output import out
from redactory.foundation.wording import upwards

_PUBLISHED = "epsilon_as_published"


def unit_figures(card: dict[str, Any]) -> None:
    """Each figure with its value, or the reason why there is none; then the curve over K."""
    for name in ("epsilon_sound", "epsilon_user_removal", _PUBLISHED):
        if name not in card:
            continue
        value = card[name]
        if isinstance(value, dict):
            value = value.get("epsilon")
        said = "as published, not a guarantee" if name == _PUBLISHED and value is not None else ""
        shown = "none" if value is None else upwards(value)
        out.print(f"  {name:<24} {shown:>8}  {card['reasons'].get(name, said)}", soft_wrap=True)
    for size, value in (card.get("curve") or {}).items():
        shown = "none" if value is None else upwards(value)
        out.print(f"  {'any units, K = ' + size:<24} {shown:>8}", soft_wrap=True)
    for one in card.get("conditions") or []:
        if isinstance(one, dict) and one.get("holds") is False:
            out.print(f"  condition {one.get('item')} fails: {one.get('why')}", soft_wrap=True)
    if not card["holds"]:
        out.print(f"  does not hold: {card['holds_reason']}", soft_wrap=True)
    out.print()
