"""Generate texts with a language model, sampled or likeliest, with or without a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from redactory import training
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream

_BATCH_TEXTS = 250


def generate_texts(
    model: training.LanguageModel,
    count: int,
    max_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    prompts: Sequence[str] = (),
    progress: Progress = ignore_progress,
    top_p: float = 1.0,
) -> list[str]:
    """Generate ``count`` texts of at most ``max_tokens`` tokens, without their prompts, up to the end token.

    Text i continues ``prompts[i % len(prompts)]``, or the begin token if there are none. A prompt too long for the
    network's context is truncated on the left. Tokens are drawn from the ``top_k`` likeliest (default all), of these
    from the smallest set with total probability ``top_p``, in proportion to p^(1/``temperature``); 0 takes the
    likeliest. ``ConfigurationError`` for arguments out of range. The texts may contain training text: keep them in
    memory, and report only counts.
    """
    if count < 0 or max_tokens < 1 or temperature < 0 or (top_k is not None and top_k < 1):
        raise ConfigurationError("samples and temperature must be at least 0, tokens and top_k at least 1")
    if not 0.0 < top_p <= 1.0:
        raise ConfigurationError(f"top_p: must be above 0 and at most 1, got {top_p:g}")
    context = getattr(model.network, "context", None)
    if context is not None and max_tokens >= context:
        raise ConfigurationError(
            f"tokens: the model has a context of {context}; use at most {context - 1} (--tokens {context - 1})"
        )
    tokenizer, stream, texts = model.tokenizer, RandomStream.from_seed(seed), list[str]()
    encoded = [tokenizer.encode(prompt) for prompt in prompts] or [[]]
    if context is not None:
        encoded = [new_ids[max(0, len(new_ids) - (context - max_tokens)) :] for new_ids in encoded]
    heads = [[tokenizer.begin_id, *new_ids] for new_ids in encoded]

    def draw_tokens(log_probs: NDArray[np.float64], rows: NDArray[Any], position: int) -> NDArray[np.int64]:
        """Draw one token for each of ``rows`` [B] from [B, V], independent of the other rows."""
        scores = log_probs[:, : tokenizer.size]
        if temperature == 0.0:
            return np.asarray(scores.argmax(1), np.int64)
        scores = _restrict_to_likeliest(scores / temperature, top_k, top_p)
        batch, first = divmod(len(texts), _BATCH_TEXTS)
        uniform = stream.uniform("generation", position, _BATCH_TEXTS, batch)[first + rows]
        heights = np.exp(scores - scores.max(1, keepdims=True)).cumsum(1)
        return np.asarray((heights < (uniform * heights[:, -1])[:, None]).sum(1), np.int64)

    at_once = training.numerics.compute_max_rows(training.model.get_logits_width(model), _BATCH_TEXTS)
    while len(texts) < count:
        # stay within the texts whose draws share a name
        ends = min(len(texts) + at_once, (len(texts) // _BATCH_TEXTS + 1) * _BATCH_TEXTS, count)
        batch_heads = [heads[i % len(heads)] for i in range(len(texts), ends)]
        # decode with the prompt, because a word's form can depend on the text before it
        generated = _generate_batch(model, batch_heads, max_tokens, draw_tokens)
        for head, new_ids in zip(batch_heads, generated, strict=True):
            texts.append(tokenizer.decode([*head, *new_ids])[len(tokenizer.decode(head)) :])
        progress("generation", len(texts), count, "texts")
    return texts


def _restrict_to_likeliest(scores: NDArray[np.float64], top_k: int | None, top_p: float) -> NDArray[np.float64]:
    """Exclude tokens outside the ``top_k`` likeliest, then outside the smallest likeliest set with total ``top_p``."""
    if top_k is not None and top_k < scores.shape[1]:
        kth_score = np.partition(scores, -top_k, axis=1)[:, [-top_k]]
        scores = np.where(scores >= kth_score, scores, -np.inf)
    if top_p == 1.0:
        return scores
    shares = scipy.special.softmax(scores, axis=1)
    order = np.argsort(-shares, axis=1, kind="stable")
    ordered = np.take_along_axis(shares, order, 1)
    # include a token if those before it have less: the likeliest is always in
    is_in_nucleus = np.empty(shares.shape, bool)
    np.put_along_axis(is_in_nucleus, order, ordered.cumsum(1) - ordered < top_p, 1)
    return np.where(is_in_nucleus, scores, -np.inf)


def _generate_batch(
    model: training.LanguageModel, prompts: Sequence[list[int]], max_tokens: int, draw_tokens: Callable[..., Any]
) -> list[list[int]]:
    """Generate after each of ``prompts``; a row reads its own prompt first, and leaves once it ends."""
    import torch

    network, end = model.network.eval(), model.tokenizer.end_id
    device = next(network.parameters()).device
    generated: list[list[int]] = [[] for _ in prompts]
    rows = np.arange(len(prompts))
    position = min(map(len, prompts)) - 1
    reading = np.asarray([prompt[position] for prompt in prompts])
    with torch.inference_mode():
        common = torch.tensor([prompt[:position] for prompt in prompts], dtype=torch.int64, device=device)
        state = network.read_tokens(common, network.make_initial_state(len(prompts)))
        while len(rows):
            log_probs, state = network.step(torch.from_numpy(reading).to(device), state)
            position += 1
            drawn = draw_tokens(log_probs.double().cpu().numpy(), rows, position)
            is_active = np.ones(len(rows), bool)
            for index, row in enumerate(rows.tolist()):
                if position < len(prompts[row]):
                    reading[index] = prompts[row][position]
                    continue
                reading[index] = drawn[index]
                if drawn[index] != end:
                    generated[row].append(int(drawn[index]))
                is_active[index] = drawn[index] != end and len(generated[row]) < max_tokens
            if not is_active.all():
                active_rows = torch.from_numpy(np.flatnonzero(is_active)).to(device)
                state = tuple(part[active_rows] for part in state)
                rows, reading = rows[is_active], reading[is_active]
    return generated
