"""The log probability of many strings after one text: a walk over their tokens as a trie.

A network's state after a prefix (a recurrent state, or a transformer's cache of keys and values) is all that
the next token needs, so each prefix that strings share is read once: the 10^n strings of n digits cost
(10^n - 1)/9 steps of the network in place of n·10^n.  The states of one path of chunks lie in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.tokenised import Tokenised, every_number, of_strings
from redactory.foundation.errors import CheckFailed
from redactory.foundation.progress import Progress, silent

if TYPE_CHECKING:
    from redactory.training import LanguageModel

_LOGITS_AT_ONCE = 1 << 23
_STATE_BYTES_AT_ONCE = 1 << 28
_SMALLEST_BATCH, _LARGEST_BATCH = 50, 5000
_WORK = "canary exposure"


def continuation_log_probs(
    model: LanguageModel, before: str, digits: int, progress: Progress = silent
) -> NDArray[np.float64]:
    """Natural log probability of each string of ``digits`` digits after ``before``: float64[10^digits].

    Entry i is the string of i with leading zeros.  Added up in float64 from the network's own log
    probabilities of the tokens that the tokenizer gives, whatever it makes of a number; of tokens that all
    the strings begin with, none is added.  ``CheckFailed`` where the tokenizer gives two numbers the same
    tokens, or where they do not fit the network's context.
    """
    return _log_probs(model, every_number(model.tokenizer.encode, before, digits), progress)


def given_log_probs(
    model: LanguageModel, before: str, strings: Sequence[str], progress: Progress = silent
) -> NDArray[np.float64]:
    """Natural log probability of each of ``strings`` after ``before``: float64[n], in their order.

    Added up as by :func:`continuation_log_probs`; refused as there.  Scores of two calls may be compared
    where the strings' common tokens are those of ``before``.
    """
    return _log_probs(model, of_strings(model.tokenizer.encode, before, strings), progress)


def _log_probs(model: LanguageModel, strings: Tokenised, progress: Progress) -> NDArray[np.float64]:
    import torch

    network = model.network
    head = [model.tokenizer.begin_id, *strings.head]
    context = getattr(network, "context", None)
    if context is not None and len(head) + strings.tokens.shape[1] - 1 > context:
        raise CheckFailed(f"canaries: template and number do not fit the model's context of {context} tokens")
    network.eval()
    device = next(network.parameters()).device
    with torch.inference_mode():
        state = network.initial_state(1)
        for token in head:
            log_probs, state = network.step(torch.tensor([token], device=device), state)
        batch = _batch(log_probs.shape[-1], state, len(head), strings.tokens.shape[1])
        walk = _Walk(network.step, strings, np.zeros(len(strings.tokens)), batch, progress, device)
        rows = np.arange(len(strings.tokens))
        walk.descend(0, rows, np.zeros(len(rows), np.int64), log_probs, state)
    found = np.empty_like(walk.scores)
    found[strings.order] = walk.scores
    return found


def _batch(vocabulary: int, state: Sequence[Any], read: int, more: int) -> int:
    """Prefixes that are read at once: neither their logits nor their states may fill the memory."""
    row: int = sum(math.prod(part.shape[1:]) * part.element_size() for part in state)
    # a cache has grown by `more` places at the deepest prefixes
    row = max(row * (read + more) // read, 1)
    fitting: int = min(_LARGEST_BATCH, _LOGITS_AT_ONCE // vocabulary, _STATE_BYTES_AT_ONCE // row)
    return max(_SMALLEST_BATCH, fitting)


@dataclass
class _Walk:
    """``step`` of the network; ``scores`` [n] are added to, in the order of ``strings.tokens``."""

    step: Callable[..., Any]
    strings: Tokenised
    scores: NDArray[np.float64]
    batch: int
    progress: Progress
    device: Any
    done: int = 0

    def descend(
        self, depth: int, rows: NDArray[np.int64], prefix: NDArray[np.int64], log_probs: Any, state: Any
    ) -> None:
        """Add the token at ``depth`` of the strings ``rows``, and all behind it.

        ``prefix`` [rows] says which row of ``log_probs`` [B, V] and of ``state`` stands for the tokens
        before; the rows of one prefix stand together, and so do those of one token under it.
        """
        column = self.strings.tokens[rows, depth]
        places = self._on_device(prefix), self._on_device(column)
        self.scores[rows] += log_probs[places].double().cpu().numpy()
        longer = self.strings.lengths[rows] > depth + 1
        self._told(len(rows) - int(longer.sum()))
        rows, prefix, column = rows[longer], prefix[longer], column[longer]
        if not len(rows):
            return
        new = np.append(True, (prefix[1:] != prefix[:-1]) | (column[1:] != column[:-1]))
        first, child = np.flatnonzero(new), np.cumsum(new) - 1
        ends = np.append(first, len(rows))
        for start in range(0, len(first), self.batch):
            some = first[start : start + self.batch]
            below = slice(some[0], ends[start + len(some)])
            parents = self._on_device(prefix[some])
            after = self.step(self._on_device(column[some]), tuple(part[parents] for part in state))
            self.descend(depth + 1, rows[below], child[below] - start, *after)

    def _on_device(self, values: NDArray[Any]) -> Any:
        import torch

        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(self.device)

    def _told(self, done: int) -> None:
        self.done += done
        if done:
            self.progress(_WORK, self.done, len(self.scores), "candidates")
