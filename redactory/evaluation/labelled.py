"""Read labelled text: rows with true spans (JSON lines, Label Studio), and split them into examples.

A row is {text, spans: [{start, end, label}], …}; offsets count code points, ends are exclusive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from redactory.detectors.settings import get_kind, get_kinds
from redactory.foundation.errors import InputError, pluralize
from redactory.foundation.files import write_json, write_text

TEMPLATE_KEY = "template_id"
"""Optional key of a labelled span with the template of its text."""
CHOSEN_KEY = "chosen_to_fit"
"""Key of a row that was not drawn at random; its value says how it was chosen."""
DocumentSplitter = Callable[[str], Iterable[tuple[str, str, str, str | None]]]
"""Splits a document into (prefix, text, suffix, speaker) of its examples."""
_ROW_FORMAT = '{"text": "…", "spans": [{"start": 0, "end": 4, "label": "NAME"}]}'
_LABEL_CONTROL, _TEXT_OBJECT, _LABELS_TYPE = "label", "text", "labels"


class _InvalidRowError(ValueError):
    """An error about a row without its text; any other ``ValueError`` may quote it."""


def read_labelled_rows(path: Path, public: Iterable[str] = (), *, to_fit: bool = False) -> Iterator[dict[str, Any]]:
    """Read and check the rows of JSON lines or of Label Studio's JSON export.

    Spans with a ``public`` label are not secrets; they are returned under ``public``. ``InputError`` names file and row
    of an invalid one, without quoting it. A row with :data:`CHOSEN_KEY` is invalid unless a tagger is to be fitted: it
    is not a random draw, so no rate may be measured on it.
    """
    row_number, kinds = 0, get_kinds(public)
    try:
        with path.open(encoding="utf-8-sig") as file:
            is_export = file.read(1) == "["
            file.seek(0)
            for entry in json.load(file) if is_export else file:
                row_number += 1
                if is_export or entry.strip():
                    row: Any = _parse_task(entry) if is_export else json.loads(entry)
                    _check_row(row)
                    if CHOSEN_KEY in row and not to_fit:
                        raise _InvalidRowError(
                            "its rows were chosen by redactory label active, not at random: they can fit a "
                            "tagger, but rates and bounds need a random sample (redactory label random)"
                        )
                    yield _separate_public_spans(row, kinds) if kinds else row
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}; expected labelled JSON lines, or Label Studio's JSON export"
        ) from None
    except _InvalidRowError as error:
        raise InputError(f"{path.name}, row {row_number}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise InputError(
            f"{path.name}, row {row_number or 1}: neither a labelled row, like {_ROW_FORMAT}, nor a "
            f"task of Label Studio's JSON export with a text under 'text' ({type(error).__name__})"
        ) from None


def require_other_rows(held_back: str | Path | None, texts: Collection[str]) -> None:
    """Raise ``InputError`` if the rows of the file ``held_back`` hold one of the ``texts`` that are fitted."""
    held_texts = set() if held_back is None else {row["text"] for row in read_labelled_rows(Path(held_back))}
    if shared := len(held_texts.intersection(texts)):
        raise InputError(f"{held_back}: {pluralize(shared, 'text')} also in the rows to fit: hold other rows back")


def _separate_public_spans(row: dict[str, Any], public_kinds: Collection[str]) -> dict[str, Any]:
    sides: dict[bool, list[Any]] = {True: [], False: []}
    for span in row["spans"]:
        sides[get_kind(span["label"]) in public_kinds].append(span)
    return {**row, "spans": sides[False], "public": sides[True]}


def _check_row(row: Any) -> None:
    if not isinstance(row, dict):
        raise _InvalidRowError("expected a JSON object")
    text, spans = row.get("text"), row.get("spans")
    if not isinstance(text, str) or not isinstance(spans, list):
        raise _InvalidRowError(f"expected 'text' and 'spans', like {_ROW_FORMAT}")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _InvalidRowError("'text' contains half of a surrogate pair, which is not a character")
    for number, span in enumerate(spans, 1):
        if not isinstance(span, dict) or not all(type(span.get(key)) is int for key in ("start", "end")):
            raise _InvalidRowError(f"span {number} needs integers 'start' and 'end'")
        if not 0 <= span["start"] < span["end"] <= len(text):
            raise _InvalidRowError(f"span {number} is empty or outside the text of {len(text)} code points")
        if not isinstance(span.get("label"), str):
            raise _InvalidRowError(f"span {number} needs a 'label'")


def split_labelled_row(
    row: Mapping[str, Any], split_document: DocumentSplitter
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Split a labelled row into examples, each with the labelled spans that it overlaps.

    A span that crosses the bounds of an example counts in each example it touches, clipped to it. Parts between
    examples (white space, a speaker's name) are dropped, and so are spans of only white space, which hide nothing. A
    span keeps its keys, gets the row's ``template_id`` if any, and as ``number`` its index in the row's spans.
    """
    template = {TEMPLATE_KEY: row[TEMPLATE_KEY]} if TEMPLATE_KEY in row else {}
    spans = [
        {**template, **span, "number": number}
        for number, span in enumerate(row["spans"])
        if not row["text"][span["start"] : span["end"]].isspace()
    ]
    position = 0
    for prefix, text, suffix, _ in split_document(row["text"]):
        start = position + len(prefix)
        end = start + len(text)
        position = end + len(suffix)
        clipped = [
            {**span, "start": max(span["start"], start) - start, "end": min(span["end"], end) - start}
            for span in spans
            if span["start"] < end and span["end"] > start
        ]
        yield text, clipped


