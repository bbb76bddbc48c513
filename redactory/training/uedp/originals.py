"""The points that trainers under UeDP and their baselines learn from: originals, one vault row each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import CheckFailed
from redactory.foundation.keys import DIGEST_BYTES
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import mask
from redactory.redaction.shards import read_batches
from redactory.training.classes import class_numbers, classes_in
from redactory.training.uedp.entities import EntityNames
from redactory.training.uedp.incidence import Incidence
from redactory.training.uedp.units import InOrder, hits_of

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Originals:
    """The points ``ids`` (rising; None: all) of the run's vault; with ``masked``, what it names is masked.

    ``incidence``, where given, is the hypergraph of these points: row i is point i.

    Formal guarantees: row i is a function of point i's own text, hits and class, and of public constants;
    which points there are follows from the hypergraph alone.
    """

    run: RunFolder
    ids: Ids | None = None
    masked: EntityNames | None = None
    incidence: Incidence | None = None

    def texts(self) -> Iterator[str]:
        """The text of each point, in order.  ``CheckFailed`` where one of ``ids`` is not in the vault."""
        hits = InOrder(hits_of(self.run)) if self.masked is not None else None
        for point, text in self._rows():
            yield text if hits is None else self._masked(point, text, hits)

    def classes(self, names: tuple[str, ...]) -> NDArray[np.int64]:
        """The number in ``names`` of each point's class, int64 [n]; ``NO_CLASS`` where it has none of them.

        ``ConfigurationError`` where the run has no classes.
        """
        numbers = class_numbers(classes_in(self.run.vault), names)
        if self.ids is None:
            return numbers
        every = [batch.column(0).to_numpy() for batch in read_batches(self.run.vault, ["point_id"])]
        return numbers[np.isin(np.concatenate(every), self.ids)]

    def fingerprint(self, stream: RandomStream) -> str:
        """A digest of points and hypergraph under a key of ``stream``.

        A resumed training must have chosen the same points for the same units: lists may have changed.
        """
        found = hashlib.blake2b(digest_size=DIGEST_BYTES, key=stream.octets("selection", 0, 32))
        found.update(b"all" if self.ids is None else self.ids.tobytes())
        if self.incidence is not None:
            for rows in (self.incidence.users, self.incidence.entities):
                found.update(rows.offsets.tobytes() + rows.indices.tobytes())
        return found.hexdigest()

    def _masked(self, point: int, text: str, hits: InOrder) -> str:
        assert self.masked is not None
        row = hits.at(point)
        places = self.masked.places(text)
        for _, start, end, label, _ in row[1] if row is not None else ():
            if self.masked.mention(text[start:end], label) is not None:
                places.append((start, end))
        return mask(text, places)

    def _rows(self) -> Iterator[tuple[int, str]]:
        """(point id, text) of each point."""
        wanted = None if self.ids is None else iter(self.ids.tolist())
        following = None if wanted is None else next(wanted, None)
        for batch in read_batches(self.run.vault, ["point_id", "text"]):
            for point, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if wanted is None:
                    yield point, text
                elif point == following:
                    yield point, text
                    following = next(wanted, None)
        if following is not None:
            raise CheckFailed("the vault lacks a point that was chosen")
