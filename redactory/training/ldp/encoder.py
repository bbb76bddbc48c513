"""The user's frozen encoder of known provenance, from a sentence to the input of the DP layer.

An encoder that was updated on users' raw text is a function of that text, and so is every later message: one exchanged
sentence may move each of them by 2C. So an encoder is either public or trained with DP-SGD, whose mechanism is composed
with the messages' (``docs/guarantees.md``, "Local differential privacy").
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from redactory.foundation.canonical import folder_sha256, json_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, InputError
from redactory.foundation.files import commit_file, make_folder, read_json, write_json
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import ModelFolder, RunFolder, SealedFolder
from redactory.redaction.sealing import list_broken_files, seal_folder
from redactory.training.accounting import Spendings
from redactory.training.data import Batch, TokenizedExamples
from redactory.training.guarantee.spec import START_KEY, read_ledger_facts
from redactory.training.model import build_network_from_config, is_classifier_config, load_classifier, load_model
from redactory.training.models.folder_encoder import (
    CONFIG,
    FOLDER_KINDS,
    FolderEncoder,
    read_encoder_folder,
    read_json_or_empty,
    read_pooling,
)
from redactory.training.models.hugging_face import SequenceClassifier
from redactory.training.models.network import ClassifierNetwork, Encoder, LanguageNetwork
from redactory.training.models.recurrent import PooledClassifier, pool_states
from redactory.training.tokenizer import FolderTokenizer, TextCodec, Tokenizer

PUBLIC, DECLARED_PUBLIC, DPSGD = "public", "declared public", "dpsgd"
UPDATED_REASON = (
    "an encoder that was updated on private text without noise depends on that text, so exchanging one "
    "sentence may move every later message by 2C: no epsilon of a message holds (docs/guarantees.md, 'Local "
    "differential privacy'). Use a public encoder, or one trained with trainer dpsgd"
)
OTHER_UNIT_REASON = (
    "its epsilons are about another privacy unit or relation than one sentence exchanged for another, and "
    "do not compose with those of messages. Use a public encoder, or one trained with trainer dpsgd"
)

RepresentationKind = Literal["latent", "token"]
BATCH_SIZE = 32
"""Texts in every batch; a smaller batch is padded."""
DEFAULT_MAX_TOKENS = 64
"""Tokens read of a text if the folder gives no number."""
_PROJECTION_SEED = 0x4C4450


@dataclass(frozen=True)
class SentenceEncoder:
    """Encode texts as vectors with the frozen parameters of ``network``.

    ``layers`` read a text. ``pooling`` turns their states into one vector; None if ``network`` is a pooled classifier
    with its own vector. Every text is truncated or padded to ``max_tokens`` L. A representation wider than
    ``dimension`` is multiplied by a fixed public random matrix [width, dimension] (Johnson and Lindenstrauss).
    ``provenance`` is its origin as JSON with ``kind`` "public", "declared public" or "dpsgd", and ``spendings`` what
    its training spent, () if public.

    Formal guarantees: a text's representation is a function of that text and of frozen parameters. Texts go through in
    batches of one fixed shape, so no other text affects how it is computed. Its shape reveals no length.
    """

    tokenizer: TextCodec
    network: nn.Module
    layers: Encoder | LanguageNetwork
    pooling: str | None
    max_tokens: int
    provenance: dict[str, Any]
    spendings: Spendings = ()
    dimension: int | None = None

    @classmethod
    def load(
        cls, folder: Path, declared_public: bool = False, dimension: int | None = None, max_tokens: int | None = None
    ) -> Self:
        """Load the encoder in ``folder``: of stage 1, of ``RUN/models/NAME`` by DP-SGD, or of Hugging Face.

        The last needs ``declared_public``. ``GuaranteeError`` with the reason if no epsilon of a message would be
        valid, ``ConfigurationError`` or ``InputError`` if nothing can be read. Its provenance is checked before a
        weight is read.
        """
        if not folder.is_dir():
            raise ConfigurationError(f"encoder: there is no folder {folder.name}")
        config, model = read_json_or_empty(folder / CONFIG), ModelFolder(folder)
        length, pooling = DEFAULT_MAX_TOKENS, "mean"
        spendings: Spendings = ()
        tokenizer: TextCodec
        network: nn.Module
        if config.get("format") == FORMAT:
            tokenizer, network, length, provenance = read_encoder(folder)
        elif model.ledger.exists():
            provenance, spendings = _read_trained_model_provenance(model)
            loaded: Any = load_classifier(model) if is_classifier_config(config) else load_model(model)
            tokenizer, network = loaded.tokenizer, loaded.network
            length = getattr(loaded, "max_tokens", None) or DEFAULT_MAX_TOKENS
        else:
            require_no_training_record(folder)
            if config.get("model_type") not in FOLDER_KINDS:
                raise ConfigurationError(f"encoder: {folder.name} has no encoder that this version can read")
            if not declared_public:
                raise ConfigurationError(
                    f"{folder.name}: its training text is unproven. Declare it public if it is, or create "
                    "an encoder from public text (redactory ldp train --public)"
                )
            provenance = {"kind": DECLARED_PUBLIC, "folder_sha256": folder_sha256(folder)}
            tokenizer, network = read_encoder_folder(folder)
            pooling = read_pooling(folder)
        network.eval().requires_grad_(False)
        used_pooling = None if isinstance(network, PooledClassifier) else pooling
        layers = _find_text_layers(network)
        context_bound = None if layers.context is None else layers.context - 1
        bounds = [bound for bound in (max_tokens, length, context_bound) if bound is not None]
        return cls(tokenizer, network, layers, used_pooling, min(bounds), provenance, spendings, dimension)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes it was trained on; ``()`` if there are none."""
        return self.network.classes if isinstance(self.network, ClassifierNetwork) else ()

    @property
    def token_embedding(self) -> Any:
        """The embedding table of the tokens."""
        layers: Any = self.layers
        return layers.embedding if hasattr(layers, "embedding") else layers.model.get_input_embeddings()

    def get_shape(self, kind: RepresentationKind) -> tuple[int, ...]:
        """Return the shape of one text's representation: (d,) of "latent", (L, e) of "token"."""
        if kind == "token":
            width = int(next(self.token_embedding.parameters()).shape[1])
            return self.max_tokens, self._cap_representation_width(width)
        return (self._cap_representation_width(self._latent_width),)

    @torch.no_grad()
    def represent(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], kind: RepresentationKind = "latent"
    ) -> Tensor:
        """Return the texts' representations, float32 [n, d] or [n, L, e]; of pairs of texts [n, 2, d].

        Tokens beyond L are ignored; positions without a token are zero. ``InputError`` names the row of a text that
        cannot be encoded.
        """
        flat = [text for row in texts for text in ((row,) if isinstance(row, str) else row)]
        for row, text in enumerate(flat):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise InputError(f"text {row} contains half of a surrogate pair, which is not text") from None
        examples = TokenizedExamples.from_texts(flat, self.tokenizer, self.max_tokens)
        shape = self.get_shape(kind)
        representations = torch.zeros(len(flat), *shape)
        for start in range(0, len(flat), BATCH_SIZE):
            rows = range(start, min(start + BATCH_SIZE, len(flat)))
            encoded = self._represent_batch(self._make_batch(examples, rows), kind)
            representations[start : start + BATCH_SIZE] = encoded[: len(rows)]
        return representations if len(flat) == len(texts) else representations.view(len(texts), -1, *shape)

    @property
    def digest(self) -> str:
        """Hex sha256 of weights, tokenizer, pooling, L and ``dimension``, as they are in memory now."""
        content = hashlib.sha256()
        for name, value in sorted(self.network.state_dict().items()):
            # the library draws a pooler that the folder lacks; it is never used
            if ".pooler." not in f".{name}.":
                content.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
                content.update(value.detach().cpu().contiguous().numpy().tobytes())
        if isinstance(self.tokenizer, FolderTokenizer):
            content.update(str(self.tokenizer.inner.backend_tokenizer.to_str()).encode())
        else:
            assert isinstance(self.tokenizer, Tokenizer)
            content.update(json_sha256(self.tokenizer.to_json()).encode())
        if isinstance(self.network, PooledClassifier):
            description = self.network.describe()
        else:
            layers = self.layers
            of_layers = layers.get_model_configuration() if isinstance(layers, FolderEncoder) else layers.describe()
            description = {"network": of_layers, "pooling": self.pooling}
        return json_sha256([content.hexdigest(), description, self.max_tokens, self.dimension])

    def _represent_batch(self, batch: Batch, kind: RepresentationKind) -> Tensor:
        batch = batch.to(next(self.network.parameters()).device)
        if kind == "latent":
            representation = self._compute_latent(batch)
        else:
            # before any layer that mixes positions
            representation = (self.token_embedding(batch.inputs) * batch.real[..., None])[:, 1:]
        width = representation.shape[-1]
        narrow = self._cap_representation_width(width)
        if narrow < width:
            # the public matrix N(0, 1/dimension) preserves lengths in expectation
            drawn = RandomStream.from_seed(_PROJECTION_SEED).normal("projection", width, width * narrow, narrow)
            representation = representation @ torch.from_numpy(
                drawn.reshape(width, narrow) / np.sqrt(narrow)
            ).float().to(representation)
        return representation.float().cpu()

    @cached_property
    def _latent_width(self) -> int:
        single_token = torch.ones(1, 1, dtype=torch.int64)
        with torch.no_grad():
            return int(self._compute_latent(Batch(single_token, single_token, single_token.bool())).shape[1])

    def _compute_latent(self, batch: Batch) -> Tensor:
        if isinstance(self.network, PooledClassifier):
            return self.network.compute_representation(batch)
        assert self.pooling is not None
        return pool_states(self.layers.hidden_states(batch), batch.real, self.pooling)

    def _make_batch(self, examples: TokenizedExamples, rows: Sequence[int]) -> Batch:
        """Return ``rows`` with the begin token before each, always [BATCH_SIZE, L + 1]; the rest are empty texts."""
        inputs = np.full((BATCH_SIZE, self.max_tokens + 1), self.tokenizer.pad_id, np.int64)
        inputs[:, 0], lengths = self.tokenizer.begin_id, np.ones(BATCH_SIZE, np.int64)
        for index, row in enumerate(rows):
            token_ids = examples.get_targets(row)
            inputs[index, 1 : len(token_ids) + 1] = token_ids
            lengths[index] = len(token_ids) + 1
        real = torch.from_numpy(np.arange(self.max_tokens + 1)[None] < lengths[:, None])
        return Batch(torch.from_numpy(inputs), torch.zeros(BATCH_SIZE, 1, dtype=torch.int64), real)

    def _cap_representation_width(self, width: int) -> int:
        return width if self.dimension is None else min(width, self.dimension)


