"""The server: receives noisy messages and returns classes. It has no text, tokenizer or encoder.

For each slot it keeps the sum of its messages. All of this is post-processing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
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
from redactory.training.ldp.accounting import HiddenSampling
from redactory.training.ldp.settings import LdpSettings

FORMAT = "redactory-ldp-service/3"
_SERVICE, _HEAD = "service.json", "head.safetensors"
_WEIGHT_DECAY, _HELD_OUT_FRACTION, _MIN_HELD_OUT = 1e-2, 10, 5


@dataclass(frozen=True, eq=False)
class Message:
    """One send of one slot.

    ``values`` float32 [d], [L, e] or [2, d], noisy and finite; ``slot`` 32 random hexadecimal digits that identify one
    sentence in all steps; ``label`` the class's number, or None for a query; ``encoder`` the sha256 of the encoder.

    Formal guarantees: only ``values`` depends on the sentence. Slot and order are drawn, the step is a counter, and the
    label is in clear by the definition of the privacy unit, or hidden by drawn ones (``docs/guarantees.md``, "Local
    differential privacy").
    """

    slot: str
    step: int
    label: int | None
    values: NDArray[np.float32]
    encoder: str


_SlotSums = dict[int | None, tuple[NDArray[np.float32], int]]
"""The sum of a slot's messages and their number, by label."""


class LdpServer:
    """A service with public ``settings`` for messages of the encoder with digest ``encoder``.

    ``shape`` is that of one sentence's representation, [d] or [L, e]; a pair's message is [2, d]. Received messages
    stay in memory; :meth:`save` writes the trained network.
    """

    def __init__(self, settings: LdpSettings, *, encoder: str, shape: tuple[int, ...]) -> None:
        if len(settings.classes) < 2:
            raise ConfigurationError("classes: a service needs at least two classes; name them")
        self.settings, self.encoder, self.shape = settings, encoder, tuple(shape)
        self.message_shape = (2, *self.shape) if settings.pairs else self.shape
        self._slots: dict[str, _SlotSums] = {}
        self._head: ServerNetwork | None = None

    def receive(self, *messages: Message) -> None:
        """Receive training ``messages``, each once."""
        _add_messages(self._slots, messages)

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

        Returns ``messages``, ``slots``, ``epochs``, ``best_epoch`` and ``loss`` (nats). A tenth of the slots is held
        out if that is at least five; the epoch with the lowest loss on them is kept, and ``loss`` is theirs, otherwise
        that of the training slots. The same set of messages gives the same draws. ``RunStateError`` if there are none.
        """
        settings, seed = self.settings.head, self.settings.seed or 0
        if not self._slots:
            raise RunStateError("no training message has arrived yet: send some first")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self._make_network()
        means, slot_labels = compute_slot_means(self._slots)
        rows, labels = torch.from_numpy(means), torch.tensor(slot_labels)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(rows), generator=generator)
        held = len(rows) // _HELD_OUT_FRACTION if len(rows) >= _HELD_OUT_FRACTION * _MIN_HELD_OUT else 0
        judged, training_rows = (order[:held] if held else order), order[held:]
        network.fit_normalisation(rows[training_rows], labels[training_rows])
        optimizer = torch.optim.AdamW(network.parameters(), settings.learning_rate, weight_decay=_WEIGHT_DECAY)
        best, best_state = {"loss": math.inf, "best_epoch": 0}, copy.deepcopy(network.state_dict())
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
                best, best_state = {"loss": loss, "best_epoch": epoch}, copy.deepcopy(network.state_dict())
            progress("training the server's network", epoch, settings.epochs, "epochs")
        network.load_state_dict(best_state)
        self._head = network.eval()
        count = sum(count for sums in self._slots.values() for _, count in sums.values())
        return {"messages": count, "slots": len(self._slots), "epochs": settings.epochs, **best}

    @torch.no_grad()
    def answer(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return one answer per slot, to the mean of its messages: ``slot``, ``class``, ``probabilities`` by class.

        With fictitious queries there is one answer per message, with its ``step``; only the user knows the true ones,
        and multiplies those. Answers are ordered by first occurrence of slots or messages. ``RunStateError`` before
        training.
        """
        if self._head is None:
            raise RunStateError("the service is not trained yet")
        if not messages:
            return []
        way = self.settings.query_participation
        if isinstance(way, HiddenSampling):
            keys = [{"slot": message.slot, "step": message.step} for message in messages]
            means = np.stack([message.values for message in messages])
        else:
            slots: dict[str, _SlotSums] = {}
            _add_messages(slots, messages)
            keys, means = [{"slot": slot} for slot in slots], compute_slot_means(slots)[0]
        # training means of hidden sends are weaker than a query
        signal_share = getattr(self.settings.sampling, "signal_share", 1.0)
        logits = self._head(torch.from_numpy(means) * signal_share)
        if isinstance(way, HiddenSampling):
            # so that the product over the expected number of true messages contains the classes' shares once
            logits = logits - (1.0 - 1.0 / max(way.rate * way.steps, 1.0)) * self._head.log_class_shares
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
                raise ValueError(FORMAT)
            settings = LdpSettings.model_validate(facts["settings"])
            server = cls(settings, encoder=facts["encoder"], shape=tuple(facts["shape"]))
            if facts["trained"]:
                network = server._make_network()
                network.load_state_dict(load_file(folder / _HEAD))
                server._head = network.eval()
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise InputError(
                f"{folder.name} is not a service of this version ({type(error).__name__}); train the service again"
            ) from None
        return server

    def _make_network(self) -> ServerNetwork:
        kind = "pairs" if self.settings.pairs else "tokens" if len(self.shape) == 2 else "vectors"
        return ServerNetwork(self.shape[-1], self.settings.head.hidden_size, len(self.settings.classes), kind)


def _add_messages(slots: dict[str, _SlotSums], messages: Iterable[Message]) -> None:
    for message in messages:
        sums = slots.setdefault(message.slot, {})
        total, count = sums.get(message.label, (np.float32(0.0), 0))
        sums[message.label] = np.asarray(total + message.values), count + 1


def compute_slot_means(slots: Mapping[str, _SlotSums]) -> tuple[NDArray[np.float32], list[Any]]:
    r"""Return [n, \*shape] and n labels: for every slot, by first occurrence, the mean message of its label.

    If all messages of a slot are real, their mean is sufficient for its vector (Gaussian noise). If labels are hidden,
    the slot's label is likely the most frequent one of its messages; tied labels have a mean each.
    """
    rows, labels = [], []
    for sums in slots.values():
        most = max(count for _, count in sums.values())
        for label, (total, count) in sums.items():
            if count == most:
                rows.append(total / np.float32(count))
                labels.append(label)
    return np.stack(rows), labels


# The server's networks, from noisy representations to classes.


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
