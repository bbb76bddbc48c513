"""Small networks of every kind of layer, and clipping by plain autograd, one point at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.training.clipping.layers import Lstm, compute_vocabulary_losses

VOCABULARY = 11
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


@dataclass(frozen=True)
class Data:
    """``inputs``, ``targets`` and ``real``, each [B, T]."""

    inputs: Tensor
    targets: Tensor
    real: Tensor

    def row(self, row: int) -> Data:
        """One point, without its padding."""
        length = int(self.real[row].sum())
        return Data(*(x[row : row + 1, :length] for x in (self.inputs, self.targets, self.real)))


def data_of(lengths: list[int], seed: int, padding: int = 0) -> Data:
    """Random tokens for points of ``lengths``, padded by ``padding`` more than there must be."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths, default=1) + padding)
    real = torch.arange(shape[1])[None] < torch.tensor(lengths, dtype=torch.long)[:, None]
    inputs, targets = (torch.randint(VOCABULARY, shape, generator=generator) for _ in range(2))
    return Data(inputs, targets, real)


def losses_of(logits: Tensor, data: Data) -> Tensor:
    """The loss of each point, by torch's own cross entropy."""
    each = F.cross_entropy(logits.flatten(0, 1), data.targets.flatten(), reduction="none")
    return each.view_as(data.targets).masked_fill(data.real.logical_not(), 0.0).sum(1)


class Net(nn.Module):
    """Embedding, ``body`` on [B, T, width], output layer; the loss by ``reduction``."""

    def __init__(self, body: nn.Module, width: int, tied: bool, fused: bool, reduction: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.body = body
        self.output = nn.Linear(width, VOCABULARY, bias=not tied)
        if tied:
            self.output.weight = self.embedding.weight
        self.fused, self.reduction = fused, reduction

    def losses(self, data: Data) -> Tensor:
        """The loss of each point, [B]."""
        states = self.body(self.embedding(data.inputs))
        states = states[0] if isinstance(states, tuple) else states
        total = (
            compute_vocabulary_losses(self.output, states, data.targets, data.real)
            if self.fused
            else losses_of(self.output(states), data)
        )
        return total / data.real.sum(1) if self.reduction == "mean" else total


class MaskedLstm(nn.Module):
    """Our LSTM with a fixed mask on the recurrent weights of every layer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = Lstm(width, width, layers)
        self.masks = [2.0 * (torch.rand(4 * width, width) < 0.5) for _ in range(layers)]

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x, [mask.to(x) for mask in self.masks])


class Block(nn.Module):
    """Causal attention and a feed-forward part, one norm of each kind, and one layer used twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.places = nn.Embedding(40, width)
        self.first, self.second = nn.LayerNorm(width), nn.RMSNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.back = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(torch.arange(x.shape[1]).expand(x.shape[:2]))
        q, k, v = self.mix(self.first(x)).chunk(3, -1)
        x = x + self.back(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.back(self.second(x).tanh())


class Own(nn.Module):
    """A module of no known kind: parameters of its own, a linear layer inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.sin()) * self.scale + x.cumsum(1)


class LastFirst(nn.Module):
    """A GRU, which the engine does not know."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


BODIES: dict[str, Callable[[int, int], nn.Module]] = {
    "our LSTM": lambda width, layers: Lstm(width, width, layers),
    "torch's LSTM": lambda width, layers: nn.LSTM(width, width, layers, batch_first=True),
    "LSTM without biases": lambda width, layers: nn.LSTM(width, width, layers, bias=False, batch_first=True),
    "LSTM with dropped weights": MaskedLstm,
    "transformer": lambda width, layers: nn.Sequential(*(Block(width) for _ in range(layers))),
    "own module": lambda width, layers: nn.Sequential(*(Own(width) for _ in range(layers))),
    "GRU": lambda width, layers: LastFirst(width),
    "both directions": lambda width, layers: nn.LSTM(width, width // 2, bidirectional=True, batch_first=True),
}


def network_of(
    body: str,
    *,
    width: int = 4,
    layers: int = 1,
    tied: bool = False,
    fused: bool = True,
    reduction: str = "sum",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Net:
    """A network with ``body`` and random weights, which are on the large side."""
    torch.manual_seed(seed)
    net = Net(BODIES[body](width, layers), width, tied, fused, reduction).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5)
    return net


def gradient_of(network: nn.Module, loss: Tensor) -> Tensor:
    """∂loss/∂parameters by autograd, flat."""
    learnt = [p for p in network.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, learnt, allow_unused=True)
    pairs = zip(found, learnt, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs]).detach()


def reference(
    network: nn.Module, losses: Callable[[int], Tensor], points: int, clip_norm: float
) -> tuple[Tensor, Tensor]:
    """The clipped sum and the norms [B], from ``losses(row)``, the loss of one point alone."""
    rows = [gradient_of(network, losses(row).sum()) for row in range(points)]
    norms = torch.stack([row.double().norm() for row in rows]) if rows else torch.zeros(0)
    total = torch.zeros(sum(p.numel() for p in network.parameters() if p.requires_grad), dtype=torch.float64)
    for row, norm in zip(rows, norms, strict=True):
        total += row.double() * min(1.0, clip_norm / max(float(norm), 1e-300))
    return total, norms


def assert_equal(found: Tensor, expected: Tensor, tolerance: float, scale: float) -> None:
    """``found`` is ``expected`` to ``tolerance``, relative to its norm or to ``scale`` where terms cancel."""
    assert found.isfinite().all()
    difference = float((found.double() - expected.double()).norm())
    assert difference <= tolerance * max(float(expected.double().norm()), scale)
