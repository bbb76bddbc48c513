"""A trained model on disk and in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from redactory.foundation.errors import InputError
from redactory.foundation.files import PRIVATE_FILE, commit, read_json, sync, write_json
from redactory.redaction.folder import ModelFolder
from redactory.redaction.sealing import read_manifest
from redactory.training.models.build import LIBRARY, is_classifier, rebuilt
from redactory.training.models.folder_tokenizer import (
    AROUND,
    BEFORE,
    FolderTokenizer,
    read_of_library,
    save_for_library,
)
from redactory.training.models.hugging_face import HuggingFaceNetwork, has_adapters, merged
from redactory.training.models.network import Classifier, LanguageNetwork
from redactory.training.points import EncodedPoints, LabelledPoints, Windows
from redactory.training.tokenizer import TextCodec, Tokenizer

_READ = "max_tokens"
"""The key of ``config.json`` that says how much of a text a classifier reads."""


@dataclass(frozen=True)
class LanguageModel:
    """A tokenizer and the network trained on its ids."""

    tokenizer: TextCodec
    network: LanguageNetwork

    @torch.no_grad()
    def token_log_probs(self, texts: Sequence[str], batch_size: int = 64) -> list[NDArray[np.float64]]:
        """Natural log probability of each token of each text, its end token included, given those before.

        One float64 array [tokens + 1] a text, in the order of ``texts``.  A begin token stands before
        each text and is not scored; nothing is carried from one text to the next.  Of a text longer
        than the network's context, each token is scored after at least half a context, if there are
        as many before it.
        """
        self.network.eval()
        points = EncodedPoints.from_texts(texts, self.tokenizer, max_tokens=None)
        windows = Windows.of(points, self.network.context)
        order = np.argsort(windows.lengths, kind="stable")
        found: list[NDArray[np.float64]] = [np.empty(0)] * len(windows)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            for row, scores in zip(rows, self._scores(windows, rows), strict=True):
                found[int(row)] = scores
        return windows.joined(found)

    @torch.no_grad()
    def next_log_probs(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float64]:
        """Natural log probability of every token as the one after each text: float64 [texts, V].

        Of a text longer than the network's context its end is read.
        """
        self.network.eval()
        points = EncodedPoints.from_texts(texts, self.tokenizer, max_tokens=None)
        windows = Windows.of(points, self.network.context)
        # the last window of each text, whose last place stands before the end token
        ends = np.flatnonzero(np.diff(windows.owner, append=len(points)))
        found = np.empty((len(points), self.tokenizer.size))
        for start in range(0, len(ends), batch_size):
            batch = windows.points.batch(ends[start : start + batch_size]).to(self.network.device)
            places = torch.arange(len(batch.real), device=batch.real.device), batch.real.sum(1) - 1
            logits = self.network.head(self.network.hidden(batch)[places])[:, : self.tokenizer.size]
            scores = logits.double().log_softmax(-1)
            found[start : start + batch_size] = scores.cpu().numpy()
        return found

    def _scores(self, windows: Windows, rows: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        batch = windows.points.batch(rows).to(self.network.device)
        logits = self.network.head(self.network.hidden(batch)[batch.real])
        targets: Tensor = batch.targets[batch.real][:, None]
        scores = logits.double().log_softmax(-1).gather(1, targets)[:, 0].cpu().numpy()
        return np.split(np.asarray(scores, np.float64), np.cumsum(windows.lengths[rows])[:-1])


@dataclass(frozen=True)
class TextClassifier:
    """A tokenizer and a network that gives every text a class, from its first ``max_tokens`` tokens."""

    tokenizer: TextCodec
    network: Classifier
    max_tokens: int | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number."""
        return self.network.classes

    @torch.no_grad()
    def log_probs(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float64]:
        """Natural log probability of every class for every text: float64 [texts, classes]."""
        self.network.eval()
        points = EncodedPoints.from_texts(texts, self.tokenizer, self._read_at_most)
        read = LabelledPoints(points, np.zeros(len(points), np.int64))
        order = np.argsort(read.lengths, kind="stable")
        found = np.empty((len(points), len(self.classes)))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            logits = self.network.logits(read.batch(rows).to(self.network.device))
            found[rows] = logits.double().log_softmax(-1).cpu().numpy()
        return found

    @property
    def _read_at_most(self) -> int | None:
        """Tokens of a text, its end token included, that fit beside the begin token."""
        context = self.network.context
        bounds = [self.max_tokens, None if context is None else context - 1]
        return min((bound for bound in bounds if bound is not None), default=None)


