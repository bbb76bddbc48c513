"""Where local updates are computed: in this process, in others, or wherever a client of Dask sends them.

A map takes a function and tasks, and gives the results in the order of the tasks.  ``map`` of Python is
one.  Functions and tasks can be pickled; a task holds the data of its own users and the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.processes import process_pool
from redactory.foundation.wire import check_wire
from redactory.training.uedp.local_update import Cohort

Update = Callable[[Cohort], NDArray[np.float64]]
_PATIENCE = 10.0


class UpdateMap(Protocol):
    """Calls a function on each task; the results in the order of the tasks."""

    def __call__(self, update: Update, tasks: Iterable[Cohort], /) -> Iterable[NDArray[np.float64]]: ...


@contextmanager
def update_map(workers: int, dask: str | None = None) -> Iterator[UpdateMap]:
    """A map over ``workers`` processes that live until the context ends; this process where it is one.

    ``dask`` is the address of a scheduler whose workers compute instead: processes of one thread each, which
    can import this package.  ``ConfigurationError`` where none answers there.
    """
    if dask is not None:
        with _client(dask) as client:
            yield partial(_spread, client)
    elif workers == 1:
        yield map
    else:
        with process_pool(workers) as pool:
            yield pool.map


def _client(address: str) -> Any:
    try:
        import distributed
    except ImportError:
        raise ConfigurationError("train.federated.dask: install redactory[dask]") from None
    check_wire(address, "train.federated.dask")
    try:
        connect: Any = distributed.Client
        return connect(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError):
        raise ConfigurationError("train.federated.dask: no scheduler answers at this address") from None


def _spread(client: Any, update: Update, tasks: Iterable[Cohort], /) -> Iterable[NDArray[np.float64]]:
    # pure: equal tasks of two steps would be taken for one, and its result for both
    found: list[NDArray[np.float64]] = client.gather(client.map(update, list(tasks), pure=False))
    return found
