"""The setting ``train.device``, and what is said to who asks for a device that nothing is trained on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator


def _known(value: Any) -> Any:
    if isinstance(value, str) and value.partition(":")[0] in ("mps", "gpu", "cuda") and value != "cuda":
        raise ValueError(
            "training is on 'cpu' or on 'cuda', one card that CUDA_VISIBLE_DEVICES can choose, and on "
            "nothing else: give one of them, or 'auto' for what is there"
        )
    return value


Device = Annotated[Literal["cpu", "cuda", "auto"], BeforeValidator(_known)]
