"""The user's encoder: of known provenance, frozen, from a sentence to what the DP layer clips and noises.

An encoder that was updated on users' raw text is a function of that text, and so is every message it makes
afterwards: one exchanged sentence may move all later messages by 2C each.  So an encoder is public, or it
was trained with DP-SGD, whose mechanism is composed with the messages' (``docs/guarantees.md``, "Local
differential privacy").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from redactory.foundation.canonical import folder_sha256, hash_of
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, InputError
from redactory.foundation.files import commit, make_folder, read_json, write_json
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import ModelFolder, RunFolder, SealedFolder
from redactory.redaction.sealing import broken_files, seal
from redactory.training.accounting import Spendings
from redactory.training.data import Batch, EncodedPoints
from redactory.training.guarantee.spec import START, ledger_facts
from redactory.training.model import is_classifier, load_classifier, load_model, rebuilt
from redactory.training.models.hugging_face import ClassifierNetwork, context_of, fit_vocabulary, read_model
from redactory.training.models.network import Classifier, Encoder, LanguageNetwork
from redactory.training.models.recurrent import PooledClassifier, pooled
from redactory.training.tokenizer import FolderTokenizer, TextCodec, Tokenizer, require_transformers

PUBLIC, DECLARED, DPSGD = "public", "declared public", "dpsgd"
UPDATED = (
    "an encoder that was updated on private text without noise depends on that text, so exchanging one "
    "sentence may move every later message by 2C: no epsilon of a message holds (docs/guarantees.md, 'Local "
    "differential privacy'). Use a public encoder, or one trained with trainer dpsgd"
)
OTHER_UNIT = (
    "its epsilons are about another privacy unit or relation than one sentence exchanged for another, and "
    "do not compose with those of messages. Use a public encoder, or one trained with trainer dpsgd"
)

Kind = Literal["latent", "token"]
BATCH = 32
"""Texts in every batch; a batch that is not full is filled up."""
DEFAULT_TOKENS = 64
"""Tokens of a text that are read where the folder names no number."""
_PROJECTION = 0x4C4450
"""The seed of the public projection: known to everybody."""


@dataclass(frozen=True)
class SentenceEncoder:
    """Texts to vectors, by parameters of the ``network`` that nothing changes.

    ``layers`` read a text; ``pooling`` says how their states become one vector, None where ``network`` is a
    pooled classifier, whose own vector it is then.  ``max_tokens`` is L, to which every text is cut or filled
    up; a representation wider than ``dimension`` is multiplied by a fixed public random matrix [width,
    dimension] (Johnson and Lindenstrauss).  ``provenance`` is where it comes from, as JSON with ``kind``
    "public", "declared public" or "dpsgd", and ``spendings`` what making it spent, () if public.

    Formal guarantees: a text's representation is a function of that text and of frozen parameters: texts go
    through in batches of one fixed shape, so no other text decides how it is computed.  Its shape tells no
    length.
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
        """The encoder in ``folder``: of stage 1, of ``RUN/models/NAME`` by DP-SGD, or of Hugging Face.

        The last needs ``declared_public``.  ``GuaranteeError`` with the reason where no figure of a message
        would hold, ``ConfigurationError`` or ``InputError`` where nothing can be read.  Its provenance is
        checked before a weight is read.
        """
        if not folder.is_dir():
            raise ConfigurationError(f"encoder: there is no folder {folder.name}")
        config, model = _json_of(folder / CONFIG), ModelFolder(folder)
        length, pooling = DEFAULT_TOKENS, "mean"
        spent: Spendings = ()
        tokenizer: TextCodec
        network: nn.Module
        if config.get("format") == FORMAT:
            tokenizer, network, length, origin = read_encoder(folder)
        elif model.ledger.exists():
            origin, spent = _trained(model)
            opened: Any = load_classifier(model) if is_classifier(config) else load_model(model)
            tokenizer, network = opened.tokenizer, opened.network
            length = getattr(opened, "max_tokens", None) or DEFAULT_TOKENS
        else:
            require_silent(folder)
            if config.get("model_type") not in KINDS:
                raise ConfigurationError(f"encoder: {folder.name} has no encoder that this version can read")
            if not declared_public:
                raise ConfigurationError(
                    f"{folder.name}: its training text is unproven. Declare it public if it is, or create "
                    "an encoder from public text (redactory ldp train --public)"
                )
            origin = {"kind": DECLARED, "folder_sha256": folder_sha256(folder)}
            tokenizer, network = read_folder(folder)
            pooling = pooling_of(folder)
        network.eval().requires_grad_(False)
        own = None if isinstance(network, PooledClassifier) else pooling
        layers = _layers(network)
        beside_begin = None if layers.context is None else layers.context - 1
        bounds = [bound for bound in (max_tokens, length, beside_begin) if bound is not None]
        return cls(tokenizer, network, layers, own, min(bounds), origin, spent, dimension)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that it was taught to tell; ``()`` where it was taught none."""
        return self.network.classes if isinstance(self.network, Classifier) else ()

    @property
    def table(self) -> Any:
        """The table of the tokens' embeddings."""
        own: Any = self.layers
        return own.embedding if hasattr(own, "embedding") else own.model.get_input_embeddings()

    def shape(self, kind: Kind) -> tuple[int, ...]:
        """The shape of one text's representation: (d,) of "latent", (L, e) of "token"."""
        if kind == "token":
            return self.max_tokens, self._narrowed(int(next(self.table.parameters()).shape[1]))
        return (self._narrowed(self._width),)

    @torch.no_grad()
    def represent(self, texts: Sequence[str] | Sequence[tuple[str, str]], kind: Kind = "latent") -> Tensor:
        """The texts' representations, float32 [n, d] or [n, L, e]; of pairs of texts [n, 2, d].

        A token beyond L is not read; a place without one is zero.  ``InputError`` names the row of a text
        that cannot be encoded.
        """
        flat = [text for row in texts for text in ((row,) if isinstance(row, str) else row)]
        for row, text in enumerate(flat):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise InputError(f"text {row} contains half of a surrogate pair, which is not text") from None
        points = EncodedPoints.from_texts(flat, self.tokenizer, self.max_tokens)
        found = torch.zeros(len(flat), *self.shape(kind))
        for start in range(0, len(flat), BATCH):
            rows = range(start, min(start + BATCH, len(flat)))
            found[start : start + BATCH] = self._of(self._batch(points, rows), kind)[: len(rows)]
        return found if len(flat) == len(texts) else found.view(len(texts), -1, *self.shape(kind))

    @property
    def digest(self) -> str:
        """Hex sha256 of weights, tokenizer, pooling, L and ``dimension``, as they are in memory now."""
        content = hashlib.sha256()
        for name, value in sorted(self.network.state_dict().items()):
            # a pooler that the folder lacks is drawn by the library, and never read
            if ".pooler." not in f".{name}.":
                content.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
                content.update(value.detach().cpu().contiguous().numpy().tobytes())
        if isinstance(self.tokenizer, FolderTokenizer):
            content.update(str(self.tokenizer.inner.backend_tokenizer.to_str()).encode())
        else:
            assert isinstance(self.tokenizer, Tokenizer)
            content.update(hash_of(self.tokenizer.to_json()).encode())
        if isinstance(self.network, PooledClassifier):
            described = self.network.describe()
        else:
            own = self.layers
            of_layers = own.identity() if isinstance(own, FolderEncoder) else own.describe()
            described = {"network": of_layers, "pooling": self.pooling}
        return hash_of([content.hexdigest(), described, self.max_tokens, self.dimension])

    def _of(self, batch: Batch, kind: Kind) -> Tensor:
        batch = batch.to(next(self.network.parameters()).device)
        if kind == "latent":
            found = self._latent(batch)
        else:
            # before any layer that mixes places
            found = (self.table(batch.inputs) * batch.real[..., None])[:, 1:]
        width = found.shape[-1]
        narrow = self._narrowed(width)
        if narrow < width:
            # the public matrix N(0, 1/dimension): it keeps lengths in expectation
            drawn = RandomStream.from_seed(_PROJECTION).normal("projection", width, width * narrow, narrow)
            found = found @ torch.from_numpy(drawn.reshape(width, narrow) / np.sqrt(narrow)).float().to(found)
        return found.float().cpu()

    @cached_property
    def _width(self) -> int:
        one = torch.ones(1, 1, dtype=torch.int64)
        with torch.no_grad():
            return int(self._latent(Batch(one, one, one.bool())).shape[1])

    def _latent(self, batch: Batch) -> Tensor:
        if isinstance(self.network, PooledClassifier):
            return self.network.latent(batch)
        assert self.pooling is not None
        return pooled(self.layers.hidden(batch), batch.real, self.pooling)

    def _batch(self, points: EncodedPoints, rows: Sequence[int]) -> Batch:
        """``rows`` with the begin token before each, always [BATCH, L + 1]: the rest are empty texts."""
        inputs = np.full((BATCH, self.max_tokens + 1), self.tokenizer.pad_id, np.int64)
        inputs[:, 0], lengths = self.tokenizer.begin_id, np.ones(BATCH, np.int64)
        for place, row in enumerate(rows):
            own = points.targets_of(row)
            inputs[place, 1 : len(own) + 1] = own
            lengths[place] = len(own) + 1
        real = torch.from_numpy(np.arange(self.max_tokens + 1)[None] < lengths[:, None])
        return Batch(torch.from_numpy(inputs), torch.zeros(BATCH, 1, dtype=torch.int64), real)

    def _narrowed(self, width: int) -> int:
        return width if self.dimension is None else min(width, self.dimension)


