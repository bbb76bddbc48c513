"""The recorder of one pass: collects, for every parameter, what its examples' gradients are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.uses import Dense, Outer, Rows, Use


class Tape:
    """Listens to the layers (:class:`redactory.training.layers.recorder.Recorder`) of one pass.

    ``names`` are the trainable parameters by identity.  ``shared`` holds those that several modules
    have in common; their uses are kept as outer products, for the cross terms.
    """

    def __init__(self, names: Mapping[int, str], shared: frozenset[int]) -> None:
        self.names, self.shared = names, shared
        self.uses: dict[int, list[Use]] = {}
        self.probing = False
        self.examples = 0
        """The longest first dimension of a layer's input so far in this forward pass."""

    def outer(
        self,
        parameter: Tensor,
        left: Tensor,
        right: Tensor,
        *,
        counts: Sequence[int] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """See :class:`~redactory.training.layers.recorder.Recorder`."""
        left, right = left.detach(), right.detach()
        if counts and min(counts) == max(counts) > 0:
            left, right = (x.view(len(counts), -1, x.shape[-1]) for x in (left, right))
            counts = None
        use: Use = Outer(left, right, None if counts is None else list(counts), mask)
        if mask is None and counts is None and id(parameter) not in self.shared:
            places, sizes = left.shape[1], (left.shape[2], right.shape[2])
            if sizes[0] * sizes[1] <= places * sum(sizes):
                # No larger than its two factors, and it spares the weighted product.
                use = Dense(left.mT @ right)
        self._keep(parameter, use)

    def rows(self, parameter: Tensor, ids: Tensor, right: Tensor) -> None:
        """See :class:`~redactory.training.layers.recorder.Recorder`."""
        self._keep(parameter, Rows(ids, right.detach(), len(parameter)))

    def dense(self, parameter: Tensor, gradients: Tensor) -> None:
        """See :class:`~redactory.training.layers.recorder.Recorder`."""
        self._keep(parameter, Dense(gradients.detach()))

    def _keep(self, parameter: Tensor, use: Use) -> None:
        if id(parameter) not in self.names:
            raise ConfigurationError("a layer reported a parameter that is not one of the network's own")
        self.uses.setdefault(id(parameter), []).append(use)

    def check_examples(self, examples: int) -> None:
        """Every use must have met ``examples`` examples; else ``ConfigurationError`` naming the parameter."""
        for key, uses in self.uses.items():
            for use in uses:
                if use.examples != examples:
                    raise ConfigurationError(
                        f"{self.names[key]}: its layer met {use.examples} rows in a batch of {examples}; "
                        "the first dimension of its input must be the batch (give position ids explicitly)"
                    )
