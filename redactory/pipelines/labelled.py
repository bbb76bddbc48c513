"""Labelled rows, and where their spans stand in the points that they are cut into."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from redactory.evaluation.label_studio import (
    Standing,
    UnreadableTask,
    labelling_interface,
    read_task,
    row_as_task,
)
from redactory.evaluation.recall import TEMPLATE
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import write_json, write_text
from redactory.pipelines.sealed import wordless
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


# Labelled rows to Label Studio and back, for whoever labels more than a sample of a run.


_VERSION = "labelled rows"


def to_label_studio(
    labelled: str | Path, out: str | Path, *, standing: Standing = "predictions", labels: Sequence[str] = ()
) -> dict[str, Any]:
    """Write ``labelled``, JSONL in the span schema, as tasks that Label Studio imports, and its interface.

    ``out`` is a new .json file; the labelling interface goes beside it as .xml, with the labels of the rows
    and ``labels``.  The spans are predictions, which a labeller starts from, or ``annotations``, which are
    done.  Keys of a row but ``spans`` are in the task's data, keys of a span but start, end and label are
    not.  Both files hold the rows' text and are for their owner alone (0600).  Returns ``{"labelled",
    "out", "interface", "tasks", "spans"}``, ``spans`` a count of each label.
    """
    if standing not in get_args(Standing):
        raise ConfigurationError(f"standing: one of {', '.join(get_args(Standing))}")
    tasks = _new(Path(out), ".json")
    interface = _new(tasks.with_suffix(".xml"), ".xml")
    return wordless(
        "tasks were made of labelled rows", _to_tasks, Path(labelled), tasks, interface, standing, labels
    )


def from_label_studio(export: str | Path, out: str | Path, *, text: str = "text") -> dict[str, Any]:
    """Write Label Studio's JSON export as labelled rows: JSONL in the span schema, for ``fit`` and others.

    ``text`` is the key of the text in the tasks' data; its other keys become keys of the row.  ``out`` is a
    new file, for its owner alone (0600).  Every task needs one submitted annotation, for who has labelled a
    text without a secret has labelled it.  Returns ``{"export", "out", "rows", "spans"}``, ``spans`` a count
    of each label.  ``InputError`` names file and task.
    """
    return wordless("rows were made of tasks", _to_rows, Path(export), _new(Path(out), ".jsonl"), text)


def _to_tasks(
    file: Path, tasks: Path, interface: Path, standing: Standing, labels: Sequence[str]
) -> dict[str, Any]:
    rows = list(labelled_rows(file))
    counts = Counter(span["label"] for row in rows for span in row["spans"])
    known = sorted({*counts, *labels})
    if not known:
        raise ConfigurationError(f"{file.name} has no span, so no labels to choose from: name them (--label)")
    write_json(tasks, [row_as_task(row, number, standing, _VERSION) for number, row in enumerate(rows, 1)])
    write_text(interface, labelling_interface(known))
    return {
        "labelled": str(file),
        "out": str(tasks),
        "interface": str(interface),
        "tasks": len(rows),
        "spans": dict(sorted(counts.items())),
    }


def _to_rows(file: Path, lines: Path, key: str) -> dict[str, Any]:
    rows = list(_rows(file, key))
    write_text(lines, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    counts = Counter(span["label"] for row in rows for span in row["spans"])
    return {"export": str(file), "out": str(lines), "rows": len(rows), "spans": dict(sorted(counts.items()))}


def _new(path: Path, suffix: str) -> Path:
    if path.suffix != suffix:
        raise ConfigurationError(f"{path.name}: give a file whose name ends in {suffix}")
    if path.exists():
        raise ConfigurationError(f"{path} exists; give another name")
    return path


def _rows(file: Path, key: str) -> Iterator[dict[str, Any]]:
    for number, task in enumerate(_tasks(file), 1):
        where = f"{file.name}, task {number}"
        try:
            row = read_task(task, key)
            problem = problem_of(row)
        except UnreadableTask as error:
            raise InputError(f"{where}: {error}") from None
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise InputError(
                f"{where}: no task of Label Studio's JSON export with a text under '{key}' "
                f"({type(error).__name__})"
            ) from None
        if problem:
            raise InputError(f"{where}: {problem}")
        yield row


def _tasks(file: Path) -> list[Any]:
    try:
        tasks = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{file.name} cannot be read: {error.strerror}; export the project as JSON"
        ) from None
    except ValueError as error:
        raise InputError(f"{file.name} is no JSON ({type(error).__name__})") from None
    if not isinstance(tasks, list):
        raise InputError(f"{file.name} is no list of tasks: export the project as JSON")
    return tasks
