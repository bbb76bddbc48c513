"""The message that a user sends: one noisy representation, and its fields in clear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Purpose = Literal["train", "query"]


@dataclass(frozen=True, eq=False)
class Message:
    """One send of one slot.

    ``values`` float32 [d], [L, e] or [2, d], noisy and finite; ``slot`` 32 random hexadecimal digits that identify one
    sentence in all steps; ``label`` the class's number for ``train`` and None for ``query``; ``encoder`` the sha256 of
    the encoder.

    Formal guarantees: only ``values`` depends on the sentence. Slot and order are drawn, the step is a counter, and the
    label is in clear by the definition of the privacy unit, or hidden by drawn ones (``docs/guarantees.md``, "Local
    differential privacy").
    """

    purpose: Purpose
    slot: str
    step: int
    label: int | None
    values: NDArray[np.float32]
    encoder: str
