"""The class of every point, as the run's vault has it.

A class belongs to its point as the text does: it is private, and a point exchanged or removed takes it
along.  The *names* of the classes are public constants (``train.classes``), never read off the corpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import ConfigurationError
from redactory.redaction.shards import CLASS, read_batches
from redactory.training.points import NO_CLASS


def class_numbers(found: Iterable[str | None], classes: Sequence[str]) -> NDArray[np.int64]:
    """The place of each of ``found`` in ``classes``, int64 [n]; ``NO_CLASS`` where it has none.

    Formal guarantees: number i is a function of class i and of the public ``classes`` alone; a point with
    ``NO_CLASS`` is a null point, whose gradient is exactly 0.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    return np.fromiter((NO_CLASS if c is None else numbers.get(c, NO_CLASS) for c in found), np.int64)


def classes_in(folder: Path) -> Iterator[str | None]:
    """The class of every row of a data folder, in order, a row group at a time.

    ``ConfigurationError`` where the rows have none: only ``vault/`` has, of a run with ``input.label``.
    """
    for batch in read_batches(folder, ["point_id", CLASS]):
        if CLASS not in batch.schema.names:
            raise ConfigurationError(
                f"train.task: {folder.name}/ has no classes; curate with input.label, the column of each "
                "row's class"
            )
        yield from batch[CLASS].to_pylist()
