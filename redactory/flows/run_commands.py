"""Commands from a corpus to a model in use, and its guarantee."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redactory
from redactory.flows.options import REQUIRED, argument, command, option, parse_set_options, read_standard_input, switch
from redactory.flows.show import CommandResult, print_warning
from redactory.foundation.errors import ConfigurationError, InputError, pluralize
from redactory.foundation.files import make_private_folder, read_json
from redactory.foundation.keys import load_encryption_key
from redactory.foundation.progress import Progress
from redactory.pipelines.curation_hints import describe_rejection


@command("init", file=argument("[FILE]", "The configuration file to write.", Path, Path("redactory.yaml")))
def write_example_config(file: Path) -> CommandResult:
    """Write a commented example configuration."""
    from redactory.pipelines.modeling.describe import write_example_config

    try:
        write_example_config(file)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists; give another name") from None
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error.strerror}; choose a file in a writable folder"
        ) from None
    return CommandResult("configuration_written", {"file": str(file)})


@command(
    "curate: config output resume workers prefect dask",
    dry_run=switch("Check only: show stages, policies, columns and bad rows, without writing."),
    against=option("With --dry-run: a configuration or finished run to compare policies with.", str),
)
def curate(
    config: str, output: str | None, progress: Progress, dry_run: bool, against: str | None, **options: Any
) -> CommandResult:
    """Turn a raw corpus into audited shards."""
    if dry_run:
        result = redactory.describe(config, progress=progress, output=output)
        if against is not None:
            result["differs"] = redactory.policy_diff(against, config)
        return CommandResult("described", result, 1 if result["refused"] else 0)
    _warn_uncovered(config, output)
    result = _run_job("curate", config, output=output, progress=progress, **options)
    _warn_unencrypted(result)
    return CommandResult("curated", result)


@command(
    "redact: own_config workers",
    source=argument("IN", "A file, a folder or a URL; - reads standard input.", str),
    out=option("The copy: a file, a folder or a URL; - writes standard output.", str, REQUIRED),
    text_columns=option(
        "A column or field with text: notes, ticket.body, messages[*].content; overrides input.text. Repeatable.",
        list[str],
        flag="--text-column",
    ),
    column=option(
        "What to do with a column: a label (replace the whole value), drop or keep. Repeatable.",
        list[str],
        metavar="NAME=WHAT",
    ),
    keep_other_columns=switch("Keep all columns that are not named."),
    replace=option(
        "Replacement of a span: mask (default), label, number, pseudonym or surrogate.", str, flag="--replace"
    ),
    vault=option("With pseudonyms: the encrypted file that 'redactory unmask' restores them from.", Path),
    format_=option("The format, if the file name does not show it.", str, "auto", flag="--format"),
)
def redact(
    source: str,
    out: str,
    progress: Progress,
    own_config: str | None,
    column: list[str] | None,
    keep_other_columns: bool,
    replace: str | None,
    vault: Path | None,
    format_: str,
    **options: Any,
) -> CommandResult | None:
    """Copy a file or folder in its format, with the sensitive spans of its texts replaced.

    Options given here override the section redact of the configuration.
    """
    pairs = [entry.partition("=") for entry in column or ()]
    if not all(name and replacement for name, _, replacement in pairs):
        raise ConfigurationError("--column: expected NAME=LABEL, NAME=drop or NAME=keep, like name=PERSON")
    chosen_settings = {
        "columns": {name: replacement for name, _, replacement in pairs} or None,
        "keep_other_columns": keep_other_columns or None,
        "replace": replace,
        "vault": vault and str(vault),
    }
    settings = {key: value for key, value in chosen_settings.items() if value is not None}
    result = redactory.redact(source, out, settings, config=own_config, format_=format_, progress=progress, **options)
    hints = [describe_rejection(reason, count) for reason, count in result["quarantined"].items()]
    if result["masks_nothing"]:
        hints.append("Warning: this policy masks nothing, not even in a sample text: see detect.strict.labels.")
    if source == "-" and format_ == "auto" and "broken_json" in result["quarantined"]:
        hints.append("Standard input was read as JSON lines: or give --format (csv, parquet, mbox, …).")
    code = 1 if result["quarantined"] or result["files_left_out"] else 0
    if out == "-":
        left_out = sum(result["quarantined"].values())
        print_warning(f"{pluralize(result['written'], 'row')} written, {left_out:,} left out.")
        for hint in hints:
            print_warning(hint)
        raise SystemExit(code)
    return CommandResult("redacted", result | {"out": out}, code, {"hints": hints})


@command(
    "unmask",
    source=argument("FILE", "A copy made with --replace pseudonym: a file or a folder.", Path),
    out=option("The file or folder to write.", Path, REQUIRED),
    vault=option("The vault that was written with the copy.", Path, REQUIRED),
)
def unmask(source: Path, out: Path, vault: Path) -> CommandResult:
    """Restore the original values of pseudonyms; each use is logged beside the vault."""
    result = redactory.unmask(source, out, vault)
    return CommandResult("unmasked", result, 1 if result["unknown"] or not result["put_back"] else 0)


@command(
    "train: config output workers",
    trainer=option("A trainer; default: train.trainer in the configuration.", str),
    name=option("The model's folder; default: train.name in the configuration.", str, flag="--model"),
)
def train(config: str, output: str | None, progress: Progress, **options: Any) -> CommandResult:
    """Train a model on the finished run of the configuration (section train)."""
    _print_train_remarks(config, output, **options)
    result = redactory.train(config, output=output, progress=progress, **options)
    return CommandResult("trained", result)


@command("run: config output resume workers prefect dask")
def run(config: str, output: str | None, progress: Progress, **options: Any) -> CommandResult:
    """Curate, train and evaluate."""
    _warn_uncovered(config, output)
    result = _run_job("run", config, output=output, progress=progress, **options)
    _warn_unencrypted(result)
    _print_train_remarks(config, output)
    return CommandResult("ran", result)


def _run_job(work: str, config: str, prefect: bool, dask: str | None = None, **options: Any) -> dict[str, Any]:
    """Run ``work`` as the library's function, or as its flow, which a Dask cluster needs, and return the result."""
    if prefect or dask is not None:
        from redactory.flows.schedule import run_flow

        return run_flow(work, config, dask=dask, **options)
    return dict(getattr(redactory, work)(config, **options))