def _find_text_layers(network: nn.Module) -> Encoder | LanguageNetwork:
    if isinstance(network, PooledClassifier):
        return network.encoder
    if isinstance(network, SequenceClassifier):
        return FolderEncoder(network.model.base_model)
    if isinstance(network, FolderEncoder | LanguageNetwork):
        return network
    raise InputError("this kind of model cannot represent text; train one of kind bilstm, or use a folder")


def _read_trained_model_provenance(model: ModelFolder) -> tuple[dict[str, Any], Spendings]:
    """Return the provenance of ``RUN/models/NAME`` and its spendings, after checking its ledger and card.

    ``GuaranteeError`` with the reason if it was not trained with DP-SGD, was seeded, states no epsilon, differs from
    its sealed state, or is outside of its run, against which its ledger is checked.
    """
    folder = model.root
    run = RunFolder(folder.resolve().parent.parent)
    if folder.resolve().parent != run.models or not run.manifest.is_file():
        raise GuaranteeError(f"{folder.name}: a trained model must be checked against its run: give RUN/models/NAME")
    if problems := list_broken_files(model):
        raise GuaranteeError(f"{folder.name} changed after sealing: {problems[0]}")
    facts, card = read_ledger_facts(run, model), read_json(model.guarantee)
    by, refusal = f"trained with {facts.settings.trainer}", None
    if facts.mechanism is None:
        refusal = f"{by}: {UPDATED_REASON}"
    elif START_KEY in (facts.base or {}):
        refusal = "it started from another model of its run; only the card of both gives their sum"
    elif facts.trainer.uses_policy or facts.trainer.has_units:
        refusal = f"{by}: {OTHER_UNIT_REASON}"
    elif facts.seeded:
        refusal = "trained with a seed: whoever knows it can subtract the noise. Train it without train.seed"
    elif "selection" in card:
        refusal = "its run is public by count, and the epsilon of that does not compose with messages"
    elif card.get("epsilon_substitution") is None or card.get("holds") is not True:
        refusal = "its card states no epsilon (guarantee.json), so nothing can be composed"
    if refusal is not None:
        raise GuaranteeError(f"{folder.name}: {refusal}")
    record = {
        "kind": DPSGD,
        "ledger": facts.chain_head,
        "unit": card["unit"],
        "relation": facts.trainer.relation.value,
        "epsilon": card["epsilon_substitution"],
        "delta": card["delta"],
        "base": facts.base,
    }
    spending = facts.make_spec().spending
    return record, (spending,) if spending else ()


