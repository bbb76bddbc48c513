"""Rows of several texts and conversations, through a curation: no example lies in two texts, roles stay."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import redactory
from redactory.flows.cli import app
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.segment import make_segmenter, segment_each_text
from redactory.pipelines.curation_hints import list_curation_hints
from redactory.pipelines.json_paths import ROLE_SEPARATOR, TURN_SEPARATOR, join_texts, strip_roles
from redactory.redaction import RunFolder
from tests.pipelines.support import LINE_CONFIG, DigitDetector, write_rows

PATTERNS = {"tagger": None, "conservative": {"rules": ["digit"]}}
MODES = ("sentence", "line", "document", "turn")
words = st.text(alphabet="ab .\n:A", max_size=20)


@given(
    st.lists(st.tuples(st.none() | st.sampled_from(["user", "assistant"]), words), max_size=5), st.sampled_from(MODES)
)
def test_points_of_parts_give_the_document_back_and_lie_in_one_part(
    said: list[tuple[str | None, str]], mode: Any
) -> None:
    document = join_texts(said)
    points = segment_each_text(make_segmenter(SegmentSettings(mode=mode)))(document)
    assert "".join(point.prefix + point.text + point.suffix for point in points) == document
    if any(text.strip() for _, text in said):
        assert not any(sign in point.text for point in points for sign in (TURN_SEPARATOR, ROLE_SEPARATOR))
    place = 0
    for point in points:
        place += len(point.prefix)
        role = document[:place].rpartition(TURN_SEPARATOR)[2].partition(ROLE_SEPARATOR)
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
    {"id": "b", "messages": [{"role": "user", "content": [{"type": "text", "text": "Write to ann@example.org"}]}]},
    {"id": "c", "messages": [{"role": "user", "content": 3}]},
    {"id": "d", "messages": []},
    {"id": "e", "messages": [{"role": "user", "content": f"one{TURN_SEPARATOR}two"}]},
    {"id": "f", "messages": [{"role": "user", "content": "data:image/png;base64,QUJD"}]},
]


@pytest.fixture(scope="module", params=["jsonl", "parquet"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    rows = CHAT if request.param == "jsonl" else [{**row, "messages": _plain(row["messages"])} for row in CHAT]
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


WITHOUT_IDS = [{"messages": [{"role": "user", "content": f"hello {n}"}]} for n in range(3)]
SHARE_GPT = [{"conversations": [{"from": "human", "value": f"hello {n}"}]} for n in range(3)]


@pytest.mark.parametrize(
    ("rows", "asked", "chosen"),
    [
        (WITHOUT_IDS, {}, "messages"),
        (SHARE_GPT, {}, "conversations"),
        ([*SHARE_GPT, *WITHOUT_IDS], {}, "messages"),
        ([{"id": "x"}, *WITHOUT_IDS], {}, "messages"),
        ([{"text": "hello"}, *WITHOUT_IDS], {}, None),
        ([*WITHOUT_IDS, {"text": "hello"}], {}, None),
        ([row | {"text": "hello"} for row in WITHOUT_IDS], {}, None),
        ([{"body": "hello"}], {}, None),
        (WITHOUT_IDS, {"text": "text"}, None),
        (WITHOUT_IDS, {"text": "messages"}, None),
    ],
)
def test_a_chat_is_read_where_no_row_has_a_text(
    tmp_path: Path, rows: list[dict[str, Any]], asked: dict[str, str], chosen: str | None
) -> None:
    path, sentence = str(write_rows(tmp_path / "chat.jsonl", rows)), f"The text is read from '{chosen}'"
    config = {"input": {"path": path, **asked}, "output": str(tmp_path / "run"), "detect": {"tagger": None}}
    described = redactory.describe(config)
    assert any(sentence in remark for remark in described["remarks"]) == (chosen is not None)
    has_text = chosen or asked.get("text") == "messages" or any("text" in row for row in rows)
    assert (described["refused"] is None) == bool(has_text)
    if not has_text:
        with pytest.raises(CheckFailed):
            redactory.curate(config)
        (tmp_path / "job.yaml").write_text(json.dumps(config))
        assert CliRunner().invoke(app, ["curate", str(tmp_path / "job.yaml"), "--dry-run"]).exit_code == 1
        return
    for resume in (False, True):
        done = redactory.curate(config, resume=resume)
        assert done["documents"]
        assert done.get("text_chosen") == chosen
        assert any(sentence in hint for hint in list_curation_hints(done)) == (chosen is not None)
    manifest = json.loads(RunFolder(tmp_path / "run").manifest.read_text())
    assert manifest["configuration"]["input"]["text"] == (chosen or asked.get("text", "text"))


def test_a_document_of_parts_reads_as_lines() -> None:
    assert strip_roles(join_texts([("user", "a"), (None, "b")])) == "a\nb"


TURNS: list[list[tuple[str, str]]] = [
    [("user", "Hello there. Call me at 555-0101."), ("assistant", "Hello there."), ("user", "thanks a lot")],
    [("user", "thanks a lot"), ("assistant", " "), ("assistant", "broken"), ("Mary", "good bye for now")],
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two conversations with turns that are private, equal, empty, quarantined, and of a name."""
    folder = tmp_path_factory.mktemp("told")
    rows = [
        {"id": f"c{i}", "messages": [{"role": role, "content": text} for role, text in turns]}
        for i, turns in enumerate(TURNS)
    ]
    section = {"path": str(write_rows(folder / "rows.jsonl", rows)), "text": "messages", "emit_document_order": True}
    summary = redactory.curate({**LINE_CONFIG, "input": section}, output=folder / "run", detector=DigitDetector())
    assert summary["roles_left_out"] == 1
    assert "allow_personal_columns: [role]" in " ".join(list_curation_hints(dict(summary)))
    return folder / "run"


