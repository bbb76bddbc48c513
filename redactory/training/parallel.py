"""One training on several processes of a machine: the same weights, ledger and guarantee as on one.

One process leads.  It alone has the run, the root key and the ledger: it draws the sample of a step and
cuts it into pieces, as it would alone.  It deals the pieces to the others, with the parameters as they are;
they send back what each piece gives, and the leader adds it **in the order of the pieces**, admits the sum
to the ledger, adds noise once and moves the parameters.  What it deals are token ids, no text, and of the
stream at most what dropout of those points is drawn from.  All of it goes through gloo on the loopback
interface, one result after the other: sums that gloo adds would be added in an order of its own.

Formal guarantees: a piece's clipped sum is the same function of the parameters, the piece and its draws in
every process: float arithmetic of one machine at one number of threads.  So the sum of a step is, bit for
bit, that of one process, and with it everything that follows: the digest in the ledger, the noise, which is
keyed by the step and drawn once for that one sum, and the weights.  The sample is drawn as by one process.
The mechanism is thus the same function of data and coins, and its guarantee is the same theorem
(``docs/guarantees.md``, "Several processes").
"""

from __future__ import annotations

import hmac
import multiprocessing.connection
import os
import pickle
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import FileStore, ProcessGroupGloo, is_gloo_available  # type: ignore[attr-defined]

from redactory.foundation.errors import CheckFailed, ConfigurationError
from redactory.foundation.files import PRIVATE_FILE
from redactory.foundation.processes import Companion, companions
from redactory.training.models.network import Network, Seeds
from redactory.training.numerics import fixed_numerics
from redactory.training.phases import load, trainable
from redactory.training.pieces import Piece, PieceMap, Work, alone
from redactory.training.points import Batch
from redactory.training.uedp.local_update import packed

LEADER = 0


class Tag(IntEnum):
    """Keeps the kinds of message of one connection apart."""

    TASKS = 1
    PARAMETERS = 2
    RESULTS = 3
    GREETING = 4


@dataclass(frozen=True)
class Setup:
    """What a process gets when it starts; ``greeting`` proves to the leader who it is talking to.

    ``network`` is pickled, without a stream.  No key, no folder of the run and no text is in it.
    """

    meeting: Path
    rank: int
    size: int
    threads: int
    network: bytes
    greeting: bytes


@dataclass(frozen=True)
class Order:
    """The tasks of one dealing, the ``number``-th: so many octets of them follow, then the parameters."""

    number: int
    octets: int


@dataclass(frozen=True)
class Task:
    """A piece as another process needs it; ``place`` is its number among the pieces of the dealing."""

    place: int
    work: Work
    arrays: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64] | None]
    seeds: Seeds

    @classmethod
    def of(cls, place: int, piece: Piece, seeds: Seeds) -> Task:
        """The task of ``piece``: its points as ids."""
        batch = piece.batch()
        rows = None if batch.rows is None else batch.rows.numpy()
        arrays = (batch.inputs.numpy(), batch.targets.numpy(), batch.real.numpy(), rows)
        return cls(place, piece.work, arrays, seeds)

    def batch(self) -> Batch:
        """The points again."""
        inputs, targets, real, rows = self.arrays
        numbers = None if rows is None else torch.from_numpy(rows)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(real), numbers)


@dataclass(frozen=True)
class Done:
    """A task was carried out on so many ``points``; its result is on the way."""

    number: int
    place: int
    points: int


@dataclass(frozen=True)
class Failed:
    """A task was not carried out: the ``kind`` of error alone, since its words may quote a point."""

    kind: str


# The gloo group of one training: on the loopback interface, with no state of its own in ``torch``.


_LOOPBACK = "127.0.0.1"


class Group:
    """``size`` processes that meet at the file ``meeting``, and have ``patience`` seconds for it.

    No default group is set up or taken: a program that uses ``torch.distributed`` keeps its own.
    ``RuntimeError`` where not all have come.
    """

    def __init__(self, meeting: Path, rank: int, size: int, patience: float) -> None:
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        # the default would be the interface that the machine's name stands for: one that others can reach
        options._devices = [gloo.create_device(hostname=_LOOPBACK)]
        options._timeout = timedelta(seconds=patience)
        store = FileStore(str(meeting), size)
        store.set_timeout(options._timeout)
        self._gloo = gloo(store, rank, size, options)

    def send(self, values: Tensor, rank: int, tag: int) -> Message:
        """Begin to send ``values``, which must stay as they are until it is waited for."""
        return Message(self._gloo.send([values], rank, tag), values)

    def receive(self, values: Tensor, rank: int, tag: int) -> Message:
        """Begin to receive into ``values``, of the size and kind that is sent."""
        return Message(self._gloo.recv([values], rank, tag), values)


