"""What leaves a user: one noisy representation, and what stands beside it in clear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Purpose = Literal["train", "query"]


@dataclass(frozen=True, eq=False)
class Message:
    """One send of one slot.

    ``values`` float32 [d], [L, e] or [2, d], noisy, every one finite; ``slot`` 32 random hexadecimal digits
    that stand for one sentence in all steps; ``label`` the class's number for ``train`` and None for
    ``query``; ``encoder`` the sha256 of the encoder.

    Formal guarantees: all but ``values`` is free of the sentence: slot and order are drawn, the step counts,
    the label is in clear by the definition of the unit, or hidden by drawn ones (``docs/guarantees.md``,
    "Local differential privacy").
    """

    purpose: Purpose
    slot: str
    step: int
    label: int | None
    values: NDArray[np.float32]
    encoder: str
