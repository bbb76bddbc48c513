"""Rows of several texts and conversations, through a curation: no example lies in two texts, roles stay."""

from __future__ import annotations

import itertools
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

import redactory
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.segment import make_multi_text_segmenter, make_segmenter
from redactory.pipelines.curation_hints import list_curation_hints
from redactory.pipelines.json_paths import join_texts
from redactory.redaction import RunFolder, read_column
from redactory.redaction.mask import ROLE_MARK, TURN_MARK
from tests.pipelines.support import (
    LINE_CONFIG,
    DigitDetector,
    invoke_command,
    list_failed_checks,
    read_rows,
    write_rows,
)

PATTERNS = {"tagger": None, "conservative": {"rules": ["digit"]}}
MODES = ("sentence", "line", "document", "turn")
words = st.text(alphabet="ab .\n:A", max_size=20)


parts = st.tuples(st.none() | st.sampled_from(["user", "assistant"]), words)


@given(st.lists(parts, max_size=5), st.sampled_from(MODES))
def test_examples_of_parts_give_the_document_back(said: list[tuple[str | None, str]], mode: Any) -> None:
    """And each lies in one part."""
    document = join_texts(said)
    examples = make_multi_text_segmenter(make_segmenter(SegmentSettings(mode=mode)))(document)
    assert "".join(example.prefix + example.text + example.suffix for example in examples) == document
    if any(text.strip() for _, text in said):
        assert not any(sign in example.text for example in examples for sign in (TURN_MARK, ROLE_MARK))
    place = 0
    for example in examples:
        place += len(example.prefix)
        role = document[:place].rpartition(TURN_MARK)[2].partition(ROLE_MARK)
        assert example.speaker == role[0] if role[1] else mode == "turn" or example.speaker is None
        place += len(example.text) + len(example.suffix)


def chat(name: str, *contents: Any, **more: Any) -> dict[str, Any]:
    """A row of a conversation that the user begins."""
    roles = itertools.cycle(["user", "assistant"])
    return {"id": name, "messages": [{"role": next(roles), "content": content, **more} for content in contents]}


