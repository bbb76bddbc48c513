"""Commands that measure: ``redactory evaluate``."""

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

import redactory
from redactory.flows import options as opt
from redactory.flows.model_commands import describe_audit_result
from redactory.flows.options import command, drop_unset
from redactory.flows.show import MISSES, Page, Result, Shown, fill, format_interval, report_progress, table
from redactory.foundation.bounds import format_lower, format_upper
from redactory.foundation.errors import ConfigurationError

Test = Annotated[list[str] | None, Option(help="Held-out corpus; default: from the configuration.")]
Canaries = Annotated[Path | None, Option(help="FILE.canaries.json; default: from the configuration.")]


@command("evaluate detection")
def evaluate_detection(
    what: Annotated[str | None, Argument(metavar="CONFIG|RUN", help="A configuration, or a run.")] = None,
    output: opt.Output = None,
    labelled: Annotated[Path | None, Option(help="JSONL with the true spans (text, spans).")] = None,
    against: Annotated[
        list[str] | None,
        Option(
            help="Engines to compare on --labelled: presidio, spacy (both also :PIPELINE), stanza:FOLDER, "
            "transformers:FOLDER, or NAME:FOLDER of a package; separated by commas, or repeated."
        ),
    ] = None,
    engine: Annotated[str | None, Option(help="For a run: another engine that searches for leftovers.")] = None,
    sample: Annotated[int, Option(help="For a run: number of examples checked per split.", min=1)] = 5_000,
    rare: Annotated[int, Option(help="For a run: a phrase of at most this many examples is rare.", min=1)] = 2,
) -> Shown:
    """Measure what the policies find and miss in labelled text, or what the shards of a run reveal."""
    if against and labelled is None:
        raise ConfigurationError("--against compares engines on labelled rows: add --labelled")
    r: dict[str, Any]
    if labelled is not None and against:
        names = [name for part in against for name in part.split(",")]
        r = redactory.evaluate_against(labelled, names, what, progress=report_progress)
        return r, _describe_comparison(r)
    if labelled is not None:
        r = redactory.evaluate_detect(labelled, what, progress=report_progress)
        return r, _describe_detection(r)
    if what is None:
        raise ConfigurationError("give --labelled with a file of labelled rows, a configuration, or a run")
    if os.path.isdir(what):
        r = redactory.evaluate_redaction(what, engine, sample, rare, progress=report_progress)
        return r, _describe_redaction(r)
    r = redactory.evaluate_recall(what, output=output, progress=report_progress)
    return r, _describe_recall(r)


_ROWS = "{labelled}: {rows:n row}, {examples:n example} by {segment}, {secrets:n secret}"


def _describe_comparison(r: Result) -> Page:
    yield fill(_ROWS + ", language {language}.", r)
    header = ("", "covered", "precision", "recall", "public", "missed", "texts/s")
    rows = [row for engine in r["table"] for row in _list_scores(engine)]
    yield table("Comparison in per cent; below each value its interval at 95 %", header, rows)
    yield "covered: secrets found completely. precision, recall: of characters."
    yield "public, missed: examples in which nothing is found, without and with a secret. texts/s: on one core."
    labels = {label: scores["n"] for label, scores in r["table"][0]["by_label"].items()}
    cells = (
        [label, n, *(fill("{cover_recall[value]:.1%}", row["by_label"][label]) for row in r["table"])]
        for label, n in labels.items()
    )
    yield table("Covered, by label", ("label", "secrets", *map(_name_engine, r["table"])), cells)
    for engine in r["table"]:
        if engine["quarantined"] and engine["policy"] != "strict":
            yield fill("{engine} could not read {quarantined:n example}.", engine)


def _list_scores(scores: Result) -> Iterator[list[str]]:
    """Yield an engine's scores, and their intervals."""
    shares = [scores[key] for key in ("cover_recall", "char_precision", "char_recall", "public_share")]
    missed, speed = scores["miss_rate"], scores["texts_per_second"]
    values = [format_interval(share).partition(" ")[0].rstrip("%") for share in shares]
    yield [_name_engine(scores), *values, fill("{misses} of {n}", missed), fill("{value:,.0f}", speed)]
    intervals = map(format_interval, shares)
    ends = [interval.partition("(")[2].rstrip("%)").replace(" to ", "–").replace("%", "") for interval in intervals]
    speeds = f"{format_lower(speed['low'], places=0)}–{format_upper(speed['high'], places=0)}"
    yield ["", *ends, fill("up to {upper:3%}", missed), speeds]