def _layers(network: nn.Module) -> Encoder | LanguageNetwork:
    """The layers of ``network`` that read a text."""
    if isinstance(network, PooledClassifier):
        return network.encoder
    if isinstance(network, ClassifierNetwork):
        return FolderEncoder(network.model.base_model)
    if isinstance(network, FolderEncoder | LanguageNetwork):
        return network
    raise InputError("this kind of model cannot represent text")


def _trained(model: ModelFolder) -> tuple[dict[str, Any], Spendings]:
    """Provenance of ``RUN/models/NAME``, from its ledger and its card, both checked, and what it spent.

    ``GuaranteeError`` with the reason where it was not trained with DP-SGD, was seeded, states no epsilon, is
    not as it was sealed, or lies outside of its run, which its ledger is checked against.
    """
    folder = model.root
    run = RunFolder(folder.resolve().parent.parent)
    if folder.resolve().parent != run.models or not run.manifest.is_file():
        raise GuaranteeError(f"{folder.name}: a trained model must be checked against its run: give RUN/models/NAME")
    if problems := broken_files(model):
        raise GuaranteeError(f"{folder.name} changed after sealing: {problems[0]}")
    facts, card = ledger_facts(run, model), read_json(model.guarantee)
    by, refusal = f"trained with {facts.settings.trainer}", None
    if facts.mechanism is None:
        refusal = f"{by}: {UPDATED}"
    elif START in (facts.base or {}):
        refusal = "it started from another model of its run; only the card of both gives their sum"
    elif facts.trainer.by_policy or facts.trainer.of_units:
        refusal = f"{by}: {OTHER_UNIT}"
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
    spending = facts.spec().spending
    return record, (spending,) if spending else ()


