"""Rows of several texts and conversations, through a curation: no example lies in two texts, roles stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redactory
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.fields import PART, ROLE, joined, without_roles
from redactory.pipelines.segment import of_parts, segmenter

MODES = ("sentence", "line", "document", "turn")
words = st.text(alphabet="ab .\n:A", max_size=20)


@given(
    st.lists(st.tuples(st.none() | st.sampled_from(["user", "assistant"]), words), max_size=5),
    st.sampled_from(MODES),
)
def test_points_of_parts_give_the_document_back_and_lie_in_one_part(
    said: list[tuple[str | None, str]], mode: Any
) -> None:
    document = joined(said)
    points = of_parts(segmenter(SegmentSettings(mode=mode)))(document)
    assert "".join(point.prefix + point.text + point.suffix for point in points) == document
    if any(text.strip() for _, text in said):
        assert not any(sign in point.text for point in points for sign in (PART, ROLE))
    place = 0
    for point in points:
        place += len(point.prefix)
        role = document[:place].rpartition(PART)[2].partition(ROLE)
        assert point.speaker == role[0] if role[1] else mode == "turn" or point.speaker is None
        place += len(point.text) + len(point.suffix)


CHAT = [
    {
        "id": "a",
        "messages": [
            {"role": "user", "content": "Hello there.", "country": "Nobody said this"},
            {"role": "assistant", "content": "Hello!", "country": None},
        ],
    },
    {
        "id": "b",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Write to ann@example.org"}]}],
    },
    {"id": "c", "messages": [{"role": "user", "content": 3}]},
    {"id": "d", "messages": []},
    {"id": "e", "messages": [{"role": "user", "content": f"one{PART}two"}]},
    {"id": "f", "messages": [{"role": "user", "content": "data:image/png;base64,QUJD"}]},
]


@pytest.fixture(scope="module", params=["jsonl", "parquet"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    rows = (
        CHAT if request.param == "jsonl" else [{**row, "messages": _plain(row["messages"])} for row in CHAT]
    )
    path = folder / f"chat.{request.param}"
    if request.param == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    job = {"input": {"path": str(path), "text": "messages", "id": "id"}, "output": str(folder / "run")}
    redactory.curate(job | {"detect": {"tagger": None}})
    return folder / "run"


def _plain(messages: Any) -> Any:
    """As a table can hold them: every content a string."""
    said = [m["content"][0]["text"] if isinstance(m["content"], list) else m["content"] for m in messages]
    return [m | {"content": None if text == 3 else text} for m, text in zip(messages, said, strict=True)]


def test_each_turn_is_an_example_with_its_role(run: Path) -> None:
    vault = pq.read_table(run / "vault").to_pylist()
    assert [(one["doc_id"], one["speaker"], one["text"]) for one in vault] == [
        ("a", "user", "Hello there."),
        ("a", "assistant", "Hello!"),
        ("b", "user", "Write to ann@example.org"),
    ]
    assert [one["text"] for one in pq.read_table(run / "private").to_pylist()] == ["Write to <MASK>"]
    counts = json.loads((run / "manifest.json").read_text())["counts"]
    assert (counts["rows"], counts["documents"]) == (6, 2)
    checks = {check["name"]: check["ok"] for check in redactory.verify(run)["checks"]}
    assert checks["conservation"]
    assert checks["no mask in public"]


def test_several_fields_are_one_document(tmp_path: Path) -> None:
    row = {"title": "Hello there", "ticket": {"body": "How are you"}, "note": None}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    columns = {"path": str(tmp_path / "rows.jsonl"), "text": ["title", "ticket.body", "note"]}
    redactory.curate({"input": columns, "output": str(tmp_path / "run"), "detect": {"tagger": None}})
    vault = pq.read_table(tmp_path / "run" / "vault").to_pylist()
    assert [(one["doc_id"], one["text"]) for one in vault] == [
        ("rows.jsonl:1", "Hello there"),
        ("rows.jsonl:1", "How are you"),
    ]


def test_a_path_that_is_none_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigurationError, match=r"'a\.\.b' is not a path"):
        redactory.describe({"input": {"path": "nothing.jsonl", "text": ["a..b"]}, "output": "run"})


def test_a_document_of_parts_reads_as_lines() -> None:
    assert without_roles(joined([("user", "a"), (None, "b")])) == "a\nb"
