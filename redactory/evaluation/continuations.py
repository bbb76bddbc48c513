"""Compute the log probability of many strings after one text, as a traversal of a token trie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, product, takewhile
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from redactory import training
from redactory.foundation.errors import CheckFailed
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream

Scores = NDArray[np.float64]

_DIGITS = "0123456789"
_PADDING = -1
_DRAWS_AT_ONCE = 2_000
_STATE_BYTES_AT_ONCE = 1 << 28
_SMALLEST_BATCH, _LARGEST_BATCH = 50, 5000


def score_all_numbers(
    model: training.LanguageModel, prefix: str, digits: int, progress: Progress = ignore_progress
) -> Scores:
    """Return the natural log probability of each string of ``digits`` digits after ``prefix``: float64[10^digits].

    Entry i is i with leading zeros. Adds up the network's log probabilities of the tokenizer's tokens in float64;
    tokens at the start of all strings are left out. ``CheckFailed`` if two numbers have the same tokens, or if they
    exceed the network's context.
    """
    single = tokenize_digits(model.tokenizer.encode, prefix, digits)
    if single is None:
        return score_strings(model, prefix, [f"{n:0{digits}d}" for n in range(10**digits)], progress)
    head, columns = single
    tokens = np.fromiter(chain.from_iterable(product(*columns)), np.int32).reshape(-1, digits)
    return _score_token_rows(model, head, tokens, np.full(len(tokens), digits), progress)


def score_strings(
    model: training.LanguageModel, prefix: str, strings: Sequence[str], progress: Progress = ignore_progress
) -> Scores:
    """Return the natural log probability of each of ``strings`` after ``prefix``: float64[n], in their order.

    Computed and refused like :func:`score_all_numbers`. Scores of two calls are comparable if the strings' common
    tokens are those of ``prefix``.
    """
    encode = model.tokenizer.encode
    encoded = [encode(prefix + string) for string in strings]
    # the number of common first tokens, at most the length of `prefix`
    columns: Iterable[tuple[int, ...]] = zip(encode(prefix), *encoded, strict=False)
    shared = sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, columns))
    tokens = np.full((len(strings), max([1, *(len(ids) - shared for ids in encoded)])), _PADDING, np.int32)
    for row, ids in enumerate(encoded):
        tokens[row, : len(ids) - shared] = ids[shared:]
    # each once, in order, shorter ones first among equal beginnings: -1 is below every token
    distinct, places = np.unique(tokens, axis=0, return_inverse=True)
    lengths = (distinct != _PADDING).sum(axis=1)
    if (lengths < 1).any() or len(distinct) != len(set(strings)):
        raise CheckFailed("canaries: the model's tokenizer gives different candidates the same tokens")
    head = encoded[0][:shared] if encoded else []
    return _score_token_rows(model, head, distinct, lengths, progress)[places.reshape(-1)]


def tokenize_digits(
    encode: Callable[[str], list[int]], prefix: str, digits: int
) -> tuple[list[int], list[list[int]]] | None:
    """Return the tokens of ``prefix``, and the token of each digit at each position: [digits][10].

    None if the tokenizer does not give every digit its own token after ``prefix``, in every three digits at every
    position: a tokenizer that joins digits joins some two or three of them.
    """
    encoded = [encode(prefix + digit * digits) for digit in _DIGITS]
    head = encoded[0][:-digits]
    if not all(len(ids) == len(head) + digits and ids[: len(head)] == head for ids in encoded):
        return None
    tokens = [list(position) for position in zip(*(ids[-digits:] for ids in encoded), strict=True)]
    width = min(digits, 3)
    for three in (f"{number:0{width}d}" for number in range(10**width)):
        for position in range(digits - width + 1):
            number = (three[:1] * position + three).ljust(digits, three[-1])
            if encode(prefix + number) != head + [tokens[at][int(d)] for at, d in enumerate(number)]:
                return None
    return (head, tokens) if all(len(set(position)) == len(_DIGITS) for position in tokens) else None


class SampledNumbers(NamedTuple):
    """The natural log of each drawn number's probability, under the model and as it was drawn."""

    model_log_probs: Scores
    sampling_log_probs: Scores