def _name_engine(scores: Result) -> str:
    kind, colon, model = str(scores["engine"]).partition(":")
    return {"strict": "strict", "conservative": "both"}.get(scores["policy"], kind + colon + Path(model).name)


def _describe_detection(r: Result) -> Page:
    yield fill(_ROWS + "; {quarantined:n example} quarantined.", r)
    strict, both = r["strict"], r["conservative"]
    columns = {"metric": "{name}", "strict": "{strict:2}", "both": "{both:2}"}
    rows = [(key, strict[key], both[key]) for key in ("cover_recall", "char_precision", "char_recall", "f1", "f2")]
    for match in ("exact", "overlap"):
        rows += [(f"{match} {key}", strict[match][key], both[match][key]) for key in ("precision", "recall", "f1")]
    named = ({"name": name.replace("_", " "), "strict": one, "both": two} for name, one, two in rows)
    yield table("Found, at 95 %", columns, named)
    if any(share["low"] == share["high"] is not None for _, *shares in rows for share in shares):
        yield "Without an interval: the rows show no spread, so resampling them gives no bound."
    header = ("label", "secrets", "covered by strict", "missed by strict (γ)", "missed by both (δ₂)", "precision")
    keys = ("name", "n", "cover_recall", "gamma", "delta_2", "precision")
    yield table("By label, at 95 %", header, ([row[key] for key in keys] for row in list_labels(r)))
    yield "covered: secrets masked completely. precision: masks with this label that overlap a secret of any label."
    yield "up to: one-sided upper bound, as if each secret were drawn independently."
    yield EXPLAIN_GAMMA if r["gamma"]["misses"] else None
    public = {"public, of all examples": r["public_share"], "public, of clean examples": r["public_share"]["of_clean"]}
    rows = [(name, format_interval(share, 2), fill("{public} of {examples}", share)) for name, share in public.items()]
    yield table("What stays public", ("metric", "at 95 %", "counted"), rows)
    if worst := r["highest_gamma"]:
        yield fill("Highest γ: {stratification} {stratum}, " + MISSES + ".", worst)
    columns = {"label": "{name}", "spans": "{n}", "unmasked": "{open}"}
    yield table("Public labels: not counted as secrets or misses", columns, r["public"] or {})
    yield fill("{texts_per_second:,.0f} distinct examples per second", r) if r["texts_per_second"] else None


EXPLAIN_GAMMA = "Missed by strict also counts a completely masked secret if its mask would differ without it."


def list_labels(r: Result) -> Iterator[dict[str, Any]]:
    """Yield what the policies cover and miss of each label, and of all."""
    strict, missed = r["strict"], r["strata"].get("label", {})
    total = {"n": r["secrets"], "gamma": r["gamma"], "delta_2": r["miss_rate"]}
    for label, scores in [*strict["by_label"].items(), ("all", {**strict, "n": r["secrets"]})]:
        yield {"name": label, **scores, **_format_misses(total if label == "all" else missed.get(label))}


def _format_misses(shares: Result | None) -> dict[str, str]:
    return {key: fill(MISSES, {**shares, **shares[key]}) if shares else "none" for key in ("gamma", "delta_2")}


def _describe_redaction(r: Result) -> Page:
    columns = {"": "same {name}", "claims": "{claimed}", "right": "{share}", "by chance": "{chance}"}
    linkage = {unit: claims for unit, claims in r["linkage"].items() if claims is not None}
    yield table("Private examples linked to a public one by a rare phrase", columns, linkage)
    if (residual := r["residual"]) is not None:
        splits = {split: residual[split] for split in ("public", "private") if split in residual}
        columns = {"split": "{name}", "examples checked": "{looked_at}", "with a span": "{held}", "share": "{share}"}
        yield table(f"Suspected identifiers left, by {residual['engine']}, which did not mask", columns, splits)
        yield residual["note"] and f"Warning: {residual['note']}"
    if r["across"] is not None:
        yield fill("Public examples that nearly duplicate a private one: {across[public_examples]}", r)
    yield from (f"{what}: not measured: {reason}" for what, reason in r["reasons"].items())


