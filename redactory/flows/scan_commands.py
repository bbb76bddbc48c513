"""``redactory scan``: a quick look at texts, files and folders, and the check of the pre-commit hook."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

import redactory
from redactory.flows import explain_page, output
from redactory.flows.options import JsonOption, readable_configuration, show
from redactory.flows.standard_input import standard_input
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import Progress, silent

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
    from redactory.pipelines.readers.sources import format_of
    from redactory.pipelines.stores.store import is_url

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
    from redactory.pipelines.quarantine.listing import harmless

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
