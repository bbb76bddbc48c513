"""Show results on the command line: one JSON object or a page of lines and tables; progress goes to standard error."""

from __future__ import annotations

import io
import json
import re
import string
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from redactory.flows import log
from redactory.foundation.bounds import format_lower, format_upper
from redactory.foundation.errors import pluralize

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

out, err = Console(highlight=False), Console(stderr=True, highlight=False)
_PROGRESS_SECONDS, _UNFOLDED = 5.0, 100_000
# not a hash, although it may begin with a digit
_NUMERIC_CELL = re.compile(r"(?![0-9a-f]{16})(?:[-–<>≤≥×] ?\d|\d|none|–|all$|$)")
_BOUND = re.compile(
    r"(?:\w+_)?(epsilon|delta|gamma|upper|lower|failure)(?:_\w+)?|confidence|low|high|guarantee_p_value"
)
_FORMATTER = string.Formatter()
DECISIONS = ("public", "private", "duplicate", "quarantined")


class Table(NamedTuple):
    """A table; without rows nothing is printed."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


Result = Mapping[str, Any]
Page = Iterable[str | Text | Table | None]
"""What is printed, in order; None and an empty line print nothing."""
Shown = tuple[Result, Page | str] | tuple[Result, Page | str, int] | None
"""A command's result, its page or line, and its exit code; None if the command has shown everything itself."""


def format_value(name: str, value: Any, format_spec: str = "") -> str:
    """Format a value; a number whose ``name`` is that of a bound is rounded outwards, whatever the format.

    A metric with an interval is a percentage; the format ``n row`` counts rows, ``%`` makes a bound a percentage, and
    ``3%`` one with three digits.
    """
    if isinstance(value, Mapping):
        return format_interval(value, int(format_spec or 1))
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value)
    if format_spec.startswith("n "):
        return pluralize(int(value), *format_spec[2:].split("/"))
    if isinstance(value, float) and (bound := _BOUND.fullmatch(name)):
        format_bound = format_lower if bound[1] == "lower" or name in ("confidence", "low") else format_upper
        unit = "%" if format_spec.endswith("%") else ""
        return format_bound(value, int(format_spec.removesuffix("%") or 4) if unit else 4, unit=unit)
    if isinstance(value, float):
        return format(value, format_spec or (".4g" if abs(value) < 1000 else ",.0f"))
    return format(value, format_spec or ",")


def format_interval(metric: Mapping[str, Any], places: int = 1) -> str:
    """Format a share with its interval, rounded outwards; without one if resampling shows no spread."""
    if metric["value"] is None or metric["low"] is None or metric["high"] is None:
        return "none"
    if metric["low"] == metric["high"]:
        return f"{metric['value']:.{places}%}"
    low, high = (
        bound(metric[end], places=places, unit="%") for end, bound in (("low", format_lower), ("high", format_upper))
    )
    return f"{metric['value']:.{places}%} ({low} to {high})"


def fill(template: str, values: Mapping[str, Any], **more: Any) -> str:
    """Fill the fields of a template, like ``{rows}``, ``{rows:n row}`` or ``{misses[upper]}``."""
    parts, values = [], {**values, **more}
    for literal, field_name, format_spec, _ in _FORMATTER.parse(template):
        parts.append(literal)
        if field_name is not None:
            value, _ = _FORMATTER.get_field(field_name, (), values)
            parts.append(format_value(re.findall(r"\w+", field_name)[-1], value, format_spec or ""))
    return "".join(parts)


MISSES = "{misses} of {n}, up to {upper:3%}"
"""A count of misses with its upper bound."""


def table(title: str, columns: str | Mapping[str, str] | Sequence[str], rows: Iterable[Any]) -> Table:
    """Return a table; numbers are right-justified.

    ``columns`` are keys of the rows, separated by blanks; or headings, with a template for each; or headings alone, if
    the rows are cells, or none. A mapping holds a row, or a value, for each name.
    """
    if isinstance(rows, Mapping):
        rows = [{"name": name, **row} if isinstance(row, Mapping) else (name, row) for name, row in rows.items()]
    if isinstance(columns, str):
        columns = {name.replace("_", " "): f"{{{name}}}" for name in columns.split()}
    if isinstance(columns, Mapping):
        cells = [[fill(template, row) for template in columns.values()] for row in rows]
    else:
        cells = [[format_value(str(row[0]), cell) for cell in row] for row in rows]
    return Table(title, list(columns), cells)


