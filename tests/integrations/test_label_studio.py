"""Label Studio's own format: labelled rows there and back, and its documented JSON read as it is."""

from __future__ import annotations

import json
import stat
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redactory
from redactory.evaluation.label_studio import read_task, row_as_task
from redactory.foundation.errors import ConfigurationError, InputError
from tests.pipelines.support import DigitDetector, write_rows

ROWS: list[dict[str, Any]] = [
    {
        "id": "a",
        "user_id": "u1",
        "text": "Ask 😀 Ann\nor call 555-0143.",
        "spans": [{"start": 6, "end": 9, "label": "PERSON"}, {"start": 18, "end": 26, "label": "PHONE"}],
    },
    {"id": "b", "text": "Nothing here.", "spans": []},
]
EXPORTED: dict[str, Any] = {
    "id": 17,
    "annotations": [
        {
            "id": 1001,
            "completed_by": 1,
            "result": [
                {
                    "value": {"start": 4, "end": 7, "text": "Ann", "labels": ["PERSON"]},
                    "id": "Dx_aB91ISN",
                    "from_name": "label",
                    "to_name": "text",
                    "type": "labels",
                    "origin": "manual",
                },
                {"from_id": "Dx_aB91ISN", "to_id": "q", "type": "relation", "direction": "right"},
                {
                    "value": {"choices": ["done"]},
                    "id": "c",
                    "from_name": "sure",
                    "to_name": "text",
                    "type": "choices",
                },
            ],
            "was_cancelled": False,
            "ground_truth": False,
            "created_at": "2026-03-09T22:16:08.728353Z",
            "lead_time": 4.288,
            "result_count": 0,
            "task": 17,
        },
        {"id": 1002, "was_cancelled": True, "result": []},
    ],
    "drafts": [],
    "predictions": [{"model_version": "m", "result": [], "score": 0.5}],
    "data": {"text": "Ask Ann again.", "user_id": "u2"},
    "meta": {},
    "created_at": "2026-03-09T21:52:49.513742Z",
    "inner_id": 1,
    "total_annotations": 1,
    "cancelled_annotations": 1,
    "project": 83,
}
"""A task of the JSON export with the keys that Label Studio documents."""


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "labelled.jsonl", ROWS)


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    def written(*tasks: Any) -> Path:
        path = tmp_path / "project-1.json"
        path.write_text(json.dumps(list(tasks)), encoding="utf-8")
        return path

    return written


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_rows_go_there_and_come_back(labelled: Path, tmp_path: Path) -> None:
    told = redactory.to_label_studio(labelled, tmp_path / "tasks.json", standing="annotations")
    assert told["tasks"] == 2
    assert told["spans"] == {"PERSON": 1, "PHONE": 1}
    back = redactory.from_label_studio(told["out"], tmp_path / "back.jsonl")
    assert back["rows"] == 2
    assert read(tmp_path / "back.jsonl") == ROWS
    for name in ("tasks.json", "tasks.xml", "back.jsonl"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@settings(max_examples=50)
@given(st.data())
def test_any_row_comes_back_as_it_was(data: st.DataObject) -> None:
    text = data.draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
    places = st.tuples(st.integers(0, len(text) - 1), st.integers(1, len(text)))
    pairs = data.draw(st.lists(places.filter(lambda place: place[0] < place[1]), max_size=4))
    spans = [{"start": start, "end": end, "label": f"L{n}"} for n, (start, end) in enumerate(pairs)]
    row = {"text": text, "spans": spans, "user_id": "u"}
    task = json.loads(json.dumps(row_as_task(row, 1, "annotations", "v")))
    try:
        assert read_task(task) == row
    except ValueError:
        # two ways of counting give the same words at two places: nothing is guessed
        assert any(ord(sign) > 0xFFFF for sign in text)


def test_the_interface_has_every_label_and_leads_to_the_text(labelled: Path, tmp_path: Path) -> None:
    told = redactory.to_label_studio(labelled, tmp_path / "tasks.json", labels=["DATE & TIME"])
    view = ET.parse(told["interface"]).getroot()
    labels, text = view.find("Labels"), view.find("Text")
    assert labels is not None
    assert text is not None
    assert [own.get("value") for own in labels] == ["DATE & TIME", "PERSON", "PHONE"]
    assert (labels.get("toName"), text.get("value")) == (text.get("name"), "$text")
    tasks = json.loads((tmp_path / "tasks.json").read_text(encoding="utf-8"))
    assert [list(task) for task in tasks] == [["data", "predictions"]] * 2
    for task, row in zip(tasks, ROWS, strict=True):
        assert task["data"] == {key: value for key, value in row.items() if key != "spans"}
        for result, span in zip(task["predictions"][0]["result"], row["spans"], strict=True):
            assert (result["from_name"], result["to_name"]) == (labels.get("name"), text.get("name"))
            assert result["value"]["text"] == row["text"][span["start"] : span["end"]]


def test_an_export_with_all_its_keys_is_read(export: Callable[..., Path], tmp_path: Path) -> None:
    redactory.from_label_studio(export(EXPORTED), tmp_path / "rows.jsonl")
    (row,) = read(tmp_path / "rows.jsonl")
    assert row == {
        "user_id": "u2",
        "text": "Ask Ann again.",
        "spans": [{"start": 4, "end": 7, "label": "PERSON"}],
    }


def test_what_was_labelled_is_what_detection_is_measured_on(
    export: Callable[..., Path], tmp_path: Path
) -> None:
    digits = row_as_task(
        {"text": "call 555", "spans": [{"start": 5, "end": 8, "label": "N"}]}, 1, "annotations", ""
    )
    redactory.from_label_studio(export(EXPORTED, digits), tmp_path / "rows.jsonl")
    found = redactory.evaluate_detect(tmp_path / "rows.jsonl", detector=DigitDetector())
    assert found["rows"] == 2
    assert found["spans"] == 2


def test_the_text_may_have_another_key(export: Callable[..., Path], tmp_path: Path) -> None:
    task = {**EXPORTED, "data": {"body": "Ask Ann again."}}
    with pytest.raises(
        InputError, match=r"project-1\.json, task 1: .* with a text under 'text' \(KeyError\)"
    ):
        redactory.from_label_studio(export(task), tmp_path / "rows.jsonl")
    redactory.from_label_studio(export(task), tmp_path / "rows.jsonl", text="body")
    assert read(tmp_path / "rows.jsonl")[0]["text"] == "Ask Ann again."


SECRET = "Wilhelmina"


def _with(**result: Any) -> dict[str, Any]:
    value = {"start": 0, "end": 10, "labels": ["PERSON"]}
    results = [{"type": "labels", "value": value, **result}]
    return {"data": {"text": f"{SECRET} and Ann"}, "annotations": [{"result": results}]}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([{**EXPORTED, "annotations": []}], "task 1: 0 submitted annotations, exactly one is needed"),
        ([EXPORTED, {**EXPORTED, "annotations": EXPORTED["annotations"][:1] * 2}], "task 2: 2 submitted"),
        ([_with(type="hypertextlabels")], "task 1: a span has no label, or is of a tag other than Labels"),
        ([_with(value={"start": 0, "end": 10})], "task 1: a span has no label"),
        ([_with(value={"start": 0, "end": 4, "text": SECRET, "labels": ["P"]})], "place cannot be told"),
        (
            [_with(value={"start": 9, "end": 99, "labels": ["P"]})],
            "span 1 is empty or does not lie in the text",
        ),
        (
            [_with(value={"start": SECRET, "end": 4, "labels": ["P"]})],
            "JSON export with a text under 'text' (Va",
        ),
        ([{"data": {"text": [SECRET]}, "annotations": [{"result": []}]}], "its text is no text"),
        ([SECRET], "no task of Label Studio's JSON export"),
        ({"text": SECRET}, "is no list of tasks: export the project as JSON"),
    ],
)
def test_what_is_no_such_task_is_named_without_its_text(content: Any, told: str, tmp_path: Path) -> None:
    path = tmp_path / "export.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        redactory.from_label_studio(path, tmp_path / "rows.jsonl")
    assert told in str(caught.value)
    assert SECRET not in str(caught.value)
    assert not (tmp_path / "rows.jsonl").exists()


def test_what_cannot_be_written_is_refused(labelled: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ends in \.json"):
        redactory.to_label_studio(labelled, tmp_path / "tasks.txt")
    (tmp_path / "tasks.xml").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"tasks\.xml exists"):
        redactory.to_label_studio(labelled, tmp_path / "tasks.json")
    unlabelled = write_rows(tmp_path / "unlabelled.jsonl", ROWS[1:])
    with pytest.raises(ConfigurationError, match="--label"):
        redactory.to_label_studio(unlabelled, tmp_path / "other.json")
    with pytest.raises(InputError, match="cannot be read"):
        redactory.from_label_studio(tmp_path / "nowhere.json", tmp_path / "rows.jsonl")
    with pytest.raises(InputError, match=r"labelled\.jsonl is no JSON"):
        redactory.from_label_studio(labelled, tmp_path / "rows.jsonl")
    assert (tmp_path / "tasks.xml").read_text() == "mine"