def save_model(folder: ModelFolder, model: LanguageModel | TextClassifier) -> list[Path]:
    """Commit weights (safetensors), architecture and tokenizer (JSON) to ``folder``; the files' paths.

    A network of Hugging Face is written as that library writes it, adapters added to the weights, so that
    plain ``transformers`` reads the folder.
    """
    network = model.network
    weights = network.state_dict()
    if isinstance(network, HuggingFaceNetwork):
        inner = merged(network.model) if has_adapters(network.model) else network.model
        weights = inner.state_dict()
    with commit(folder.weights) as temporary:
        save_file(_once(weights), temporary, metadata={"format": "pt"})
    description = network.describe()
    if isinstance(model, TextClassifier):
        description[_READ] = model.max_tokens
    write_json(folder.config, description)
    written = [folder.weights, folder.config]
    if isinstance(model.tokenizer, FolderTokenizer):
        return [*written, *_kept(model.tokenizer.save(folder.root))]
    assert isinstance(model.tokenizer, Tokenizer)
    if isinstance(network, HuggingFaceNetwork):
        around = AROUND if isinstance(model, TextClassifier) else BEFORE
        files = save_for_library(model.tokenizer, folder.root, network.context, around)
        return [*written, *_kept(files)]
    write_json(folder.tokenizer, model.tokenizer.to_json())
    return [*written, folder.tokenizer]


def _kept(written: list[Path]) -> list[Path]:
    """Files that another library wrote by itself, now for their owner alone, and on the disk for good."""
    for path in written:
        path.chmod(PRIVATE_FILE)
        sync(path)
    return written


def load_model(folder: ModelFolder) -> LanguageModel:
    """The finished language model in ``folder``; else ``RunStateError`` or ``InputError``."""
    read_manifest(folder)
    config = read_json(folder.config)
    if is_classifier(config):
        raise InputError(f"{folder.root.name} is a classifier: it predicts classes, not words")
    network = _read(folder, rebuilt(folder.root.name, config))
    return LanguageModel(_read_tokenizer(folder), network)


def load_classifier(folder: ModelFolder) -> TextClassifier:
    """The classifier in ``folder``, as :func:`save_model` wrote it; else ``InputError``."""
    config = read_json(folder.config)
    max_tokens = config.pop(_READ, None)
    if not is_classifier(config):
        raise InputError(
            f"{folder.root.name}/config.json is not that of a classifier that this version reads"
        )
    network = _read(folder, rebuilt(folder.root.name, config))
    return TextClassifier(_read_tokenizer(folder), network, max_tokens)


def _read(folder: ModelFolder, network: Any) -> Any:
    weights = load_file(folder.weights)
    inner = network.model if isinstance(network, HuggingFaceNetwork) else network
    missing, unknown = inner.load_state_dict(weights, strict=False)
    # a shared tensor is saved under one of its names
    shared = set(inner.state_dict(keep_vars=True)) - set(_once(inner.state_dict(keep_vars=True)))
    if unknown or set(missing) - shared:
        raise RuntimeError(f"{folder.root.name}: the weights do not fit config.json")
    return network.eval()


def _read_tokenizer(folder: ModelFolder) -> TextCodec:
    value = read_json(folder.tokenizer)
    if "model" in value:
        return read_of_library(value) or FolderTokenizer.from_folder(folder.root)
    return Tokenizer.from_json(value)


def _once(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by name, one that has several names under the first of them."""
    kept: dict[int, str] = {}
    for name, value in weights.items():
        kept.setdefault(value.data_ptr(), name)
    return {name: weights[name].contiguous() for name in kept.values()}


# What opens a model's folder, for its card: other programs where the network is theirs, else our own.


def library_of(kind: str) -> str:
    """The library that reads a network of this kind, as the front matter of a card names it."""
    return "transformers" if kind in LIBRARY else "redactory"


def opened_with(kind: str) -> str:
    """One sentence for people."""
    if kind in LIBRARY:
        return (
            f"Plain `transformers` opens this folder: `{LIBRARY[kind][0]}.from_pretrained`, and "
            "`AutoTokenizer.from_pretrained` for its tokenizer."
        )
    return (
        "Plain `transformers` does not know this network (`config.json` names no `model_type`): open the "
        "folder with `redactory predict`, or from Python with `redactory.training`."
    )
