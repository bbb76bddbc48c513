"""For the tests of LDP-NLP: an encoder that stands in for a trained one, services, messages, public rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ldp_store import Service
from torch import Tensor

from redactory.foundation.errors import InputError
from redactory.training.accounting import Spendings
from redactory.training.ldp.server import LdpServer, Message
from redactory.training.ldp.settings import EncoderSettings, LdpSettings
from redactory.training.ldp.user import LdpClient

TOKENS, DIMENSION = 3, 4
YES, NO = "granted", "refused entirely"
ROWS = [
    (f"a {word} {thing}", label)
    for label, words in (("+", "good fine lovely great"), ("-", "bad poor awful dreadful"))
    for word in words.split()
    for thing in ("film", "meal", "trip", "book", "room")
]


class WordEncoder:
    """Every word is a vector drawn from its hash; a text is the sum of its words', through one weight."""

    spendings: Spendings = ()

    def __init__(self) -> None:
        self.weight = torch.ones(DIMENSION)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.weight.numpy().tobytes()).hexdigest()

    def represent(self, texts: Sequence[Any], kind: str) -> Tensor:
        for number, row in enumerate(texts, 1):
            if "\ud800" in "".join(row):
                raise InputError(f"row {number} is not text")
        if texts and not isinstance(texts[0], str):
            return torch.stack([self.represent(pair, kind) for pair in texts])
        found = torch.stack([self._tokens(text) for text in texts]) * self.weight
        return found.sum(1) if kind == "latent" else found

    def shape(self, kind: str) -> tuple[int, ...]:
        return (DIMENSION,) if kind == "latent" else (TOKENS, DIMENSION)

    def _tokens(self, text: str) -> Tensor:
        rows = torch.zeros(TOKENS, DIMENSION)
        for place, word in enumerate(text.split()[:TOKENS]):
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
            rows[place] = torch.from_numpy(np.random.default_rng(seed).normal(size=DIMENSION)).float()
        return rows


def settings_with(**changes: Any) -> LdpSettings:
    """Two classes, C = 1, z = 0.5, seed 3, unless ``changes`` say otherwise."""
    own = {"noise_multiplier": 0.5, "dimension": DIMENSION, "max_tokens": TOKENS, "seed": 3}
    return LdpSettings.model_validate({"classes": ("no", "yes"), **own, **changes})


def sides(**changes: Any) -> tuple[LdpClient, LdpServer]:
    """A user and a service of the same settings."""
    encoder, settings = WordEncoder(), settings_with(**changes)
    server = LdpServer(settings, encoder=encoder.digest, shape=encoder.shape(settings.represent))
    return LdpClient(encoder, settings), server


def service_sides(**changes: Any) -> tuple[LdpClient, Service]:
    """A user and the example's service of the same settings."""
    user, server = sides(**changes)
    return user, Service(settings_with(**changes), encoder=server.encoder, shape=server.shape)


def a_message(**changes: Any) -> Message:
    """A training message with ``changes``."""
    values = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
    own = {"slot": "0a" * 16, "step": 0, "label": 1, "values": values}
    return Message(**{**own, "encoder": WordEncoder().digest, **changes})


def small(**changes: Any) -> EncoderSettings:
    """Settings of a stage 1 that takes well under a second."""
    own: dict[str, Any] = {
        "model": {"kind": "bilstm", "embedding_size": 8, "hidden_size": 6},
        "dimension": 4,
        "epochs": 12,
        "learning_rate": 2e-2,
        "batch_size": 8,
        "max_tokens": 12,
        "threads": 1,
    }
    return EncoderSettings(**{**own, **changes})


def labelled_rows(count: int) -> tuple[list[str], list[int]]:
    """Texts of the two classes in turn, and their labels."""
    return [YES if row % 2 else NO for row in range(count)], [row % 2 for row in range(count)]


def write_rows(path: Path) -> Path:
    """Public labelled text of two classes."""
    lines = [json.dumps({"text": text, "label": label}) for text, label in ROWS]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
