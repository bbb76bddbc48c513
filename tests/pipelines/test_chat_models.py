"""From a file of conversations to a chat model: the rows it learns from, what its card says, its answers."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import redactory
from redactory.foundation.errors import ConfigurationError
from redactory.redaction import MASK, ModelFolder, RunFolder
from redactory.training import load_model, train_model
from redactory.training.chat import join_turns, make_prompt, parse_turns
from redactory.training.data import TokenizedExamples, read_conversations, read_texts
from redactory.training.settings import TrainSettings
from redactory.training.tokenizer import FolderTokenizer
from redactory.training.uedp.incidence import get_columns
from redactory.training.uedp.units import OriginalExamples, read_unit_incidence
from tests.pipelines.support import LINE_CONFIG, DigitDetector, invoke_command, write_rows
from tests.training.test_chat import CHATML
from tests.training.test_own_loop import followed
from tests.training.tiny_folders import build_byte_tokenizer, causal_folder

OPEN, THANKS = "when do you open", "we open every day at nine"
SMALL: dict[str, Any] = {"chat": {}, "epochs": 1, "sampling_rate": 0.5, "min_public_steps": 2, "noise_multiplier": 1.0}
SMALL |= {"model": {"kind": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 64}, "max_tokens": 48}
SMALL |= {"group_sizes": [], "threads": 1, "seed": 1}
FEDERATED = {"trainer": "user-level", "federated": {"users": 4, "user_rate": 0.5}, "noise_multiplier": 2.0}
LSTM = {"kind": "lstm", "embedding_size": 4, "hidden_size": 4}


def chat(number: int) -> list[dict[str, str]]:
    """Every third conversation has a number in it, every tenth one cannot be processed."""
    asked = f"my code is 555{number:02d}. {OPEN}" if number % 3 == 0 else OPEN
    said = ["user", asked, "assistant", THANKS, "user", "thanks", "assistant", "good bye"]
    if number % 10 == 7:
        said[5] = "this is broken\nand this goes on"
    return [{"role": role, "content": text} for role, text in zip(said[::2], said[1::2], strict=True)]


def curated(folder: Path, dialogues: list[Any], **own: Any) -> tuple[dict[str, Any], RunFolder]:
    rows = [{"id": f"c{i}", "user_id": f"u{i % 4}", "messages": one} for i, one in enumerate(dialogues)]
    section = {"path": str(write_rows(folder / "rows.jsonl", rows)), "text": "messages"}
    config = {**LINE_CONFIG, "dedup": {"mode": "none"}, "input": section, "output": str(folder / "run"), **own}
    redactory.curate(config, detector=DigitDetector())
    return config, RunFolder(folder / "run")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], RunFolder]:
    return curated(tmp_path_factory.mktemp("chats"), [chat(i) for i in range(20)])


def test_a_private_turn_makes_its_conversation_private(made: Any) -> None:
    run = made[1]
    private, public = list(read_conversations(run, run.private)), list(read_conversations(run, run.public))
    assert len(private) + len(public) == 20
    # what was not processed leaves a row that contributes nothing
    assert private.count("") == 2
    masked = [one for one in private if one]
    assert len(masked) == 7
    assert all(MASK in parse_turns(one)[0][1] and parse_turns(one)[1] == ("assistant", THANKS) for one in masked)
    assert all([said for _, said in parse_turns(one)] == [OPEN, THANKS, "thanks", "good bye"] for one in public)
    # the shards split the same conversations turn by turn
    assert pq.read_table(run.private).num_rows == 7
    originals = list(read_conversations(run, run.vault))
    assert parse_turns(originals[0])[0] == ("user", f"my code is 55500. {OPEN}")
    # what is left of a turn stays with whoever said it
    assert parse_turns(originals[7])[1:3] == [("assistant", THANKS), ("user", "and this goes on")]


def test_one_secret_exchanged_exchanges_one_row(made: Any, tmp_path: Path) -> None:
    """Every other conversation, and the public side, is what it was, though all share their turns."""
    first = made[1]
    other = [chat(i) for i in range(20)]
    other[3] = [{"role": "user", "content": "Something Else entirely 1"}, *other[3][2:]]
    second = curated(tmp_path, other)[1]
    assert list(read_conversations(first, first.public)) == list(read_conversations(second, second.public))
    pairs = zip(read_conversations(first, first.private), read_conversations(second, second.private), strict=True)
    assert [a == b for a, b in pairs].count(False) == 1


def test_a_chat_model_from_raw_text_on_the_command_line(made: Any, tmp_path: Path) -> None:
    config, run = made
    train = {**SMALL, "name": "cli", "held_out": 0.5}
    (tmp_path / "job.yaml").write_text(json.dumps({**config, "train": train}))
    result = invoke_command("train", tmp_path / "job.yaml", "--json")
    assert result.exit_code == 0, result.output
    card = json.loads(result.stdout)["guarantee"]
    assert card["unit"] == "one secret in one turn of one conversation, replaced by <MASK>"
    chat_facts = {"example": "conversation", "loss_on": "assistant", "template": "auto"}
    assert card["chat"] == {**chat_facts, "rule": "none", "group_size": 1}
    assert any("private if one of its turns is private" in said for said in card["assumptions"])
    write_rows(tmp_path / "asked.jsonl", [{"messages": chat(1)[:3]}])
    asked = ["predict", run.get_model_folder("cli").root, tmp_path / "asked.jsonl", "--generate", 2]
    result = invoke_command(*asked, "--tokens", 8, "--seed", 1)
    assert result.exit_code == 0, result.output
    assert f"user: {OPEN}\nassistant: {THANKS}\nuser: thanks\nassistant: " in result.stdout


def test_a_model_answers_until_its_turn_ends(made: Any) -> None:
    config, run = made
    train = {**SMALL, "trainer": "sgd", "learning_rate": 0.05, "min_public_steps": 40, "name": "answers"}
    redactory.train({**config, "train": train})
    folder = run.get_model_folder("answers").root
    said = redactory.predict(folder, [OPEN, chat(1)[:3]], write=1, tokens=30, temperature=0.0)
    assert said["texts"] == [[THANKS], ["good bye"]]
    assert redactory.predict(folder, [OPEN], top=1)["results"][0][0]["token"] == " we"
    from transformers import AutoTokenizer

    library: Any = AutoTokenizer
    ids = library.from_pretrained(folder).apply_chat_template(chat(1)[:3], add_generation_prompt=True)
    trained = load_model(ModelFolder(folder))
    assert list(ids["input_ids"]) == trained.tokenizer.encode(make_prompt(chat(1)[:3]))
    with pytest.raises(ConfigurationError, match="use evaluate model"):
        redactory.evaluate_canary(run.root, "answers", canaries="nothing.json")


def test_a_chat_model_is_measured_by_what_it_says_in_held_out_text(made: Any, tmp_path: Path) -> None:
    config, run = made
    redactory.train({**config, "train": {**SMALL, "trainer": "sgd", "name": "measured"}})
    test = str(write_rows(tmp_path / "test.jsonl", [{"messages": chat(i)} for i in (1, 2, 4)]))
    found = redactory.evaluate_model(run.root, "measured", test=[test])["as_is"]
    assert (found["texts"], found["words"]) == (3, 3 * len(f"{THANKS} good bye".split()))
    trained = load_model(run.get_model_folder("measured"))
    codec = dataclasses.replace(trained.tokenizer, loss_scope="assistant")
    said = [join_turns((turn["role"], turn["content"]) for turn in chat(i)) for i in (1, 2, 4)]
    points = TokenizedExamples.from_texts(said, codec, None)
    assert points.loss_mask is not None
    assert found["tokens"] == points.loss_mask.sum()
    losses = trained.network.example_losses(points.make_batch(range(3)))
    assert found["log_prob"] == pytest.approx(-float(losses.detach().sum()), rel=1e-5)


def test_a_pretrained_folder_speaks_its_own_template(made: Any, tmp_path: Path) -> None:
    config, run = made
    tokenizer = build_byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    folder = causal_folder(tmp_path / "base", "llama", vocab_size=len(tokenizer))
    tokenizer.save_pretrained(folder)
    train = {**SMALL, "model": {"folder": str(folder)}, "name": "folder"}
    card = redactory.train({**config, "train": train})["guarantee"]
    assert card["epsilon_substitution"] is not None
    trained = load_model(run.get_model_folder("folder"))
    kept: Any = trained.tokenizer
    assert isinstance(kept.inner, FolderTokenizer)
    assert kept.inner.inner.chat_template == CHATML
    assert trained.tokenizer.decode_token(trained.tokenizer.end_id) == "<|im_end|>"
    assert redactory.predict(run.get_model_folder("folder").root, [OPEN], write=1, tokens=4)["prompts"]


@pytest.mark.parametrize(
    ("own", "unit"),
    [
        ({"trainer": "dpsgd"}, "one original conversation, in the private split"),
        ({"trainer": "dpsgd", "tokenizer": "shipped"}, "one original conversation"),
        ({"trainer": "crt-drop"}, "one secret in one turn of one conversation, replaced by <MASK>"),
        ({"chat": {"example": "turn"}}, "one secret in one example (a sentence or a turn), replaced by <MASK>"),
        (FEDERATED, "one user with all of their examples"),
    ],
)
def test_the_card_names_the_unit(made: Any, own: dict[str, Any], unit: str) -> None:
    name = f"unit-{own.get('trainer', 'turn')}-{own.get('tokenizer', '')}"
    train = {**SMALL, "model": LSTM, "seed": None, **own, "name": name}
    card = redactory.train({**made[0], "train": train})["guarantee"]
    assert (card["unit"], card["holds"]) == (unit, True)
    assert card["epsilon"] is not None


def test_a_user_holds_whole_conversations(made: Any) -> None:
    run = made[1]
    settings = TrainSettings(**{**SMALL, "trainer": "user-level", "federated": {"users": 4}})
    graph = read_unit_incidence(run, settings.units, whole_documents=True)
    assert len(graph.example_ids) == 20
    assert {len(get_columns(graph.users, i)) for i in range(20)} == {1}
    originals = OriginalExamples(run, graph.example_ids[:2], whole_documents=True)
    assert [*originals.read_texts()] == [*read_texts(run, run.vault, settings.example_format)][:2]


@pytest.mark.parametrize("mode", ["exact", "folded", "minhash"])
def test_merged_turns_have_no_whole_conversations(tmp_path: Path, mode: str) -> None:
    config, run = curated(tmp_path, [chat(i) for i in range(4)], dedup={"mode": mode})
    with pytest.raises(ConfigurationError, match=r"whole conversations need a run with dedup\.mode none"):
        redactory.train({**config, "train": SMALL})
    assert not run.get_model_folder("crt").root.exists()


def test_values_known_in_a_conversation_leave_its_figure_and_take_a_turns(tmp_path: Path) -> None:
    """What is masked in all turns follows from the conversation, so one row is exchanged all the same."""
    release = {**LINE_CONFIG["release"], "unit": "document", "known_values": True}
    config, _ = curated(tmp_path, [chat(i) for i in range(8)], release=release)
    held = {}
    for example in ("conversation", "turn"):
        train = {**SMALL, "model": LSTM, "seed": None, "chat": {"example": example}, "name": example}
        held[example] = redactory.train({**config, "train": train})["guarantee"]
    assert held["conversation"]["epsilon_substitution"] is not None
    assert "known_values" in held["turn"]["reasons"]["epsilon_substitution"]


@pytest.mark.parametrize("section", [{}, {"example": "turn", "loss_on": "all"}])
def test_a_custom_loop_learns_conversations_to_the_same_bits(
    section: dict[str, Any], made: Any, tmp_path: Path
) -> None:
    settings = TrainSettings(**{**SMALL, "chat": section, "seed": 7})
    trained, custom = (RunFolder(Path(shutil.copytree(made[1].root, tmp_path / name))) for name in "ab")
    card, custom_card = train_model(trained, settings)["guarantee"], followed(custom, settings)["guarantee"]
    assert custom_card["epsilon"] == card["epsilon"]
    files = [run.get_model_folder("crt").weights for run in (trained, custom)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert load_model(custom.get_model_folder("crt")).tokenizer.encode(make_prompt(OPEN))
