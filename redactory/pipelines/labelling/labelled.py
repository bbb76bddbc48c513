"""Labelled rows, and where their spans stand in the points that they are cut into."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redactory.evaluation.strata import TEMPLATE
from redactory.foundation.errors import InputError
from redactory.pipelines.segment import Cutter

_FORM = '{"text": "…", "spans": [{"start": 0, "end": 4, "label": "NAME"}]}'


def labelled_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file in the span schema: {text, spans: [{start, end, label}], ...}.

    Offsets are code points, end exclusive.  ``InputError`` with the file and the row for one that is not.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = _parsed(line, f"{path.name}, row {number}")
                problem = problem_of(row)
                if problem:
                    raise InputError(f"{path.name}, row {number}: {problem}")
                yield row
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}; a file of labelled rows is needed"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{path.name} cannot be read as labelled JSON lines: it is not UTF-8") from None


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where} cannot be read as labelled JSON lines: a line is {_FORM}") from None


def labelled_points(row: dict[str, Any], cut: Cutter) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The points of a labelled row, each with the places of the labelled spans that it holds any of.

    A span that a point's bounds cut counts in each point it touches, clipped to it; the part of a span
    that lies between points (white space, a speaker's name) is in none, and a span of nothing but white
    space nowhere: it hides nothing.  A span keeps its keys, and gets the row's ``template_id`` where the
    row has one.
    """
    template = {TEMPLATE: row[TEMPLATE]} if TEMPLATE in row else {}
    spans = [s for s in row["spans"] if not row["text"][s["start"] : s["end"]].isspace()]
    position = 0
    for prefix, text, suffix, _ in cut(row["text"]):
        start = position + len(prefix)
        position = start + len(text) + len(suffix)
        inside = [s for s in spans if s["start"] < start + len(text) and s["end"] > start]
        yield text, [{**template, **_shifted(span, start, len(text))} for span in inside]


def problem_of(row: Any) -> str | None:
    """What keeps ``row`` from being one of the span schema, without its text; None where nothing does."""
    if not isinstance(row, dict):
        return "a JSON object is needed"
    if not isinstance(row.get("text"), str) or not isinstance(row.get("spans"), list):
        return f"'text' and 'spans' are needed, like {_FORM}"
    if any("\ud800" <= sign <= "\udfff" for sign in row["text"]):
        return "'text' holds half of a surrogate pair, which is no character"
    for number, span in enumerate(row["spans"], 1):
        if not isinstance(span, dict) or not all(type(span.get(key)) is int for key in ("start", "end")):
            return f"span {number} needs whole numbers 'start' and 'end'"
        if not 0 <= span["start"] < span["end"] <= len(row["text"]):
            return f"span {number} is empty or does not lie in the text; offsets count code points, from 0"
        if not isinstance(span.get("label"), str):
            return f"span {number} needs a 'label'"
    return None


def _shifted(span: dict[str, Any], start: int, length: int) -> dict[str, Any]:
    return {**span, "start": max(span["start"] - start, 0), "end": min(span["end"] - start, length)}
