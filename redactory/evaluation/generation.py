"""Texts that a language model writes, sampled or the likeliest, after a prompt or without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream

if TYPE_CHECKING:
    from redactory.training import LanguageModel

_BATCH = 250


def generate(
    model: LanguageModel,
    count: int,
    max_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    prompts: Sequence[str] = (),
    progress: Progress = silent,
    top_p: float = 1.0,
) -> list[str]:
    """``count`` texts of at most ``max_tokens`` tokens, without their prompts, each up to its end token.

    Text i goes on from ``prompts[i % len(prompts)]``, or from the begin token alone; of a prompt that leaves
    no room in the network's context its end is read.  Tokens are drawn from the ``top_k`` likeliest (all by
    default), of these from the fewest that together have ``top_p``, in proportion to p^(1/``temperature``);
    0 takes the likeliest.  ``ConfigurationError`` for arguments out of range.
    What is written may be training text: keep it in memory, and tell counts only.
    """
    from redactory.training.model import logits_width
    from redactory.training.numerics import rows_at_once

    if count < 0 or max_tokens < 1 or temperature < 0 or (top_k is not None and top_k < 1):
        raise ConfigurationError("samples and temperature must be at least 0, tokens and top_k at least 1")
    if not 0.0 < top_p <= 1.0:
        raise ConfigurationError(f"top_p: must be above 0 and at most 1, got {top_p:g}")
    room = getattr(model.network, "context", None)
    if room is not None and max_tokens >= room:
        raise ConfigurationError(
            f"tokens: the model has a context of {room}; use at most {room - 1} (--tokens {room - 1})"
        )
    tokenizer, stream, texts = model.tokenizer, RandomStream.from_seed(seed), list[str]()
    encoded = [tokenizer.encode(prompt) for prompt in prompts] or [[]]
    if room is not None:
        encoded = [ids[max(0, len(ids) - (room - max_tokens)) :] for ids in encoded]
    heads = [[tokenizer.begin_id, *ids] for ids in encoded]

    def draw(log_probs: NDArray[np.float64], rows: NDArray[Any], place: int) -> NDArray[np.int64]:
        """One token for each of ``rows`` [B] from [B, V]; which rows are beside a row does not matter."""
        scores = log_probs[:, : tokenizer.size]
        if temperature == 0.0:
            return np.asarray(scores.argmax(1), np.int64)
        scores = scores / temperature
        if top_k is not None and top_k < scores.shape[1]:
            least = np.partition(scores, -top_k, axis=1)[:, [-top_k]]
            scores = np.where(scores >= least, scores, -np.inf)
        if top_p < 1.0:
            scores = np.where(_in_nucleus(scores, top_p), scores, -np.inf)
        batch, first = divmod(len(texts), _BATCH)
        uniform = stream.uniform("generation", place, _BATCH, batch)[first + rows]
        heights = np.exp(scores - scores.max(1, keepdims=True)).cumsum(1)
        return np.asarray((heights < (uniform * heights[:, -1])[:, None]).sum(1), np.int64)

    at_once = rows_at_once(logits_width(model), _BATCH)
    while len(texts) < count:
        # within the texts whose draws have one name
        ends = min(len(texts) + at_once, (len(texts) // _BATCH + 1) * _BATCH, count)
        batch_heads = [heads[i % len(heads)] for i in range(len(texts), ends)]
        # what a word looks like can depend on what stands before it
        for head, ids in zip(batch_heads, _written(model, batch_heads, max_tokens, draw), strict=True):
            texts.append(tokenizer.decode([*head, *ids])[len(tokenizer.decode(head)) :])
        progress("generation", len(texts), count, "texts")
    return texts


def _in_nucleus(scores: NDArray[np.float64], top_p: float) -> NDArray[np.bool_]:
    """Which tokens are of the fewest, the likeliest, that together have ``top_p``; bool [B, V]."""
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    order = np.argsort(-shares, axis=1, kind="stable")
    ordered = np.take_along_axis(shares, order, 1)
    # a token is in where those before it do not have as much yet: the likeliest always is
    kept = np.empty(shares.shape, bool)
    np.put_along_axis(kept, order, ordered.cumsum(1) - ordered < top_p, 1)
    return kept


def _written(
    model: LanguageModel, heads: Sequence[list[int]], max_tokens: int, draw: Callable[..., Any]
) -> list[list[int]]:
    """What follows each of ``heads``; a row reads its own head first, and leaves once it has ended."""
    import torch

    network, end = model.network.eval(), model.tokenizer.end_id
    device = next(network.parameters()).device
    found: list[list[int]] = [[] for _ in heads]
    rows = np.arange(len(heads))
    reading = np.asarray([head[0] for head in heads])
    place = 0
    with torch.inference_mode():
        state = network.initial_state(len(heads))
        while len(rows):
            log_probs, state = network.step(torch.from_numpy(reading).to(device), state)
            place += 1
            drawn = draw(log_probs.double().cpu().numpy(), rows, place)
            goes_on = np.ones(len(rows), bool)
            for at, row in enumerate(rows.tolist()):
                if place < len(heads[row]):
                    reading[at] = heads[row][place]
                    continue
                reading[at] = drawn[at]
                if drawn[at] != end:
                    found[row].append(int(drawn[at]))
                goes_on[at] = drawn[at] != end and len(found[row]) < max_tokens
            if not goes_on.all():
                kept = torch.from_numpy(np.flatnonzero(goes_on)).to(device)
                state = tuple(part[kept] for part in state)
                rows, reading = rows[goes_on], reading[goes_on]
    return found
