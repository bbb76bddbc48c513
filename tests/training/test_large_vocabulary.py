"""A vocabulary of 262,145: the same numbers as with all logits at once, in bounded memory."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from redactory.evaluation.canary import measure_canary_exposure
from redactory.evaluation.generation import generate_texts
from redactory.evaluation.membership import run_membership_attack
from redactory.evaluation.utility import measure_perplexity
from redactory.foundation.stream import RandomStream
from redactory.training import numerics
from redactory.training.clipping import compute_clipped_sum
from redactory.training.data import TokenizedExamples
from redactory.training.model import LanguageModel
from redactory.training.models.hugging_face import CausalNetwork, disable_dropout
from redactory.training.models.network import LanguageNetwork
from redactory.training.steps import NoiseFreeSteps, ScheduledOptimizer, list_trainable_parameters, make_optimizer
from tests.evaluation.small_model import CharacterTokenizer

MANY, LIMIT_MB, TRAINING_LIMIT_MB = 262_145, 800, 1_400
TEXTS = [f"My number is {number}. " + "and that is all. " * 12 for number in range(12)]
CANARIES = {"template": "My ID is: {digits}", "inserted": ["0417"], "control": ["3069"], "copies": 1}


class Codec(CharacterTokenizer):
    """Every character a token, of a large vocabulary."""

    pad_id = 1

    def __init__(self, size: int) -> None:
        self.size = size

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(min(256 + number, 0x10FFFF)) for number in ids)


def make_model(kind: str, size: int, width: int = 8) -> LanguageModel:
    """A narrow network; ``gemma2`` changes its logits after the output layer, both Gemmas have no cache."""
    import transformers

    sizes = {"hidden_size": width, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    shared = {"vocab_size": size, "num_key_value_heads": 1, "max_position_embeddings": 512, **sizes}
    gemma = {"head_dim": 4, "sliding_window": 64}
    configs: dict[str, Any] = {
        "llama": lambda: transformers.LlamaConfig(**shared),
        "gemma2": lambda: transformers.Gemma2Config(**shared, **gemma, final_logit_softcapping=0.1),
        "gemma3": lambda: transformers.Gemma3TextConfig(**shared, **gemma),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner: Any = transformers.AutoModelForCausalLM.from_config(configs[kind]())
    return LanguageModel(Codec(size), CausalNetwork(disable_dropout(inner), pretrained=True))  # type: ignore[arg-type]


def score_at_once(model: LanguageModel, text: str) -> np.ndarray:
    """The log probability of every token of ``text`` from one matrix of all logits."""
    codec: Any = model.tokenizer
    ids = torch.tensor([[codec.begin_id, *codec.encode(text), codec.end_id]])
    network: Any = model.network
    with torch.no_grad():
        log_probs = network.model(input_ids=ids[:, :-1]).logits[0].double().log_softmax(-1)
    return np.asarray(log_probs.gather(1, ids[0, 1:, None])[:, 0])


def make_examples(model: LanguageModel) -> TokenizedExamples:
    return TokenizedExamples.from_texts(TEXTS, model.tokenizer, max_tokens=64)


USES: dict[str, Callable[[LanguageModel], Any]] = {
    "scores": lambda model: [values.tolist() for values in model.compute_token_log_probs(TEXTS)[:2]],
    "perplexity": lambda model: measure_perplexity(model, TEXTS),
    "membership": lambda model: run_membership_attack(model, TEXTS[:6], TEXTS[6:], groups=4, group_size=2),
    "canaries": lambda model: measure_canary_exposure(model, CANARIES),
    "next word": lambda model: [float(values.max()) for values in model.compute_next_log_probs(TEXTS)],
    "texts": lambda model: generate_texts(model, 36, 2, top_k=40, top_p=0.9, prompts=TEXTS[:3]),
    "clipped sum": lambda model: float(
        compute_clipped_sum(
            model.network, make_examples(model), np.arange(12), 1.0, numerics.limit_batch_tokens(model.network, 4096)
        ).norm()
    ),
}


def run_use(kind: str, use: str, answer: Any) -> None:
    """Send the result of ``use`` and how far it raised the peak of this process, in MB."""
    torch.set_num_threads(1)
    model = make_model(kind, MANY)
    model.network.requires_grad_(False)
    model.network.model.base_model.requires_grad_(use == "clipped sum")  # type: ignore[operator, union-attr]
    model.network.model.get_output_embeddings().requires_grad_(False)  # type: ignore[operator, union-attr]
    before = read_status("VmRSS")
    result = USES[use](model)
    answer.put(json.dumps([result, read_status("VmHWM") - before]))


def read_status(key: str) -> float:
    """A number of ``/proc/self/status``, in MB."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3"])
def test_peak_memory_is_bounded_at_262145_tokens(kind: str, use: str) -> None:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=run_use, args=(kind, use, answer))
    process.start()
    result, megabytes = json.loads(answer.get(timeout=600))
    process.join()
    assert megabytes < (TRAINING_LIMIT_MB if use == "clipped sum" else LIMIT_MB)
    if use == "scores":
        expected = [score_at_once(make_model(kind, MANY), text) for text in TEXTS[:2]]
        for values, right in zip(result, expected, strict=True):
            assert np.allclose(values, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3"])
def test_scores_are_those_of_one_matrix_of_all_logits(kind: str) -> None:
    model = make_model(kind, 300)
    assert kind != "gemma2" or model.network.has_narrow_states
    for text, values in zip(TEXTS, model.compute_token_log_probs(TEXTS), strict=True):
        assert np.allclose(values, score_at_once(model, text), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3"])
def test_a_step_that_keeps_fewer_logits_has_the_same_gradient(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise-free steps accumulate over micro-batches, with the mean over the whole batch."""
    model = make_model(kind, 300)
    model.network.double()
    examples = make_examples(model)
    sizes: list[int] = []

    def take_gradient() -> torch.Tensor:
        optimizer = ScheduledOptimizer(make_optimizer(model.network, "sgd"), 0.0)
        NoiseFreeSteps(model.network, optimizer, examples, np.arange(12), 12, RandomStream.from_seed(1)).step(0)
        return torch.cat([p.grad.flatten() for p in list_trainable_parameters(model.network) if p.grad is not None])

    expected = take_gradient()
    compute_losses = LanguageNetwork.example_losses

    def record_size(network: LanguageNetwork, batch: Any) -> torch.Tensor:
        sizes.append(batch.inputs.numel())
        return compute_losses(network, batch)

    monkeypatch.setattr(LanguageNetwork, "example_losses", record_size)
    monkeypatch.setattr(numerics, "MAX_KEPT_LOGITS", 130 * model.network.kept_logits)
    gradient = take_gradient()
    assert len(sizes) > 3
    assert max(sizes) <= 130
    assert torch.allclose(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("error::FutureWarning")  # they would be shown with each generated text
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_tokens_read_at_once_leave_the_state_of_tokens_read_singly(kind: str) -> None:
    """With a cache (``llama``) and without."""
    network: Any = make_model(kind, 300).network
    ids = torch.randint(300, (2, 6), generator=torch.Generator().manual_seed(1))
    state = network.make_initial_state(2)
    for column in ids[:, :5].unbind(1):
        _, state = network.step(column, state)
    expected, _ = network.step(ids[:, 5], state)
    log_probs, _ = network.step(ids[:, 5], network.read_tokens(ids[:, :5], network.make_initial_state(2)))
    assert torch.equal(log_probs, expected)