def sample_numbers(
    model: training.LanguageModel, prefix: str, digits: int, count: int, stream: RandomStream
) -> SampledNumbers | None:
    """Draw ``count`` numbers after ``prefix``, each digit by the model's probabilities of the ten digits.

    None if the tokenizer joins digits.
    """
    import torch

    single = tokenize_digits(model.tokenizer.encode, prefix, digits)
    if single is None:
        return None
    head, columns = single
    uniform = stream.uniform("numbers of the model", 0, count * digits).reshape(count, digits)
    log_p, log_q = np.zeros(count), np.zeros(count)
    with torch.inference_mode():
        first, state, device = _run_model_on_prefix(model, head)
        at_once = training.numerics.compute_max_rows(first.shape[-1], _DRAWS_AT_ONCE)
        for start in range(0, count, at_once):
            rows = np.arange(start, min(start + at_once, count))
            batch_state = tuple(part.expand(len(rows), *part.shape[1:]).contiguous() for part in state)
            scores = first.expand(len(rows), -1)
            for place, column in enumerate(columns):
                of_digits = scores[:, column].double().cpu().numpy()
                shares = scipy.special.softmax(of_digits, axis=1)
                is_below = shares.cumsum(1) < uniform[rows, place][:, None]
                chosen = np.arange(len(rows)), is_below.sum(1).clip(max=len(_DIGITS) - 1)
                log_p[rows] += of_digits[chosen]
                log_q[rows] += np.log(shares[chosen])
                if place + 1 < digits:
                    read = torch.from_numpy(np.asarray(column, np.int64)[chosen[1]]).to(device)
                    scores, batch_state = model.network.step(read, batch_state)
    return SampledNumbers(log_p, log_q)


def _run_model_on_prefix(model: training.LanguageModel, prefix_tokens: Sequence[int]) -> tuple[Any, Any, Any]:
    import torch

    network = model.network.eval()
    device = next(network.parameters()).device
    state = network.make_initial_state(1)
    for token in (model.tokenizer.begin_id, *prefix_tokens):
        log_probs, state = network.step(torch.tensor([token], device=device), state)
    return log_probs, state, device


def _score_token_rows(
    model: training.LanguageModel,
    prefix_tokens: list[int],
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int64],
    progress: Progress,
) -> Scores:
    """Return the log probability of each row ``tokens[i, : lengths[i]]``; rows with the same beginning are adjacent."""
    import torch

    scores, done = np.zeros(len(tokens)), 0

    def score_subtree(depth: int, rows: NDArray[np.int64], prefix: NDArray[np.int64], state: Any) -> None:
        """Add all tokens after ``depth`` of the strings ``rows``.

        ``prefix`` [rows] is the row of ``state`` for the tokens before. Rows of one prefix are adjacent, as are those
        of one token under it. Log probabilities are not kept while deeper ones are computed.
        """
        nonlocal done
        column = tokens[rows, depth]
        is_longer = lengths[rows] > depth + 1
        if ended := len(rows) - int(is_longer.sum()):
            done += ended
            progress("canary exposure", done, len(scores), "candidates")
        rows, prefix, column = rows[is_longer], prefix[is_longer], column[is_longer]
        if not len(rows):
            return
        new = np.append(True, (prefix[1:] != prefix[:-1]) | (column[1:] != column[:-1]))
        first, child = np.flatnonzero(new), np.cumsum(new) - 1
        ends = np.append(first, len(rows))
        for start in range(0, len(first), batch):
            chunk_starts = first[start : start + batch]
            below = slice(chunk_starts[0], ends[start + len(chunk_starts)])
            parents = to_index_tensor(prefix[chunk_starts])
            next_log_probs, new_state = model.network.step(
                to_index_tensor(column[chunk_starts]), tuple(part[parents] for part in state)
            )
            add_scores(depth + 1, rows[below], child[below] - start, next_log_probs)
            del next_log_probs
            score_subtree(depth + 1, rows[below], child[below] - start, new_state)

    def add_scores(depth: int, rows: NDArray[np.int64], prefix: NDArray[np.int64], log_probs: Any) -> None:
        """Add the token at ``depth`` of the strings ``rows``, from the row ``prefix`` of ``log_probs`` [B, V]."""
        positions = to_index_tensor(prefix), to_index_tensor(tokens[rows, depth])
        scores[rows] += log_probs[positions].double().cpu().numpy()

    def to_index_tensor(values: NDArray[Any]) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(device)

    read, context = len(prefix_tokens) + 1, getattr(model.network, "context", None)
    if context is not None and read + tokens.shape[1] - 1 > context:
        raise CheckFailed(f"canaries: template and number exceed the model's context of {context} tokens")
    with torch.inference_mode():
        log_probs, state, device = _run_model_on_prefix(model, prefix_tokens)
        batch = _compute_batch_size(log_probs.shape[-1], state, read, tokens.shape[1])
        rows = np.arange(len(tokens))
        add_scores(0, rows, np.zeros_like(rows), log_probs)
        score_subtree(0, rows, np.zeros_like(rows), state)
    return scores


def _compute_batch_size(vocabulary: int, state: Sequence[Any], prefix_length: int, extra_tokens: int) -> int:
    row: int = sum(math.prod(part.shape[1:]) * part.element_size() for part in state)
    # a cache has grown by `extra_tokens` positions at the deepest prefixes
    row = max(row * (prefix_length + extra_tokens) // prefix_length, 1)
    most = training.numerics.compute_max_rows(vocabulary, _LARGEST_BATCH)
    return min(most, max(_SMALLEST_BATCH, _STATE_BYTES_AT_ONCE // row))
