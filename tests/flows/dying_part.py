"""A part whose process dies the first time."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from redactory.foundation.progress import StageReport

COUNTS = Counter({"texts": 7})


def dies_once(mark: Path, number: int) -> StageReport:
    """End the process without a word where ``mark`` is not there yet, and leave it."""
    if not mark.exists():
        mark.touch()
        os._exit(9)
    return StageReport("part", Counter({"texts": number}))
