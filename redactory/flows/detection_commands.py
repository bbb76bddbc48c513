"""Commands about detection alone: fit a tagger, fit a policy, explain one text."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

import redactory
from redactory.flows import output
from redactory.flows import pages as explain_page
from redactory.flows import pages as fit_page
from redactory.flows.output import JsonOption, readable_configuration, show, standard_input
from redactory.foundation.errors import ConfigurationError, some
from redactory.foundation.progress import Progress, silent


def explain(
    text: Annotated[str, typer.Argument(help="The text; - reads it from standard input.")],
    config: Annotated[
        str | None,
        typer.Option(
            help="The configuration; the default detection without one.", callback=readable_configuration
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every mark of every engine and rule.")] = False,
) -> None:
    """Show what each policy does with a text, and which hits decide it, on the terminal only."""
    if os.path.isfile(text):
        raise ConfigurationError(
            f"{text}: this is a file: redactory scan FILE looks into files; a text that is a file's name is "
            "read from standard input (-)"
        )
    given = standard_input() if text == "-" else text
    with output.shown_progress() as progress:
        result = redactory.explain(given, config, progress=progress)
    explain_page.explained(result, explain_page.every_mark if every else explain_page.deciding_hits)


def fit(
    labelled: Annotated[list[Path], typer.Argument(help="JSONL files with the true spans (text, spans).")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    base: Annotated[
        Path | None,
        typer.Option(help="A Hugging Face model's folder to train further, instead of our own small tagger."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the rows.")] = None,
    language: Annotated[
        str | None, typer.Option(help="Language code of the tokenizer of our own tagger; en without one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same tagger.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train and calibrate a token tagger on labelled rows."""
    settings: dict[str, Any] = {"language": language, "epochs": epochs, "seed": seed}
    given = {key: value for key, value in settings.items() if value is not None}
    with output.shown_progress() as progress:
        result = redactory.fit(labelled, out, given, progress=progress, base=base)
    show(result, as_json, fit_page.tagger_fitted)


def fit_policy(
    labelled: Annotated[Path, typer.Option(help="JSONL with the true spans (text, spans).")],
    out: Annotated[Path, typer.Option("--out", help="The YAML file to write.")] = Path("policy.yaml"),
    config: Annotated[
        str | None,
        typer.Option(
            help="The configuration to fit; the default detection without one.",
            callback=readable_configuration,
        ),
    ] = None,
    miss_rate: Annotated[float, typer.Option(help="Bound of the share of secrets that are missed.")] = 0.001,
    confidence: Annotated[float, typer.Option(help="Confidence of the bound.")] = 0.95,
    as_json: JsonOption = False,
) -> None:
    """Fit the conservative policy to labelled secrets, so that what is missed is bounded."""
    with output.shown_progress() as progress:
        result = redactory.fit_policy(
            labelled, out=out, config=config, miss_rate=miss_rate, confidence=confidence, progress=progress
        )
    show(result, as_json, fit_page.fitted)
    if result["chosen"] is None:
        raise SystemExit(1)


# ``redactory labels``: labelled rows to Label Studio and back.


labels = typer.Typer(no_args_is_help=True, help="Labelled rows to Label Studio and back.")


class Standing(StrEnum):
    """How the spans of rows stand in Label Studio."""

    PREDICTIONS = "predictions"
    ANNOTATIONS = "annotations"


@labels.command("to-label-studio")
def to_label_studio(
    labelled: Annotated[
        Path, typer.Argument(metavar="LABELLED", help="JSONL with the true spans (text, spans).")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="A new .json file; the interface goes beside it, as .xml.")
    ],
    standing: Annotated[
        Standing, typer.Option("--as", help="Spans to start from, or spans that are done.")
    ] = Standing.PREDICTIONS,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", help="A label to choose from beside those of the rows; several times."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write labelled rows as tasks and labelling interface, to import into Label Studio."""
    result = redactory.to_label_studio(labelled, out, standing=standing.value, labels=tuple(label or ()))
    show(result, as_json, _tasks_written)


@labels.command("from-label-studio")
def from_label_studio(
    export: Annotated[Path, typer.Argument(metavar="EXPORT", help="Label Studio's JSON export.")],
    out: Annotated[Path, typer.Option("--out", help="A new .jsonl file.")],
    text: Annotated[str, typer.Option(help="Key of the text in the tasks' data.")] = "text",
    as_json: JsonOption = False,
) -> None:
    """Write what was labelled in Label Studio as rows, for fit, fit-policy, evaluate detect and others."""
    show(redactory.from_label_studio(export, out, text=text), as_json, _rows_written)


def _tasks_written(result: dict[str, Any]) -> None:
    output.out.print(
        f"{some(result['tasks'], 'task')} with {some(sum(result['spans'].values()), 'span')}: "
        f"{result['out']}. "
        f"The project's labelling interface: {result['interface']}.",
        soft_wrap=True,
        markup=False,
    )
    output.out.print(
        "Both hold your text: import them where it may lie. Then export the project as JSON.", soft_wrap=True
    )


def _rows_written(result: dict[str, Any]) -> None:
    output.out.print(
        f"{some(result['rows'], 'row')} with {some(sum(result['spans'].values()), 'span')}: {result['out']}",
        soft_wrap=True,
        markup=False,
    )


# ``redactory scan``: a quick look at texts, files and folders, and the check of the pre-commit hook.


_STANDARD_INPUT = "-"
_BESIDE = 60
"""Letters of a line that are shown before and after a hit."""


