"""How the page of every card begins: its front matter, and whether anything holds."""

from __future__ import annotations

import json
from typing import Any

from redactory.foundation.errors import some, upwards
from redactory.redaction.mask import MASK
from redactory.training.guarantee.card import FORMAT_OF_UNITS as OF_UNITS
from redactory.training.model import library_of, opened_with


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


# The card under a user or entity relation as a page for people: the model card of a trained model.


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


# The guarantee card as a page for people: the model card of a trained model.


_TITLES_card_page = {
    "epsilon": "One named secret that the strict policy missed (epsilon)",
    "epsilon_confidentiality": "Every secret of the corpus (epsilon_confidentiality)",
    "epsilon_bayesian": "Secrets that at least one policy catches (epsilon_bayesian)",
    "coverage_failure": "Share of secrets without any guarantee, at most (coverage_failure)",
    "epsilon_substitution": "One private point exchanged for another (epsilon_substitution)",
    "epsilon_add_remove": "For information: one point there or not (epsilon_add_remove)",
}


def guarantee_page(card: dict[str, Any]) -> str:
    """``card`` (of ``guarantee_card``) in Markdown with YAML front matter, free of corpus text."""
    if card["format"] == OF_UNITS:
        return units_page(card).replace(MASK, f"`{MASK}`")
    sections = [front_matter(card, "text-generation", "confidentiality")]
    sections += [_opening_card_page(card), _figures_card_page(card), _reading(card), _how_card_page(card)]
    sections += [_accountants(card), _pre_steps(card)]
    sections += [
        _list("What this rests on", card["assumptions"]),
        _list("What is not covered", card["not_covered"]),
    ]
    sections += [_channels(card), _published(card)]
    page = "\n\n".join(section for section in sections if section) + "\n"
    return page.replace(MASK, f"`{MASK}`")


def _opening_card_page(card: dict[str, Any]) -> str:
    return (
        f"# {card['model']}\n\n{_blind(card)}"
        f"A language model (`{card['kind']}`), trained with `{card['trainer']}`.\n\n"
        f"{opened_with(card['kind'])}\n\n"
        f"## The guarantee\n\n{verdict(card)}\n\nProtected unit: {card['unit']}.\n\n"
        f"{card['relation_meaning']}"
    )


def _blind(card: dict[str, Any]) -> str:
    """What nothing looked for; a card of an earlier version does not say."""
    return f"> **{card['blind']}**\n\n" if card.get("blind") else ""


def _figures_card_page(card: dict[str, Any]) -> str:
    delta = f"{card['delta']:g}"
    lines = [f"| what (delta = {delta}) | figure |", "|---|---|"]
    lines += [f"| {title} | {_value(card, name)} |" for name, title in _TITLES_card_page.items()]
    for size, value in card["epsilon_group"].items():
        shown = _number(value) if value is not None else f"none: {card['reasons']['epsilon_group']}"
        lines.append(f"| {size} private points exchanged at once (epsilon_group) | {shown} |")
    return "\n".join(lines) + _confidence(card["miss_rates"])


def _confidence(rates: dict[str, Any]) -> str:
    """How sure the figures are that rest on labels; nothing where none does."""
    measured = rates["measured"]
    if measured is None:
        return ""
    sure = measured["confidence"]
    date = measured.get("date") or measured.get("sample", {}).get("date")
    return (
        f"\n\nWhat the policies miss was bounded from {some(measured['labels'], 'labelled secret')}"
        f"{f' ({date})' if date else ''}: at most {rates['gamma_upper']:.4g} of the secrets are missed by "
        f"the strict policy, at most {rates['delta_2_upper']:.4g} by both. Each bound holds with "
        f"{_share(sure)} "
        f"confidence, both together with {_share(max(0.0, 2 * sure - 1))}; epsilon_bayesian and "
        "coverage_failure hold where these bounds do."
    )


def _share(part: float) -> str:
    return f"{100 * part:.3g} %"


def _value(card: dict[str, Any], name: str) -> str:
    value = card[name]
    return f"none: {card['reasons'][name]}" if value is None else _number(value)


