"""Checkpoints: a resumed training goes on from the last one, bit for bit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from redactory.foundation.files import commit

SECONDS = 30.0
"""Time after which the state is written again, wherever the training is."""
_TIMES_WRITING = 20.0
"""How many times as long as writing took it waits at least: a large model is not written all the time."""


@dataclass(frozen=True)
class Checkpoint:
    """Where the state of one training lies: what moves in ``network``, and the ``optimizers``' memory.

    ``binding`` names the training it belongs to.  Parameters that are frozen are not written: they are
    what they were read as.  Draws are named by step, so the only counter is the number of steps done.

    Formal guarantees: no key, text or gradient is in the file; all that is in it was released by noisy
    steps or follows from public points.
    """

    path: Path
    binding: str
    network: nn.Module
    optimizers: Sequence[Optimizer]

    def write(self, steps: int) -> None:
        """Commit the state after ``steps`` steps."""
        counters = {"binding": self.binding, "steps": steps}
        tensors = {name: value.detach().contiguous().cpu() for name, value in self._state().items()}
        with commit(self.path) as temporary:
            save_file(tensors, temporary, metadata={"training": json.dumps(counters)})

    def read(self) -> int:
        """Load the state; the number of steps that are done.

        0, and nothing is loaded, where there is none or it belongs to another training.
        """
        if not self.path.exists():
            return 0
        with safe_open(self.path, "pt") as file:
            counters = json.loads(file.metadata()["training"])
            if counters["binding"] != self.binding:
                return 0
            self._load({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no mapping)
        return int(counters["steps"])

    def _state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {
            f"network.{name}": p for name, p in self.network.named_parameters() if p.requires_grad
        }
        for number, optimizer in enumerate(self.optimizers):
            for index, memory in optimizer.state_dict()["state"].items():
                kept = {key: value for key, value in memory.items() if isinstance(value, Tensor)}
                found.update({f"optimizer.{number}.{index}.{key}": value for key, value in kept.items()})
        return found

    @torch.no_grad()
    def _load(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(tensors[f"network.{name}"])
        for number, optimizer in enumerate(self.optimizers):
            memory: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                kind, *place = name.split(".")
                if kind == "optimizer" and int(place[0]) == number:
                    memory.setdefault(int(place[1]), {})[place[2]] = value
            optimizer.load_state_dict({**optimizer.state_dict(), "state": memory})


class Pace:
    """When a state is due by the clock, and none was written for its own reasons meanwhile.

    The clock decides where an interrupted training goes on and nothing else: a step does not know of it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last, self._took = clock(), 0.0

    def due(self) -> bool:
        """Whether the last state is :data:`SECONDS` old, and writing it took little of that time."""
        return self._clock() - self._last >= max(SECONDS, _TIMES_WRITING * self._took)

    def write(self, checkpoint: Checkpoint, steps: int) -> None:
        """Commit the state after ``steps`` steps."""
        begun = self._clock()
        checkpoint.write(steps)
        self._last = self._clock()
        self._took = self._last - begun