@pytest.fixture(scope="module", params=["jsonl", "parquet"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    path, is_table, mail = folder / f"chat.{request.param}", request.param == "parquet", "Write to ann@example.org"
    rows = [
        chat("a", "Hello there.", "Hello!", country="Nobody said this"),
        # in a table every content is a string
        chat("b", mail if is_table else [{"type": "text", "text": mail}]),
        chat("c", None if is_table else 3),
        chat("d"),
        chat("e", f"one{TURN_MARK}two"),
        chat("f", "data:image/png;base64,QUJD"),
    ]
    if is_table:
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write_rows(path, rows)
    job = {"input": {"path": str(path), "text": "messages", "id": "id"}, "output": str(folder / "run")}
    redactory.curate(job | {"detect": {"tagger": None}})
    return folder / "run"


def test_each_turn_is_an_example_with_its_role(run: Path) -> None:
    turns = [(row["doc_id"], row["speaker"], row["text"]) for row in read_rows(run / "vault")]
    assert turns[:2] == [("a", "user", "Hello there."), ("a", "assistant", "Hello!")]
    assert turns[2:] == [("b", "user", "Write to ann@example.org")]
    assert read_column(run / "private", "text") == ["Write to <MASK>"]
    counts = json.loads((run / "manifest.json").read_text())["counts"]
    assert (counts["rows"], counts["documents"]) == (6, 2)
    assert not {"conservation", "no mask in public"} & list_failed_checks(run)


def test_several_fields_are_one_document(tmp_path: Path) -> None:
    row = {"title": "Hello there", "ticket": {"body": "How are you"}, "note": None}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    columns = {"path": str(tmp_path / "rows.jsonl"), "text": ["title", "ticket.body", "note"]}
    redactory.curate({"input": columns, "output": str(tmp_path / "run"), "detect": {"tagger": None}})
    vault = tmp_path / "run" / "vault"
    assert read_column(vault, "doc_id") == ["rows.jsonl:1"] * 2
    assert read_column(vault, "text") == ["Hello there", "How are you"]


WITHOUT_IDS = [{"messages": chat("", f"hello {n}")["messages"]} for n in range(3)]
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
        assert invoke_command("curate", tmp_path / "job.yaml", "--dry-run").exit_code == 1
        return
    for resume in (False, True):
        done = redactory.curate(config, resume=resume)
        assert done["documents"]
        assert done.get("text_chosen") == chosen
        assert any(sentence in hint for hint in list_curation_hints(done)) == (chosen is not None)
    manifest = json.loads(RunFolder(tmp_path / "run").manifest.read_text())
    assert manifest["configuration"]["input"]["text"] == (chosen or asked.get("text", "text"))


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
    turns = [[(turn["turn"], turn["role"]) for turn in one["turns"]] for one in found]
    assert turns == [[(1, "assistant"), (2, "user")], [(3, None)]]
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
    config = {**LINE_CONFIG, "input": section, "dedup": {"mode": mode}}
    redactory.curate(config, output=tmp_path / "run", detector=DigitDetector())
    roles = read_column(tmp_path / "run" / "public", "role")
    named = ["Ann", "Bob"] if accepted else [None]
    assert Counter(roles) == Counter(["user", "assistant", *named])


def test_conversations_are_curated_trained_on_with_their_roles_and_given_back(tmp_path: Path) -> None:
    words = ("the parcel", "my order", "this invoice", "the offer")
    asked = [f"where is {words[i % 4]}, and how are you? call 555-01{i:02d}" for i in range(30)]
    rows = [chat(f"c{i}", asked[i], f"{words[i // 4 % 4]} is on its way to {words[i % 4]}") for i in range(30)]
    network = {"kind": "lstm", "embedding_size": 8, "hidden_size": 8}
    train: dict[str, Any] = {"prefix": "role", "model": network, "epochs": 1, "sampling_rate": 0.5, "threads": 1}
    train |= {"min_public_steps": 2, "expected_batch_size": 8, "seed": 3, "noise_multiplier": 1.0}
    train |= {"tokenizer": "public", "vocabulary_size": 500}
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

    model = load_model(RunFolder(tmp_path / "run").get_model_folder("crt"))
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
    rows = [{"messages": chat("", "ok thanks", "We have done that", "call 55 and")["messages"]}] * 3
    corpus = write_rows(tmp_path / "chat.jsonl", rows)
    config = {"input": {"path": str(corpus), "text": "messages"}, "dedup": {"mode": "none"}, "detect": PATTERNS}
    trial = redactory.describe(config)["trial"]
    run = redactory.curate(config, output=tmp_path / "run")
    assert (trial["documents"], trial["examples"]) == (3, 9) == (run["documents"], run["examples"])
    assert (trial["public"], trial["private"]) == (run["public"], run["private"])


def test_a_dry_run_says_where_the_text_may_be(tmp_path: Path) -> None:
    corpus = write_rows(tmp_path / "chat.jsonl", [chat("a", "hi")])
    assert "columns messages (text)" in invoke_command("curate", corpus, "--dry-run").stdout
    config = tmp_path / "job.yaml"
    config.write_text(f"input: {{path: {corpus}, text: body}}")
    told = invoke_command("curate", config, "--dry-run")
    assert "no checked row has the column 'body' (input.text): no row can be used" in told.stdout
    assert "the policies were not tried" in told.stdout


def test_a_dry_run_prints_no_column_that_is_named_after_somebody(tmp_path: Path) -> None:
    row = {"text": "hello", "mary.smith@example.com": 1, "Your age?": 2, "tier": 3}
    corpus = write_rows(tmp_path / "rows.jsonl", [row])
    for asked in (("--dry-run",), ("--dry-run", "--json")):
        told = invoke_command("curate", corpus, *asked).output
        assert "mary" not in told
        assert "(a name that looks personal)" in told
        assert "Your age?" in told
        assert "tier" in told