# Label Studio: tasks to import with prefilled spans, and its JSON export.


def to_label_studio_task(row: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Convert a labelled row to a task: its spans as a prediction of ``version``, all else as its data."""
    result = [
        {
            "id": str(number),
            "from_name": _LABEL_CONTROL,
            "to_name": _TEXT_OBJECT,
            "type": _LABELS_TYPE,
            "value": {
                "start": span["start"],
                "end": span["end"],
                "text": row["text"][span["start"] : span["end"]],
                _LABELS_TYPE: [span["label"]],
            },
        }
        for number, span in enumerate(row["spans"])
    ]
    data = {key: value for key, value in row.items() if key != "spans"}
    return {"data": data, "predictions": [{"model_version": version, "result": result}]}


def build_labelling_interface(labels: Iterable[str]) -> str:
    """The labelling interface (XML) of a Label Studio project for the tasks."""
    choices = "".join(f"    <Label value={quoteattr(label)}/>\n" for label in labels)
    return (
        f'<View>\n  <Labels name="{_LABEL_CONTROL}" toName="{_TEXT_OBJECT}">\n{choices}  </Labels>\n'
        f'  <Text name="{_TEXT_OBJECT}" value="$text"/>\n</View>\n'
    )


def write_labelling_files(
    rows: Sequence[Mapping[str, Any]], labels: Iterable[str], version: str, data: Path, tasks: Path, interface: Path
) -> None:
    """Write ``rows`` as JSON lines and as tasks of Label Studio, and its interface with ``labels`` and SECRET."""
    write_labelled_rows(data, rows)
    write_json(tasks, [to_label_studio_task(row, version) for row in rows])
    write_text(interface, build_labelling_interface([*sorted({*labels} - {"SECRET"}), "SECRET"]))


def write_labelled_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Check and write labelled rows as JSON lines (mode 0600); ``InputError`` names the file and the row."""
    rows = list(rows)
    for number, row in enumerate(rows, 1):
        try:
            _check_row(row)
        except _InvalidRowError as error:
            raise InputError(f"{path.name}, row {number}: {error}") from None
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _parse_task(task: Any) -> dict[str, Any]:
    done = [a for a in task.get("annotations", ()) if not a.get("was_cancelled")]
    if len(done) != 1:
        raise _InvalidRowError(f"expected exactly one submitted annotation, got {len(done)}")
    text, spans = task["data"]["text"], []
    if not isinstance(text, str):
        raise _InvalidRowError("its text is not a string")
    for entry in done[0]["result"]:
        value = entry.get("value") or {}
        if entry.get("type") == _LABELS_TYPE and value.get(_LABELS_TYPE):
            start, end = _resolve_offsets(text, value)
            spans += [{"start": start, "end": end, "label": label} for label in value[_LABELS_TYPE]]
        elif "start" in value:
            # skipping it would leave a secret unlabelled
            raise _InvalidRowError("a span has no label, or its tag is not Labels over a Text")
    return {**task["data"], "spans": spans}


def _resolve_offsets(text: str, value: Mapping[str, Any]) -> tuple[int, int]:
    """Return a span's code points; some versions count UTF-16 units, which the quoted span reveals."""
    start, end, quoted = int(value["start"]), int(value["end"]), value.get("text")
    if quoted is None:
        candidates = set() if any(ord(letter) > 0xFFFF for letter in text) else {(start, end)}
    else:
        units = text.encode("utf-16-le")
        moved = len(units[: 2 * start].decode("utf-16-le", "replace"))
        length = len(units[2 * start : 2 * end].decode("utf-16-le", "replace"))
        candidates = {
            (low, high)
            for low, high in ((start, end), (moved, moved + length))
            if text[low:high] in (str(quoted), str(quoted).replace("\\n", "\n"))
        }
    if len(candidates) != 1:
        raise _InvalidRowError("a span's position is ambiguous: its offsets and its text do not match")
    return candidates.pop()
