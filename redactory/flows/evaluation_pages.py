"""What ``redactory evaluate accuracy`` prints for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from redactory.flows.output import out, table
from redactory.foundation.errors import some, upwards

_MOST_CLASSES = 12


def accuracy(result: dict[str, Any]) -> None:
    """Error rates by class, and the confusion where it fits a terminal."""
    rows = [
        (escape(one["class"]), f"{one['texts']:,}", _rate(one["error_rate"]), f"{one['said']:,}")
        for one in result["by_class"]
    ]
    rows.append(("all", f"{result['texts']:,}", _rate(result["error_rate"]), f"{result['texts']:,}"))
    table(f"Test error rate of {result['model']}", rows, ("class", "texts", "errors", "texts taken for it"))
    out.print(f"Always saying the most frequent class: {_rate(result['majority_error_rate'])}")
    left = result["left_out"]
    out.print(
        f"Left out: {some(left['without_class'], 'text')} without a class, {left['other_class']:,} with "
        "another\n"
    )
    names = [escape(name) for name in result["classes"]]
    if len(names) <= _MOST_CLASSES:
        counts = [(n, *(f"{c:,}" for c in row)) for n, row in zip(names, result["confusion"], strict=True)]
        table("Taken for", counts, ("class", *names))


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


# What ``redactory evaluate detect`` prints for people.


_HEADS = {"strict": "strict (π)", "conservative": "both (π ∪ π_c)"}
_CHARACTERS = ("cover_recall", "char_precision", "char_recall", "f1", "f2")


def detection(result: dict[str, Any]) -> None:
    """Each figure with its 95 % interval, a miss rate beside what it costs."""
    out.print(
        f"{result['labelled']}: {some(result['rows'], 'row')}, {some(result['points'], 'point')} by "
        f"{result['segment']}, "
        f"{some(result['secrets'], 'secret')}; {some(result['quarantined'], 'point')} quarantined.",
        soft_wrap=True,
    )
    scored = {name: result[name] for name in _HEADS if name in result}
    heads = tuple(_HEADS[name] for name in scored)
    rows = [
        (name.replace("_", " "), *(_figure(own[name]) for own in scored.values())) for name in _CHARACTERS
    ]
    for match in ("exact", "overlap"):
        for name in ("precision", "recall", "f1"):
            rows.append((f"{match} {name}", *(_figure(own[match][name]) for own in scored.values())))
    table("Found, at 95 %", rows, ("figure", *heads))
    _missed(result)
    labels = {label: own["n"] for by in scored.values() for label, own in by["by_label"].items()}
    by_label = [
        (label, f"{n:,}", *(_figure(own["by_label"][label]["cover_recall"]) for own in scored.values()))
        for label, n in labels.items()
    ]
    table("Secrets covered whole", by_label, ("label", "secrets", *heads))
    if result["texts_per_second"]:
        out.print(f"{result['texts_per_second']:,.0f} distinct points per second")


def _missed(result: dict[str, Any]) -> None:
    public, clean = result["public_share"], result["public_share"]["of_clean"]
    rows = [
        (name, _figure(result[key]), f"{result[key]['misses']:,} of {result[key]['n']:,}")
        for name, key in (("missed by π (γ)", "gamma"), ("missed by both (δ₂)", "miss_rate"))
        if key in result
    ]
    rows += [
        ("public, of all points", _figure(public), f"{public['public']:,} of {public['points']:,}"),
        ("public, of clean points", _figure(clean), f"{clean['public']:,} of {clean['points']:,}"),
    ]
    table("Missed, and what stays public", rows, ("figure", "at 95 %", "counted"))
    worst = result.get("highest_gamma")
    if worst:
        out.print(
            f"Highest γ: at most {worst['upper']:.4f} for {worst['stratification']} {worst['stratum']} "
            f"({worst['misses']:,} of {worst['n']:,} missed)\n",
            soft_wrap=True,
            markup=False,
        )


def _figure(figure: dict[str, Any]) -> str:
    if figure["value"] is None:
        return "none"
    return f"{figure['value']:.4f} ({figure['low']:.4f} to {figure['high']:.4f})"


# What ``redactory evaluate canary`` and ``redactory evaluate extraction`` print for people.


_ENOUGH = 10
"""Canaries of each arm from which on a bootstrap over them is shown."""


def canary(result: dict[str, Any]) -> None:
    """Highest and mean exposure beside controls and chance."""
    chance = result.get("chance") or {}
    rows = [
        ("inserted", _bits(result["highest_exposure"]), _bits(result["mean_exposure"])),
        ("never inserted", _bits(result["control_highest_exposure"]), _bits(result["control_mean_exposure"])),
        ("by chance, expected", _bits(chance.get("highest_expected")), _bits(chance.get("mean_expected"))),
        ("by chance, 95 % stay below", _bits(chance.get("highest_95")), ""),
        ("largest possible", _bits(result["largest_possible"]), ""),
    ]
    if result.get("missed"):
        rows.insert(1, ("  missed by π", _bits(result["highest_exposure_missed"]), ""))
        rows.insert(2, ("  caught by π", _bits(result["highest_exposure_caught"]), ""))
    table(f"Canary exposure of {result['model']}, bits", rows, ("canaries", "highest", "mean"))
    difference = (result.get("intervals") or {}).get("mean_difference") or {}
    if difference.get("value") is not None:
        out.print(f"Mean of inserted less never inserted: {difference['value']:.2f} bits{_interval(result)}")
    if chance.get("highest_p_value") is not None:
        out.print(
            "Chance alone gives so high a highest exposure with probability "
            f"{chance['highest_p_value']:.2g}, so high a mean with {chance['mean_p_value']:.2g}",
            soft_wrap=True,
        )
    for reason in result.get("reasons", ()):
        out.print(f"Not measured of some: {reason}", soft_wrap=True, markup=False)
    out.print(f"Copies of the canaries in what it was trained on: {result['copies_left']}\n")


def _interval(result: Mapping[str, Any]) -> str:
    """The interval of the difference of means; of few canaries a bootstrap is too narrow to be shown."""
    arms = Counter(bool(row["inserted"]) for row in result["canaries"])
    if min(arms[True], arms[False]) < _ENOUGH:
        return ""
    difference = result["intervals"]["mean_difference"]
    return f" ({difference['low']:.2f} to {difference['high']:.2f}, 95 %)"


def extraction(result: dict[str, Any]) -> None:
    """Secrets found beside controls, by label and by how often they were seen."""
    out.print(
        f"Searched {some(result['samples'], 'text')} of {result['model']} for "
        f"{some(result['secrets'], 'secret')}: "
        f"{_share(result['found'])} found; of values never seen {_share(result['controls_share'])}.",
        soft_wrap=True,
    )
    if result["p_value"] is not None:
        out.print(f"Chance alone finds as many with probability {result['p_value']:.2g}.")
    headers = ("", "secrets", "found", "controls", "found")
    by_label = [(escape(label), *_counts(own)) for label, own in result["by_label"].items()]
    table("By label", by_label, headers)
    seen = [(_times(own), *_counts(own)) for own in result["by_times_seen"] if own["secrets"]]
    table("By times seen in training", seen, headers)
    completion = result["completion"]
    out.print(
        f"Given the words before it: {completion['secrets_found']:,} of "
        f"{some(completion['secrets'], 'secret')} "
        f"completed, {completion['controls_found']:,} of {completion['controls']:,} controls",
        soft_wrap=True,
    )
    for reason in (*result["reasons"], *completion["reasons"]):
        out.print(f"Not measured: {reason}", soft_wrap=True, markup=False)


def _counts(own: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(f"{own[key]:,}" for key in ("secrets", "secrets_found", "controls", "controls_found"))


def _times(own: Mapping[str, Any]) -> str:
    low, high = own["from"], own["to"]
    return f"{low:,} or more" if high is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _share(share: Mapping[str, float | None]) -> str:
    if share["value"] is None:
        return "none"
    return f"{share['value']:.2%} ({share['low']:.2%} to {share['high']:.2%})"


def _bits(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


# What ``redactory evaluate membership`` and the one-run audit print for people.


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
                (
                    meaning,
                    *(_share_inference_page(attack[k]) for k in ("accuracy", "auc")),
                    *map(_share_inference_page, tpr.values()),
                )
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


def _share_inference_page(figure: dict[str, Any]) -> str:
    return f"{figure['value']:.1%} [{figure['low']:.1%}, {figure['high']:.1%}]".replace("[", r"\[")


# What ``redactory audit`` prints for people.


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
        (name, f"{own['n']:,}", *_share_audit_page(own["gamma"]), *_share_audit_page(own["delta_2"]))
        for name, own in shares.items()
    ]
    headers = ("label", "secrets", "γ seen", "γ at most", "δ₂ seen", "δ₂ at most")
    table(f"Share of secrets missed, each bound at confidence {misses['confidence']:g}", figures, headers)
    if any(own[rate]["rate"] is None for own in shares.values() for rate in ("gamma", "delta_2")):
        out.print("none: no secret was drawn, so nothing was seen; what is at most holds.")
    # late: it brings pyarrow along
    from redactory.evaluation.sample_labels import resting_on_labellers

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


def _share_audit_page(share: dict[str, Any]) -> tuple[str, str]:
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
