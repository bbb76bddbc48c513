"""Points, users and entities as one hypergraph: who holds which point, which entities stand in it.

No text: keyed ids, labels and integers.  Memory is 4 bytes an incidence and 16 a unit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from redactory.foundation.errors import InputError
from redactory.foundation.keys import DIGEST_BYTES
from redactory.training.uedp.entities import Mention

Ids = NDArray[np.uint8]
"""Keyed ids, uint8 [n, 16]."""


@dataclass(frozen=True)
class Rows:
    """For each of n rows a set of column numbers: row i holds ``indices[offsets[i]:offsets[i + 1]]``.

    ``offsets`` int64 [n + 1], ``indices`` int32 [nnz], ``columns`` the number of columns.
    """

    offsets: NDArray[np.int64]
    indices: NDArray[np.int32]
    columns: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, row: int) -> NDArray[np.int32]:
        """The columns of one row."""
        return self.indices[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Columns of each row, int64 [n]."""
        return np.diff(self.offsets)

    @property
    def row_of(self) -> NDArray[np.int64]:
        """The row of each incidence, int64 [nnz]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def degrees(self, kept: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Rows of each column, int64 [columns]; with ``kept`` bool [n], of the kept rows alone."""
        indices = self.indices if kept is None else self.indices[kept[self.row_of]]
        return np.bincount(indices, minlength=self.columns).astype(np.int64)

    def totals(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum of ``values`` [columns] over each row's columns, int64 [n]."""
        ends = np.concatenate([[0], np.cumsum(values[self.indices])])
        return np.asarray(ends[self.offsets[1:]] - ends[self.offsets[:-1]], np.int64)

    def take(self, rows: NDArray[np.bool_]) -> Rows:
        """The rows that are True in ``rows`` [n]; columns keep their numbers."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths[rows])])
        return Rows(offsets.astype(np.int64), self.indices[rows[self.row_of]], self.columns)


@dataclass(frozen=True)
class Incidence:
    """The hypergraph of n points.

    ``points`` int64 [n]: point ids, rising.  ``priorities`` uint64 [n]: a keyed hash of each point's id,
    for order and ties.  ``users``: the holders of each point, one unless copies were merged.
    ``entities``: the entities listed for it; a point without any is its own (the extended set S).
    ``labels``: the labels they go by.  ``user_ids``, ``entity_ids``: uint8 [·, 16].
    """

    points: NDArray[np.int64]
    priorities: NDArray[np.uint64]
    users: Rows
    entities: Rows
    labels: Rows
    user_ids: Ids
    entity_ids: Ids
    label_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.points)

    @property
    def extended(self) -> NDArray[np.bool_]:
        """The points of S: no entity is listed for them, bool [n]."""
        return np.asarray(self.entities.lengths == 0)

    def entity_spread(self) -> NDArray[np.int64]:
        """The number of users who hold each entity, int64 [entities].

        A count of this corpus: what bounds another one is a cap that is enforced.
        """
        pairs = user_entity_pairs(self.users, self.entities)
        return np.bincount(pairs[:, 1], minlength=self.entities.columns).astype(np.int64)

    def take(self, kept: NDArray[np.bool_]) -> Incidence:
        """The kept points; users and entities keep their numbers, also those that hold nothing any more."""
        return Incidence(
            self.points[kept],
            self.priorities[kept],
            self.users.take(kept),
            self.entities.take(kept),
            self.labels.take(kept),
            self.user_ids,
            self.entity_ids,
            self.label_names,
        )


def user_entity_pairs(users: Rows, entities: Rows) -> NDArray[np.int64]:
    """The distinct (user, entity) pairs that share a point, int64 [pairs, 2]."""
    per_point = users.lengths * entities.lengths
    point = np.repeat(np.arange(len(users)), per_point)
    place = np.arange(per_point.sum()) - np.repeat(np.cumsum(per_point) - per_point, per_point)
    width = entities.lengths[point]
    user = users.indices[users.offsets[point] + place // np.maximum(width, 1)].astype(np.int64)
    entity = entities.indices[entities.offsets[point] + place % np.maximum(width, 1)].astype(np.int64)
    codes = np.unique(user * max(entities.columns, 1) + entity)
    return np.stack([codes // max(entities.columns, 1), codes % max(entities.columns, 1)], axis=1)


class Collector:
    """Points one by one, in the order of their ids, into an :class:`Incidence`; no text passes through."""

    def __init__(self) -> None:
        self._points, self._priorities = array("q"), array("Q")
        self._users, self._entities, self._labels = bytearray(), bytearray(), array("i")
        self._counts = {name: array("i") for name in ("users", "entities", "labels")}
        self._names: dict[str, int] = {}

    def add(self, point: int, priority: int, holders: Iterable[bytes], mentions: Iterable[Mention]) -> None:
        """One point, its holders' keyed ids and what is mentioned in it; repeats count once.

        ``InputError`` where ids do not rise, or a point has no holder.
        """
        if self._points and point <= self._points[-1]:
            raise InputError(f"points must come in the order of their ids: {point} after {self._points[-1]}")
        mentions = list(mentions)
        users, entities = dict.fromkeys(holders), dict.fromkeys(m.entity for m in mentions)
        labels = dict.fromkeys(self._names.setdefault(m.label, len(self._names)) for m in mentions)
        if not users or any(len(unit) != DIGEST_BYTES for unit in (*users, *entities)):
            raise InputError(f"point {point}: a keyed id of 16 bytes is needed for its user and each entity")
        self._points.append(point)
        self._priorities.append(priority)
        self._users += b"".join(users)
        self._entities += b"".join(entities)
        self._labels.extend(labels)
        for name, count in (("users", users), ("entities", entities), ("labels", labels)):
            self._counts[name].append(len(count))

    def finish(self) -> Incidence:
        """The hypergraph of everything that was added."""
        users, user_ids = _numbered(self._users, self._counts["users"])
        entities, entity_ids = _numbered(self._entities, self._counts["entities"])
        labels = Rows(_offsets(self._counts["labels"]), np.array(self._labels, np.int32), len(self._names))
        return Incidence(
            np.array(self._points, np.int64),
            np.array(self._priorities, np.uint64),
            users,
            entities,
            labels,
            user_ids,
            entity_ids,
            tuple(self._names),
        )


def _numbered(digests: bytearray, counts: array[int]) -> tuple[Rows, Ids]:
    """Keyed ids as numbers in the order of their first appearance, and the ids by number."""
    total = len(digests) // DIGEST_BYTES
    column = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(DIGEST_BYTES), total, [None, pa.py_buffer(bytes(digests))]
    )
    coded = column.dictionary_encode()
    ids = np.frombuffer(b"".join(coded.dictionary.to_pylist()), np.uint8).reshape(-1, DIGEST_BYTES)
    indices = np.asarray(coded.indices).astype(np.int32)
    return Rows(_offsets(counts), indices, len(ids)), ids


def _offsets(counts: array[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.array(counts, np.int64))]).astype(np.int64)