@dataclass(frozen=True)
class Message:
    """``values`` on their way."""

    work: Any
    values: Tensor

    def wait(self, patience: float | None = None) -> Tensor:
        """The values, arrived; ``RuntimeError`` where the other process is gone or too slow."""
        if patience is None:
            self.work.wait()
        else:
            self.work.wait(timedelta(seconds=patience))
        return self.values


def octets_of(value: Any) -> Tensor:
    """``value`` pickled, as a tensor of octets."""
    return torch.frombuffer(bytearray(pickle.dumps(value, pickle.HIGHEST_PROTOCOL)), dtype=torch.uint8)


@torch.no_grad()
def flat(network: nn.Module) -> Tensor:
    """The trainable parameters, one after the other, as they are."""
    return torch.cat([parameter.detach().flatten() for parameter in trainable(network)])


# A process that computes pieces for another one: it reads no file, draws nothing and decides nothing.


_DAYS = 30 * 86_400.0
"""Seconds that a result may wait for a leader at work; one that is gone ends this process at once."""


def follow(pipe: Connection, setup: Setup) -> None:
    """Carry out the leader's orders until it is gone or a task fails."""
    _say_nothing()
    try:
        with fixed_numerics(setup.threads):
            _follow(pipe, setup)
    except Exception as error:
        # an error's words and frames may hold a point: its kind is all that leaves this process
        pipe.send(Failed(type(error).__name__))


