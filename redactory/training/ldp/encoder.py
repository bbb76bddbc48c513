"""The user's encoder: of known provenance, frozen, from a sentence to what the DP layer clips and noises.

An encoder that was updated on users' raw text is a function of that text, and so is every message it makes
afterwards: one exchanged sentence may move all later messages by 2C each.  So an encoder is public, or it
was trained with DP-SGD, whose mechanism is composed with the messages' (``docs/guarantees.md``, "Local
differential privacy").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from redactory.training.guarantee.ledgerfacts import LedgerFacts, ledger_facts
from redactory.training.model import load_classifier, load_model
from redactory.training.models.build import is_classifier, rebuilt
from redactory.training.models.folder_tokenizer import FolderTokenizer
from redactory.training.models.hugging_face import (
    ClassifierNetwork,
    fit_vocabulary,
    read_model,
    require_transformers,
)
from redactory.training.models.network import Classifier, Encoder, LanguageNetwork
from redactory.training.models.recurrent import PooledClassifier, pooled
from redactory.training.points import Batch, EncodedPoints
from redactory.training.tokenizer import TextCodec, Tokenizer

PUBLIC, DECLARED, DPSGD = "public", "declared public", "dpsgd"
UPDATED = (
    "an encoder that was updated on private text without noise is a function of that text, so exchanging one "
    "sentence may move every later message by 2C: no figure of a message holds (docs/guarantees.md, 'Local "
    "differential privacy'). Use an encoder that is public, or one trained with trainer dpsgd"
)
OTHER_UNIT = (
    "its figures are about another unit or relation than one sentence exchanged for another, and do not "
    "compose with those of messages. Use an encoder that is public, or one trained with trainer dpsgd"
)


@dataclass(frozen=True)
class Provenance:
    """What is on ``record`` of an encoder, as JSON, and what making it ``spent``, ``()`` if public."""

    record: dict[str, Any]
    spent: Spendings = ()


def provenance_of_model(folder: Path) -> Provenance:
    """That of ``RUN/models/NAME``, from its ledger and its card, both checked.

    ``GuaranteeError`` with the reason where it was not trained with DP-SGD, was seeded, states no epsilon, is
    not as it was sealed, or lies outside of its run, which its ledger is checked against.
    """
    model, run = ModelFolder(folder), RunFolder(folder.resolve().parent.parent)
    if folder.resolve().parent != run.models or not run.manifest.is_file():
        raise GuaranteeError(
            f"{folder.name}: a trained model is checked against its run: give RUN/models/NAME"
        )
    if problems := broken_files(model):
        raise GuaranteeError(f"{folder.name} is not as it was sealed: {problems[0]}")
    facts = ledger_facts(run, model)
    if (refusal := _refusal(facts)) is not None:
        raise GuaranteeError(f"{folder.name}: {refusal}")
    card = read_json(model.guarantee)
    if card.get("epsilon_substitution") is None or card.get("holds") is not True:
        raise GuaranteeError(f"{folder.name}: its card states no epsilon (guarantee.json), so none composes")
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
    return Provenance(record, (spending,) if spending else ())


def _refusal(facts: LedgerFacts) -> str | None:
    trainer = facts.settings.trainer
    if facts.mechanism is None:
        return f"trained with {trainer}: {UPDATED}"
    if facts.trainer.by_policy or facts.trainer.of_units:
        return f"trained with {trainer}: {OTHER_UNIT}"
    if facts.seeded:
        return "trained with a seed: whoever knows it can subtract the noise. Train it without train.seed"
    return None


def declared(folder: Path, declared_public: bool) -> Provenance:
    """That of a Hugging Face folder which the user declares public; ``ConfigurationError`` where not so."""
    if not declared_public:
        raise ConfigurationError(
            f"{folder.name}: nothing in it proves what it was trained on. Declare it public if it is, or "
            "make an encoder from public text (redactory ldp train --public)"
        )
    return Provenance({"kind": DECLARED, "folder_sha256": folder_sha256(folder)})


def require_silent(folder: Path) -> None:
    """``GuaranteeError`` where the folder itself says that it was trained on a corpus.

    No declaration outweighs that.
    """
    for name in ("ledger.jsonl", "guarantee.json", "fit.json", SealedFolder(folder).success.name):
        if (folder / name).exists():
            raise GuaranteeError(f"{folder.name} ({name}) says that it was trained on a corpus: {UPDATED}")


# A local Hugging Face folder as the frozen layers that read a sentence.


KINDS = ("bert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
"""Kinds of ``transformers`` that give a state for every token and are read here."""
_POOLING = Path("1_Pooling") / "config.json"
_POOLS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}


class FolderEncoder(Encoder):
    """A model of ``transformers`` without a head, frozen, and without dropout.

    Formal guarantees: those of :class:`redactory.training.models.network.Encoder`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        # some kinds count their places from behind the padding token
        before = getattr(model.config, "pad_token_id", 0) + 1 if "roberta" in model.config.model_type else 0
        self.context = int(model.config.max_position_embeddings) - before

    @property
    def width(self) -> int:
        """H."""
        return int(self.model.config.hidden_size)

    def hidden(self, batch: Batch) -> Tensor:
        """The last layer's states [B, T, H]."""
        with torch.no_grad():
            found: Tensor = self.model(
                input_ids=batch.inputs, attention_mask=batch.real.long()
            ).last_hidden_state
        return found

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
    kind = _json_of(folder / "config.json").get("model_type")
    if kind not in KINDS:
        raise ConfigurationError(f"{folder.name}: an encoder must be one of {', '.join(KINDS)}")
    require_transformers()
    from transformers import AutoModel

    tokenizer = FolderTokenizer.from_folder(folder)
    model, missing = read_model(folder, kind, AutoModel)
    lacking = [name for name in missing if "pooler" not in name]
    if lacking:
        raise ConfigurationError(f"{folder.name}: weights are missing ({sorted(lacking)[0]})")
    fit_vocabulary(model, tokenizer.size)
    return tokenizer, FolderEncoder(model)


