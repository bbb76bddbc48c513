"""Classify texts by the vectors of a frozen, public encoder, which every text passes once.

A linear layer on such vectors needs far less privacy budget than a network that must learn the language from private
text first (Tramèr and Boneh 2021). What pretraining means for the promise: ``docs/guarantees.md``, "Public encoders".
"""

from __future__ import annotations

import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor, nn

from redactory.encoder import SENTENCE_FOLDER, load_encoder
from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError
from redactory.foundation.files import SUCCESS
from redactory.foundation.stream import RandomStream
from redactory.redaction.encryption import read_secret, write_secret
from redactory.training.data import Batch, RowIndices, TokenizedExamples
from redactory.training.models.hugging_face import extend_vocabulary, get_context_length, read_folder_model
from redactory.training.models.network import ClassifierNetwork, Encoder
from redactory.training.models.recurrent import pool_states
from redactory.training.models.settings import FrozenEncoderSettings
from redactory.training.tokenizer import FolderTokenizer, TextCodec, require_model_folder, require_transformers

Vectors = NDArray[np.float32]
PREFIX = "query: "
"""Put before every text, as multilingual-e5-small was trained (Wang et al. 2024)."""
CONSTANT_INPUT = 0.2
"""The last input of the linear layer, in place of a bias: it bounds what a bias adds to an example's gradient norm."""
ENCODER_FOLDER = "encoder"
"""The folder of a model with a copy of its encoder, if that is not the package's."""
CONFIG = "config.json"
FOLDER_KINDS = ("bert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
"""Supported ``transformers`` kinds, which give a state for every token."""
_KEY_BYTES, _DEFAULT_WINDOW = 16, 512


class FrozenEncoder(ABC):
    """Encodes each text as one vector; ``threads`` texts at a time.

    ``cache_path`` is a private file of a run with the vectors of its texts, encrypted if the run is. A cache of another
    encoder, or one that cannot be read, is replaced. ``sha256`` identifies the encoder.

    Formal guarantees: a text's vector is a function of that text and of public weights. No other text, cached or
    encoded at the same time, changes it.
    """

    sha256: str
    width: int
    folder: Path | None = None
    """Where it was read from, if it is not the package's."""
    lora_rank: int = 0
    """Rank of the adapters that a network trains in its last layers."""

    def __init__(self, cache_path: Path | None = None, threads: int = 1) -> None:
        self._cache_path, self._threads, self._cache = cache_path, threads, dict[bytes, NDArray[np.float16]]()

    @abstractmethod
    def encode_text(self, text: str) -> Vectors:
        """Encode a text of any length: [``width``]; zeros if it is white space."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode ``texts``: float32 [texts, ``width``], rounded to half precision, in which the cache keeps them."""
        if not self._cache and self._cache_path is not None:
            self._cache = self._read_cache(self._cache_path)
        keys = [hashlib.blake2b(text.encode(), digest_size=_KEY_BYTES).digest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._cache}
        with ThreadPoolExecutor(self._threads) as pool:
            vectors = pool.map(self._encode_or_zero, missing.values())
            known = {**self._cache, **dict(zip(missing, vectors, strict=True))}
        if missing and self._cache_path is not None:
            self._cache = known
            self._write_cache(self._cache_path)
        return np.array([known[key] for key in keys], np.float32).reshape(len(keys), self.width)

    def _encode_or_zero(self, text: str) -> NDArray[np.float16]:
        """Encode a text; zeros if the vector is not finite, as for such a gradient: a failure would be a release."""
        vector = self.encode_text(text).astype(np.float16)
        return vector if np.isfinite(vector).all() else np.zeros_like(vector)

    def make_examples(self, texts: Iterable[str], max_tokens: int | None = None) -> VectorExamples:
        """Make the table of ``texts`` for training, one row per text, of any length."""
        return VectorExamples.from_arrays(self.encode(list(texts))[:, None], self.width)

    def compute_public_mean(self) -> Vectors:
        """Compute the mean direction of public sentences, [``width``], which training subtracts.

        Vectors of most encoders point in similar directions. The sentences are part of the package, so the mean is a
        public constant.
        """
        vectors = self.encode(read_public_sentences())
        mean: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).mean(0)
        return mean

    def save(self, model_folder: Path) -> list[Path]:
        """Copy the encoder to ``model_folder/encoder``, unless it is the package's; return the files' paths."""
        if self.folder is None:
            return []
        target = model_folder / ENCODER_FOLDER
        shutil.copytree(self.folder, target, dirs_exist_ok=True)
        return sorted(path for path in target.rglob("*") if path.is_file())

    def _read_cache(self, path: Path) -> dict[bytes, NDArray[np.float16]]:
        with suppress(CheckFailed, FileNotFoundError, SafetensorError, KeyError):
            stored = load(read_secret(path))
            if stored["encoder"].tobytes() == bytes.fromhex(self.sha256):
                return dict(zip(map(bytes, stored["keys"]), stored["vectors"], strict=True))
        return {}

    def _write_cache(self, path: Path) -> None:
        encoder = np.frombuffer(bytes.fromhex(self.sha256), np.uint8)
        keys = np.frombuffer(b"".join(self._cache), np.uint8).reshape(-1, _KEY_BYTES)
        write_secret(path, save({"encoder": encoder, "keys": keys, "vectors": np.array([*self._cache.values()])}))


