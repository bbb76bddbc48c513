"""The process that leads: it deals a step's pieces, computes its own, and takes all in their order."""

from __future__ import annotations

import hmac
import multiprocessing.connection
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import is_gloo_available

from redactory.foundation.errors import CheckFailed, ConfigurationError
from redactory.foundation.files import PRIVATE_FILE
from redactory.foundation.processes import Companion, companions
from redactory.training.models.network import Network
from redactory.training.parallel.follower import follow
from redactory.training.parallel.group import Group, Message, flat, octets_of
from redactory.training.parallel.messages import LEADER, Done, Failed, Order, Setup, Tag, Task
from redactory.training.pieces import Piece, PieceMap, alone
from redactory.training.uedp.local_update import packed

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

    def told(self, group: Group, number: int, tasks: Tensor, parameters: Tensor) -> list[Message]:
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
                messages = follower.told(self._met, self._dealt, octets_of(tasks), parameters)
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
