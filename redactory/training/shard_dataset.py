"""A run's shards as a PyTorch data set: each row once, whoever shares them, resumed to the row."""

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
from redactory.redaction.shards import list_parts, part_rows, read_rows, shard_schema
from redactory.training.data import read_manifest_digest, require_unchanged

ShardRow = dict[str, Any]


def share_range(row_count: int, share_number: int, shares: int) -> tuple[int, int]:
    """The rows [first, last) of share ``share_number``, from 0, of ``shares``; they differ by one row at most."""
    return row_count * share_number // shares, row_count * (share_number + 1) // shares


class ShardDataset(IterableDataset[ShardRow]):
    """The rows of one side of a finished run or export, in the order of the shards, as dictionaries.

    Ranks, and within each rank the workers of a ``DataLoader``, share the rows: each gets a stretch of its
    own.  ``rank`` and ``world_size`` are those of ``torch.distributed`` where it is initialised, else 0 and
    1.  ``columns`` chooses among those of the side.  The private side of an encrypted run needs its key in
    the environment.  ``rows`` is the number of rows of the whole side.

    Raises ``RunStateError`` for a run that is not finished, or that is written anew while it is read;
    ``CheckFailed`` for one whose shards are not those that it was sealed with; ``ConfigurationError`` for a
    side, column or rank that there is none of, and where the key is not configured.

    The data set promises nothing of what is learnt from it: only ``redactory train`` gives a guarantee.
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
            together = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank = torch.distributed.get_rank() if together else 0
            world_size = torch.distributed.get_world_size() if together else 1
        if rank is None or world_size is None or not 0 <= rank < world_size:
            raise ConfigurationError("rank and world_size: give both, with 0 ≤ rank < world_size")
        self._columns, self._rank, self._world_size = list(columns), rank, world_size
        self._run, self.split = RunFolder(Path(run)), split
        self._manifest = _read_finished_digest(self._run)
        known = shard_schema(read_manifest(self._run), split).names
        if not columns or set(columns) - set(known):
            raise ConfigurationError(f"columns: {split}/ has {', '.join(known)}")
        folder = self._run.public if split == PUBLIC else self._run.private
        require_unchanged(self._run, folder)
        self._parts = [(path, part_rows(path)) for path in list_parts(folder)]
        if not self._parts:
            raise RunStateError(f"{self._run.root.name} has no {split}/: an export contains only the public split")
        self.rows = sum(rows for _, rows in self._parts)
        # (share, of how many, rows of it that were given): of a loaded state, and of the last iterator
        self._loaded_position: tuple[int, int, int] | None = None
        self._position: tuple[int, int, int] | None = None

    def __iter__(self) -> Iterator[ShardRow]:
        """The rows of this share; after :meth:`load_state_dict`, once, those that were not given yet."""
        worker = get_worker_info()
        worker_index, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        number, shares, rows_done = self._rank * workers + worker_index, self._world_size * workers, 0
        loaded, self._loaded_position = self._loaded_position, None
        if loaded is not None and loaded[:2] != (number, shares):
            raise RunStateError(
                f"the state is of share {loaded[0]} of {loaded[1]}, but this is share {number} of {shares}: "
                "resume with as many ranks and workers"
            )
        if loaded is not None:
            rows_done = loaded[2]
        self._position = (number, shares, rows_done)
        return self._iterate_rest(number, shares, rows_done)

    def state_dict(self) -> dict[str, Any]:
        """How far the iterator that was begun last has come: numbers and a digest, no text.

        It is the state of this process.  With workers ask torchdata's ``StatefulDataLoader``, which asks each
        of them: ``RunStateError`` where no iterator was begun here, for the rows are then read elsewhere.
        """
        position = self._loaded_position or self._position
        if position is None:
            raise RunStateError(
                "no row was read in this process, so it has no state: with workers, use torchdata's StatefulDataLoader"
            )
        number, shares, rows_done = position
        return {"manifest": self._manifest, "split": self.split, "share": [number, shares], "given": rows_done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator gives exactly the rest of what ``state`` was taken of.

        ``RunStateError`` where that was another run, another release of it, or another side.
        """
        if (state.get("manifest"), state.get("split")) != (self._manifest, self.split):
            raise RunStateError(
                f"the state is from another run, release or split than {self._run.root.name}, {self.split}"
            )
        number, shares = state["share"]
        self._loaded_position = (number, shares, int(state["given"]))

    def _iterate_rest(self, share_number: int, shares: int, rows_done: int) -> Iterator[ShardRow]:
        """The rows of a share after the first ``given``."""
        first, last = share_range(self.rows, share_number, shares)
        first += rows_done
        for path, rows in self._parts:
            if first < min(last, rows):
                for row in self._iterate_part(path, first, min(last, rows)):
                    rows_done += 1
                    # before the row is handed out: whoever has it may ask for the state
                    self._position = (share_number, shares, rows_done)
                    yield row
            first, last = max(0, first - rows), last - rows

    def _iterate_part(self, path: Path, first: int, last: int) -> Iterator[ShardRow]:
        self._require_unchanged_run()
        for table in read_rows(path, first, self._columns):
            # the part was opened after the check before: it may be another one's already
            self._require_unchanged_run()
            yield from table.slice(0, last - first).to_pylist()
            first += table.num_rows
            if first >= last:
                return
        self._require_unchanged_run()

    def _require_unchanged_run(self) -> None:
        if _read_finished_digest(self._run) != self._manifest:
            raise RunStateError(f"{self._run.root.name} was rewritten while it was read: start again")


def _read_finished_digest(run: RunFolder) -> str:
    """The sha256 of the run's manifest, which must be the one that the run was finished with."""
    digest = read_manifest_digest(run)
    if run.success.read_bytes() != f"{digest}\n".encode():
        raise CheckFailed(f"{run.root.name}/manifest.json is not the one that the run was finished with")
    return digest
