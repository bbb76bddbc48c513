"""Detectors that a worker of a cluster meets: one that kills its process, one that fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from redactory.detectors import Detection
from tests.pipelines.support import DigitDetector


@dataclass(frozen=True)
class Killer:
    """Detects digits; ``kill -9`` of its process at the first text, ``times`` in all, as ``marks`` counts."""

    marks: Path
    times: int

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        found = DigitDetector().detect(texts)
        yield next(found)
        for number in range(self.times):
            # two workers may come at once: each mark is one's alone
            with suppress(FileExistsError):
                (self.marks / str(number)).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        yield from found


@dataclass(frozen=True)
class Quoting:
    """Fails with an error that quotes the text."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        raise ValueError(next(iter(texts)))
