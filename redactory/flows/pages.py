"""What fitting prints for people: of a tagger, and of the conservative policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.markup import escape
from rich.text import Text

from redactory.flows.evaluation_pages import accuracy, beside_guarantee, canary
from redactory.flows.output import out, table
from redactory.foundation.errors import some, upwards
from redactory.pipelines.curated_hints import MENDS, curated_hints


def fitted(result: dict[str, Any]) -> None:
    """``redactory fit-policy``: the curve of public share against miss rate, and what was chosen."""
    out.print(
        f"One secret of each {result['unit']}: {result['secrets']:,} of {result['secrets_labelled']:,} "
        f"labelled ones, in {some(result['rows'], 'row')}. Bounded is {result['estimand']}.",
        soft_wrap=True,
    )
    chosen, curve, previous, rows = result["chosen"], result["curve"], None, []
    for point in curve:
        fate = (point["public_share"], point["misses"], point["holds"])
        present = _is_same(point, result["present"])
        if fate != previous or present:
            state = "chosen" if point == chosen else "holds" if point["holds"] else ""
            state = ", ".join(filter(None, (state, "present" if present else "")))
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
    if looser := _looser(chosen, result["present"]):
        out.print(f"It is looser than the present configuration: {'; '.join(looser)}.", soft_wrap=True)
    out.print(f"Its rows can be told again by {result['rows_file']}; keep it.", soft_wrap=True)
    if result["key_fresh"]:
        out.print(
            "No REDACTORY_KEY was set: no other process can tell these rows again, so none will measure what "
            "this policy misses. Set a lasting key and fit again.",
            soft_wrap=True,
        )


def _is_same(point: dict[str, Any], present: dict[str, Any]) -> bool:
    bounds = ("plain_confidence", "sure")
    return set(point["rules"]) == set(present["rules"]) and all(point[key] == present[key] for key in bounds)


def _looser(chosen: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """In what the chosen policy lets more text be public than the present one."""
    bounds = {"plain": "plain_confidence", "sure": "sure"}
    told = [
        f"{name} {chosen[key]:.8g} instead of {present[key]:.8g}"
        for name, key in bounds.items()
        if chosen[key] < present[key]
    ]
    gone = [rule for rule in present["rules"] if rule not in chosen["rules"]]
    return [*told, f"without {', '.join(gone)}"] if gone else told


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
        f"Held out, {some(held_out['rows'], 'text')}: {_share(held_out['cover_recall'])} of the spans "
        "covered, "
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


# What the terminal shows of a guarantee under a user or entity relation.


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


# What each command prints for people.


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
    from redactory.dedup.rules import told

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


# What ``redactory explain`` prints: the one page that shows text, and only on the terminal.


MASKED, FLAGGED = "bold white on red", "black on yellow"
Mark = dict[str, Any]


def explained(result: dict[str, Any], marks: Callable[[dict[str, Any]], None]) -> None:
    """The text with what each policy does to it in colours, then ``marks`` of it."""
    shown = Text(result["text"])
    for mark in result["marks"]:
        if mark["makes_private"] and not mark["masks"]:
            shown.stylize(FLAGGED, mark["start"], mark["end"])
    for mark in result["marks"]:
        if mark["masks"]:
            shown.stylize(MASKED, mark["start"], mark["end"])
    out.print(shown, soft_wrap=True)
    out.print(Text.assemble((" masked by π ", MASKED), " ", (" makes the point private ", FLAGGED)))
    out.print()
    if result["failure"]:
        out.print(f"The point would be quarantined: {result['failure']}")
        return
    out.print(f"Side: {result['side']}. What stands there: ", end="")
    out.print(Text(result["masked"]), soft_wrap=True)
    marks(result)


def every_mark(result: dict[str, Any]) -> None:
    """Each mark of each engine and rule, with what each policy makes of it."""
    rows = [
        (
            *_place(result["text"], mark["start"], mark["end"]),
            mark["label"],
            f"{mark['score']:.3f}",
            mark["detector"],
            "masks" if mark["masks"] else "",
            "private" if mark["makes_private"] else "",
        )
        for mark in result["marks"]
    ]
    if rows:
        table("Marks", rows, ("place", "text", "label", "score", "by", "π", "π_c"), text=True)
    else:
        out.print("No engine and no rule marks anything.")


def deciding_hits(result: dict[str, Any]) -> None:
    """One row for each place that is masked or makes the point private, with the hits that decide it."""
    marks: list[Mark] = result["marks"]
    masked = _together([mark for mark in marks if mark["masks"]])
    # what stands in a masked place adds nothing to what becomes of it
    flagged = _together(
        [
            m
            for m in marks
            if m["makes_private"] and not any(_overlap(m, one) for own in masked for one in own)
        ]
    )
    rows = [
        *((own, "masked") for own in masked),
        *((own, "makes private") for own in flagged),
    ]
    rows.sort(key=lambda row: row[0][0]["start"])
    if rows:
        headers = ("place", "text", "label", "score", "by", "")
        table("What decides", [_row(result["text"], own, what) for own, what in rows], headers, text=True)
    else:
        out.print("Nothing in it is masked or makes it private.")
    if left := len(marks) - sum(len(own) for own, _ in rows):
        out.print(f"{left} more {'mark changes' if left == 1 else 'marks change'} nothing; --all shows them.")


def _together(marks: Iterable[Mark]) -> list[list[Mark]]:
    """Marks in text order, those that overlap in one group."""
    groups: list[list[Mark]] = []
    end = 0
    for mark in sorted(marks, key=lambda one: (one["start"], one["end"])):
        if groups and mark["start"] < end:
            groups[-1].append(mark)
        else:
            groups.append([mark])
        end = max(end, mark["end"])
    return groups


def _overlap(one: Mark, other: Mark) -> bool:
    return bool(one["start"] < other["end"] and other["start"] < one["end"])


def _row(text: str, marks: list[Mark], what: str) -> tuple[str, ...]:
    place = _place(text, marks[0]["start"], max(mark["end"] for mark in marks))
    labels, detectors = (
        ", ".join(dict.fromkeys(mark[key] for mark in marks)) for key in ("label", "detector")
    )
    return (*place, labels, f"{max(mark['score'] for mark in marks):.3f}", detectors, what)


def _place(text: str, start: int, end: int) -> tuple[str, str]:
    return f"{start}–{end}", repr(text[start:end])
