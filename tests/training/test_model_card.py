"""Model cards: lines that apply, what a reviewer asks, the Hub's metadata, and code that loads the model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import redactory
from redactory.flows.model_commands import describe_vocabulary
from redactory.foundation.files import read_json
from redactory.redaction.folder import RunFolder
from redactory.training import PrivateLoop, make_guarantee_card, render_guarantee_page, train_model
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.compose import make_composed_card
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.vocabulary import build_vocabulary
from tests.training.conftest import PRIVATE_TEXTS, PUBLIC_TEXTS, make_small_settings, write_run
from tests.training.test_frozen_encoder import curate
from tests.training.test_frozen_encoder import make_settings as make_encoder_settings
from tests.training.tiny_folders import causal_folder
from tests.training.uedp.unit_runs import training, write_public, write_unit_run

COUNTS = {"examples": 96, "public": 48, "private": 48, "private_duplicate": 0, "quarantined": 0}
GENERATION = {"max_new_tokens": 20, "do_sample": True, "temperature": 0.7}
Pages = dict[str, tuple[dict[str, Any], str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with models of several trainers, one of them adapters of a pretrained folder."""
    root = tmp_path_factory.mktemp("cards")
    run = write_run(root / "RUN", counts=COUNTS, run="letters")
    folder = causal_folder(root / "tiny-gpt2", "gpt2")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\nlicense: none of this\n")
    (root / "held-out.txt").write_text("Hello, how are you?\nThank you, where is the parcel?\n")
    lora = {"folder": folder, "lora": {"rank": 2}}
    for name, changes in (
        ("crt", {"held_out": root / "held-out.txt"}),
        ("words", {"trainer": "dpsgd"}),
        ("shipped", {"trainer": "dpsgd", "tokenizer": "shipped"}),
        ("adapters", {"trainer": "dpsgd", "model": lora, "max_tokens": 40}),
        ("sgd", {"trainer": "sgd"}),
    ):
        train_model(run, make_small_settings(**{"name": name, "seed": None, **changes}))
    return run


@pytest.fixture(scope="module")
def pages(run: RunFolder) -> Pages:
    """Card and page of each model."""
    cards = {name: make_guarantee_card(run, name) for name in run.list_model_names()}
    return {name: (card, render_guarantee_page(card)) for name, card in cards.items()}


def test_dpsgd_covers_any_example_unless_public_words_are_tokens(run: RunFolder, pages: Pages) -> None:
    (some, some_page), (any_one, any_page) = pages["words"], pages["shipped"]
    assert some["unit"] == "one original example (a sentence or a turn), in the private split"
    assert any_one["unit"] == "one original example (a sentence or a turn)"
    assert "whatever its split" in any_one["relation_meaning"]
    assert "example of the private split" in some["relation_meaning"]
    assert WORDS["of_private_split"] in some_page
    assert WORDS["any_example"] in any_page
    assert "public/" not in any_page.replace(WORDS["any_example"], "")
    # together they cover what both cover
    both = make_composed_card([(run, "shipped"), (run, "words")])
    assert both["unit"] == "one example (a sentence or a turn), in the private split"
    assert both["epsilon"] > some["epsilon"]


def test_rows_that_a_pretrained_network_lacks_are_counted(run: RunFolder, pages: Pages, tmp_path: Path) -> None:
    card, page = pages["adapters"]
    assert card["vocabulary"]["added_rows"] == 1  # <MASK>
    assert "The pretrained network lacked 1 of them" in page
    assert all("pretrained network lacked" not in pages[name][1] for name in pages if name != "adapters")
    line = describe_vocabulary(card["vocabulary"])
    assert line is not None
    assert "; 1 row added to the folder's network, each the mean of the others" in line
    folder = causal_folder(tmp_path / "large", "gpt2", vocab_size=card["vocabulary"]["entries"])
    settings = make_small_settings(model={"folder": folder}, max_tokens=40)
    assert build_vocabulary(run, settings, None).added_rows == 0
    planned = redactory.plan({"input": "x", "train": {"model": {"folder": run.root.parent / "tiny-gpt2"}, "epochs": 1,
        "noise_multiplier": 4, "tokenizer": "auto", "max_tokens": 40}})  # fmt: skip
    assert planned["vocabulary"]["added_rows"] == 1
    loop_settings = make_small_settings(name="loop", model={"folder": run.root.parent / "tiny-gpt2"}, max_tokens=40)
    with PrivateLoop(run, loop_settings) as loop:
        assert "added_rows" not in loop._head["vocabulary"]


