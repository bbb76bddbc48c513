"""Show results on the command line: one JSON object or a page; progress goes to standard error.

The pages are templates in ``pages.j2``, one for each kind of result. A line that starts with ``# `` is a heading, lines
with cells between ``¦`` are a table (its header ends with ``---``; without rows it is left out), a line that starts
with ``! `` is a warning.
"""

from __future__ import annotations

import functools
import io
import json
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from redactory.flows import log
from redactory.foundation.bounds import TEMPLATE_FILTERS, format_lower, format_upper
from redactory.foundation.errors import pluralize

if TYPE_CHECKING:
    from jinja2 import Environment

out, err = Console(highlight=False), Console(stderr=True, highlight=False)
_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class CommandResult:
    """A command's result (``r`` in its page), the page, the exit code, and extra context for the page."""

    page: str
    result: Mapping[str, Any]
    exit_code: int = 0
    context: Mapping[str, Any] = field(default_factory=dict)


def show_result(command_result: CommandResult, as_json: bool) -> None:
    """Print one JSON object, or the page for people; and log its counts."""
    log.log_result(command_result.result)
    if as_json:
        print_json(command_result.result)
    else:
        print_page(command_result.page, command_result.result, **command_result.context)
    sys.stdout.flush()


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


def print_page(page: str, result: Mapping[str, Any], **context: Any) -> None:
    """Print the page of a result."""
    lines = _load_templates().get_template(page).render(r=result, **context).splitlines()
    blank = True
    while lines:
        line = lines.pop(0)
        heading = line.startswith("# ")
        table = []
        while heading and lines and ("¦" in lines[0] or lines[0] == "---"):
            table.append(lines.pop(0))
        if table:
            print_table(line[2:], table)
        elif line or not blank:
            _print_line(line)
        blank = bool(table) or not line


def print_table(title: str, lines: Sequence[str]) -> None:
    """Print a heading and a table of cells between ``¦``; numeric columns are right-justified."""
    header, rows = ("", lines) if "---" not in lines else (lines[0], lines[2:])
    if not rows:
        return
    out.print(title, style="bold", soft_wrap=True, markup=False)
    cells = [[cell.strip() if n else cell.rstrip() for n, cell in enumerate(r.split("¦"))] for r in rows]
    names = [name.strip() for name in header.split("¦")] if header else [""] * len(cells[0])
    grid = Table(show_header=bool(header), box=None, pad_edge=False)
    for number, name in enumerate(names):
        is_numeric = number and all(_NUMERIC_CELL.match(row[number]) for row in cells)
        grid.add_column(Text(name), justify="right" if is_numeric else "left", overflow="fold")
    for row in cells:
        grid.add_row(*map(Text, row))
    for segments in out.render_lines(grid, pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()  # no trailing spaces in copied or stored output
        out.print(line, soft_wrap=True)
    out.print()


# not a hash, although it may begin with a digit
_NUMERIC_CELL = re.compile(r"(?![0-9a-f]{16})(?:[-–<>≤≥×] ?\d|\d|none|–|all$|$)")


def _print_line(line: str) -> None:
    if line.startswith(("# ", "! ")):
        out.print(line[2:], style="bold" if line[0] == "#" else "bold red", soft_wrap=True, markup=False)
        return
    text = Text(line.rstrip())
    text.highlight_regex(r"FAILED|FALSE|NO GUARANTEE", "red")
    text.highlight_regex(r"^ok ", "green")
    text.highlight_regex(r"^open ", "yellow")
    out.print(text, soft_wrap=True)


@functools.cache
def _load_templates() -> Environment:
    from jinja2 import DictLoader, Environment, StrictUndefined

    sections = re.split(r"^=== (\w+)\n", Path(__file__).with_name("pages.j2").read_text("utf-8"), flags=re.M)
    environment = Environment(
        loader=DictLoader(dict(zip(sections[1::2], sections[2::2], strict=True))),
        undefined=StrictUndefined,
        finalize=_escape_cell,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "n": _format_number,
        **TEMPLATE_FILTERS,
        "some": pluralize,
        "share": _format_interval,
        "between": _format_bounds,
        "percent": lambda figure: _format_number(figure["value"] and 100 * figure["value"], ".1f"),
        "words": lambda name: name.replace("_", " "),
        "name": lambda path: Path(path).name,
        "row": lambda *cells: _SafeRow(" ¦ ".join(str(_escape_cell(cell)) for cell in cells)),
        **{name: _make_lazy_function(place) for name, place in _LAZY_FILTERS.items()},
    }
    environment.filters.update(filters)
    environment.globals.update(filters)
    return environment


_LAZY_FILTERS = {
    "curated_hints": "redactory.pipelines.curation_hints.list_curation_hints",
    "dedup_sentences": "redactory.dedup.settings.summarize_dedup",
    "finding_line": "redactory.flows.job_commands.format_drift_finding",
    "hit_line": "redactory.flows.evaluate_commands.format_span",
    "fix": "redactory.pipelines.curation_hints.FIXES.get",
    "public_words": "redactory.detectors.settings.format_public_label_note",
    "reason_words": "redactory.redaction.mask.describe_reason",
    "resting_on_labellers": "redactory.evaluation.sample.explain_zero_bounds",
    "waiting": "redactory.pipelines.curation.index.PENDING_STATES.get",
}


def _make_lazy_function(import_path: str) -> Callable[..., Any]:
    return lambda *arguments: pkgutil.resolve_name(import_path)(*arguments)


class _SafeRow(str):
    """A row whose cells are already escaped."""


def _escape_cell(value: Any) -> Any:
    """Escape a value for a page: control characters and cell separators."""
    if value is None:
        return "none"
    if isinstance(value, _SafeRow):
        return value
    if not isinstance(value, str) or (value.isprintable() and "¦" not in value):
        return value
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in value).replace("¦", "|")