def indent(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Indent the names of parts, below their sum."""
    return {f"  {name}": count for name, count in counts.items()}


def warning(text: str | None) -> Text | None:
    """Return a line that stands out."""
    return Text(_escape(text), style="bold red") if text else None


def show_result(as_json: bool, result: Result, page: Page | str, exit_code: int = 0) -> None:
    """Log a command's counts, print one JSON object or the page, and exit if ``exit_code`` is not 0."""
    report_progress.stop()
    log.log_result(result)
    if as_json:
        print_json(result)
    else:
        print_page([page] if isinstance(page, str) else page)
    sys.stdout.flush()
    if exit_code:
        raise SystemExit(exit_code)


def print_warning(text: str) -> None:
    """Print a warning on standard error, unless that holds a log for machines."""
    if not log.is_on_stderr():
        err.print(text, soft_wrap=True, markup=False)


def escape_unprintable_output() -> None:
    """Write characters that the terminal cannot show (locale C) as escapes from now on."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_json(value: Mapping[str, Any]) -> None:
    """Print the JSON object of ``--json``; only ASCII if the stream would escape."""
    ascii_only = "utf" not in (sys.stdout.encoding or "utf-8").lower()
    sys.stdout.write(json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, default=str) + "\n")


def print_page(page: Page) -> None:
    """Print the parts of a page, with an empty line around each table."""
    last = None
    for part in page:
        if not part or (isinstance(part, Table) and not part.rows):
            continue
        if last is not None and (isinstance(part, Table) or isinstance(last, Table)):
            out.print()
        if isinstance(part, Table):
            _print_table(part)
        else:
            out.print(_color(part.rstrip()) if isinstance(part, str) else part, soft_wrap=True)
        last = part


def _print_table(part: Table) -> None:
    """Print a table; only a terminal has a width that cells are folded to."""
    out.print(Text(_escape(part.title), style="bold"), soft_wrap=True)
    grid = Grid(show_header=bool(part.header), box=None, pad_edge=False)
    for place, name in enumerate(part.header or [""] * len(part.rows[0])):
        is_numeric = place and all(_NUMERIC_CELL.match(row[place]) for row in part.rows)
        grid.add_column(Text(_escape(name)), justify="right" if is_numeric else "left", overflow="fold")
    for row in part.rows:
        grid.add_row(*map(_color, row))
    options = out.options if out.is_terminal else out.options.update_width(_UNFOLDED)
    for segments in out.render_lines(grid, options, pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()  # no trailing spaces in copied or stored output
        out.print(line, soft_wrap=True)


def _escape(text: str) -> str:
    """Escape what could steer a terminal or end the line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _color(line: str) -> Text:
    text = Text(_escape(line))
    for style, words in (("red", "FAILED|FALSE|NO GUARANTEE"), ("green", "^ok "), ("yellow", "^open |^Warning:")):
        text.highlight_regex(words, style)
    return text


class _ProgressReporter:
    """The progress of a command: bars on a terminal or in a notebook, else a line every few seconds, or JSON."""

    is_quiet = False
    """Whether progress is only logged."""

    def __init__(self) -> None:
        self._listeners: list[Callable[..., None]] = []
        self._display: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, work: str, done: int, total: int | None, unit: str = "") -> None:
        if not self._listeners:
            self._start()
        for listener in self._listeners:
            listener(work, done, total, unit)

    def _start(self) -> None:
        self._listeners = [RateLimiter(log.log_progress)]
        if self.is_quiet:
            return
        if (err.is_terminal or err.is_jupyter) and not log.is_enabled():
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = TextColumn("{task.description:<18}"), BarColumn(), TextColumn("{task.fields[amount]}")
            times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
            self._display = Progress(*columns, *times, console=err, transient=True, speed_estimate_period=120)
            self._display.start()
            self._listeners = [self._update_bar]
        elif not log.is_on_stderr():
            self._listeners.append(RateLimiter(_print_progress, 1.0))

    def _update_bar(self, work: str, done: int, total: int | None, unit: str) -> None:
        assert self._display is not None
        if work not in self._tasks:
            self._tasks[work] = self._display.add_task(work, amount="", total=None)
        if done == total:
            self._display.remove_task(self._tasks.pop(work))
        else:
            amount = _format_amount(done, total, unit)
            self._display.update(self._tasks[work], completed=done, total=total, amount=amount)
        if err.is_jupyter and not self._tasks:
            self.stop()  # no command does

    def stop(self) -> None:
        """Remove the bars, and begin again with the next report."""
        if self._display is not None:
            self._display.stop()
        self._listeners, self._display, self._tasks = [], None, {}


report_progress = _ProgressReporter()
"""The listener that commands pass to the library; a notebook can, too."""


@dataclass
class RateLimiter:
    """A listener that forwards the end of each work, and its progress every few seconds.

    Work that took no longer than ``min_seconds`` is not reported.
    """

    emit: Callable[[str, int, int | None, str, float], None]
    min_seconds: float = -1.0
    _start_times: dict[str, float] = field(default_factory=dict)
    _last_emitted: float = field(default_factory=lambda: time.monotonic())

    def __call__(self, work: str, done: int, total: int | None, unit: str = "") -> None:
        now = time.monotonic()
        seconds = now - self._start_times.setdefault(work, now)
        if done == total:
            del self._start_times[work]  # work of the same name may recur at another pace
        if seconds > self.min_seconds if done == total else now - self._last_emitted >= _PROGRESS_SECONDS:
            self._last_emitted = now
            self.emit(work, done, total, unit, seconds)


def _print_progress(work: str, done_count: int, total: int | None, unit: str, seconds: float) -> None:
    parts = [_format_amount(done_count, total, unit)]
    if seconds > 1:
        parts.append(f"{done_count / seconds:,.1f} {unit.split(',')[0]}/s" if unit else f"{seconds:,.1f} s")
    err.print(f"{work}: {', '.join(filter(None, parts))}".rstrip(), soft_wrap=True, markup=False)


def _format_amount(done_count: int, total: int | None, unit: str) -> str:
    if not unit:
        return ""
    return f"{done_count:,} {unit}" if total is None else f"{done_count:,} of {total:,} {unit}"
