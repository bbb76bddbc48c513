"""A run's shards as a PyTorch data set that shares rows between processes and resumes at any row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info

from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import PRIVATE, PUBLIC
from redactory.redaction.sealing import read_manifest
from redactory.redaction.shards import build_shard_schema, count_part_rows, list_parts, read_rows
from redactory.training.data import read_manifest_digest, require_unchanged_parts

ShardRow = dict[str, Any]


def compute_share_range(row_count: int, share_number: int, share_count: int) -> tuple[int, int]:
    """Return the rows [first, last) of share ``share_number``, from 0, of ``share_count``; sizes differ by <= 1."""
    return row_count * share_number // share_count, row_count * (share_number + 1) // share_count


class ShardDataset(IterableDataset[ShardRow]):
    """The rows of one split of a finished run or export as dictionaries, in the order of the shards.

    Ranks, and within each rank the workers of a ``DataLoader``, each read one contiguous share. ``rank`` and
    ``world_size`` default to those of ``torch.distributed`` if initialised, otherwise 0 and 1. ``columns`` selects
    columns of the split. The private split of an encrypted run needs its key in the environment. ``rows`` is the row
    count of the whole split.

    Raises ``RunStateError`` if the run is not finished or is rewritten while being read; ``CheckFailed`` if its shards
    differ from the sealed ones; ``ConfigurationError`` for an unknown split, column or rank, or a missing key.

    The data set gives no guarantee for what is learned from it: only ``redactory train`` does.
    """

    def __init__(
        self,
        run: str | Path,
        split: str = PUBLIC,
        *,
        columns: Sequence[str] = ("example_id", "text"),
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if split not in (PUBLIC, PRIVATE):
            raise ConfigurationError(f"split: expected {PUBLIC} or {PRIVATE}")
        if rank is None and world_size is None:
            is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank = torch.distributed.get_rank() if is_distributed else 0
            world_size = torch.distributed.get_world_size() if is_distributed else 1
        if rank is None or world_size is None or not 0 <= rank < world_size:
            raise ConfigurationError("rank and world_size: give both, with 0 ≤ rank < world_size")
        self._columns, self._rank, self._world_size = list(columns), rank, world_size
        self._run, self.split = RunFolder(Path(run)), split
        self._manifest_digest = _read_finished_manifest_digest(self._run)
        split_columns = build_shard_schema(read_manifest(self._run), split).names
        if not columns or set(columns) - set(split_columns):
            raise ConfigurationError(f"columns: {split}/ has {', '.join(split_columns)}")
        folder = self._run.public if split == PUBLIC else self._run.private
        require_unchanged_parts(self._run, folder)
        self._parts = [(path, count_part_rows(path)) for path in list_parts(folder)]
        if not self._parts:
            raise RunStateError(f"{self._run.root.name} has no {split}/: an export contains only the public split")
        self.rows = sum(rows for _, rows in self._parts)
        # (share, number of shares, rows of it already returned): of a loaded state, and of the last iterator
        self._loaded_position: tuple[int, int, int] | None = None
        self._position: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        """Number of rows of this rank."""
        first, last = compute_share_range(self.rows, self._rank, self._world_size)
        return last - first

    def __iter__(self) -> Iterator[ShardRow]:
        """Iterate over this share; once after :meth:`load_state_dict`, over its remaining rows."""
        worker = get_worker_info()
        worker_index, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        share_number, share_count = self._rank * workers + worker_index, self._world_size * workers
        position, self._loaded_position = self._loaded_position or (share_number, share_count, 0), None
        if position[:2] != (share_number, share_count):
            raise RunStateError(
                f"the state is of share {position[0]} of {position[1]}, but this is share {share_number} of "
                f"{share_count}: resume with as many ranks and workers"
            )
        self._position = position
        return self._iterate_remaining_rows(*position)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the last iterator started in this process: numbers and a digest, no text.

        Raises ``RunStateError`` without one: with workers use torchdata's ``StatefulDataLoader``, which asks each
        worker.
        """
        position = self._loaded_position or self._position
        if position is None:
            raise RunStateError(
                "no row was read in this process, so it has no state: with workers, use torchdata's StatefulDataLoader"
            )
        share_number, share_count, rows_done = position
        return {
            "manifest": self._manifest_digest,
            "split": self.split,
            "share": [share_number, share_count],
            "given": rows_done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly after ``state``; ``RunStateError`` if it is of another run, release or split."""
        if (state.get("manifest"), state.get("split")) != (self._manifest_digest, self.split):
            raise RunStateError(
                f"the state is from another run, release or split than {self._run.root.name}, {self.split}"
            )
        share_number, share_count = state["share"]
        self._loaded_position = (share_number, share_count, int(state["given"]))

    def _iterate_remaining_rows(self, share_number: int, share_count: int, rows_done: int) -> Iterator[ShardRow]:
        """Yield the rows of a share after the first ``rows_done``."""
        first, last = compute_share_range(self.rows, share_number, share_count)
        first += rows_done
        for path, rows in self._parts:
            if first < min(last, rows):
                for row in self._iterate_part_rows(path, first, min(last, rows)):
                    rows_done += 1
                    # before the row is returned: its receiver may ask for the state
                    self._position = (share_number, share_count, rows_done)
                    yield row
            first, last = max(0, first - rows), last - rows

    def _iterate_part_rows(self, path: Path, first: int, last: int) -> Iterator[ShardRow]:
        self._require_unchanged_run()
        for table in read_rows(path, first, self._columns):
            # the part was opened after the previous check and may already belong to another release
            self._require_unchanged_run()
            yield from table.slice(0, last - first).to_pylist()
            first += table.num_rows
            if first >= last:
                return
        self._require_unchanged_run()

    def _require_unchanged_run(self) -> None:
        if _read_finished_manifest_digest(self._run) != self._manifest_digest:
            raise RunStateError(f"{self._run.root.name} was rewritten while it was read: start again")


def _read_finished_manifest_digest(run: RunFolder) -> str:
    """Return the sha256 of the manifest; ``CheckFailed`` if the run was finished with another one."""
    digest = read_manifest_digest(run)
    if run.success.read_bytes() != f"{digest}\n".encode():
        raise CheckFailed(f"{run.root.name}/manifest.json is not the one that the run was finished with")
    return digest
