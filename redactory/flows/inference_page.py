"""What ``redactory evaluate membership`` and the one-run audit print for people."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from redactory.flows.output import out, table
from redactory.foundation.wording import some, upwards

_ATTACKS = {
    "individual": "one sentence, by perplexity",
    "group": "a group, by the sum of perplexities",
    "reference": "one sentence, against the reference model",
    "rmia": "the same, by rank (RMIA)",
    "reference_alone": "the reference model alone",
}


def membership(result: dict[str, Any]) -> None:
    """``redactory evaluate membership``: accuracy, area and true positives at few false ones."""
    rows = []
    for key, meaning in _ATTACKS.items():
        attack = result[key]
        if attack is not None:
            tpr = attack.get("tpr", {})
            rows.append(
                (meaning, *(_share(attack[k]) for k in ("accuracy", "auc")), *map(_share, tpr.values()))
            )
    headers = ("attack", "accuracy", "area under ROC", "found at 0.1% false", "at 1% false")
    table(
        f"Membership inference on {result['model']}: secrets labelled {escape(result['label'])}",
        rows,
        headers,
    )
    group = result["group"]
    out.print(
        f"{some(result['members'], 'sentence')} that were trained on and {result['others']:,} with a "
        "secret that "
        f"was not; groups of {group['group_size']}. An accuracy of 50% is a coin's. In brackets: "
        f"{result['confidence']:.4g} confidence.\n",
        soft_wrap=True,
    )


def planted(result: dict[str, Any]) -> None:
    """``redactory audit plant``."""
    out.print(
        f"Planted {some(result['planted'], 'sentence')} of "
        f"{some(result['canaries'], 'canary', 'canaries')} ({result['form']}); "
        f"curate {result['out']}",
        soft_wrap=True,
    )
    out.print(f"Their coins, to be kept from whoever guesses: {result['coins_file']}", soft_wrap=True)


def audit(result: dict[str, Any]) -> None:
    """``redactory evaluate audit``: the least epsilon that was shown beside the most that is stated."""
    out.print(
        f"One-run audit of {result['model']}: {result['correct']:,} of "
        f"{some(result['guesses'], 'guess', 'guesses')} right, "
        f"of {some(result['canaries'], 'canary', 'canaries')} ({result['form']}).",
        soft_wrap=True,
    )
    rows = [
        ("shown: at least", _number(result["epsilon_lower"])),
        ("the same, were the training like a Gaussian", _number(result["epsilon_lower_gaussian"])),
        ("stated: at most", _upper(result["epsilon_upper"])),
    ]
    headers = ("", f"epsilon at delta {result['delta']:g}")
    table(f"At confidence {result['confidence']:g}", rows, headers)
    if result["guarantee_p_value"] is not None:
        out.print(
            "Were the ledger's mechanism what ran, so many guesses would be right with probability at most "
            f"{result['guarantee_p_value']:.2g}.",
            soft_wrap=True,
        )
    beside_guarantee(result)


def beside_guarantee(result: dict[str, Any] | None) -> None:
    """The audit's line on the page of a guarantee."""
    if result is None:
        return
    least = f"{result['epsilon_lower']:.3g}"
    shown = (
        f"A one-run audit of {some(result['canaries'], 'canary', 'canaries')} shows epsilon at least {least}"
    )
    if not result["comparable"]:
        out.print(f"{shown}; it is not compared: {escape(result['reason'])}.", soft_wrap=True)
    elif result["holds"]:
        out.print(f"{shown}; stated is at most {upwards(result['epsilon_upper'], 3)}.", soft_wrap=True)
    else:
        out.print(
            f"[red]{shown}, and at most {upwards(result['epsilon_upper'], 3)} is stated: "
            "the guarantee is FALSE[/]",
            soft_wrap=True,
        )


def refuted(result: dict[str, Any] | None) -> bool:
    """Whether an audit shows more than the guarantee states."""
    return result is not None and not result["holds"]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _upper(value: float | None) -> str:
    return "none" if value is None else upwards(value, 3)


def _share(figure: dict[str, Any]) -> str:
    return f"{figure['value']:.1%} [{figure['low']:.1%}, {figure['high']:.1%}]".replace("[", r"\[")
