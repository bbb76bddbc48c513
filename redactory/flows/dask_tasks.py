"""Prefect's tasks on the workers of a Dask cluster, through prefect-dask."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from distributed import KilledWorker
from prefect_dask.task_runners import DaskTaskRunner

from redactory.flows.dask_map import Workers, parcel_of, part_lost
from redactory.flows.dask_worker import Parcel, carry_out, opened
from redactory.flows.prefect_tasks import as_tasks
from redactory.foundation.reports import StageReport
from redactory.pipelines.maps import StageMap, Task, name_of


def tasks_on(workers: Workers) -> StageMap:
    """A map whose every part is a Prefect task on one of the workers.

    Prefect tries a part again that failed there, Dask one whose worker was lost.
    """

    def spread(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
        if not numbers:
            return
        client, name = workers.client, name_of(task)
        runner: Any = DaskTaskRunner(
            address=client.scheduler.address, client_kwargs={"security": client.security}
        )
        with parcel_of(task, workers.terms) as parcel:
            try:
                yield from as_tasks(
                    runner, len(client.nthreads()), name, functools.partial(_carried_out, parcel), numbers
                )
            except KilledWorker:
                killed = True
            else:
                killed = False
        if killed:
            raise part_lost(name)

    return spread


def _carried_out(parcel: Parcel, number: int) -> StageReport:
    return opened(carry_out(number, parcel))
