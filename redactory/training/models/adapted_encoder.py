"""Train low-rank adapters in the encoder's last two layers, together with the linear layer above them.

The layers below stay frozen, so a text passes them once. Of an adapter B·A only B is trained and A is a public
constant: if both were, noise in one would be multiplied by noise in the other (Sun et al. 2024, "Improving LoRA in
privacy-preserving federated learning"). When adapters are worth their noise: ``docs/how-to/train.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from redactory.encoder import SENTENCE_FOLDER
from redactory.encoder.layers import NORMS, PARTS, read_layer_weights
from redactory.foundation.stream import RandomStream
from redactory.training.data import Batch
from redactory.training.models.frozen_encoder import (
    PREFIX,
    PackageEncoder,
    VectorClassifier,
    VectorExamples,
    Vectors,
    read_public_sentences,
)

WIDTH, HEADS = 384, 12
FROZEN_PARTS = 2
"""Of the three parts of a text's vector, those of layers 8 and 10 stay as they are."""
ADAPTED_LAYERS = (10, 11)
"""Counted from 0: the layers after the states of the frozen ones."""
SCALE = 0.05
"""Factor of an adapter's output: with it, steps of the linear layer's learning rate suit the adapters too."""
read_weights = cache(partial(read_layer_weights, SENTENCE_FOLDER))


class AdaptableEncoder(PackageEncoder):
    """The package's encoder up to layer 10: states of a text's first tokens, for adapters of ``lora_rank`` above it.

    Formal guarantees: those of :class:`redactory.training.models.frozen_encoder.FrozenEncoder`, for states.
    """

    def __init__(self, lora_rank: int, threads: int = 1) -> None:
        super().__init__(None, threads)
        self.lora_rank = lora_rank

    def make_examples(self, texts: Iterable[str], max_tokens: int | None = None) -> VectorExamples:
        """Make the table of ``texts``: the states of each text's first ``max_tokens`` tokens, all in memory."""
        with ThreadPoolExecutor(self._threads) as pool:
            states = list(pool.map(partial(self.encode_states, max_tokens=max_tokens), texts))
        return VectorExamples.from_arrays(states, WIDTH)

    def make_public_examples(self) -> VectorExamples:
        """Make the table of the package's sentences, all of class 0."""
        examples = self.make_examples(read_public_sentences())
        return replace(examples, labels=np.zeros(len(examples), np.int64))

    def encode_states(self, text: str, max_tokens: int | None) -> NDArray[np.float16]:
        """Encode the first ``max_tokens`` tokens of a text, at most a window: half precision, [2 + tokens, 384].

        The first two rows are the mean states of layers 8 and 10 over the word pieces, zero for a text of white space.
        Then come layer 10's states of the start token, the pieces and the end token. All are zero if one is not finite.
        """
        states = self._encoder.encode_window(PREFIX + text if text.strip() else "", max_tokens)[:, : 2 * WIDTH]
        pieces = states[1:-1] if len(states) > 2 else np.zeros_like(states[:1])
        rows = np.concatenate([pieces.mean(0).reshape(FROZEN_PARTS, WIDTH), states[:, WIDTH:]]).astype(np.float16)
        return rows if np.isfinite(rows).all() else np.zeros_like(rows)


