"""Commands from a corpus to a model that is used, and what may be promised of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

import redactory
from redactory.flows import options as o
from redactory.flows.options import command, settings_of
from redactory.flows.show import Shown, warn
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import make_private_folder
from redactory.foundation.keys import load_encryption_key
from redactory.foundation.progress import Progress

app = typer.Typer(
    name="redactory",
    help="Audited training shards from raw text, and models trained on them with a guarantee.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@command(app)
def init(
    file: Annotated[Path, typer.Argument(help="The configuration to write.")] = Path("redactory.yaml"),
) -> Shown:
    """Write a commented example configuration."""
    from redactory.pipelines.describe import write_example

    try:
        write_example(file)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists; give another name") from None
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error.strerror}; give a place in a folder that you may write"
        ) from None
    return Shown("configuration_written", {"file": str(file)})


@command(app)
def curate(
    config: o.ConfigArgument,
    progress: Progress,
    out: o.OutOption = None,
    resume: o.ResumeOption = False,
    workers: o.WorkersOption = None,
    prefect: o.PrefectOption = False,
    dask: o.DaskOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done: stages, policies, columns, bad rows.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(help="With --dry-run: a configuration or finished run whose policies are compared."),
    ] = None,
) -> Shown:
    """Turn a raw corpus into audited shards."""
    if dry_run:
        result = redactory.describe(config, progress=progress, output=out)
        if against is not None:
            result["differs"] = redactory.policy_diff(against, config)
        return Shown("described", result)
    _warn_blind(config, out)
    plain = None if prefect else redactory.curate
    result = _carry_out(plain, "curate", config, out, dask, progress, resume=resume, workers=workers)
    _warn_open(result)
    return Shown("curated", result)


@command(app)
def train(
    config: o.ConfigArgument,
    progress: Progress,
    out: o.OutOption = None,
    trainer: Annotated[
        str | None, typer.Option(help="A trainer (train.trainer), instead of the configured one.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The model's folder (train.name), instead of the configured one.")
    ] = None,
    workers: o.WorkersOption = None,
    prefect: o.PrefectOption = False,
) -> Shown:
    """Train a model on a finished run."""
    changes = o.given_ones(trainer=trainer, name=name, workers=workers)
    _warn_odd(config, out, **changes)
    plain = None if prefect else redactory.train
    return Shown("trained", _carry_out(plain, "train", config, out, None, progress, **changes))


@command(app)
def run(
    config: o.ConfigArgument,
    progress: Progress,
    out: o.OutOption = None,
    resume: o.ResumeOption = False,
    workers: o.WorkersOption = None,
    prefect: o.PrefectOption = False,
    dask: o.DaskOption = None,
) -> Shown:
    """Curate, train and evaluate."""
    _warn_blind(config, out)
    plain = None if prefect else redactory.run
    result = _carry_out(
        plain, "curate_and_train", config, out, dask, progress, resume=resume, workers=workers
    )
    _warn_open(result)
    _warn_odd(config, out)
    return Shown("ran", result)


def _carry_out(
    plain: Callable[..., Mapping[str, Any]] | None,
    flow: str,
    config: str,
    out: str | None,
    dask: str | None,
    progress: Progress,
    **settings: Any,
) -> dict[str, Any]:
    """Call the plain function, or where there is none, run the flow around it; with ``dask``, over Dask."""
    if plain is None:
        from redactory.flows.schedule import start_flow

        return start_flow(flow, config, out, progress, **settings, **o.given_ones(dask=dask))
    if dask is not None:
        from redactory.flows.dask_map import over_dask

        plain = over_dask(plain, dask)
    return dict(plain(config, output=out, progress=progress, **settings))


def _warn_blind(config: str, out: str | None) -> None:
    """What nothing in the policies looks for, before any work."""
    # Arrow comes with it, and every command would wait for that
    from redactory.detectors import blind_words, blindness
    from redactory.pipelines.loading import load_config

    if (words := blind_words(blindness(load_config(config, output=out).detect, {}))) is not None:
        warn(words)


def _warn_open(result: Mapping[str, Any]) -> None:
    """Where a run that was asked for again is open, though a key to encrypt with is configured."""
    if not result["encrypted"] and load_encryption_key() is not None:
        warn("Warning: this run is not encrypted although a key is configured: curate anew with --out.")


def _warn_odd(config: str, out: str | None, **changes: Any) -> None:
    """What is odd about the training."""
    from redactory.pipelines.train import train_remarks

    for remark in train_remarks(config, output=out, **changes):
        warn(f"Warning: {remark}.")


@command(app)
def verify(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, an export, or the URL of one.")],
    progress: Progress,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="PEM file: the run must be signed by this key.")
    ] = None,
) -> Shown:
    """Check a finished run again, from its files alone."""
    result = redactory.verify(run, progress=progress, public_key=public_key)
    return Shown("verified", result, 0 if result["ok"] else 1)


# The demonstration: the whole job on a corpus whose every secret is known.


@command(app)
def demo(
    progress: Progress,
    out: Annotated[Path, typer.Option("--out", help="The run folder.")] = Path("demo-run"),
    rows: Annotated[int, typer.Option(min=50, help="Dialogues of the simulated corpus.")] = 1_000,
    workers: o.WorkersOption = None,
    prefect: Annotated[bool, typer.Option("--prefect/--no-prefect", help="Run as a Prefect flow.")] = True,
) -> Shown:
    """The whole job on a simulated corpus, a few minutes long; beside it a model without protection.

    The corpora and the configuration are left in OUT-input, to be looked at and run again.
    """
    from redactory.pipelines.output_folder import check_output
    from redactory.redaction import RunFolder

    check_output(RunFolder(out), resume=False)
    workers = workers or min(2, os.cpu_count() or 1)
    config = str(_demo_inputs(out, rows, workers, progress))
    plain = None if prefect else redactory.run
    settings = {"resume": False} if prefect else {}
    result = _carry_out(
        plain, "curate_and_train", config, str(out), None, progress, workers=workers, **settings
    )
    baseline = {
        **redactory.train(config, output=out, progress=progress, trainer="sgd"),
        "evaluation": {
            "perplexity": redactory.evaluate_model(out, "sgd", progress=progress),
            "canary": redactory.evaluate_canary(out, "sgd", progress=progress),
        },
    }
    verified = redactory.verify(out, progress=progress)
    return Shown(
        "demonstrated", {**result, "baseline": baseline, "verify": verified, "configuration": config}
    )


def _demo_inputs(out: Path, rows: int, workers: int, progress: Progress) -> Path:
    folder = make_private_folder(out.with_name(out.name + "-input"))
    corpus, held_out = folder / "corpus.jsonl", folder / "test.jsonl"
    made = redactory.simulate(corpus, rows, 1, 10, 20, progress)
    redactory.simulate(held_out, max(rows // 10, 20), 2, 0, 1, progress)
    settings = {
        "input": {"path": corpus.name},
        "output": str(Path("..") / out.name),
        "segment": {"mode": "turn"},
        "partition": {"documents": 250},
        "train": {
            "trainer": "crt",
            "epsilon": 8.0,
            "delta": 1e-5,
            "sampling_rate": 0.02,
            "epochs": 3,
            "public_epoch": "occurrences",
        },
        "evaluate": {
            "test": held_out.name,
            "canaries": Path(made["canaries_file"]).name,
            "labelled": corpus.name,
        },
        "workers": workers,
    }
    config = folder / "redactory.yaml"
    config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return config


@command(app)
def simulate(
    out: Annotated[Path, typer.Option("--out", help="The JSONL file to write.")],
    progress: Progress,
    rows: Annotated[int, typer.Option(min=1, help="Dialogues.")] = 1_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same corpus.")] = 0,
    canaries: Annotated[int, typer.Option(min=0, help="Planted numbers 'My ID is: 123456'.")] = 0,
    copies: Annotated[int, typer.Option(min=1, help="How often each canary is planted.")] = 1,
    canary_miss_rate: Annotated[
        float,
        typer.Option(min=0, max=1, help="Probability that a canary is marked as one that π is to miss."),
    ] = 0.0,
    canary_template: Annotated[
        list[str] | None,
        typer.Option(help="Words before a canary, and its digits: 'My PIN is {4}'; repeatable."),
    ] = None,
) -> Shown:
    """Support dialogues of invented people, with every secret's place."""
    templates = {"templates": canary_template} if canary_template else {}
    made = redactory.simulate(out, rows, seed, canaries, copies, progress, canary_miss_rate, **templates)
    return Shown("simulated", made)