def require_no_training_record(folder: Path) -> None:
    """Raise ``GuaranteeError`` if the folder records a training on a corpus; no declaration overrides that."""
    for name in ("ledger.jsonl", "guarantee.json", "fit.json", SealedFolder(folder).success.name):
        if (folder / name).exists():
            raise GuaranteeError(f"{folder.name} ({name}) states that it was trained on a corpus: {UPDATED_REASON}")


# The sealed folder of a stage 1 encoder.


FORMAT = "redactory-sentence-encoder/1"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
PROVENANCE, BODY_FOLDER = "provenance.json", "body"
_ENCODER_PREFIX = "encoder."


def write_encoder(
    out: Path, tokenizer: TextCodec, network: PooledClassifier, max_tokens: int, provenance: dict[str, Any]
) -> None:
    """Write and seal ``out``; a frozen folder's weights and tokenizer are copied to ``out/body``."""
    make_folder(out)
    weights = network.state_dict()
    if isinstance(network.encoder, FolderEncoder):
        assert isinstance(tokenizer, FolderTokenizer)
        weights = {name: value for name, value in weights.items() if not name.startswith(_ENCODER_PREFIX)}
        network.encoder.model.save_pretrained(out / BODY_FOLDER)
        tokenizer.save(out / BODY_FOLDER)
    else:
        assert isinstance(tokenizer, Tokenizer)
        write_json(out / TOKENIZER, tokenizer.to_json())
    with commit_file(out / WEIGHTS) as temporary:
        contiguous = {name: value.contiguous() for name, value in weights.items()}
        save_file(contiguous, temporary, metadata={"format": "pt"})
    write_json(out / CONFIG, {"format": FORMAT, "max_tokens": max_tokens, "network": network.describe()})
    write_json(out / PROVENANCE, provenance)
    seal_folder(SealedFolder(out), {"format": FORMAT}, [path for path in out.rglob("*") if path.is_file()])


