"""Label Studio's files: tasks to import, and its JSON export read back; places are code points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal
from xml.sax.saxutils import quoteattr

from redactory.evaluation.labelled_sample import SampledText

_FROM, _TO, _KIND, _TEXT = "label", "text", "labels", "text"
Standing = Literal["predictions", "annotations"]
"""Whether spans are proposed to the labellers, or stand as what one of them submitted."""


class UnreadableTask(ValueError):
    """What cannot be read of a task, without its text; any other ``ValueError`` may quote it."""


def as_tasks(sample: Iterable[SampledText], version: str) -> list[dict[str, Any]]:
    """One task a text of a sample, with π's spans as a prediction of ``version``."""
    return [
        _task(
            {"text": entry.text, "point_id": entry.point_id, "stratum": entry.stratum},
            str(entry.point_id),
            [span._asdict() for span in entry.prefilled()],
            "predictions",
            version,
        )
        for entry in sample
    ]


def row_as_task(row: Mapping[str, Any], number: int, standing: Standing, version: str) -> dict[str, Any]:
    """A labelled row, the ``number``-th, as a task; what else the row holds goes into the task's data."""
    data = {key: value for key, value in row.items() if key != "spans"}
    return _task(data, str(number), row["spans"], standing, version)


def _task(
    data: dict[str, Any], identity: str, spans: Iterable[Mapping[str, Any]], standing: Standing, version: str
) -> dict[str, Any]:
    text = data[_TEXT]
    result = [
        {
            "id": f"{identity}-{number}",
            "from_name": _FROM,
            "to_name": _TO,
            "type": _KIND,
            "value": {
                "start": span["start"],
                "end": span["end"],
                "text": text[span["start"] : span["end"]],
                _KIND: [span["label"]],
            },
        }
        for number, span in enumerate(spans)
    ]
    said = {"model_version": version} if standing == "predictions" else {"was_cancelled": False}
    return {"data": data, standing: [{**said, "result": result}]}


def labelling_interface(labels: Iterable[str]) -> str:
    """The project's labelling interface (XML) for the tasks."""
    choices = "".join(f"    <Label value={quoteattr(label)}/>\n" for label in labels)
    return (
        f'<View>\n  <Labels name="{_FROM}" toName="{_TO}">\n{choices}  </Labels>\n'
        f'  <Text name="{_TO}" value="${_TEXT}"/>\n</View>\n'
    )


def read_task(task: Mapping[str, Any], key: str = _TEXT) -> dict[str, Any]:
    """A task of the JSON export as a row {text, spans}, with what else its data holds.

    ``key`` is that of the text in the task's data.  ``UnreadableTask``, without text, for a task that nobody
    or more than one person has labelled, for a span that is none of a text's labels, and for a place that
    cannot be told.
    """
    data = dict(task["data"])
    done = [a for a in task.get("annotations", ()) if not a.get("was_cancelled")]
    if len(done) != 1:
        raise UnreadableTask(f"{len(done)} submitted annotations, exactly one is needed")
    text = data.pop(key)
    if not isinstance(text, str):
        raise UnreadableTask("its text is no text")
    spans = [
        {"start": place[0], "end": place[1], "label": label}
        for value in _values(done[0]["result"])
        for place in [_place(text, value)]
        for label in value[_KIND]
    ]
    return {**data, "text": text, "spans": spans}


def _values(result: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The labelled spans among the results of an annotation; what is no span is passed over."""
    for entry in result:
        value = entry.get("value") or {}
        if entry.get("type") == _KIND and value.get(_KIND):
            yield value
        elif "start" in value:
            # passed over, it would be a secret that nobody labelled
            raise UnreadableTask("a span has no label, or is of a tag other than Labels over a Text")


def _place(text: str, value: Mapping[str, Any]) -> tuple[int, int]:
    """Code points of a span: some versions count UTF-16 units, and the quoted span tells which."""
    start, end = int(value["start"]), int(value["end"])
    quoted = value.get("text")
    found = {(start, end)} if quoted is None else set(_places(text, start, end, str(quoted)))
    if quoted is None and any(ord(sign) > 0xFFFF for sign in text):
        found = set()
    if len(found) != 1:
        raise UnreadableTask("a span's place cannot be told: its offsets and its text do not agree")
    return found.pop()


def _places(text: str, start: int, end: int, quoted: str) -> Iterator[tuple[int, int]]:
    units = text.encode("utf-16-le")
    before, inside = units[: 2 * start], units[2 * start : 2 * end]
    counted = len(before.decode("utf-16-le", "replace"))
    moved = (counted, counted + len(inside.decode("utf-16-le", "replace")))
    for place in ((start, end), moved):
        if text[place[0] : place[1]] in (quoted, quoted.replace("\\n", "\n")):
            yield place
