"""What stages hand to each other, declared once: the files below ``state/work``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from redactory.dedup import RANGES
from redactory.detectors import TextDetector
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import Config
from redactory.redaction import RunFolder, part_name

PARTITION_BITS = 32

DOCUMENTS = pa.schema(
    [
        ("doc_id", pa.string()),
        ("user_id", pa.string()),
        ("text", pa.string()),
        ("source", pa.string()),
        ("row", pa.int64()),
    ]
)
REJECTED = pa.schema(
    [("reason", pa.string()), ("source", pa.string()), ("row", pa.int64()), ("content", pa.binary())]
)
FAILURES = pa.schema([("point_id", pa.int64()), ("failure", pa.string())])
REDACTED = pa.schema(
    [
        ("point_id", pa.int64()),
        ("side", pa.string()),
        ("text", pa.string()),
        ("reasons", pa.list_(pa.string())),
        ("failure", pa.string()),
    ]
)


@dataclass(frozen=True)
class Job:
    """One curation: where it writes, what was asked for, the key, and what detects.

    ``detector`` replaces the configured engines by spans recorded before; None loads the engines, once
    a process.  ``listener`` hears of progress inside a part, where parts run in this process.
    """

    run: RunFolder
    config: Config
    key: DigestKey
    detector: TextDetector | None = None
    listener: Progress = silent

    def part(self, table: str, partition: int) -> Path:
        """The Parquet part of a table that one stage writes and a later one reads."""
        return self.run.work / table / part_name(partition)

    def digests(self, table: str, partition: int) -> Path:
        """The digest file of one partition."""
        return self.run.work / table / f"part-{partition:05d}.npy"

    def range(self, table: str, number: int) -> Path:
        """One hash range of a plan."""
        return self.run.work / table / f"range-{number:02d}.npy"

    def ranges(self, table: str) -> list[Path]:
        """All hash ranges of a plan."""
        return [self.range(table, number) for number in range(RANGES)]


def point_id(partition: int, row: int) -> int:
    """The id of a point: its partition and its row in it."""
    return (partition << PARTITION_BITS) + row
