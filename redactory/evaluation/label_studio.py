"""Label Studio's files: tasks with predictions to import, and its JSON export read back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from xml.sax.saxutils import quoteattr

from redactory.evaluation.labelled_sample import SampledText

_FROM, _TO, _KIND = "label", "text", "labels"


def as_tasks(sample: Iterable[SampledText], version: str) -> list[dict[str, Any]]:
    """One task a text, with π's spans as a prediction of ``version``; places are code points."""
    return [
        {
            "data": {"text": entry.text, "point_id": entry.point_id, "stratum": entry.stratum},
            "predictions": [
                {
                    "model_version": version,
                    "result": [
                        {
                            "id": f"{entry.point_id}-{number}",
                            "from_name": _FROM,
                            "to_name": _TO,
                            "type": _KIND,
                            "value": {
                                "start": span.start,
                                "end": span.end,
                                "text": entry.text[span.start : span.end],
                                "labels": [span.label],
                            },
                        }
                        for number, span in enumerate(entry.prefilled())
                    ],
                }
            ],
        }
        for entry in sample
    ]


def labelling_interface(labels: Iterable[str]) -> str:
    """The project's labelling interface (XML) for :func:`as_tasks`."""
    choices = "".join(f"    <Label value={quoteattr(label)}/>\n" for label in labels)
    return (
        f'<View>\n  <Labels name="{_FROM}" toName="{_TO}">\n{choices}  </Labels>\n'
        f'  <Text name="{_TO}" value="$text"/>\n</View>\n'
    )


def read_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task of the JSON export as a row {point_id, text, spans}.

    ``ValueError``, without text, for a task that nobody or more than one person has labelled, and for
    a place that cannot be told.
    """
    data = task["data"]
    done = [a for a in task.get("annotations", ()) if not a.get("was_cancelled")]
    if len(done) != 1:
        raise ValueError(f"{len(done)} submitted annotations, exactly one is needed")
    text = str(data["text"])
    spans = [
        {"start": place[0], "end": place[1], "label": label}
        for result in done[0]["result"]
        if result.get("type") == _KIND
        for place in [_place(text, result["value"])]
        for label in result["value"][_KIND]
    ]
    return {"point_id": data.get("point_id"), "text": text, "spans": spans}


def _place(text: str, value: Mapping[str, Any]) -> tuple[int, int]:
    """Code points of a span: some versions count UTF-16 units, and the quoted span tells which."""
    start, end = int(value["start"]), int(value["end"])
    quoted = value.get("text")
    found = {(start, end)} if quoted is None else set(_places(text, start, end, str(quoted)))
    if quoted is None and any(ord(sign) > 0xFFFF for sign in text):
        found = set()
    if len(found) != 1:
        raise ValueError("a span's place cannot be told: its offsets and its text do not agree")
    return found.pop()


def _places(text: str, start: int, end: int, quoted: str) -> Iterator[tuple[int, int]]:
    units = text.encode("utf-16-le")
    before, inside = units[: 2 * start], units[2 * start : 2 * end]
    counted = len(before.decode("utf-16-le", "replace"))
    moved = (counted, counted + len(inside.decode("utf-16-le", "replace")))
    for place in ((start, end), moved):
        if text[place[0] : place[1]] in (quoted, quoted.replace("\\n", "\n")):
            yield place
