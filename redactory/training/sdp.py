"""Selective DP-SGD (Shi et al. 2021) for one LSTM layer: a baseline, without any guarantee of ours.

A policy marks private tokens.  What the network learns from public tokens is learnt without noise; the
gradients of private tokens are clipped for each point and noised; and a state that comes out of private
tokens is clipped and noised before a public token is read with it.  Under an approximate policy a
private token that was not marked is learnt as it is: ε is infinite (CRT, section 5.1).
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
from redactory.redaction.shards import read_batches
from redactory.training.ingredients import Ingredients
from redactory.training.models.recurrent import LstmLanguageModel
from redactory.training.phases import Descent, PlainPhase, descend, trainable
from redactory.training.points import Batch, EncodedPoints
from redactory.training.tokenizer import Tokenizer

STRICT = "strict"
STATE_CLIP = 1.0
"""L2 bound of the state that is noised where private text ends."""
_PARAMETERS = (
    "embedding.weight",
    "lstm.weight_ih_l0",
    "lstm.weight_hh_l0",
    "lstm.bias_ih_l0",
    "lstm.bias_hh_l0",
    "output.weight",
    "output.bias",
)


@dataclass(frozen=True)
class Marks:
    """Which targets of ``points`` are private: bool, aligned with ``points.ids``."""

    points: EncodedPoints
    private: NDArray[np.bool_]

    def of(self, rows: NDArray[np.int64], batch: Batch) -> Tensor:
        """Which tuples (token read, token foretold) of ``batch`` are private: bool [B, T]."""
        marked = torch.zeros_like(batch.real)
        for place, row in enumerate(rows):
            own = self.private[self.points.offsets[row] : self.points.offsets[row + 1]]
            marked[place, : len(own)] = torch.from_numpy(own)
        read = torch.cat([torch.zeros_like(marked[:, :1]), marked[:, :-1]], dim=1)
        return (marked | read) & batch.real


def read_marks(run: RunFolder, tokenizer: Tokenizer, max_tokens: int, points: EncodedPoints) -> Marks:
    """π's spans of the originals in the vault, as marks on the tokens that they touch."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for batch in read_batches(run.spans, ["point_id", "start", "end", "policy"]):
        for point, start, end, policy in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if policy == STRICT:
                spans.setdefault(point, []).append((start, end))
    pieces = [np.empty(0, bool)]
    for batch in read_batches(run.vault, ["point_id", "text"]):
        for point, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            marked = mark_tokens(text, spans.get(point, ()), tokenizer)
            pieces.append(np.asarray([*marked, False][:max_tokens], bool))
    return Marks(points, np.concatenate(pieces))


def mark_tokens(text: str, spans: Iterable[tuple[int, int]], tokenizer: Tokenizer) -> list[bool]:
    """For each id of ``text``, whether any of its characters lies in one of ``spans``."""
    merged = merge_intervals(text, list(spans))
    return [any(start < high and low < end for low, high in merged) for start, end in tokenizer.places(text)]


