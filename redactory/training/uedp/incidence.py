"""Examples, users and entities as one hypergraph: who holds which example, and which entities it mentions.

It contains no text: keyed ids, labels and integers. Memory is 5 bytes per incidence and 16 per unit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from redactory.foundation.errors import InputError
from redactory.foundation.keys import DIGEST_BYTES
from redactory.training.uedp.entities import Mention

KeyedIds = NDArray[np.uint8]
"""Keyed ids, uint8 [n, 16]."""


def get_columns(rows: csr_matrix, row: int) -> NDArray[np.int32]:
    """Return the columns of one row."""
    return np.asarray(rows.indices[rows.indptr[row] : rows.indptr[row + 1]])


def count_degrees(rows: csr_matrix) -> NDArray[np.int64]:
    """Count the rows of each column, int64 [columns]."""
    return np.bincount(rows.indices, minlength=rows.shape[1])


@dataclass(frozen=True)
class Incidence:
    """The hypergraph of n examples; ``users``, ``entities`` and ``labels`` are True where a row has a column.

    ``example_ids`` int64 [n]: ids, ascending. ``priorities`` uint64 [n]: a keyed hash of each example's document
    and its place there, for order and ties. ``users``: the holders of each example, one unless copies were merged.
    ``entities``: its listed entities; an example without any is its own (the extended set S). ``labels``: the
    labels of its entities. ``user_ids``, ``entity_ids``: uint8 [·, 16].
    """

    example_ids: NDArray[np.int64]
    priorities: NDArray[np.uint64]
    users: csr_matrix
    entities: csr_matrix
    labels: csr_matrix
    user_ids: KeyedIds
    entity_ids: KeyedIds
    label_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.example_ids)

    @property
    def extended_mask(self) -> NDArray[np.bool_]:
        """Return which examples are in S, without a listed entity: bool [n]."""
        return np.asarray(np.diff(self.entities.indptr) == 0)

    def count_entity_users(self) -> NDArray[np.int64]:
        """Count the users who hold each entity, int64 [entities].

        This describes this corpus only: another corpus is bounded by a cap that is enforced.
        """
        return np.asarray((self.users.T @ self.entities).getnnz(axis=0), np.int64)

    def select_examples(self, kept: NDArray[np.bool_]) -> Incidence:
        """Keep the examples in ``kept``; users and entities keep their numbers, also those without examples."""
        parts = {name: getattr(self, name)[kept] for name in ("users", "entities", "labels")}
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
            csr_matrix(
                (np.ones(len(self._indices[name]), bool), self._indices[name], self._offsets[name]),
                (len(self._points), len(numbers)),
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