def scan(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|FOLDER|TEXT|-",
            help="What to look at, one or several; - is standard input. A text has several words.",
        ),
    ] = None,
    text: Annotated[list[str] | None, typer.Option("--text", help="A text, of one word too.")] = None,
    policy: Annotated[
        Literal["strict", "conservative"],
        typer.Option(help="strict: what would be masked; conservative: also what only makes text private."),
    ] = "strict",
    config: Annotated[
        str | None,
        typer.Option(
            help="The configuration (.yaml); the default detection without one.",
            callback=readable_configuration,
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="The column of the text; the configuration's by default.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="A file of terms that are no hits; several times.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="End with 1 where something was found or could not be read.")
    ] = False,
    reveal: Annotated[
        bool, typer.Option("--show", help="Show the text around each hit, on a terminal alone.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="List at most so many hits; all are counted.")] = 1_000,
    as_json: JsonOption = False,
) -> None:
    """Look for personal data in files or a text: where it stands, and what found it. No text is shown."""
    paths, texts = _told_apart(what or [])
    texts += text or []
    if not paths and not texts:
        raise ConfigurationError("give what to look at: files, folders, a text, or - for standard input")
    if reveal and (as_json or not _on_terminal()):
        raise ConfigurationError("--show prints text, to a terminal alone: not with --json, a file or a pipe")
    with _said_once() if reveal else output.shown_progress() as progress:
        result = redactory.scan(
            paths,
            texts=texts,
            config=config,
            policy=policy,
            column=column,
            allow=allow or (),
            limit=limit,
            look=_look if reveal else None,
            progress=progress,
        )
    show(dict(result), as_json, _counted if reveal else _listed)
    if any(_is_unread(file) for file in result["files"]):
        raise SystemExit(2)
    if check and not result["clean"]:
        raise SystemExit(1)


def _said_once() -> AbstractContextManager[Progress]:
    """One line instead of a bar, which would stand between the lines that are shown."""
    output.err.print("The engines are loaded, which takes some seconds.")
    return nullcontext(silent)


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _told_apart(given: list[str]) -> tuple[list[str], list[str]]:
    """Which arguments are paths, and which are texts.

    ``ConfigurationError`` for one that could be a mistyped path: taken for a text, it would be found clean.
    Nor is a text that begins like a URL taken for one: it would be sent to whoever the URL names.
    """
    from redactory.pipelines.readers.files import format_of
    from redactory.pipelines.store import is_url

    paths, texts = list[str](), list[str]()
    for number, one in enumerate(given, 1):
        spaced = any(sign.isspace() for sign in one)
        if one == _STANDARD_INPUT:
            texts.append(standard_input())
        elif os.path.exists(one) or (not spaced and (is_url(one) or any(sign in one for sign in "*?["))):
            paths.append(one)
        elif spaced and format_of(one) is None and not is_url(one):
            texts.append(one)
        else:
            # not named: it may be a text after all
            raise ConfigurationError(
                f"argument {number} is no file or folder that is there; a text of one word, or one that "
                "begins like a URL or ends like a file's name, goes behind --text"
            )
    return paths, texts


def _place(hit: Any) -> str:
    """``file:line:column``; of a table ``file:row:line:column``, line and column those of the row's text."""
    row = [] if hit["row"] is None else [hit["row"]]
    return ":".join(str(part) for part in (hit["file"], *row, hit["line"], hit["column"]))


def _listed(result: dict[str, Any]) -> None:
    for hit in result["hits"]:
        output.out.print(_told(hit), soft_wrap=True, markup=False)
    _counted(result)


def _told(hit: Any) -> str:
    what = "masks" if hit["policy"] == "strict" else "makes private"
    return f"{_place(hit)}: {hit['label']} {hit['score']:.2f} {hit['detector']} ({hit['policy']}: {what})"


def _look(hit: Any, line: str) -> None:
    """One hit with the text around it."""
    from redactory.pipelines.quarantine import harmless

    start = hit["column"] - 1
    end = min(len(line), start + hit["end"] - hit["start"])
    pieces = (line[max(0, start - _BESIDE) : start], line[start:end], line[end : end + _BESIDE])
    before, found, after = (harmless(piece.encode("utf-8", "surrogatepass")) for piece in pieces)
    style = explain_page.MASKED if hit["policy"] == "strict" else explain_page.FLAGGED
    output.out.print(_told(hit), soft_wrap=True, markup=False)
    output.out.print(Text.assemble("  ", before, (found, style), after), soft_wrap=True)


def _is_unread(file: Any) -> bool:
    """Whether all rows of a file were rejected, for more than being empty; an empty cell of a table is."""
    empty = {"empty_text"} if file["format"] == "jsonl" else {"empty_text", "missing_text"}
    return not file["texts"] and bool(file["rejected"].keys() - empty)


def _counted(result: dict[str, Any]) -> None:
    """What was found in all, and what could not be read."""
    labels = ", ".join(f"{label} {count:,}" for label, count in result["by_label"].items())
    inside = sum(1 for file in result["files"] if file["found"])
    seen = f"files {len(result['files']):,}, with hits {inside:,}; texts {result['texts']:,}"
    unread = [file["file"] for file in result["files"] if _is_unread(file)]
    told = f"Hits {result['found']:,} ({labels})" if result["found"] else "Nothing found"
    if unread:
        # what nobody looked at is not found to be clean
        told = f"Not one row could be looked at in {', '.join(unread)}; hits elsewhere {result['found']:,}"
    output.out.print(f"{told}; {seen}", soft_wrap=True, markup=False)
    if len(result["hits"]) < result["found"]:
        output.out.print(f"{result['found'] - len(result['hits']):,} more; --limit lists them.")
    for file in result["files"]:
        for what, counts in (("rows rejected", file["rejected"]), ("points failed", file["quarantined"])):
            for reason, count in counts.items():
                output.out.print(f"{file['file']}: {count:,} {what}: {reason}", soft_wrap=True, markup=False)