def describe_measurements(measured: Result) -> Page:
    """Describe what ``redactory run`` measured."""
    pages = {"recall": _describe_recall, "accuracy": _describe_accuracy}
    pages |= {"perplexity": _describe_perplexity, "canary": _describe_canary}
    for name, describe in pages.items():
        if name in measured:
            yield from describe(measured[name])


def _describe_recall(r: Result) -> Page:
    missed, left = r["misses"], {**r["left"]["labels"], "all": r["left"]}
    yield fill("Of the labelled secrets, {n} were drawn; each bound holds at confidence {confidence:%}.", missed)
    yield "Missed: the example is treated differently than with <MASK> in place of the secret."
    columns = {"label": "{name}", "missed by strict (γ)": "{gamma}", "missed by both (δ₂)": "{delta_2}"}
    columns |= {"secrets": "{secrets}", "left in public": "{left_public}", "left in private": "{left_private}"}
    misses = {**missed["labels"], "all": missed}
    rows = {label: {**counts, **_format_misses(misses.get(label))} for label, counts in left.items()}
    yield table("Secrets drawn that were missed, and all secrets partly present in the shards", columns, rows)


@command("evaluate errors")
def evaluate_errors(
    labelled: Annotated[Path, Argument(metavar="LABELLED", help="JSONL with the true spans (text, spans).")],
    own_config: opt.OwnConfig = None,
    lists: Annotated[
        Path | None, Option(help="Write deny and allow lines that fix the errors, original text, to this private file.")
    ] = None,
) -> Shown:
    """Group what is missed and wrongly masked in labelled rows by kind, engine and recognizer; without the text."""
    r = redactory.evaluate_errors(labelled, own_config, lists=lists, progress=report_progress)
    return r, describe_errors(r)


def describe_errors(r: Result) -> Page:
    """Describe the errors of the strict policy by group, and the lines that fix them."""
    yield fill("{labelled}: {rows:n row}, {examples:n example} by {segment}; {quarantined} quarantined.", r)
    columns = {"problem": "{problem}", "label": "{label}", "found by": "{sources}", "count": "{count}"}
    yield table("Errors of the strict policy", columns | {"in public": "{public}", "rows": "{rows}"}, r["errors"])
    yield "in public: in an example of the public split. rows: the first ones." if r["errors"] else "No error."
    if r["lists"] is not None:
        yield fill("Wrote {deny:n line} to deny and {allow:n line} to allow, original text, to {lists}.", r)
        yield "Copy those that hold in general into your configuration, then remove the file. Measure with other rows."
        yield "Copy none from a corpus that is to be trained on: a policy tuned on it is a side channel."
    elif r["deny"] + r["allow"]:
        yield fill("--lists FILE writes {deny:n line} to deny and {allow:n line} to allow: original text.", r)
    if r["withheld"]:
        yield fill("Not offered to allow: {withheld:n term} that a labelled secret contains, or that contains one.", r)


@command("evaluate model")
def evaluate_model(run: opt.Run, model: opt.Model = None, test: Test = None) -> Shown:
    """Measure perplexity on held-out text, original and masked; for a classifier, the test error rate."""
    r = redactory.evaluate_model(run, model, test or (), progress=report_progress)
    return r, _describe_perplexity(r) if "as_is" in r else _describe_accuracy(r)


def _describe_perplexity(r: Result) -> Page:
    rows = {
        name.replace("_", " "): {"bits_per_character": None, **r[name]} for name in ("as_is", "masked") if name in r
    }
    if r.get("learnt_masked"):
        # it has never seen the secrets of the original text, which it would have to spell out
        rows["as is"] |= {"perplexity_per_word": "–", "perplexity": "–"}
    columns = {"held-out text": "{name}", "per word": "{perplexity_per_word:.2f}", "per token": "{perplexity:.2f}"}
    columns |= {"bits per character": "{bits_per_character:.3f}", "words": "{words}"}
    yield table(f"Perplexity of {r['model']}", columns, rows)
    if r.get("learnt_masked"):
        yield "The model was trained on masked text, so it would spell out each secret of the original text."


