"""Which kind of encoder a folder holds, and what may be used of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from redactory.foundation.canonical import hash_of
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import read_json
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import ModelFolder
from redactory.training.accounting import Spendings
from redactory.training.ldp.bodies import Body, body_of, folder_body, is_hugging_face, pooling_of, read_folder
from redactory.training.ldp.encoder_folder import (
    Provenance,
    declared,
    is_encoder,
    provenance_of_model,
    read_encoder,
    require_silent,
)
from redactory.training.ldp.pretraining import pretrain_encoder
from redactory.training.model import load_classifier, load_model
from redactory.training.models.build import is_classifier
from redactory.training.models.network import Classifier
from redactory.training.models.pretrained import FolderTokenizer
from redactory.training.points import Batch, EncodedPoints
from redactory.training.tokenizer import TextCodec, Tokenizer

DEFAULT_TOKENS = 64
"""Tokens of a text that are read where the folder names no number."""


class Opened(NamedTuple):
    """An encoder's parts, at its own widths; ``max_tokens`` is how much of a text it was made to read."""

    tokenizer: TextCodec
    body: Body
    max_tokens: int
    origin: Provenance


def open_encoder(folder: Path, declared_public: bool) -> Opened:
    """The encoder in ``folder``, its provenance checked before a weight is read.

    ``GuaranteeError`` with the reason where no figure of a message would hold; ``ConfigurationError`` where
    it holds no encoder, or nothing proves it public and nobody declares it.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"encoder: there is no folder {folder.name}")
    if is_encoder(folder):
        tokenizer, network, length, told = read_encoder(folder)
        return Opened(tokenizer, body_of(network), length, Provenance(told))
    model = ModelFolder(folder)
    if model.ledger.exists():
        return _of_model(model)
    require_silent(folder)
    if not is_hugging_face(folder):
        raise ConfigurationError(f"encoder: {folder.name} holds no encoder that this version reads")
    origin = declared(folder, declared_public)
    codec, below = read_folder(folder)
    return Opened(codec, folder_body(below, pooling_of(folder)), DEFAULT_TOKENS, origin)


def _of_model(model: ModelFolder) -> Opened:
    origin = provenance_of_model(model.root)
    if is_classifier(read_json(model.config)):
        told = load_classifier(model)
        return Opened(told.tokenizer, body_of(told.network), told.max_tokens or DEFAULT_TOKENS, origin)
    foretold = load_model(model)
    return Opened(foretold.tokenizer, body_of(foretold.network), DEFAULT_TOKENS, origin)


# The user's encoder: frozen, of known provenance, from a sentence to what the DP layer clips and noises.


__all__ = ["Kind", "SentenceEncoder", "pretrain_encoder"]

Kind = Literal["latent", "token"]
BATCH = 32
"""Texts in every batch; a batch that is not full is filled up."""
_PROJECTION = 0x4C4450
"""The seed of the public projection: known to everybody."""


@dataclass(frozen=True)
class SentenceEncoder:
    """Texts to vectors, by parameters that nothing changes.

    ``max_tokens`` is L, to which every text is cut or filled up; a representation wider than ``dimension``
    is multiplied by a fixed public random matrix [width, dimension] (Johnson and Lindenstrauss).

    Formal guarantees: a text's representation is a function of that text and of frozen parameters: texts go
    through in batches of one fixed shape, so no other text decides how it is computed.  Its shape tells no
    length.
    """

    tokenizer: TextCodec
    body: Body
    max_tokens: int
    origin: Provenance
    dimension: int | None = None
    _digests: dict[tuple[tuple[int, int], ...], str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(
        cls,
        folder: Path,
        declared_public: bool = False,
        dimension: int | None = None,
        max_tokens: int | None = None,
    ) -> Self:
        """The encoder in ``folder``: of stage 1, of ``RUN/models/NAME`` by DP-SGD, or of Hugging Face.

        The last needs ``declared_public``.  ``GuaranteeError`` with the reason where no figure of a message
        would hold, ``ConfigurationError`` or ``InputError`` where nothing can be read.
        """
        opened = open_encoder(folder, declared_public)
        body = opened.body
        body.network.eval().requires_grad_(False)
        beside_begin = None if body.context is None else body.context - 1
        bounds = [bound for bound in (max_tokens, opened.max_tokens, beside_begin) if bound is not None]
        return cls(opened.tokenizer, body, min(bounds), opened.origin, dimension)

    @property
    def provenance(self) -> dict[str, Any]:
        """Where it comes from, as JSON: ``kind`` is "public", "declared public" or "dpsgd"."""
        return self.origin.told

    @property
    def spendings(self) -> Spendings:
        """What making it spent, to be composed with the messages; ``()`` of a public one."""
        return self.origin.spent

    def shape(self, kind: Kind) -> tuple[int, ...]:
        """The shape of one text's representation: (d,) of "latent", (L, e) of "token"."""
        if kind == "latent":
            return (_narrowed(self.body.width, self.dimension),)
        return self.max_tokens, _narrowed(self.body.token_width, self.dimension)

    @torch.no_grad()
    def represent(self, texts: Sequence[str] | Sequence[tuple[str, str]], kind: Kind = "latent") -> Tensor:
        """The texts' representations, float32 [n, d] or [n, L, e]; of pairs of texts [n, 2, d].

        A token beyond L is not read; a place without one is zero.  ``InputError`` names the row of a text
        that cannot be encoded.
        """
        flat = [text for row in texts for text in ((row,) if isinstance(row, str) else row)]
        points = self._encoded(flat)
        found = torch.zeros(len(flat), *self.shape(kind))
        for start in range(0, len(flat), BATCH):
            rows = range(start, min(start + BATCH, len(flat)))
            found[start : start + BATCH] = self._of(self._batch(points, rows), kind)[: len(rows)]
        return found if len(flat) == len(texts) else found.view(len(texts), -1, *self.shape(kind))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that it was taught to tell; ``()`` where it was taught none."""
        network = self.body.network
        return network.classes if isinstance(network, Classifier) else ()

    @property
    def digest(self) -> str:
        """Hex sha256 of weights, tokenizer, pooling, L and ``dimension``, as they are in memory.

        Taken anew when torch counts a change of a weight; :meth:`current_digest` takes it in any case.
        """
        tensors = self.body.network.state_dict().values()
        key = tuple((value._version, value.data_ptr()) for value in tensors)
        if key not in self._digests:
            self._digests.clear()
            self._digests[key] = self.current_digest()
        return self._digests[key]

    def current_digest(self) -> str:
        """:attr:`digest`, computed again."""
        content = hashlib.sha256()
        for name, value in sorted(self.body.network.state_dict().items()):
            # a pooler that the folder lacks is drawn by the library, and never read
            if ".pooler." not in f".{name}.":
                content.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
                content.update(value.detach().cpu().contiguous().numpy().tobytes())
        content.update(_tokenizer_content(self.tokenizer))
        return hash_of([content.hexdigest(), self.body.described, self.max_tokens, self.dimension])

    def _of(self, batch: Batch, kind: Kind) -> Tensor:
        batch = batch.to(next(self.body.network.parameters()).device)
        if kind == "latent":
            found = self.body.latent(batch)
        else:
            found = (self.body.tokens(batch) * batch.real[..., None])[:, 1:]
        width = found.shape[-1]
        if _narrowed(width, self.dimension) < width:
            assert self.dimension is not None
            found = found @ _projection(width, self.dimension).to(found)
        return found.float().cpu()

    def _encoded(self, texts: Sequence[str]) -> EncodedPoints:
        for row, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise InputError(f"text {row} holds half of a surrogate pair: it is no text") from None
        return EncodedPoints.from_texts(texts, self.tokenizer, self.max_tokens)

    def _batch(self, points: EncodedPoints, rows: Sequence[int]) -> Batch:
        """``rows`` with the begin token before each, always [BATCH, L + 1]: the rest are empty texts."""
        inputs = np.full((BATCH, self.max_tokens + 1), self.tokenizer.pad_id, np.int64)
        inputs[:, 0], lengths = self.tokenizer.begin_id, np.ones(BATCH, np.int64)
        for place, row in enumerate(rows):
            own = points.targets_of(row)
            inputs[place, 1 : len(own) + 1] = own
            lengths[place] = len(own) + 1
        real = np.arange(self.max_tokens + 1)[None] < lengths[:, None]
        return Batch(
            torch.from_numpy(inputs), torch.zeros(BATCH, 1, dtype=torch.int64), torch.from_numpy(real)
        )


def _narrowed(width: int, dimension: int | None) -> int:
    return width if dimension is None else min(width, dimension)


def _projection(width: int, dimension: int) -> Tensor:
    """The public matrix [width, dimension], N(0, 1/dimension): it keeps lengths in expectation."""
    drawn = RandomStream.from_seed(_PROJECTION).normal("projection", width, width * dimension, dimension)
    return torch.from_numpy(drawn.reshape(width, dimension) / np.sqrt(dimension)).float()


def _tokenizer_content(tokenizer: TextCodec) -> bytes:
    if isinstance(tokenizer, FolderTokenizer):
        return str(tokenizer.inner.backend_tokenizer.to_str()).encode()
    assert isinstance(tokenizer, Tokenizer)
    return hash_of(tokenizer.to_json()).encode()
