"""Models of transformers, fresh from small configurations, with and without peft's adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from redactory.training.clipping import compute_clipped_gradient
from redactory.training.clipping.layers import compute_vocabulary_losses
from tests.training.clipping.networks import VOCABULARY, Data, assert_equal, data_of, losses_of, reference


def gpt2(**more: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_layer=2, n_embd=8, n_head=2, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0, **more,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, num_hidden_layers=2, hidden_size=8, intermediate_size=12,
        num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def with_adapters(model: Any, **more: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, lora_dropout=0.0, **more))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return adapted


class Causal(nn.Module):
    """The loss of each point under a causal model."""

    def __init__(self, model: Any, explicit: bool = True, fused: bool = True) -> None:
        super().__init__()
        self.model, self.explicit, self.fused = model, explicit, fused

    def losses(self, data: Data) -> Tensor:
        given = {"input_ids": data.inputs}
        if self.explicit:
            given["position_ids"] = torch.arange(data.inputs.shape[1]).expand_as(data.inputs)
        if self.fused:
            base = getattr(self.model, "base_model", self.model)
            states = base(**given).last_hidden_state
            return compute_vocabulary_losses(self.model.lm_head, states, data.targets, data.real)
        return losses_of(self.model(**given).logits, data)


CASES: dict[str, tuple[Callable[[], nn.Module], torch.dtype]] = {
    "GPT-2, tied": (lambda: Causal(gpt2()), torch.float64),
    "GPT-2, tied, plain loss": (lambda: Causal(gpt2(), fused=False), torch.float64),
    "GPT-2, tied, its own positions": (lambda: Causal(gpt2(), explicit=False), torch.float64),
    "GPT-2, untied": (lambda: Causal(gpt2(tie_word_embeddings=False)), torch.float64),
    # Its norms compute in float32 whatever the model's type.
    "Llama": (lambda: Causal(llama()), torch.float32),
    "GPT-2 with adapters": (
        lambda: Causal(with_adapters(gpt2(), target_modules=["c_attn"], fan_in_fan_out=True), fused=False),
        torch.float64,
    ),
    "Llama with adapters": (
        lambda: Causal(with_adapters(llama(), target_modules=["q_proj", "v_proj"]), fused=False),
        torch.float32,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_autograd_one_point_at_a_time(case: str) -> None:
    torch.manual_seed(3)
    make, dtype = CASES[case]
    net = make().to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    data = data_of([6, 3, 5, 6], 2)
    expected, norms = reference(net, lambda row: net.losses(data.row(row)), 4, 0.1)
    found = compute_clipped_gradient(net, lambda: net.losses(data), 0.1)
    assert float(norms.min()) > 0.1
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    assert_equal(found.flat, expected, tolerance, 0.0)
    torch.testing.assert_close(found.norms, norms, rtol=tolerance, atol=0.0)


def test_frozen_weights_of_an_adapted_model_are_not_recorded() -> None:
    from redactory.training.clipping.engine import find_recording_sites

    net = Causal(with_adapters(gpt2(), target_modules=["c_attn"], fan_in_fan_out=True))
    assert {site.name.rsplit(".", 2)[-2] for site in find_recording_sites(net)} == {"lora_A", "lora_B"}