def read_encoder(folder: Path) -> tuple[TextCodec, PooledClassifier, int, dict[str, Any]]:
    """Read tokenizer, network, ``max_tokens`` and provenance of a folder that :func:`write_encoder` sealed.

    ``RunStateError`` if it is not finished, ``CheckFailed`` if a file differs from its sealed state, ``InputError`` for
    another format.
    """
    if problems := list_broken_files(SealedFolder(folder)):
        raise CheckFailed(f"the encoder {folder.name} changed after sealing: {problems[0]}")
    config, record = read_json(folder / CONFIG), read_json(folder / PROVENANCE)
    network = config["network"]
    if record.get("kind") != PUBLIC:
        raise InputError(f"{folder.name}/{CONFIG} is not that of an encoder that this version can read")
    tokenizer: TextCodec
    encoder_network: Any
    elsewhere = network["encoder"]["format"] == "folder"
    if elsewhere:
        tokenizer, below = read_encoder_folder(folder / BODY_FOLDER)
        encoder_network = PooledClassifier(below, tuple(network["classes"]), network["pooling"], network["bottleneck"])
    else:
        tokenizer = Tokenizer.from_json(read_json(folder / TOKENIZER))
        encoder_network = build_network_from_config(folder.name, network)
    missing, unknown = encoder_network.load_state_dict(load_file(folder / WEIGHTS), strict=False)
    if unknown or [name for name in missing if not (elsewhere and name.startswith(_ENCODER_PREFIX))]:
        raise InputError(f"{folder.name}: the weights do not fit {CONFIG}")
    return tokenizer, encoder_network, int(config["max_tokens"]), record
