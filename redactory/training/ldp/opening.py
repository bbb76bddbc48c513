"""Which kind of encoder a folder holds, and what may be used of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json
from redactory.redaction.folder import ModelFolder
from redactory.training.ldp.bodies import Body, body_of, folder_body
from redactory.training.ldp.encoder_folder import is_encoder, read_encoder
from redactory.training.ldp.folder_body import is_hugging_face, pooling_of, read_folder
from redactory.training.ldp.provenance import Provenance, declared, provenance_of_model, require_silent
from redactory.training.model import load_classifier, load_model
from redactory.training.models.build_classifier import is_classifier
from redactory.training.tokenizer import TextCodec

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
