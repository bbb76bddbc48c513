"""Every network: points apart, equal bits, perplexity and exposure, read by plain ``transformers``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from redactory.evaluation.canary import measure_canary_exposure
from redactory.evaluation.continuations import sample_numbers, score_all_numbers
from redactory.evaluation.generation import generate_texts
from redactory.evaluation.membership import run_membership_attack
from redactory.evaluation.utility import measure_perplexity
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.stream import RandomStream
from redactory.pipelines.measure.predict import _predict_next_words
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import read_manifest
from redactory.training import load_model, numerics, train_model
from redactory.training.data import TokenizedExamples
from redactory.training.model import LanguageModel, build_language_network, describe_base_weights
from redactory.training.models.hugging_face import CausalNetwork, disable_dropout, get_library_class, read_folder_model
from redactory.training.models.settings import AwdLstmSettings, FolderSettings
from redactory.training.settings import TrainSettings
from redactory.training.tokenizer import FolderTokenizer, Tokenizer
from redactory.training.train import compute_update_norms
from tests.evaluation.small_model import CharacterTokenizer
from tests.training.conftest import PUBLIC_TEXTS, make_small_settings
from tests.training.tiny_folders import causal_folder

TEXTS = ["Hello, how are you?", "My ID is: 1023", "", f"{MASK} said 12", "😀"]
SIZES = {"layers": 2, "width": 16, "heads": 2, "context": 64}
FRESH: dict[str, dict[str, Any]] = {
    "lstm": {"embedding_size": 8, "hidden_size": 12, "layers": 2},
    "awd-lstm": {"kind": "awd-lstm", "embedding_size": 8, "hidden_size": 12},
    "gpt2": {"kind": "gpt2", **SIZES},
    "llama": {"kind": "llama", **SIZES},
}
WORDS = Tokenizer.from_texts(PUBLIC_TEXTS, 30)
Folders, MakeRun = dict[str, Path], Callable[[], RunFolder]
CANARIES = {"template": "My ID is: {digits}", "inserted": ["041"], "control": ["306"], "copies": 1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A pretrained folder of each kind."""
    root = tmp_path_factory.mktemp("pretrained")
    return {kind: causal_folder(root / kind, kind) for kind in ("gpt2", "llama")}


@pytest.fixture(params=[*FRESH, "gpt2 of a folder", "llama of a folder", "gpt2 with adapters"])
def model(request: pytest.FixtureRequest, folders: Folders) -> LanguageModel:
    """A language model of every kind as it is before the first step, in float64."""
    section = FRESH.get(request.param)
    if section is None:
        kind = request.param.split()[0]
        lora = {"lora": {"rank": 2}} if "adapters" in request.param else {}
        section = {"folder": folders[kind], **lora}
    settings = TrainSettings(model=section, max_tokens=64).model
    pretrained = section.get("folder")
    tokenizer = FolderTokenizer.from_folder(pretrained, True) if pretrained else WORDS
    network = build_language_network(settings, tokenizer)
    network.initialise(RandomStream.from_seed(3))
    return LanguageModel(tokenizer, network.double())


MANY = 5_000


class Codec(CharacterTokenizer):
    """Every character a token, of a large vocabulary."""

    pad_id = 1

    def __init__(self, size: int = MANY) -> None:
        self.size = size

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(256 + number) for number in ids)


