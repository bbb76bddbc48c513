"""What the command line prints: one JSON object, or lines for people; progress goes to standard error."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import redactory
from redactory.flows import completion
from redactory.flows import stopping as json_log
from redactory.foundation.errors import InputError
from redactory.foundation.progress import silent

out, err = Console(highlight=False), Console(stderr=True, highlight=False)
_EVERY_SECONDS = 5.0


def print_anything() -> None:
    """From now on a sign that the terminal cannot show (locale C: no ASCII) is written as an escape."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_json(value: dict[str, Any]) -> None:
    """The one JSON object of ``--json`` on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=_only_ascii(), allow_nan=False, default=str) + "\n")


def print_indented(value: dict[str, Any]) -> None:
    """A JSON object for people to read, and for programs, on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=_only_ascii(), allow_nan=False) + "\n")


def _only_ascii() -> bool:
    """Whether JSON has to escape for itself: what the stream escapes is not always JSON."""
    return "utf" not in (sys.stdout.encoding or "utf-8").lower()


def table(
    title: str, rows: Sequence[tuple[str, ...]], headers: tuple[str, ...] = (), text: bool = False
) -> None:
    """A small table on standard output; columns after the first are figures, unless they are ``text``."""
    out.print(title, style="bold", soft_wrap=True)
    grid = Table(show_header=bool(headers), box=None, pad_edge=False)
    for number in range(max(len(headers), *(len(row) for row in rows))):
        side: JustifyMethod = "right" if number and not text else "left"
        grid.add_column(headers[number] if headers else "", justify=side, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    for segments in out.render_lines(grid, pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()  # what is pasted from a terminal, or kept in a file, ends where its words end
        out.print(line, soft_wrap=True)
    out.print()


@contextmanager
def shown_progress() -> Iterator[Any]:
    """A listener for long work: bars on a terminal, else a line every few seconds; JSON where asked for."""
    if json_log.is_on():
        yield json_log.Told(silent if json_log.on_terminal() else _Lines())
        return
    if not err.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        yield _Bars(progress)


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, tuple[TaskID, float]] = {}

    def __call__(self, work: str, done: int, total: int | None, unit: str = "") -> None:
        if work not in self._tasks:
            self._tasks[work] = (
                self._progress.add_task(work, amount="", rate="", total=None),
                time.monotonic(),
            )
        task, start = self._tasks[work]
        if done == total:
            # what is finished makes room; the summary tells of it
            self._progress.remove_task(task)
            del self._tasks[work]
            return
        self._progress.update(
            task,
            completed=done,
            total=total,
            amount=_amount(done, total, unit),
            rate=_rate(done, start, unit),
        )


class _Lines:
    """The last line of each work that takes a second, and one every few seconds while it goes on."""

    def __init__(self) -> None:
        self._start: dict[str, float] = {}
        self._last = time.monotonic()

    def __call__(self, work: str, done: int, total: int | None, unit: str = "") -> None:
        now = time.monotonic()
        start = self._start.setdefault(work, now)
        if done == total:
            del self._start[work]  # work of the same name may come again, and has a pace of its own
        worth = now - start > 1.0 if done == total else now - self._last >= _EVERY_SECONDS
        if not worth:
            return
        self._last = now
        told = filter(None, (f"{work}:", _amount(done, total, unit), _rate(done, start, unit)))
        err.print(" ".join(told), soft_wrap=True)


def _amount(done: int, total: int | None, unit: str) -> str:
    if not unit:
        # it cannot say how far it is
        return ""
    return f"{done:,} {unit}" if total is None else f"{done:,} of {total:,} {unit}"


def _rate(done: int, start: float, unit: str) -> str:
    seconds = time.monotonic() - start
    if seconds <= 1:
        return ""
    # what follows a comma is a remark
    return f"{done / seconds:,.1f} {unit.split(',')[0]}/s" if unit else f"{seconds:,.1f} s"


# Arguments and options that commands share, and how a result is shown.


def readable_configuration(given: str | None) -> str | None:
    """``given``; ``ConfigurationError`` for a YAML file that is not there or is no YAML.

    Called while options are read: the settings it would be checked against take a second to import.
    """
    if given is not None and given.endswith((".yaml", ".yml")):
        from redactory.pipelines.loading import read_yaml

        read_yaml(Path(given))
    return given


ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A configuration (.yaml), or an input file, folder or URL.",
        callback=readable_configuration,
    ),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=completion.run_folders)
]
RunsArgument = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="A run folder, or several.", autocompletion=completion.run_folders),
]
PlaceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|JOB", help="A run folder, or a job's folder.", autocompletion=completion.runs_and_jobs
    ),
]
AnyRunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run folder, an export, or the URL of one.",
        autocompletion=completion.run_folders,
    ),
]
OutOption = Annotated[
    str | None, typer.Option("--out", help="The run folder, or a URL; the configuration's by default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes for curation.")]