def _format_number(value: float | None, format_spec: str = ",", missing: str = "none") -> str:
    return missing if value is None else format(value, format_spec)


def _format_interval(metric: Mapping[str, float | None], places: int = 1, unit: str = "%") -> str:
    ends = _format_interval_ends(metric, places, unit)
    return f"{metric['value']:.{places}{unit or 'f'}} ({' to '.join(ends)})" if ends else "none"


def _format_bounds(metric: Mapping[str, float | None], places: int = 1, unit: str = "%") -> str:
    return "–".join(end.removesuffix(unit) for end in _format_interval_ends(metric, places, unit)) or "–"


def _format_interval_ends(metric: Mapping[str, float | None], places: int, unit: str) -> list[str]:
    low, high = metric["low"], metric["high"]
    if low is None or high is None:
        return []
    return [format_lower(low, places=places, unit=unit), format_upper(high, places=places, unit=unit)]


@contextmanager
def show_progress() -> Iterator[Any]:
    """Yield a listener for long work: bars on a terminal, else a line every few seconds, or JSON."""
    if err.is_terminal and not log.is_enabled():
        columns = (
            TextColumn("{task.description:<18}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=err, transient=True) as progress:
            yield _ProgressBars(progress)
        return
    listeners = [RateLimiter(log.log_progress)]
    if not log.is_on_stderr():
        listeners.append(RateLimiter(_print_progress, 1.0))

    def notify_listeners(*arguments: Any) -> None:
        for listener in listeners:
            listener(*arguments)

    yield notify_listeners


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
    parts = filter(None, (f"{work}:", _format_amount(done_count, total, unit), _format_rate(done_count, seconds, unit)))
    err.print(" ".join(parts), soft_wrap=True)


class _ProgressBars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, tuple[TaskID, float]] = {}

    def __call__(self, work: str, done: int, total: int | None, unit: str = "") -> None:
        if work not in self._tasks:
            task = self._progress.add_task(work, amount="", rate="", total=None)
            self._tasks[work] = task, time.monotonic()
        task, start = self._tasks[work]
        if done == total:
            self._progress.remove_task(task)
            del self._tasks[work]
            return
        amount, rate = _format_amount(done, total, unit), _format_rate(done, time.monotonic() - start, unit)
        self._progress.update(task, completed=done, total=total, amount=amount, rate=rate)


def _format_amount(done_count: int, total: int | None, unit: str) -> str:
    if not unit:
        return ""
    return f"{done_count:,} {unit}" if total is None else f"{done_count:,} of {total:,} {unit}"


def _format_rate(done_count: int, seconds: float, unit: str) -> str:
    if seconds <= 1:
        return ""
    return f"{done_count / seconds:,.1f} {unit.split(',')[0]}/s" if unit else f"{seconds:,.1f} s"