# What may be promised: before a training, and after.


@command(app)
def plan(
    progress: Progress,
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]", help="A configuration (.yaml).", callback=o.readable_configuration
        ),
    ] = None,
    set_: o.SetOption = None,
    out: o.OutOption = None,
    plot: o.PlotOption = None,
) -> Shown:
    """Say what a training would cost, before it is run: of a configuration, or of --set numbers alone."""
    result = redactory.plan(config, output=out, plot=plot, progress=progress, **settings_of(set_))
    if "participation" in result:
        return Shown("planned_messages", result)
    return Shown("planned_units" if "epsilon_sound" in result else "planned", result)


@command(app)
def guarantee(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="A run folder, or several.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="A trained model. Several: what holds of all of them together."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Of several models: delta of the figures.", show_default=False)
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG",
            help="What is spent of this configuration's train.budget, and by which trainings.",
            callback=o.readable_configuration,
        ),
    ] = None,
) -> Shown:
    """What may be promised of a trained model, or of several, derived again from the ledgers."""
    if (budget is None) != bool(runs):
        raise ConfigurationError("give a run whose guarantee is asked for, or --budget and a configuration")
    if budget is not None:
        return Shown("budget", redactory.budget(budget))
    assert runs
    first, *also = runs
    named = model[0] if model and len(model) == 1 else model or None
    result: dict[str, Any] = dict(redactory.guarantee(first, named, also=also, delta=delta))
    if "models" in result:
        return Shown("guarantee_composed", result)
    audit = result.get("audit")
    code = 1 if audit is not None and not audit["holds"] else 0
    return Shown("guarantee", result, code, _other_models(first, result["model"]))


