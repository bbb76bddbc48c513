"""The guarantee card as a page for people: the model card of a trained model, from ``card.md.j2``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, Template

from redactory.foundation.errors import some, upwards
from redactory.redaction.mask import MASK
from redactory.training.guarantee.card import FORMAT_OF_UNITS
from redactory.training.model import library_of, opened_with

_TITLES = {
    "epsilon": "One named secret that the strict policy missed",
    "epsilon_confidentiality": "Every secret of the corpus",
    "epsilon_bayesian": "Secrets that at least one policy catches",
    "coverage_failure": "Share of secrets without any guarantee, at most",
    "epsilon_substitution": "One private point exchanged for another",
    "epsilon_add_remove": "For information: one point there or not",
}
_TITLES_OF_UNITS = {
    "epsilon_sound": "The unit above",
    "epsilon_user_removal": "The same, where the user's points vanish",
    "epsilon_as_published": "As published, not a guarantee",
}


def guarantee_page(card: dict[str, Any]) -> str:
    """``card`` (of ``guarantee_card``) in Markdown with YAML front matter, free of corpus text."""
    units = card["format"] == FORMAT_OF_UNITS
    page = _template().render(
        c=card,
        units=units,
        titles=_TITLES_OF_UNITS if units else _TITLES,
        library=library_of(card["kind"]),
        opened_with=opened_with(card["kind"]),
        bounds=[] if units else list(_bounds(card)),
        event=json.dumps(card.get("event"), sort_keys=True),
    )
    return page.replace(MASK, f"`{MASK}`")


@cache
def _template() -> Template:
    # Markdown, not HTML: nothing is escaped
    environment = Environment(
        loader=PackageLoader("redactory.training.guarantee", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(some=some, upwards=upwards)
    return environment.get_template("card.md.j2")


def _bounds(card: dict[str, Any]) -> Iterator[tuple[str, float | None, float, float | None]]:
    """Each figure between the second accountant's bounds."""
    bounds = dict(card["accountants"]["bounds"]) if card["accountants"] else {}
    groups = bounds.pop("epsilon_group", {})
    for name, two in bounds.items():
        if card[name] is not None:
            yield name, two["lower"], card[name], two["upper"]
    for size, two in groups.items():
        yield f"epsilon_group, {size}", two["lower"], card["epsilon_group"][size], two["upper"]
