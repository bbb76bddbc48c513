"""The service in a folder: a message that it acknowledged is on the disk, and a crash loses none.

``received.jsonl`` is a journal: the messages themselves, one a line, in the order in which they came.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from ldp_wire import FORMAT, format_message, message_schema, parse_body, parse_message, refused

from redactory.foundation.errors import InputError, RunStateError
from redactory.foundation.files import file_lock, make_private_folder, write_bytes, write_json
from redactory.foundation.progress import Progress, ignore_progress
from redactory.training.ldp.accounting import Participation
from redactory.training.ldp.server import LdpServer, Message
from redactory.training.ldp.settings import LdpSettings

MOST_VALUES = 1 << 28
"""float32 values that are held at most (1 GiB)."""
LARGEST_VALUE = 1e12
"""No value of a message is larger: sums and squares stay finite whatever is sent."""
_RECEIVED, _LOCK = "received.jsonl", "lock"


def create_service(
    folder: Path, encoder: Path, settings: Mapping[str, Any] | None = None, *, declared_public: bool = False
) -> dict[str, Any]:
    """Make a service that has learnt nothing yet in the empty ``folder``, and return its guarantee card."""
    # here, since a service that runs must not reach an encoder
    from redactory.pipelines.modeling.ldp import CARD, make_empty_folder, resolve_service_settings
    from redactory.training.ldp.card import make_service_card

    make_empty_folder(folder)
    source, settled = resolve_service_settings(settings, encoder, declared_public)
    card = make_service_card(folder.name, settled, source)
    # the card first: there is no service without one
    write_json(folder / CARD, card)
    Service(settled, encoder=source.digest, shape=source.get_shape(settled.represent)).create(folder)
    return card


class Journal:
    """The messages that a service took, in a file that is only ever added to; closed by ``close``.

    What :meth:`append` returned from is on the disk.  What a killed process left of a line was never
    acknowledged, and is cut off when the file is opened.
    """

    def __init__(self, path: Path) -> None:
        self._name, self._whole = path.name, True
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        with path.open("rb") as file:
            os.ftruncate(self._descriptor, sum(len(line) for line in file if line.endswith(b"\n")))

    def append(self, messages: Sequence[Message]) -> None:
        """Have ``messages`` on the disk; ``RunStateError`` where that fails, and from then on."""
        if not self._whole:
            raise RunStateError(f"{self._name} is closed: start the service again")
        rest = memoryview("".join(f"{format_message(message)}\n" for message in messages).encode("ascii"))
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
        self._whole = False
        os.close(self._descriptor)


def read_journal(path: Path) -> Iterator[Message]:
    """Yield the messages in the journal ``path``; ``InputError`` names a line that is damaged."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return  # cut off by a crash, or being written at this moment
            try:
                yield parse_message(line)
            except InputError:
                raise InputError(
                    f"{path.parent.name}: {path.name}, line {number} is damaged: restore the file from a "
                    "copy, or cut it before this line and have users send again what came after it"
                ) from None