@dataclass
class SelectivePhase(PlainPhase):
    """One Selective DP-SGD step on a batch: first its public tuples, then its private ones with noise.

    Formal guarantees: none.  Were the marks perfect, batches Poisson-sampled and the realised state the
    only thing that private tokens hand on, the noised parts would be Gaussian mechanisms.
    """

    marks: Marks
    private_descent: Descent
    noise_multiplier: float
    clip_norm: float

    def fall_over(self, steps: int) -> None:
        """Let both step sizes fall to zero over ``steps`` steps."""
        super().fall_over(steps)
        self.private_descent = replace(self.private_descent, steps=steps)

    def step(self, number: int) -> None:
        """Both halves of step ``number``, each with its own learning rate."""
        rows = self.rows_of(number)
        batch = self.points.batch(rows)
        private = self.marks.of(rows, batch)
        noise = self._state_noise(number, private)
        assert isinstance(self.network, LstmLanguageModel)
        own = dict(self.network.named_parameters())
        weights: list[Tensor] = [own[name] for name in _PARAMETERS]
        self.descent.optimizer.zero_grad()
        losses = selective_losses(weights, batch, private, noise)[0]
        torch.autograd.backward(losses.sum() / len(rows))
        self.descent.step(number)
        total = self._clipped(weights, batch, private, noise)
        drawn = torch.from_numpy(self.stream.normal("sdp noise", number, total.numel()))
        noisy = total + (self.noise_multiplier * self.clip_norm * drawn).to(total)
        descend(self.network, self.private_descent, noisy / self.batch_size, number)

    def _state_noise(self, number: int, private: Tensor) -> Tensor:
        """Noise [B, T, 2H] of the states that leave private tuples."""
        assert isinstance(self.network, LstmLanguageModel)
        shape = (*private.shape, 2 * self.network.lstm.hidden_size)
        drawn = self.stream.normal("sdp state noise", number, int(np.prod(shape)))
        deviation = self.noise_multiplier * STATE_CLIP
        return (deviation * torch.from_numpy(drawn).view(shape)).to(self.network.output.weight)

    def _clipped(self, weights: list[Tensor], batch: Batch, private: Tensor, noise: Tensor) -> Tensor:
        """Σ of the clipped gradients of the points' private tuples, flat."""
        kept = private.any(1).nonzero().flatten()
        total = weights[0].new_zeros(sum(p.numel() for p in trainable(self.network)), requires_grad=False)
        if not len(kept):
            return total

        def loss(given: list[Tensor], *row: Tensor) -> Tensor:
            inputs, targets, real, marked, own = (part[None] for part in row)
            return selective_losses(given, Batch(inputs, targets, real), marked, own)[1][0]

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0, 0, 0))
        parts = (batch.inputs, batch.targets, batch.real, private, noise)
        gradients = each([w.detach() for w in weights], *(part[kept] for part in parts))
        flat = torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
        norms = flat.norm(dim=1, keepdim=True)
        scaled = torch.where(
            norms.isfinite() & (norms > 0.0), flat * (self.clip_norm / norms).clamp(max=1.0), 0.0
        )
        return scaled.sum(0)


def selective_phase(made: Ingredients, descent: Descent) -> SelectivePhase:
    """The steps of a training on the vault, its private tokens marked by π's spans."""
    own, points = made.settings, made.encode(made.run.vault)
    assert isinstance(made.tokenizer, Tokenizer)
    assert own.noise_multiplier is not None
    return SelectivePhase(
        made.network,
        descent,
        made.placed(points),
        made.passes(len(points)),
        own.public_batch_size,
        made.stream,
        marks=read_marks(made.run, made.tokenizer, own.max_tokens, points),
        private_descent=Descent(descent.optimizer, own.private_learning_rate),
        noise_multiplier=own.noise_multiplier,
        clip_norm=own.clip_norm,
    )


def selective_losses(
    weights: list[Tensor], batch: Batch, private: Tensor, noise: Tensor, state_clip_norm: float = STATE_CLIP
) -> tuple[Tensor, Tensor]:
    """The loss (nats) of each point's public tuples and of its private ones, [B] each.

    ``weights`` in the order of an :class:`LstmLanguageModel` of one layer; ``private`` bool [B, T];
    ``noise`` [B, T, 2H] is added where a private run ends.  No gradient passes between a public and a
    private run.
    """
    embedding, weight_ih, weight_hh, bias_ih, bias_hh, output, bias = weights
    size = weight_hh.shape[1]
    gates = F.linear(embedding[batch.inputs], weight_ih, bias_ih + bias_hh)
    state = gates.new_zeros(len(gates), 2 * size)
    before = torch.zeros_like(private[:, 0])
    states = []
    for place in range(private.shape[1]):
        now = private[:, place]
        cut = state.detach()
        norm = cut.norm(dim=1, keepdim=True).clamp(min=1e-12)
        noised = cut * (state_clip_norm / norm).clamp(max=1.0) + noise[:, place]
        state = torch.where((now == before)[:, None], state, torch.where(before[:, None], noised, cut))
        h, c = state[:, :size], state[:, size:]
        i, f, g, o = (gates[:, place] + F.linear(h, weight_hh)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        state = torch.cat([h, c], dim=1)
        states.append(h)
        before = now
    logits = F.linear(torch.stack(states, 1), output, bias)
    losses = -logits.log_softmax(-1).gather(2, batch.targets[..., None])[..., 0]
    return (losses * (batch.real & ~private)).sum(1), (losses * (batch.real & private)).sum(1)