def read_public_sentences() -> list[str]:
    """Read the package's sentences, which constants of a training are computed from."""
    return (SENTENCE_FOLDER / "sentences.txt").read_text(encoding="utf-8").splitlines()


class PackageEncoder(FrozenEncoder):
    """The encoder in the package, multilingual-e5-small: the mean over a text's pieces, in windows if it is long."""

    def __init__(self, cache_path: Path | None = None, threads: int = 1) -> None:
        super().__init__(cache_path, threads)
        self._encoder = load_encoder(SENTENCE_FOLDER)
        self.sha256, self.width = self._encoder.sha256, self._encoder.width

    def encode_text(self, text: str) -> Vectors:
        """Encode a text of any length: [``width``]; zeros if it is white space."""
        vectors = self._encoder.encode(PREFIX + text).vectors if text.strip() else np.zeros((1, self.width))
        return np.asarray(vectors.mean(0), np.float32)


class FolderEncoder(Encoder):
    """A model of ``transformers`` without a head, frozen, and without dropout.

    Formal guarantees: those of :class:`redactory.training.models.network.Encoder`.
    """

    FORMAT = "folder"

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.context, self.width = get_context_length(model), model.config.hidden_size

    @torch.no_grad()
    def hidden_states(self, batch: Batch) -> Tensor:
        """The last layer's states [B, T, H]."""
        states: Tensor = self.model(batch.inputs, attention_mask=batch.real.long()).last_hidden_state
        return states

    def initialise(self, stream: RandomStream) -> None:
        """Draw nothing: the weights are the folder's."""

    def describe(self) -> dict[str, Any]:
        """The model's configuration without the library's versions and paths."""
        config: dict[str, Any] = self.model.config.to_dict()
        ignored_keys = ("transformers_version", "dtype", "torch_dtype", "architectures")
        model = {k: v for k, v in config.items() if not k.startswith("_") and k not in ignored_keys}
        return {"format": self.FORMAT, "model": model}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the encoder that :meth:`describe` describes, with arbitrary weights."""
        require_transformers()
        from transformers import AutoConfig, AutoModel

        build_model: Any = AutoModel.from_config
        return cls(build_model(AutoConfig.for_model(**config["model"])))


def read_encoder_folder(folder: Path, any_kind: bool = False) -> tuple[FolderTokenizer, FolderEncoder]:
    """Read tokenizer and frozen layers of ``folder``: of one of ``FOLDER_KINDS``, or of any kind.

    ``ConfigurationError`` if it is of another kind, lacks weights or a fast tokenizer, or records a training on a run
    or on labelled rows.
    """
    kind = read_json_or_empty(folder / CONFIG).get("model_type")
    if kind not in FOLDER_KINDS and not any_kind:
        raise ConfigurationError(f"{folder.name}: an encoder must be one of {', '.join(FOLDER_KINDS)}")
    require_transformers()
    from transformers import AutoModel

    tokenizer = FolderTokenizer.from_folder(folder)
    model, missing = read_folder_model(folder, AutoModel)
    if lacking := sorted(name for name in missing if "pooler" not in name):
        raise ConfigurationError(f"{folder.name}: weights are missing ({lacking[0]})")
    extend_vocabulary(model, tokenizer.size)
    return tokenizer, FolderEncoder(model)


def read_pooling(folder: Path) -> str:
    """Return "mean" or "first", as a sentence encoder's folder configures it; "mean" by default."""
    named = read_json_or_empty(folder / "1_Pooling" / "config.json")
    pools = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    modes = [key for key, value in named.items() if key.startswith("pooling_mode") and value is True]
    if len(modes) > 1 or not set(modes) <= set(pools):
        raise ConfigurationError(f"{folder.name}: unsupported pooling; expected the mean or the first state")
    return pools[modes[0]] if modes else "mean"


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


