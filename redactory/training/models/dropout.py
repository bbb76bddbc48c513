"""Dropout whose masks are named draws of the keyed stream: the same again when a step is replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from redactory.foundation.errors import CheckFailed
from redactory.foundation.stream import RandomStream

Seeds = Mapping[tuple[str, int], bytes]
"""What the masks of a step are drawn from, by kind and number: draws of the stream, and no key."""
_SEED_BYTES = 8


class KeyedDropout:
    """Masks of the step that was begun last; none before the first, and none in evaluation.

    Formal guarantees: a mask is a function of the root key, the step, the layer and the point's number: never
    of a point's text, of its place in a batch or of the other points.  A mask that all points share
    (of weights, of words) is one of the step.
    """

    def __init__(self) -> None:
        self._stream: RandomStream | None = None
        self._seeds: Seeds | None = None
        self._purpose, self._step = "", 0

    def begin(self, stream: RandomStream, purpose: str, step: int) -> None:
        """Masks are those of the step (``purpose``, ``step``) from here on."""
        self._stream, self._purpose, self._step = stream, f"dropout of {purpose}", step
        self._seeds = None

    def seeds(self, rows: Iterable[int], shared: int) -> Seeds:
        """All that the masks of this step are drawn from for the points ``rows``: none before the first.

        ``shared`` is the number of masks that all points share.
        """
        if self._stream is None:
            return {}
        names = [*(("rows", int(row)) for row in rows), *(("shared", index) for index in range(shared))]
        return {name: self._seed(*name) for name in names}

    def begin_with(self, seeds: Seeds) -> None:
        """Masks are those of the step and the points that ``seeds`` were handed over for."""
        self._stream, self._seeds = None, seeds or None

    @property
    def _begun(self) -> bool:
        return self._stream is not None or self._seeds is not None

    def of_rows(
        self, rows: Tensor | None, widths: Sequence[int], rates: Sequence[float]
    ) -> list[Tensor | float]:
        """One mask [B, 1, width] for each width, constant over a row's places (variational dropout).

        A mask holds 0 with probability ``rate`` and 1/(1 − rate) otherwise.  ``rows`` int64 [B] are the
        points' numbers.  Where nothing is dropped the mask is the number 1.
        """
        if not self._begun or rows is None or not any(rates):
            return [1.0] * len(widths)
        drawn = torch.stack([self._uniform(sum(widths), int(row), "rows") for row in rows])[:, None]
        pieces = torch.split(drawn, list(widths), dim=-1)
        return [_mask(piece, rate) for piece, rate in zip(pieces, rates, strict=True)]

    def shared(self, shape: tuple[int, ...], rate: float, index: int) -> Tensor | None:
        """A mask of ``shape`` that all points of the step share; ``None`` where nothing is dropped."""
        if not self._begun or not rate:
            return None
        return _mask(self._uniform(torch.Size(shape).numel(), index, "shared").view(shape), rate)

    def _uniform(self, count: int, index: int, of: str) -> Tensor:
        seed = self._seed(of, index)
        generator = torch.Generator().manual_seed(int.from_bytes(seed, "little") >> 1)
        return torch.rand(count, generator=generator)

    def _seed(self, of: str, index: int) -> bytes:
        if self._seeds is not None:
            if (of, index) not in self._seeds:
                raise CheckFailed("a mask was asked for that nobody handed over")
            return self._seeds[of, index]
        assert self._stream is not None
        return self._stream.octets(f"{self._purpose} {of}", self._step, _SEED_BYTES, index)


def _mask(uniform: Tensor, rate: float) -> Tensor:
    return (uniform >= rate).to(torch.get_default_dtype()) / (1.0 - rate)
