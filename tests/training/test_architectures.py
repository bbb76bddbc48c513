"""What a folder of Hugging Face may hold: decided by looking at the network, and held against autograd."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.clipping import check_exact_clipping, compute_clipped_sum, gradients
from redactory.training.data import TokenizedExamples
from redactory.training.models.hugging_face import (
    CausalNetwork,
    HuggingFaceNetwork,
    SequenceClassifier,
    add_adapters,
    disable_dropout,
    get_context_length,
    require_exact_clipping,
)
from redactory.training.models.settings import LoraSettings
from tests.training.architectures import REFUSED, VOCABULARY, build_architecture
from tests.training.clipping.networks import assert_equal, reference

PAD, END = 2, 1
# every way in which a layer is recorded: the whole table is in benchmarks/clipping_architectures.py
TRIED = [
    *[(kind, "next-word") for kind in ("gpt2", "qwen3", "gemma3_text", "gpt_neox", "bloom", "falcon")],
    *[(kind, "next-word") for kind in ("mamba", "opt", "biogpt", "lfm2", "mixtral", "gpt_oss")],
    *[(kind, "classify") for kind in ("roberta", "modernbert", "mpnet", "t5", "gpt2")],
]


def network_of(kind: str, task: str, **config: Any) -> HuggingFaceNetwork:
    model = disable_dropout(build_architecture(kind, task, **config))
    return CausalNetwork(model) if task == "next-word" else SequenceClassifier(model)


def points_of(lengths: list[int], seed: int = 0, classify: bool = False) -> TokenizedExamples:
    generator = torch.Generator().manual_seed(seed)
    rows = [[*torch.randint(5, VOCABULARY, (n - 1,), generator=generator).tolist(), END] for n in lengths]
    found = TokenizedExamples.from_rows(rows, begin_id=0, pad_id=PAD)
    return replace(found, labels=torch.arange(len(rows)).numpy() % 3) if classify else found


@pytest.mark.parametrize(("kind", "task"), TRIED)
def test_what_is_admitted_is_clipped_as_autograd_does_it(kind: str, task: str) -> None:
    """After the trial on made-up points, other points in other numbers: also one alone, and none."""
    network = network_of(kind, task).train()
    trial, points = (points_of(own, classify=task == "classify") for own in ([5, 3, 2], [4, 7, 3, 6]))
    alone = [partial(network.example_losses, trial.make_batch([row])) for row in range(3)]
    check_exact_clipping(network, partial(network.example_losses, trial.make_batch([0, 1, 2])), alone)
    if kind not in REFUSED:
        require_exact_clipping(network, PAD, END, 12)
    for rows in ([0, 1, 2, 3], [2], []):
        found = compute_clipped_sum(network, points, torch.tensor(rows, dtype=torch.int64).numpy(), 0.1, 4096)
        expected, _ = reference(
            network, lambda row, rows=rows: network.example_losses(points.make_batch([rows[row]])), len(rows), 0.1
        )
        assert_equal(found, expected, 1e-4, 1e-3)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_network_that_sees_its_padding_is_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no support for private training of this {kind}: .*{REFUSED[kind]}"):
        require_exact_clipping(network_of(kind, "classify"), PAD, END, 12)


NETWORKS = [network_of(*one).eval() for one in (("gemma3_text", "next-word"), ("roberta", "classify"))]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.integers(0, 9), st.sampled_from(NETWORKS))
def test_no_loss_depends_on_padding(lengths: list[int], seed: int, network: HuggingFaceNetwork) -> None:
    points = points_of(lengths, seed, isinstance(network, SequenceClassifier))
    with torch.no_grad():
        together = network.example_losses(points.make_batch(range(len(lengths))))
        alone = torch.cat([network.example_losses(points.make_batch([row])) for row in range(len(lengths))])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def test_dropout_is_refused_and_so_is_a_slip_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    loud = CausalNetwork(build_architecture("gpt2", "next-word").eval()).train()
    with pytest.raises(ConfigurationError, match="draws random numbers"):
        require_exact_clipping(loud, PAD, END, 12)
    quiet = network_of("gpt2", "next-word")
    monkeypatch.setattr(gradients.Tape, "report_embedding_rows", lambda *_: None)
    with pytest.raises(ConfigurationError, match=r"wte.weight: its clipped gradient differs from that of autograd"):
        require_exact_clipping(quiet, PAD, END, 12)


def test_rotary_positions_that_change_with_the_longest_point_are_refused() -> None:
    """Longrope has other factors for a whole batch as soon as one of its points is long."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16, **factors}
    own = {"original_max_position_embeddings": 16, "rope_parameters": rope}
    network = network_of("phi3", "next-word", **own)
    require_exact_clipping(network, PAD, END, 16)
    with pytest.raises(ConfigurationError, match="no support for private training of this phi3"):
        require_exact_clipping(network, PAD, END, 17)


