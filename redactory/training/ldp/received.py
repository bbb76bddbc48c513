"""What the server holds of each slot: the sum of its messages, and which of its steps came."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from redactory.foundation.errors import InputError
from redactory.foundation.files import commit
from redactory.training.ldp.message import Message

MOST_VALUES = 1 << 28
"""float32 values that are held at most (1 GiB)."""
LARGEST_VALUE = 1e12
"""No value of a message is larger: sums and squares stay finite whatever is sent."""


class Received:
    """The slots of one service or of one question, of messages of ``shape`` with steps below ``steps``.

    Of a slot's messages the mean says all there is to say of its vector where each is real (Gaussian noise:
    the mean is sufficient); a message that comes twice counts once.
    """

    def __init__(self, shape: tuple[int, ...], steps: int) -> None:
        self.shape, self.steps = shape, steps
        self._sums: dict[str, NDArray[np.float32]] = {}
        self._seen: dict[str, int] = {}
        self._labels: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def slots(self) -> list[str]:
        """In the order in which they first occurred."""
        return list(self._sums)

    @property
    def messages(self) -> int:
        """Distinct messages that came."""
        return sum(seen.bit_count() for seen in self._seen.values())

    def require_room(self, messages: Iterable[Message]) -> None:
        """``InputError`` where one has another shape, a step too late or another label than its slot's.

        Nothing is added.
        """
        labels: dict[str, int] = {}
        for message in messages:
            if message.values.shape != self.shape:
                raise _refused(message, "shape", f"must be {list(self.shape)}")
            if message.step >= self.steps:
                raise _refused(message, "step", f"must be below {self.steps}")
            if bool((np.abs(message.values) > LARGEST_VALUE).any()):
                raise _refused(message, "values", f"must be at most {LARGEST_VALUE:g} each")
            known = self._labels.get(message.slot, labels.setdefault(message.slot, _label(message)))
            if known != _label(message):
                raise _refused(message, "label", "must be the same in every step of a slot")
        new = len(labels.keys() - self._labels.keys())
        if (len(self) + new) * int(np.prod(self.shape)) > MOST_VALUES:
            raise InputError("the service holds all the slots that it can")

    def add(self, message: Message) -> None:
        """Count ``message``, which :meth:`require_room` let pass, once."""
        slot, step = message.slot, 1 << message.step
        if self._seen.get(slot, 0) & step:
            return
        if slot in self._sums:
            self._sums[slot] += message.values
        else:
            self._sums[slot] = message.values.astype(np.float32)
        self._seen[slot] = self._seen.get(slot, 0) | step
        self._labels[slot] = _label(message)

    def means(self) -> NDArray[np.float32]:
        """The mean message of every slot: [slots, \\*shape]."""
        counts = [seen.bit_count() for seen in self._seen.values()]
        found = [sums / np.float32(count) for sums, count in zip(self._sums.values(), counts, strict=True)]
        return np.stack(found) if found else np.empty((0, *self.shape), np.float32)

    def labels(self) -> NDArray[np.int64]:
        """Every slot's label, −1 for a question's."""
        return np.array(list(self._labels.values()), np.int64)

    def save(self, path: Path) -> None:
        """Commit all of it to a file of safetensors."""
        wide = (self.steps + 7) // 8
        seen = b"".join(value.to_bytes(wide, "little") for value in self._seen.values())
        sums = list(self._sums.values())
        arrays = {
            "slots": np.frombuffer(bytes.fromhex("".join(self._sums)), np.uint8).reshape(-1, 16),
            "sums": np.stack(sums) if sums else np.empty((0, *self.shape), np.float32),
            "seen": np.frombuffer(seen, np.uint8).reshape(-1, wide),
            "labels": self.labels(),
        }
        with commit(path) as temporary:
            save_file(arrays, temporary)

    @classmethod
    def load(cls, path: Path, shape: tuple[int, ...], steps: int) -> Self:
        """What :meth:`save` wrote."""
        arrays, found = load_file(path), cls(shape, steps)
        for number, octets in enumerate(arrays["slots"]):
            slot = octets.tobytes().hex()
            found._sums[slot] = arrays["sums"][number].copy()
            found._seen[slot] = int.from_bytes(arrays["seen"][number].tobytes(), "little")
            found._labels[slot] = int(arrays["labels"][number])
        return found


def _label(message: Message) -> int:
    return -1 if message.label is None else message.label


def _refused(message: Message, key: str, problem: str) -> InputError:
    return InputError(f"message of slot {message.slot}: {key} {problem}")