def _number(value: float) -> str:
    return upwards(value)


def _reading(card: dict[str, Any]) -> str:
    value = card["epsilon"]
    if value is None:
        return ""
    factor = "more than a million" if value > 13.8 else f"{2.718281828459045**value:,.1f}"
    return (
        "## How to read it\n\n"
        "Imagine the same training on the same corpus with one secret blacked out. Whatever somebody "
        "concludes "
        "from the model, they would have concluded it there with a probability that differs by a factor of "
        "at "
        f"most e^epsilon ({factor} for epsilon), apart from an event of probability delta. A "
        f"smaller "
        "epsilon is a stronger promise; 0 means that the secret made no difference at all. A figure that is "
        "missing means that no promise is made, not that the risk is small."
    )


def _how_card_page(card: dict[str, Any]) -> str:
    if card["sampling_rate"] is None:
        return ""
    return (
        "## How it was computed\n\n"
        f"- {card['steps']} noisy steps, each on a {card['sampler_run']} sample at rate "
        f"{card['sampling_rate']:g}, accounted as {card['sampler_accounted']}.\n"
        f"- Each point's gradient clipped to {card['clip_norm']:g}; the two worlds' sums are at most "
        f"{card['sensitivity']:g} apart; noise ({card['noise']}) {card['noise_multiplier']:g} times the "
        f"clipping norm; the sum divided by the constant {card['normaliser']:g}.\n"
        f"- Clipped sums computed on {card.get('device', 'cpu')}.\n"
        f"- Main accountant: {card['accountants']['main']}.\n"
        f"- Second accountant: {card['accountants']['second']}.\n{computed_once(card)}"
        f"- Ledger of {some(card['ledger']['steps'], 'step')}, sha256 `{card['ledger']['head']}`; "
        f"curated run `{card['ledger']['parent']}`.\n"
        f"- Privacy event of it all: `{json.dumps(card['event'], sort_keys=True)}`."
    )


def _accountants(card: dict[str, Any]) -> str:
    """Each figure between the second accountant's bounds."""
    bounds = dict(card["accountants"]["bounds"]) if card["accountants"] else {}
    groups = bounds.pop("epsilon_group", {})
    told = [(name, card[name], bounds[name]) for name in bounds if card[name] is not None]
    told += [(f"epsilon_group, {size}", card["epsilon_group"][size], both) for size, both in groups.items()]
    if not told:
        return ""
    rows = [
        f"| {name} | {_bound(two['lower'])} | {upwards(value, 6)} | {_bound(two['upper'])} |"
        for name, value, two in told
    ]
    head = "| figure | at least | stated | at most |\n|---|---|---|---|\n"
    return "## Two accountants\n\n" + head + "\n".join(rows)


def _bound(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.6g}"


def _published(card: dict[str, Any]) -> str:
    """What the paper's formulas give, under the words that they are no guarantee."""
    told = card["as_published"]
    if told is None:
        return ""
    lines = [
        f"- {name} {'none' if told[name] is None else _number(told[name])}: {told['why_not'][name]}."
        for name in ("epsilon", "epsilon_bayesian")
    ]
    return "## As published, not a guarantee\n\n" + "\n".join(lines)


def _pre_steps(card: dict[str, Any]) -> str:
    if not card["pre_steps"]:
        return ""
    rows = [f"| {step['step']} | {step['depends_on']} | {step['covered']} |" for step in card["pre_steps"]]
    head = "| step | depends on | why it is covered |\n|---|---|---|\n"
    return "## What was computed from the corpus before\n\n" + head + "\n".join(rows)


def _list(title: str, items: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {item}" for item in items) if items else ""


def _channels(card: dict[str, Any]) -> str:
    if not card["side_channels"]:
        return ""
    rows = [f"| {c['item']} | {c['channel']} | {c['ensured_by']} |" for c in card["side_channels"]]
    return (
        "## Side channels\n\n| | what could break the promise | how it is ruled out |\n|---|---|---|\n"
        + "\n".join(rows)
    )
