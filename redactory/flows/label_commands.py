"""Commands for labelled rows: people label them, a tagger or a policy is fitted to them, or misses are measured."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import redactory
from redactory.flows import options as opt
from redactory.flows.evaluate_commands import EXPLAIN_GAMMA, list_labels
from redactory.flows.options import command, drop_unset
from redactory.flows.show import MISSES, Page, Result, Shown, fill, report_progress, table
from redactory.foundation.bounds import format_lower, format_upper

HeldBack = Annotated[Path | None, Option(help="Other labelled rows, to compare the policies before and after.")]

# ``redactory label``: rows to fit a tagger, or a sample to measure misses.


@command("label active")
def select_active_sample(
    config: opt.Config,
    out: Annotated[Path, Option(help="Folder to write; it holds original text.")],
    n: Annotated[int, Option("-n", help="Number of documents.", min=1)] = 50,
    labelled: Annotated[list[Path] | None, Option(help="Rows that are already labelled; repeatable.")] = None,
    seed: Annotated[int, Option(help="Another seed examines other documents.")] = 0,
) -> Shown:
    """Choose the documents that help a tagger most, where the policies are unsure; not for measuring."""
    r = redactory.label_active(config, out, n, labelled=labelled or (), seed=seed, progress=report_progress)
    count = "Chose {count:n document} of {looked_at} checked ones: {doubt} where the engines are unsure, {random} at "
    chosen = {"doubt": 0, "random": 0, "count": sum(r["chosen"].values()), **r["chosen"]}
    page = [
        fill(count + "random; {words} words.", r, **chosen),
        "Label EVERY secret in every text; masked ones are prefilled, for you to correct.",
        *(f"  {path}" for path in r["files"].values()),
        "They contain original text. Fit a tagger to them: redactory fit tagger LABELLED... --out FOLDER",
        "They are not a random sample: measure nothing with them.",
    ]
    return r, page


@command("label random")
def draw_label_sample(
    run: opt.Run,
    seed: opt.Seed = None,
    name: opt.Sample = "sample",
    n: Annotated[int, Option("-n", help="Maximum number of texts to label.", min=1)] = 400,
    public_share: Annotated[float, Option(help="Share of public texts.")] = 0.6,
) -> Shown:
    """Sample examples of a finished run for people to label: JSON lines, Label Studio tasks, a table."""
    r = redactory.label_random(run, n, seed=seed, name=name, public_share=public_share)
    return r, _describe_random_sample(r)


def _list_strata(r: Result) -> Iterator[dict[str, Any]]:
    for name, stratum in r["strata"].items():
        yield {"name": name, **stratum, "drawn": "all" if stratum["whole"] else stratum["draws"]}


def _describe_random_sample(r: Result) -> Page:
    columns = {"stratum": "{name}", "examples": "{examples}", "drawn": "{drawn}", "texts to label": "{texts}"}
    yield table(f"Sample '{r['name']}', seed {r['seed']}", columns, _list_strata(r))
    if r["quarantined"]:
        yield fill("Not drawn, and counted as missed by the strict policy: {quarantined:n quarantined example}", r)
    if count := sum(r["fitted_on"].values()):
        yield fill("Not drawn, and counted as missed: {count:n example} that the policy was fitted on", r, count=count)
    yield "Label EVERY secret in every text, including masked ones, which are prefilled. Delete or correct wrong ones."
    yield "A text without a secret keeps an empty list. Change only 'spans', and keep every row."
    names = {"rows": "JSON lines", "tasks": "Label Studio", "interface": "its interface"}
    yield table("Files", (), {name: str(r["files"][key]) for key, name in names.items()})
    yield "They contain original text: keep them, and what you derive from them, beside the run."
    sample = "" if r["name"] == "sample" else f" --sample {r['name']}"
    yield f"Then: redactory label score {r['run']} LABELLED{sample}"


@command("label score")
def score_labels(
    run: opt.Run,
    labelled: Annotated[Path, Argument(metavar="LABELLED", help="The labelled JSON lines, or Label Studio's JSON.")],
    confidence: opt.Confidence = 0.95,
    name: opt.Sample = "sample",
    unchanged: Annotated[bool, Option("--unchanged", help="Score even if no label was changed.")] = False,
) -> Shown:
    """Measure which labelled secrets the policies miss; guarantees use these numbers."""
    settings: dict[str, Any] = {"name": name, "confidence": confidence, "unchanged": unchanged}
    r = redactory.label_score(run, labelled, progress=report_progress, **settings)
    return r, _describe_score(r)


_SHARE_COLUMNS = {
    "label": "{name}",
    "secrets": "{n}",
    "γ observed": "{gamma[rate]:.3g}",
    "γ at most": "{gamma[upper]}",
    "δ₂ observed": "{delta_2[rate]:.3g}",
    "δ₂ at most": "{delta_2[upper]}",
}


def _describe_score(r: Result) -> Page:
    from redactory.evaluation.report import explain_zero_bounds

    sample = (
        "Sample '{sample[name]}' of {drawn[date]}, scored on {sample[date]}: {texts:n text} with {secrets:n secret}."
    )
    yield fill(sample + " In {changed:n text} the labels differ from the prefilled ones.", r)
    if (replaces := r["replaces"]) is not None:
        bounds = " (γ at most {gamma_upper}, δ₂ at most {delta_2_upper})."
        yield f"Replaces the score of {replaces['date'] or 'a day that was not recorded'}{fill(bounds, replaces)}"
    columns = {"stratum": "{name}", "examples": "{examples}", "drawn": "{drawn}", "with a secret": "{secrets:,.6g}"}
    columns |= {"missed by strict": "{missed_by_strict:,.6g}", "by both": "{missed_by_both:,.6g}"}
    yield table("Examples, each counted by one of its secrets", columns, _list_strata(r))
    misses, shares = r["misses"], {**r["misses"]["labels"], "all": r["misses"]}
    title = fill("Share of secrets missed, each bound at confidence {confidence}", misses)
    yield table(title, _SHARE_COLUMNS, shares)
    if any(share[key]["rate"] is None for share in shares.values() for key in ("gamma", "delta_2")):
        yield "none: no secret was drawn, so nothing was observed; the upper bound holds."
    if misses["gamma"]["misses"]:
        yield EXPLAIN_GAMMA
    yield from explain_zero_bounds(r)
    yield f"A share is {r['estimand']}."
    for goal in r["needed"]:
        if goal["public_draws"] == 0:
            yield fill("This sample proves δ₂ ≤ {delta_2}.", goal)
        else:
            few = "a sample with more of the private examples"
            draws = few if goal["public_draws"] is None else "{public_draws} public draws of a sample like this one"
            needed = "To prove δ₂ ≤ {delta_2} without a miss: {secrets:n secret} drawn independently, or "
            yield fill(needed + draws + ".", goal)
    yield "Models trained on this run from now on use these bounds in their guarantee; a finished model keeps its own."
    yield "These numbers are computed from private text: publishing them is a separate release."


@command("label agreement")
def measure_agreement(
    first: Annotated[Path, Argument(metavar="FIRST", help="One annotator's JSONL, or Label Studio's JSON.")],
    second: Annotated[Path, Argument(metavar="SECOND", help="Another annotator's file of the same rows.")],
) -> Shown:
    """Measure how far two annotators agree on the rows in both files, and list the rows that differ by number."""
    r = redactory.label_agreement(first, second)
    return r, describe_agreement(r)


def describe_agreement(r: Result) -> Page:
    """Describe how far two annotators agree, and which rows differ."""
    rows = (
        (label, *row["spans"], _format_kappa(row["kappa"]), row["exact"], row["overlap"])
        for label, row in [*r["by_label"].items(), ("all", r)]
    )
    header = ("label", "spans of first", "of second", "kappa", "F1", "overlapping")
    yield table(fill("Agreement in {rows:n row}, {tokens:n token}, at 95 %", r), header, rows)
    if any(r["only"]):
        yield fill("Not compared: {only[0]:n row} only in the first, {only[1]} only in the second.", r)
    yield "kappa: of tokens (words, single symbols); 1 is full agreement, 0 is chance. F1: of spans with equal labels"
    yield "and bounds. overlapping: share of spans that overlap one of the other annotator with the same label."
    cells = [
        (str(row["row"]), _format_labels(row["first"]), _format_labels(row["second"])) for row in r["differing_rows"]
    ]
    yield table(f"Rows that differ: {len(cells):,}", ("row", "only first", "only second"), cells)


def _format_kappa(kappa: Result) -> str:
    ends = f"({format_lower(kappa['low'], places=2)} to {format_upper(kappa['high'], places=2)})"
    return "none" if kappa["value"] is None else f"{kappa['value']:.2f} {ends}"


def _format_labels(counts: Result) -> str:
    return ", ".join(f"{label} {count:,}" for label, count in counts.items()) or "–"


# ``redactory fit``: a tagger, or the conservative policy.


@command("fit tagger")
def fit_tagger(
    labelled: Annotated[list[Path], Argument(metavar="LABELLED...", help="JSONL with the true spans (text, spans).")],
    out: Annotated[Path, Option(help="The tagger's folder.")],
    seed: opt.Seed = None,
    epochs: Annotated[int | None, Option(help="Number of passes over the rows.", min=1)] = None,
    held_back: HeldBack = None,
    own_config: opt.OwnConfig = None,
) -> Shown:
    """Train and calibrate a token tagger on labelled rows."""
    settings, compared = drop_unset(seed=seed, epochs=epochs), {"held_back": held_back, "config": own_config}
    r = redactory.fit_tagger(labelled, out, settings, progress=report_progress, **compared)
    return r, describe_tagger(r)


def describe_tagger(r: Result) -> Page:
    """Describe a fitted tagger: what it covers on held-out rows, and how well its confidence is calibrated."""
    missed = r["held_out"]["by_label"]
    rows = [(label, n, fill(MISSES, missed[label]) if label in missed else "none") for label, n in r["labels"].items()]
    yield table("Labels", ("label", "spans trained on", "not covered completely, held out"), rows)
    scores = "{cover_recall:.1%} of the spans covered, {char_precision:.1%} of the found characters labelled."
    yield fill("Held out, {rows:n text}: " + scores, r["held_out"])
    if r["start_held_out"] is not None:
        yield fill("The tagger it started from, on the same texts: " + scores, r["start_held_out"])
    if r["worse_than_start"]:
        yield "Warning: this tagger is worse than the one it started from, on held-out rows; use the earlier one."
        yield "Check the labels, or label more rows, and fit again."
    yield from _compare_policies(r["held_back"])
    calibrated = (
        "Calibrated: temperature {temperature}, calibration error {error_before:.4f} before, {error:.4f} after, "
    )
    yield fill(calibrated + "on {tokens:n token} held out from both.", r["reliability"])
    if r["reliability"]["error"] > r["reliability"]["error_before"]:
        yield "Warning: calibration made the confidence worse on held-out rows: label more rows, or raise held_out, and"
        yield "fit again. Until then, measure with redactory evaluate detection on other rows."
    yield f"Wrote {r['tagger']}: name it beside default in detect.tagger.models"


def _compare_policies(measured: Mapping[str, Result] | None) -> Page:
    """Compare the policies before and after a fit on the same rows, and say which is better."""
    if measured is None:
        yield "To compare it with the present configuration on other labelled rows: --held-back FILE."
        return
    (first, before), (second, after) = measured.items()
    keys = {"cover_recall": "covered by strict", "delta_2": "missed by both"}
    labels = zip(*([row for row in list_labels(r) if row["n"]] for r in measured.values()), strict=True)
    rows = [(old["name"], old["n"], *(row[key] for key in keys for row in (old, new))) for old, new in labels]
    header = (f"{what}: {name}" for what in keys.values() for name in measured)
    yield table(fill("Held back, at 95 %: {rows:n row} of {labelled}", before), ("label", "secrets", *header), rows)
    precise = "{strict[char_precision]} of the masked characters are sensitive; "
    for name, r in measured.items():
        yield fill(f"{name}: {precise}{{public_share[of_clean]}} of the clean examples are public.", r)
    gains = [new - old for old, new in zip(_list_scores(before), _list_scores(after), strict=True)]
    if not any(gains):
        yield f"Neither is better: {first} and {second} are equal in all of these."
    elif min(gains) < 0 < max(gains):
        yield f"Neither is better in all of these: {second} gains in some and loses in others."
    else:
        yield f"Better on these rows: {second if max(gains) > 0 else first}. If intervals overlap, it may be chance."


def _list_scores(r: Result) -> list[float]:
    shares = r["strict"]["cover_recall"], r["strict"]["char_precision"], r["public_share"]["of_clean"]
    return [-r["miss_rate"]["misses"], *(share["value"] or 0.0 for share in shares)]


@command("fit policy")
def fit_policy(
    labelled: Annotated[Path, Argument(metavar="LABELLED", help="JSONL with the true spans (text, spans).")],
    own_config: opt.OwnConfig = None,
    confidence: opt.Confidence = 0.95,
    out: Annotated[Path, Option(help="The policy file to write.")] = Path("policy.yaml"),
    miss_rate: Annotated[float, Option(help="Upper bound on the share of missed secrets.")] = 0.001,
    held_back: HeldBack = None,
) -> Shown:
    """Fit the conservative policy to labelled rows to bound the share of missed secrets."""
    settings: dict[str, Any] = {"config": own_config, "miss_rate": miss_rate, "confidence": confidence}
    r = redactory.fit_policy(labelled, out=out, held_back=held_back, progress=report_progress, **settings)
    return r, _describe_policy(r), 1 if r["chosen"] is None else 0


_CURVE_COLUMNS = {
    "min_non_entity_probability": "{min_non_entity_probability:.8g}",
    "public": "{public_share:.1%}",
    "of clean": "{clean_public_share:.1%}",
    "missed": "{misses}",
    "rate": "{rate:.3%}",
    "at most": "{upper:%}",
    "": "{state}",
}


def _describe_policy(r: Result) -> Page:
    rows = "One secret of each {unit}: {secrets} of {secrets_labelled} labelled ones, in {rows:n row}. "
    yield fill(rows + "The bound is on {estimand}.", r)
    yield table("Public share against miss rate, from the safest policy on", _CURVE_COLUMNS, _list_changes(r))
    bound, confidence = format_upper(r["miss_rate"], 6), format_lower(r["confidence"], 6)
    goal = f"a miss rate of at most {bound} at confidence {confidence}"
    if r["chosen"] is None:
        yield f"No policy that leaves any example public proves {goal}: nothing was written."
        return
    yield f"Wrote {r['out']}: these labels prove {goal}."
    chosen, present = (r[key]["min_non_entity_probability"] for key in ("chosen", "present"))
    if chosen < present:
        changed = f"min_non_entity_probability {chosen:.8g} instead of {present:.8g}"
        yield f"It is looser than the current configuration: {changed}."
    yield "All rows chose it, so its misses here do not measure it; the bound takes that into account."
    yield from _compare_policies(r["held_back"])
    yield f"{r['rows_file']} identifies its rows; keep it."
    if r["key_fresh"]:
        yield "No REDACTORY_KEY was set: no other process can identify these rows to measure the misses of this policy."
        yield "Set a permanent key and fit again."


def _list_changes(r: Result) -> Iterator[dict[str, Any]]:
    """Yield the points of the curve at which the decision changes, and the present one."""
    last = None
    for point in r["curve"]:
        decision = point["public_share"], point["misses"], point["holds"]
        is_present = point["min_non_entity_probability"] == r["present"]["min_non_entity_probability"]
        if decision != last or is_present:
            state = "chosen" if point == r["chosen"] else "holds" if point["holds"] else ""
            yield {**point, "state": ", ".join(filter(None, (state, "present" * is_present)))}
        last = decision
