"""Commands for models: plan, guarantee, budget, predict, synthesize."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import redactory
from redactory.flows import options as opt
from redactory.flows.options import command
from redactory.flows.show import Page, Result, Shown, fill, report_progress, table
from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError, InputError, pluralize


def describe_training(r: Result) -> Page:
    """Describe a training: its steps, its vocabulary, and its guarantee."""
    steps = "{steps:n noisy step}" if r["steps"] else "trained without noise"
    yield fill("{model} ({trainer}): " + steps + ", {seconds:.1f} s. Model and card: {run}/models/{model}", r)
    yield describe_vocabulary(r["guarantee"].get("vocabulary"))
    yield fill("Privacy unit: {unit}", r["guarantee"]) if r["steps"] else None
    yield from describe_guarantee(r["guarantee"])
    yield from describe_remarks(r["guarantee"])


def describe_remarks(r: Result) -> Page:
    """Describe what is likely to make a training worse."""
    return (f"Warning: {remark}." for remark in r.get("remarks") or ())


def describe_vocabulary(vocabulary: Result | None) -> str | None:
    """Describe a vocabulary, and how well it fits the public texts."""
    if not vocabulary:
        return None
    if "encoder" in vocabulary["made_of"]:
        line = fill("Encoder: {entries} numbers for each text", vocabulary)
    else:
        line = fill("Vocabulary: {entries:n entry/entries} of ", vocabulary) + " and ".join(vocabulary["made_of"])
    if vocabulary.get("added_rows"):
        line += fill("; {added_rows:n row} added to the folder's network, each the mean of the others", vocabulary)
    fit = "; in {texts:n public text} {tokens_per_word:.2f} tokens per word, {spelled_out:.1%} of the words spelled out"
    return line + (
        fill(fit + ", {cut:.1%} of the texts truncated", vocabulary["fit"]) * bool(vocabulary["fit"]["texts"])
    )


def describe_guarantee(r: Result) -> Page:
    """Describe the epsilons of a card that apply, each with its meaning and the reason if there is none."""
    from redactory.detectors.settings import format_public_label_note

    rows = _list_epsilons(r)
    failed = (one for one in r.get("conditions") or () if isinstance(one, Mapping) and one["holds"] is False)
    title = fill("At delta {delta}", r) if r.get("delta") else "Guarantee"
    yield table(title, _COLUMNS, rows if r["holds"] or any(value != "none" for _, value, _ in rows) else ())
    yield from (fill("condition {item} fails: {why}", condition) for condition in failed)
    yield from (r.get("recall"), format_public_label_note(r.get("public_labels", ())))
    yield None if r["holds"] else fill("No guarantee. Reason: {holds_reason}.", r)


_COLUMNS = ("metric", "", "for")


def _list_epsilons(r: Result) -> list[tuple[str, str, str]]:
    """List the epsilons of a card or plan that apply to its trainer, and those of several examples or users."""
    from redactory.training.guarantee.metrics import select_titles

    titles = select_titles(r)
    values = {name: r[name]["epsilon"] if isinstance(r[name], Mapping) else r[name] for name in titles}
    if "epsilon_sound" in r:
        sizes = {f"curve, {size}": _describe_size(r, size) for size in r.get("curve") or ()}
        values |= dict(zip(sizes, (r.get("curve") or {}).values(), strict=True))
    else:
        private = "private " if "epsilon_confidentiality" in titles else ""
        sizes = {f"epsilon_group, {size}": f"{size} {private}examples exchanged at once" for size in r["epsilon_group"]}
        values |= dict(zip(sizes, r["epsilon_group"].values(), strict=True))
    reasons = {name: f": {why}" for name, why in r["reasons"].items() if why and why != r.get("holds_reason")}
    return [
        (name, format_upper(values[name]), words + reasons.get(name.partition(",")[0], "") * (values[name] is None))
        for name, words in (titles | sizes).items()
    ]


# Guarantees before and after a training.


@command("plan")
def plan_training(
    config: Annotated[str | None, Argument(metavar="[CONFIG]", help="A configuration (.yaml).")] = None,
    settings: opt.Settings = None,
    output: opt.Output = None,
    plot: Annotated[Path | None, Option(help="SVG file: plot of epsilon against steps, or of the sweep.")] = None,
    sweep: Annotated[str | None, Option(help="epsilon: what other targets would need and cost.")] = None,
) -> Shown:
    """Compute the privacy cost of a training before it runs, from a configuration or --set alone."""
    r = redactory.plan(
        config, progress=report_progress, output=output, plot=plot, sweep=sweep, **opt.parse_settings(settings)
    )
    describe_units = _describe_unit_plan if "epsilon_sound" in r else _describe_training_plan
    return r, _describe_message_plan(r) if "sampling" in r else describe_units(r)


def _describe_noise(r: Result, rate: str) -> str:
    noise = ", noise multiplier {noise_multiplier:.4g} ({source}), delta {delta}"
    source = "calibrated to the target epsilon" if r["noise_calibrated"] else "as set"
    return fill("{trainer}: {steps:n noisy step} at sampling rate " + rate + noise, r, source=source)


def _describe_recipe_and_verdict(r: Result) -> Page:
    yield f"Chosen by the recipe: {', '.join(r['recipe'])}." if r["recipe"] else None
    yield fill("{verdict}.", r) if r["verdict"] is not None else None
    yield describe_vocabulary(r.get("vocabulary"))


def _describe_training_plan(r: Result) -> Page:
    yield _describe_noise(r, "{sampling_rate} (epochs: {epochs})")
    yield from _describe_recipe_and_verdict(r)
    yield fill("Privacy unit: {unit}.", r)
    yield table("What it would guarantee", _COLUMNS, _list_epsilons(r))
    yield None if r["epsilon_group"] else "For several examples exchanged at once, add --set 'group_sizes=[2, 4, 8]'."
    if r["examples_drawn"] is not None:
        drawn = "A noisy step samples {examples_drawn} of {private_examples} examples on average, and divides the sum "
        yield fill(drawn + "of their gradients by train.expected_batch_size, {expected_batch}.", r)
    if r["noise_to_batch"] is not None:
        noise = "Noise to batch: {noise_multiplier} / {expected_batch} = {noise_to_batch:.3g} of the clipping norm, "
        yield fill(noise + "on each coordinate of the mean gradient.", r)
    if (accuracy := r["accuracy"]) is not None:
        yield fill("Accuracy: the noise leaves about {retained_share:.0%} of the accuracy above chance.", accuracy)
        expected = "Expect {expected:.1%}, where training without noise reaches {without_noise:.1%}."
        unknown = "To predict the accuracy, add --set accuracy=A: the accuracy without noise on similar public rows."
        yield unknown if accuracy["expected"] is None else fill(expected, accuracy)
    yield from _describe_selection_and_sweep(r)
    published = "As published, not a guarantee: epsilon {epsilon}, Bayesian {epsilon_bayesian}."
    yield fill(published, r["as_published"]) if r["as_published"] is not None else None
    yield fill("Plot: {plot}", r) if "plot" in r else None


_EFFECT_COLUMNS = {"to signal": "{noise_to_signal:.3g}", "error": "{error:.3f}"}
_NOISE_COLUMNS = {"noise": "{noise_multiplier:.3g}", **_EFFECT_COLUMNS}
_SWEEP_COLUMNS = {"computation": "{computation:g}", "rate": "{sampling_rate}", "steps": "{steps}", **_NOISE_COLUMNS}
_SWEEP_COLUMNS |= {"learning rate": "{learning_rate:.2g}", "": "{mark}"}
_NETWORK_COLUMNS = {"network": "{network}", "parameters": "{parameters}", **_EFFECT_COLUMNS, "": "{mark}"}
_TARGET_COLUMNS = {"epsilon": "{epsilon:g}", **_NOISE_COLUMNS}


def _mark_rows(rows: Sequence[Result]) -> list[Result]:
    marks = (", ".join(["the plan"] * row["planned"] + ["best"] * row.get("best", False)) for row in rows)
    return [{**row, "mark": mark} for row, mark in zip(rows, marks, strict=True)]


def _describe_selection_and_sweep(r: Result) -> Page:
    if (selection := r.get("selection")) is not None:
        total = "epsilon_with_public" if "epsilon_with_public" in r else "the epsilons above"
        yield fill(
            "Public by count: from about {threshold} users on; its epsilon is part of {total}.", selection, total=total
        )
        yield "A job that selects every night makes 365 selections a year; once a month, over the month's rows, 12."
        columns = {"selections": "{selections}", "delta": "{delta}", "epsilon of all": "{epsilon}"}
        columns["threshold for the epsilon of one"] = "{threshold}"
        yield table("Selections per year, for a user in each of them", columns, selection["year"])
    title = "At about the same epsilon, for up to 16 times the computation (best of each; all with --json)"
    yield table(title, _SWEEP_COLUMNS, rows := _mark_rows([row for row in r["sweep"] if row["selected"]]))
    if (targets := r.get("epsilon_sweep")) is not None:
        shares = {"accuracy left": "{retained_share:.0%}"} if r["accuracy"] is not None else {}
        columns = {**_TARGET_COLUMNS, **shares, "": "{mark}"}
        yield table("Other targets, about, with these steps", columns, _mark_rows(targets))
    yield table("Other networks with this noise", _NETWORK_COLUMNS, _mark_rows(r["networks"]))
    if rows:
        yield "Noise: the noise multiplier. Learning rate: of noisy steps, scaled to their number."
    if rows and r["parameters"] is not None:
        signal = "To signal: the noise of all steps on {parameters} parameters, divided by the largest possible sum of "
        yield fill(signal + "their gradients.", r)
        yield "Error: an upper bound from steps and noise. Lower is better, but a small network learns less anyway."
    yield from describe_remarks(r)


def _describe_unit_plan(r: Result) -> Page:
    yield _describe_noise(r, "{sampling_rate}" if "sampling_rate" in r else "{user_rate}")
    yield from _describe_recipe_and_verdict(r)
    if r.get("noise") not in (None, r["noise_multiplier"]):
        yield fill("The noise multiplier is that of the sum of all updates; the paper's z is {noise:.4g}.", r)
    yield fill("Privacy unit: {unit} ({adjacency}).", r)
    yield table("What it would guarantee", _COLUMNS, _list_epsilons(r))
    yield None if r["curve"] else "For other numbers of examples, add --set 'group_sizes=[1, 4, 16]'."
    if r.get("K") is not None:
        yield fill("K = {K}: the largest number of examples that one unit changes.", r)
    if r.get("M") is not None:
        yield fill("M = {M}: the largest number of users who mention one entity ({M_source}).", r)
    if r["noise_to_batch"] is not None:
        units = "examples" if "adjacency_curve" in r else "users"
        noise = "Noise to batch: {noise_to_batch:.3g} of the clipping norm, on each coordinate of the mean over the "
        yield fill(noise + "{units} of a step.", r, units=units)
    caps = ({**cap, "mark": _SUGGESTED * cap["suggested"]} for cap in r.get("choices") or ())
    columns = {"k": "{k}{mark}", "kept at most": "{kept_at_most}", "K": "{K}", "epsilon, about": "{epsilon}"}
    yield table("Other caps, same noise and batch", columns, caps)
    yield from _describe_selection_and_sweep(r)
    if (corpus := r.get("corpus")) is not None:
        kept = [{**cap, "mark": _SUGGESTED * (cap["cap"] == corpus["suggested"])} for cap in corpus["choices"]]
        columns = {"k": "{cap}{mark}", "kept": "{kept}", "K": "{affected}", "noise": "{noise_multiplier}"}
        columns["noise to batch"] = "{relative_noise}"
        yield table(fill("In this run, for epsilon {target} ({note})", corpus), columns, kept)
        labels = corpus["by_label"].items()
        rows = [(label, count, *(cap["by_label"].get(label, 0) for cap in kept)) for label, count in labels]
        header = ("label", "all", *(f"k = {cap['cap']}" for cap in kept))
        yield table("Examples that are kept, by what they mention", header, rows)
    yield fill("Plot: {plot}", r) if "plot" in r else None


_SUGGESTED = " (suggested)"


def _describe_size(r: Result, size: str) -> str:
    if "adjacency_curve" in r:
        return str(r["adjacency_curve"]).replace("any", "Any").replace("K examples", pluralize(int(size), "example"))
    users = pluralize(int(size), "user")
    return f"{users} at once" if r["M"] is None else f"An entity that at most {users} mention{'s' * (size == '1')}"


def _describe_message_plan(r: Result) -> Page:
    yield fill("ldp: {unit}; noise multiplier {noise_multiplier:.4g} ({noise_source}), delta {delta}", r)
    yield fill("Sent: {sampling[meaning]}.", r)
    meaning = ": ".join(filter(None, ["Any other in its place", r["reasons"].get("epsilon_sound")]))
    row = ("epsilon_sound", format_upper(r["epsilon_sound"]), meaning)
    yield table("What it would guarantee", _COLUMNS, [row])
    yield r["relation_meaning"]
    moved = "Exchanging it moves a message by at most {sensitivity_in_words} (C: the clipping norm); mu = {mu:.4g} per "
    yield fill(moved + "message.", r)
    yield table("The same noise", {"how a sentence is sent": "{sampling}", "epsilon": "{epsilon}"}, r["compared"])
    if r["query"]:
        query = "A query: {sampling[meaning]}. Its noise multiplier is {noise_multiplier:.4g}, its epsilon "
        yield fill(query + "{epsilon_sound}; as published, not a guarantee, {epsilon_as_published}.", r["query"])
    published = "As published ({as_published[formula]}): {epsilon_as_published}. This is not a guarantee: "
    yield fill(published, r) + "; ".join(r["as_published"]["why_not"].values()) + "."
    yield from r["notes"]
    yield from (f"Holds only if {condition}." for condition in r["conditions"])


@command("guarantee")
def state_guarantee(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="One or several run folders.")],
    model: Annotated[list[str] | None, Option(help="A trained model; repeat for several together.")] = None,
    delta: Annotated[float | None, Option(help="Of several models: delta of the epsilons.")] = None,
) -> Shown:
    """State the guarantee of one or several trained models, recomputed from their ledgers."""
    from redactory.redaction import RunFolder

    first, *also = runs
    named = model[0] if model and len(model) == 1 else model or None
    r: dict[str, Any] = dict(redactory.guarantee(first, named, also=also, delta=delta))
    if "models" in r:
        return r, describe_composition(r)
    others = [other for other in RunFolder(first).list_model_names() if other != r["model"]]
    every = [part for name in (r["model"], *others) for part in ("--model", name)]
    together = shlex.join(["redactory", "guarantee", str(first), *every])
    is_refuted = bool(r.get("audit")) and not r["audit"]["holds"]
    return r, _describe_card(r, others, together), 1 if is_refuted else 0


def _describe_card(r: Result, others: Sequence[str], together: str) -> Page:
    if r["event"] is None:
        yield fill("{model} ({trainer}) has no guarantee: {holds_reason}", r)
    else:
        yield fill("Guarantee of {model} ({trainer}): {unit}", r)
        yield r["relation_meaning"]
        yield from describe_guarantee(r)
    yield from describe_remarks(r)
    yield describe_audit_result(r["audit"]) if r.get("audit") else None
    if others:
        combined = f"Guarantee against somebody who also has {', '.join(others)}: {together}"
        yield f"For {r['model']} alone. {combined}"


def describe_audit_result(r: Result) -> str:
    """Compare the epsilon that a one-run audit proves with the stated one."""
    stated = "; the guarantee states at most {epsilon_upper}."
    if not r["comparable"]:
        stated = "; not comparable: {reason}."
    elif not r["holds"]:
        stated = ", but the guarantee states at most {epsilon_upper} and is FALSE."
    proved = "A one-run audit of {canaries:n canary/canaries} proves, at {confidence:%} confidence, epsilon of at "
    return fill(proved + "least {epsilon_lower}" + stated, r)


def describe_composition(r: Result) -> Page:
    """Describe the guarantee of several models that are published together."""
    columns = {"run": "{run}", "model": "{model}", "trainer": "{trainer}", "noisy steps": "{steps}"}
    yield table("Models, published together", columns, r["models"])
    if r["epsilon"] is None and not r["holds"]:
        yield fill("All together have no guarantee: {holds_reason}", r)
    else:
        yield fill("{unit}. {relation_meaning}", r)
        yield from describe_guarantee(r)


@command("budget")
def show_budget(
    config: Annotated[str, Argument(metavar="CONFIG", help="A configuration (.yaml) with train.budget.")],
) -> Shown:
    """Show what has been spent of the configuration's train.budget, and by which trainings."""
    r = redactory.budget(config)
    return r, describe_budget(r)


