"""Which lines read as rows by themselves, where a quotation amid them is broken.

Such a stretch can be read in two ways: as lines of one quoted text, or as rows.  What tells them apart is
how the lines read as rows: the number of their fields, and their quotation marks.
"""

from __future__ import annotations

import csv
import re
from functools import cache

MARK = '"'


def is_balanced(text: str, separator: str) -> bool:
    """Whether every mark of a row opens a field, closes one, or is doubled in one."""
    return _expression(separator, "whole").fullmatch(text) is not None


def last_rows(lines: list[str], separator: str, width: int) -> int:
    """The index from which on all ``lines`` are rows of ``width`` fields; how many there are if it is none.

    The last may begin a row that goes on below: the mark that breaks a quotation is then one that opens
    another.
    """
    first, at = 0, 0
    while at < len(lines):
        # a row of many lines ends with the next line that has an odd number of marks
        end = at + 1
        if lines[at].count(MARK) % 2:
            end = next((n + 1 for n in range(at + 1, len(lines)) if lines[n].count(MARK) % 2), 0)
        if end and _is_row(lines[at:end], separator, width):
            at = end
        elif at == len(lines) - 1 and _begins_row(lines[at], separator, width):
            at += 1
        else:
            at += 1
            first = at
    return first


def _is_row(lines: list[str], separator: str, width: int) -> bool:
    """Whether these lines are one row, or one blank line."""
    if len(lines) > 1 and not is_balanced("".join(lines), separator):
        return False
    try:
        rows = list(csv.reader(lines, delimiter=separator, strict=True))
    except csv.Error:
        return False
    return len(rows) == 1 and len(rows[0]) in (0, width)


def _begins_row(line: str, separator: str, width: int) -> bool:
    """Whether a field of a row is open at the line's end; a first one would say nothing of the others."""
    if not _expression(separator, "open").fullmatch(line):
        return False
    fields = len(next(csv.reader([line], delimiter=separator)))
    return min(2, width) <= fields <= width


@cache
def _expression(separator: str, kind: str) -> re.Pattern[str]:
    """Fields up to a line end, or up to one that is open; each sign is looked at once."""
    quoted, plain = '"(?:[^"]|"")*+"', rf'[^"\r\n{separator}]*+'
    row = rf"(?:(?:{quoted}|{plain}){separator})*+"
    last = rf"(?:{quoted}|{plain})[\r\n]*+" if kind == "whole" else '"(?:[^"]|"")*+'
    return re.compile(row + last)
