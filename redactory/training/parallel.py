"""One training on several processes of a machine: the same weights, ledger and guarantee as on one.

Only the leader has the run, the root key and the ledger. It samples a step's rows, splits them into micro-batches as it
would alone, and distributes these with the current parameters. The workers return each micro-batch's result; the leader
adds them **in the order of the micro-batches**, admits the sum to the ledger, adds noise once and moves the parameters.
Workers get token ids, no text, and of the random stream at most the dropout seeds of those examples, through pipes.

Formal guarantees: a micro-batch's clipped sum is the same function of parameters, micro-batch and draws in every
process (float arithmetic of one machine at one number of threads). So a step's sum has the same bits as in one process,
and so has everything after it: the digest in the ledger, the noise, keyed by the step and drawn once for that sum, and
the weights. The sampling is that of one process. The mechanism is thus the same function of data and draws, with the
same theorem as its guarantee (``docs/guarantees.md``, "Several processes").
"""

from __future__ import annotations

import multiprocessing.connection
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch

from redactory.foundation.errors import CheckFailed
from redactory.foundation.processes import WorkerProcess, start_worker_processes
from redactory.training.data import IntArray, MicroBatchFunction, MicroBatchMap, TokenizedExamples, map_micro_batches
from redactory.training.models.network import Network
from redactory.training.numerics import use_deterministic_numerics
from redactory.training.steps import flatten_parameters, set_flat_parameters

WORKER_TIMEOUT = 600.0
"""Seconds before a silent process is given up, unless the leader's own micro-batches take long too."""
_TIMEOUT_FACTOR = 20.0


@contextmanager
def open_micro_batch_map(workers: int, network: Network, threads: int) -> Iterator[MicroBatchMap]:
    """Open a micro-batch map over ``workers`` processes, including this one, with ``threads`` threads each."""
    if workers == 1:
        yield map_micro_batches
        return
    network.use_step_seeds({})
    with start_worker_processes(run_worker, [(pickle.dumps(network), threads)] * (workers - 1)) as worker_pool:
        yield MicroBatchLeader(worker_pool)


def run_worker(pipe: Connection, network: bytes, threads: int) -> None:
    """Compute micro-batches for the leader until it is gone or one fails; reads no file, draws and decides nothing."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        # output printed here, by Python or by libraries below it, could quote an example
        os.dup2(devnull, descriptor)
    try:
        with use_deterministic_numerics(threads):
            worker_network: Network = pickle.loads(network).train()
            while True:
                round_number, parameters, compute, tasks = pickle.loads(pipe.recv_bytes())
                set_flat_parameters(worker_network, torch.from_numpy(parameters))
                for index, seeds, batch in tasks:
                    worker_network.use_step_seeds(seeds)
                    result = compute(worker_network, batch).numpy()
                    pipe.send_bytes(pickle.dumps((round_number, index, result), pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        # an error's message and frames may contain an example: only its type leaves this process
        pipe.send_bytes(pickle.dumps(type(error).__name__))


@dataclass
class MicroBatchLeader:
    """A :class:`MicroBatchMap` over this process and ``workers``, which get micro-batches in turn.

    Formal guarantees: results come in the order of the micro-batches, each computed once, from these parameters;
    anything else ends the training before a sum is formed.
    """

    workers: Sequence[WorkerProcess]
    _round_number: int = field(default=0, init=False)
    _longest_seconds: float = field(default=0.0, init=False)

    def __call__(
        self,
        network: Network,
        compute: MicroBatchFunction,
        examples: TokenizedExamples,
        micro_batches: Sequence[IntArray],
    ) -> Iterator[torch.Tensor]:
        """Yield the results of the micro-batches in order; see the class."""
        self._round_number += 1
        size, parameters = 1 + len(self.workers), flatten_parameters(network).numpy()
        for rank in range(1, min(size, len(micro_batches))):
            indices = range(rank, len(micro_batches), size)
            tasks = [
                (k, network.collect_step_seeds(micro_batches[k]), examples.make_batch(micro_batches[k]))
                for k in indices
            ]
            payload = pickle.dumps((self._round_number, parameters, compute, tasks), pickle.HIGHEST_PROTOCOL)
            try:
                self.workers[rank - 1].pipe.send_bytes(payload)
            except OSError:
                raise self._make_worker_error(rank) from None
        for index, micro_batch in enumerate(micro_batches):
            if rank := index % size:
                yield torch.from_numpy(self._receive_result(rank, index))
                continue
            started_at = time.monotonic()
            result = next(map_micro_batches(network, compute, examples, [micro_batch]))
            self._longest_seconds = max(self._longest_seconds, time.monotonic() - started_at)
            yield result

    def _receive_result(self, rank: int, index: int) -> Any:
        """Receive the result of process ``rank`` for micro-batch ``index``; ``CheckFailed`` without one."""
        pipe, process = self.workers[rank - 1].pipe, self.workers[rank - 1].process
        timeout = max(WORKER_TIMEOUT, _TIMEOUT_FACTOR * self._longest_seconds)
        multiprocessing.connection.wait([pipe, process.sentinel], timeout)
        try:
            answer = pickle.loads(pipe.recv_bytes()) if pipe.poll() else None
        except (EOFError, OSError):
            answer = None
        if answer is None:
            raise self._make_worker_error(rank)
        if isinstance(answer, str):
            raise CheckFailed(
                f"training: {self._format_worker_name(rank)} failed ({answer}): run the same command again with "
                "train.workers: 1; training resumes from its last checkpoint, and the error is sealed there"
            )
        if answer[:2] != (self._round_number, index):
            raise CheckFailed(
                "training: a process returned a micro-batch that was not assigned to it: nothing was added"
            )
        return answer[2]

    def _make_worker_error(self, rank: int) -> CheckFailed:
        """Make the error for a process that ended or does not answer."""
        process = self.workers[rank - 1].process
        process.join(1.0)
        code = process.exitcode
        problem = "does not answer" if code is None else "has ended"
        if code is not None and code < 0:
            problem = f"was ended by signal {-code} (killed, or out of memory)"
        return CheckFailed(
            f"training: {self._format_worker_name(rank)} {problem}; run the same command again, "
            "with any train.workers: "
            "training resumes from its last checkpoint"
        )

    def _format_worker_name(self, rank: int) -> str:
        return f"process {rank + 1} of {1 + len(self.workers)}"