class AdaptedLinear(nn.Module):
    """A frozen linear layer W x + c, to which ``SCALE``·(B A x + b) is added: B and b are trained, from zero.

    The rows of A [rank, inputs] are orthonormal.
    """

    def __init__(self, weight: Tensor, bias: Tensor, rank: int) -> None:
        super().__init__()
        self.weight: Tensor
        self.bias: Tensor
        self.projection: Tensor
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self.register_buffer("projection", torch.eye(rank, weight.shape[1]))
        self.adapter = nn.Linear(rank, len(weight))
        for parameter in self.adapter.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``inputs`` [B, T, inputs] to [B, T, outputs]."""
        added: Tensor = self.adapter(F.linear(inputs, self.projection))
        return F.linear(inputs, self.weight, self.bias) + SCALE * added


class AdaptedLayer(nn.Module):
    """Layer ``number`` of the package's encoder, as BERT computes it, with adapters in each of its linear layers."""

    def __init__(self, number: int, rank: int) -> None:
        super().__init__()
        weights = {name: torch.from_numpy(array.copy()) for name, array in read_weights(number).items()}
        self.query, self.key, self.value, self.output, self.inner, self.outer = (
            AdaptedLinear(weights[f"{part}.weight"], weights[f"{part}.bias"], rank) for part in PARTS
        )
        self._norms = [(weights[f"{norm}.weight"], weights[f"{norm}.bias"]) for norm in NORMS]

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute the states [B, T, 384] after this layer; ``mask`` [B, 1, 1, T] is added to attention scores."""
        query, key, value = (
            part(states).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)
        states = self._normalise(0, states + self.output(attended))
        return self._normalise(1, states + self.outer(F.gelu(self.inner(states))))

    def _normalise(self, number: int, states: Tensor) -> Tensor:
        weight, bias = (part.to(states.device) for part in self._norms[number])
        return F.layer_norm(states, (WIDTH,), weight, bias, eps=1e-12)


class AdaptedClassifier(VectorClassifier):
    """A linear layer on a text's vector, whose last part comes from the adapted layers.

    Formal guarantees: those of :class:`redactory.training.models.network.ClassifierNetwork`. The trained layers are
    linear layers, so examples are clipped exactly (``docs/explanation/clipping.md``).
    """

    FORMAT: ClassVar[str] = "redactory-adapted-classifier/1"

    def __init__(self, mean: Vectors, classes: tuple[str, ...], encoder: dict[str, Any]) -> None:
        super().__init__(mean, classes, encoder)
        self.layers = nn.ModuleList(AdaptedLayer(number, encoder["lora_rank"]) for number in ADAPTED_LAYERS)

    @torch.no_grad()
    def set_projections(self, public_examples: VectorExamples) -> None:
        """Set each A to the directions in which its layer's inputs vary most for ``public_examples``.

        16 of 384 directions have more than half of the variance, random ones a 24th. So the gradient in them is
        several times larger, beside the same noise.
        """
        inputs: dict[AdaptedLinear, list[Tensor]] = {}
        layers = [module for module in self.modules() if isinstance(module, AdaptedLinear)]
        hooks = [
            layer.register_forward_pre_hook(lambda layer, args: inputs.setdefault(layer, []).append(args[0][0]))
            for layer in layers
        ]
        for row in range(len(public_examples)):
            self.logits(public_examples.make_batch([row]))
        for hook in hooks:
            hook.remove()
        for layer in layers:
            states = torch.cat(inputs[layer])
            _, _, directions = torch.linalg.svd(states - states.mean(0), full_matrices=False)
            directions = directions[: len(layer.projection)]
            # a direction has two signs, and libraries may differ: its largest entry is positive
            signs = directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
            layer.projection.copy_(directions * signs)

    def initialise(self, stream: RandomStream) -> None:
        """Set all trained weights to zero: training starts from the encoder as it is."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def logits(self, batch: Batch) -> Tensor:
        """Unnormalised log probabilities of the classes, [B, classes]."""
        means, states, real = (
            batch.inputs[:, :FROZEN_PARTS],
            batch.inputs[:, FROZEN_PARTS:],
            batch.real[:, FROZEN_PARTS:],
        )
        mask = torch.zeros(real.shape, device=real.device).masked_fill(~real, -torch.inf)[:, None, None]
        for layer in self.layers:
            states = layer(states, mask)
        # neither the start nor the end token counts
        pieces = F.pad(real[:, 2:], (1, 1))[..., None]
        mean = (states * pieces).sum(1) / pieces.sum(1).clamp(min=1)
        return self.classify_vectors(torch.cat([means.flatten(1), mean], 1))


def count_adapter_parameters(rank: int) -> int:
    """Count the trained parameters of adapters of ``rank``; 0 if it is 0."""
    outputs = sum(len(read_weights(number)[f"{part}.bias"]) for number in ADAPTED_LAYERS for part in PARTS)
    return (rank + 1) * outputs if rank else 0