def _say_nothing() -> None:
    """Whatever is printed here, by Python or below it, could quote a point."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


def _follow(pipe: Connection, setup: Setup) -> None:
    network: Network = pickle.loads(setup.network)
    network.train()
    pipe.send(setup.rank)
    group = Group(setup.meeting, setup.rank, setup.size, _DAYS)
    group.send(torch.frombuffer(bytearray(setup.greeting), dtype=torch.uint8), LEADER, Tag.GREETING).wait()
    parameters = torch.empty_like(flat(network))
    while True:
        order: Order = pipe.recv()
        octets = torch.empty(order.octets, dtype=torch.uint8)
        tasks = pickle.loads(group.receive(octets, LEADER, Tag.TASKS).wait().numpy().tobytes())
        load(network, group.receive(parameters, LEADER, Tag.PARAMETERS).wait())
        _carry_out(pipe, group, network, order.number, tasks)


def _carry_out(pipe: Connection, group: Group, network: Network, number: int, tasks: Sequence[Task]) -> None:
    """Each task in turn; the result of one is sent while the next one is computed."""
    sent: Message | None = None
    for task in tasks:
        network.begin_with(task.seeds)
        batch = task.batch()
        result = task.work(network, batch).contiguous()
        if sent is not None:
            sent.wait()
        pipe.send(Done(number, task.place, len(batch.targets)))
        sent = group.send(result, LEADER, Tag.RESULTS)
    if sent is not None:
        sent.wait()


# The process that leads: it deals a step's pieces, computes its own, and takes all in their order.


PATIENCE = 600.0
"""Seconds after which a process that says nothing is given up, unless our own pieces take long too."""
_TIMES_OURS = 20.0
_GREETING_BYTES = 32


@contextmanager
def piece_map(workers: int, network: Network, threads: int, meeting: Path) -> Iterator[PieceMap]:
    """A map of pieces over ``workers`` processes, this one among them, that live until the context ends.

    Every process computes with ``threads`` threads.  ``meeting`` is a private file by which they find each
    other.  ``ConfigurationError`` where this ``torch`` has no gloo; ``CheckFailed`` naming the process
    where one does not come.
    """
    if workers == 1:
        yield alone
        return
    if not is_gloo_available():
        raise ConfigurationError("train.workers: this torch was built without gloo; use 1")
    octets = packed(network)
    greetings = [secrets.token_bytes(_GREETING_BYTES) for _ in range(1, workers)]
    setups = [
        Setup(meeting, rank, workers, threads, octets, greeting)
        for rank, greeting in enumerate(greetings, start=1)
    ]
    meeting.unlink(missing_ok=True)  # what a killed training left would bring nobody together
    meeting.touch(PRIVATE_FILE)
    try:
        with companions(follow, [(setup,) for setup in setups]) as others:
            leader = Leader([Follower(rank, workers, one) for rank, one in enumerate(others, start=1)])
            leader.meet(meeting, greetings)
            yield leader
    finally:
        meeting.unlink(missing_ok=True)


@dataclass
class Follower:
    """Another process, as the leader sees it."""

    rank: int
    size: int
    companion: Companion

    def said(self, patience: float) -> Any:
        """Its next message; ``CheckFailed`` where it failed, is gone or says nothing for so many seconds."""
        pipe, sentinel = self.companion.pipe, self.companion.process.sentinel
        multiprocessing.connection.wait([pipe, sentinel], patience)
        try:
            message = pipe.recv() if pipe.poll() else None
        except (EOFError, OSError):
            message = None
        if message is None:
            raise self.lost()
        if isinstance(message, Failed):
            raise CheckFailed(
                f"training: {self._name} failed ({message.kind}): start the same command again with "
                "train.workers: 1; training goes on from its last checkpoint, and the error is sealed there"
            )
        return message

    def waited(self, message: Message, patience: float) -> Tensor:
        """What a message of the group between it and us holds; ``CheckFailed`` as above."""
        try:
            return message.wait(patience)
        except RuntimeError:
            raise self.lost() from None

    def send(self, group: Group, number: int, tasks: Tensor, parameters: Tensor) -> list[Message]:
        """Begin to send it its tasks of the ``number``-th dealing."""
        try:
            self.companion.pipe.send(Order(number, len(tasks)))
            return [
                group.send(tasks, self.rank, Tag.TASKS),
                group.send(parameters, self.rank, Tag.PARAMETERS),
            ]
        except (OSError, RuntimeError):
            raise self.lost() from None

    def asked(self, group: Group, like: Tensor) -> Message:
        """Begin to receive its next result."""
        try:
            return group.receive(torch.empty_like(like), self.rank, Tag.RESULTS)
        except RuntimeError:
            raise self.lost() from None

    def lost(self) -> CheckFailed:
        """The error that says what became of the process, as far as the system knows."""
        process = self.companion.process
        process.join(1.0)
        code = process.exitcode
        if code is None:
            what = "does not answer"
        elif code < 0:
            what = f"was ended by signal {-code} (killed, or out of memory)"
        else:
            what = "has ended"
        return CheckFailed(
            f"training: {self._name} {what}; start the same command again, with any train.workers: training "
            "goes on from its last checkpoint"
        )

    @property
    def _name(self) -> str:
        return f"process {self.rank + 1} of {self.size}"


@dataclass
class Leader:
    """A :class:`PieceMap` over this process and ``followers``, to whom the pieces are dealt in turn.

    Formal guarantees: results come in the order of the pieces, each computed once, from these parameters
    and as many points as were dealt; anything else ends the training before a sum is made of it.
    """

    followers: Sequence[Follower]
    _group: Group | None = field(default=None, init=False, repr=False)
    _dealt: int = field(default=0, init=False)
    _longest: float = field(default=0.0, init=False)

    def meet(self, meeting: Path, greetings: Sequence[bytes]) -> None:
        """Wait for everybody, and make sure that they are who was started."""
        for follower in self.followers:
            follower.said(PATIENCE)
        try:
            self._group = Group(meeting, LEADER, self._size, PATIENCE)
        except RuntimeError:
            raise CheckFailed("training: its processes did not find each other on 127.0.0.1") from None
        for follower, greeting in zip(self.followers, greetings, strict=True):
            # whoever else connected to our port does not know it
            heard = torch.zeros(len(greeting), dtype=torch.uint8)
            follower.waited(self._group.receive(heard, follower.rank, Tag.GREETING), PATIENCE)
            if not hmac.compare_digest(heard.numpy().tobytes(), greeting):
                raise CheckFailed("training: a process that is not of this training has connected")

    def __call__(self, network: nn.Module, pieces: Sequence[Piece], /) -> Iterator[Tensor]:
        """What the pieces give, in their order; see the class."""
        self._dealt += 1
        self._deal(network, pieces)
        like = flat(network)
        for start in range(0, len(pieces), self._size):
            places = range(start + 1, min(start + self._size, len(pieces)))
            # asked for before we compute ourselves, so that they travel in the meantime
            awaited = [
                (place, follower, follower.asked(self._met, like))
                for place, follower in zip(places, self.followers, strict=False)
            ]
            yield self._own(network, pieces[start])
            for place, follower, message in awaited:
                self._check(follower.said(self._patience), place, len(pieces[place].rows))
                yield follower.waited(message, self._patience)

    def _deal(self, network: nn.Module, pieces: Sequence[Piece]) -> None:
        assert isinstance(network, Network)
        parameters, sent = flat(network), []
        for follower in self.followers:
            places = range(follower.rank, len(pieces), self._size)
            if places:
                tasks = [Task.of(k, pieces[k], network.step_seeds(pieces[k].rows)) for k in places]
                messages = follower.send(self._met, self._dealt, octets_of(tasks), parameters)
                sent += [(follower, message) for message in messages]
        for follower, message in sent:
            follower.waited(message, self._patience)

    def _own(self, network: nn.Module, piece: Piece) -> Tensor:
        begun = time.monotonic()
        result = next(alone(network, [piece]))
        self._longest = max(self._longest, time.monotonic() - begun)
        return result

    def _check(self, done: Done, place: int, points: int) -> None:
        if done != Done(self._dealt, place, points):
            raise CheckFailed("training: a process answered for other points than its own: nothing was added")

    @property
    def _met(self) -> Group:
        assert self._group is not None
        return self._group

    @property
    def _patience(self) -> float:
        return max(PATIENCE, _TIMES_OURS * self._longest)

    @property
    def _size(self) -> int:
        return 1 + len(self.followers)
