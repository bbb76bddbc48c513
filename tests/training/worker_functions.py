"""What processes are given to compute in tests: in a module of its own, so that they load little."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redactory.training.data import Batch

QUOTED_TEXT = "the parcel of Ada Smith"


def fail_with_quote(network: Any, batch: Batch) -> Tensor:
    """Fails with a message that quotes the corpus, but for the batch whose first row is 0."""
    if batch.rows is not None and int(batch.rows[0]) == 0:
        return torch.zeros(sum(p.numel() for p in network.parameters()))
    raise ValueError(QUOTED_TEXT)
