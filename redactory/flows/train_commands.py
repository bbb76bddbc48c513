"""``redactory train``, and what is odd about a training's batches, on standard error."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

import redactory
from redactory.flows import completion, output, pages
from redactory.flows import evaluation_pages as inference_page
from redactory.flows import stopping as json_log
from redactory.flows.output import (
    ConfigArgument,
    JsonOption,
    OutOption,
    PrefectOption,
    RunsArgument,
    carry_out,
    out,
    show,
    shown_progress,
    table,
)
from redactory.foundation.errors import ConfigurationError, InputError, upwards
from redactory.foundation.keys import load_encryption_key


def train(
    config: ConfigArgument,
    out: OutOption = None,
    trainer: Annotated[
        str | None, typer.Option(help="A trainer (train.trainer), instead of the configured one.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The model's folder (train.name), instead of the configured one.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes that share a step; the same model.")
    ] = None,
    prefect: PrefectOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model on a finished run."""
    asked: dict[str, Any] = {"trainer": trainer, "name": name, "workers": workers}
    changes = {key: value for key, value in asked.items() if value}
    say_remarks(config, out, **changes)
    plain = None if prefect else redactory.train
    show(carry_out(plain, "train", config, out, **changes), as_json, pages.trained)


def say_open(result: Mapping[str, Any]) -> None:
    """A line where a run that was asked for again is open, though a key to encrypt with is configured."""
    if not result["encrypted"] and load_encryption_key() is not None:
        output.err.print(
            "Mind: this run is not encrypted although a key is configured: curate anew with --out.",
            soft_wrap=True,
        )


def say_remarks(config: str, out: str | None, **changes: Any) -> None:
    """A line for each remark on the training; nothing where standard error holds a log for machines."""
    if json_log.on_terminal():
        return
    # Arrow comes with it, and every command would wait for that
    from redactory.pipelines.train import train_remarks

    for remark in train_remarks(config, output=out, **changes):
        output.err.print(f"Mind: {remark}.", soft_wrap=True, markup=False)


# ``redactory guarantee``: what may be promised of a model, or of several in one hand.


ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="A trained model; the configured one by default. Several: what holds of all of them together.",
        autocompletion=completion.models_of_run,
    ),
]


