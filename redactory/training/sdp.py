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
from redactory.training.data import Batch, EncodedPoints, Ids, rows_of
from redactory.training.loop import Ingredients
from redactory.training.models.recurrent import LstmLanguageModel
from redactory.training.steps import Descent, PlainPhase, descend, trainable
from redactory.training.tokenizer import Tokenizer

STATE_CLIP = 1.0
"""L2 bound of the state that is noised where private text ends."""


@dataclass(frozen=True)
class Marks:
    """Which targets of ``points`` are private: bool, aligned with ``points.ids``."""

    points: EncodedPoints
    private: NDArray[np.bool_]

    def of(self, rows: Ids, batch: Batch) -> Tensor:
        """Which tuples (token read, token foretold) of ``batch`` are private: bool [B, T]."""
        offsets = self.points.offsets
        marked = torch.zeros_like(batch.real)
        marked[batch.real] = torch.from_numpy(
            np.concatenate([self.private[offsets[row] : offsets[row + 1]] for row in rows])
        ).to(marked.device)
        read = torch.cat([torch.zeros_like(marked[:, :1]), marked[:, :-1]], dim=1)
        return (marked | read) & batch.real


def read_marks(run: RunFolder, tokenizer: Tokenizer, max_tokens: int, points: EncodedPoints) -> Marks:
    """π's spans of the originals in the vault, as marks on the tokens that they touch."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for point, start, end, policy in rows_of(run.spans, ["point_id", "start", "end", "policy"]):
        if policy == "strict":
            spans.setdefault(point, []).append((start, end))
    pieces = [np.empty(0, bool)]
    for point, text in rows_of(run.vault, ["point_id", "text"]):
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

    def step(self, number: int) -> None:
        """Both halves of step ``number``, each with its own learning rate."""
        rows = self.rows_of(number)
        batch = self.points.batch(rows).to(self.network.device)
        private = self.marks.of(rows, batch)
        weights: list[Tensor] = [*trainable(self.network)]
        assert isinstance(self.network, LstmLanguageModel)
        # of the states that leave private tuples
        shape = (*private.shape, 2 * self.network.hidden_size)
        drawn = self.stream.normal("sdp state noise", number, int(np.prod(shape)))
        deviation = self.noise_multiplier * STATE_CLIP
        noise = (deviation * torch.from_numpy(drawn).view(shape)).to(weights[0])
        self.descent.optimizer.zero_grad()
        losses = selective_losses(weights, batch, private, noise)[0]
        torch.autograd.backward(losses.sum() / len(rows))
        self.descent.step(number)
        total = self._clipped(weights, batch, private, noise)
        drawn = self.stream.normal("sdp noise", number, total.numel())
        noisy = total + (self.noise_multiplier * self.clip_norm * torch.from_numpy(drawn)).to(total)
        self.private_descent = replace(self.descent, learning_rate=self.private_descent.learning_rate)
        descend(self.network, self.private_descent, noisy / self.batch_size, number)

    def _clipped(self, weights: list[Tensor], batch: Batch, private: Tensor, noise: Tensor) -> Tensor:
        """Σ of the clipped gradients of the points' private tuples, flat."""
        kept = private.any(1).nonzero().flatten()
        if not len(kept):
            return weights[0].new_zeros(sum(w.numel() for w in weights), requires_grad=False)

        def loss(given: list[Tensor], *row: Tensor) -> Tensor:
            inputs, targets, real, marked, own = (part[None] for part in row)
            return selective_losses(given, Batch(inputs, targets, real), marked, own)[1][0]

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0, 0, 0))
        parts = (batch.inputs, batch.targets, batch.real, private, noise)
        gradients = each([w.detach() for w in weights], *(part[kept] for part in parts))
        found = torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
        norms = found.norm(dim=1, keepdim=True)
        scaled = found * (self.clip_norm / norms).clamp(max=1.0)
        return torch.where(norms.isfinite() & (norms > 0.0), scaled, 0.0).sum(0)


def selective_phase(made: Ingredients, descent: Descent) -> SelectivePhase:
    """The steps of a training on the vault, its private tokens marked by π's spans."""
    own, points = made.settings, made.encode(made.run.vault)
    assert isinstance(made.tokenizer, Tokenizer)
    assert own.noise_multiplier is not None
    return SelectivePhase(
        made.network,
        descent,
        points,
        np.arange(len(points), dtype=np.int64),
        own.public_batch_size,
        made.stream,
        marks=read_marks(made.run, made.tokenizer, own.max_tokens, points),
        private_descent=Descent(descent.optimizer, own.dp_learning_rate),
        noise_multiplier=own.noise_multiplier,
        clip_norm=own.clip_norm,
    )


def selective_losses(weights: list[Tensor], batch: Batch, private: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
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
        noised = cut * (STATE_CLIP / norm).clamp(max=1.0) + noise[:, place]
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