PrefectOption = Annotated[bool, typer.Option("--prefect", help="Run as a Prefect flow.")]
DaskOption = Annotated[
    str | None,
    typer.Option(
        "--dask",
        help="Curate on a Dask cluster: local (--workers processes), or a scheduler's address, tls://HOST:PORT.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A trained model; the configured one by default.",
        autocompletion=completion.models_of_run,
    ),
]

Page = Callable[[dict[str, Any]], None]


def show(result: dict[str, Any], as_json: bool, page: Page) -> None:
    """Print one JSON object, or the page for people; and log what of it is counts."""
    json_log.result(result)
    if as_json:
        print_json(result)
    else:
        page(result)


def say_blind(config: str, out: str | None) -> None:
    """What nothing in the policies looks for, before any work; nothing where a log is for machines."""
    if json_log.on_terminal():
        return
    # Arrow comes with it, and every command would wait for that
    from redactory.detectors import blind_words, blindness
    from redactory.pipelines.loading import load_config

    if (words := blind_words(blindness(load_config(config, output=out).detect, {}))) is not None:
        err.print(words, style="bold", soft_wrap=True, markup=False)


def carry_out(
    plain: Callable[..., Mapping[str, Any]] | None,
    flow: str,
    config: str,
    out: str | None,
    dask: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Call the plain function, or where there is none, run the flow around it; with ``dask``, over Dask."""
    with shown_progress() as progress:
        if plain is not None and dask is not None:
            from redactory.flows.dask_map import over_dask

            plain = over_dask(plain, dask)
        if plain is not None:
            return dict(plain(config, output=out, progress=progress, **settings))
        from redactory.flows.schedule import start_flow

        where = {} if dask is None else {"dask": dask}
        return start_flow(flow, config, out, progress, **settings, **where)


# What is told of a command that could not be understood, or that met what nobody expected: one line each.


NOT_LOGGED = "the command line was not understood"
"""What a log has of it: an argument may be a text, and the message quotes it."""
_WORDS = {"Value error, ": "", "Input should be": "it must be", ", unable to parse string as an integer": ""}
"""Words of pydantic's that Typer passes on, and what stands for them."""


def is_usage(error: Exception) -> bool:
    """Whether ``error`` is the parser's; Typer has classes of its own for it, or those of Click before."""
    return hasattr(error, "format_message") and hasattr(error, "ctx")


def asks_for_help(error: Any) -> bool:
    """Whether a group was named without a command, which has shown its help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def usage_message(error: Any) -> str:
    """What is wrong, and where the right form stands."""
    what = str(error.format_message()).strip().rstrip(".")
    for theirs, ours in _WORDS.items():
        what = what.replace(theirs, ours)
    command = error.ctx.command_path if error.ctx is not None else "redactory"
    return f"{what} See {command} --help" if what.endswith("?") else f"{what}; see {command} --help"


def unexpected(error: Exception) -> str:
    """The kind and the place of an error that is none of ours: its own message may quote the corpus."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" at {Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
    return f"unexpected {type(error).__name__}{place}; please report it"


# A text that a command is given on standard input.


def standard_input() -> str:
    """All of standard input; ``InputError`` where it is no UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("standard input is no UTF-8: convert it first (for example with iconv)") from None


# Planning from the command line: a sign that it is at work, for the accounting can take a while.


def planned(config: str | None = None, **asked: Any) -> dict[str, Any]:
    """What :func:`redactory.plan` says of the same."""
    with shown_progress() as progress:
        return redactory.plan(config, progress=progress, **asked)