def describe_budget(r: Result) -> Page:
    """Describe what is spent of a budget, and by which trainings."""
    spent = "no finite epsilon" if r["spent"] is None else format_upper(r["spent"], places=4)
    over = ": over the budget" if r["spent"] is None or r["spent"] > r["epsilon"] else ""
    amounts = "{budget}: {amount} of {epsilon} spent{over}, at delta {delta}; privacy unit: {unit}"
    yield fill(amounts, r, amount=spent, over=over)
    rows = ({**row, "total": format_upper(row["epsilon_after"], places=4)} for row in r["trainings"])
    columns = {"training": "{training}", "steps": "{steps}", "epsilon with it": "{total}", "at delta": "{delta}"}
    yield table("Recorded", columns, rows)


# Use of a model, shown with its guarantee.


@command("predict")
def predict(
    model: Annotated[Path, Argument(metavar="MODEL_FOLDER", help="A trained model: RUN/models/NAME, or a copy.")],
    file: Annotated[str | None, Argument(metavar="FILE", help="Texts, one per line, or JSONL; - is stdin.")] = None,
    seed: opt.Seed = None,
    text: Annotated[list[str] | None, Option(help="A text; repeatable.")] = None,
    top: Annotated[int, Option(help="Number of answers per text, the likeliest first.", min=1)] = 5,
    generate: Annotated[int | None, Option(help="Write N continuations of each text, or N texts.", min=1)] = None,
    tokens: Annotated[int, Option(help="With --generate: maximum tokens per text.", min=1)] = 100,
    temperature: opt.Temperature = 1.0,
    top_k: Annotated[int | None, Option(help="Sample only from this many of the likeliest tokens.", min=1)] = None,
) -> Shown:
    """Use a trained model: predict the next word or the class of each text, or generate texts."""
    if (file is not None and text) or (file is None and not text and generate is None):
        raise ConfigurationError("give texts: --text, a file, or - for standard input")
    texts = tuple(text or ()) if file is None else tuple(_read_texts(file))
    sampling: dict[str, Any] = {"tokens": tokens, "temperature": temperature, "top_k": top_k, "seed": seed}
    r = redactory.predict(model, texts or ("",), top=top, write=generate, progress=report_progress, **sampling)
    prompts = r.get("prompts") or texts or ("",)
    return r, _describe_predictions(r) if generate is None else _describe_texts(r, prompts)


