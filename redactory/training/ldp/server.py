"""The server's side: noisy messages in, classes out.  No text, tokenizer or encoder is within its reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from redactory.foundation.errors import ConfigurationError, InputError, RunStateError
from redactory.foundation.files import commit, make_private_folder, read_json, write_bytes, write_json
from redactory.foundation.locks import only_one
from redactory.foundation.progress import Progress, silent
from redactory.training.ldp.fitting import fit
from redactory.training.ldp.heads import Head, head_of
from redactory.training.ldp.message import FORMAT as MESSAGES
from redactory.training.ldp.message import Message, Purpose, message_schema, messages_in
from redactory.training.ldp.received import Journal, Received, journaled
from redactory.training.ldp.sends import steps_of
from redactory.training.ldp.settings import LdpSettings

FORMAT = "redactory-ldp-service/2"
_SERVICE, _HEAD, _RECEIVED, _LOCK = "service.json", "head.safetensors", "received.jsonl", "lock"


class ServerSide:
    """A service with public ``settings`` for messages of the encoder with digest ``encoder``.

    ``shape`` is that of one sentence's representation, [d] or [L, e]; a pair's message is [2, d].  One that
    is made here lives in memory; :meth:`create` and :meth:`opened` have one in a folder.

    Formal guarantees: none of its own are needed: all it computes is post-processing of messages
    (``docs/guarantees.md``, "Local differential privacy").
    """

    def __init__(self, settings: LdpSettings, *, encoder: str, shape: tuple[int, ...]) -> None:
        if len(settings.classes) < 2:
            raise ConfigurationError("classes: a service tells two classes apart at least; name them")
        # a user's budget is hers: where it lies is nothing that a service keeps
        self.settings = settings.model_copy(update={"budget": None})
        self.encoder, self.shape = encoder, tuple(shape)
        self._received = self._empty()
        self._head: Head | None = None
        self._folder: Path | None = None
        self._journal: Journal | None = None

    @property
    def trained(self) -> bool:
        """Whether it can answer."""
        return self._head is not None

    def receive(self, message: Message) -> None:
        """Take one training message; ``InputError`` where it does not fit the service."""
        self.receive_all([message])

    def receive_all(self, messages: Sequence[Message]) -> None:
        """Take ``messages``, or none of them where one does not fit (``InputError``).

        In a folder they are on the disk when this returns; whoever hears of it need not send them again.
        One that comes again is counted once.
        """
        self._require("train", messages)
        self._received.require_room(messages)
        fresh = self._received.fresh(messages)
        if self._journal is not None and fresh:
            self._journal.append(fresh)
        self._received.add(fresh)

    def receive_lines(self, body: bytes) -> int:
        """The same for JSON lines; how many messages they hold."""
        messages = messages_in(body)
        self.receive_all(messages)
        return len(messages)

    def facts(self) -> dict[str, Any]:
        """What users must know of it, all of it public; what they are told over a wire."""
        return {
            "format": MESSAGES,
            "settings": self.settings.model_dump(mode="json"),
            "encoder": self.encoder,
            "shape": list(self.shape),
            "trained": self.trained,
            "message": message_schema(),
        }

    def train(self, progress: Progress = silent) -> dict[str, Any]:
        """Train the network anew on all that came; in a folder, commit it there.

        Gives ``messages``, ``slots``, ``epochs``, ``best_epoch`` and ``loss``, as :func:`fit` does.
        The draws of a given set of messages are the same every time; nothing here needs to be secret.
        ``RunStateError`` where nothing came.
        """
        if not len(self._received):
            raise RunStateError("no training message came yet: send some first")
        generator = torch.Generator().manual_seed(self.settings.seed or 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed or 0)
            head = head_of(self.settings, self._received.shape)
        rows, labels = (torch.from_numpy(a) for a in (self._received.means(), self._received.labels()))
        told = fit(head, rows, labels, self.settings.head, generator, progress)
        self._head = head
        if self._folder is not None:
            self._save(self._folder)
        return {"messages": self._received.messages, "slots": len(self._received), **told}

    def answer(self, message: Message) -> dict[str, Any]:
        """The answer to a question of one message: ``slot``, ``class`` and ``probabilities`` by class."""
        return self.answers([message])[0]

    @torch.no_grad()
    def answers(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """One answer per slot, to the mean of its messages, in the order in which slots first occur.

        ``RunStateError`` before training, ``InputError`` where a message does not fit.
        """
        if self._head is None:
            raise RunStateError("the service is not trained yet")
        self._require("query", messages)
        asked = self._empty()
        asked.require_room(messages)
        asked.add(messages)
        if not len(asked):
            return []
        shares = self._head(torch.from_numpy(asked.means())).softmax(-1).double().tolist()
        return [self._answer(slot, row) for slot, row in zip(asked.slots, shares, strict=True)]

    def answer_lines(self, body: bytes) -> list[dict[str, Any]]:
        """:meth:`answers` to the questions of JSON lines."""
        return self.answers(messages_in(body))

    def create(self, folder: Path) -> None:
        """Commit a service that has received nothing to ``folder``, where :meth:`opened` finds it."""
        assert not len(self._received)
        make_private_folder(folder)
        write_bytes(folder / _RECEIVED, b"")
        self._save(folder)

    @classmethod
    @contextmanager
    def opened(cls, folder: Path) -> Iterator[Self]:
        """The service in ``folder``, which nobody else opens meanwhile (``RunStateError``).

        Every message it takes is journaled before it is counted: whatever ends the process, none that was
        acknowledged is lost, and nothing needs to be saved.
        """
        if not (folder / _SERVICE).is_file():
            raise InputError(f"{folder.name} is no service")
        with only_one(folder / _LOCK, f"the service {folder.name}"):
            found = cls.load(folder)
            with closing(Journal(folder / _RECEIVED)) as found._journal:
                found._folder = folder
                yield found

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The service in ``folder`` as it lies there, to ask it; ``InputError`` where there is none.

        What this one receives stays in memory.
        """
        try:
            facts = read_json(folder / _SERVICE)
            if facts["format"] != FORMAT:
                raise InputError(f"{folder.name}: {_SERVICE} is of another version; train the service anew")
            settings = LdpSettings.model_validate(facts["settings"])
            found = cls(settings, encoder=facts["encoder"], shape=tuple(facts["shape"]))
            for message in journaled(folder / _RECEIVED):
                found.receive(message)
            if facts["trained"]:
                head = head_of(settings, found._received.shape)
                head.load_state_dict(load_file(folder / _HEAD))
                found._head = head.eval()
        except InputError:
            raise
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise InputError(f"{folder.name} is no service ({type(error).__name__})") from None
        return found

    def _save(self, folder: Path) -> None:
        """Commit public facts and weights; the weights first, for the facts say that they are there."""
        if self._head is not None:
            with commit(folder / _HEAD) as temporary:
                save_file(self._head.state_dict(), temporary)
        facts = {
            "format": FORMAT,
            "encoder": self.encoder,
            "shape": list(self.shape),
            "trained": self.trained,
        }
        write_json(folder / _SERVICE, {**facts, "settings": self.settings.model_dump(mode="json")})

    def _empty(self) -> Received:
        shape = (2, *self.shape) if self.settings.pairs else self.shape
        return Received(shape, steps_of(self.settings.participation))

    def _require(self, purpose: Purpose, messages: Sequence[Message]) -> None:
        for message in messages:
            where = f"message of slot {message.slot}"
            if message.purpose != purpose:
                raise InputError(f"{where}: purpose must be {purpose} here")
            if message.encoder != self.encoder:
                raise InputError(f"{where}: encoder is not the one this service was made for")
            if message.label is not None and message.label >= len(self.settings.classes):
                raise InputError(f"{where}: label must be below {len(self.settings.classes)}")

    def _answer(self, slot: str, shares: list[float]) -> dict[str, Any]:
        names = self.settings.classes
        likeliest = max(range(len(names)), key=shares.__getitem__)
        told = {name: round(share, 6) for name, share in zip(names, shares, strict=True)}
        return {"slot": slot, "class": names[likeliest], "probabilities": told}
