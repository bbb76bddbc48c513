"""Are clipped gradients that were computed in bfloat16 within C?  Measured on each of many points.

A step's weights come from norms of single precision; here the gradient of each point is formed in double
precision from the very factors that are summed, and weighted.  The largest norm over C, less 1, is printed.

    PYTHONPATH=. python benchmarks/clipped_norms.py --points 1000000 --seconds 500
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from redactory.training.clipping import compute_clipped_gradient, engine, use_precision
from redactory.training.clipping.gradients import DenseGradients, OuterProducts, ParameterUse, Tape
from redactory.training.data import Batch
from redactory.training.models.hugging_face import CausalNetwork, disable_dropout

CLIP_NORM, POINTS, VOCABULARY, LENGTHS = 0.1, 2048, 48, (2, 12)


def formed(use: ParameterUse, shape: torch.Size) -> Tensor:
    """G_i of every example in double precision, [B, ...]."""
    if isinstance(use, DenseGradients):
        return use.right.double().view(-1, *shape)
    if isinstance(use, OuterProducts):
        if use.counts is None:
            return use.left.double().mT @ use.right.double()
        pairs = (torch.split(x.double(), use.counts) for x in (use.left, use.right))
        return torch.stack([left.t() @ right for left, right in zip(*pairs, strict=True)])
    found = torch.zeros(use.example_count, *shape, dtype=torch.float64)
    places = use.left[..., None].expand(use.right.shape)
    return found.scatter_add_(1, places, use.right.double())


def measured(norms: list[Tensor]) -> Any:
    """The engine's weighted sum, which notes the norm of each weighted gradient."""
    whole = engine._sum_weighted_gradients

    def noting(tape: Tape, learnt: engine.NamedParameters, weights: Tensor) -> Tensor:
        squares = torch.zeros(len(weights), dtype=torch.float64)
        for parameter in learnt.values():
            uses = tape.uses.get(id(parameter), [])
            if uses:
                gradient: Any = sum(formed(use, parameter.shape) for use in uses)
                squares += gradient.flatten(1).square().sum(1)
        norms.append(squares.sqrt() * weights.double())
        return whole(tape, learnt, weights)

    return noting


def main() -> None:
    """Print the largest norm of a weighted gradient over C, less 1."""
    parser = argparse.ArgumentParser(description="norms of clipped gradients")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--kind", default="qwen3")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(
        arguments.kind, vocab_size=VOCABULARY, num_key_value_heads=1, head_dim=4, tie_word_embeddings=True,
        **sizes, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    network = CausalNetwork(disable_dropout(AutoModelForCausalLM.from_config(config))).train()
    norms: list[Tensor] = []
    engine._sum_weighted_gradients = measured(norms)  # type: ignore[assignment]
    begun, seen, largest, clipped = time.monotonic(), 0, 0.0, 0
    while seen < arguments.points and time.monotonic() - begun < arguments.seconds:
        norms.clear()
        lengths = torch.randint(*LENGTHS, (POINTS, 1))
        ids = torch.randint(VOCABULARY, (POINTS, LENGTHS[1]))
        batch = Batch(ids, ids.roll(-1, 1), torch.arange(LENGTHS[1]) < lengths)
        with torch.no_grad():
            for parameter in network.parameters():  # another network each time, some with large weights
                parameter.copy_(torch.randn_like(parameter) * 10.0 ** (2.0 * torch.rand(()) - 2.0))
        with use_precision("bf16", torch.device("cpu")):
            compute_clipped_gradient(network, lambda batch=batch: network.example_losses(batch), CLIP_NORM, POINTS)
        seen, largest = seen + POINTS, max(largest, float(norms[0].max()))
        clipped += int((norms[0] > 0.999 * CLIP_NORM).sum())
    print(f"{seen} points, {clipped} of them clipped: at most {largest / CLIP_NORM - 1.0:+.1e} beyond C")


if __name__ == "__main__":
    main()