def _describe_accuracy(r: Result) -> Page:
    total = {
        "class": "all",
        "texts": r["texts"],
        "predicted": r["texts"],
        **{k: r[k] for k in ("error_rate", "f1", "auc")},
    }
    columns = {
        "class": "{class}",
        "texts": "{texts}",
        "errors": "{error_rate:.2%}",
        "texts predicted as it": "{predicted}",
        "F1": "{f1:.3f}",
        "AUC": "{auc:.3f}",
    }
    yield table(f"Test error rate of {r['model']}", columns, [*r["by_class"], total])
    yield fill("Always predicting the most frequent class: {majority_error_rate:.2%}; log loss {log_loss:.3f} nats", r)
    for row in r["by_class"]:
        if row["predicted"] == r["texts"] and r["majority_error_rate"]:
            yield fill("Warning: it predicts one class, {class}, for all texts: it has not learned the others.", row)
    yield fill("Left out: {without_class:n text} without a class, {other_class} with another", r["left_out"])
    if len(r["classes"]) <= 12:
        confusion = ([name, *counts] for name, counts in zip(r["classes"], r["confusion"], strict=True))
        yield table("Confusion matrix (columns: predicted)", ("class", *r["classes"]), confusion)


@command("evaluate synthetic")
def evaluate_synthetic(
    run: opt.Run,
    corpus: Annotated[Path, Argument(metavar="FOLDER", help="Output folder of redactory synthesize.")],
    model: Annotated[str | None, Option(help="The model that wrote it; default: from the configuration.")] = None,
    test: Test = None,
    canaries: Canaries = None,
) -> Shown:
    """Compare synthetic text with real text: its usefulness, and what it reveals of the training text."""
    options: dict[str, Any] = {"test": test or (), "canaries": canaries, "progress": report_progress}
    r = redactory.evaluate_synthetic(run, corpus, model, **options)
    return r, _describe_synthetic(r), 0 if r["holds"] else 1


_QUALITIES = {
    "next_word_accuracy": "next words predicted correctly, trained on it",
    "classifier_error": "classes predicted wrongly, trained on it",
    "unigram_distance": "distance of words, bits",
    "bigram_distance": "distance of pairs of words, bits",
    "length_distance": "distance of lengths, words",
    "distinct_2": "pairs of words that differ",
    "mauve": "MAUVE, features of public text",
}


def _describe_synthetic(r: Result) -> Page:
    columns = {"compared with held-out text": "{name}", "synthetic": "{written:.3g}", "as much real text": "{real:.3g}"}
    qualities = {words: r[key] for key, words in _QUALITIES.items() if r[key]["real"] is not None}
    yield table(fill("{rows:n text} that {model} wrote, epsilon {epsilon}", r), columns, qualities)
    nearest = fill("{nearest[value]:.3f}", r), fill("{nearest[low]} to {nearest[high]}", r)
    rows: list[tuple[Any, ...]]
    rows = [("nearest text was trained on", *nearest), ("membership, area under ROC", r["membership"]["auc"], "50%")]
    if r["canaries"] is not None:
        control = "{control_found} of {control} never planted"
        planted = (fill(cell, r["canaries"]) for cell in ("{inserted_found} of {inserted}", control))
        rows.append(("planted numbers", *planted))
    title = fill("What it reveals of its training text, compared with {compared:n text} never seen", r)
    yield table(title, ("attack", "found", "chance"), rows)
    above = f"More than chance ({', '.join(r['above_chance'])}): it cannot be exported."
    yield "None of these attacks found more than chance." if r["holds"] else above


AttackKind = Literal["canary", "extraction", "membership"]


