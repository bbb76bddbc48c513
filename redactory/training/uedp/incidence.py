"""Examples, users and entities as one hypergraph: who holds which example, and which entities it mentions.

It contains no text: keyed ids, labels and integers. Memory is 5 bytes per incidence and 16 per unit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from redactory.foundation.errors import InputError
from redactory.foundation.keys import DIGEST_BYTES
from redactory.training.uedp.entities import Mention

KeyedIds = NDArray[np.uint8]
"""Keyed ids, uint8 [n, 16]."""


@dataclass(frozen=True)
class IncidenceRows:
    """A set of column numbers for each of n rows: row i holds ``indices[offsets[i]:offsets[i + 1]]``.

    ``offsets`` int64 [n + 1], ``indices`` int32 [nnz], ``columns`` the number of columns.
    """

    offsets: NDArray[np.int64]
    indices: NDArray[np.int32]
    columns: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def get_columns(self, row: int) -> NDArray[np.int32]:
        """Return the columns of one row."""
        return self.indices[self.offsets[row] : self.offsets[row + 1]]

    @cached_property
    def matrix(self) -> csr_matrix:
        """Return the same as zeros and ones, [n, columns]."""
        ones = np.ones(len(self.indices), np.int64)
        return csr_matrix((ones, self.indices, self.offsets), (len(self), self.columns))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of columns of each row, int64 [n]."""
        return np.diff(self.offsets)

    @property
    def row_indices(self) -> NDArray[np.int64]:
        """Return the row of each incidence, int64 [nnz]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def count_degrees(self, kept: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Count the rows of each column, int64 [columns]; with ``kept`` bool [n], only kept rows."""
        rows = np.ones(len(self), np.int64) if kept is None else kept.astype(np.int64)
        return np.asarray(self.matrix.T @ rows, np.int64)

    def select_rows(self, rows: NDArray[np.bool_]) -> IncidenceRows:
        """Keep the rows that are True in ``rows`` [n]; columns keep their numbers."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths[rows])])
        return IncidenceRows(offsets.astype(np.int64), self.indices[rows[self.row_indices]], self.columns)


@dataclass(frozen=True)
class Incidence:
    """The hypergraph of n examples.

    ``example_ids`` int64 [n]: ids, ascending. ``priorities`` uint64 [n]: a keyed hash of each example's document
    and its place there, for order and ties. ``users``: the holders of each example, one unless copies were merged.
    ``entities``: its listed entities; an example without any is its own (the extended set S). ``labels``: the
    labels of its entities. ``user_ids``, ``entity_ids``: uint8 [·, 16].
    """

    example_ids: NDArray[np.int64]
    priorities: NDArray[np.uint64]
    users: IncidenceRows
    entities: IncidenceRows
    labels: IncidenceRows
    user_ids: KeyedIds
    entity_ids: KeyedIds
    label_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.example_ids)

    @property
    def extended_mask(self) -> NDArray[np.bool_]:
        """Return which examples are in S, without a listed entity: bool [n]."""
        return np.asarray(self.entities.lengths == 0)

    def count_entity_users(self) -> NDArray[np.int64]:
        """Count the users who hold each entity, int64 [entities].

        This describes this corpus only: another corpus is bounded by a cap that is enforced.
        """
        pairs = self.users.matrix.T @ self.entities.matrix
        return np.asarray(pairs.getnnz(axis=0), np.int64)

    def select_examples(self, kept: NDArray[np.bool_]) -> Incidence:
        """Keep the examples in ``kept``; users and entities keep their numbers, also those without examples."""
        parts = {name: getattr(self, name).select_rows(kept) for name in ("users", "entities", "labels")}
        return replace(self, example_ids=self.example_ids[kept], priorities=self.priorities[kept], **parts)


class IncidenceBuilder:
    """Adds examples one by one, in the order of their ids, to an :class:`Incidence`; it sees no text."""

    def __init__(self) -> None:
        self._points, self._priorities = array("q"), array("Q")
        self._numbers: dict[str, dict[Any, int]] = {"users": {}, "entities": {}, "labels": {}}
        self._indices = {name: array("i") for name in self._numbers}
        self._offsets = {name: array("q", [0]) for name in self._numbers}

    def add(self, example_id: int, priority: int, holders: Iterable[bytes], mentions: Iterable[Mention]) -> None:
        """Add one example, its holders' keyed ids and its mentions; repeats count once.

        ``InputError`` if ids do not ascend, or an example has no holder.
        """
        if self._points and example_id <= self._points[-1]:
            raise InputError(f"examples must be in order of their ids: {example_id} after {self._points[-1]}")
        mentions, holders = list(mentions), list(holders)
        entities, labels = [m.entity for m in mentions], [m.label for m in mentions]
        if not holders or any(len(unit) != DIGEST_BYTES for unit in (*holders, *entities)):
            raise InputError(f"example {example_id}: needs a keyed id of 16 bytes for its user and each entity")
        self._points.append(example_id)
        self._priorities.append(priority)
        for name, columns in (("users", holders), ("entities", entities), ("labels", labels)):
            numbers, indices = self._numbers[name], self._indices[name]
            # in the order of first appearance
            indices.extend(numbers.setdefault(column, len(numbers)) for column in dict.fromkeys(columns))
            self._offsets[name].append(len(indices))

    def build(self) -> Incidence:
        """Return the hypergraph of everything that was added."""
        users, entities, labels = (
            IncidenceRows(
                np.array(self._offsets[name], np.int64), np.array(self._indices[name], np.int32), len(numbers)
            )
            for name, numbers in self._numbers.items()
        )
        user_ids, entity_ids = (
            np.frombuffer(b"".join(self._numbers[name]), np.uint8).reshape(-1, DIGEST_BYTES)
            for name in ("users", "entities")
        )
        return Incidence(
            np.array(self._points, np.int64),
            np.array(self._priorities, np.uint64),
            users,
            entities,
            labels,
            user_ids,
            entity_ids,
            tuple(self._numbers["labels"]),
        )
