"""Label Studio's files: tasks to import, and its JSON export read back; places are code points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal
from xml.sax.saxutils import quoteattr

from redactory.evaluation.labelled_sample import SampledText, as_rows

_FROM, _TO, _KIND, _TEXT = "label", "text", "labels", "text"
Standing = Literal["predictions", "annotations"]
"""Whether spans are proposed to the labellers, or stand as what one of them submitted."""


class UnreadableTask(ValueError):
    """What cannot be read of a task, without its text; any other ``ValueError`` may quote it."""


def as_tasks(sample: Iterable[SampledText], version: str) -> list[dict[str, Any]]:
    """One task a text of a sample, with π's spans as a prediction of ``version``."""
    return [row_as_task(row, row.pop("id"), "predictions", version) for row in as_rows(sample)]


def row_as_task(
    row: Mapping[str, Any], identity: int | str, standing: Standing, version: str
) -> dict[str, Any]:
    """A labelled row as a task; what else the row holds goes into the task's data."""
    data = {key: value for key, value in row.items() if key != "spans"}
    result = [
        {
            "id": f"{identity}-{number}",
            "from_name": _FROM,
            "to_name": _TO,
            "type": _KIND,
            "value": {
                "start": span["start"],
                "end": span["end"],
                "text": data[_TEXT][span["start"] : span["end"]],
                _KIND: [span["label"]],
            },
        }
        for number, span in enumerate(row["spans"])
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
    spans = []
    for entry in done[0]["result"]:
        value = entry.get("value") or {}
        if entry.get("type") == _KIND and value.get(_KIND):
            start, end = _place(text, value)
            spans += [{"start": start, "end": end, "label": label} for label in value[_KIND]]
        elif "start" in value:
            # passed over, it would be a secret that nobody labelled
            raise UnreadableTask("a span has no label, or is of a tag other than Labels over a Text")
    return {**data, "text": text, "spans": spans}


def _place(text: str, value: Mapping[str, Any]) -> tuple[int, int]:
    """Code points of a span: some versions count UTF-16 units, and the quoted span tells which."""
    start, end, quoted = int(value["start"]), int(value["end"]), value.get("text")
    if quoted is None:
        found = set() if any(ord(sign) > 0xFFFF for sign in text) else {(start, end)}
    else:
        units = text.encode("utf-16-le")
        moved = len(units[: 2 * start].decode("utf-16-le", "replace"))
        length = len(units[2 * start : 2 * end].decode("utf-16-le", "replace"))
        found = {
            (low, high)
            for low, high in ((start, end), (moved, moved + length))
            if text[low:high] in (str(quoted), str(quoted).replace("\\n", "\n"))
        }
    if len(found) != 1:
        raise UnreadableTask("a span's place cannot be told: its offsets and its text do not agree")
    return found.pop()
