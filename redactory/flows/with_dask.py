"""Prefect's tasks on Dask, where both are installed and the workers can speak with Prefect's server."""

from __future__ import annotations

import os
from typing import Any

from redactory.flows.dask_cluster import LOCAL, check_dask
from redactory.flows.environment import ADDRESS
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.wire import is_loopback


def with_dask(dask: str) -> tuple[Any, Any]:
    """``on_dask`` and ``tasks_on``; ``ConfigurationError`` for what cannot work."""
    check_dask(dask)
    if dask != LOCAL and not is_loopback(dask) and not os.environ.get(ADDRESS):
        raise ConfigurationError(
            f"--dask: the workers at {dask} tell Prefect's server of their tasks: name one in {ADDRESS}"
        )
    try:
        from redactory.flows.dask_map import on_dask
        from redactory.flows.dask_tasks import tasks_on
    except ImportError:
        raise ConfigurationError(
            "--dask with --prefect needs prefect-dask: pip install 'redactory[dask,flows]'"
        ) from None
    return on_dask, tasks_on
