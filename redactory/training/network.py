"""The language model of the CRT paper (appendix A.3): one LSTM layer over learnt embeddings."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.stream import RandomStream
from redactory.training.points import Batch
from redactory.training.tape import Tape

State = tuple[Tensor, Tensor]


class LstmLanguageModel(nn.Module):
    """Embedding [V, E], one LSTM layer of H units, output layer [V, H]; the state is zero before a point.

    Formal guarantees: no operation mixes two rows of a batch, and what a row predicts at a place
    depends on that row's tokens up to it only; the gradient of a point is a function of the point
    and the parameters (``docs/guarantees.md``, "Side channels", items 6 and 11).
    """

    def __init__(self, vocabulary: int, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding_size)
        self.lstm = nn.LSTM(embedding_size, hidden_size, batch_first=True)
        self.output = nn.Linear(hidden_size, vocabulary)

    @torch.no_grad()
    def initialise(self, stream: RandomStream) -> None:
        """Draw every parameter from ``stream``: uniform within ±1/√H, embeddings within ±0.1."""
        for index, (name, parameter) in enumerate(self.named_parameters()):
            scale = 0.1 if name == "embedding.weight" else 1.0 / math.sqrt(self.lstm.hidden_size)
            draws = (2.0 * stream.uniform("initialise", 0, parameter.numel(), index) - 1.0) * scale
            parameter.copy_(torch.from_numpy(draws).view_as(parameter))

    def hidden(self, inputs: Tensor) -> Tensor:
        """Outputs of the LSTM layer for ids [B, T]: [B, T, H], the state zero before each row."""
        states: Tensor = self.lstm(self.embedding(inputs))[0]
        return states

    def token_losses(self, batch: Batch) -> Tensor:
        """−log probability (nats) of each real target, [number of real targets], row by row."""
        logits = self.output(self.hidden(batch.inputs)[batch.real])
        return F.cross_entropy(logits, batch.targets[batch.real], reduction="none")

    def recorded_losses(self, batch: Batch, tape: Tape) -> Tensor:
        """The loss of each point, [B], with every layer on ``tape``: the sum over its real targets."""
        embedded = tape.embedding("embedding.weight", batch.inputs)
        gates = tape.linear("lstm.weight_ih_l0", "lstm.bias_ih_l0", embedded)
        states = self._recurrence(gates)
        before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], dim=1)
        tape.also_linear("lstm.weight_hh_l0", "lstm.bias_hh_l0", before)
        logits = tape.linear("output.weight", "output.bias", states)
        losses = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
        padded = batch.real.logical_not()
        return losses.view_as(batch.targets).masked_fill(padded, 0.0).sum(1)

    def _recurrence(self, gates: Tensor) -> Tensor:
        """The LSTM's states [B, T, H] from the input's share of its gates [B, T, 4H]."""
        weight = self.get_parameter("lstm.weight_hh_l0").detach()
        bias = self.get_parameter("lstm.bias_hh_l0").detach()
        h = c = gates.new_zeros(gates.shape[0], self.lstm.hidden_size)
        states = []
        for share in torch.unbind(gates, 1):
            take, keep, new, show = (share + F.linear(h, weight, bias)).chunk(4, 1)
            c = keep.sigmoid() * c + take.sigmoid() * new.tanh()
            h = show.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, 1)

    def initial_state(self, batch: int) -> State:
        """The zero state (h, c), each [batch, H]."""
        zeros = self.embedding.weight.new_zeros(batch, self.lstm.hidden_size)
        return zeros, zeros

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token a row, ids [B]: log probabilities (nats) of the next [B, V], and the new state."""
        h, c = state
        output, (h, c) = self.lstm(self.embedding(ids)[:, None], (h[None].contiguous(), c[None].contiguous()))
        return F.log_softmax(self.output(output[:, 0]), -1), (h[0], c[0])
