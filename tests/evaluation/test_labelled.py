"""Labelled rows and samples: their forms say the same, and what comes back is read exactly or refused."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from redactory.detectors import Span
from redactory.evaluation.labelled import build_labelling_interface, read_labelled_rows, to_label_studio_task
from redactory.evaluation.sample import (
    LabelledSpan,
    SampledText,
    draw_secret_indices,
    read_labels,
    select_prefilled_spans,
    to_labelling_rows,
)
from redactory.foundation.errors import InputError
from redactory.foundation.keys import DigestKey
from redactory.foundation.stream import RandomStream

KEY = DigestKey(b"k" * 32)
SECRET = "Wilhelmina"
TEXTS = {7: f"Ask 😀 {SECRET} or\nAnn, please.", 2**32 + 1: "Who am I?", 9: '=HYPERLINK("x")'}
SPANS = {
    7: [LabelledSpan(6, 16, "PERSON"), LabelledSpan(20, 23, "PERSON")],
    2**32 + 1: [],
    9: [LabelledSpan(1, 10, "SECRET")],
}
SAMPLE = [SampledText(i, "masked", 2, tuple(SPANS[i]), text=text) for i, text in TEXTS.items()]
DRAWN = TypeAdapter(list[SampledText]).validate_json(json.dumps([text.to_record(KEY) for text in SAMPLE]))
"""As the record of the draw has them, written and read again."""


def exported(text: Any, spans: list[tuple[Any, Any, str | None]], **task: Any) -> dict[str, Any]:
    """A task with the keys that Label Studio's export documents; spans are (start, end, quoted text)."""
    values = [
        {"start": start, "end": end, "labels": ["PERSON"]} | ({} if quoted is None else {"text": quoted})
        for start, end, quoted in spans
    ]
    results = [
        *({"type": "labels", "value": value, "id": "D", "origin": "manual"} for value in values),
        {"from_id": "D", "to_id": "q", "type": "relation", "direction": "right"},
        {"type": "choices", "value": {"choices": ["done"]}},
    ]
    annotations = [{"id": 1, "was_cancelled": False, "result": results}, {"was_cancelled": True, "result": []}]
    rest = {"id": 17, "drafts": [], "predictions": [{"result": []}], "meta": {}, "total_annotations": 1}
    return {**rest, "data": {"text": text, "example_id": 7}, "annotations": annotations, **task}


def write(path: Path, content: Any) -> Path:
    """JSON lines of rows, or a JSON export of tasks."""
    is_export = path.suffix == ".json"
    path.write_text(
        json.dumps(content) if is_export else "".join(json.dumps(row) + "\n" for row in content), encoding="utf-8"
    )
    return path


def submitted(task: dict[str, Any]) -> dict[str, Any]:
    """The task as a labeller exports it who changed nothing."""
    return {**task, "annotations": [{"was_cancelled": False, "result": task["predictions"][0]["result"]}]}


def test_the_forms_of_a_sample_say_the_same() -> None:
    for entry, row in zip(SAMPLE, to_labelling_rows(SAMPLE), strict=True):
        task, spans = to_label_studio_task(row, "v1"), [list(span) for span in SPANS[entry.example_id]]
        assert [[s["start"], s["end"], s["label"]] for s in row["spans"]] == spans
        results = [result["value"] for result in task["predictions"][0]["result"]]
        assert [[value["start"], value["end"], *value["labels"]] for value in results] == spans
        assert task["data"] == {key: value for key, value in row.items() if key != "spans"}
        assert (row["text"], row["example_id"], row["stratum"]) == (entry.text, entry.example_id, "masked")
    labels, text = ET.fromstring(build_labelling_interface(["DATE & TIME", "PERSON"]))
    assert [own.get("value") for own in labels] == ["DATE & TIME", "PERSON"]
    assert (labels.get("toName"), text.get("value")) == (text.get("name"), "$text")