def test_a_run_gives_every_turn_back_with_its_role_and_fate(told: Path) -> None:
    first, second = redactory.conversations(told, "private")
    assert [tuple(turn.values()) for turn in first["turns"]] == [
        (0, "user", "Hello there. Call me at <MASK>.", ["private"]),
        # of another role than an equal text, it stays
        (1, "assistant", "Hello there.", ["public"]),
        (2, "user", "thanks a lot", ["public"]),
    ]
    assert [tuple(turn.values()) for turn in second["turns"]] == [
        (0, "user", "thanks a lot", ["duplicate"]),
        (2, "assistant", None, ["quarantined"]),
        (3, None, "good bye for now", ["public"]),
    ]
    seen = redactory.conversations(told)
    assert [turn["text"] for turn in seen[0]["turns"]] == [None, "Hello there.", "thanks a lot"]


def test_an_export_gives_public_turns_alone(told: Path, tmp_path: Path) -> None:
    redactory.export(told, tmp_path / "out")
    found = redactory.conversations(tmp_path / "out")
    assert [[(turn["turn"], turn["role"]) for turn in one["turns"]] for one in found] == [
        [(1, "assistant"), (2, "user")],
        [(3, None)],
    ]
    with pytest.raises(RunStateError, match="which contains only the public split"):
        redactory.conversations(tmp_path / "out", "private")


def test_without_the_order_a_run_has_roles_and_its_export_no_conversations(run: Path, tmp_path: Path) -> None:
    public = pq.read_table(run / "public")
    assert public.column_names == ["example_id", "text", "role"]
    assert [len(one["turns"]) for one in redactory.conversations(run)] == [2, 1]
    out = tmp_path / "out"
    redactory.export(run, out)
    with pytest.raises(ConfigurationError, match=r"without input\.emit_document_order"):
        redactory.conversations(out)


@pytest.mark.parametrize("mode", ["exact", "folded", "minhash", "bloom"])
@pytest.mark.parametrize("accepted", [False, True])
def test_equal_texts_of_two_roles_are_two_examples(tmp_path: Path, accepted: bool, mode: str) -> None:
    """What is exchanged is one row of role and text: another one's text must not change its role."""
    said = [("user", "hello"), ("assistant", "hello"), ("user", "hello"), ("Ann", "hello"), ("Bob", "hello")]
    row = {"messages": [{"role": role, "content": text} for role, text in said]}
    section: dict[str, Any] = {"path": str(write_rows(tmp_path / "rows.jsonl", [row])), "text": "messages"}
    section |= {"allow_personal_columns": ["role"]} if accepted else {}
    redactory.curate(
        {**LINE_CONFIG, "input": section, "dedup": {"mode": mode}}, output=tmp_path / "run", detector=DigitDetector()
    )
    roles = pq.read_table(tmp_path / "run" / "public")["role"].to_pylist()
    named = ["Ann", "Bob"] if accepted else [None]
    assert Counter(roles) == Counter(["user", "assistant", *named])


