"""The user's frozen encoder of known provenance, from a sentence to the input of the DP layer.

An encoder that was updated on users' raw text is a function of that text, and so is every later message: one exchanged
sentence may move each of them by 2C. So an encoder is either public or trained with DP-SGD, whose mechanism is composed
with the messages' (``docs/guarantees.md``, "Local differential privacy").
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from redactory.foundation.canonical import folder_sha256, json_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, InputError
from redactory.foundation.files import make_folder, read_json, write_json
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import ModelFolder, RunFolder, SealedFolder
from redactory.redaction.sealing import list_broken_files, seal_folder
from redactory.training.accounting import Spendings
from redactory.training.data import Batch, TokenizedExamples
from redactory.training.guarantee.spec import START_KEY, read_ledger_facts
from redactory.training.model import TextClassifier, is_classifier_config, load_classifier, load_model, save_model
from redactory.training.models.folder_encoder import (
    CONFIG,
    FOLDER_KINDS,
    FolderEncoder,
    read_encoder_folder,
    read_json_or_empty,
    read_pooling,
)
from redactory.training.models.hugging_face import HuggingFaceNetwork
from redactory.training.models.network import LanguageNetwork
from redactory.training.models.recurrent import PooledClassifier
from redactory.training.tokenizer import FolderTokenizer, TextCodec, Tokenizer

PUBLIC, DECLARED_PUBLIC, DPSGD = "public", "declared public", "dpsgd"
PROVENANCE = "provenance.json"
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
    """Encode texts as vectors with the frozen parameters of ``network``, whose output layer is not used.

    Every text is truncated or padded to ``max_tokens`` L. A representation wider than ``dimension`` is multiplied by a
    fixed public random matrix [width, dimension] (Johnson and Lindenstrauss). ``provenance`` is its origin as JSON with
    ``kind`` "public", "declared public" or "dpsgd", and ``spendings`` what its training spent, () if public.

    Formal guarantees: a text's representation is a function of that text and of frozen parameters. Texts go through in
    batches of one fixed shape, so no other text affects how it is computed. Its shape reveals no length.
    """

    tokenizer: TextCodec
    network: PooledClassifier
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
        spendings: Spendings = ()
        if model.ledger.exists():
            provenance, spendings = _read_trained_model_provenance(model)
        elif (folder / PROVENANCE).exists():
            if problems := list_broken_files(model):
                raise CheckFailed(f"the encoder {folder.name} changed after sealing: {problems[0]}")
            provenance = read_json(folder / PROVENANCE)
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
        length = DEFAULT_MAX_TOKENS
        tokenizer: TextCodec
        if provenance["kind"] == DECLARED_PUBLIC:
            tokenizer, layers = read_encoder_folder(folder)
            network = PooledClassifier(layers, (), read_pooling(folder))
        else:
            loaded: Any = load_classifier(model) if is_classifier_config(config) else load_model(model)
            tokenizer, network = loaded.tokenizer, _pool_network(loaded.network)
            length = getattr(loaded, "max_tokens", None) or DEFAULT_MAX_TOKENS
        network.eval().requires_grad_(False)
        context_bound = None if network.context is None else network.context - 1
        bounds = [bound for bound in (max_tokens, length, context_bound) if bound is not None]
        return cls(tokenizer, network, min(bounds), provenance, spendings, dimension)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes it was trained on; ``()`` if there are none."""
        return self.network.classes

    @property
    def token_embedding(self) -> Any:
        """The embedding table of the tokens."""
        layers: Any = self.network.encoder
        return layers.embedding if hasattr(layers, "embedding") else layers.model.get_input_embeddings()

    def get_shape(self, kind: RepresentationKind) -> tuple[int, ...]:
        """Return the shape of one text's representation: (d,) of "latent", (L, e) of "token"."""
        if kind == "token":
            width = int(next(self.token_embedding.parameters()).shape[1])
            return self.max_tokens, self._cap_representation_width(width)
        return (self._cap_representation_width(self.network.width),)

    @torch.no_grad()
    def represent(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], kind: RepresentationKind = "latent"
    ) -> Tensor:
        """Return the texts' representations, float32 [n, d] or [n, L, e]; of pairs of texts [n, 2, d].

        Tokens beyond L are ignored; positions without a token are zero. ``InputError`` names the row of a text that
        cannot be encoded.
        """
        flat = [text for row in texts for text in ((row,) if isinstance(row, str) else row)]
        for number, row in enumerate(texts, 1):
            try:
                "".join(row).encode()
            except UnicodeEncodeError:
                raise InputError(f"row {number} contains half of a surrogate pair, which is not text") from None
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
            # neither the output layer is used, nor a pooler, which the library draws if the folder lacks it
            if not name.startswith("head.") and ".pooler." not in name:
                content.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
                content.update(value.detach().cpu().contiguous().numpy().tobytes())
        if isinstance(self.tokenizer, FolderTokenizer):
            content.update(str(self.tokenizer.inner.backend_tokenizer.to_str()).encode())
        else:
            assert isinstance(self.tokenizer, Tokenizer)
            content.update(json_sha256(self.tokenizer.to_json()).encode())
        return json_sha256([content.hexdigest(), self.network.describe(), self.max_tokens, self.dimension])

    def _represent_batch(self, batch: Batch, kind: RepresentationKind) -> Tensor:
        batch = batch.to(next(self.network.parameters()).device)
        if kind == "latent":
            representation = self.network.compute_representation(batch)
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


def _pool_network(network: Any) -> PooledClassifier:
    """Return ``network``, or its layers that read a text with the mean of their states."""
    if isinstance(network, PooledClassifier):
        return network
    if not isinstance(network, LanguageNetwork | HuggingFaceNetwork):
        raise InputError("this kind of model cannot represent text; train one of kind bilstm, or use a folder")
    is_library_model = isinstance(network, HuggingFaceNetwork)
    layers: Any = FolderEncoder(network.model.base_model) if is_library_model else network
    return PooledClassifier(layers, getattr(network, "classes", ()), "mean")


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


def write_encoder(out: Path, model: TextClassifier, provenance: dict[str, Any]) -> None:
    """Write and seal the encoder of stage 1 with its ``provenance``."""
    make_folder(out)
    files = save_model(ModelFolder(out), model)
    write_json(out / PROVENANCE, provenance)
    seal_folder(SealedFolder(out), {}, [*files, out / PROVENANCE])
