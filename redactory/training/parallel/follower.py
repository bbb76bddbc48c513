"""A process that computes pieces for another one: it reads no file, draws nothing and decides nothing."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch

from redactory.training.models.network import Network
from redactory.training.numerics import fixed_numerics
from redactory.training.parallel.group import Group, Message, flat
from redactory.training.parallel.messages import LEADER, Done, Failed, Order, Setup, Tag, Task
from redactory.training.phases import load

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
