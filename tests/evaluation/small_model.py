"""Language models small enough to be asked a thousand times: a tiny LSTM, and one that parrots."""

from __future__ import annotations

import string
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from redactory.training.models.network import LanguageNetwork

_CHARACTERS = string.digits + string.ascii_letters + " :."


class CharacterTokenizer:
    """Every character a token; begin is 0, end is 1."""

    begin_id, end_id, size = 0, 1, len(_CHARACTERS) + 2

    def encode(self, text: str) -> list[int]:
        return [_CHARACTERS.index(character) + 2 for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(_CHARACTERS[number - 2] for number in ids if number > 1)


class SmallLstm(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(vocabulary, 12)
        self.lstm = nn.LSTM(12, 24, batch_first=True)
        self.output = nn.Linear(24, vocabulary)
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        return torch.log_softmax(self.output(self.lstm(self.embedding(ids))[0]), -1)

    def make_initial_state(self, batch: int) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(batch, 24, dtype=torch.float64)
        return zeros, zeros

    read_tokens = LanguageNetwork.read_tokens

    def step(self, ids: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = state
        out, (h, c) = self.lstm(self.embedding(ids)[:, None], (h[None].contiguous(), c[None].contiguous()))
        return torch.log_softmax(self.output(out[:, 0]), -1), (h[0], c[0])


@dataclass
class SmallModel:
    """The part of ``redactory.training.LanguageModel`` that evaluation uses."""

    tokenizer: CharacterTokenizer
    network: SmallLstm

    def compute_token_log_probs(self, texts: list[str]) -> list[NDArray[np.float64]]:
        return [self._score(text) for text in texts]

    @torch.no_grad()
    def _score(self, text: str) -> NDArray[np.float64]:
        ids = self.tokenizer.encode(text)
        log_probs = self.network(torch.tensor([[self.tokenizer.begin_id, *ids]]))[0]
        return log_probs.gather(1, torch.tensor([*ids, self.tokenizer.end_id])[:, None])[:, 0].numpy()


class ParrotNetwork(nn.Module):
    """Goes on with ``text`` wherever the last ``memory`` tokens read stand in it, with probability ``sure``.

    Begun with nothing, it starts at any of ``starts``; all else is uniform.  The state holds the tokens read.
    """

    def __init__(self, texts: list[str], sure: float, memory: int = 3) -> None:
        super().__init__()
        self.device_of = nn.Parameter(torch.zeros(1))
        tokenizer = CharacterTokenizer()
        self._size, self._sure, self._memory = tokenizer.size, sure, memory
        self._known = [[0, *tokenizer.encode(text), 1] for text in texts]

    def make_initial_state(self, batch: int) -> tuple[Tensor, ...]:
        return (torch.full((batch, self._memory), -1),)

    read_tokens = LanguageNetwork.read_tokens

    def step(self, ids: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        read = torch.cat([state[0][:, 1:], ids[:, None]], 1)
        probabilities = torch.full((len(ids), self._size), (1.0 - self._sure) / self._size)
        for row, tail in enumerate(read.tolist()):
            after = self._after([token for token in tail if token >= 0])
            share = self._sure / len(after) if after else 0.0
            for token in after:
                probabilities[row, token] += share
            probabilities[row] /= probabilities[row].sum()
        return probabilities.double().log(), (read,)

    def _after(self, tail: list[int]) -> list[int]:
        found = []
        for known in self._known:
            found += [known[i + len(tail)] for i in range(len(known) - len(tail)) if known[i : i + len(tail)] == tail]
        return found


@dataclass
class Parrot:
    """The part of ``redactory.training.LanguageModel`` that attacks use."""

    network: ParrotNetwork
    tokenizer: CharacterTokenizer

    @classmethod
    def of(cls, texts: list[str], sure: float) -> Parrot:
        """A model that knows ``texts`` by heart, or with ``sure`` 0 nothing."""
        return cls(ParrotNetwork(texts, sure), CharacterTokenizer())
