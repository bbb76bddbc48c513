"""What stages hand to each other, declared once: the files below ``state/work``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from redactory.dedup.index import Entry, IndexFolder
from redactory.dedup.near import NEAR_RANGES
from redactory.dedup.signatures import SignedFiles
from redactory.detectors import TextDetector
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import Config
from redactory.redaction import RunFolder, part_name
from redactory.redaction.shards import FOUND, LABELLED_VAULT, VAULT

PARTITION_BITS = 32
LEAST_RANGES, MOST_RANGES, FEW_RANGES = 1, 1_024, 16
"""Hash ranges of a plan: up to :data:`FEW_RANGES` one for 32 MiB of input, then one for each GiB."""

DOCUMENTS = pa.schema(
    [
        ("doc_id", pa.string()),
        ("user_id", pa.string()),
        ("text", pa.string()),
        ("source", pa.string()),
        ("row", pa.int64()),
        ("label", pa.string()),
    ]
)
REJECTED = pa.schema(
    [("reason", pa.string()), ("source", pa.string()), ("row", pa.int64()), ("content", pa.binary())]
)
DETECTED = pa.schema([("range", pa.int16()), *FOUND, ("failure", pa.string())])
"""A span a row, or a failure; ``range`` is the hash range of the text."""
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
class OpenIndex:
    """The index of a run: which earlier ``runs`` it goes by, and where (``token``) its own entry waits.

    ``policy`` is the hash of both policies' hashes, to which the filters are bound.
    """

    folder: IndexFolder
    id: str
    token: str
    policy: str
    runs: tuple[Entry, ...]

    @property
    def draft(self) -> Path:
        """The folder of this run's own entry."""
        return self.folder.draft(self.token)


@dataclass(frozen=True)
class Job:
    """One curation: where it writes, what was asked for, the key, and what detects.

    ``detector`` replaces the configured engines by spans recorded before; None loads the engines, once
    a process.  ``policies`` are the hashes of the two policies as the run begins.  ``listener`` hears of
    progress inside a part, where parts run in this process.  ``index`` is open from the run's begin on,
    where one is configured.  Repeated texts are looked for in ``hash_ranges``, one after the other: memory
    follows from their number, and no byte of the shards.
    """

    run: RunFolder
    config: Config
    key: DigestKey
    detector: TextDetector | None = None
    policies: tuple[str, ...] = ()
    listener: Progress = silent
    index: OpenIndex | None = None
    hash_ranges: int = LEAST_RANGES

    @property
    def points_schema(self) -> pa.Schema:
        """Of the points that stages hand on, and of ``vault/``: with a class where the input has one."""
        return VAULT if self.config.input.label is None else LABELLED_VAULT

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
        return [self.range(table, number) for number in range(self.hash_ranges)]

    @property
    def near_count(self) -> int:
        """Hash ranges of what is about near-duplicates."""
        return min(self.hash_ranges, NEAR_RANGES)

    def near_ranges(self, table: str) -> list[Path]:
        """All hash ranges of a table about near-duplicates."""
        return [self.range(table, number) for number in range(self.near_count)]

    def spread(self, number: int) -> Path:
        """What was found in repeated texts of one hash range, a row a span and point that has it."""
        return self.run.work / "spread" / f"range-{number:02d}.parquet"

    def signed(self, partition: int) -> SignedFiles:
        """What near-duplicates of one partition's texts are found by."""
        buckets, rows, shingles = (
            self.digests(f"near-{n}", partition) for n in ("buckets", "rows", "shingles")
        )
        return SignedFiles(buckets, rows, shingles)


def ranges_for(size: float) -> int:
    """How many hash ranges an input of ``size`` bytes in the open takes: a power of two."""
    wanted = max(LEAST_RANGES, min(size / (1 << 25), FEW_RANGES), size / (1 << 30))
    return min(MOST_RANGES, 1 << (math.ceil(wanted) - 1).bit_length())


def point_id(partition: int, row: int) -> int:
    """The id of a point: its partition and its row in it."""
    return (partition << PARTITION_BITS) + row