def many_words(kind: str) -> LanguageModel:
    """A network of four numbers a state with a large vocabulary; ``gemma2`` changes its logits at the end."""
    import transformers

    sizes = {"hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    shared = {"vocab_size": MANY, "num_key_value_heads": 1, "max_position_embeddings": 32, **sizes}
    gemma = {"head_dim": 2, "sliding_window": 8}
    configs: dict[str, Any] = {
        "llama": lambda: transformers.LlamaConfig(**shared),
        "gemma2": lambda: transformers.Gemma2Config(**shared, **gemma),
        "gemma3": lambda: transformers.Gemma3TextConfig(**shared, **gemma),
    }
    if kind == "lstm":
        settings = TrainSettings(model={"embedding_size": 4, "hidden_size": 4}).model
        network: Any = build_language_network(settings, Codec())
        network.initialise(RandomStream.from_seed(3))
    else:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            made: Any = transformers.AutoModelForCausalLM.from_config(configs[kind]())
        network = CausalNetwork(disable_dropout(made), pretrained=True)
    # a network can give more logits than its tokenizer has ids
    return LanguageModel(Codec(500 if kind == "llama" else MANY), network)  # type: ignore[arg-type]


class Largest(TorchDispatchMode):
    """The most numbers that one result of an operation holds, inside the context."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple) else (found,):
            self.numbers = max(self.numbers, one.numel() if isinstance(one, torch.Tensor) else 0)
        return found


SHORT = [f"My {number}" for number in range(40)]
USES: dict[str, Callable[[LanguageModel], Any]] = {
    "scores": lambda model: np.concatenate(model.compute_token_log_probs([*SHORT, ""])),
    "next words": lambda model: np.stack(list(model.compute_next_log_probs(SHORT))),
    "texts": lambda model: generate_texts(model, 40, 3, top_p=0.9, prompts=SHORT[:3]),
    "numbers": lambda model: sample_numbers(model, "My ", 2, 40, RandomStream.from_seed(1)),
    "candidates": lambda model: score_all_numbers(model, "My ", 2),
    "membership": lambda model: run_membership_attack(model, SHORT[:20], SHORT[20:], groups=4, group_size=2)[
        "individual"
    ],
    "perplexity": lambda model: measure_perplexity(model, SHORT)["perplexity"],
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ["lstm", "llama", "gemma2", "gemma3"])
def test_memory_does_not_grow_with_the_vocabulary(kind: str, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed few rows at a time is the same, and no result holds more than those rows."""
    model = many_words(kind)
    right = USES[use](model)
    monkeypatch.setattr(numerics, "MAX_LOGITS_AT_ONCE", 8 * MANY)
    with Largest() as seen:
        found = USES[use](model)
    assert found == right if use in ("texts", "membership") else np.allclose(found, right, rtol=1e-6, atol=0)
    assert MANY <= seen.numbers <= 8 * MANY


QUANTIZED: list[Any] = [
    {"quant_method": "bitsandbytes", "load_in_4bit": True},
    {"load_in_8bit": True},
    {"quant_method": "gptq", "bits": 4, "group_size": 128},
    {"quant_method": "awq", "bits": 4, "version": "gemm"},
    {"quant_method": "fp8", "activation_scheme": "dynamic"},
    {"quant_method": "mxfp4"},
    {"quant_method": "torchao", "quant_type": {}},
    {"quant_method": "nonesuch"},
    {},
    "int8",
    4,
]


@pytest.mark.parametrize("section", QUANTIZED, ids=str)
def test_quantized_weights_are_refused(section: Any, folders: Folders, fresh_run: MakeRun, tmp_path: Path) -> None:
    own = shutil.copytree(folders["llama"], tmp_path / "small")
    config = json.loads((own / "config.json").read_text())
    ours = FolderSettings(folder=own)
    read = partial(read_folder_model, own, get_library_class("next-word"))
    train = partial(train_model, fresh_run(), make_small_settings(model={"folder": own}, max_tokens=40))
    for inner in ({"quantization_config": section}, {"text_config": {"quantization_config": section}}):
        (own / "config.json").write_text(json.dumps({**config, **inner}))
        for use in (partial(describe_base_weights, ours), read, train):
            with pytest.raises(ConfigurationError, match=r"small/config.json has the key quantization_config"):
                use()
    (own / "config.json").write_text(json.dumps({**config, "quantization_config": None}))
    assert read()


@pytest.mark.parametrize("broken", [{"hidden_size": "x"}, {"num_attention_heads": 0}, {"vocab_size": None}, []])
def test_an_unreadable_configuration_is_named(broken: Any, folders: Folders, tmp_path: Path) -> None:
    own = shutil.copytree(folders["llama"], tmp_path / "small")
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps({**config, **broken} if broken else broken))
    with pytest.raises(ConfigurationError, match="small"):
        read_folder_model(own, get_library_class("next-word"))


def test_a_point_has_its_own_loss_whatever_stands_beside_it(model: LanguageModel) -> None:
    network = model.network.train()
    points = TokenizedExamples.from_texts(TEXTS, model.tokenizer, 40)
    network.begin_step(RandomStream.from_seed(1), "plain step", 4)
    together = network.example_losses(points.make_batch([4, 0, 2, 1, 3]))
    network.begin_step(RandomStream.from_seed(1), "plain step", 4)
    alone = torch.cat([network.example_losses(points.make_batch([row])) for row in (4, 0, 2, 1, 3)])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)


def test_scores_follow_the_cache_token_by_token_and_evaluation_works(model: LanguageModel) -> None:
    found = model.compute_token_log_probs(TEXTS)
    for text, scores in zip(TEXTS, found, strict=True):
        state, last, walked = model.network.make_initial_state(1), model.tokenizer.begin_id, []
        for number in [*model.tokenizer.encode(text), model.tokenizer.end_id]:
            log_probs, state = model.network.step(torch.tensor([last]), state)
            walked.append(float(log_probs[0, number]))
            last = number
        assert scores == pytest.approx(walked, rel=1e-9)
    result = measure_canary_exposure(model, CANARIES)
    assert result["candidates"] == 1000
    assert result["highest_exposure"] < result["largest_possible"]
    assert measure_perplexity(model, TEXTS)["perplexity"] < 3 * model.tokenizer.size


