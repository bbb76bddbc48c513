"""The score of a sample in words, the same on the terminal and in the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SYMBOLS = {"gamma": "γ", "delta_2": "δ₂"}


def resting_on_labellers(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each bound of a score that is 0 since all that could hold a miss was labelled."""
    public = result["strata"]["public"]
    if not public["points"]:
        return []
    texts = {"gamma": "every text that could hold a miss", "delta_2": "every public text"}
    return [
        f"{symbol} is 0, because {texts[name]} was labelled: it rests on the labellers having overlooked "
        "nothing."
        for name, symbol in _SYMBOLS.items()
        if public["whole"] and result["misses"][name]["upper"] == 0
    ]
