"""Language models made by hand: one that says a text by heart, one that knows nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.evaluation.small_model import CharacterTokenizer


class WritingTokenizer(CharacterTokenizer):
    """Characters, and back to text."""

    def decode(self, ids: list[int]) -> str:
        from tests.evaluation.small_model import _CHARACTERS

        return "".join(_CHARACTERS[number - 2] for number in ids if number > 1)


class ParrotNetwork(nn.Module):
    """Goes on with ``text`` wherever the last ``memory`` tokens read stand in it, with probability ``sure``.

    Begun with nothing, it starts at any of ``starts``; all else is uniform.  The state holds the tokens read.
    """

    def __init__(self, texts: list[str], sure: float, memory: int = 3) -> None:
        super().__init__()
        self.device_of = nn.Parameter(torch.zeros(1))
        tokenizer = WritingTokenizer()
        self._size, self._sure, self._memory = tokenizer.size, sure, memory
        self._known = [[0, *tokenizer.encode(text), 1] for text in texts]

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        return (torch.full((batch, self._memory), -1),)

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
            found += [
                known[i + len(tail)]
                for i in range(len(known) - len(tail))
                if known[i : i + len(tail)] == tail
            ]
        return found


@dataclass
class Parrot:
    """The part of ``redactory.training.LanguageModel`` that attacks use."""

    network: ParrotNetwork
    tokenizer: WritingTokenizer

    @classmethod
    def of(cls, texts: list[str], sure: float) -> Parrot:
        """A model that knows ``texts`` by heart, or with ``sure`` 0 nothing."""
        return cls(ParrotNetwork(texts, sure), WritingTokenizer())