def pooling_of(folder: Path) -> str:
    """ "mean" or "first", as a sentence encoder's folder names it; the mean where it names none."""
    named = _json_of(folder / _POOLING)
    modes = [key for key, value in named.items() if key.startswith("pooling_mode") and value is True]
    if not modes:
        return "mean"
    if len(modes) > 1 or modes[0] not in _POOLS:
        raise ConfigurationError(f"{folder.name}: of its pooling only the mean or the first state is read")
    return _POOLS[modes[0]]


def _json_of(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# The folder of an encoder that stage 1 made: written, sealed, and read again as it was sealed.


FORMAT = "redactory-sentence-encoder/1"
CONFIG, WEIGHTS, TOKENIZER, PROVENANCE, BODY = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "provenance.json",
    "body",
)
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
        raise CheckFailed(f"the encoder {folder.name} is not as it was sealed: {problems[0]}")
    config, record = read_json(folder / CONFIG), read_json(folder / PROVENANCE)
    network = config["network"]
    if record.get("kind") != PUBLIC:
        raise InputError(f"{folder.name}/{CONFIG} is not that of an encoder that this version reads")
    tokenizer: TextCodec
    found: Any
    if network["encoder"]["format"] == "folder":
        tokenizer, below = read_folder(folder / BODY)
        found = PooledClassifier(below, tuple(network["classes"]), network["pooling"], network["bottleneck"])
    else:
        tokenizer, found = Tokenizer.from_json(read_json(folder / TOKENIZER)), rebuilt(folder.name, network)
    missing, unknown = found.load_state_dict(load_file(folder / WEIGHTS), strict=False)
    elsewhere = isinstance(found.encoder, FolderEncoder)
    if unknown or [name for name in missing if not (elsewhere and name.startswith(_BELOW))]:
        raise InputError(f"{folder.name}: the weights do not fit {CONFIG}")
    return tokenizer, found, int(config["max_tokens"]), record


# What a network represents a text by: one vector, or one a token, at the network's own widths.


@dataclass(frozen=True)
class Body:
    """``network`` frozen, whose layers ``encoder`` read a text: ``latent`` gives [B, ``width``] of a batch.

    ``described`` is what besides the weights decides the result.

    Formal guarantees: a row of the result is a function of that row of the batch and of frozen parameters.
    """

    network: nn.Module
    encoder: Encoder | LanguageNetwork
    latent: Callable[[Batch], Tensor]
    width: int
    described: dict[str, Any]

    @property
    def table(self) -> Any:
        """The table of the tokens' embeddings."""
        own: Any = self.encoder
        return own.embedding if hasattr(own, "embedding") else own.model.get_input_embeddings()

    @property
    def token_width(self) -> int:
        """The width of a token's embedding."""
        return int(next(self.table.parameters()).shape[1])

    @property
    def context(self) -> int | None:
        """A bound on the inputs, begin and end token included; None where there is none."""
        return self.encoder.context

    def tokens(self, batch: Batch) -> Tensor:
        """The embedding of every input [B, T, ``token_width``], before any layer that mixes places."""
        found: Tensor = self.table(batch.inputs)
        return found


