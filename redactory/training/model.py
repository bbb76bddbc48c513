"""A trained model on disk and in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from redactory.foundation.errors import InputError
from redactory.foundation.files import commit, read_json, write_json
from redactory.redaction.folder import ModelFolder
from redactory.redaction.sealing import read_manifest
from redactory.training.network import LstmLanguageModel
from redactory.training.points import EncodedPoints
from redactory.training.tokenizer import Tokenizer

FORMAT = "redactory-lstm/1"


@dataclass(frozen=True)
class LanguageModel:
    """A tokenizer and the network trained on its ids."""

    tokenizer: Tokenizer
    network: LstmLanguageModel

    @torch.no_grad()
    def token_log_probs(self, texts: Sequence[str], batch_size: int = 64) -> list[NDArray[np.float64]]:
        """Natural log probability of each token of each text, its end token included, given those before.

        One float64 array [tokens + 1] a text, in the order of ``texts``.  A begin token stands
        before each text and is not scored; the hidden state starts at zero for every text.
        """
        points = EncodedPoints.from_texts(texts, self.tokenizer, max_tokens=None)
        order = np.argsort(points.lengths, kind="stable")
        found: list[NDArray[np.float64]] = [np.empty(0)] * len(points)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            scores = self._scores(points, rows)
            for row, own in zip(rows, np.split(scores, np.cumsum(points.lengths[rows])[:-1]), strict=True):
                found[int(row)] = own
        return found

    def _scores(self, points: EncodedPoints, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        batch = points.batch(rows)
        logits = self.network.output(self.network.hidden(batch.inputs)[batch.real])
        targets: Tensor = batch.targets[batch.real][:, None]
        scores = logits.double().log_softmax(-1).gather(1, targets)[:, 0]
        return np.asarray(scores.numpy(), np.float64)


def save_model(folder: ModelFolder, model: LanguageModel) -> None:
    """Commit weights (safetensors), architecture and tokenizer (JSON) to ``folder``."""
    embedding, lstm = model.network.embedding, model.network.lstm
    weights = {name: value.contiguous() for name, value in model.network.state_dict().items()}
    with commit(folder.weights) as temporary:
        save_file(weights, temporary)
    write_json(folder.tokenizer, model.tokenizer.to_json())
    config = {
        "format": FORMAT,
        "vocabulary": embedding.num_embeddings,
        "embedding_size": embedding.embedding_dim,
        "hidden_size": lstm.hidden_size,
    }
    write_json(folder.config, config)


def load_model(folder: ModelFolder) -> LanguageModel:
    """The finished model in ``folder``; else ``RunStateError`` or ``InputError``."""
    read_manifest(folder)
    config = read_json(folder.config)
    if config.get("format") != FORMAT:
        raise InputError(f"{folder.root.name}/config.json has another format than this version reads")
    network = LstmLanguageModel(config["vocabulary"], config["embedding_size"], config["hidden_size"])
    network.load_state_dict(load_file(folder.weights))
    network.eval()
    return LanguageModel(Tokenizer.from_json(read_json(folder.tokenizer)), network)
