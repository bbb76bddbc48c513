"""What each command prints for people."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from redactory.flows.accuracy_page import accuracy
from redactory.flows.exposure_page import canary
from redactory.flows.inference_page import beside_guarantee
from redactory.flows.output import out, table
from redactory.flows.unit_page import unit_figures
from redactory.foundation.wording import some, upwards
from redactory.pipelines.curated_hints import MENDS, curated_hints

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
    _blind(result)
    files = [(s["path"], s["format"], ", ".join(s["columns"])) for s in result["sources"]]
    table("Input", files, ("file", "format", "columns"), text=True)
    table("Stages", [(s["stage"], s["does"]) for s in result["stages"]], text=True)
    hashes = [(name, policy["hash"]) for name, policy in result["policies"].items()]
    table("Policies", hashes, ("policy", "hash"), text=True)
    finders = [(own["label"], _masks(own["masks"]), ", ".join(own["suspects"])) for own in result["labels"]]
    table("Labels", finders, ("label", "masked by", "only suspected by"), text=True)
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
    for lacking in result["columns_missing"]:
        means = (
            "every row is its own user, and a takedown of a user finds none"
            if (lacking["key"] == "input.user")
            else "no row has a class"
        )
        out.print(
            f"{lacking['source']}: no row looked at has the column '{lacking['column']}' ({lacking['key']}): "
            f"{means}. Name one of the columns above.",
            soft_wrap=True,
            markup=False,
        )
    for missing in result["evaluation_files_missing"]:
        out.print(f"Not there: {missing}", soft_wrap=True)
    out.print(f"Nothing was written. The run would go to {result['output']}", soft_wrap=True)


def _blind(result: dict[str, Any]) -> None:
    """What nothing in the policies looks for, before anything else."""
    if result["blind"]:
        out.print(result["blind"], style="bold red", soft_wrap=True, markup=False)


def _masks(parts: dict[str, float]) -> str:
    """Who masks a label, and from which score on where not every hit counts."""
    return ", ".join(f"{part} (from {least:g})" if least else part for part, least in parts.items())


def _differences(differs: dict[str, list[dict[str, Any]]]) -> None:
    for policy, changes in differs.items():
        if changes:
            rows = [(change["key"], str(change["old"]), str(change["new"])) for change in changes]
            table(f"What differs in the {policy} policy", rows, ("key", "there", "here"), text=True)
        else:
            out.print(f"The {policy} policies are the same.")


def curated(result: dict[str, Any]) -> None:
    """``redactory curate``."""
    _blind(result)
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
        out.print(f"{state} {check['name']:<24} {escape(check['detail'])}".rstrip(), soft_wrap=True)
    unmade = ", ".join(check["name"] for check in result["checks"] if check["ok"] and not check["made"])
    holds = f"every check holds; not made in full: {unmade}" if unmade else "every check holds"
    out.print(f"{result['run']}: {holds if result['ok'] else 'a check FAILED'}", soft_wrap=True)


def guarantee(card: dict[str, Any]) -> None:
    """``redactory guarantee``: each figure with its value, or the reason why there is none."""
    if card["event"] is None:
        # no unit is protected, and a row of nothings for each figure says no more
        told = f"{card['model']} ({card['trainer']}): {card['holds_reason']}"
        out.print(f"No guarantee holds for {told}", soft_wrap=True)
        beside_guarantee(card.get("audit"))
        return
    out.print(f"Guarantee of {card['model']} ({card['trainer']}): {card['unit']}", soft_wrap=True)
    out.print(card["relation_meaning"] or "", soft_wrap=True)
    _figures(card)
    beside_guarantee(card.get("audit"))


def composed_guarantee(card: dict[str, Any]) -> None:
    """``redactory guarantee`` of several models: which they are, and the figures of all together."""
    rows = [(one["run"], one["model"], one["trainer"], f"{one['steps']:,}") for one in card["models"]]
    table("Models, all in one hand", rows, ("run", "model", "trainer", "noisy steps"), text=True)
    if card["epsilon"] is None and not card["holds"]:
        out.print(f"No guarantee holds of all together: {card['holds_reason']}", soft_wrap=True)
        return
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
        f"Of {some(misses['n'], 'labelled secret')} drawn, π missed {misses['gamma']['misses']} (γ ≤ "
        f"{misses['gamma']['upper']:.4f}) and both policies {misses['delta_2']['misses']} (δ₂ ≤ "
        f"{misses['delta_2']['upper']:.4f}), at 95 % each. Missed is where a point comes out otherwise than "
        "with <MASK> in the secret's place, as the guarantee needs it; below is counted where some of a "
        "secret still stands.",
        soft_wrap=True,
    )
    rows = [
        (label, f"{c['secrets']:,}", f"{c['left_public']:,}", f"{c['left_private']:,}")
        for label, c in {**left["labels"], "all": left}.items()
    ]
    table("Secrets left in the shards", rows, ("label", "secrets", "public", "private"))


def simulated(result: dict[str, Any]) -> None:
    """``redactory simulate``."""
    secrets = sum(result["secrets"].values())
    out.print(
        f"Wrote {some(result['rows'], 'dialogue')} with {some(secrets, 'labelled secret')} to "
        f"{result['out']}",
        soft_wrap=True,
    )
    if result["canaries"]:
        out.print(f"Canaries: {result['canaries_file']}", soft_wrap=True)


def demo(result: dict[str, Any]) -> None:
    """``redactory demo``."""
    ran(result)
    base = result["baseline"]
    out.print("\nThe same model without protection (sgd on the raw text):")
    perplexity(base["evaluation"]["perplexity"])
    canary(base["evaluation"]["canary"])
    checks = result["verify"]["checks"]
    out.print(f"\nverify: {sum(c['ok'] for c in checks)} of {some(len(checks), 'check')} hold.")
    out.print(f"Configuration, to run it again: {result['configuration']}", soft_wrap=True)
    out.print(f"Report: {result['report']}", soft_wrap=True)


def _figures(card: dict[str, Any]) -> None:
    if "epsilon_sound" in card:
        unit_figures(card)
        return
    for name in _FIGURES:
        value, reason = card[name], card["reasons"].get(name, "")
        # what holds for all of them is said once, below
        reason = "" if reason == card["holds_reason"] else reason
        shown = "none" if value is None else upwards(value)
        out.print(f"  {name:<24} {shown:>8}  {reason}".rstrip(), soft_wrap=True)
    for size, value in card["epsilon_group"].items():
        shown = "none" if value is None else upwards(value)
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