def test_a_labeller_starts_from_spans_that_do_not_overlap() -> None:
    given = [(0, 4, "A"), (0, 9, "B"), (5, 12, "C"), (12, 14, "D"), (0, 9, "B")]
    assert select_prefilled_spans(Span(*span, 1.0, "tagger") for span in given) == (
        LabelledSpan(0, 9, "B"),
        LabelledSpan(12, 14, "D"),
    )


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_row_goes_to_label_studio_and_back(tmp_path: Path, data: st.DataObject) -> None:
    text = data.draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
    places = st.tuples(st.integers(0, len(text) - 1), st.integers(1, len(text)))
    pairs = data.draw(st.lists(places.filter(lambda place: place[0] < place[1]), max_size=4))
    spans = [{"start": start, "end": end, "label": f"L{n}"} for n, (start, end) in enumerate(pairs)]
    row = {"text": text, "spans": spans, "user_id": "u"}
    try:
        assert list(read_labelled_rows(write(tmp_path / "e.json", [submitted(to_label_studio_task(row, "v"))]))) == [
            row
        ]
    except InputError:
        # two ways of counting give the same words at two places: nothing is guessed
        assert any(ord(sign) > 0xFFFF for sign in text)
    assert list(read_labelled_rows(write(tmp_path / "e.jsonl", [row]))) == [row]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    # no sign of the secret: a place that two ways of counting give is refused
    before=st.text("ab 𝔘", max_size=8),
    secret=st.text("xyz😀é", min_size=1, max_size=5),
    units=st.booleans(),
)
def test_places_are_code_points_whatever_the_tool_counted(
    tmp_path: Path, before: str, secret: str, units: bool
) -> None:
    def measure(piece: str) -> int:
        return len(piece.encode("utf-16-le")) // 2 if units else len(piece)

    start = measure(before) + 1
    task = exported(f"{before}|{secret}!", [(start, start + measure(secret), secret)])
    quoted = exported("a\nb", [(0, 3, "a\\nb")])
    first, second = read_labelled_rows(write(tmp_path / "e.json", [task, quoted]))
    assert first["spans"] == [{"start": len(before) + 1, "end": len(before) + 1 + len(secret), "label": "PERSON"}]
    assert second["spans"][0]["end"] == 3


def _span(**values: Any) -> dict[str, Any]:
    return {"text": f"{SECRET} Ann", "spans": [{"start": 0, "end": 3, "label": "A", **values}]}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (exported("Ann", [], annotations=[]), "row 2: expected exactly one submitted annotation, got 0"),
        (exported("Ann", [], annotations=[{"result": []}] * 2), "row 2: .* got 2"),
        (exported(SECRET, [(0, 2, SECRET)]), "a span's position is ambiguous"),
        (exported("😀 Ann", [(2, 5, None)]), "is ambiguous"),
        (exported("😀 aaaa", [(3, 5, "aa")]), "is ambiguous"),
        (exported(SECRET, [(9, 99, None)]), "span 1 is empty or outside the text of 10 code points"),
        (exported(SECRET, [(SECRET, 4, None)]), r"nor a task .* \(ValueError\)"),
        (exported([SECRET], []), "its text is not a string"),
        (
            exported("Ann", [], annotations=[{"result": [{"type": "labels", "value": {"start": 0, "end": 3}}]}]),
            "a span has no label, or its tag is not Labels",
        ),
        ({"data": {"body": SECRET}, "annotations": [{"result": []}]}, r"text under 'text' \(KeyError\)"),
        ({"data": 1, "annotations": 2}, "row 2: neither a labelled row"),
        (_span(start="0"), "row 2: span 1 needs integers"),
        (_span(start=True), "span 1 needs integers"),
        (_span(end=99), "span 1 is empty or outside the text"),
        (_span(start=3), "outside the text"),
        (_span(start=-1), "outside the text"),
        (_span(label=None), "span 1 needs a 'label'"),
        ({"text": SECRET, "spans": [SECRET]}, "span 1 needs integers"),
        ({"text": SECRET}, "row 2: expected 'text' and 'spans'"),
        ({"text": f"{SECRET}\ud800", "spans": []}, "half of a surrogate pair"),
        (SECRET, "row 2: expected a JSON object|no task|neither"),
    ],
)
def test_what_is_no_labelled_row_is_named_without_its_text(entry: Any, told: str, tmp_path: Path) -> None:
    is_task = isinstance(entry, dict) and "annotations" in entry
    first = exported("Ann", []) if is_task else {"text": "Ann", "spans": []}
    path = write(tmp_path / ("x.json" if is_task else "x.jsonl"), [first, entry])
    with pytest.raises(InputError, match=told) as caught:
        list(read_labelled_rows(path))
    assert str(caught.value).startswith(path.name)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("content", [b"{", b'{"data": {}}', b"[3]", b'{"id": "\xff"}', b"[" * 100_000])