def test_a_buffer_that_a_loss_moves_is_refused_by_name() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 3)
            self.register_buffer("longest", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.longest.clamp_(min=x.shape[0])
            return super().forward(x)

    net, x = nn.Sequential(Counting()), torch.randn(3, 5, 3)
    alone = [lambda row=row: net(x[row : row + 1]).sum((1, 2)) for row in range(3)]
    with pytest.raises(ConfigurationError, match=r"^0.longest: an example changes this buffer"):
        check_exact_clipping(net, lambda: net(x).sum((1, 2)), alone)


def test_a_network_that_mixes_points_is_refused_at_any_width() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x - x.mean(0))

    net, x = nn.Sequential(Mixed()), torch.randn(3, 5, 3)
    alone = [lambda row=row: net(x[row : row + 1]).sum((1, 2)) for row in range(3)]
    with pytest.raises(ConfigurationError, match="changes beside"):
        check_exact_clipping(net, lambda: net(x).sum((1, 2)), alone)


def test_a_model_that_reads_from_both_sides_predicts_no_next_word() -> None:
    with pytest.raises(ConfigurationError, match="in both directions"):
        CausalNetwork(disable_dropout(build_architecture("bert", "next-word")))


@pytest.mark.parametrize("kind", ["gemma2", "cohere", "granite", "gpt2", "opt"])
def test_the_losses_are_those_of_the_models_own_logits(kind: str) -> None:
    """Some cap or scale their logits after the output layer."""
    network = network_of(kind, "next-word").eval()
    batch = points_of([6, 4]).make_batch([0, 1])
    logits = network.model(input_ids=batch.inputs).logits
    each = nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
    expected = each.view_as(batch.targets).masked_fill(~batch.real, 0.0).sum(1)
    torch.testing.assert_close(network.example_losses(batch), expected)


@pytest.mark.parametrize("kind", ["gpt2", "gemma3_text", "mamba", "bloom"])
def test_steps_read_what_the_whole_text_reads(kind: str) -> None:
    network = network_of(kind, "next-word").eval()
    ids = torch.arange(5, 11).repeat(2, 1)
    expected = network.model(input_ids=ids).logits.log_softmax(-1)
    state = network.make_initial_state(2)
    for place in range(6):
        found, state = network.step(ids[:, place], state)
        torch.testing.assert_close(found, expected[:, place], rtol=1e-4, atol=1e-4)


def test_places_that_are_counted_from_behind_the_padding_shorten_the_context() -> None:
    assert get_context_length(build_architecture("roberta", "classify")) == 32 - PAD - 1
    assert get_context_length(build_architecture("gpt2", "next-word")) == 32
    assert get_context_length(build_architecture("bloom", "next-word")) is None


@pytest.mark.parametrize("method", ["lora", "rslora", "dora"])
def test_adapters_of_each_method_are_clipped_exactly(method: str) -> None:
    own = LoraSettings.model_validate({"rank": 2, "method": method})
    network = CausalNetwork(add_adapters(disable_dropout(build_architecture("qwen3", "next-word")), own, "base"), True)
    lengths = [p.detach().clone() for n, p in network.named_parameters() if "magnitude" in n]
    require_exact_clipping(network, PAD, END, 12)
    kept = [p for n, p in network.named_parameters() if "magnitude" in n]
    assert all(torch.equal(a, b) for a, b in zip(lengths, kept, strict=True))
    assert bool(kept) == (method == "dora")
    assert {n.split(".")[-3] for n, p in network.named_parameters() if p.requires_grad} <= {
        *("lora_A", "lora_B", "lora_magnitude_vector")
    }


def test_the_adapters_dropout_is_one_mask_for_a_step() -> None:
    settings = LoraSettings(rank=2, dropout=0.5, alpha=3)
    model = add_adapters(disable_dropout(build_architecture("qwen3", "next-word")), settings, "base")
    assert {module.scaling["default"] for module in model.modules() if hasattr(module, "lora_A")} == {1.5}
    network, stream = CausalNetwork(model, True), RandomStream.from_seed(1)
    for name, parameter in network.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    batch = points_of([6, 4, 7]).make_batch([0, 1, 2])
    undropped = network.train().example_losses(batch)
    losses = []
    for step in (0, 1, 0):
        network.begin_step(stream, "noisy step", step)
        losses.append(network.example_losses(batch))
    assert torch.equal(losses[0], losses[2])
    assert not torch.isclose(losses[0], losses[1]).any()
    require_exact_clipping(network, PAD, END, 12)
    single_losses = torch.cat([network.example_losses(batch.select_example(index)) for index in range(3)])
    torch.testing.assert_close(single_losses, losses[0])
    assert torch.equal(network.eval().example_losses(batch), undropped)


@pytest.mark.parametrize(
    ("kind", "name", "problem"), [("qwen3", "nowhere", "is no layer"), ("gpt2", "lm_head", "shares its weights")]
)
def test_layers_that_cannot_be_trained_as_a_whole_are_an_error(kind: str, name: str, problem: str) -> None:
    settings = LoraSettings(modules_to_save=(name,))
    with pytest.raises(ConfigurationError, match=f"{name} {problem}"):
        add_adapters(build_architecture(kind, "next-word"), settings, "base")


def test_layers_that_get_no_adapter_by_their_names_are_an_error() -> None:
    own = LoraSettings.model_validate({"modules": ["nowhere"]})
    with pytest.raises(ConfigurationError, match=r"lora\.modules"):
        add_adapters(build_architecture("gpt2", "next-word"), own, "base")