@command("evaluate attack")
def evaluate_attack(
    context: typer.Context,
    kind: Annotated[
        AttackKind,
        Argument(
            metavar="KIND",
            help="canary: exposure of planted canaries; extraction: secrets in generated texts; membership: whether "
            "trained-on secrets, or of a classifier texts, can be told from others.",
        ),
    ],
    run: opt.Run,
    model: opt.Model = None,
    seed: opt.Seed = None,
    samples: Annotated[
        int | None, Option(help="Candidates drawn (20,000), or texts to generate (1,000).", min=1)
    ] = None,
    canaries: Canaries = None,
    tokens: Annotated[int | None, Option(help="extraction: maximum tokens per text (64).", min=1)] = None,
    temperature: Annotated[float | None, Option(help="extraction: as for predict (1).", min=0)] = None,
    top_k: Annotated[int | None, Option(help="extraction: as for predict (all).", min=1)] = None,
    completions: Annotated[int | None, Option(help="extraction: secrets to prompt for (500).", min=0)] = None,
    secrets: Annotated[Path | None, Option(help="membership: a labelled corpus (evaluate.labelled).")] = None,
    others: Annotated[Path | None, Option(help="membership: rows never trained on (drawn).")] = None,
    label: Annotated[str | None, Option(help="membership: label of the secrets (the most common one).")] = None,
    reference: Annotated[str | None, Option(help="membership: another model of this run, or another run.")] = None,
    count: Annotated[int | None, Option(help="membership: maximum sentences of each kind (1,000).", min=4)] = None,
    group_size: Annotated[int | None, Option(help="membership: sentences per group (20).", min=1)] = None,
    confidence: Annotated[float | None, Option(help="membership: confidence per interval (0.95).")] = None,
) -> Shown:
    """Attack a model: exposure of canaries, extraction of secrets, or membership inference."""
    options = drop_unset(**context.params | {"kind": None, "run": None})
    attack = getattr(redactory, f"evaluate_{kind}")
    for name in options.keys() - inspect.signature(attack).parameters.keys():
        raise ConfigurationError(f"--{name.replace('_', '-')} is not an option of the {kind} attack")
    if kind == "canary" and options.get("samples", 2_000) < 2_000:
        raise ConfigurationError("--samples: must be at least 2,000")
    describe = {"canary": _describe_canary, "extraction": _describe_extraction, "membership": _describe_membership}
    r = attack(run, progress=report_progress, **options)
    return r, describe[kind](r)


def _describe_canary(r: Result) -> Page:
    chance = {"highest_expected": None, "mean_expected": None, "highest_95": None, **(r.get("chance") or {})}
    missed = ("missed", "caught") if r.get("missed") else ()
    rows = [
        ("inserted", "{highest_exposure:.2f}", "{mean_exposure:.2f}"),
        *((f"  {name} by strict", f"{{highest_exposure_{name}:.2f}}", "") for name in missed),
        ("never inserted", "{control_highest_exposure:.2f}", "{control_mean_exposure:.2f}"),
        ("by chance, expected", "{highest_expected:.2f}", "{mean_expected:.2f}"),
        ("by chance, 95 % stay below", format_upper(chance["highest_95"], places=2), ""),
        ("largest possible", "{largest_possible:.2f}", ""),
    ]
    cells = ([fill(cell, r, **chance) for cell in row] for row in rows)
    yield table(f"Canary exposure of {r['model']}, bits", ("canaries", "highest", "mean"), cells)
    difference = (r.get("intervals") or {}).get("mean_difference") or {}
    if difference.get("value") is not None:
        # of few canaries a bootstrap is too narrow to be shown
        inserted = sum(canary["inserted"] for canary in r["canaries"])
        is_enough = min(inserted, len(r["canaries"]) - inserted) >= 10
        ends = fill(" ({low} to {high}, 95 %)", difference) if is_enough else ""
        yield fill("Mean of inserted minus never inserted: {value:.2f} bits", difference) + ends
    if chance.get("highest_p_value") is not None:
        probability = "By chance alone, a highest exposure this large has probability {highest_p_value:.2g}, a mean "
        yield fill(probability + "this large {mean_p_value:.2g}", chance)
    yield from (f"Not measured for some: {reason}" for reason in r.get("reasons", ()))
    yield fill("Copies of the canaries in its training data: {copies_left}", r)


def _describe_extraction(r: Result) -> Page:
    yield fill("Searched {samples:n text} of {model} for {secrets:n secret}: {found:2} found.", r)
    yield fill("Of control values never seen {controls_share:2} were found.", r)
    if r["p_value"] is not None:
        yield fill("By chance alone, as many are found with probability {p_value:.2g}.", r)
    keys = ("secrets", "secrets_found", "controls", "controls_found")
    times = {_format_times(counts): counts for counts in r["by_times_seen"] if counts["secrets"]}
    for title, groups in {"By label": r["by_label"], "By times seen in training": times}.items():
        rows = ((name, *(counts[key] for key in keys)) for name, counts in groups.items())
        yield table(title, ("", "secrets", "found", "controls", "found"), rows)
    completed = "Prompted with the preceding words: {secrets_found} of {secrets:n secret} completed, "
    yield fill(completed + "{controls_found} of {controls} controls", r["completion"])
    yield from (f"Not measured: {reason}" for reason in [*r["reasons"], *r["completion"]["reasons"]])


def _format_times(counts: Result) -> str:
    if counts["to"] is None:
        return fill("{from} or more", counts)
    return fill("{from}" if counts["from"] == counts["to"] else "{from} to {to}", counts)


