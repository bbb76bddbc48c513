"""The log probability of every string of n digits after a text: a walk over the digits as a trie.

A recurrent model's state after a prefix is all that the next digit needs, so the 10^n strings cost
(10^n - 1)/9 steps of the network in place of n·10^n, and the states of one path of chunks lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import CheckFailed
from redactory.foundation.progress import Progress, silent

if TYPE_CHECKING:
    from redactory.training import LanguageModel

DIGITS = "0123456789"
_LOGITS_AT_ONCE = 1 << 23
_SMALLEST_BATCH, _LARGEST_BATCH = 50, 5000


def continuation_log_probs(
    model: LanguageModel, before: str, digits: int, progress: Progress = silent
) -> NDArray[np.float64]:
    """Natural log probability of each string of ``digits`` digits after ``before``: float64[10^digits].

    Entry i is the string of i with leading zeros.  Added up in float64 from the network's own log
    probabilities.  Raises ``CheckFailed`` where the tokenizer does not give every digit its own token
    after ``before``.
    """
    import torch

    head, tokens = _digit_tokens(model, before, digits)
    network = model.network
    network.eval()
    with torch.inference_mode():
        state = network.initial_state(1)
        for token in (model.tokenizer.begin_id, *head):
            log_probs, state = network.step(torch.tensor([token]), state)
        batch = max(_SMALLEST_BATCH, min(_LARGEST_BATCH, _LOGITS_AT_ONCE // log_probs.shape[-1]))
        columns = torch.tensor(tokens)
        walk = _Walk(network.step, columns, batch)
        root = np.zeros(1, dtype=np.float64), log_probs[:, columns[0]], state
        scores = np.empty(10**digits, dtype=np.float64)
        done = 0
        for leaves in walk.leaves(1, *root):
            scores[done : done + len(leaves)] = leaves
            done += len(leaves)
            progress("canary exposure", done, len(scores), "candidates")
    return scores


@dataclass(frozen=True)
class _Walk:
    """``step`` of the network, ``columns[depth]`` the ten digits' tokens at that place, prefixes a batch."""

    step: Callable[..., Any]
    columns: Any
    batch: int

    def leaves(self, depth: int, scores: NDArray[np.float64], next_digit: Any, state: Any) -> Iterator[Any]:
        """Scores of all whole strings below these prefixes, in numeric order, a piece at a time.

        ``scores`` [B] of the prefixes, ``next_digit`` [B, 10] log probabilities after them, ``state`` of
        the network there (two tensors [B, H]); ``depth`` counts the digits once the next is read.
        """
        children = (scores[:, None] + next_digit.double().numpy()).reshape(-1)
        if depth == len(self.columns):
            yield children
            return
        for first in range(0, len(children), self.batch):
            some = np.arange(first, min(first + self.batch, len(children)))
            read = self.columns[depth - 1][some % 10]
            log_probs, after = self.step(read, tuple(part[some // 10] for part in state))
            yield from self.leaves(depth + 1, children[some], log_probs[:, self.columns[depth]], after)


def _digit_tokens(model: LanguageModel, before: str, digits: int) -> tuple[list[int], list[list[int]]]:
    """Tokens of ``before``, and the token of each digit at each place: [digits][10]."""
    encode = model.tokenizer.encode
    encoded = [encode(before + digit * digits) for digit in DIGITS]
    head = encoded[0][:-digits]
    whole = all(len(ids) == len(head) + digits and ids[: len(head)] == head for ids in encoded)
    tokens = [list(place) for place in zip(*(ids[-digits:] for ids in encoded), strict=True)] if whole else []
    mixed = (DIGITS * digits)[3 : 3 + digits]
    spelled = head + [place[int(digit)] for place, digit in zip(tokens, mixed, strict=False)]
    if encode(before + mixed) != spelled or any(len(set(place)) != len(DIGITS) for place in tokens):
        raise CheckFailed("canaries: the model's tokenizer does not give each digit a token of its own")
    return head, tokens
