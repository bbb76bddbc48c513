"""A process of its own that runs our flows against the server of its environment, one after the other.

Partition tasks run on threads in place of processes, so that the stages can be made to fail from here.
Prints one JSON object: what each run gave.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.orchestration import get_client

from redactory.flows import prefect_flows, prefect_tasks
from redactory.flows.server import TASK_TAG, prepare_server
from redactory.foundation.errors import RedactoryError
from redactory.foundation.progress import StageReport
from redactory.pipelines.curation.stages import examples as stages

real_part = stages.segment_documents
failures_left = 0
at_work: list[int] = []
both = threading.Barrier(2)


def unsteady_part(job: Any, partitions: int, partition: int) -> Any:
    """``segment_documents``, which fails while there are failures left, in partition 1."""
    global failures_left
    if partition == 1 and failures_left:
        failures_left -= 1
        raise OSError("no space left beside the words of the corpus")
    return real_part(job, partitions, partition)


def counted_part(seen: set[int], meet: Callable[[], Any], number: int) -> StageReport:
    """A part that notes in ``seen`` how many are at work, while it waits for ``meet``."""
    at_work.append(number)
    seen.add(len(at_work))
    meet()
    at_work.remove(number)
    return StageReport("part", Counter())


@flow(name="two-parts")
def most_at_once(folder: Path, limit: int, meet: Callable[[], Any]) -> int:
    """How many of two tasks are at work at once where both could be, and the server allows ``limit``."""
    prepare_server(limit)
    seen: set[int] = set()
    with prefect_tasks.open_process_task_map(2, folder) as spread:
        list(spread(partial(counted_part, seen, meet), range(2)))
    return max(seen)


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """In place of the processes."""
    with ThreadPoolExecutor(count) as pool:
        yield pool


def run(config: Path, failures: int = 0) -> dict[str, Any]:
    """Curate with so many failures on the way: the summary, or the error's words."""
    global failures_left
    failures_left = failures
    try:
        result: dict[str, Any] = prefect_flows.curate(
            str(config), str(config.parent / "runs" / "{start}"), resume=True, workers=2, verify=True
        )
        return result
    except RedactoryError as error:
        return {"error": str(error), "kind": type(error).__name__}


def main(config: Path) -> dict[str, dict[str, Any]]:
    unsteady_part.__name__ = "segment_documents"
    vars(stages)["segment_documents"] = unsteady_part
    vars(prefect_tasks)["open_process_pool"] = threads
    vars(prefect_tasks)["RETRY_SECONDS"] = [0.1, 0.1]
    # first: a process remembers for a while that there was no limit
    most = [
        most_at_once(config.parent, 1, lambda: time.sleep(0.5)),
        # each waits until the other is there
        most_at_once(config.parent, 50, lambda: both.wait(120)),
    ]
    with get_client(sync_client=True) as client:
        # each task of the others would ask the server
        client.delete_concurrency_limit_by_tag(TASK_TAG)
    told = {"unsteady": {**run(config, failures=2), "most_at_once": most}, "same": run(config)}
    (Path(told["same"]["run"]) / "public" / "part-00000.parquet").unlink()
    told["gone"] = run(config)
    with (config.parent / "rows.jsonl").open("a") as file:
        file.write('{"id": "new", "text": "A new row."}\n')
    told["hopeless"] = run(config, failures=3)
    told["new"] = run(config)
    with (config.parent / "rows.jsonl").open("a") as file:
        file.write("broken\n" * 40)
    told["refused"] = run(config)
    return told


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
