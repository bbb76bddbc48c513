"""Stage 1 of LDP-NLP: train an encoder on public labelled text, before any user takes part."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import InputError, RunStateError
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream
from redactory.training.data import NO_CLASS, Batch, PublicText, TokenizedExamples, encode_classes
from redactory.training.ldp.encoder import PUBLIC, require_no_training_record, write_encoder
from redactory.training.ldp.settings import EncoderSettings, FrozenFolderSettings
from redactory.training.model import TextClassifier
from redactory.training.models.folder_encoder import FolderEncoder, read_encoder_folder, read_pooling
from redactory.training.models.network import Network
from redactory.training.models.recurrent import BiLstmEncoder, PooledClassifier
from redactory.training.numerics import use_deterministic_numerics
from redactory.training.steps import NoiseFreeSteps, ScheduledOptimizer, make_optimizer
from redactory.training.tokenizer import TextCodec, Tokenizer

_BATCH_SIZE = 256
_MIN_WORD_COUNT = 2
"""Rarer words are not in the vocabulary."""


def pretrain_encoder(
    public: PublicText, settings: EncoderSettings, out: Path, progress: Progress = ignore_progress
) -> dict[str, Any]:
    """Train an encoder on ``public`` without noise, seal it in ``out`` and return the JSON summary.

    The same text and settings give the same weights. ``InputError`` if the text lacks rows of at least two classes,
    ``RunStateError`` if ``out`` is not empty, ``ConfigurationError`` or ``GuaranteeError`` if ``model.folder`` is
    unsuitable.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunStateError(f"{out.name} already exists: give another name, or remove it")
    started, sha256 = time.monotonic(), public.sha256
    labels = [label for _, label in public.read_rows()]
    classes = settings.classes or tuple(sorted({label for label in labels if label}))
    class_ids = encode_classes(labels, classes)
    rows = np.flatnonzero(class_ids != NO_CLASS).astype(np.int64)
    if len(np.unique(class_ids[rows])) < 2:
        raise InputError(
            f"{public.path.name}: an encoder needs rows of at least two classes, in column {public.label_column!r}"
        )
    with use_deterministic_numerics(settings.threads):
        tokenizer, network, base = _make_encoder_network(public, settings, classes)
        bound = min(settings.max_tokens, (network.context or settings.max_tokens + 1) - 1)
        examples = replace(TokenizedExamples.from_texts(public.read_texts(), tokenizer, bound), labels=class_ids)
        taught = _NoisyEncoderNetwork(network, settings)
        steps = settings.epochs * math.ceil(len(rows) / settings.batch_size)
        descent = ScheduledOptimizer(make_optimizer(taught, "adam"), settings.learning_rate, steps)
        stream = RandomStream.from_seed(settings.seed)
        phase = NoiseFreeSteps(taught, descent, examples, rows, settings.batch_size, stream, purpose="stage 1")
        for number in range(steps):
            phase.step(number)
            progress("learning the encoder", number + 1, steps, "steps")
        accuracy = _measure_accuracy(taught, examples, rows)
    if public.sha256 != sha256:
        raise RunStateError(f"{public.path.name} changed while it was read: start again")
    record = {
        "kind": PUBLIC,
        "text_sha256": sha256,
        "rows": len(rows),
        "base": base,
        "settings": settings.model_dump(mode="json", exclude={"threads": True, "model": {"folder"}}),
    }
    write_encoder(out, TextClassifier(tokenizer, network, bound), record)
    return {
        "encoder": out.name,
        "provenance": PUBLIC,
        "rows": len(rows),
        "classes": list(classes),
        "dimension": settings.dimension,
        "max_tokens": bound,
        "parameters": sum(p.numel() for p in network.parameters()),
        "accuracy_on_public_text": accuracy,
        "seconds": round(time.monotonic() - started, 3),
    }


def _measure_accuracy(
    training_network: _NoisyEncoderNetwork, examples: TokenizedExamples, rows: NDArray[np.int64]
) -> float:
    training_network.eval()
    correct = 0
    with torch.no_grad():
        for start in range(0, len(rows), _BATCH_SIZE):
            batch = examples.make_batch(rows[start : start + _BATCH_SIZE])
            predicted = training_network.network.head(training_network.compute_clipped_latents(batch)).argmax(1)
            correct += int((predicted == batch.targets[:, 0]).sum())
    return correct / len(rows)


def _make_encoder_network(
    public: PublicText, settings: EncoderSettings, classes: tuple[str, ...]
) -> tuple[TextCodec, PooledClassifier, dict[str, Any] | None]:
    model_settings = settings.model
    tokenizer: TextCodec
    base: dict[str, Any] | None = None
    if isinstance(model_settings, FrozenFolderSettings):
        require_no_training_record(model_settings.folder)
        tokenizer, frozen = read_encoder_folder(model_settings.folder)
        base = {"declared": "public", "folder_sha256": folder_sha256(model_settings.folder)}
        network = PooledClassifier(frozen, classes, read_pooling(model_settings.folder), settings.dimension)
    else:
        tokenizer = Tokenizer.from_texts(public.read_texts(), settings.vocabulary_size, _MIN_WORD_COUNT)
        both = BiLstmEncoder(tokenizer.size, model_settings)
        network = PooledClassifier(both, classes, model_settings.pooling, settings.dimension)
    network.initialise(RandomStream.from_seed(settings.seed))
    return tokenizer, network, base


class _NoisyEncoderNetwork(Network):
    """The network as the server will see it: classes of the latent vector, clipped and maybe noised.

    Formal guarantees: none; it reads only public text. Parameters of a frozen folder do not change, so the pooled
    states of its rows are computed once.
    """

    def __init__(self, network: PooledClassifier, settings: EncoderSettings) -> None:
        super().__init__()
        self.network, self._settings = network, settings
        self._noise: tuple[RandomStream, str, int] | None = None
        self._cached_pools: dict[int, Tensor] = {}

    def initialise(self, stream: RandomStream) -> None:
        self.network.initialise(stream)

    def begin_step(self, stream: RandomStream, purpose: str, step: int) -> None:
        self._noise = stream, purpose, step
        self.network.begin_step(stream, purpose, step)

    def example_losses(self, batch: Batch) -> Tensor:
        clipped = self.compute_clipped_latents(batch)
        deviation = self._settings.noise_multiplier * self._settings.clip_norm
        if self.training and deviation and self._noise is not None:
            stream, purpose, step = self._noise
            noise = stream.normal(f"{purpose}, noise", step, clipped.numel())
            clipped = clipped + deviation * torch.from_numpy(noise).view_as(clipped).to(clipped)
        return F.cross_entropy(self.network.head(clipped), batch.targets[:, 0], reduction="none")

    def compute_clipped_latents(self, batch: Batch) -> Tensor:
        """Return the latent vectors, each scaled to a norm of at most C: [B, d]."""
        latent = self.network.bottleneck(self._pool_states(batch))
        norms = latent.norm(dim=1, keepdim=True).clamp(min=1e-12)
        clipped: Tensor = latent * (self._settings.clip_norm / norms).clamp(max=1.0)
        return clipped

    def _pool_states(self, batch: Batch) -> Tensor:
        if not isinstance(self.network.encoder, FolderEncoder) or batch.rows is None:
            return self.network.pool_encoder_states(batch)
        rows = batch.rows.tolist()
        if not self._cached_pools.keys() >= set(rows):
            self._cached_pools.update(zip(rows, self.network.pool_encoder_states(batch), strict=True))
        return torch.stack([self._cached_pools[row] for row in rows])
