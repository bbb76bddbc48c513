"""How much faster two workers curate than one: over Dask, and over processes of one machine.

The same simulated dialogues with the default detection, each way in a process of its own, all of them in
turn, several rounds.  Workers compute in one thread (their CPU time beside the clock shows it) and have their
engines loaded by a small run before the clock starts; the clock covers a whole run, from reading the file to
the finished folder.  The start of the cluster is told apart.  Prints JSON; a ratio is of one round's two
runs, and the median is over the rounds.

    python benchmarks/cluster.py --rows 2000 --rounds 5
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redactory
from redactory.flows.server import configure_prefect, open_server
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.stage_context import StageMap, measure_peak_memory_mb, open_process_map
from redactory.redaction import RunFolder, list_parts

WAYS = ("dask-1", "dask-2", "processes-1", "processes-2")
# one key for all: without it no two runs have the same bytes
SETTLED = {"REDACTORY_KEY": "a key of the benchmark, no secret"}
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
WARM_ROWS = 32
Told = dict[str, Any]


def main() -> None:
    """Run the rounds, or, as a child, one way."""
    arguments = _arguments()
    if arguments.way:
        print(json.dumps(_timed(arguments.way, arguments.folder, arguments.documents)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        redactory.simulate(folder / "corpus.jsonl", arguments.rows, 1)
        redactory.simulate(folder / "warm.jsonl", WARM_ROWS, 2)
        rounds = [
            {way: _child(way, folder, arguments.documents) for way in _turned(WAYS, number)}
            for number in range(arguments.rounds)
        ]
    print(json.dumps(_summary(arguments, rounds), indent=2))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2000, help="simulated dialogues")
    parser.add_argument("--documents", type=int, default=50, help="dialogues of a partition")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _turned(ways: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Another way first in each round."""
    first = number % len(ways)
    return ways[first:] + ways[:first]


def _child(way: str, folder: Path, documents: int) -> Told:
    command = [sys.executable, __file__, "--way", way, "--folder", str(folder), "--documents", str(documents)]
    done = subprocess.run(
        command, env={**os.environ, **ONE_THREAD, **SETTLED}, check=True, stdout=subprocess.PIPE, text=True
    )
    told: Told = json.loads(done.stdout)
    return told


def _timed(way: str, folder: Path, documents: int) -> Told:
    """One run over warm workers: seconds of all of it and by stage, and what the workers used."""
    kind, count = way.split("-")
    config = _config(folder / "corpus.jsonl", documents, int(count))
    warm = _config(folder / "warm.jsonl", 4, int(count))
    with tempfile.TemporaryDirectory(dir=folder) as place:
        start = time.perf_counter()
        with _map(kind, config, Path(place)) as (stage_map, used):
            started = time.perf_counter() - start
            redactory.curate(warm, output=Path(place) / "warm", stage_map=stage_map)
            before, own, clock = used(), time.process_time(), Clock()
            told = redactory.curate(config, output=Path(place) / "run", stage_map=stage_map, progress=clock)
            seconds, after, own = clock.seconds(), used(), time.process_time() - own
        digests = _digests(RunFolder(Path(place) / "run"))
    return {
        "examples": told["examples"],
        "digests": digests,
        "started": round(started, 2),
        "seconds": round(seconds, 2),
        "stages": {name: round(value, 2) for name, value in clock.stages().items()},
        "cpu_share_here": round(own / seconds, 3),
        "workers": [
            {"cpu_share": round((late[0] - early[0]) / seconds, 3), "peak_mb": round(late[1])}
            for early, late in zip(before, after, strict=True)
        ],
    }


def _digests(run: RunFolder) -> str:
    """One digest of all data files; the card and the manifest name the run."""
    digest = hashlib.sha256()
    for folder in run.data_folders:
        for part in list_parts(folder):
            digest.update(part.read_bytes())
    return digest.hexdigest()


def _config(data: Path, documents: int, workers: int) -> Config:
    asked = {"segment": {"mode": "turn"}, "partition": {"documents": documents}, "workers": workers}
    return load_config({"input": str(data), "output": str(data.with_suffix("")), **asked})


@contextmanager
def _map(kind: str, config: Config, place: Path) -> Iterator[tuple[StageMap, Any]]:
    """The map, and what tells of each of its processes the CPU seconds and the peak memory in MiB."""
    if kind == "dask":
        # Prefect reads its settings on the first import
        configure_prefect(place / "prefect")
        from redactory.flows.prefect_tasks import open_stage_map

        with open_server(), open_stage_map("local", config, RunFolder(place.absolute())) as stage_map:
            runner: Any = stage_map.args[0]  # type: ignore[attr-defined]

            def used() -> list[tuple[float, float]]:
                found = runner.client.run(_used)
                return [found[address] for address in sorted(found)]

            yield stage_map, used
        return
    with open_process_map(config.workers) as stage_map:
        # processes of a pool cannot be asked one by one
        yield stage_map, lambda: [_used()] if config.workers == 1 else []


def _used() -> tuple[float, float]:
    return time.process_time(), measure_peak_memory_mb()


class Clock:
    """A listener that notes when each stage was heard of last."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._last: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Progress of a stage."""
        self._last[stage] = time.perf_counter() - self._start

    def seconds(self) -> float:
        """Since the begin."""
        self._last["release"] = time.perf_counter() - self._start
        return self._last["release"]

    def stages(self) -> dict[str, float]:
        """Seconds of each stage: from the end of the one before to its own."""
        ends = sorted(self._last.items(), key=lambda item: item[1])
        return {name: end - before for (name, end), (_, before) in zip(ends, [("", 0.0), *ends], strict=False)}


def _summary(arguments: argparse.Namespace, rounds: list[dict[str, Told]]) -> Told:
    def ratios(one_worker: str, two: str) -> Told:
        found = [one[one_worker]["seconds"] / one[two]["seconds"] for one in rounds]
        return {"rounds": [round(r, 3) for r in found], "median": round(statistics.median(found), 3)}

    def middle(way: str, stage: str) -> float:
        return round(statistics.median(one[way]["stages"].get(stage, 0.0) for one in rounds), 2)

    return {
        "rows": arguments.rows,
        "examples": rounds[0]["dask-1"]["examples"],
        "documents_of_a_partition": arguments.documents,
        "cores": os.cpu_count(),
        "rounds": len(rounds),
        "seconds": {way: [one[way]["seconds"] for one in rounds] for way in WAYS},
        "cluster_started_in": {way: [one[way]["started"] for one in rounds] for way in WAYS[:2]},
        "speed_up": {
            "dask": ratios("dask-1", "dask-2"),
            "processes": ratios("processes-1", "processes-2"),
            "dask against one process": ratios("processes-1", "dask-2"),
        },
        "stages": {stage: {way: middle(way, stage) for way in WAYS} for stage in rounds[0]["dask-1"]["stages"]},
        "workers": {way: [one[way]["workers"] for one in rounds] for way in WAYS[:3]},
        "cpu_share_of_the_command": {way: [one[way]["cpu_share_here"] for one in rounds] for way in WAYS},
        "same_bytes": len({one[way]["digests"] for one in rounds for way in WAYS}) == 1,
    }


if __name__ == "__main__":
    main()
