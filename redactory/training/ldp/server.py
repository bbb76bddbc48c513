"""The server: receives noisy messages and returns classes. It has no text, tokenizer or encoder.

For each slot it keeps the sum of its messages and which steps arrived. All of this is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError, InputError, RunStateError
from redactory.foundation.files import commit_file, read_json, write_json
from redactory.foundation.progress import Progress, ignore_progress
from redactory.training.ldp.accounting import HiddenSampling, Participation, compute_signal_share, count_steps
from redactory.training.ldp.message import Message
from redactory.training.ldp.settings import HeadSettings, LdpSettings

FORMAT = "redactory-ldp-service/3"
_SERVICE, _HEAD = "service.json", "head.safetensors"


@dataclass
class _Slot:
    """The received steps, as bits; by label (−1 for a query), the sum of messages and their number."""

    received_steps: int
    sums: dict[int, tuple[NDArray[np.float32], int]]


class ReceivedMessages:
    """The slots of one service or one query, of messages of ``shape`` with steps below ``steps``.

    If all messages of a slot are real, their mean is sufficient for its vector (Gaussian noise); a repeated message
    counts once. ``labels`` is how many a slot may carry: if they are hidden, the slot's label is likely the most
    frequent one.
    """

    def __init__(self, shape: tuple[int, ...], steps: int, labels: int = 1) -> None:
        self.shape, self.steps, self.max_labels = shape, steps, labels
        self.slots: dict[str, _Slot] = {}

    @property
    def message_count(self) -> int:
        """The number of distinct messages received."""
        return sum(slot.received_steps.bit_count() for slot in self.slots.values())

    def select_new(self, messages: Iterable[Message]) -> list[Message]:
        """The ``messages`` that were not received before, each once."""
        new_messages: dict[tuple[str, int], Message] = {}
        for message in messages:
            slot = self.slots.get(message.slot)
            if slot is None or not slot.received_steps >> message.step & 1:
                new_messages.setdefault((message.slot, message.step), message)
        return list(new_messages.values())

    def add(self, messages: Iterable[Message]) -> None:
        """Add ``messages``, each once."""
        for message in self.select_new(messages):
            slot = self.slots.setdefault(message.slot, _Slot(0, {}))
            label = -1 if message.label is None else message.label
            total, count = slot.sums.get(label, (np.zeros(self.shape, np.float32), 0))
            slot.sums[label] = total + message.values, count + 1
            slot.received_steps |= 1 << message.step

    def compute_means(self) -> tuple[NDArray[np.float32], list[int]]:
        r"""Return [n, \*shape] and n labels: for every slot, by first occurrence, the mean message of its label.

        Its label is the most frequent one of its messages; tied labels have a mean each.
        """
        rows, labels = [], []
        for slot in self.slots.values():
            most = max(count for _, count in slot.sums.values())
            for label, (total, count) in slot.sums.items():
                if count == most:
                    rows.append(total / np.float32(count))
                    labels.append(label)
        return np.stack(rows) if rows else np.empty((0, *self.shape), np.float32), labels


class LdpServer:
    """A service with public ``settings`` for messages of the encoder with digest ``encoder``.

    ``shape`` is that of one sentence's representation, [d] or [L, e]; a pair's message is [2, d]. Received messages
    stay in memory; :meth:`save` writes the trained network.
    """

    def __init__(self, settings: LdpSettings, *, encoder: str, shape: tuple[int, ...]) -> None:
        if len(settings.classes) < 2:
            raise ConfigurationError("classes: a service needs at least two classes; name them")
        # a service does not keep the location of a user's budget
        self.settings = settings.model_copy(update={"budget": None})
        self.encoder, self.shape = encoder, tuple(shape)
        self._received = self._make_received_messages(settings.sampling)
        self._head: ServerNetwork | None = None

    def receive(self, *messages: Message) -> None:
        """Receive training ``messages``; a repeated one counts once."""
        self._received.add(messages)

    def describe(self) -> dict[str, Any]:
        """Return the public facts about the service that users and :meth:`load` need."""
        return {
            "encoder": self.encoder,
            "shape": list(self.shape),
            "trained": self._head is not None,
            "settings": self.settings.model_dump(mode="json"),
        }

    def train(self, progress: Progress = ignore_progress) -> dict[str, Any]:
        """Train the network from scratch on all received messages.

        Returns ``messages``, ``slots`` and the ``epochs``, ``best_epoch`` and ``loss`` of :func:`train_server_network`.
        The same set of messages gives the same draws. ``RunStateError`` if there are no messages.
        """
        slots, seed = self._received.slots, self.settings.seed or 0
        if not slots:
            raise RunStateError("no training message has arrived yet: send some first")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = make_server_network(self.settings, self._received.shape)
        means, labels = self._received.compute_means()
        rows, classes = torch.from_numpy(means), torch.tensor(labels)
        generator = torch.Generator().manual_seed(seed)
        summary = train_server_network(network, rows, classes, self.settings.head, generator, progress)
        self._head = network
        return {"messages": self._received.message_count, "slots": len(slots), **summary}

    @torch.no_grad()
    def answer(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return one answer per slot, to the mean of its messages: ``slot``, ``class``, ``probabilities`` by class.

        With fictitious queries there is one answer per message, with its ``step``; only the user knows the true ones,
        and multiplies those. Answers are ordered by first occurrence of slots or messages. ``RunStateError`` before
        training.
        """
        if self._head is None:
            raise RunStateError("the service is not trained yet")
        way = self.settings.query_participation
        received = self._make_received_messages(way)
        is_hidden, fresh = isinstance(way, HiddenSampling), received.select_new(messages)
        if not fresh:
            return []
        received.add(fresh)
        means = np.stack([message.values for message in fresh]) if is_hidden else received.compute_means()[0]
        logits = self._head(torch.from_numpy(means) * compute_signal_share(self.settings.sampling))
        if isinstance(way, HiddenSampling):
            # so that the product over the expected number of true messages contains the classes' shares once
            logits = logits - (1.0 - 1.0 / max(way.rate * way.steps, 1.0)) * self._head.log_class_shares
        keys = [{"slot": message.slot, "step": message.step} for message in fresh] if is_hidden else None
        keys = keys or [{"slot": slot} for slot in received.slots]
        answer_rows = []
        for key, row in zip(keys, logits.softmax(-1).double().tolist(), strict=True):
            by_class = dict(zip(self.settings.classes, row, strict=True))
            likeliest = max(by_class, key=by_class.__getitem__)
            rounded = {name: round(share, 6) for name, share in by_class.items()}
            answer_rows.append({**key, "class": likeliest, "probabilities": rounded})
        return answer_rows

    def save(self, folder: Path) -> None:
        """Commit weights, then public facts, because the facts declare that the weights exist."""
        if self._head is not None:
            with commit_file(folder / _HEAD) as temporary:
                save_file(self._head.state_dict(), temporary)
        write_json(folder / _SERVICE, {"format": FORMAT, **self.describe()})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the service that :meth:`save` wrote to ``folder``; ``InputError`` if there is none."""
        try:
            facts = read_json(folder / _SERVICE)
            if facts["format"] != FORMAT:
                raise InputError(f"{folder.name}: {_SERVICE} is of another version; train the service again")
            settings = LdpSettings.model_validate(facts["settings"])
            server = cls(settings, encoder=facts["encoder"], shape=tuple(facts["shape"]))
            if facts["trained"]:
                network = make_server_network(settings, server._received.shape)
                network.load_state_dict(load_file(folder / _HEAD))
                server._head = network.eval()
        except InputError:
            raise
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise InputError(f"{folder.name} is not a service ({type(error).__name__})") from None
        return server

    def _make_received_messages(self, sampling: Participation) -> ReceivedMessages:
        shape = (2, *self.shape) if self.settings.pairs else self.shape
        return ReceivedMessages(shape, count_steps(sampling), getattr(sampling, "classes", None) or 1)


# The server's networks, from noisy representations to classes, and how they are trained.


_WEIGHT_DECAY = 1e-2
_HELD_OUT_FRACTION, _MIN_HELD_OUT = 10, 5


class ServerNetwork(nn.Module):
    """Logits of the classes from the mean messages of slots, standardised as the received ones.

    Vectors [n, d] use one hidden layer; ``pairs`` [n, 2, d] the same over [u, v, |u−v|, u·v]; noisy token vectors [n,
    L, e] a BiLSTM, averaged over all L states, including padding.
    """

    centre: Tensor
    scale: Tensor
    log_class_shares: Tensor

    def __init__(self, width: int, hidden: int, classes: int, kind: str) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("log_class_shares", torch.zeros(classes))
        self._kind = kind
        if kind == "tokens":
            self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
            self.output_layer = nn.Linear(2 * hidden, classes)
        else:
            first = nn.Linear(4 * width if kind == "pairs" else width, hidden)
            self.layers = nn.Sequential(first, nn.ReLU(), nn.Linear(hidden, classes))

    def fit_normalisation(self, rows: Tensor, labels: Tensor) -> None:
        """Set the normalisation to mean and deviation of ``rows`` [n, ..., width], and the shares of ``labels``."""
        counts = torch.bincount(labels, minlength=len(self.log_class_shares)) + 1.0
        self.log_class_shares.copy_((counts / counts.sum()).log())
        flat = rows.flatten(0, -2)
        self.centre.copy_(flat.mean(0))
        self.scale.copy_(flat.std(0, correction=0).clamp(min=1e-6))

    def forward(self, rows: Tensor) -> Tensor:
        r"""Return the logits [n, classes] of ``rows`` [n, \*shape]."""
        rows = (rows - self.centre) / self.scale
        if self._kind == "pairs":
            u, v = rows.unbind(1)
            rows = torch.cat([u, v, (u - v).abs(), u * v], 1)
        has_tokens = self._kind == "tokens"
        logits: Tensor = self.output_layer(self.lstm(rows)[0].mean(1)) if has_tokens else self.layers(rows)
        return logits


def make_server_network(settings: LdpSettings, shape: tuple[int, ...]) -> ServerNetwork:
    """The network for messages of ``shape``, with weights drawn by torch."""
    kind = "pairs" if settings.pairs else "tokens" if len(shape) == 2 else "vectors"
    return ServerNetwork(shape[-1], settings.head.hidden_size, len(settings.classes), kind)


def train_server_network(
    network: ServerNetwork,
    rows: Tensor,
    labels: Tensor,
    settings: HeadSettings,
    generator: torch.Generator,
    progress: Progress,
) -> dict[str, Any]:
    r"""Train ``network`` on ``rows`` [n, \*shape] and ``labels`` [n]; return ``epochs``, ``best_epoch`` and ``loss``.

    A tenth of the slots is held out if that is at least five, and the epoch with the lowest loss on them is kept.
    ``loss`` in nats is on those slots, or on the training slots if none are held out.
    """
    order = torch.randperm(len(rows), generator=generator)
    held = len(rows) // _HELD_OUT_FRACTION if len(rows) >= _HELD_OUT_FRACTION * _MIN_HELD_OUT else 0
    judged, training_rows = (order[:held] if held else order), order[held:]
    network.fit_normalisation(rows[training_rows], labels[training_rows])
    optimizer = torch.optim.AdamW(network.parameters(), settings.learning_rate, weight_decay=_WEIGHT_DECAY)
    best: dict[str, Any] = {"loss": math.inf, "best_epoch": 0}
    best_state = {name: value.clone() for name, value in network.state_dict().items()}
    for epoch in range(1, settings.epochs + 1):
        network.train()
        order = training_rows[torch.randperm(len(training_rows), generator=generator)]
        for batch in torch.split(order, settings.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(network(rows[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        network.eval()
        with torch.no_grad():
            parts = [
                F.cross_entropy(network(rows[batch]), labels[batch], reduction="sum")
                for batch in torch.split(judged, settings.batch_size)
            ]
        loss = float(torch.stack(parts).sum()) / len(judged)
        # without held-out slots, keep the last finite epoch
        if loss < best["loss"] or (not held and math.isfinite(loss)):
            best = {"loss": loss, "best_epoch": epoch}
            best_state = {name: value.clone() for name, value in network.state_dict().items()}
        progress("training the server's network", epoch, settings.epochs, "epochs")
    network.load_state_dict(best_state)
    network.eval()
    return {"epochs": settings.epochs, **best}
