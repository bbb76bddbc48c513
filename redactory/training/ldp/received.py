"""What the server holds of each slot: the sum of its messages, and which of its steps came.

On the disk the same is a journal: the messages themselves, one a line, in the order in which they came.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import InputError, RunStateError
from redactory.training.ldp.message import Message

MOST_VALUES = 1 << 28
"""float32 values that are held at most (1 GiB)."""
LARGEST_VALUE = 1e12
"""No value of a message is larger: sums and squares stay finite whatever is sent."""
_BLOCK = 1 << 20


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

    def fresh(self, messages: Iterable[Message]) -> list[Message]:
        """Those of ``messages`` that did not come before, each once."""
        found: dict[tuple[str, int], Message] = {}
        for message in messages:
            if not self._seen.get(message.slot, 0) >> message.step & 1:
                found.setdefault((message.slot, message.step), message)
        return list(found.values())

    def add(self, messages: Iterable[Message]) -> None:
        """Count ``messages``, which :meth:`require_room` let pass, each once."""
        for message in self.fresh(messages):
            slot = message.slot
            if slot in self._sums:
                self._sums[slot] += message.values
            else:
                self._sums[slot] = message.values.astype(np.float32)
            self._seen[slot] = self._seen.get(slot, 0) | 1 << message.step
            self._labels[slot] = _label(message)

    def means(self) -> NDArray[np.float32]:
        """The mean message of every slot: [slots, \\*shape]."""
        counts = [seen.bit_count() for seen in self._seen.values()]
        found = [sums / np.float32(count) for sums, count in zip(self._sums.values(), counts, strict=True)]
        return np.stack(found) if found else np.empty((0, *self.shape), np.float32)

    def labels(self) -> NDArray[np.int64]:
        """Every slot's label, −1 for a question's."""
        return np.array(list(self._labels.values()), np.int64)


class Journal:
    """The messages that a service took, in a file that is only ever added to; closed by ``close``.

    What :meth:`append` returned from is on the disk.  What a killed process left of a line was never
    acknowledged, and is cut off when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._name, self._whole = path.name, True
        self._descriptor: int | None = os.open(path, flags)
        os.ftruncate(self._descriptor, _whole_lines(path))

    def append(self, messages: Sequence[Message]) -> None:
        """Have ``messages`` on the disk; ``RunStateError`` where that fails, and from then on."""
        if self._descriptor is None or not self._whole:
            raise RunStateError(f"{self._name} is closed: start the service again")
        rest = memoryview("".join(f"{message.to_json()}\n" for message in messages).encode("ascii"))
        before = os.fstat(self._descriptor).st_size
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            # after a failed fsync nobody knows what the disk holds: only reading it anew tells
            self._whole = False
            with suppress(OSError):
                os.ftruncate(self._descriptor, before)
            raise RunStateError(
                f"{self._name} cannot be written ({error.strerror}): make room, and start the service again"
            ) from None

    def close(self) -> None:
        """Let go of the file; nothing can be added afterwards."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def journaled(path: Path) -> Iterator[Message]:
    """The messages in the journal ``path``; ``InputError`` names a line that is damaged."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # cut off by a crash, or being written at this moment
            try:
                yield Message.from_json(line)
            except InputError:
                raise InputError(
                    f"{path.parent.name}: {path.name}, line {number} is damaged: restore the file from a "
                    "copy, or cut it before this line and have users send again what came after it"
                ) from None


def _whole_lines(path: Path) -> int:
    """How many octets of the file belong to lines that end."""
    place = path.stat().st_size
    with path.open("rb") as file:
        while place > 0:
            start = max(0, place - _BLOCK)
            file.seek(start)
            end = file.read(place - start).rfind(b"\n")
            if end >= 0:
                return start + end + 1
            place = start
    return 0


def _label(message: Message) -> int:
    return -1 if message.label is None else message.label


def _refused(message: Message, key: str, problem: str) -> InputError:
    return InputError(f"message of slot {message.slot}: {key} {problem}")
