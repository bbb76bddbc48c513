"""What each command prints for people."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from redactory.flows.accuracy_page import accuracy
from redactory.flows.curated_hints import MENDS, curated_hints
from redactory.flows.exposure_page import canary
from redactory.flows.inference_page import beside_guarantee
from redactory.flows.output import out, table
from redactory.flows.unit_page import unit_figures

_FIGURES = (
    "epsilon",
    "epsilon_confidentiality",
    "epsilon_bayesian",
    "coverage_failure",
    "epsilon_substitution",
)
_FATES = ("public", "private", "duplicate", "quarantined")


def describe(result: dict[str, Any]) -> None:
    """``redactory describe``."""
    files = [(s["path"], s["format"], ", ".join(s["columns"])) for s in result["sources"]]
    table("Input", files, ("file", "format", "columns"), text=True)
    table("Stages", [(s["stage"], s["does"]) for s in result["stages"]], text=True)
    hashes = [(name, policy["hash"]) for name, policy in result["policies"].items()]
    table("Policies", hashes, ("policy", "hash"), text=True)
    if "differs" in result:
        _differences(result["differs"])
    bad = [(b["source"], str(b["row"]), b["reason"]) for b in result["bad_rows"]]
    if bad:
        looked_at = f"the first {result['rows_looked_at']:,} of each file"
        out.print(f"Bad rows among {looked_at}: {result['bad_rows_seen']}")
        table("The first of them", bad, ("file", "row", "reason"), text=True)
        for reason in filter(MENDS.get, result["bad_rows_by_reason"]):
            out.print(f"{reason}: {MENDS[reason]}", soft_wrap=True)
    else:
        out.print(f"No bad row among the first {result['rows_looked_at']:,} of each file.")
    for missing in result["evaluation_files_missing"]:
        out.print(f"Not there: {missing}", soft_wrap=True)
    out.print(f"Nothing was written. The run would go to {result['output']}", soft_wrap=True)


def _differences(differs: dict[str, list[dict[str, Any]]]) -> None:
    for policy, changes in differs.items():
        if changes:
            rows = [(change["key"], str(change["old"]), str(change["new"])) for change in changes]
            table(f"What differs in the {policy} policy", rows, ("key", "there", "here"), text=True)
        else:
            out.print(f"The {policy} policies are the same.")


def curated(result: dict[str, Any]) -> None:
    """``redactory curate``."""
    _counts(result)
    out.print("Duplicates", style="bold")
    # numpy comes with it, and every command would wait for that
    from redactory.dedup.told import told

    for sentence in told(result["dedup"]):
        out.print(f"  {sentence}", soft_wrap=True)
    out.print()
    out.print(f"{result['run']}: {result['seconds']:.1f} s. Report: {result['report']}", soft_wrap=True)
    for hint in curated_hints(result):
        out.print(hint, soft_wrap=True, markup=False)
    if result["key_fresh"]:
        out.print(
            "No REDACTORY_KEY was set: a key was drawn and is gone; no other process can resume this run."
        )


def trained(result: dict[str, Any]) -> None:
    """``redactory train``."""
    took = f"{result['steps']} noisy steps, {result['seconds']:.1f} s"
    out.print(f"{result['model']} ({result['trainer']}): {took}")
    _figures(result["guarantee"])


def ran(result: dict[str, Any]) -> None:
    """``redactory run``."""
    curated(result)
    trained(result["model"])
    measured = result["evaluation"]
    if "recall" in measured:
        recall(measured["recall"])
    if "accuracy" in measured:
        accuracy(measured["accuracy"])
    if "perplexity" in measured:
        perplexity(measured["perplexity"])
    if "canary" in measured:
        canary(measured["canary"])


def verified(result: dict[str, Any]) -> None:
    """``redactory verify``."""
    for check in result["checks"]:
        word, colour = ("ok", "green") if check["made"] else ("open", "yellow")
        word, colour = (word, colour) if check["ok"] else ("FAILED", "red")
        state = f"[{colour}]{word:<7}[/]"
        out.print(f"{state} {check['name']:<24} {escape(check['detail'])}", soft_wrap=True)
    unmade = ", ".join(check["name"] for check in result["checks"] if check["ok"] and not check["made"])
    holds = f"every check holds; not made in full: {unmade}" if unmade else "every check holds"
    out.print(f"{result['run']}: {holds if result['ok'] else 'a check FAILED'}", soft_wrap=True)


def guarantee(card: dict[str, Any]) -> None:
    """``redactory guarantee``: each figure with its value, or the reason why there is none."""
    out.print(f"Guarantee of {card['model']} ({card['trainer']}): {card['unit']}", soft_wrap=True)
    out.print(card["relation_meaning"] or "", soft_wrap=True)
    _figures(card)
    beside_guarantee(card.get("audit"))


def composed_guarantee(card: dict[str, Any]) -> None:
    """``redactory guarantee RUN1 RUN2``: the models, and the figures of all together."""
    rows = [(one["run"], one["model"], one["trainer"], f"{one['steps']:,}") for one in card["models"]]
    table("Models, all in one hand", rows, ("run", "model", "trainer", "noisy steps"), text=True)
    out.print(f"{card['unit']}. {card['relation_meaning']}", soft_wrap=True)
    _figures(card)


def perplexity(result: dict[str, Any]) -> None:
    """``redactory evaluate perplexity``."""
    rows = [
        (name.replace("_", " "), f"{part['perplexity']:.2f}", f"{part['tokens']:,}")
        for name, part in result.items()
        if name in ("as_is", "masked")
    ]
    table(f"Perplexity of {result['model']}", rows, ("held-out text", "per token", "tokens"))


def recall(result: dict[str, Any]) -> None:
    """Misses of the policies on labelled secrets."""
    misses, left = result["misses"], result["left"]
    out.print(
        f"Of {misses['n']:,} labelled secrets drawn, π missed {misses['gamma']['misses']} (γ ≤ "
        f"{misses['gamma']['upper']:.4f}) and both policies {misses['delta_2']['misses']} (δ₂ ≤ "
        f"{misses['delta_2']['upper']:.4f}), at 95 % each.",
        soft_wrap=True,
    )
    rows = [
        (label, f"{c['secrets']:,}", f"{c['left_public']:,}", f"{c['left_private']:,}")
        for label, c in {**left["labels"], "all": left}.items()
    ]
    table("Secrets left in the shards", rows, ("label", "secrets", "public", "private"))


def fitted(result: dict[str, Any]) -> None:
    """``redactory fit-policy``: the curve of public share against miss rate, and what was chosen."""
    out.print(
        f"One secret of each {result['unit']}: {result['secrets']:,} of {result['secrets_labelled']:,} "
        f"labelled ones, in {result['rows']:,} rows. Bounded is {result['estimand']}.",
        soft_wrap=True,
    )
    chosen, curve, previous, rows = result["chosen"], result["curve"], None, []
    for point in curve:
        fate = (point["public_share"], point["misses"], point["holds"])
        if fate != previous:
            state = "chosen" if point == chosen else "holds" if point["holds"] else ""
            rows.append((*_policy_of(point, curve[0]["rules"]), *_curve_of(point), state))
        previous = fate
    headers = ("plain", "sure", "rules", "public", "of clean", "missed", "rate", "at most", "")
    table("Public share against miss rate, from the safest policy on", rows, headers)
    asked = f"a miss rate of at most {result['miss_rate']:g} at confidence {result['confidence']:g}"
    if chosen is None:
        out.print(
            f"No policy shows {asked}, not even the safest one: nothing was written. Only "
            "conservative.flags_everything, which makes every point private, misses nothing.",
            soft_wrap=True,
        )
        return
    out.print(f"Wrote {result['out']}: {asked} was shown on these labels.", soft_wrap=True)
    out.print(f"Its rows can be told again by {result['rows_file']}; keep it.", soft_wrap=True)
    if result["key_fresh"]:
        out.print(
            "No REDACTORY_KEY was set: no other process can tell these rows again, so none will measure what "
            "this policy misses. Set a lasting key and fit again.",
            soft_wrap=True,
        )


def _policy_of(point: dict[str, Any], every: list[str]) -> tuple[str, ...]:
    gone = [rule for rule in every if rule not in point["rules"]]
    rules = "all" if not gone else f"no {', '.join(gone)}" if point["rules"] else "none"
    return f"{point['plain_confidence']:.8g}", f"{point['sure']:.8g}", rules


def _curve_of(point: dict[str, Any]) -> tuple[str, ...]:
    shares = (f"{point['public_share']:.1%}", f"{point['clean_public_share']:.1%}")
    return *shares, f"{point['misses']:,}", *(f"{100 * point[key]:.3g}%" for key in ("rate", "upper"))


def tagger_fitted(result: dict[str, Any]) -> None:
    """``redactory fit``."""
    held_out, reliability = result["held_out"], result["reliability"]
    rows = [
        (label, f"{count:,}", _share(held_out["by_label"].get(label)))
        for label, count in result["labels"].items()
    ]
    table("Labels", rows, ("label", "spans trained on", "covered whole, held out"))
    out.print(
        f"Held out, {held_out['rows']:,} texts: {_share(held_out['cover_recall'])} of the spans covered, "
        f"{_share(held_out['char_precision'])} of the marked characters labelled.",
        soft_wrap=True,
    )
    out.print(
        f"Calibrated: temperature {reliability['temperature']}, calibration error "
        f"{reliability['error_before']:.4f} before, {reliability['error']:.4f} after."
    )
    section = "transformers.folder" if "base" in result["settings"] else "tagger.models"
    out.print(f"Wrote {result['tagger']}: name it in detect.{section}", soft_wrap=True)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def simulated_varied(result: dict[str, Any]) -> None:
    """``redactory simulate varied``."""
    secrets = sum(result["secrets"].values())
    out.print(
        f"Wrote {result['rows']:,} texts with {secrets:,} labelled secrets to {result['out']}; "
        f"{result['without_secret']:,} texts hold none",
        soft_wrap=True,
    )


def simulated(result: dict[str, Any]) -> None:
    """``redactory simulate``."""
    secrets = sum(result["secrets"].values())
    out.print(
        f"Wrote {result['rows']:,} dialogues with {secrets:,} labelled secrets to {result['out']}",
        soft_wrap=True,
    )
    out.print(f"Canaries: {result['canaries_file']}", soft_wrap=True)


def demo(result: dict[str, Any]) -> None:
    """``redactory demo``."""
    ran(result)
    base = result["baseline"]
    out.print("\nThe same model without protection (sgd on the raw text):")
    perplexity(base["evaluation"]["perplexity"])
    canary(base["evaluation"]["canary"])
    checks = result["verify"]["checks"]
    out.print(f"\nverify: {sum(c['ok'] for c in checks)} of {len(checks)} checks hold.")
    out.print(f"Configuration, to run it again: {result['configuration']}", soft_wrap=True)
    out.print(f"Report: {result['report']}", soft_wrap=True)


def _figures(card: dict[str, Any]) -> None:
    if "epsilon_sound" in card:
        unit_figures(card)
        return
    for name in _FIGURES:
        value, reason = card[name], card["reasons"].get(name, "")
        out.print(f"  {name:<24} {'none' if value is None else f'{value:.4g}':>8}  {reason}", soft_wrap=True)
    for size, value in card["epsilon_group"].items():
        shown = "none" if value is None else f"{value:.4g}"
        out.print(f"  {'epsilon_group, ' + size:<24} {shown:>8}", soft_wrap=True)
    if card.get("recall"):
        out.print(f"  {card['recall']}", soft_wrap=True)
    if not card["holds"]:
        out.print(f"  does not hold: {card['holds_reason']}", soft_wrap=True)
    out.print()


def _counts(result: dict[str, Any]) -> None:
    points = max(result["points"], 1)
    table(
        "Rows",
        [(name, f"{result[name]:,}") for name in ("rows", "documents", "rejected")]
        + [(f"  {reason}", f"{n:,}") for reason, n in result["rejected_by_reason"].items()],
    )
    table(
        "Points",
        [("points", f"{result['points']:,}", "")]
        + [(fate, f"{result[fate]:,}", f"{result[fate] / points:.1%}") for fate in _FATES]
        + [(f"  {reason}", f"{n:,}", "") for reason, n in result["quarantined_by_reason"].items()],
    )
