"""The user's frozen encoder of known provenance, from a sentence to the input of the DP layer.

An encoder that was updated on users' raw text is a function of that text, and so is every later message: one exchanged
sentence may move each of them by 2C. So an encoder is either public or trained with DP-SGD, whose mechanism is composed
with the messages' (``docs/guarantees.md``, "Local differential privacy").
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from redactory.foundation.canonical import folder_sha256, json_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, InputError, RunStateError
from redactory.foundation.files import make_folder, read_json, write_json
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import ModelFolder, RunFolder, SealedFolder
from redactory.redaction.sealing import list_broken_files, seal_folder
from redactory.training.accounting import Spendings
from redactory.training.data import NO_CLASS, Batch, PublicText, TokenizedExamples, encode_classes
from redactory.training.guarantee.spec import START_KEY, read_ledger_facts
from redactory.training.ldp.settings import EncoderSettings, FrozenFolderSettings
from redactory.training.model import TextClassifier, is_classifier_config, load_classifier, load_model, save_model
from redactory.training.models.frozen_encoder import (
    CONFIG,
    FOLDER_KINDS,
    FolderEncoder,
    read_encoder_folder,
    read_json_or_empty,
    read_pooling,
)
from redactory.training.models.hugging_face import HuggingFaceNetwork
from redactory.training.models.network import LanguageNetwork, Network
from redactory.training.models.recurrent import BiLstmEncoder, PooledClassifier
from redactory.training.numerics import use_deterministic_numerics
from redactory.training.steps import NoiseFreeSteps, ScheduledOptimizer, make_optimizer
from redactory.training.tokenizer import TextCodec, Tokenizer

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
    def token_embedding(self) -> Any:
        """The embedding table of the tokens."""
        layers: Any = self.network.encoder
        return layers.embedding if hasattr(layers, "embedding") else layers.model.get_input_embeddings()

    def get_shape(self, kind: RepresentationKind) -> tuple[int, ...]:
        """Return the shape of one text's representation: (d,) of "latent", (L, e) of "token"."""
        if kind == "token":
            return self.max_tokens, self._cap_width(int(next(self.token_embedding.parameters()).shape[1]))
        return (self._cap_width(self.network.width),)

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
            encoded = self._represent_batch(examples, rows, kind)
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
        parts = [content.hexdigest(), self.tokenizer.digest, self.network.describe(), self.max_tokens, self.dimension]
        return json_sha256(parts)

    def _represent_batch(self, examples: TokenizedExamples, rows: Sequence[int], kind: RepresentationKind) -> Tensor:
        """Represent ``rows`` with the begin token before each, always [BATCH_SIZE, L + 1]; the rest are empty texts."""
        inputs = np.full((BATCH_SIZE, self.max_tokens + 1), self.tokenizer.pad_id, np.int64)
        inputs[:, 0], lengths = self.tokenizer.begin_id, np.ones(BATCH_SIZE, np.int64)
        for index, row in enumerate(rows):
            token_ids = examples.get_targets(row)
            inputs[index, 1 : len(token_ids) + 1] = token_ids
            lengths[index] = len(token_ids) + 1
        real = torch.from_numpy(np.arange(self.max_tokens + 1)[None] < lengths[:, None])
        batch = Batch(torch.from_numpy(inputs), torch.zeros(BATCH_SIZE, 1, dtype=torch.int64), real)
        batch = batch.to(next(self.network.parameters()).device)
        if kind == "latent":
            representation = self.network.compute_representation(batch)
        else:
            # before any layer that mixes positions
            representation = (self.token_embedding(batch.inputs) * batch.real[..., None])[:, 1:]
        width, narrow = representation.shape[-1], self._cap_width(representation.shape[-1])
        if narrow < width:
            # the public matrix N(0, 1/dimension) preserves lengths in expectation
            drawn = RandomStream.from_seed(_PROJECTION_SEED).normal("projection", width, width * narrow, narrow)
            matrix = torch.from_numpy(drawn.reshape(width, narrow) / np.sqrt(narrow)).float()
            representation = representation @ matrix.to(representation)
        return representation.float().cpu()

    def _cap_width(self, width: int) -> int:
        return width if self.dimension is None else min(width, self.dimension)


def _pool_network(network: Any) -> PooledClassifier:
    """Return ``network``, or its layers that read a text with the mean of their states."""
    if isinstance(network, PooledClassifier):
        return network
    if not isinstance(network, LanguageNetwork | HuggingFaceNetwork):
        raise InputError("this kind of model cannot represent text; train one of kind bilstm, or use a folder")
    library_model: Any = network.model if isinstance(network, HuggingFaceNetwork) else None
    layers: Any = network if library_model is None else FolderEncoder(library_model.base_model)
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


# Stage 1 of LDP-NLP: an encoder is trained on public labelled text, before any user takes part.