class FolderTextEncoder(FrozenEncoder):
    """The encoder in a local Hugging Face folder, in windows of its context; pooled as the folder says, or the mean.

    ``ConfigurationError`` if the folder has no encoder or no fast tokenizer, or was trained on a run's text.
    """

    def __init__(self, folder: Path, cache_path: Path | None = None) -> None:
        super().__init__(cache_path)
        self.folder = folder
        require_model_folder(folder)
        if any((folder / name).exists() for name in ("ledger.jsonl", "guarantee.json", SUCCESS)):
            raise ConfigurationError(
                f"train.model.folder: {folder.name} was trained on the text of a run; give a public encoder"
            )
        self.tokenizer, self.network = read_encoder_folder(folder, any_kind=True)
        self._pooling = read_pooling(folder)
        self.sha256, self.width = folder_sha256(folder), self.network.width
        try:
            self.encode_text("a trial")
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            problem = f"{folder.name} has no encoder with a state for every token ({type(error).__name__})"
            raise ConfigurationError(f"train.model.folder: {problem}") from None

    @torch.no_grad()
    def encode_text(self, text: str) -> Vectors:
        """Encode a text of any length: [``width``]; zeros if it is white space."""
        ids, size = self.tokenizer.encode(text), (self.network.context or _DEFAULT_WINDOW) - 2
        windows = [ids[start : start + size] for start in range(0, len(ids), size)] if text.strip() else []
        total, count = np.zeros(self.width, np.float32), max(1, len(ids))
        for window in windows:
            inputs = torch.tensor([[self.tokenizer.begin_id, *window, self.tokenizer.end_id]])
            real = torch.ones_like(inputs, dtype=torch.bool)
            states = self.network.hidden_states(Batch(inputs, inputs, real))
            total += pool_states(states, real, self._pooling)[0].numpy() * (len(window) / count)
        return total


def open_encoder(settings: FrozenEncoderSettings, cache_path: Path | None = None, threads: int = 1) -> FrozenEncoder:
    """Open the encoder of ``settings``."""
    if settings.folder is None:
        return PackageEncoder(cache_path, threads)
    return FolderTextEncoder(settings.folder, cache_path)


AnyCodec = TextCodec | FrozenEncoder
"""What turns a text into a network's input: token ids, or a vector."""


def encode_texts(texts: Iterable[str], codec: AnyCodec, max_tokens: int | None) -> TokenizedExamples:
    """Encode each text as a row: its first ``max_tokens`` tokens, or the vector of the whole text."""
    if isinstance(codec, FrozenEncoder):
        return codec.make_examples(texts, max_tokens)
    return TokenizedExamples.from_texts(texts, codec, max_tokens)


