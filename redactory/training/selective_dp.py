"""Selective DP-SGD (Shi et al. 2021) for one LSTM layer: a baseline without a guarantee of ours.

A policy flags private tokens. The network learns public tokens without noise; per-example gradients of private tokens
are clipped and noised, as are states passed from private to public tokens. An approximate policy may miss a private
token, which is then learned without noise: ε is infinite (CRT, section 5.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import merge_intervals
from redactory.training.data import Batch, IntArray, read_columns
from redactory.training.loop import TrainingContext
from redactory.training.models.recurrent import LstmLanguageModel
from redactory.training.steps import NoiseFreeSteps, ScheduledOptimizer, apply_gradient, list_trainable_parameters
from redactory.training.tokenizer import Tokenizer

STATE_CLIP = 1.0
"""L2 bound of the state that is noised at the end of private text."""


def build_private_token_mask(run: RunFolder, tokenizer: Tokenizer, max_tokens: int) -> NDArray[np.bool_]:
    """Flag the vault's tokens that overlap a span of the strict policy: bool, aligned with the examples' ids."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for example_id, start, end, policy in read_columns(run.spans, ["example_id", "start", "end", "policy"]):
        if policy == "strict":
            spans.setdefault(example_id, []).append((start, end))
    masks = [np.empty(0, bool)]
    for example_id, text in read_columns(run.vault, ["example_id", "text"]):
        flags = flag_private_tokens(text, spans.get(example_id, ()), tokenizer)
        masks.append(np.asarray([*flags, False][:max_tokens], bool))
    return np.concatenate(masks)


def flag_private_tokens(text: str, spans: Iterable[tuple[int, int]], tokenizer: Tokenizer) -> list[bool]:
    """Return for each id of ``text`` whether any of its characters is in one of ``spans``."""
    merged = merge_intervals(text, list(spans))
    return [any(start < high and low < end for low, high in merged) for start, end in tokenizer.token_offsets(text)]


@dataclass
class SelectiveDpSteps(NoiseFreeSteps):
    """Selective DP-SGD: each step trains on a batch's public tuples, then on its private ones with noise.

    Formal guarantees: none. With perfect flags, Poisson-sampled batches, and the realised state as the only information
    passed on from private tokens, the noised parts would be Gaussian mechanisms.
    """

    private_tokens: NDArray[np.bool_]
    private_optimizer: ScheduledOptimizer
    noise_multiplier: float
    clip_norm: float

    def step(self, number: int) -> None:
        """Take both halves of step ``number``, each with its own learning rate."""
        rows = self.select_rows(number)
        batch = self.examples.make_batch(rows).to(self.network.device)
        private = self._make_batch_mask(rows, batch)
        weights: list[Tensor] = [*list_trainable_parameters(self.network)]
        assert isinstance(self.network, LstmLanguageModel)
        # of the states passed on from private tuples
        shape = (*private.shape, 2 * self.network.width)
        draws = self.stream.normal("sdp state noise", number, int(np.prod(shape)))
        deviation = self.noise_multiplier * STATE_CLIP
        noise = (deviation * torch.from_numpy(draws).view(shape)).to(weights[0])
        self.scheduled_optimizer.optimizer.zero_grad()
        losses = compute_selective_losses(weights, batch, private, noise)[0]
        torch.autograd.backward(losses.sum() / len(rows))
        self.scheduled_optimizer.step(number)
        total = self._sum_clipped_gradients(weights, batch, private, noise)
        draws = self.stream.normal("sdp noise", number, total.numel())
        noisy = total + (self.noise_multiplier * self.clip_norm * torch.from_numpy(draws)).to(total)
        self.private_optimizer = replace(self.scheduled_optimizer, learning_rate=self.private_optimizer.learning_rate)
        apply_gradient(self.network, self.private_optimizer, noisy / self.batch_size, number)

    def _make_batch_mask(self, rows: IntArray, batch: Batch) -> Tensor:
        """Return which tuples (token read, token predicted) of ``batch`` are private: bool [B, T]."""
        is_private = torch.zeros_like(batch.real)
        flags = self.examples.select_values(self.private_tokens, rows)
        is_private[batch.real] = torch.from_numpy(flags).to(is_private.device)
        is_read_private = torch.cat([torch.zeros_like(is_private[:, :1]), is_private[:, :-1]], dim=1)
        return (is_private | is_read_private) & batch.real

    def _sum_clipped_gradients(self, weights: list[Tensor], batch: Batch, private: Tensor, noise: Tensor) -> Tensor:
        """Sum the clipped gradients of the examples' private tuples, flat."""
        private_rows = private.any(1).nonzero().flatten()
        if not len(private_rows):
            return weights[0].new_zeros(sum(w.numel() for w in weights), requires_grad=False)

        def compute_private_loss(parameters: list[Tensor], *row: Tensor) -> Tensor:
            inputs, targets, real, is_private, row_noise = (part[None] for part in row)
            return compute_selective_losses(parameters, Batch(inputs, targets, real), is_private, row_noise)[1][0]

        per_example_gradient = torch.func.vmap(torch.func.grad(compute_private_loss), in_dims=(None, 0, 0, 0, 0, 0))
        parts = (batch.inputs, batch.targets, batch.real, private, noise)
        gradients = per_example_gradient([w.detach() for w in weights], *(part[private_rows] for part in parts))
        flat_gradients = torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
        norms = flat_gradients.norm(dim=1, keepdim=True)
        scaled = flat_gradients * (self.clip_norm / norms).clamp(max=1.0)
        return torch.where(norms.isfinite() & (norms > 0.0), scaled, 0.0).sum(0)