def test_files_of_another_kind_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "labelled.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"labelled\.json, row 1"):
        list(read_labelled_rows(path))
    with pytest.raises(InputError, match="cannot be read"):
        list(read_labelled_rows(tmp_path / "none"))


def test_labels_come_back_in_the_order_of_the_draw(tmp_path: Path) -> None:
    rows = to_labelling_rows(SAMPLE)
    rows[0]["spans"] = rows[0]["spans"][::-1] * 2
    rows[1]["spans"] = [{"start": 0, "end": 3, "label": "WHO"}]
    path = write(tmp_path / "labelled.jsonl", rows[::-1])
    path.write_text("\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    labelled = read_labels(path, DRAWN, KEY)
    assert [row.example_id for row in labelled] == list(TEXTS)
    assert labelled[0].secrets == tuple(SPANS[7])
    assert [row.is_changed for row in labelled] == [False, True, False]
    export = write(
        tmp_path / "export.json", [submitted(to_label_studio_task(row, "v1")) for row in to_labelling_rows(SAMPLE)]
    )
    assert [row.secrets for row in read_labels(export, DRAWN, KEY)] == [tuple(SPANS[i]) for i in TEXTS]


def _change(key: str, value: Any) -> Callable[[list[Any]], None]:
    return lambda rows: rows[0].update({key: value})


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda rows: rows.pop(0), r"1 of the sample's 3 texts are missing \(example 7\)"),
        (lambda rows: rows.append(rows[0]), r"row 4 \(example 7\): this example also occurs in an earlier row"),
        (_change("example_id", 8), r"row 1 \(example 8\): this example is not in the sample"),
        (_change("example_id", None), "row 1: it has no 'example_id'"),
        (
            _change("text", f"Ask {SECRET}. And then some more."),
            r"row 1 \(example 7\): its text differs from the sample",
        ),
    ],
)
def test_labels_that_do_not_fit_the_draw_are_refused_without_their_text(
    spoil: Callable[[list[Any]], None], told: str, tmp_path: Path
) -> None:
    rows = to_labelling_rows(SAMPLE)
    spoil(rows)
    with pytest.raises(InputError, match=told) as error:
        read_labels(write(tmp_path / "labelled.jsonl", rows), DRAWN, KEY)
    assert SECRET not in str(error.value)


def test_the_secret_of_a_draw_depends_on_its_point_and_the_seed_alone() -> None:
    many = tuple(LabelledSpan(n, n + 1, "A") for n in range(20))
    first, second = (dataclasses.replace(entry, secrets=many) for entry in DRAWN[:2])
    stream = RandomStream.from_seed(3)
    taken = [*draw_secret_indices(first, stream), *draw_secret_indices(second, stream)]
    assert len(taken) == 4
    assert len(set(taken)) > 1
    assert [*draw_secret_indices(second, stream), *draw_secret_indices(first, stream)] == taken[2:] + taken[:2]
    assert list(draw_secret_indices(first, RandomStream.from_seed(4))) != taken[:2]
    assert list(draw_secret_indices(DRAWN[0], stream)) == []
    often = dataclasses.replace(first, times=3000, secrets=many[:3])
    assert all(abs(count - 1000) < 130 for count in Counter(draw_secret_indices(often, stream)).values())