@dataclass(frozen=True)
class VectorExamples(TokenizedExamples):
    """Examples of vectors in place of tokens, [vectors, width]: one each, or as many as ``offsets`` says.

    Formal guarantees: those of :class:`redactory.training.data.TokenizedExamples`.
    """

    vectors: NDArray[Any] = field(kw_only=True)

    @classmethod
    def from_arrays(cls, arrays: Iterable[NDArray[Any]], width: int) -> Self:
        """Make the table of ``arrays``, [vectors, width] of each example."""
        arrays = [np.empty((0, width), np.float16), *arrays]
        offsets, vectors = np.cumsum([*map(len, arrays)], dtype=np.int64), np.concatenate(arrays)
        return cls(np.zeros(len(vectors), np.int32), offsets, 0, 0, vectors=vectors)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of vectors of each example, int64 [n]."""
        return np.diff(self.offsets)

    def make_batch(self, rows: RowIndices) -> Batch:
        """Make a batch of ``rows``: inputs float32 [B, T, width], targets [B, 1], real [B, T]."""
        assert self.labels is not None
        row_numbers = np.asarray(rows, np.int64)
        lengths = self.lengths[row_numbers]
        real = np.arange(lengths.max()) < lengths[:, None]
        inputs = np.zeros((*real.shape, self.vectors.shape[1]), np.float32)
        inputs[real] = self.select_values(self.vectors, rows)
        targets = self.labels[row_numbers][:, None]
        return Batch(*map(torch.from_numpy, (inputs, targets, real, row_numbers)))

    def select_examples(self, rows: RowIndices) -> Self:
        """Return the examples ``rows`` as a new table, numbered from 0."""
        return replace(super().select_examples(rows), vectors=self.select_values(self.vectors, rows))


class VectorClassifier(ClassifierNetwork):
    """A linear layer on a text's vector, less ``mean``, at length 1, with a constant as further input.

    ``encoder_sha256`` identifies the encoder, ``folder_name`` its folder if it is not the package's.

    Formal guarantees: those of :class:`redactory.training.models.network.ClassifierNetwork`. The layer's inputs have
    norm √(1 + 0.2²), so an example's gradient has norm ‖p − y‖·√(1 + 0.2²), in closed form.
    """

    FORMAT: ClassVar[str] = "redactory-vector-classifier/1"

    def __init__(self, mean: Vectors, classes: tuple[str, ...], encoder: dict[str, Any]) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.from_numpy(np.array(mean, np.float32)))
        self.head = nn.Linear(len(mean) + 1, len(classes), bias=False)
        self.classes, self._encoder = classes, encoder

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> VectorClassifier:
        """Make the network of a saved ``config.json``, without its weights."""
        return cls(np.zeros(config["width"], np.float32), tuple(config["classes"]), config["encoder"])

    def initialise(self, stream: RandomStream) -> None:
        """Set all weights to zero: the loss is convex, so no draw is needed."""
        nn.init.zeros_(self.head.weight)

    def logits(self, batch: Batch) -> Tensor:
        """Unnormalised log probabilities of the classes, [B, classes]."""
        return self.classify_vectors(batch.inputs[:, 0])

    def classify_vectors(self, vectors: Tensor) -> Tensor:
        """Compute the logits [B, classes] of texts with ``vectors`` [B, width]; those of zeros are zero."""
        is_empty = (vectors == 0).all(1, keepdim=True)
        centred = nn.functional.normalize(nn.functional.normalize(vectors) - self.mean).masked_fill(is_empty, 0.0)
        logits: Tensor = self.head(nn.functional.pad(centred, (0, 1), value=CONSTANT_INPUT))
        return logits

    def describe(self) -> dict[str, Any]:
        """The encoder, its width and the names of the classes."""
        header = {"format": self.FORMAT, "encoder": self._encoder, "width": len(self.mean)}
        return {**header, "classes": list(self.classes)}


def load_model_encoder(folder: Path, expected: dict[str, Any], package_encoder: FrozenEncoder) -> FrozenEncoder:
    """Open the encoder of a saved classifier, its copy or the package's.

    ``InputError`` if it is not the one that it was trained on, whose digest ``expected`` has.
    """
    encoder, place = package_encoder, "the installed version of redactory"
    if "folder" in expected:
        encoder, place = FolderTextEncoder(folder / ENCODER_FOLDER), f"{folder.name}/{ENCODER_FOLDER}"
    if encoder.sha256 != expected["sha256"]:
        raise InputError(
            f"{folder.name} was trained with the encoder {expected['sha256']} (sha256), but {place} has "
            f"{encoder.sha256}: restore it, or install the version that trained the model"
        )
    return encoder