def pretrain_encoder(
    public: PublicText, settings: EncoderSettings, out: Path, progress: Progress = ignore_progress
) -> dict[str, Any]:
    """Train an encoder on ``public`` without noise, seal it in ``out`` and return the JSON summary.

    The same text and settings give the same weights. ``InputError`` if the text lacks rows of at least two classes,
    ``ConfigurationError`` or ``GuaranteeError`` if ``model.folder`` is unsuitable.
    """
    sha256, labelled_texts = public.sha256, list(public.read_rows())
    texts, labels = [text for text, _ in labelled_texts], [label for _, label in labelled_texts]
    classes = tuple(sorted({label for label in labels if label}))
    class_ids = encode_classes(labels, classes)
    rows = np.flatnonzero(class_ids != NO_CLASS).astype(np.int64)
    if len(classes) < 2:
        raise InputError(
            f"{public.path.name}: an encoder needs rows of at least two classes, in column {public.label_column!r}"
        )
    with use_deterministic_numerics(settings.threads):
        tokenizer, network, base = _make_encoder_network(texts, settings, classes)
        bound = min(settings.max_tokens, (network.context or settings.max_tokens + 1) - 1)
        examples = replace(TokenizedExamples.from_texts(texts, tokenizer, bound), labels=class_ids)
        noisy_network = _NoisyNetwork(network, settings)
        steps = settings.epochs * math.ceil(len(rows) / settings.batch_size)
        descent = ScheduledOptimizer(make_optimizer(noisy_network, "adam"), settings.learning_rate, steps)
        stream = RandomStream.from_seed(settings.seed)
        phase = NoiseFreeSteps(noisy_network, descent, examples, rows, settings.batch_size, stream, purpose="stage 1")
        for number in range(steps):
            phase.step(number)
            progress("learning the encoder", number + 1, steps, "steps")
        classifier = TextClassifier(tokenizer, network, bound)
        predicted = classifier.compute_class_log_probs([texts[row] for row in rows]).argmax(1)
    if public.sha256 != sha256:
        raise RunStateError(f"{public.path.name} changed while it was read: start again")
    record = {
        "kind": PUBLIC,
        "text_sha256": sha256,
        "rows": len(rows),
        "base": base,
        "settings": settings.model_dump(mode="json", exclude={"threads": True, "model": {"folder"}}),
    }
    make_folder(out)
    files = save_model(ModelFolder(out), classifier)
    write_json(out / PROVENANCE, record)
    seal_folder(SealedFolder(out), {}, [*files, out / PROVENANCE])
    return {
        "provenance": PUBLIC,
        "rows": len(rows),
        "classes": list(classes),
        "dimension": settings.dimension,
        "max_tokens": bound,
        "parameters": sum(p.numel() for p in network.parameters()),
        "accuracy_on_public_text": float((predicted == class_ids[rows]).mean()),
    }


def _make_encoder_network(
    texts: Sequence[str], settings: EncoderSettings, classes: tuple[str, ...]
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
        tokenizer = Tokenizer.from_texts(texts, settings.vocabulary_size, minimum_count=2)
        both = BiLstmEncoder(tokenizer.size, model_settings)
        network = PooledClassifier(both, classes, model_settings.pooling, settings.dimension)
    network.initialise(RandomStream.from_seed(settings.seed))
    return tokenizer, network, base


class _NoisyNetwork(Network):
    """The network as the server will see it: classes of the latent vector, clipped and maybe noised.

    Formal guarantees: none; it reads only public text. Parameters of a frozen folder do not change, so the pooled
    states of its rows are computed once.
    """

    def __init__(self, network: PooledClassifier, settings: EncoderSettings) -> None:
        super().__init__()
        self.network, self._settings = network, settings
        self._cached_pools: dict[int, Tensor] = {}

    def initialise(self, stream: RandomStream) -> None:
        self.network.initialise(stream)

    def begin_step(self, stream: RandomStream, purpose: str, step: int) -> None:
        self._draw_noise = partial(stream.normal, f"{purpose}, noise", step)
        self.network.begin_step(stream, purpose, step)

    def example_losses(self, batch: Batch) -> Tensor:
        latent = self.network.bottleneck(self._pool_states(batch))
        norms = latent.norm(dim=1, keepdim=True).clamp(min=1e-12)
        clipped = latent * (self._settings.clip_norm / norms).clamp(max=1.0)
        if deviation := self._settings.noise_multiplier * self._settings.clip_norm:
            noise = torch.from_numpy(self._draw_noise(clipped.numel())).view_as(clipped)
            clipped = clipped + deviation * noise.to(clipped)
        return F.cross_entropy(self.network.head(clipped), batch.targets[:, 0], reduction="none")

    def _pool_states(self, batch: Batch) -> Tensor:
        if not isinstance(self.network.encoder, FolderEncoder) or batch.rows is None:
            return self.network.pool_encoder_states(batch)
        rows = batch.rows.tolist()
        if not self._cached_pools.keys() >= set(rows):
            self._cached_pools.update(zip(rows, self.network.pool_encoder_states(batch), strict=True))
        return torch.stack([self._cached_pools[row] for row in rows])