def test_the_first_weights_are_a_function_of_the_stream(model: LanguageModel) -> None:
    network = model.network.float()

    def drawn(seed: int) -> list[torch.Tensor]:
        network.initialise(RandomStream.from_seed(seed))
        return [p.detach().clone() for p in network.parameters() if p.requires_grad]

    first, again, other = drawn(3), drawn(3), drawn(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    read = getattr(network, "pretrained", False) and all(p.requires_grad for p in network.parameters())
    assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True)) == read


@pytest.mark.parametrize("kind", ["awd-lstm", "gpt2 of a folder", "llama with adapters"])
def test_every_kind_trains_and_reloads(kind: str, fresh_run: MakeRun, folders: Folders, tmp_path: Path) -> None:
    run = fresh_run()
    section = FRESH.get(kind) or {"folder": folders[kind.split()[0]]}
    if "adapters" in kind:
        section = {**section, "lora": {"rank": 2}}
    settings = make_small_settings(model=section, max_tokens=40, epochs=1, name="m", learning_rate=0.01)
    summary = train_model(run, settings)
    assert all(norm > 0 for norm in summary["update_norms"].values())
    loaded = load_model(run.get_model_folder("m"))
    assert np.isfinite(np.concatenate(loaded.compute_token_log_probs(TEXTS))).all()
    assert len(loaded.tokenizer.encode(MASK)) == 1
    (words,) = _predict_next_words(run.get_model_folder("m"), ["Hello"], 3)  # one token may begin, end and pad
    assert len(words) == 3


def test_an_octet_that_is_no_text_is_spelled_as_what_it_is(folders: Folders) -> None:
    """Ids spelled one after the other give the text, each octet of signs that are no ASCII by its value."""
    theirs = FolderTokenizer.from_folder(folders["gpt2"])
    for codec in (theirs, Tokenizer.from_texts(["hello"], 10)):
        text = "10 hello Ω, 10 €\n"
        spelled = "".join(codec.decode_token(number) for number in codec.encode(text))
        assert spelled == "".join(
            sign if sign < "\x80" else "".join(f"\\x{octet:02x}" for octet in sign.encode()) for sign in text
        )
        assert all("\ufffd" not in codec.decode_token(number) for number in range(codec.size))


def test_adapters_move_and_all_else_stays(fresh_run: MakeRun, folders: Folders, tmp_path: Path) -> None:
    run = fresh_run()
    section = {"folder": folders["gpt2"], "lora": {"rank": 2}}
    summary = train_model(run, make_small_settings(model=section, max_tokens=40, epochs=1))
    assert all("lora" in layer for layer in summary["update_norms"])
    before = load_file(folders["gpt2"] / "model.safetensors")
    after = load_file(run.get_model_folder("crt").weights)
    moved = {name for name, value in before.items() if not torch.equal(value, after[name][: len(value)])}
    assert moved == {f"transformer.h.{layer}.attn.c_attn.weight" for layer in range(2)}


def test_layers_beside_adapters_are_trained_and_saved_with_them(fresh_run: MakeRun, tmp_path: Path) -> None:
    run, base = fresh_run(), causal_folder(tmp_path / "base", "llama")
    section = {"folder": base, "lora": {"rank": 2, "dropout": 0.2, "modules_to_save": ["lm_head"]}}
    summary = train_model(run, make_small_settings(model=section, max_tokens=40, epochs=1))
    folder, ids = run.get_model_folder("crt"), torch.arange(5, 12)[None]
    assert {layer.split(".")[-1] for layer in summary["update_norms"]} == {"default"}
    assert any("lm_head" in layer for layer in summary["update_norms"])
    model: Any = AutoModelForCausalLM.from_pretrained(folder.root)
    expected = model(input_ids=ids).logits
    base_model: Any = AutoModelForCausalLM.from_pretrained(base)
    base_model.resize_token_embeddings(expected.shape[-1])
    adapted: Any = PeftModel.from_pretrained(base_model, folder.root / "adapter").eval()
    assert torch.allclose(adapted(input_ids=ids).logits, expected, atol=1e-5)
    network: Any = load_model(folder).network
    assert torch.allclose(network.model(input_ids=ids).logits, expected, atol=1e-5)


