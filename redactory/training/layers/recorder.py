"""How layers say what the gradient of each example is made of, while somebody listens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor


class Recorder(Protocol):
    """Listens to one forward and one backward pass.  B examples, T uses of a layer in each.

    A layer that meets a recorder in its forward pass reports to it in its backward pass, and hands
    autograd no gradient for the parameters that it reported on.
    """

    probing: bool
    """A backward pass to be repeated: layers must leave what they saved as it is."""

    def outer(
        self,
        parameter: Tensor,
        left: Tensor,
        right: Tensor,
        *,
        counts: Sequence[int] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Example i's gradient of ``parameter`` [L, R] is mask ∘ Σ_t left_it right_itᵀ.

        ``left`` [B, T, L] and ``right`` [B, T, R]; with ``counts`` they are [Σ counts, L] and
        [Σ counts, R], example after example.  One of the two is the gradient of the layer's output.
        """

    def rows(self, parameter: Tensor, ids: Tensor, right: Tensor) -> None:
        """Example i's gradient of ``parameter`` [V, E] is ``right``_it [B, T, E] on row ``ids``_it [B, T]."""

    def dense(self, parameter: Tensor, gradients: Tensor) -> None:
        """``gradients`` [B, \\*shape of parameter] are the examples' gradients."""


_LISTENING: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


def recorder() -> Recorder | None:
    """Who listens to this forward pass, if anybody."""
    return _LISTENING.get()


@contextmanager
def listening(to: Recorder) -> Iterator[None]:
    """Layers whose forward pass runs in this block report to ``to``."""
    token = _LISTENING.set(to)
    try:
        yield
    finally:
        _LISTENING.reset(token)


@contextmanager
def not_listening() -> Iterator[None]:
    """Layers whose forward pass runs in this block report to nobody."""
    token = _LISTENING.set(None)
    try:
        yield
    finally:
        _LISTENING.reset(token)
