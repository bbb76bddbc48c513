"""``redactory apply``: use a trained model on texts, with its guarantee beside what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

import redactory
from redactory.flows import completion
from redactory.flows.options import JsonOption, show
from redactory.flows.output import out, table
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.wording import upwards

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
    from redactory.pipelines.config import InputSettings
    from redactory.pipelines.readers import Document, find_sources, read_documents

    settings, found = InputSettings(path=(str(path),)), []
    for source in find_sources(settings.path, settings.format):
        for entry in read_documents(source, settings):
            if not isinstance(entry, Document):
                raise InputError(f"{entry.source}, row {entry.row}: {entry.reason}")
            found.append(entry.text)
    return found
