"""The folder of a sample that people label (``redaction/folder.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redactory.redaction.sealed_folder import SealedFolder


@dataclass(frozen=True)
class SampleFolder(SealedFolder):
    """``state/samples/NAME``: points drawn for people to label, with their original text."""

    @property
    def rows(self) -> Path:
        """The sample in the span schema (JSON lines), π's spans filled in."""
        return self.root / "sample.jsonl"

    @property
    def table(self) -> Path:
        """The same as CSV, to read."""
        return self.root / "sample.csv"

    @property
    def tasks(self) -> Path:
        """The same as tasks with predictions, to import into Label Studio."""
        return self.root / "label-studio.json"

    @property
    def interface(self) -> Path:
        """Label Studio's labelling interface for the tasks (XML)."""
        return self.root / "label-studio.xml"

    @property
    def draw(self) -> Path:
        """The record of the draw, without text: strata, seed, keyed digests."""
        return self.root / "draw.json"

    @property
    def score(self) -> SealedFolder:
        """The sealed folder of what the labels gave; it holds ``result.json``."""
        return SealedFolder(self.root / "score")