_ATTACKS = {
    "individual": ("one sentence, by perplexity", "one text, by its class"),
    "group": ("a group, by the sum of perplexities", "a group, by the sum over its texts"),
    "reference": ("one sentence, against the reference model",) * 2,
    "rmia": ("the same, by rank (RMIA)",) * 2,
    "reference_alone": ("the reference model alone",) * 2,
}


def _describe_membership(r: Result) -> Page:
    by_class, rows = r["label"] is None, []
    for key, words in _ATTACKS.items():
        if (attack := r[key]) is not None:
            shares = [attack["accuracy"], attack["auc"], *attack.get("tpr", {}).values()]
            rows.append([words[by_class], *shares, "", ""][:5])
    header = ("attack", "accuracy", "area under ROC", "found at 0.1% false", "at 1% false")
    title = "texts with a class" if by_class else f"secrets labelled {r['label']}"
    yield table(f"Membership inference on {r['model']}: {title}", header, rows)
    kinds = (
        ("{members:n sentence}", "with a secret that was not")
        if not by_class
        else ("{members:n text}", "that were not")
    )
    yield fill(f"{kinds[0]} that were trained on and {{others}} {kinds[1]}; groups of {{group[group_size]}}.", r)
    yield fill("An accuracy of 50% is chance. In brackets: {confidence} confidence.", r)


@command("evaluate plant-canaries")
def plant_canaries(
    corpus: Annotated[Path, Argument(metavar="CORPUS", help="A JSONL corpus.")],
    out: Annotated[Path, Option(help="The copy with canaries, to be curated.")],
    canaries: Annotated[int, Option(help="Number of canaries, each with a fair coin.", min=1)] = 1_000,
    form: Annotated[
        Literal["pair", "masked", "absent"],
        Option(help="A coin decides: a number or another, or its mask, or no user."),
    ] = "pair",
    template: Annotated[str, Option(help="The sentence that ends with a number.")] = "The code is: {digits}",
    text: Annotated[str, Option("--text-column", help="Column of the text.")] = "text",
    identity: Annotated[str, Option("--id-column", help="Column of the document id.")] = "id",
    user: Annotated[str, Option("--user-column", help="Column of the user.")] = "user_id",
    seed: Annotated[int | None, Option(help="Test mode with coins that anybody can reproduce.")] = None,
) -> Shown:
    """Plant canaries by fair coins in a copy of a corpus: curate it, train, then run evaluate audit."""
    settings: dict[str, Any] = {"canaries": canaries, "form": form, "template": template, "seed": seed}
    columns = {"text": text, "id": identity, "user_id": user}
    r = redactory.plant_canaries(corpus, out, columns=columns, progress=report_progress, **settings)
    planted = fill("Planted {planted:n sentence} of {canaries:n canary/canaries} ({form}); curate {out}", r)
    coins = fill("Their coins, which the attacker must not see: {coins_file}", r)
    return r, [planted, coins]


@command("evaluate audit")
def evaluate_audit(
    run: opt.Run,
    model: opt.Model = None,
    confidence: opt.Confidence = 0.95,
    coins: Annotated[Path | None, Option(help="The .coins.json of plant-canaries; default: beside the input.")] = None,
) -> Shown:
    """One-run audit: compare the epsilon that an attack proves with the stated one; exit 1 if it is larger."""
    r = redactory.evaluate_audit(run, model, coins=coins, confidence=confidence, progress=report_progress)
    return r, _describe_audit(r), 0 if r["holds"] else 1


def _describe_audit(r: Result) -> Page:
    guesses = "{correct} of {guesses:n guess/guesses} right, of {canaries:n canary/canaries} ({form})."
    yield fill("One-run audit of {model}: " + guesses, r)
    rows = [
        ("proved: at least", format_lower(r["epsilon_lower"])),
        ("the same, if the training behaves like a Gaussian", format_lower(r["epsilon_lower_gaussian"])),
        ("stated: at most", format_upper(r["epsilon_upper"])),
    ]
    yield table(fill("At confidence {confidence}", r), ("", fill("epsilon at delta {delta}", r)), rows)
    if r["guarantee_p_value"] is not None:
        probability = "If the ledger's mechanism is what ran, this many correct guesses have probability at most "
        yield fill(probability + "{guarantee_p_value}.", r)
    yield describe_audit_result(r)
