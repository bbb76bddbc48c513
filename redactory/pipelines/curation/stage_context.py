"""The job and the files that stages share (below ``state/work``), and the map that runs their parts."""

from __future__ import annotations

import functools
import itertools
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from redactory.dedup import signatures
from redactory.dedup.index import Entry, IndexFolder
from redactory.dedup.near import NEAR_RANGES
from redactory.dedup.settings import DedupRule
from redactory.dedup.signatures import SignedFiles
from redactory.detectors import TextDetector
from redactory.foundation.keys import DigestKey
from redactory.foundation.processes import open_process_pool
from redactory.foundation.progress import Progress, StageReport, ignore_progress
from redactory.pipelines.curation.config import Config
from redactory.pipelines.readers import Document
from redactory.redaction import RunFolder, format_part_name
from redactory.redaction.shards import COUNTED, DOCUMENT, LABELLED_VAULT, ORDER, PRIVATE, PUBLIC, SPAN_FIELDS, VAULT
from redactory.training.count_selection import CountSelection

PARTITION_BITS = signatures.PARTITION_BITS
MIN_RANGES, MAX_RANGES, FEW_RANGES = 1, 1_024, 16
"""Hash ranges of a plan: one for each 32 MiB of input up to :data:`FEW_RANGES`, then one for each GiB."""

DOCUMENTS = pa.schema({f.name: pa.int64() if f.name == "row" else pa.string() for f in fields(Document)})
REJECTED = pa.schema({"reason": pa.string(), "source": pa.string(), "row": pa.int64(), "content": pa.binary()})
DETECTED = pa.schema([("range", pa.int16()), *SPAN_FIELDS, ("failure", pa.string())])
"""One span per row, or a failure; ``range`` is the hash range of the text."""
REDACTED = pa.schema(
    {
        "example_id": pa.int64(),
        **dict.fromkeys(("split", "text", "failure"), pa.string()),
        "reasons": pa.list_(pa.string()),
    }
)


NO_COLUMNS = pa.schema([])


@dataclass(frozen=True)
class OpenIndex:
    """The open index of a run: the earlier ``runs`` that it compares with, and the ``token`` of its draft entry."""

    folder: IndexFolder
    id: str
    token: str
    runs: tuple[Entry, ...]

    @property
    def draft_folder(self) -> Path:
        """The folder of this run's draft entry."""
        return self.folder.get_draft_folder(self.token)


@dataclass(frozen=True)
class CurationJob:
    """Objects that all stages of one curation share.

    ``detector`` replaces the configured engines by recorded spans; None loads the engines once per process.
    ``policy_hashes`` are those at the start of the run. ``progress`` reports progress inside a part that runs in this
    process. ``index`` is the configured index, opened when the run starts. Repeated texts are found in one of
    ``hash_ranges`` at a time: their number affects memory, but no byte of the shards. The number of ``partitions`` and
    ``metadata_schema``, the metadata columns, are known after ingest; ``selection`` decides by counts what is public.
    """

    run: RunFolder
    config: Config
    key: DigestKey
    detector: TextDetector | None = None
    policy_hashes: tuple[str, ...] = ()
    progress: Progress = ignore_progress
    index: OpenIndex | None = None
    hash_ranges: int = MIN_RANGES
    partitions: int = 0
    metadata_schema: pa.Schema = NO_COLUMNS
    selection: CountSelection | None = None

    @property
    def vault_schema(self) -> pa.Schema:
        """Schema of ``vault/``, with a class if the input has one."""
        return VAULT if self.config.input.label is None else LABELLED_VAULT

    @property
    def shared_columns(self) -> pa.Schema:
        """Metadata columns of the shards of both splits; order and document only if configured."""
        if self.config.input.emit_document_order:
            return pa.schema([(DOCUMENT, pa.string()), *self.metadata_schema])
        return pa.schema([field for field in self.metadata_schema if field.name not in ORDER.names])

    def shard_schema(self, split: str) -> pa.Schema:
        """Return the schema of a split's shards."""
        public = PUBLIC if self.selection is None else COUNTED
        return pa.schema([*(public if split == "public" else PRIVATE), *self.shared_columns])

    def part_path(self, table: str, partition: int) -> Path:
        """Return the path of one partition's Parquet part of a table in the work folder."""
        return self.run.work / table / format_part_name(partition)

    def digests_path(self, table: str, partition: int) -> Path:
        """Return the path of one partition's digests or other numbers per example."""
        return self.run.work / table / f"part-{partition:05d}.npy"

    def digests_paths(self, table: str) -> list[Path]:
        """Return the paths of all partitions' digests."""
        return [self.digests_path(table, partition) for partition in range(self.partitions)]

    def range_path(self, table: str, number: int, ending: str = ".npy") -> Path:
        """Return the path of one hash range of a plan."""
        return self.run.work / table / f"range-{number:02d}{ending}"

    def range_paths(self, table: str) -> list[Path]:
        """Return the paths of all hash ranges of a plan."""
        return [self.range_path(table, number) for number in range(self.hash_ranges)]

    @property
    def near_range_count(self) -> int:
        """Number of hash ranges of tables about near-duplicates."""
        return min(self.hash_ranges, NEAR_RANGES)

    def near_range_paths(self, table: str) -> list[Path]:
        """Return the paths of all hash ranges of a table about near-duplicates."""
        return self.range_paths(table)[: self.near_range_count]

    @property
    def count_key_path(self) -> Path:
        """Path of the key of the counts' noise, until the run is finished."""
        return self.run.work / "counts.key"

    @property
    def signature_files(self) -> list[SignedFiles]:
        """The files of each partition's signatures for near-duplicate search."""
        return [SignedFiles(self.run.work / "near", partition) for partition in range(self.partitions)]

    def filter_splits_by_rule(self, has_property: Callable[[DedupRule], bool]) -> list[str]:
        """Return the splits whose deduplication rule has a property."""
        return [split for split, rule in self.config.dedup.get_rules().items() if has_property(rule)]