class Service(LdpServer):
    """A server that checks what strangers send, and keeps it in a folder.

    One that is made here lives in memory; :meth:`create` and :meth:`opened` have one in a folder.
    """

    def __init__(self, settings: LdpSettings, *, encoder: str, shape: tuple[int, ...]) -> None:
        super().__init__(settings, encoder=encoder, shape=shape)
        self._folder: Path | None = None
        self._journal: Journal | None = None
        self._steps: dict[str, int] = {}
        """The steps of every slot that came, as bits."""

    def receive(self, *messages: Message) -> None:
        """Take training ``messages``, or none of them where one does not fit (``InputError``).

        In a folder they are on the disk when this returns; whoever hears of it need not send them again.
        One that comes again is counted once.
        """
        self._require(False, messages)
        self._require_room(self.settings.sampling, messages, self._slots)
        fresh = _fresh(self._steps, messages)
        if self._journal is not None and fresh:
            self._journal.append(fresh)
        super().receive(*fresh)
        for message in fresh:
            self._steps[message.slot] = self._steps.get(message.slot, 0) | 1 << message.step

    def receive_lines(self, body: bytes) -> int:
        """Receive the messages of JSON lines, and return how many they hold."""
        messages = parse_body(body)
        self.receive(*messages)
        return len(messages)

    def facts(self) -> dict[str, Any]:
        """Return what users must know of the service, all of it public; what they read over a wire."""
        return {"format": FORMAT, **self.describe(), "message": message_schema()}

    def train(self, progress: Progress = ignore_progress) -> dict[str, Any]:
        """Train the network anew on all that came; in a folder, commit it there."""
        summary = super().train(progress)
        if self._folder is not None:
            self.save(self._folder)
        return summary

    def answer(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Answer as the server does; ``InputError`` where a message does not fit."""
        self._require(True, messages)
        self._require_room(self.settings.query_participation, messages, {})
        return super().answer(_fresh({}, messages))

    def answer_lines(self, body: bytes) -> list[dict[str, Any]]:
        """Answer the questions of JSON lines."""
        return self.answer(parse_body(body))

    def create(self, folder: Path) -> None:
        """Commit a service that has received nothing to ``folder``, where :meth:`opened` finds it."""
        make_private_folder(folder)
        write_bytes(folder / _RECEIVED, b"")
        self.save(folder)

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Self]:
        """Open the service in ``folder``, which nobody else opens meanwhile (``RunStateError``).

        Every message it takes is journaled before it is counted: whatever ends the process, none that was
        acknowledged is lost, and nothing needs to be saved.
        """
        if not (folder / _RECEIVED).is_file():
            raise InputError(f"{folder.name} is not a service that receives messages")
        with file_lock(folder / _LOCK, f"the service {folder.name}"):
            found = cls.load(folder)
            for message in read_journal(folder / _RECEIVED):
                found.receive(message)
            with closing(Journal(folder / _RECEIVED)) as found._journal:
                found._folder = folder
                yield found

    def _require(self, asks: bool, messages: Sequence[Message]) -> None:
        for message in messages:
            if (message.label is None) != asks:
                raise refused(message.slot, "purpose", f"must be {'query' if asks else 'train'} here")
            if message.encoder != self.encoder:
                raise refused(message.slot, "encoder", "is not the one this service was made for")
            if message.label is not None and message.label >= len(self.settings.classes):
                raise refused(message.slot, "label", f"must be below {len(self.settings.classes)}")

    def _require_room(
        self, way: Participation, messages: Sequence[Message], known: Mapping[str, Mapping[int | None, Any]]
    ) -> None:
        """``InputError`` where one has another shape, a step too late or another label than its slot's.

        ``known`` are the labels of slots that came before.  Nothing is added.
        """
        most_labels = getattr(way, "classes", None) or 1
        labels: dict[str, int | None] = {}
        for message in messages:
            if message.values.shape != self.message_shape:
                raise refused(message.slot, "shape", f"must be {list(self.message_shape)}")
            if message.step >= way.steps:
                raise refused(message.slot, "step", f"must be below {way.steps}")
            if bool((np.abs(message.values) > LARGEST_VALUE).any()):
                raise refused(message.slot, "values", f"must be at most {LARGEST_VALUE:g} each")
            before = known.get(message.slot)
            first = next(iter(before)) if before else labels.setdefault(message.slot, message.label)
            if message.label != first and most_labels == 1:
                raise refused(message.slot, "label", "must be the same in every step of a slot")
        slots, most = len(known) + len(labels), min(most_labels, way.steps)
        if slots * most * math.prod(self.message_shape) > MOST_VALUES:
            raise InputError("the service holds all the slots that it can")


def _fresh(known: Mapping[str, int], messages: Iterable[Message]) -> list[Message]:
    """The ``messages`` whose step is not among the bits of their slot in ``known``, each once."""
    fresh: dict[tuple[str, int], Message] = {}
    for message in messages:
        if not known.get(message.slot, 0) >> message.step & 1:
            fresh.setdefault((message.slot, message.step), message)
    return list(fresh.values())
