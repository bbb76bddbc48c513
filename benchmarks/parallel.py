"""A noisy step shared out among processes: one process of one thread, two of one, one of two.

python benchmarks/parallel.py [--json] [--points N] [--tokens T] [--rounds R] [--width W]
prints one row a way: seconds for the clipped sum of one step (best and median of R, the ways in turn), and
how many times as fast as one process of one thread.  The sums of both ways of one thread must be equal to
the bit; two threads may round otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redactory.foundation.errors import CheckFailed
from redactory.foundation.stream import RandomStream
from redactory.training.clipping import compute_clipped_sum
from redactory.training.data import MicroBatchMap, TokenizedExamples, map_micro_batches
from redactory.training.models.recurrent import LstmLanguageModel
from redactory.training.models.settings import LstmSettings
from redactory.training.numerics import use_deterministic_numerics
from redactory.training.parallel import open_micro_batch_map

_VOCABULARY, _CLIP_NORM, _LONGEST = 4_000, 0.5, 40


def main() -> None:
    """Measure the three ways, interleaved."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=2_048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    own = parser.parse_args()
    rows = measured(own.points, own.tokens, own.rounds, own.width)
    if own.json:
        print(json.dumps({"load": os.getloadavg()[0], "cores": os.cpu_count(), "rows": rows}))
        return
    print(f"{'processes':>9} {'threads':>8} {'best s':>8} {'median s':>9} {'times as fast':>14}")
    for row in rows:
        numbers = f"{row['best']:>8.3f} {row['median']:>9.3f} {row['times_as_fast']:>14.2f}"
        print(f"{row['processes']:>9} {row['threads']:>8} {numbers}")


def measured(points: int, tokens: int, rounds: int, width: int) -> list[dict[str, Any]]:
    """A row for each way; ``CheckFailed`` where two processes have another sum than one."""
    network = LstmLanguageModel(_VOCABULARY, LstmSettings(embedding_size=width, hidden_size=width))
    network.initialise(RandomStream.from_seed(1))
    table = table_of(points)
    times: dict[tuple[int, int], list[float]] = {}
    sums: dict[tuple[int, int], Tensor] = {}
    with open_micro_batch_map(2, network, 1) as two:
        ways: list[tuple[int, int, MicroBatchMap]] = [(1, 1, map_micro_batches), (2, 1, two), (1, 2, map_micro_batches)]
        for _ in range(rounds + 1):  # the first round warms up
            for processes, threads, every in ways:
                seconds, total = once(network, table, tokens, threads, every)
                times.setdefault((processes, threads), []).append(seconds)
                sums[processes, threads] = total
    if not torch.equal(sums[1, 1], sums[2, 1]):
        raise CheckFailed("two processes have another sum than one")
    return rows_of({way: found[1:] for way, found in times.items()})


def rows_of(times: dict[tuple[int, int], Sequence[float]]) -> list[dict[str, Any]]:
    """The figures of each way."""
    first = min(times[1, 1])
    return [
        {
            "processes": processes,
            "threads": threads,
            "best": min(found),
            "median": statistics.median(found),
            "times_as_fast": first / min(found),
        }
        for (processes, threads), found in times.items()
    ]


def once(
    network: LstmLanguageModel, table: TokenizedExamples, tokens: int, threads: int, every: MicroBatchMap
) -> tuple[float, Tensor]:
    """Seconds for the clipped sum of all points, and the sum."""
    with use_deterministic_numerics(threads):
        begun = time.perf_counter()
        total = compute_clipped_sum(network, table, np.arange(len(table)), _CLIP_NORM, tokens, every)
        return time.perf_counter() - begun, total


def table_of(points: int) -> TokenizedExamples:
    """Points of 5 to 40 random tokens."""
    source = np.random.default_rng(1)
    offsets = np.concatenate([[0], np.cumsum(source.integers(5, _LONGEST, points))]).astype(np.int64)
    ids = source.integers(3, _VOCABULARY, int(offsets[-1])).astype(np.int32)
    return TokenizedExamples(ids, offsets, begin_id=0, pad_id=1)


if __name__ == "__main__":
    main()