def _describe_predictions(r: Result) -> Page:
    answer = "class" if r["task"] == "classify" else "token"
    for place, answers in enumerate(r["results"], 1):
        rows = ((entry[answer].replace(" ", "␣"), f"{entry['probability']:.4f}") for entry in answers)
        yield table(f"Text {place}", (answer, "probability"), rows)
    yield from describe_promise(r)


def _describe_texts(r: Result, prompts: Sequence[str]) -> Page:
    for prompt, texts in zip(prompts, r["texts"], strict=True):
        for text in texts:
            yield from (prompt + text).splitlines()
            yield " "
    yield f"Seed: {r['seed']}"
    yield from describe_promise(r)


def describe_promise(r: Result) -> Page:
    """Describe the guarantee of a model in use."""
    card = r["guarantee"]
    stated = "no epsilon" if card["epsilon"] is None else fill("epsilon {epsilon} at delta {delta}", card)
    yield f"{r['model']} ({card['trainer']}): {stated if card['holds'] else 'no guarantee'}"
    yield from (f"  {line}" for line in (card["unit"], card["relation_meaning"] or card["relation"]) if line)
    yield card["reason"] and f"  Why: {card['reason']}"


def _read_texts(file: str) -> list[str]:
    path = Path(file)
    if path.suffix == ".jsonl":
        return _read_document_texts(path)
    try:
        content = opt.read_standard_input() if file == "-" else path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read as text: {type(error).__name__}") from None
    lines = [line for line in content.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{'standard input' if file == '-' else path.name} contains no text")
    return lines


def _read_document_texts(path: Path) -> list[str]:
    from redactory.pipelines.readers import Document, InputSettings, find_sources, read_documents

    settings, texts = InputSettings(path=(str(path),)), []
    with path.open(encoding="utf-8", errors="replace") as lines:
        if re.match(r'\s*{.*"messages"\s*:', next(lines, "")):
            settings = settings.model_copy(update={"text": "messages"})
    for source in find_sources(settings.path, settings.format):
        for entry in read_documents(source, settings):
            if not isinstance(entry, Document):
                raise InputError(f"{entry.source}, row {entry.row}: {entry.reason}")
            texts.append(entry.text)
    return texts


@command("synthesize")
def synthesize(
    run: opt.Run,
    rows: Annotated[int, Option(help="Number of texts to write.", min=1)],
    out: Annotated[Path, Option(help="A new folder.", metavar="FOLDER")],
    model: opt.Model = None,
    seed: opt.Seed = None,
    labels: Annotated[list[str] | None, Option("--label", help="A class or role that is public; repeatable.")] = None,
    histogram: Annotated[float | None, Option(help="Noise of counts of classes and lengths; adds to epsilon.")] = None,
    temperature: opt.Temperature = 1.0,
    top_p: Annotated[float, Option(help="Sample only from the likeliest tokens of this total probability.")] = 1.0,
    tokens: Annotated[int, Option(help="Maximum tokens per text.", min=1)] = 100,
    stop: Annotated[list[str] | None, Option(help="A text ends before this string; repeatable.")] = None,
    drop_suspected: Annotated[
        bool, Option("--drop-suspected", help="Leave out texts that conservative suspects.")
    ] = False,
    no_guarantee: Annotated[bool, Option("--no-guarantee", help="Allow a model without one; no export.")] = False,
) -> Shown:
    """Let a model with a guarantee write a corpus that may be shared, with a card."""
    options: dict[str, Any] = {"labels": labels or (), "histogram": histogram, "stop": stop or (), "seed": seed}
    options |= {"temperature": temperature, "top_p": top_p, "tokens": tokens, "progress": report_progress}
    options |= {"drop_suspected": drop_suspected, "no_guarantee": no_guarantee}
    r = redactory.synthesize(run, model, rows=rows, out=out, **options)
    return r, _describe_synthesis(r)


def _describe_synthesis(r: Result) -> Page:
    written = "{model} of {run} wrote {rows:n text} into {out}; in {surrogates} of them values were replaced by "
    yield fill(written + "invented ones.", r)
    if r["holds"]:
        histogram = ", with the histogram of classes and lengths" if r["histogram"] else ""
        yield fill("epsilon {epsilon} at delta {delta}, for {unit}", r) + histogram
    else:
        yield fill("They have no guarantee, and cannot be exported: {holds_reason}", r)
    yield fill("{lengths_met} have the drawn length.", r) if r["histogram"] else None
    yield fill("Next: redactory evaluate synthetic {run} {out} --model {model}", r)