def choose_range_count(size: float) -> int:
    """Choose the number of hash ranges, a power of two, for an input of ``size`` uncompressed bytes."""
    minimum = max(MIN_RANGES, min(size / (1 << 25), FEW_RANGES), size / (1 << 30))
    return min(MAX_RANGES, 1 << (math.ceil(minimum) - 1).bit_length())


def example_id(partition: int, row: int) -> int:
    """Return the id of an example: its partition and its row in it."""
    return (partition << PARTITION_BITS) + row


def read_integer_column(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column of integers without nulls as a numpy array."""
    return np.concatenate([np.empty(0, np.int64), *map(np.from_dlpack, table[name].chunks)])


# The map of a run: serial or over processes here, over an orchestrator's tasks elsewhere.


Task = Callable[[int], StageReport]
TASKS_PER_WORKER = 4
"""Maximum number of submitted parts per worker: each takes memory in the submitting process."""


StageMap = Callable[[Task, Sequence[int]], Iterator[tuple[int, StageReport]]]
"""Calls a task on each of some numbers; yields (number, report) as they finish, in any order."""


def get_task_name(task: Task) -> str:
    """Return the name of a task's function."""
    return task.func.__name__ if isinstance(task, functools.partial) else "part"


def run_timed_task(task: Task, number: int) -> StageReport:
    """Run ``task(number)`` and add its seconds and its process's peak memory to the report."""
    start = time.perf_counter()
    report = task(number)
    return StageReport(report.stage, report.counts, time.perf_counter() - start, measure_peak_memory_mb())


def measure_peak_memory_mb() -> float:
    """Return the peak resident memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def map_serially(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
    """Run the tasks one after the other in this process."""
    return ((number, run_timed_task(task, number)) for number in numbers)


@contextmanager
def open_process_map(workers: int) -> Iterator[StageMap]:
    """Yield a map over ``workers`` processes, or over this process if there is only one worker."""
    if workers == 1:
        yield map_serially
        return
    with open_process_pool(workers) as pool:

        def map_over_processes(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
            pending: dict[Future[StageReport], int] = {}
            remaining = iter(numbers)
            try:
                while True:
                    for number in itertools.islice(remaining, TASKS_PER_WORKER * workers - len(pending)):
                        pending[pool.submit(run_timed_task, task, number)] = number
                    if not pending:
                        return
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        yield pending.pop(future), future.result()
            finally:
                for future in pending:
                    future.cancel()

        yield map_over_processes
