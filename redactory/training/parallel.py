"""One training on several processes of a machine: the same weights, ledger and guarantee as on one.

One process leads.  It alone has the run, the root key and the ledger: it draws the sample of a step and
cuts it into pieces, as it would alone.  It deals the pieces to the others in turn, with the parameters as
they are; they send back what each piece gives, and whoever asked adds it **in the order of the pieces**,
admits the sum to the ledger, adds noise once and moves the parameters.  What is dealt are token ids, no text,
and of the stream at most what dropout of those points is drawn from.  It goes through pipes that the
processes were started with.

Formal guarantees: a piece's clipped sum is the same function of the parameters, the piece and its draws in
every process: float arithmetic of one machine at one number of threads.  So the sum of a step is, bit for
bit, that of one process, and with it everything that follows: the digest in the ledger, the noise, which is
keyed by the step and drawn once for that one sum, and the weights.  The sample is drawn as by one process.
The mechanism is thus the same function of data and coins, and its guarantee is the same theorem
(``docs/guarantees.md``, "Several processes").
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
from redactory.foundation.processes import Companion, companions
from redactory.training.data import EncodedPoints, Ids, PieceMap, Work, alone
from redactory.training.models.network import Network
from redactory.training.numerics import fixed_numerics
from redactory.training.steps import flat, load

PATIENCE = 600.0
"""Seconds after which a process that says nothing is given up, unless our own pieces take long too."""
_TIMES_OURS = 20.0


@contextmanager
def piece_map(workers: int, network: Network, threads: int) -> Iterator[PieceMap]:
    """A map of pieces over ``workers`` processes, this one among them, that live until the context ends.

    Every process computes with ``threads`` threads.
    """
    if workers == 1:
        yield alone
        return
    network.begin_with({})
    with companions(follow, [(pickle.dumps(network), threads)] * (workers - 1)) as others:
        yield Leader(others)


def follow(pipe: Connection, network: bytes, threads: int) -> None:
    """Compute pieces for the leader until it is gone or one fails; read no file, draw and decide nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        # whatever is printed here, by Python or below it, could quote a point
        os.dup2(nowhere, descriptor)
    try:
        with fixed_numerics(threads):
            own: Network = pickle.loads(network).train()
            while True:
                number, parameters, work, tasks = pickle.loads(pipe.recv_bytes())
                load(own, torch.from_numpy(parameters))
                for place, seeds, batch in tasks:
                    own.begin_with(seeds)
                    result = work(own, batch).numpy()
                    pipe.send_bytes(pickle.dumps((number, place, result), pickle.HIGHEST_PROTOCOL))
    except Exception as error:
        # an error's words and frames may hold a point: its kind is all that leaves this process
        pipe.send_bytes(pickle.dumps(type(error).__name__))


@dataclass
class Leader:
    """A :class:`PieceMap` over this process and ``others``, to whom the pieces are dealt in turn.

    Formal guarantees: results come in the order of the pieces, each computed once, from these parameters;
    anything else ends the training before a sum is made of it.
    """

    others: Sequence[Companion]
    _dealt: int = field(default=0, init=False)
    _longest: float = field(default=0.0, init=False)

    def __call__(
        self, network: Network, work: Work, points: EncodedPoints, pieces: Sequence[Ids]
    ) -> Iterator[torch.Tensor]:
        """What the pieces give, in their order; see the class."""
        self._dealt += 1
        size, parameters = 1 + len(self.others), flat(network).numpy()
        for rank in range(1, min(size, len(pieces))):
            places = range(rank, len(pieces), size)
            tasks = [(k, network.step_seeds(pieces[k]), points.batch(pieces[k])) for k in places]
            octets = pickle.dumps((self._dealt, parameters, work, tasks), pickle.HIGHEST_PROTOCOL)
            try:
                self.others[rank - 1].pipe.send_bytes(octets)
            except OSError:
                raise self._lost(rank) from None
        for place, piece in enumerate(pieces):
            if rank := place % size:
                yield torch.from_numpy(self._answer(rank, place))
                continue
            begun = time.monotonic()
            result = next(alone(network, work, points, [piece]))
            self._longest = max(self._longest, time.monotonic() - begun)
            yield result

    def _answer(self, rank: int, place: int) -> Any:
        """What process ``rank`` has for piece ``place``; ``CheckFailed`` where there is nothing."""
        pipe, process = self.others[rank - 1].pipe, self.others[rank - 1].process
        patience = max(PATIENCE, _TIMES_OURS * self._longest)
        multiprocessing.connection.wait([pipe, process.sentinel], patience)
        try:
            answer = pickle.loads(pipe.recv_bytes()) if pipe.poll() else None
        except (EOFError, OSError):
            answer = None
        if answer is None:
            raise self._lost(rank)
        if isinstance(answer, str):
            raise CheckFailed(
                f"training: {self._name(rank)} failed ({answer}): run the same command again with "
                "train.workers: 1; training resumes from its last checkpoint, and the error is sealed there"
            )
        if answer[:2] != (self._dealt, place):
            raise CheckFailed(
                "training: a process returned a micro-batch that was not assigned to it: nothing was added"
            )
        return answer[2]

    def _lost(self, rank: int) -> CheckFailed:
        """The error that says what became of a process, as far as the system knows."""
        process = self.others[rank - 1].process
        process.join(1.0)
        code = process.exitcode
        what = "does not answer" if code is None else "has ended"
        if code is not None and code < 0:
            what = f"was ended by signal {-code} (killed, or out of memory)"
        return CheckFailed(
            f"training: {self._name(rank)} {what}; run the same command again, with any train.workers: "
            "training resumes from its last checkpoint"
        )

    def _name(self, rank: int) -> str:
        return f"process {rank + 1} of {1 + len(self.others)}"
