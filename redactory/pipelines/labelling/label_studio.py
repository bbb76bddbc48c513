"""Labelled rows to Label Studio and back, for whoever labels more than a sample of a run."""

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
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import write_json, write_text
from redactory.pipelines.labelling.labelled import labelled_rows, problem_of
from redactory.pipelines.sealed import wordless

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