def test_conversations_are_curated_trained_on_with_their_roles_and_given_back(tmp_path: Path) -> None:
    words = ("the parcel", "my order", "this invoice", "the offer")
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"where is {words[i % 4]}, and how are you? call 555-01{i:02d}"},
                {"role": "assistant", "content": f"{words[i // 4 % 4]} is on its way to {words[i % 4]}"},
            ]
        }
        for i in range(30)
    ]
    network = {"kind": "lstm", "embedding_size": 8, "hidden_size": 8}
    train = {
        "prefix": "role",
        "model": network,
        "epochs": 1,
        "sampling_rate": 0.5,
        "min_public_steps": 2,
        "expected_batch_size": 8,
        "threads": 1,
        "seed": 3,
        "tokenizer": "public",
        "vocabulary_size": 500,
        "noise_multiplier": 1.0,
    }
    section = {"path": str(write_rows(tmp_path / "rows.jsonl", rows)), "text": "messages", "emit_document_order": True}
    config = {**LINE_CONFIG, "input": section, "train": train, "output": str(tmp_path / "run")}
    redactory.curate(config, detector=DigitDetector())
    found = redactory.conversations(tmp_path / "run", "private")
    assert [[(t["role"], t["text"]) for t in one["turns"]] for one in found] == [
        [(m["role"], re.sub(r"\d[\d-]*", "<MASK>", m["content"])) for m in row["messages"]] for row in rows
    ]
    done = redactory.train(config)
    assert any("role before it" in line for line in done["guarantee"]["assumptions"])
    from redactory.training.model import load_model

    model = load_model(RunFolder(tmp_path / "run").model("crt"))
    assert " assistant" in model.tokenizer.words
    # held-out conversations are read in the same way
    held_out = redactory.evaluate_model(tmp_path / "run", test=[str(tmp_path / "rows.jsonl")])["as_is"]
    said = (f"{one['role']}: {one['content']}" for row in rows for one in row["messages"])
    assert held_out["tokens"] == sum(len(model.tokenizer.encode(text)) + 1 for text in said)
    with pytest.raises(ConfigurationError, match=r"train\.prefix: .* redact-only read roles"):
        redactory.train({**config, "train": {**train, "trainer": "dpsgd"}})
    plain, lines = tmp_path / "plain", write_rows(tmp_path / "lines.jsonl", [{"text": "hi"}])
    redactory.curate(lines, output=plain, detector=DigitDetector())
    with pytest.raises(ConfigurationError, match=r"train\.prefix: public/ has no roles"):
        redactory.train({**config, "input": str(lines), "output": str(plain)})


def test_a_dry_run_tries_the_examples_that_a_run_makes(tmp_path: Path) -> None:
    """Before, the texts of a conversation were cut as one, so that other examples were counted."""
    turns = [("user", "ok thanks"), ("assistant", "We have done that"), ("user", "call 55 and")]
    rows = [{"messages": [{"role": role, "content": said} for role, said in turns]}] * 3
    corpus = write_rows(tmp_path / "chat.jsonl", rows)
    config = {"input": {"path": str(corpus), "text": "messages"}, "dedup": {"mode": "none"}, "detect": PATTERNS}
    trial = redactory.describe(config)["trial"]
    run = redactory.curate(config, output=tmp_path / "run")
    assert (trial["documents"], trial["examples"]) == (3, 9) == (run["documents"], run["examples"])
    assert (trial["public"], trial["private"]) == (run["public"], run["private"])


def test_a_dry_run_says_where_the_text_may_be(tmp_path: Path) -> None:
    corpus = write_rows(tmp_path / "chat.jsonl", [{"id": "a", "messages": [{"role": "user", "content": "hi"}]}])
    told = CliRunner().invoke(app, ["curate", str(corpus), "--dry-run"])
    assert "columns messages (text)" in told.stdout
    config = tmp_path / "job.yaml"
    config.write_text(f"input: {{path: {corpus}, text: body}}")
    told = CliRunner().invoke(app, ["curate", str(config), "--dry-run"])
    assert "no checked row has the column 'body' (input.text): no row can be used" in told.stdout
    assert "the policies were not tried" in told.stdout


def test_a_dry_run_prints_no_column_that_is_named_after_somebody(tmp_path: Path) -> None:
    row = {"text": "hello", "mary.smith@example.com": 1, "Your age?": 2, "tier": 3}
    corpus = write_rows(tmp_path / "rows.jsonl", [row])
    for asked in (("--dry-run",), ("--dry-run", "--json")):
        told = CliRunner().invoke(app, ["curate", str(corpus), *asked]).output
        assert "mary" not in told
        assert "(its name looks like EMAIL_ADDRESS)" in told
        assert "Your age?" in told
        assert "tier" in told