def require_silent(folder: Path) -> None:
    """``GuaranteeError`` where the folder itself says that it was trained on a corpus.

    No declaration outweighs that.
    """
    for name in ("ledger.jsonl", "guarantee.json", "fit.json", SealedFolder(folder).success.name):
        if (folder / name).exists():
            raise GuaranteeError(f"{folder.name} ({name}) states that it was trained on a corpus: {UPDATED}")


# A local Hugging Face folder as the frozen layers that read a sentence.


KINDS = ("bert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
"""Kinds of ``transformers`` that give a state for every token and are read here."""


class FolderEncoder(Encoder):
    """A model of ``transformers`` without a head, frozen, and without dropout.

    Formal guarantees: those of :class:`redactory.training.models.network.Encoder`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.context = context_of(model)

    @property
    def width(self) -> int:
        """H."""
        return int(self.model.config.hidden_size)

    @torch.no_grad()
    def hidden(self, batch: Batch) -> Tensor:
        """The last layer's states [B, T, H]."""
        states: Tensor = self.model(batch.inputs, attention_mask=batch.real.long()).last_hidden_state
        return states

    def initialise(self, stream: RandomStream) -> None:
        """Nothing is drawn: the weights are the folder's."""

    def describe(self) -> dict[str, Any]:
        """The kind; the weights lie beside it, as the library writes them."""
        return {"format": "folder", "model_type": self.model.config.model_type}

    def identity(self) -> dict[str, Any]:
        """The model's configuration without what the library notes of its own versions and places."""
        config: dict[str, Any] = self.model.config.to_dict()
        left_out = ("transformers_version", "dtype", "torch_dtype", "architectures", "vocab_size")
        return {k: v for k, v in config.items() if not k.startswith("_") and k not in left_out}


def read_folder(folder: Path) -> tuple[FolderTokenizer, FolderEncoder]:
    """Tokenizer and frozen layers of ``folder``.

    ``ConfigurationError`` where it is of another kind, lacks weights or a fast tokenizer, or says of itself
    that it was trained on a run or on labelled rows.
    """
    kind = _json_of(folder / CONFIG).get("model_type")
    if kind not in KINDS:
        raise ConfigurationError(f"{folder.name}: an encoder must be one of {', '.join(KINDS)}")
    require_transformers()
    from transformers import AutoModel

    tokenizer = FolderTokenizer.from_folder(folder)
    model, missing = read_model(folder, AutoModel)
    if lacking := sorted(name for name in missing if "pooler" not in name):
        raise ConfigurationError(f"{folder.name}: weights are missing ({lacking[0]})")
    fit_vocabulary(model, tokenizer.size)
    return tokenizer, FolderEncoder(model)


def pooling_of(folder: Path) -> str:
    """ "mean" or "first", as a sentence encoder's folder names it; the mean where it names none."""
    named = _json_of(folder / "1_Pooling" / "config.json")
    pools = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    modes = [key for key, value in named.items() if key.startswith("pooling_mode") and value is True]
    if len(modes) > 1 or not set(modes) <= set(pools):
        raise ConfigurationError(f"{folder.name}: unsupported pooling; expected the mean or the first state")
    return pools[modes[0]] if modes else "mean"


def _json_of(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# The folder of an encoder that stage 1 made: written, sealed, and read again as it was sealed.


FORMAT = "redactory-sentence-encoder/1"
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
PROVENANCE, BODY = "provenance.json", "body"
_BELOW = "encoder."


def write_encoder(
    out: Path, tokenizer: TextCodec, network: PooledClassifier, max_tokens: int, provenance: dict[str, Any]
) -> None:
    """Write and seal ``out``; a frozen folder's weights and tokenizer come to lie in ``out/body``."""
    make_folder(out)
    weights = network.state_dict()
    if isinstance(network.encoder, FolderEncoder):
        assert isinstance(tokenizer, FolderTokenizer)
        weights = {name: value for name, value in weights.items() if not name.startswith(_BELOW)}
        network.encoder.model.save_pretrained(out / BODY)
        tokenizer.save(out / BODY)
    else:
        assert isinstance(tokenizer, Tokenizer)
        write_json(out / TOKENIZER, tokenizer.to_json())
    with commit(out / WEIGHTS) as temporary:
        contiguous = {name: value.contiguous() for name, value in weights.items()}
        save_file(contiguous, temporary, metadata={"format": "pt"})
    write_json(out / CONFIG, {"format": FORMAT, "max_tokens": max_tokens, "network": network.describe()})
    write_json(out / PROVENANCE, provenance)
    seal(SealedFolder(out), {"format": FORMAT}, [path for path in out.rglob("*") if path.is_file()])


def read_encoder(folder: Path) -> tuple[TextCodec, PooledClassifier, int, dict[str, Any]]:
    """Tokenizer, network, ``max_tokens`` and provenance of a folder that :func:`write_encoder` sealed.

    ``RunStateError`` where it is not finished, ``CheckFailed`` where a file is not as it was sealed,
    ``InputError`` where it is of another format.
    """
    if problems := broken_files(SealedFolder(folder)):
        raise CheckFailed(f"the encoder {folder.name} changed after sealing: {problems[0]}")
    config, record = read_json(folder / CONFIG), read_json(folder / PROVENANCE)
    network = config["network"]
    if record.get("kind") != PUBLIC:
        raise InputError(f"{folder.name}/{CONFIG} is not that of an encoder that this version can read")
    tokenizer: TextCodec
    found: Any
    elsewhere = network["encoder"]["format"] == "folder"
    if elsewhere:
        tokenizer, below = read_folder(folder / BODY)
        found = PooledClassifier(below, tuple(network["classes"]), network["pooling"], network["bottleneck"])
    else:
        tokenizer, found = Tokenizer.from_json(read_json(folder / TOKENIZER)), rebuilt(folder.name, network)
    missing, unknown = found.load_state_dict(load_file(folder / WEIGHTS), strict=False)
    if unknown or [name for name in missing if not (elsewhere and name.startswith(_BELOW))]:
        raise InputError(f"{folder.name}: the weights do not fit {CONFIG}")
    return tokenizer, found, int(config["max_tokens"]), record