def guarantee(
    runs: RunsArgument,
    model: ModelsOption = None,
    delta: Annotated[
        float | None, typer.Option(help="Of several models: delta of the figures.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what may be promised of a trained model, or of several, derived again from the ledgers."""
    first, *also = runs
    named = model[0] if model and len(model) == 1 else model or None
    result: dict[str, Any] = dict(redactory.guarantee(first, named, also=also, delta=delta))
    if "models" in result:
        show(result, as_json, pages.composed_guarantee)
        return
    show(result, as_json, pages.guarantee)
    if not as_json:
        _say_others(first, result["model"])
    if inference_page.refuted(result.get("audit")):
        raise SystemExit(1)


def _say_others(run: Path, name: str) -> None:
    """That the figures are of one model alone, where the run has others."""
    from redactory.redaction import RunFolder

    others = [other for other in RunFolder(run).model_names() if other != name]
    if others:
        named = [part for one in (name, *others) for part in ("--model", one)]
        command = shlex.join(["redactory", "guarantee", str(run), *named])
        out.print(
            f"Of {name} alone. What holds of whoever has {', '.join(others)} as well: {command}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )


# ``redactory budget``: what is spent of a budget for several models.


def budget(config: ConfigArgument, as_json: JsonOption = False) -> None:
    """Say what is spent of train.budget, and by which trainings. Nothing is written."""
    show(redactory.budget(config), as_json, _told)


def _told(result: dict[str, Any]) -> None:
    spent = "no finite epsilon" if result["spent"] is None else f"{result['spent']:.4f}"
    # a limit can have been lowered, or the trainings booked under a higher one
    over = result["spent"] is None or result["spent"] > result["epsilon"]
    mind = ": over the budget" if over else ""
    output.out.print(
        f"{result['budget']}: {spent} of {result['epsilon']:g} spent{mind}, at delta {result['delta']:g}; "
        f"unit: {result['unit']}",
        soft_wrap=True,
        markup=False,
    )
    rows = [
        (own["training"], f"{own['steps']:,}", f"{own['epsilon_after']:.4f}", f"{own['delta']:g}")
        for own in result["trainings"]
    ]
    if rows:
        output.table("Booked", rows, ("training", "steps", "epsilon with it", "at delta"), text=True)


# ``redactory apply``: use a trained model on texts, with its guarantee beside what it says.


_STANDARD_INPUT = "-"


def apply(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_FOLDER",
            help="A trained model: RUN/models/NAME, or a copy.",
            autocompletion=completion.model_folders,
        ),
    ],
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="Texts, one a line, or JSONL with the column text; - is standard input."
        ),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A text; may be given several times.")] = None,
    task: Annotated[
        Literal["next-word", "classify"] | None, typer.Option(help="The model's task, to be checked.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Answers for each text, the likeliest first.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Use a trained model: the next word, or the class, of each text; its guarantee is printed along."""
    if (file is None) == (not text):
        raise ConfigurationError("give texts: either --text, or a file, or - for standard input")
    texts = list(text or ()) if file is None else _texts(file)
    show(redactory.apply(model, texts, task=task, top=top), as_json, applied)


def applied(result: dict[str, Any]) -> None:
    """What the model says of each text, and what may be promised of the model."""
    what = "class" if result["task"] == "classify" else "token"
    for number, answers in enumerate(result["results"], 1):
        rows = [(escape(_visible(answer[what])), f"{answer['probability']:.4f}") for answer in answers]
        table(f"Text {number}", rows, (what, "probability"))
    say_promise(result["model"], result["guarantee"])


def say_promise(model: str, told: dict[str, Any]) -> None:
    """What may be promised of ``model``, in a few lines on standard output."""
    value, delta = told["epsilon"], told["delta"]
    figure = "no epsilon" if value is None else f"epsilon {upwards(value)} at delta {delta:g}"
    figure = figure if told["holds"] else "no guarantee holds"
    out.print(f"{model} ({told['trainer']}): {figure}", soft_wrap=True, markup=False)
    lines = [told["unit"], told["relation_meaning"] or told["relation"]]
    lines += [f"Why: {told['reason']}"] if told["reason"] else []
    for line in filter(None, lines):
        out.print(f"  {line}", soft_wrap=True, markup=False)


def _visible(token: str) -> str:
    """A token with the signs that a terminal would not show spelled out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in token).replace(" ", "␣")


def _texts(file: str) -> list[str]:
    if file == _STANDARD_INPUT:
        return _lines(typer.get_text_stream("stdin").read(), "standard input")
    path = Path(file)
    if path.suffix == ".jsonl":
        return _rows(path)
    try:
        return _lines(path.read_text(encoding="utf-8"), path.name)
    except (OSError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read as text: {type(error).__name__}") from None


def _lines(content: str, name: str) -> list[str]:
    found = [line for line in content.splitlines() if line.strip()]
    if not found:
        raise InputError(f"{name} holds no text")
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


# ``redactory generate``: what a trained language model writes, with its guarantee beside it.


def generate(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_FOLDER", help="A trained model: RUN/models/NAME, or a copy.")
    ],
    prompt: Annotated[
        list[str] | None, typer.Option(help="A text to go on with; may be given several times.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Texts for each prompt.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a text.")] = 100,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Below 1 likelier tokens, above 1 rarer ones; 0: the likeliest.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Draw from so many likeliest tokens alone.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same texts.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Text that a trained language model writes; its guarantee is printed along."""
    prompts = tuple(prompt or ("",))
    with shown_progress() as progress:
        result = redactory.generate(
            model,
            prompts,
            samples=samples,
            tokens=tokens,
            temperature=temperature,
            top_k=top_k,
            seed=seed,
            progress=progress,
        )

    def page(told: dict[str, Any]) -> None:
        written(told, prompts)

    show(result, as_json, page)


def written(result: dict[str, Any], prompts: tuple[str, ...]) -> None:
    """Every text after its prompt, and what may be promised of the model."""
    for prompt, texts in zip(prompts, result["texts"], strict=True):
        for text in texts:
            out.print(_shown(prompt + text), soft_wrap=True, markup=False)
            out.print()
    out.print(f"Seed: {result['seed']}")
    say_promise(result["model"], result["guarantee"])


def _shown(text: str) -> str:
    """``text`` without the control signs that would steer a terminal; line ends and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