def make_selective_steps(context: TrainingContext, scheduled_optimizer: ScheduledOptimizer) -> SelectiveDpSteps:
    """Make the steps of a training on the vault, with the strict policy's private tokens."""
    settings, examples = context.settings, context.encode_data_folders(context.run.vault).examples
    assert isinstance(context.tokenizer, Tokenizer)
    assert settings.noise_multiplier is not None
    return SelectiveDpSteps(
        context.network,
        scheduled_optimizer,
        examples,
        np.arange(len(examples), dtype=np.int64),
        settings.public_batch_size,
        context.stream,
        private_tokens=build_private_token_mask(context.run, context.tokenizer, settings.max_tokens),
        private_optimizer=ScheduledOptimizer(scheduled_optimizer.optimizer, settings.dp_learning_rate),
        noise_multiplier=settings.noise_multiplier,
        clip_norm=settings.clip_norm,
    )


def compute_selective_losses(
    weights: list[Tensor], batch: Batch, private: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss (nats) of each example's public tuples and of its private ones, [B] each.

    ``weights`` are in the order of an :class:`LstmLanguageModel` of one layer; ``private`` is bool [B, T]; ``noise``
    [B, T, 2H] is added at the end of a private run. No gradient passes between public and private runs.
    """
    embedding, weight_ih, weight_hh, bias_ih, bias_hh, output, bias = weights
    size = weight_hh.shape[1]
    gates = F.linear(embedding[batch.inputs], weight_ih, bias_ih + bias_hh)
    state = gates.new_zeros(len(gates), 2 * size)
    was_private = torch.zeros_like(private[:, 0])
    states = []
    for position in range(private.shape[1]):
        is_private = private[:, position]
        detached_state = state.detach()
        norm = detached_state.norm(dim=1, keepdim=True).clamp(min=1e-12)
        noised_state = detached_state * (STATE_CLIP / norm).clamp(max=1.0) + noise[:, position]
        state = torch.where(
            (is_private == was_private)[:, None], state, torch.where(was_private[:, None], noised_state, detached_state)
        )
        h, c = state[:, :size], state[:, size:]
        i, f, g, o = (gates[:, position] + F.linear(h, weight_hh)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        state = torch.cat([h, c], dim=1)
        states.append(h)
        was_private = is_private
    logits = F.linear(torch.stack(states, 1), output, bias)
    losses = -logits.log_softmax(-1).gather(2, batch.targets[..., None])[..., 0]
    return (losses * (batch.real & ~private)).sum(1), (losses * (batch.real & private)).sum(1)