def test_the_folder_is_named_and_not_where_it_lies(fresh_run: MakeRun, folders: Folders, tmp_path: Path) -> None:
    """A model leaves with its ledger and its manifest."""
    run = fresh_run()
    own = shutil.copytree(folders["gpt2"], tmp_path / "a place of mine" / "gpt2")
    settings = make_small_settings(model={"folder": own}, max_tokens=40, epochs=1)
    told = train_model(run, settings)
    model = run.get_model_folder("crt")
    assert read_manifest(model)["settings"]["model"]["folder"] == "gpt2"
    assert not [p.name for p in model.root.iterdir() if b"a place of mine" in p.read_bytes()]
    elsewhere = shutil.copytree(own, tmp_path / "elsewhere" / "gpt2")
    moved = make_small_settings(model={"folder": elsewhere}, max_tokens=40, epochs=1)
    assert train_model(run, moved) == told
    (elsewhere / "generation_config.json").write_text("{}")
    with pytest.raises(RunStateError, match=r"another gpt2 \(train.model.folder\)"):
        train_model(run, moved)
    shutil.rmtree(elsewhere)
    assert train_model(run, moved) == told


def test_what_did_not_move_is_a_failure() -> None:
    network: Any = build_language_network(TrainSettings(model=FRESH["lstm"]).model, WORDS)
    network.initialise(RandomStream.from_seed(0))
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    with pytest.raises(CheckFailed, match="no parameter changed"):
        compute_update_norms(before, network)
    with torch.no_grad():
        network.lstm.weight_hh_l0[0, 0] = torch.nan
    with pytest.raises(CheckFailed, match="finite"):
        compute_update_norms(before, network)


def test_a_folder_is_named_by_its_content(folders: Folders, tmp_path: Path) -> None:
    own = shutil.copytree(folders["gpt2"], tmp_path / "own")
    settings = TrainSettings(model={"folder": own}).model
    before = describe_base_weights(settings)
    (own / "generation_config.json").write_text("{}")
    assert describe_base_weights(settings) != before
    tokenizer = FolderTokenizer.from_folder(own)
    (own / "fit.json").touch()
    with pytest.raises(ConfigurationError, match="redactory fit tagger"):
        build_language_network(settings, tokenizer)


def test_a_folders_tokenizer_keeps_text_and_makes_no_special_token_of_it(folders: Folders) -> None:
    tokenizer = FolderTokenizer.from_folder(folders["gpt2"], single_digits=True)
    text = f"Hello 1023, <|endoftext|> and {MASK}."
    ids = tokenizer.encode(text)
    assert tokenizer.end_id not in ids
    assert ids.count(tokenizer.mask_id) == 1
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("1023")) == 4
    assert len(FolderTokenizer.from_folder(folders["gpt2"]).encode("1023")) == 2


def test_long_texts_are_scored_in_windows(folders: Folders) -> None:
    settings = TrainSettings(
        model={"kind": "gpt2", "layers": 1, "width": 8, "heads": 1, "context": 10}, max_tokens=10
    ).model
    network = build_language_network(settings, WORDS)
    network.initialise(RandomStream.from_seed(1))
    model = LanguageModel(WORDS, network.double())
    long = "12345678" * 4
    scores = model.compute_token_log_probs([long, "123"])
    assert [len(own) for own in scores] == [33, 4]
    assert scores[0][:10] == pytest.approx(model.compute_token_log_probs([long[:12]])[0][:10])


SMALL_AWD: dict[str, Any] = {"kind": "awd-lstm", "embedding_size": 6, "hidden_size": 9}


def test_dropout_is_a_function_of_step_and_point_alone() -> None:
    network = build_language_network(AwdLstmSettings(**SMALL_AWD), WORDS).double()
    network.initialise(RandomStream.from_seed(1))
    points = TokenizedExamples.from_texts(TEXTS, WORDS, 40)

    def losses(step: int, rows: list[int], purpose: str = "noisy step") -> dict[int, float]:
        network.begin_step(RandomStream.from_seed(5), purpose, step)
        return dict(zip(rows, network.example_losses(points.make_batch(rows)).tolist(), strict=True))

    network.train()
    first = losses(0, [0, 1, 3])
    assert losses(0, [3, 0])[0] == pytest.approx(first[0], rel=1e-12)
    assert losses(1, [0])[0] != pytest.approx(first[0], rel=1e-6)
    assert losses(0, [0], "plain step")[0] != pytest.approx(first[0], rel=1e-6)
    network.eval()
    assert losses(0, [0])[0] == losses(1, [0])[0]


def test_no_dropout_is_the_plain_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for where in ("word", "input", "layer", "output", "weight"):
        monkeypatch.setattr(AwdLstmSettings, f"{where}_dropout", 0.0)
    network = build_language_network(AwdLstmSettings(**SMALL_AWD), WORDS).double()
    network.initialise(RandomStream.from_seed(1))
    batch = TokenizedExamples.from_texts(TEXTS, WORDS, 40).make_batch([0, 1])
    network.begin_step(RandomStream.from_seed(5), "noisy step", 0)
    trained = network.train().example_losses(batch)
    torch.testing.assert_close(trained, network.eval().example_losses(batch))
