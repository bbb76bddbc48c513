"""A run's shards as a PyTorch data set: each row once, whoever shares them, resumed to the row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info

from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.redaction import shards
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import PRIVATE, PUBLIC
from redactory.redaction.shards import part_rows, parts, read_rows
from redactory.training.runinput import parent_digest, require_unchanged

Row = dict[str, Any]
_SCHEMAS = {PUBLIC: shards.PUBLIC, PRIVATE: shards.PRIVATE}


class Share(NamedTuple):
    """Share ``number``, from 0, of ``of``: a rank's worker, among all workers of all ranks."""

    number: int
    of: int

    def rows(self, total: int) -> tuple[int, int]:
        """The rows [first, last) of ``total``: shares follow each other, and differ by one row at most."""
        return total * self.number // self.of, total * (self.number + 1) // self.of


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
        self._columns = _checked_columns(side, columns)
        self._rank, self._world_size = _standing(rank, world_size)
        self._run, self.side = RunFolder(Path(run)), side
        self._manifest = _sealed_digest(self._run)
        folder = self._run.public if side == PUBLIC else self._run.private
        require_unchanged(self._run, folder)
        self._parts = [(path, part_rows(path)) for path in parts(folder)]
        if not self._parts:
            raise RunStateError(
                f"{self._run.root.name} has no {side}/: an export holds the public side alone"
            )
        self.rows = sum(rows for _, rows in self._parts)
        self._loaded: tuple[Share, int] | None = None
        self._given: tuple[Share, int] | None = None

    def __iter__(self) -> Iterator[Row]:
        """The rows of this share; after :meth:`load_state_dict`, once, those that were not given yet."""
        share = self._share()
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded[0] != share:
            raise RunStateError(
                f"the state is of share {loaded[0].number} of {loaded[0].of}, and this is share "
                f"{share.number} of {share.of}: resume with as many ranks and workers"
            )
        given = 0 if loaded is None else loaded[1]
        self._given = (share, given)
        first, last = share.rows(self.rows)
        return self._counted(share, given, self._between(first + given, last))

    def state_dict(self) -> dict[str, Any]:
        """How far the iterator that was begun last has come: numbers and a digest, no text.

        It is the state of this process.  With workers ask torchdata's ``StatefulDataLoader``, which asks each
        of them: ``RunStateError`` where no iterator was begun here, for the rows are then read elsewhere.
        """
        known = self._loaded or self._given
        if known is None:
            raise RunStateError(
                "no row was read in this process, so it has no state: with workers, ask torchdata's "
                "StatefulDataLoader for it"
            )
        share, given = known
        return {"manifest": self._manifest, "side": self.side, "share": list(share), "given": given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iterator gives exactly the rest of what ``state`` was taken of.

        ``RunStateError`` where that was another run, another release of it, or another side.
        """
        if (state.get("manifest"), state.get("side")) != (self._manifest, self.side):
            raise RunStateError(
                f"the state was taken of another run, release or side than {self._run.root.name}, {self.side}"
            )
        self._loaded = (Share(*state["share"]), int(state["given"]))

    def _share(self) -> Share:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return Share(self._rank * workers + number, self._world_size * workers)

    def _counted(self, share: Share, given: int, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            given += 1
            # before the row is handed out: whoever has it may ask for the state
            self._given = (share, given)
            yield row

    def _between(self, first: int, last: int) -> Iterator[Row]:
        """The rows [first, last) of the side."""
        for path, rows in self._parts:
            if first < min(last, rows):
                yield from self._of_part(path, first, min(last, rows))
            first, last = max(0, first - rows), last - rows

    def _of_part(self, path: Path, first: int, last: int) -> Iterator[Row]:
        self._require_same()
        for table in read_rows(path, first, list(self._columns)):
            # the part was opened after the check before: it may be another one's already
            self._require_same()
            yield from table.slice(0, last - first).to_pylist()
            first += table.num_rows
            if first >= last:
                return
        self._require_same()

    def _require_same(self) -> None:
        if _sealed_digest(self._run) != self._manifest:
            raise RunStateError(f"{self._run.root.name} was written anew while it was read: begin again")


def _checked_columns(side: str, columns: Sequence[str]) -> tuple[str, ...]:
    if side not in _SCHEMAS:
        raise ConfigurationError(f"side: {PUBLIC} or {PRIVATE}")
    known = _SCHEMAS[side].names
    if not columns or set(columns) - set(known):
        raise ConfigurationError(f"columns: {side}/ has {', '.join(known)}")
    return tuple(columns)


def _standing(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and number of ranks, as given or as ``torch.distributed`` has them."""
    if rank is None and world_size is None:
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if together else (0, 1)
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise ConfigurationError("rank and world_size: give both, with 0 ≤ rank < world_size")
    return rank, world_size


def _sealed_digest(run: RunFolder) -> str:
    """The sha256 of the run's manifest, which must be the one that the run was finished with."""
    digest = parent_digest(run)
    if run.success.read_bytes() != f"{digest}\n".encode():
        raise CheckFailed(f"{run.root.name}/manifest.json is not the one that the run was finished with")
    return digest