def body_of(network: LanguageNetwork | Classifier | FolderEncoder, pooling: str = "mean") -> Body:
    """What ``network`` represents a text by.

    Of a pooled classifier the vector that it predicts classes from; of any other its last states, pooled.
    ``InputError`` where the kind is not known.
    """
    if isinstance(network, PooledClassifier):
        return Body(network, network.encoder, network.latent, network.width, network.describe())
    if isinstance(network, ClassifierNetwork):
        encoder: FolderEncoder | LanguageNetwork = FolderEncoder(network.model.base_model)
    elif isinstance(network, FolderEncoder | LanguageNetwork):
        encoder = network
    else:
        raise InputError("this kind of model represents no text")

    def latent(batch: Batch) -> Tensor:
        return pooled(encoder.hidden(batch), batch.real, pooling)

    with torch.no_grad():
        one = torch.ones(1, 1, dtype=torch.int64)
        width = latent(Batch(one, one, one.bool())).shape[1]
    described = encoder.identity() if isinstance(encoder, FolderEncoder) else encoder.describe()
    return Body(network, encoder, latent, width, {"network": described, "pooling": pooling})


# The encoder itself.


Kind = Literal["latent", "token"]
BATCH = 32
"""Texts in every batch; a batch that is not full is filled up."""
DEFAULT_TOKENS = 64
"""Tokens of a text that are read where the folder names no number."""
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
        would hold, ``ConfigurationError`` or ``InputError`` where nothing can be read.  Its provenance is
        checked before a weight is read.
        """
        tokenizer, body, length, origin = _opened(folder, declared_public)
        body.network.eval().requires_grad_(False)
        beside_begin = None if body.context is None else body.context - 1
        bounds = [bound for bound in (max_tokens, length, beside_begin) if bound is not None]
        return cls(tokenizer, body, min(bounds), origin, dimension)

    @property
    def provenance(self) -> dict[str, Any]:
        """Where it comes from, as JSON: ``kind`` is "public", "declared public" or "dpsgd"."""
        return self.origin.record

    @property
    def spendings(self) -> Spendings:
        """What making it spent, to be composed with the messages; ``()`` of a public one."""
        return self.origin.spent

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that it was taught to tell; ``()`` where it was taught none."""
        network = self.body.network
        return network.classes if isinstance(network, Classifier) else ()

    def shape(self, kind: Kind) -> tuple[int, ...]:
        """The shape of one text's representation: (d,) of "latent", (L, e) of "token"."""
        if kind == "latent":
            return (self._narrowed(self.body.width),)
        return self.max_tokens, self._narrowed(self.body.token_width)

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
                raise InputError(f"text {row} holds half of a surrogate pair, which is not text") from None
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
        for name, value in sorted(self.body.network.state_dict().items()):
            # a pooler that the folder lacks is drawn by the library, and never read
            if ".pooler." not in f".{name}.":
                content.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
                content.update(value.detach().cpu().contiguous().numpy().tobytes())
        if isinstance(self.tokenizer, FolderTokenizer):
            content.update(str(self.tokenizer.inner.backend_tokenizer.to_str()).encode())
        else:
            assert isinstance(self.tokenizer, Tokenizer)
            content.update(hash_of(self.tokenizer.to_json()).encode())
        return hash_of([content.hexdigest(), self.body.described, self.max_tokens, self.dimension])

    def _of(self, batch: Batch, kind: Kind) -> Tensor:
        batch = batch.to(next(self.body.network.parameters()).device)
        if kind == "latent":
            found = self.body.latent(batch)
        else:
            found = (self.body.tokens(batch) * batch.real[..., None])[:, 1:]
        width = found.shape[-1]
        narrow = self._narrowed(width)
        if narrow < width:
            # the public matrix N(0, 1/dimension): it keeps lengths in expectation
            drawn = RandomStream.from_seed(_PROJECTION).normal("projection", width, width * narrow, narrow)
            found = found @ torch.from_numpy(drawn.reshape(width, narrow) / np.sqrt(narrow)).float().to(found)
        return found.float().cpu()

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


def _opened(folder: Path, declared_public: bool) -> tuple[TextCodec, Body, int, Provenance]:
    """Tokenizer, body, how many tokens it was made to read, and provenance."""
    if not folder.is_dir():
        raise ConfigurationError(f"encoder: there is no folder {folder.name}")
    config = _json_of(folder / CONFIG)
    if config.get("format") == FORMAT:
        tokenizer, network, length, record = read_encoder(folder)
        return tokenizer, body_of(network), length, Provenance(record)
    model = ModelFolder(folder)
    if model.ledger.exists():
        origin = provenance_of_model(folder)
        if is_classifier(config):
            classifier = load_classifier(model)
            length = classifier.max_tokens or DEFAULT_TOKENS
            return classifier.tokenizer, body_of(classifier.network), length, origin
        language = load_model(model)
        return language.tokenizer, body_of(language.network), DEFAULT_TOKENS, origin
    require_silent(folder)
    if config.get("model_type") not in KINDS:
        raise ConfigurationError(f"encoder: {folder.name} holds no encoder that this version reads")
    origin = declared(folder, declared_public)
    codec, below = read_folder(folder)
    return codec, body_of(below, pooling_of(folder)), DEFAULT_TOKENS, origin