def test_a_card_for_any_example_has_no_number_of_the_public_split(tmp_path: Path) -> None:
    """The fit of a vocabulary is measured on public examples, which are examples of the unit here."""
    fits = []
    for name, public in (("one", PUBLIC_TEXTS), ("other", [f"zzqxj {text}" for text in PUBLIC_TEXTS])):
        run = write_run(tmp_path / name, public=public, private=PRIVATE_TEXTS)
        for trainer in ("crt", "dpsgd"):
            train_model(run, make_small_settings(trainer=trainer, tokenizer="shipped", epochs=1))
        fits.append([make_guarantee_card(run, trainer)["vocabulary"]["fit"] for trainer in ("crt", "dpsgd")])
    (crt, dpsgd), (other_crt, other_dpsgd) = fits
    assert crt != other_crt
    assert dpsgd == other_dpsgd
    assert dpsgd["tokens_per_word"] is None


def test_a_model_that_starts_from_public_words_inherits_their_unit() -> None:
    start, start_of_any = (TrainingSpec(make_small_settings(trainer="dpsgd"), None, 0, public=p) for p in (False, True))
    for spec, expected in ((start, True), (start_of_any, False)):
        later = TrainingSpec(make_small_settings(trainer="dpsgd"), None, 0, public=False, start=spec)
        assert later.depends_on_public_split is expected


CRT_WORDS = ("policy", "policies", "masked", "sensitive span", "Bayesian", "Recall", "without noise")


@pytest.mark.parametrize("name", ["shipped", "adapters"])
def test_other_trainers_speak_of_no_policies_and_no_document(name: str, pages: Pages) -> None:
    page = pages[name][1].partition("## The guarantee")[2]
    assert not [word for word in CRT_WORDS if word in page]
    assert "document" not in page.lower()
    assert "document" not in pages["crt"][1].partition("## The guarantee")[2].lower()


def test_side_channels_are_those_of_the_training(pages: Pages, tmp_path: Path) -> None:
    crt, dpsgd = (pages[name][0]["side_channels"] for name in ("crt", "shipped"))
    assert [one["item"] for one in crt] == list(range(1, 26))
    assert {one["item"] for one in crt} - {one["item"] for one in dpsgd} == {2, 3, 4, 13, 16, 19}
    ensured = {one["item"]: one["ensured_by"] for one in dpsgd}
    assert ensured[11] == "none in this network"
    assert "tested" in {one["item"]: one["ensured_by"] for one in pages["adapters"][0]["side_channels"]}[11]
    assert ensured[17] == "none"
    assert "an empty batch is a step of noise" in ensured[20]
    # on an encoder's vectors a noisy step of crt also samples public examples
    folder = tmp_path / "labelled"
    folder.mkdir()
    summary = train_model(curate(folder), make_encoder_settings(trainer="crt", epochs=1))
    card = summary["guarantee"]
    ensured = {one["item"]: one["ensured_by"] for one in card["side_channels"]}
    assert "a step of public examples and noise" in ensured[20]
    assert "an empty batch is a step of noise" not in render_guarantee_page(card)
    assert ensured[17] == "none"
    assert WORDS["classes"] in card["assumptions"]
    assert WORDS["classes"] not in pages["crt"][0]["assumptions"]
    assert "Classes: question, thanks." in render_guarantee_page(card)
    assert card["hub"]["pipeline_tag"] == "text-classification"
    assert (card["hub"]["base_model"], card["hub"]["license"]) == ("intfloat/multilingual-e5-small", "mit")
    assert "also samples public examples" in card["training"]["public_share_of_steps"]


def test_a_reviewer_gets_answers_and_no_private_count(pages: Pages, run: RunFolder) -> None:
    card, page = pages["crt"]
    described = card["training"]
    assert described["neighbouring_relation"] == "REPLACE_ONE"
    assert described["sampling"] == "poisson: each example in each step at rate 0.25"
    assert (described["expected_batch_size"], described["examples_assumed_by_settings"]) == ("256", 1024)
    assert described["noisy_steps"] == card["steps"] == 8
    assert described["optimizer"].startswith("adam, learning rate 0.01 with noise, 0.002 without noise, constant")
    assert described["clipping"] == "each example's gradient to L2 norm 1"
    assert described["public_examples"] == 48
    assert described["trainings_started"] == 1
    last = pages["sgd"][0]["training"]
    assert last["other_models_of_the_same_data"] == ["adapters", "crt", "shipped", "words"]
    assert "| trainings started | 5 |" in pages["sgd"][1]
    assert "| neighbouring relation | REPLACE_ONE |" in page
    # rank 2 beside an attention's projection of 16 to 48 in each of two layers
    assert pages["adapters"][0]["training"]["trainable_parameters"] == 2 * 2 * (16 + 48)
    assert "public_examples" not in pages["shipped"][0]["training"]