def _other_models(run: Path, name: str) -> dict[str, Any]:
    """Where the run has models beside ``name``: which, and the command for all of them together."""
    from redactory.redaction import RunFolder

    others = [other for other in RunFolder(run).model_names() if other != name]
    named = [part for one in (name, *others) for part in ("--model", one)]
    return {"others": others, "command": shlex.join(["redactory", "guarantee", str(run), *named])}


# Using a model, with its guarantee beside what it says.


@command(app)
def predict(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_FOLDER", help="A trained model: RUN/models/NAME, or a copy.")
    ],
    progress: Progress,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Texts, one a line, or JSONL with a column text; - is stdin."),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A text; repeatable.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Answers for each text, the likeliest first.")] = 5,
    generate: Annotated[
        int | None,
        typer.Option("--generate", min=1, metavar="N", help="Write N texts after each text, or after none."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="With --generate: most tokens of a text.")] = 100,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Below 1 likelier tokens, above 1 rarer ones; 0: the likeliest.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Draw from so many likeliest tokens alone.")
    ] = None,
    seed: o.SeedOption = None,
) -> Shown:
    """Use a trained model: the next word, or the class, of each text; or texts that it writes."""
    if (file is not None and text) or (file is None and not text and generate is None):
        raise ConfigurationError("give texts: either --text, or a file, or - for standard input")
    texts = list(text or ()) if file is None else _texts(file)
    given = tuple(texts) or ("",)
    result = redactory.predict(
        model,
        given,
        top=top,
        write=generate,
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        progress=progress,
    )
    return Shown("predicted" if generate is None else "generated", result, beside={"prompts": given})


def _texts(file: str) -> list[str]:
    path = Path(file)
    if path.suffix == ".jsonl":
        return _rows(path)
    try:
        content = o.standard_input() if file == "-" else path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read as text: {type(error).__name__}") from None
    found = [line for line in content.splitlines() if line.strip()]
    if not found:
        raise InputError(f"{'standard input' if file == '-' else path.name} holds no text")
    return found


def _rows(path: Path) -> list[str]:
    from redactory.pipelines.readers import Document, InputSettings, find_sources, read_documents

    settings, found = InputSettings(path=(str(path),)), []
    for source in find_sources(settings.path, settings.format):
        for entry in read_documents(source, settings):
            if not isinstance(entry, Document):
                raise InputError(f"{entry.source}, row {entry.row}: {entry.reason}")
            found.append(entry.text)
    return found
