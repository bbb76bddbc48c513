"""What ``redactory audit`` prints for people."""

from __future__ import annotations

from typing import Any

from redactory.flows.output import out, table
from redactory.foundation.wording import some

_TO_DO = (
    "Mark EVERY secret in every text, also those that are masked already: they are filled in. Delete or mend "
    "what is filled in wrongly. A text without a secret keeps an empty list. Nothing but 'spans' may change, "
    "and no row may be left out."
)
_COUNTED = (
    "Missed by π counts also a secret that is masked whole, where the mask would be another one without it. "
    "How many still stand in the shards is in the report."
)
_FROM_NOW_ON = (
    "Models that are trained on this run from now on get their guarantee with these bounds; a finished model "
    "keeps those that it was trained with. These figures are computed from private text: they are a release "
    "of their own."
)


def sampled(result: dict[str, Any]) -> None:
    """``redactory audit sample``."""
    rows = [
        (name, f"{own['points']:,}", "all" if own["whole"] else f"{own['draws']:,}", f"{own['texts']:,}")
        for name, own in result["strata"].items()
    ]
    headers = ("stratum", "points", "drawn", "texts to label")
    table(f"Sample '{result['name']}', seed {result['seed']}", rows, headers)
    fitted, files = sum(result["fitted_on"].values()), result["files"]
    if result["quarantined"]:
        out.print(
            f"Not drawn, and counted as missed by π: {some(result['quarantined'], 'quarantined point')}"
        )
    if fitted:
        out.print(f"Not drawn, and counted as missed: {some(fitted, 'point')} that the policy was fitted on")
    out.print(_TO_DO, soft_wrap=True)
    out.print(f"  JSON lines       {files['rows']}", soft_wrap=True)
    out.print(f"  Label Studio     {files['tasks']}", soft_wrap=True)
    out.print(f"  its interface    {files['interface']}", soft_wrap=True)
    out.print(f"  a table to read  {files['table']}", soft_wrap=True)
    out.print("They hold original text: keep them, and what you make of them, where the run is.")
    named = "" if result["name"] == "sample" else f" --name {result['name']}"
    out.print(f"Then: redactory audit score {result['run']} LABELLED{named}", soft_wrap=True)


def scored(result: dict[str, Any]) -> None:
    """``redactory audit score``."""
    sample = result["sample"]
    out.print(
        f"Sample '{sample['name']}' of {result['drawn']['date']}, scored on {sample['date']}: "
        f"{some(result['texts'], 'text')} with {some(result['secrets'], 'secret')}. In "
        f"{some(result['changed'], 'text')} the "
        "labels differ from what was filled in.",
        soft_wrap=True,
    )
    if (before := result["replaces"]) is not None:
        out.print(
            f"Replaces the score of {before['date'] or 'a day that was not recorded'} (γ at most "
            f"{before['gamma_upper']:.3g}, δ₂ at most {before['delta_2_upper']:.3g}).",
            soft_wrap=True,
        )
    rows = [(name, *_stratum(own)) for name, own in result["strata"].items()]
    headers = ("stratum", "points", "drawn", "with a secret", "missed by π", "by both")
    table("Points, each counted by one of its secrets", rows, headers)
    misses = result["misses"]
    shares = {**misses["labels"], "all": misses}
    figures = [
        (name, f"{own['n']:,}", *_share(own["gamma"]), *_share(own["delta_2"]))
        for name, own in shares.items()
    ]
    headers = ("label", "secrets", "γ seen", "γ at most", "δ₂ seen", "δ₂ at most")
    table(f"Share of secrets missed, each bound at confidence {misses['confidence']:g}", figures, headers)
    if any(own[rate]["rate"] is None for own in shares.values() for rate in ("gamma", "delta_2")):
        out.print("none: no secret was drawn, so nothing was seen; what is at most holds.")
    # late: it brings pyarrow along
    from redactory.evaluation.sample_words import resting_on_labellers

    if misses["gamma"]["misses"]:
        out.print(_COUNTED, soft_wrap=True)
    for sentence in resting_on_labellers(result):
        out.print(sentence, soft_wrap=True)
    out.print(f"A share is {result['estimand']}.", soft_wrap=True)
    for goal in result["needed"]:
        out.print(_needed(goal), soft_wrap=True)
    out.print(_FROM_NOW_ON, soft_wrap=True)


def _stratum(own: dict[str, Any]) -> tuple[str, ...]:
    keys = ("secrets", "missed_by_strict", "missed_by_both")
    drawn = "all" if own["whole"] else f"{own['draws']:,}"
    return f"{own['points']:,}", drawn, *(f"{own[key]:,.6g}" for key in keys)


def _share(share: dict[str, Any]) -> tuple[str, str]:
    return "none" if share["rate"] is None else f"{share['rate']:.3g}", f"{share['upper']:.3g}"


def _needed(goal: dict[str, Any]) -> str:
    shown, public = f"δ₂ ≤ {goal['delta_2']:g}", goal["public_draws"]
    if public == 0:
        return f"This sample shows {shown}."
    draws = "a sample that says more of the private points"
    if public is not None:
        draws = f"{public:,} public draws of a sample like this one"
    secrets = some(goal["secrets"], "secret")
    return f"To show {shown} without a miss: {secrets} drawn independently, or {draws}."