def _warn_uncovered(config: str, output: str | None) -> None:
    # it imports Arrow, which would delay every command
    from redactory.detectors import describe_gaps, find_coverage_gaps
    from redactory.pipelines.curation.loading import load_config

    if (words := describe_gaps(find_coverage_gaps(load_config(config, output=output).detect, {}))) is not None:
        print_warning(words)


def _warn_unencrypted(result: Mapping[str, Any]) -> None:
    if not result["encrypted"] and load_encryption_key() is not None:
        print_warning("Warning: a key is configured, but this run is not encrypted; re-run curate with --out.")


def _print_train_remarks(config: str, output: str | None, **changes: Any) -> None:
    from redactory.pipelines.modeling.train import collect_remarks

    for remark in collect_remarks(config, output=output, **changes):
        print_warning(f"Warning: {remark}.")


@command(
    "verify",
    run=argument("RUN", "A run folder, an export, or the URL of one.", str),
    public_key=option("PEM file of the public key that must have signed the run.", Path),
)
def verify(run: str, progress: Progress, public_key: Path | None) -> CommandResult:
    """Check a finished run from its files."""
    result = redactory.verify(run, progress=progress, public_key=public_key)
    return CommandResult("verified", result, 0 if result["ok"] else 1)


# The demonstration: the whole job on a corpus with known secrets.


_DEMO_CONFIG = """\
input: {{path: corpus.jsonl}}
output: ../{run}
segment: {{mode: turn}}
partition: {{documents: 250}}
train:
  trainer: crt
  epsilon: 8.0
  delta: 1.0e-5
  sampling_rate: 0.05
  expected_batch_size: 64        # about the rate times the private examples
  epochs: {epochs}
  learning_rate: 0.01
  public_weighting: count
evaluate: {{test: test.jsonl, canaries: {canaries}, labelled: corpus.jsonl}}
workers: {workers}
"""
_CANARY_COPIES, _DEMO_EPOCHS, _ANSWER_COUNT = 120, 4, 20
"""Copies of each planted number and epochs, enough for an unprotected model to memorise it; answers."""


