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
from redactory.redaction.shards import part_rows, parts, read_rows, schema_of
from redactory.training.data import parent_digest, require_unchanged

Row = dict[str, Any]


def share_of(total: int, number: int, of: int) -> tuple[int, int]:
    """The rows [first, last) of share ``number``, from 0, of ``of``; they differ by one row at most."""
    return total * number // of, total * (number + 1) // of


class ShardDataset(IterableDataset[Row]):
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
        side: str = PUBLIC,
        *,
        columns: Sequence[str] = ("point_id", "text"),
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if side not in (PUBLIC, PRIVATE):
            raise ConfigurationError(f"side: expected {PUBLIC} or {PRIVATE}")
        if rank is None and world_size is None:
            together = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank = torch.distributed.get_rank() if together else 0
            world_size = torch.distributed.get_world_size() if together else 1
        if rank is None or world_size is None or not 0 <= rank < world_size:
            raise ConfigurationError("rank and world_size: give both, with 0 ≤ rank < world_size")
        self._columns, self._rank, self._world_size = list(columns), rank, world_size
        self._run, self.side = RunFolder(Path(run)), side
        self._manifest = _sealed_digest(self._run)
        known = schema_of(read_manifest(self._run), side).names
        if not columns or set(columns) - set(known):
            raise ConfigurationError(f"columns: {side}/ has {', '.join(known)}")
        folder = self._run.public if side == PUBLIC else self._run.private
        require_unchanged(self._run, folder)
        self._parts = [(path, part_rows(path)) for path in parts(folder)]
        if not self._parts:
            raise RunStateError(f"{self._run.root.name} has no {side}/: an export contains only the public split")
        self.rows = sum(rows for _, rows in self._parts)
        # (share, of how many, rows of it that were given): of a loaded state, and of the last iterator
        self._loaded: tuple[int, int, int] | None = None
        self._given: tuple[int, int, int] | None = None

    def __iter__(self) -> Iterator[Row]:
        """The rows of this share; after :meth:`load_state_dict`, once, those that were not given yet."""
        worker = get_worker_info()
        own, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        number, of, given = self._rank * workers + own, self._world_size * workers, 0
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded[:2] != (number, of):
            raise RunStateError(
                f"the state is of share {loaded[0]} of {loaded[1]}, but this is share {number} of {of}: "
                "resume with as many ranks and workers"
            )
        if loaded is not None:
            given = loaded[2]
        self._given = (number, of, given)
        return self._rest(number, of, given)

    def state_dict(self) -> dict[str, Any]:
        """How far the iterator that was begun last has come: numbers and a digest, no text.

        It is the state of this process.  With workers ask torchdata's ``StatefulDataLoader``, which asks each
        of them: ``RunStateError`` where no iterator was begun here, for the rows are then read elsewhere.
        """
        known = self._loaded or self._given
        if known is None:
            raise RunStateError(
                "no row was read in this process, so it has no state: with workers, use torchdata's StatefulDataLoader"
            )
        number, of, given = known
        return {"manifest": self._manifest, "side": self.side, "share": [number, of], "given": given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator gives exactly the rest of what ``state`` was taken of.

        ``RunStateError`` where that was another run, another release of it, or another side.
        """
        if (state.get("manifest"), state.get("side")) != (self._manifest, self.side):
            raise RunStateError(
                f"the state is from another run, release or split than {self._run.root.name}, {self.side}"
            )
        number, of = state["share"]
        self._loaded = (number, of, int(state["given"]))

    def _rest(self, number: int, of: int, given: int) -> Iterator[Row]:
        """The rows of a share after the first ``given``."""
        first, last = share_of(self.rows, number, of)
        first += given
        for path, rows in self._parts:
            if first < min(last, rows):
                for row in self._of_part(path, first, min(last, rows)):
                    given += 1
                    # before the row is handed out: whoever has it may ask for the state
                    self._given = (number, of, given)
                    yield row
            first, last = max(0, first - rows), last - rows

    def _of_part(self, path: Path, first: int, last: int) -> Iterator[Row]:
        self._require_same()
        for table in read_rows(path, first, self._columns):
            # the part was opened after the check before: it may be another one's already
            self._require_same()
            yield from table.slice(0, last - first).to_pylist()
            first += table.num_rows
            if first >= last:
                return
        self._require_same()

    def _require_same(self) -> None:
        if _sealed_digest(self._run) != self._manifest:
            raise RunStateError(f"{self._run.root.name} was rewritten while it was read: start again")


def _sealed_digest(run: RunFolder) -> str:
    """The sha256 of the run's manifest, which must be the one that the run was finished with."""
    digest = parent_digest(run)
    if run.success.read_bytes() != f"{digest}\n".encode():
        raise CheckFailed(f"{run.root.name}/manifest.json is not the one that the run was finished with")
    return digest
