"""Dropout whose masks are named draws of the keyed stream: the same again when a step is replayed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from redactory.foundation.stream import RandomStream


class KeyedDropout:
    """Masks of the step that was begun last; none before the first, and none in evaluation.

    Formal guarantees: a mask is a function of the root key, the step, the layer and the point's number: never
    of a point's text, of its place in a batch or of the other points.  A mask that all points share
    (of weights, of words) is one of the step.
    """

    def __init__(self) -> None:
        self._stream: RandomStream | None = None
        self._purpose, self._step = "", 0

    def begin(self, stream: RandomStream, purpose: str, step: int) -> None:
        """Masks are those of the step (``purpose``, ``step``) from here on."""
        self._stream, self._purpose, self._step = stream, f"dropout of {purpose}", step

    def of_rows(
        self, rows: Tensor | None, widths: Sequence[int], rates: Sequence[float]
    ) -> list[Tensor | float]:
        """One mask [B, 1, width] for each width, constant over a row's places (variational dropout).

        A mask holds 0 with probability ``rate`` and 1/(1 − rate) otherwise.  ``rows`` int64 [B] are the
        points' numbers.  Where nothing is dropped the mask is the number 1.
        """
        if self._stream is None or rows is None or not any(rates):
            return [1.0] * len(widths)
        drawn = torch.stack([self._uniform(sum(widths), int(row), "rows") for row in rows])[:, None]
        pieces = torch.split(drawn, list(widths), dim=-1)
        return [_mask(piece, rate) for piece, rate in zip(pieces, rates, strict=True)]

    def shared(self, shape: tuple[int, ...], rate: float, index: int) -> Tensor | None:
        """A mask of ``shape`` that all points of the step share; ``None`` where nothing is dropped."""
        if self._stream is None or not rate:
            return None
        return _mask(self._uniform(torch.Size(shape).numel(), index, "shared").view(shape), rate)

    def _uniform(self, count: int, index: int, of: str) -> Tensor:
        assert self._stream is not None
        seed = self._stream.octets(f"{self._purpose} {of}", self._step, 8, index)
        generator = torch.Generator().manual_seed(int.from_bytes(seed, "little") >> 1)
        return torch.rand(count, generator=generator)


def _mask(uniform: Tensor, rate: float) -> Tensor:
    return (uniform >= rate).to(torch.get_default_dtype()) / (1.0 - rate)