def test_the_number_of_private_examples_is_not_on_a_card(tmp_path: Path) -> None:
    cards = []
    for name, more in (("few", []), ("more", [f"Welcome back, <MASK>, number {n}." for n in range(40)])):
        run = write_run(tmp_path / name, private=[*PRIVATE_TEXTS, *more], run="letters")
        train_model(run, make_small_settings(epochs=1, noise_multiplier=2.0))
        card = make_guarantee_card(run, "crt")
        cards.append((card["training"], card["hub"]))
    assert cards[0] == cards[1]


def test_users_are_bounded_by_a_setting(tmp_path: Path) -> None:
    run, public = write_unit_run(tmp_path / "RUN"), write_public(tmp_path / "donated.jsonl")
    federated = {"trainer": "user-level", "federated": {"users": 9, "user_rate": 0.5}}
    train_model(run, training(public, name="level", **federated))
    train_model(run, training(public, name="both", units={"high_degree_entities": ("countries",)}))
    level, both = (make_guarantee_card(run, name) for name in ("level", "both"))
    assert level["training"]["bound_on_users"] == 9
    assert (
        level["training"]["neighbouring_relation"] == both["training"]["neighbouring_relation"] == "ADD_OR_REMOVE_ONE"
    )
    assert "whole update" in level["training"]["clipping"]
    entity_lines = [*WORDS["units"]["entity_assumptions"], *WORDS["units"]["entities_not_covered"]]
    pages = [render_guarantee_page(card) for card in (level, both)]
    assert [all(line in page for line in entity_lines) for page in pages] == [False, True]
    assert [any(line in page for line in entity_lines) for page in pages] == [False, True]
    assert [WORDS["units"]["hubs"] in page for page in pages] == [False, True]
    assert "epsilon_user_removal" not in pages[0]


def test_the_hub_reads_the_metadata(pages: Pages, run: RunFolder) -> None:
    data = {name: ModelCard(page).data for name, (_, page) in pages.items()}
    assert data["crt"].pipeline_tag == "text-generation"
    assert data["crt"].datasets == ["letters"]
    metrics = {result.metric_type: result.metric_value for result in data["crt"].eval_results or []}
    assert metrics.keys() == {"loss", "epsilon"}
    assert metrics["epsilon"] >= pages["crt"][0]["epsilon"]
    assert metrics["loss"] == read_json(run.get_model_folder("crt").held_out)["rows"][-1]["loss"]
    assert (data["adapters"].base_model, data["adapters"].license) == ("tiny-gpt2", "apache-2.0")
    assert data["crt"].license == "unknown"
    assert data["sgd"].eval_results is None


def test_a_pretrained_folder_keeps_its_generation_and_its_adapters_their_task(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import GenerationConfig

    folder = run.get_model_folder("adapters").root
    kept = GenerationConfig.from_pretrained(folder)
    assert {key: getattr(kept, key) for key in GENERATION} == GENERATION
    assert not (run.get_model_folder("crt").root / "generation_config.json").exists()
    assert read_json(folder / "adapter" / "adapter_config.json")["task_type"] == "CAUSAL_LM"
    monkeypatch.chdir(run.root.parent)  # peft looks for the pretrained folder by its name
    adapted = AutoPeftModelForCausalLM.from_pretrained(folder / "adapter")
    assert adapted.active_peft_config.task_type == "CAUSAL_LM"


@pytest.mark.parametrize("name", ["crt", "adapters"])
def test_the_code_on_a_card_loads_the_model(
    name: str, pages: Pages, run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.models)
    [code] = re.findall(r"```python\n(.*?)```", pages[name][1], re.DOTALL)
    variables: dict[str, Any] = {}
    exec(code, variables)
    assert variables["answer"]["results"] if name == "crt" else variables["model"].config.model_type == "gpt2"
    assert name == "crt" or len(capsys.readouterr().out) > len("Some text")
