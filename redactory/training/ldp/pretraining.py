"""Stage 1 of LDP-NLP: an encoder learnt from public labelled text, before any user takes part."""

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
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.training.data import NO_CLASS, Batch, EncodedPoints, PublicText, class_numbers
from redactory.training.ldp.encoder import PUBLIC, FolderEncoder, pooling_of, read_folder, require_silent, write_encoder
from redactory.training.ldp.settings import EncoderSettings, FrozenFolderSettings
from redactory.training.models.network import Network
from redactory.training.models.recurrent import BiLstmEncoder, PooledClassifier
from redactory.training.numerics import fixed_numerics
from redactory.training.steps import Descent, PlainPhase, make_optimizer
from redactory.training.tokenizer import TextCodec, Tokenizer

_TOGETHER = 256


def pretrain_encoder(
    public: PublicText, settings: EncoderSettings, out: Path, progress: Progress = silent
) -> dict[str, Any]:
    """Learn an encoder from ``public`` without noise and seal it in ``out``; the JSON summary.

    The same text and settings give the same weights.  ``InputError`` where the text has no rows of at least
    two classes, ``RunStateError`` where ``out`` is not empty, ``ConfigurationError`` or ``GuaranteeError``
    where ``model.folder`` cannot serve.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunStateError(f"{out.name} already exists: give another name, or remove it")
    started, sha256 = time.monotonic(), public.sha256
    labels = [label for _, label in public.rows()]
    classes = settings.classes or tuple(sorted({label for label in labels if label}))
    numbers = class_numbers(labels, classes)
    rows = np.flatnonzero(numbers != NO_CLASS).astype(np.int64)
    if len(np.unique(numbers[rows])) < 2:
        raise InputError(
            f"{public.path.name}: an encoder needs rows of at least two classes, in column {public.label!r}"
        )
    with fixed_numerics(settings.threads):
        tokenizer, network, base = _fresh(public, settings, classes)
        bound = min(settings.max_tokens, (network.context or settings.max_tokens + 1) - 1)
        points = replace(EncodedPoints.from_texts(public.texts(), tokenizer, bound), labels=numbers)
        taught = _Taught(network, settings, len(points))
        steps = settings.epochs * math.ceil(len(rows) / settings.batch_size)
        descent = Descent(make_optimizer(taught, "adam"), settings.learning_rate, steps)
        stream = RandomStream.from_seed(settings.seed)
        phase = PlainPhase(taught, descent, points, rows, settings.batch_size, stream, purpose="stage 1")
        for number in range(steps):
            phase.step(number)
            progress("learning the encoder", number + 1, steps, "steps")
        accuracy = _accuracy(taught, points, rows)
    if public.sha256 != sha256:
        raise RunStateError(f"{public.path.name} changed while it was read: start again")
    record = {
        "kind": PUBLIC,
        "text_sha256": sha256,
        "rows": len(rows),
        "base": base,
        "settings": settings.model_dump(mode="json", exclude={"threads": True, "model": {"folder"}}),
    }
    write_encoder(out, tokenizer, network, bound, record)
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


def _accuracy(taught: _Taught, points: EncodedPoints, rows: NDArray[np.int64]) -> float:
    """The share of ``rows`` whose class is guessed, without noise: of text that was learnt from."""
    taught.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(rows), _TOGETHER):
            batch = points.batch(rows[start : start + _TOGETHER])
            guessed = taught.network.head(taught.clipped(batch)).argmax(1)
            right += int((guessed == batch.targets[:, 0]).sum())
    return right / len(rows)


def _fresh(
    public: PublicText, settings: EncoderSettings, classes: tuple[str, ...]
) -> tuple[TextCodec, PooledClassifier, dict[str, Any] | None]:
    """Tokenizer and network before the first step, and what is on record of a folder it stands on."""
    own = settings.model
    tokenizer: TextCodec
    base: dict[str, Any] | None = None
    if isinstance(own, FrozenFolderSettings):
        require_silent(own.folder)
        tokenizer, frozen = read_folder(own.folder)
        base = {"declared": "public", "folder_sha256": folder_sha256(own.folder)}
        pooling = pooling_of(own.folder) if own.pooling == "folder" else own.pooling
        network = PooledClassifier(frozen, classes, pooling, settings.dimension)
    else:
        tokenizer = Tokenizer.from_texts(public.texts(), settings.vocabulary_size, settings.minimum_count)
        both = BiLstmEncoder(tokenizer.size, own)
        network = PooledClassifier(both, classes, own.pooling, settings.dimension)
    network.initialise(RandomStream.from_seed(settings.seed))
    return tokenizer, network, base


class _Taught(Network):
    """The network as the server will see it: classes of the latent vector, clipped and maybe noised.

    Formal guarantees: none; it reads public text alone.  No parameter of a frozen folder is moved, so the
    pooled states of its rows are computed once.
    """

    def __init__(self, network: PooledClassifier, settings: EncoderSettings, rows: int) -> None:
        super().__init__()
        self.network, self._settings = network, settings
        self._noise: tuple[RandomStream, str, int] | None = None
        self._known: list[Tensor | None] = [None] * rows

    def initialise(self, stream: RandomStream) -> None:
        """Draw what is not frozen from ``stream``."""
        self.network.initialise(stream)

    def begin_step(self, stream: RandomStream, purpose: str, step: int) -> None:
        """Noise of this step is drawn from ``stream`` from here on."""
        self._noise = stream, purpose, step
        self.network.begin_step(stream, purpose, step)

    def point_losses(self, batch: Batch) -> Tensor:
        """The loss (nats) of each point, [B]."""
        clipped, deviation = self.clipped(batch), self._settings.noise_multiplier * self._settings.clip_norm
        if self.training and deviation and self._noise is not None:
            stream, purpose, step = self._noise
            drawn = stream.normal(f"{purpose}, noise", step, clipped.numel())
            clipped = clipped + deviation * torch.from_numpy(drawn).view_as(clipped).to(clipped)
        return F.cross_entropy(self.network.head(clipped), batch.targets[:, 0], reduction="none")

    def clipped(self, batch: Batch) -> Tensor:
        """The latent vectors, each scaled to a norm of at most C: [B, d]."""
        latent = self.network.bottleneck(self._pools(batch))
        length = latent.norm(dim=1, keepdim=True).clamp(min=1e-12)
        found: Tensor = latent * (self._settings.clip_norm / length).clamp(max=1.0)
        return found

    def _pools(self, batch: Batch) -> Tensor:
        if not isinstance(self.network.encoder, FolderEncoder) or batch.rows is None:
            return self.network.pools(batch)
        rows = batch.rows.tolist()
        if any(self._known[row] is None for row in rows):
            for row, own in zip(rows, self.network.pools(batch), strict=True):
                self._known[row] = own
        return torch.stack([own for row in rows if (own := self._known[row]) is not None])