@command(
    "demo: workers",
    out=option("The run folder.", Path, Path("demo-run")),
    rows=option("Number of dialogues in the simulated corpus.", int, 300, min=50),
    prefect=option("Run as a Prefect flow.", bool, True, flag="--prefect/--no-prefect"),
)
def run_demo(progress: Progress, out: Path, rows: int, workers: int | None, prefect: bool) -> CommandResult:
    """Run the whole job on a simulated corpus in minutes, with an unprotected model beside it.

    The corpora and the configuration stay in OUT-input, for another look or run.
    """
    from redactory.pipelines.curation.output_folder import check_output_folder
    from redactory.redaction import RunFolder

    check_output_folder(RunFolder(out), resume=False)
    folder = make_private_folder(out.with_name(f"{out.name}-input"))
    made = redactory.simulate(folder / "corpus.jsonl", rows, 1, 10, _CANARY_COPIES, progress)
    redactory.simulate(folder / "test.jsonl", max(rows // 10, 20), 2, 0, 1, progress)
    workers = workers or min(2, os.cpu_count() or 1)
    canaries = Path(made["canaries_file"]).name
    file = folder / "redactory.yaml"
    text = _DEMO_CONFIG.format(run=out.name, canaries=canaries, workers=workers, epochs=_DEMO_EPOCHS)
    file.write_text(text, encoding="utf-8")
    config = str(file)
    result = _run_job("run", config, prefect, output=str(out), progress=progress, resume=False, workers=workers)
    baseline = {
        **redactory.train(config, trainer="sgd", output=out, progress=progress),
        "evaluation": {
            "perplexity": redactory.evaluate_model(out, "sgd", progress=progress),
            "canary": redactory.evaluate_canary(out, "sgd", progress=progress),
        },
    }
    verification = redactory.verify(out, progress=progress)
    numbers = {name: _find_repeated_numbers(out, name, Path(made["canaries_file"])) for name in ("crt", "sgd")}
    beside = {"baseline": baseline, "said": numbers, "verify": verification, "configuration": config}
    return CommandResult("demonstrated", {**result, **beside})


def _find_repeated_numbers(run: Path, model: str, canaries: Path) -> dict[str, Any]:
    planted = read_json(canaries)
    words = planted["template"].partition("{digits}")[0].rstrip()
    folder = run / "models" / model
    answers = redactory.predict(folder, (words,), write=_ANSWER_COUNT, tokens=8, temperature=0.5)["texts"][0]
    repeated = {number for number in planted["inserted"] if any(number in answer for answer in answers)}
    return {"words": words, "answers": len(answers), "first": answers[0].strip(), "planted": sorted(repeated)}


@command(
    "simulate",
    out=option("The JSONL file to write.", Path, REQUIRED),
    rows=option("Number of dialogues.", int, 1_000, min=1),
    seed=option("The same seed gives the same corpus.", int, 0),
    canaries=option("Number of canaries, like 'My ID is: 123456'.", int, 0, min=0),
    copies=option("How often each canary is planted.", int, 1, min=1),
    undetectable_canary_rate=option(
        "Probability that a canary is marked for the strict policy to miss.", float, 0.0, min=0, max=1
    ),
    templates=option(
        "Canary template, with its number of digits: 'My PIN is {4}'; repeatable.", list[str], flag="--canary-template"
    ),
)
def simulate(progress: Progress, **options: Any) -> CommandResult:
    """Write support dialogues of invented people, with the position of every secret."""
    return CommandResult("simulated", redactory.simulate(progress=progress, **options))


# Guarantees before and after a training.


@command(
    "plan: set_ output",
    config=argument("[CONFIG]", "A configuration (.yaml).", str, None),
    plot=option("SVG file: plot of epsilon against steps.", Path),
)
def plan_training(config: str | None, set_: list[str] | None, progress: Progress, **options: Any) -> CommandResult:
    """Compute the privacy cost of a training before it runs, from a configuration or --set alone."""
    result = redactory.plan(config, progress=progress, **options, **parse_set_options(set_))
    if "sampling" in result:
        return CommandResult("planned_messages", result)
    return CommandResult("planned_units" if "epsilon_sound" in result else "planned", result)


@command(
    "guarantee",
    runs=argument("RUN...", "One or several run folders.", list[Path]),
    model=option("A trained model; repeat for the guarantee of several together.", list[str]),
    delta=option("Of several models: delta of the epsilons.", float, show_default=False),
)
def state_guarantee(runs: list[Path], model: list[str] | None, delta: float | None) -> CommandResult:
    """State the guarantee of one or several trained models, recomputed from their ledgers."""
    from redactory.redaction import RunFolder

    first, *also = runs
    named = model[0] if model and len(model) == 1 else model or None
    result: dict[str, Any] = dict(redactory.guarantee(first, named, also=also, delta=delta))
    if "models" in result:
        return CommandResult("guarantee_composed", result)
    audit = result.get("audit")
    code = 1 if audit is not None and not audit["holds"] else 0
    others = [other for other in RunFolder(first).list_model_names() if other != result["model"]]
    every = [part for one in (result["model"], *others) for part in ("--model", one)]
    together = shlex.join(["redactory", "guarantee", str(first), *every])
    return CommandResult("guarantee", result, code, {"others": others, "command": together})


@command("budget", config=argument("CONFIG", "A configuration (.yaml) with train.budget.", str))
def show_budget(config: str) -> CommandResult:
    """Show what has been spent of the configuration's train.budget, and by which trainings."""
    return CommandResult("budget", redactory.budget(config))


# Use of a model, shown with its guarantee.


@command(
    "predict: seed",
    model=argument("MODEL_FOLDER", "A trained model: RUN/models/NAME, or a copy.", Path),
    file=argument(
        "FILE", "Texts, one per line, or JSONL with a column text (messages for a chat model); - is stdin.", str, None
    ),
    text=option("A text; repeatable.", list[str]),
    top=option("Number of answers per text, the likeliest first.", int, 5, min=1),
    generate=option("Write N continuations of each text, or N new texts.", int, min=1, metavar="N"),
    tokens=option("With --generate: maximum tokens per text.", int, 100, min=1),
    temperature=option("Below 1 likelier tokens, above 1 rarer ones; 0: the likeliest.", float, 1.0, min=0.0),
    top_k=option("Sample only from this many of the likeliest tokens.", int, min=1),
)
def predict(
    model: Path, file: str | None, text: list[str] | None, generate: int | None, progress: Progress, **options: Any
) -> CommandResult:
    """Use a trained model: predict the next word or the class of each text, or generate texts."""
    if (file is not None and text) or (file is None and not text and generate is None):
        raise ConfigurationError("give texts: --text, a file, or - for standard input")
    texts = tuple(text or ()) if file is None else tuple(_read_texts(file))
    result = redactory.predict(model, texts or ("",), write=generate, progress=progress, **options)
    prompts = result.get("prompts") or texts or ("",)
    return CommandResult("predicted" if generate is None else "generated", result, context={"prompts": prompts})


@command(
    "synthesize: run model seed",
    rows=option("Number of texts to write.", int, REQUIRED, min=1),
    out=option("A new folder.", Path, REQUIRED, metavar="FOLDER"),
    labels=option(
        "A class or role of the training texts (train.prefix) that is public; repeatable.", list[str], flag="--label"
    ),
    histogram=option(
        "Draw classes and lengths from counts with noise of this standard deviation; adds to epsilon. By "
        "default all classes are equally frequent.",
        float,
    ),
    temperature=option("Below 1 likelier tokens, above 1 rarer ones; 0: the likeliest.", float, 1.0, min=0.0),
    top_p=option("Sample only from the likeliest tokens that together have this probability.", float, 1.0),
    tokens=option("Maximum tokens per text.", int, 100, min=1),
    stop=option("A text ends before this string; repeatable.", list[str]),
    drop_suspected=switch("Leave out texts in which the conservative policy suspects more than strict."),
    no_guarantee=switch("Write even if the model has no guarantee; the result cannot be exported."),
)
def synthesize(progress: Progress, **options: Any) -> CommandResult:
    """Let a model with a guarantee write a corpus that may be shared, with a card."""
    return CommandResult("synthesized", redactory.synthesize(progress=progress, **options))


def _read_texts(file: str) -> list[str]:
    path = Path(file)
    if path.suffix == ".jsonl":
        return _read_document_texts(path)
    try:
        content = read_standard_input() if file == "-" else path.read_text(encoding="utf-8")
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
