"""What the command line prints: one JSON object, or lines for people; progress goes to standard error."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from redactory.flows import json_log
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
