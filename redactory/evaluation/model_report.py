"""A model in words that need no mathematics first: what its guarantee promises, what was measured of it.

The sentences stand in ``words.j2``, the pages in the other templates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redactory.evaluation.canary import highest_quantile
from redactory.foundation.errors import some, upwards
from redactory.foundation.files import read_json
from redactory.redaction.folder import ModelFolder
from redactory.redaction.sealing import result_of

if TYPE_CHECKING:
    from jinja2 import Environment, Template

EVALUATIONS = ("perplexity", "accuracy", "canary", "extraction", "membership", "audit")
_LARGEST_IN_FULL = 1e6
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


@dataclass(frozen=True)
class Finding:
    """A figure, what it is of, and what it means; ``alarming`` where an attack did better than chance."""

    title: str
    figure: str
    sentence: str
    alarming: bool = False


@dataclass(frozen=True)
class ModelReport:
    """One finished model: its guarantee card, its results by evaluation, and both in words."""

    name: str
    card: Mapping[str, Any]
    results: Mapping[str, Mapping[str, Any]]
    epsilon: float | None
    promises: list[str]
    figures: list[Figure]
    utility: list[Finding]
    attacks: list[Finding]


def model_report(folder: ModelFolder) -> ModelReport:
    """One finished model, with every evaluation of it that there is."""
    card = read_json(folder.guarantee)
    results = {evaluation: result_of(folder, evaluation) or {} for evaluation in EVALUATIONS}
    told = (said(part, results) for part in ("utility", "attacks"))
    return ModelReport(
        folder.root.name, card, results, _named_epsilon(card), promises(card), figures(card), *told
    )


def said(part: str, *facts: Any) -> list[Finding]:
    """What the macro ``part`` of ``words.j2`` says of ``facts``."""
    found: list[Finding] = []

    def say(title: str = "", figure: str = "", alarming: bool = False, *, caller: Callable[[], str]) -> str:
        found.append(Finding(title, figure, " ".join(caller().split()), alarming))
        return ""

    getattr(template("words.j2").make_module({"say": say}), part)(*facts)
    return found


def promises(card: Mapping[str, Any]) -> list[str]:
    """What the card promises, a few sentences each; empty where it promises nothing."""
    epsilon = _named_epsilon(card)
    return [] if epsilon is None else [one.sentence for one in said("promises", card, epsilon)]


def _named_epsilon(card: Mapping[str, Any]) -> float | None:
    """The figure for one named secret; what an earlier version called ``epsilon_substitution`` only."""
    value: float | None = card["epsilon"] if "epsilon" in card else card["epsilon_substitution"]
    return value


def figures(card: Mapping[str, Any]) -> list[Figure]:
    """The card's figures, each with its meaning."""
    rows = _figures_of_units(card) if "epsilon_sound" in card else _figures_of_secrets(card)
    return [
        Figure(title, text or f"no figure: {card['reasons'][key]}", bool(text)) for title, key, text in rows
    ]


def _figures_of_secrets(card: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(title, key of the reason, text or nothing) of each figure of a card that is about private points."""
    for key, title in _TITLES.items():
        yield title, key, _epsilons([card[key]])
    if groups := card["epsilon_group"]:
        yield f"{', '.join(groups)} private sentences at once", "epsilon_group", _epsilons(groups.values())
    failure = card["coverage_failure"]
    share = "" if failure is None else f"at most {100 * failure:.2g}%"
    yield "share of secrets with no guarantee at all", "coverage_failure", share


def _figures_of_units(card: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The same for a card of a trainer that hides users or entities, or of one of their baselines."""
    yield f"{card['unit']}: {card['relation']}", "epsilon_sound", _epsilons([card["epsilon_sound"]])
    if card.get("epsilon_user_removal") is not None:
        name = card["adjacency_user_removal"]
        yield name, "epsilon_user_removal", _epsilons([card["epsilon_user_removal"]])
    for size, value in (card.get("curve") or {}).items():
        if value is not None:
            unit = f"an entity in the points of at most {size} users"
            if card["trainer"] == "uedp-bounded":
                unit = f"units of at most {size} points"
            elif card["protect"] == "users":
                unit = f"{size} users at once"
            yield unit, "curve", _epsilons([value])
    published = card.get("epsilon_as_published")
    if isinstance(published, Mapping):
        published = published.get("epsilon")
    if published is not None:
        yield "as published, not a guarantee", "epsilon_as_published", _epsilons([published])


def _epsilons(values: Iterable[float | None]) -> str:
    """Figures as they are printed; nothing where there is none."""
    known = ["none" if value is None else upwards(value, 3) for value in values]
    return f"ε = {', '.join(known)}" if set(known) - {"none"} else ""


# The templates, and what they call.


def template(name: str) -> Template:
    """One of this room's templates; each is compiled once a process, not once a model."""
    return _environment().get_template(name)


def amount(value: float | None, digits: int = 3) -> str:
    """A figure with ``digits`` significant digits; a dash for null."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if 10**digits <= abs(value) < _LARGEST_IN_FULL else f"{value:.{digits}g}"


def share(part: int, whole: int) -> str:
    """A percentage that rounds neither something to nothing nor a part to the whole."""
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    if percent > 99.9 and part < whole:
        return ">99.9%"
    return f"{percent:.1f}%"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def _engine(stands_on: Mapping[str, Any]) -> str:
    """What an engine stands on, in a line: its model, the digests of its files, its packages."""
    digests = stands_on.get("sha256", ())
    digests = [digests] if isinstance(digests, str) else digests
    named = " ".join(str(stands_on[key]) for key in ("name", "version") if key in stands_on)
    packages = ", ".join(f"{name} {version}" for name, version in stands_on.get("versions", {}).items())
    return "; ".join(filter(None, (named, *(f"sha256 {digest[:16]}…" for digest in digests), packages)))


@functools.cache
def _environment() -> Environment:
    # most commands write no report
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("redactory.evaluation", "."),
        autoescape=lambda name: name is None or name.endswith((".html.j2", ".css.j2")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "amount": amount,
        "percent": _percent,
        "share": share,
        "some": some,
        "upwards": lambda value: upwards(value, 3),
        "exp": math.exp,
        "log2": math.log2,
        "duration": _duration,
        "engine": _engine,
        "highest_quantile": highest_quantile,
    }
    environment.filters.update(filters)
    return environment
