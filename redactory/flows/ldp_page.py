"""What ``redactory ldp`` prints for people."""

from __future__ import annotations

from typing import Any

from redactory.flows.output import out, table
from redactory.foundation.wording import some, upwards


def encoder(result: dict[str, Any]) -> None:
    """An encoder that was made."""
    out.print(f"{result['encoder']}: an encoder of public text", style="bold", soft_wrap=True)
    for key, value in result.items():
        if key != "encoder" and isinstance(value, str | int | float):
            _line(f"  {key}: {value:.4g}" if isinstance(value, float) else f"  {key}: {value}")


def trained(result: dict[str, Any]) -> None:
    """A service that has learnt, and its promise."""
    out.print(f"{result['service']}: trained", style="bold", soft_wrap=True)
    _line(
        f"  {some(result['slots'], 'sentence')} in {some(result['messages'], 'message')}, of "
        f"{some(result['users'], 'user')}"
    )
    out.print()
    promise(result["guarantee"])


def promise(card: dict[str, Any]) -> None:
    """The card's figures, each null with its reason, and what stands around them."""
    rows = [
        (f"{card['unit']}, sound", _figure(card, "epsilon_sound")),
        ("as published, not a guarantee", _figure(card, "epsilon_as_published")),
    ]
    table(f"Epsilon at delta {card['delta']:g}", rows, text=True)
    if not card["holds"]:
        _line(f"NO GUARANTEE: {card['holds_reason']}")
    _line(card["relation_meaning"])
    _line(f"Sent: {card['participation']['meaning']}.")
    _line(
        f"Noise: {card['noise_multiplier']:g} times the clip; another sentence moves a message by at most "
        f"{card['sensitivity_in_words']}."
    )
    for title, key in (("The server sees", "server_sees"), ("Not covered", "not_covered")):
        _line(f"{title}:")
        for entry in card[key]:
            _line(f"  - {entry}")


def accuracy(result: dict[str, Any]) -> None:
    """Accuracy with and without noise on the queries."""
    found = result["accuracy"]
    spread = f"{found['least']:.4f} to {found['greatest']:.4f}"
    rows = [
        (f"noise on every query, mean of {result['draws']} draws", f"{found['mean']:.4f}", spread),
        ("no noise on queries (for comparison)", f"{result['accuracy_without_noise']:.4f}", ""),
        ("always the most frequent class", f"{result['majority_accuracy']:.4f}", ""),
    ]
    table(f"Accuracy on {some(result['texts'], 'text')}", rows, ("", "accuracy", "least to greatest"))
    epsilon = result["epsilon_sound"]
    cost = (
        "no finite epsilon" if epsilon is None else f"epsilon {upwards(epsilon)} at delta {result['delta']:g}"
    )
    _line(f"Each sentence and each query: {cost}, noise {result['noise_multiplier']:g}.")


def _figure(card: dict[str, Any], name: str) -> str:
    value = card[name]
    return f"none: {card['reasons'][name]}" if value is None else upwards(value)


def _line(text: str) -> None:
    out.print(text, soft_wrap=True, markup=False)
