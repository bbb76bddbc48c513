"""A sample in its three forms, and what people give back: read exactly, or refused without a word of text."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.evaluation.label_studio import as_tasks, read_task
from redactory.evaluation.labelled_sample import (
    Marked,
    SampledText,
    as_csv,
    as_json_lines,
    as_rows,
    prefilled,
)
from redactory.evaluation.sample_labels import read_labels, secrets_drawn
from redactory.foundation.errors import InputError
from redactory.foundation.keys import DigestKey
from redactory.foundation.stream import RandomStream

KEY = DigestKey(b"k" * 32)
SECRET = "Wilhelmina"
TEXTS = {
    7: f"Ask 😀 {SECRET} or\nAnn, please.",
    2**32 + 1: "Who am I?",
    9: '=HYPERLINK("x")',
}
SPANS = {7: [Marked(6, 16, "PERSON"), Marked(20, 23, "PERSON")], 2**32 + 1: [], 9: [Marked(1, 10, "SECRET")]}


@pytest.fixture
def sample() -> list[SampledText]:
    return [SampledText(i, "masked", 2, tuple(SPANS[i]), text=text) for i, text in TEXTS.items()]


@pytest.fixture
def drawn(sample: list[SampledText]) -> list[SampledText]:
    """As the record of the draw has them, written and read again."""
    return [SampledText.recorded(json.loads(json.dumps(text.record(KEY)))) for text in sample]


def test_the_three_forms_say_the_same(sample: list[SampledText]) -> None:
    rows = [json.loads(line) for line in as_json_lines(sample).split("\n")[:-1]]
    tasks = as_tasks(sample, "v1")
    table = list(csv.DictReader(io.StringIO(as_csv(sample))))
    for entry, row, task, cells in zip(sample, rows, tasks, table, strict=True):
        spans = [list(span) for span in SPANS[entry.point_id]]
        assert [[s["start"], s["end"], s["label"]] for s in row["spans"]] == spans
        assert json.loads(cells["spans"]) == spans
        results = task["predictions"][0]["result"]
        assert [[r["value"]["start"], r["value"]["end"], *r["value"]["labels"]] for r in results] == spans
        assert row["text"] == task["data"]["text"] == entry.text
        assert row["point_id"] == task["data"]["point_id"] == int(cells["point_id"])
        assert row["stratum"] == task["data"]["stratum"] == cells["stratum"] == "masked"
    assert [cells["text"][0] for cells in table] == ["A", "W", "'"]


def test_a_labeller_starts_from_spans_that_do_not_overlap() -> None:
    strict = [
        Marked(0, 4, "A"),
        Marked(0, 9, "B"),
        Marked(5, 12, "C"),
        Marked(12, 14, "D"),
        Marked(0, 9, "B"),
    ]
    assert prefilled(strict) == (Marked(0, 9, "B"), Marked(12, 14, "D"))


def exported(text: str, spans: list[tuple[int, int, str | None]], **task: Any) -> dict[str, Any]:
    """A task as Label Studio exports it."""
    values = [
        {"start": start, "end": end, "labels": ["PERSON"]} | ({} if quoted is None else {"text": quoted})
        for start, end, quoted in spans
    ]
    results = [{"type": "labels", "value": value} for value in values] + [{"type": "choices", "value": {}}]
    annotations = [{"was_cancelled": False, "result": results}]
    return {"data": {"text": text, "point_id": 7}, "annotations": annotations, **task}


@given(
    # no sign of the secret: a place that two ways of counting give is refused
    before=st.text("ab 𝔘", max_size=8),
    secret=st.text("xyz😀é", min_size=1, max_size=5),
    units=st.booleans(),
)
def test_places_are_code_points_whatever_the_tool_counted(before: str, secret: str, units: bool) -> None:
    def measure(piece: str) -> int:
        return len(piece.encode("utf-16-le")) // 2 if units else len(piece)

    start = measure(before)
    task = exported(f"{before}|{secret}!", [(start + 1, start + 1 + measure(secret), secret)])
    assert read_task(exported("a\nb", [(0, 3, "a\\nb")]))["spans"][0]["end"] == 3
    assert read_task(task)["spans"] == [
        {"start": len(before) + 1, "end": len(before) + 1 + len(secret), "label": "PERSON"}
    ]


@pytest.mark.parametrize(
    "task",
    [
        exported("Ann", [(0, 2, "Ann")]),
        exported("😀 Ann", [(2, 5, None)]),
        exported("😀 aaaa", [(3, 5, "aa")]),
        exported("Ann", [], annotations=[{"was_cancelled": True, "result": []}]),
    ],
)
def test_what_cannot_be_told_is_refused(task: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"cannot be told|exactly one") as error:
        read_task(task)
    assert "Ann" not in str(error.value)


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_labels_come_back_in_the_order_of_the_draw(
    sample: list[SampledText], drawn: list[SampledText], tmp_path: Path
) -> None:
    rows = as_rows(sample)
    rows[0]["spans"] = rows[0]["spans"][::-1] * 2
    rows[1]["spans"] = [{"start": 0, "end": 3, "label": "WHO"}]
    path = written(tmp_path / "labelled.jsonl", rows[::-1])
    path.write_text("\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    labelled = read_labels(path, drawn, KEY)
    assert [row.point_id for row in labelled] == list(TEXTS)
    assert labelled[0].secrets == tuple(SPANS[7])
    assert [row.changed for row in labelled] == [False, True, False]
    tasks = as_tasks(sample, "v1")
    for task in tasks:
        task["annotations"] = [{"was_cancelled": False, "result": task["predictions"][0]["result"]}]
    export = tmp_path / "export.json"
    export.write_text(json.dumps(tasks), encoding="utf-8")
    assert [row.secrets for row in read_labels(export, drawn, KEY)] == [tuple(SPANS[i]) for i in TEXTS]


Change = Callable[[list[Any]], None]


def change(key: str, value: Any) -> Change:
    return lambda rows: rows[0].update({key: value})


def span(**values: Any) -> Change:
    return change("spans", [{"start": 0, "end": 3, "label": "A", **values}])


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda rows: rows.pop(0), r"1 of the sample's 3 texts are missing \(point 7\)"),
        (lambda rows: rows.append(rows[0]), r"row 4 \(point 7\): this point stands in an earlier row"),
        (change("point_id", 8), r"row 1 \(point 8\): this point is not in the sample"),
        (change("point_id", None), "row 1: it has no 'point_id'"),
        (change("text", f"Ask {SECRET}."), r"row 1 \(point 7\): its text is not the text"),
        (change("text", None), "its text is not the text"),
        (change("spans", None), r"row 1 \(point 7\): 'spans' must be a list"),
        (change("spans", [7]), "span 1 needs whole numbers"),
        (span(start="0"), "span 1 needs whole numbers"),
        (span(start=True), "span 1 needs whole numbers"),
        (span(end=99), r"row 1 \(point 7\): span 1 does not lie in the text of 32 code points"),
        (span(start=3), "does not lie"),
        (span(start=-1), "does not lie"),
        (span(label=None), "span 1 needs a 'label'"),
        (lambda rows: rows.insert(0, [SECRET]), "row 1|no JSON"),
        (lambda rows: rows.insert(0, SECRET), "row 1: a JSON object is needed"),
    ],
)
def test_labels_that_do_not_fit_are_refused_without_their_text(
    spoil: Change, told: str, sample: list[SampledText], drawn: list[SampledText], tmp_path: Path
) -> None:
    rows = as_rows(sample)
    spoil(rows)
    with pytest.raises(InputError, match=told) as error:
        read_labels(written(tmp_path / "labelled.jsonl", rows), drawn, KEY)
    assert SECRET not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize(
    "content", [b"{", b'[{"data": {}}]', b"[3]", b'{"id": "\xff"}', b'[{"data": 1, "annotations": 2}]']
)
def test_files_of_another_kind_are_refused(content: bytes, drawn: list[SampledText], tmp_path: Path) -> None:
    path = tmp_path / "labelled.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"labelled\.json"):
        read_labels(path, drawn, KEY)
    with pytest.raises(InputError, match="cannot be read"):
        read_labels(tmp_path / "none", drawn, KEY)


def test_the_secret_of_a_draw_depends_on_its_point_and_the_seed_alone(drawn: list[SampledText]) -> None:
    many = tuple(Marked(n, n + 1, "A") for n in range(20))
    first, second = (dataclasses.replace(entry, secrets=many) for entry in drawn[:2])
    stream = RandomStream.from_seed(3)
    taken = [*secrets_drawn(first, stream), *secrets_drawn(second, stream)]
    assert len(taken) == 4
    assert len(set(taken)) > 1
    assert [*secrets_drawn(second, stream), *secrets_drawn(first, stream)] == taken[2:] + taken[:2]
    assert list(secrets_drawn(first, RandomStream.from_seed(4))) != taken[:2]
    assert list(secrets_drawn(drawn[0], stream)) == []
    often = dataclasses.replace(first, times=3000, secrets=many[:3])
    assert all(abs(count - 1000) < 130 for count in Counter(secrets_drawn(often, stream)).values())
