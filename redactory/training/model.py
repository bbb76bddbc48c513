"""Build models (tokenizer and network) from settings, save and load them, and compute probabilities."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from redactory.encoder import SENTENCE_FOLDER, load_encoder
from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import InputError
from redactory.foundation.files import PRIVATE_FILE, commit_file, read_json, sync_to_disk, write_json
from redactory.redaction.folder import ModelFolder
from redactory.redaction.sealing import read_manifest
from redactory.training.chat import PLAIN_TEMPLATE, ChatCodec
from redactory.training.custom_network import CUSTOM_KIND, CustomNetwork
from redactory.training.data import TokenizedExamples, split_micro_batches
from redactory.training.models.adapted_encoder import AdaptableEncoder, AdaptedClassifier
from redactory.training.models.frozen_encoder import (
    AnyCodec,
    FolderEncoder,
    FrozenEncoder,
    PackageEncoder,
    VectorClassifier,
    encode_texts,
    load_model_encoder,
)
from redactory.training.models.hugging_face import (
    LIBRARY_CLASSES,
    CausalNetwork,
    HuggingFaceNetwork,
    SequenceClassifier,
    add_adapters,
    disable_dropout,
    extend_vocabulary,
    get_library_class,
    has_adapters,
    is_fresh_parameter,
    make_folder_architecture,
    make_fresh_transformer,
    read_folder_model,
    read_model_type,
    require_exact_clipping,
    require_task_support,
    save_adapters,
)
from redactory.training.models.network import ClassifierNetwork, LanguageNetwork
from redactory.training.models.recurrent import (
    AwdLstm,
    AwdLstmEncoder,
    BagEncoder,
    BiLstmEncoder,
    LstmEncoder,
    LstmLanguageModel,
    PooledClassifier,
)
from redactory.training.models.settings import FolderSettings, FrozenEncoderSettings, ModelSettings, TransformerSettings
from redactory.training.numerics import compute_max_rows
from redactory.training.tokenizer import (
    FolderTokenizer,
    TextCodec,
    Tokenizer,
    parse_redactory_tokenizer,
    require_model_folder,
)

_RECURRENT_KINDS: dict[str, tuple[Any, Any]] = {
    "lstm": (LstmEncoder, LstmLanguageModel),
    "awd-lstm": (AwdLstmEncoder, AwdLstm),
    "bilstm": (BiLstmEncoder, None),
    "bag": (BagEncoder, None),
}
"""By kind: encoder of the classifier, and language model. All other kinds are Hugging Face networks."""
_FORMATS = {kinds[0].FORMAT: kinds for kinds in (*_RECURRENT_KINDS.values(), (FolderEncoder, None))}
_VECTOR_FORMATS = {kind.FORMAT: kind for kind in (VectorClassifier, AdaptedClassifier)}
_CLASSIFIER_SUFFIX = "ForSequenceClassification"
_MAX_TOKENS_KEY, _CHAT_KEY = "max_tokens", "redactory_chat"
"""Keys of ``config.json``: a classifier's maximum number of tokens, and a chat model's template."""
INFERENCE_TOKENS = 1 << 13
"""Padded tokens in one inference batch."""


def describe_base_weights(settings: ModelSettings) -> dict[str, Any] | None:
    """Describe the pretrained weights that a training starts from, or encodes with; None without any."""
    folder, is_encoder = getattr(settings, "folder", None), isinstance(settings, FrozenEncoderSettings)
    if folder is None:
        return {"encoder_sha256": load_encoder(SENTENCE_FOLDER).sha256, "model_type": "encoder"} if is_encoder else None
    require_model_folder(folder)
    model_type = "encoder" if is_encoder else read_model_type(folder)
    return {"folder_sha256": folder_sha256(folder), "model_type": model_type, **_read_hub_description(folder)}


def _read_hub_description(folder: Path) -> dict[str, str]:
    """Read the repository's name, if ``folder`` is in the cache of huggingface_hub, and the licence in its card."""
    cache, snapshots = folder.resolve().parent.parent.name, folder.resolve().parent.name
    name = cache.removeprefix("models--").replace("--", "/") if snapshots == "snapshots" else folder.name
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    metadata = text[4:].partition("\n---\n")[0] if text.startswith("---\n") else ""
    licence = re.search(r"^license: *([\w.-]+) *$", metadata, re.MULTILINE)
    return {"name": name, **({"licence": licence[1]} if licence else {})}


def build_language_network(settings: ModelSettings, tokenizer: TextCodec) -> LanguageNetwork:
    """Build the uninitialised language model of a training's ``settings`` for ``tokenizer``."""
    if isinstance(settings, TransformerSettings):
        ends = {"bos_token_id": tokenizer.begin_id, "eos_token_id": tokenizer.end_id}
        return CausalNetwork(make_fresh_transformer(settings.kind, settings, vocab_size=tokenizer.size, **ends))
    if not isinstance(settings, FolderSettings):
        network: LanguageNetwork = _RECURRENT_KINDS[settings.kind][1](tokenizer.size, settings)
        return network
    require_task_support(settings.folder, "next-word")
    model, missing = read_folder_model(settings.folder, get_library_class("next-word"))
    extend_vocabulary(model, tokenizer.size)
    if settings.lora is not None:
        model = add_adapters(model, settings.lora, settings.folder.name)
    return CausalNetwork(model, pretrained=True, fresh_parameters=missing)


def build_classifier(settings: ModelSettings, tokenizer: AnyCodec, classes: tuple[str, ...]) -> ClassifierNetwork:
    """Build the uninitialised classifier of a training's ``settings``; ``classes`` are public names, by number."""
    if isinstance(tokenizer, FrozenEncoder):
        mean = tokenizer.compute_public_mean()
        if isinstance(tokenizer, AdaptableEncoder):
            encoder = {"sha256": tokenizer.sha256, "lora_rank": tokenizer.lora_rank}
            network = AdaptedClassifier(mean, classes, encoder)
            network.set_projections(tokenizer.make_public_examples())
            return network
        folder = {} if tokenizer.folder is None else {"folder": tokenizer.folder.name}
        return VectorClassifier(mean, classes, {"sha256": tokenizer.sha256, **folder})
    names: dict[str, Any] = {
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
    }
    if isinstance(settings, TransformerSettings):
        sizes = {"vocab_size": tokenizer.size, "pad_token_id": tokenizer.pad_id}
        return SequenceClassifier(make_fresh_transformer(settings.kind, settings, **sizes, **names))
    assert not isinstance(settings, FrozenEncoderSettings)
    if not isinstance(settings, FolderSettings):
        encoder = _RECURRENT_KINDS[settings.kind][0](tokenizer.size, settings)
        bottleneck = settings.bottleneck if settings.kind == "bilstm" else None
        return PooledClassifier(encoder, classes, settings.pooling, bottleneck)
    require_task_support(settings.folder, "classify")
    model, missing = read_folder_model(settings.folder, get_library_class("classify"), **names)
    extend_vocabulary(model, tokenizer.size)
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_id
    # a head in the folder was trained for other classes
    heads = {
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and module.out_features == len(classes)
        and not name.startswith(f"{model.base_model_prefix}.")
    }
    fresh_parameters = frozenset({*heads, *missing})
    if settings.lora is not None:
        model = add_adapters(model, settings.lora, settings.folder.name)
        for name, parameter in model.get_base_model().named_parameters():
            if is_fresh_parameter(name, fresh_parameters):
                parameter.requires_grad_(True)
    return SequenceClassifier(model, pretrained=True, fresh_parameters=fresh_parameters)


class _SkipInitialization(TorchFunctionMode):
    """Leave parameters as they are: random numbers on the device ``meta`` import torch's compiler, for a second."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def count_folder_parameters(settings: FolderSettings, classes: tuple[str, ...]) -> int:
    """Count the trained parameters of a folder's network from its ``config.json``, without weights."""
    with torch.device("meta"), _SkipInitialization():
        model = make_folder_architecture(settings.folder, classes)
        head = 0
        if settings.lora is not None:
            head = len(classes) * (int(model.config.hidden_size) + 1)  # it is trained, too
            model = add_adapters(model, settings.lora, settings.folder.name)
    count: int = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return head + count


def count_parameters(folder: ModelFolder) -> int:
    """Count the parameters of a saved model."""
    with safe_open(folder.weights, "numpy") as weights:
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118 (no mapping)


def require_clippable_network(model: LanguageModel | TextClassifier, max_tokens: int) -> None:
    """Raise ``ConfigurationError`` naming Hugging Face modules that are not clipped exactly; tests cover ours."""
    if isinstance(model.network, HuggingFaceNetwork) and not isinstance(model.tokenizer, FrozenEncoder):
        longest = max_tokens + isinstance(model, TextClassifier)  # a classifier also reads a begin token
        require_exact_clipping(model.network, model.tokenizer.pad_id, model.tokenizer.end_id, longest)


def is_classifier_config(config: dict[str, Any]) -> bool:
    """Whether a saved ``config.json`` describes a classifier."""
    architectures = config.get("architectures") or ()
    return config.get("format") in (PooledClassifier.FORMAT, *_VECTOR_FORMATS) or any(
        name.endswith(_CLASSIFIER_SUFFIX) for name in architectures
    )


def build_network_from_config(name: str, config: dict[str, Any]) -> LanguageNetwork | ClassifierNetwork:
    """Build the network of a saved ``config.json``, without its weights; ``InputError`` if unknown."""
    format_name = str(config.get("format"))
    if "model_type" in config:
        library_class = get_library_class("classify" if is_classifier_config(config) else "next-word")
        from transformers import AutoConfig

        model = disable_dropout(library_class.from_config(AutoConfig.for_model(**config)))
        return SequenceClassifier(model, True) if is_classifier_config(config) else CausalNetwork(model, True)
    if format_name == PooledClassifier.FORMAT and config["encoder"].get("format") in _FORMATS:
        encoder = _FORMATS[config["encoder"]["format"]][0].from_config(config["encoder"])
        bottleneck = config.get("bottleneck")
        return PooledClassifier(encoder, tuple(config["classes"]), config["pooling"], bottleneck)
    if format_name in _VECTOR_FORMATS:
        return _VECTOR_FORMATS[format_name].from_config(config)
    if format_name == CustomNetwork.FORMAT:
        raise InputError(
            f"{name} holds a network of another program ({config['network']}): build it there, and load "
            "model.safetensors into it"
        )
    language = _FORMATS.get(format_name, (None, None))[1]
    if language is None:
        raise InputError(f"{name}/config.json has a format that this version cannot read")
    network: LanguageNetwork = language.from_config(config)
    return network


@dataclass(frozen=True)
class LanguageModel:
    """A tokenizer and the language network trained on its ids."""

    tokenizer: TextCodec
    network: LanguageNetwork

    @torch.no_grad()
    def compute_token_log_probs(self, texts: Sequence[str]) -> list[NDArray[np.float64]]:
        """Compute the natural log probability of each token of each text, including its end token, given those before.

        Returns one float64 array [tokens + 1] per text, in order. A begin token precedes each text and is not scored;
        texts are independent. In a text longer than the network's context, each token has at least half a context
        before it, if the text has that many. Memory grows neither with the texts nor with the vocabulary.
        """
        windows, text_indices, overlap_lengths = self._split_into_windows(texts)
        window_scores: list[NDArray[np.float64]] = [np.empty(0)] * len(windows)
        max_rows = compute_max_rows(get_logits_width(self), INFERENCE_TOKENS)
        tokens = INFERENCE_TOKENS if self.network.has_narrow_states else max_rows
        for rows in split_micro_batches(np.arange(len(windows)), windows.lengths, tokens):
            batch = windows.make_batch(rows).to(self.network.device)
            states, targets = self.network.read_states(batch.inputs)[batch.real], batch.targets[batch.real][:, None]
            scores = np.empty(len(states))
            for start in range(0, len(states), max_rows):
                chunk = slice(start, start + max_rows)
                scores[chunk] = self._compute_log_probs(states[chunk]).gather(1, targets[chunk])[:, 0].cpu().numpy()
            for row, values in zip(rows, np.split(scores, np.cumsum(windows.lengths[rows])[:-1]), strict=True):
                window_scores[int(row)] = values[overlap_lengths[int(row)] :]
        text_scores: list[list[NDArray[np.float64]]] = [[] for _ in texts]
        for text_index, values in zip(text_indices, window_scores, strict=True):
            text_scores[text_index].append(values)
        return [np.concatenate(values) for values in text_scores]

    @torch.no_grad()
    def compute_next_log_probs(self, texts: Sequence[str]) -> Iterator[NDArray[np.float64]]:
        """Yield each text's natural log probabilities of the next token, float64 [V]; reads the end of a long text."""
        windows, text_indices, _ = self._split_into_windows(texts)
        # the last window of each text; its last position precedes the end token
        last_windows = np.flatnonzero(np.diff(text_indices, append=len(texts)))
        longest = max(windows.lengths, default=1)
        batch_size = compute_max_rows(get_logits_width(self), max(1, INFERENCE_TOKENS // longest))
        if not self.network.has_narrow_states:
            batch_size = compute_max_rows(get_logits_width(self) * longest, batch_size)
        for start in range(0, len(last_windows), batch_size):
            batch = windows.make_batch(last_windows[start : start + batch_size]).to(self.network.device)
            last_positions = torch.arange(len(batch.real), device=batch.real.device), batch.real.sum(1) - 1
            yield from (
                self._compute_log_probs(self.network.read_states(batch.inputs)[last_positions], self.tokenizer.size)
                .cpu()
                .numpy()
            )

    def _compute_log_probs(self, states: Tensor, tokens: int | None = None) -> Tensor:
        """Return natural log probabilities of the first ``tokens`` ids after ``states`` [N, H]: float64 [N, V]."""
        return self.network.compute_logits(states)[:, :tokens].double().log_softmax(-1)

    def _split_into_windows(self, texts: Sequence[str]) -> tuple[TokenizedExamples, list[int], list[int]]:
        """Split texts into rows, half-overlapping windows if long; also return each row's text number and overlap."""
        self.network.eval()
        examples = TokenizedExamples.from_texts(texts, self.tokenizer, max_tokens=None)
        context = self.network.context or max(examples.lengths, default=1)
        half_context, windows, text_indices, overlap_lengths = max(context // 2, 1), [], [], []
        for row in range(len(examples)):
            targets, end = examples.get_targets(row), 0
            while end < len(targets):
                start = max(0, end - (context - half_context))
                windows.append(targets[start : start + context])
                text_indices.append(row)
                overlap_lengths.append(end - start)
                end = min(start + context, len(targets))
        return TokenizedExamples.from_rows(windows, examples.begin_id, examples.pad_id), text_indices, overlap_lengths


def get_logits_width(model: LanguageModel) -> int:
    """Return the number of logits per position; some networks have more than the tokenizer has ids."""
    network: Any = model.network  # equal for our own networks
    head = network.model.get_output_embeddings() if isinstance(network, CausalNetwork) else None
    return max(model.tokenizer.size, getattr(head, "out_features", 0))


@dataclass(frozen=True)
class TextClassifier:
    """A network that classifies a text by its first ``max_tokens`` tokens, or by its vector."""

    tokenizer: AnyCodec
    network: ClassifierNetwork
    max_tokens: int | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number."""
        return self.network.classes

    @torch.no_grad()
    def compute_class_log_probs(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Compute the natural log probability of every class for every text: float64 [texts, classes]."""
        self.network.eval()
        context = self.network.context
        # the network reads the end token, and a begin token in addition
        length_limits = [b for b in (self.max_tokens, None if context is None else context - 1) if b is not None]
        examples = encode_texts(texts, self.tokenizer, min(length_limits, default=None))
        examples = replace(examples, labels=np.zeros(len(examples), np.int64))
        result = np.empty((len(examples), len(self.classes)))
        for rows in split_micro_batches(np.arange(len(examples)), examples.lengths, INFERENCE_TOKENS):
            logits = self.network.logits(examples.make_batch(rows).to(self.network.device))
            result[rows] = logits.double().log_softmax(-1).cpu().numpy()
        return result


def save_model(folder: ModelFolder, model: LanguageModel | TextClassifier) -> list[Path]:
    """Write weights (safetensors), architecture and tokenizer (JSON) to ``folder``; return the files' paths.

    A Hugging Face network is saved in that library's format with adapters merged, so that plain ``transformers`` reads
    it; a language model's adapters are also saved separately, in ``adapter/``.
    """
    network, tokenizer = model.network, model.tokenizer
    weights, chat_template = network.state_dict(), None
    if isinstance(tokenizer, ChatCodec):
        chat_template, tokenizer = tokenizer.template, tokenizer.export_tokenizer()
    if isinstance(network, HuggingFaceNetwork):
        inner = network.model
        if has_adapters(inner):
            inner = copy.deepcopy(inner).merge_and_unload()
        weights = inner.state_dict()
    with commit_file(folder.weights) as temporary:
        save_file(_select_unique_tensors(weights), temporary, metadata={"format": "pt"})
    length_setting = {_MAX_TOKENS_KEY: model.max_tokens} if isinstance(model, TextClassifier) else {}
    # the base model can have been a chat model
    description = {key: value for key, value in network.describe().items() if key != _CHAT_KEY}
    write_json(
        folder.config, {**description, **length_setting, **({_CHAT_KEY: chat_template} if chat_template else {})}
    )
    if isinstance(tokenizer, FrozenEncoder | FolderTokenizer):
        files = tokenizer.save(folder.root)
    else:
        assert isinstance(tokenizer, Tokenizer)
        if not isinstance(network, HuggingFaceNetwork):
            write_json(folder.tokenizer, tokenizer.to_json())
            return [folder.weights, folder.config, folder.tokenizer]
        add_end_token = isinstance(model, TextClassifier)
        files = tokenizer.save_for_library(
            folder.root, network.context, add_end_token, chat_template and PLAIN_TEMPLATE
        )
    if isinstance(network, CausalNetwork) and has_adapters(network.model):
        files += save_adapters(network.model, folder.root / "adapter")
    generation = getattr(getattr(network, "model", None), "generation_config", None)
    if generation is not None and not generation.to_dict().get("_from_model_config"):
        # the pretrained folder has one; another one follows from config.json
        files.append(folder.root / "generation_config.json")
        write_json(files[-1], generation.to_diff_dict())
    for path in files:
        # another library wrote them: restrict them to the owner and sync them to disk
        path.chmod(PRIVATE_FILE)
        sync_to_disk(path)
    return [folder.weights, folder.config, *files]


def load_model(folder: ModelFolder) -> LanguageModel:
    """Load the finished language model in ``folder``; otherwise ``RunStateError`` or ``InputError``."""
    read_manifest(folder)
    config = read_json(folder.config)
    if is_classifier_config(config):
        raise InputError(f"{folder.root.name} is a classifier: it predicts classes, not words")
    return LanguageModel(*_load_network(folder, config))


def load_classifier(folder: ModelFolder) -> TextClassifier:
    """Load the classifier that :func:`save_model` wrote to ``folder``; otherwise ``InputError``."""
    config = read_json(folder.config)
    max_tokens = config.pop(_MAX_TOKENS_KEY, None)
    if not is_classifier_config(config):
        raise InputError(f"{folder.root.name}/config.json is not that of a classifier that this version can read")
    return TextClassifier(*_load_network(folder, config), max_tokens)


def _load_network(folder: ModelFolder, config: dict[str, Any]) -> tuple[Any, Any]:
    chat_template = config.pop(_CHAT_KEY, None)
    network = build_network_from_config(folder.root.name, config)
    inner: Any = network.model if isinstance(network, HuggingFaceNetwork) else network
    missing, unexpected = inner.load_state_dict(load_file(folder.weights), strict=False)
    # a shared tensor is saved under one of its names
    tensors = inner.state_dict(keep_vars=True)
    if unexpected or set(missing) & set(_select_unique_tensors(tensors)):
        raise RuntimeError(f"{folder.root.name}: the weights do not fit config.json")
    if isinstance(network, VectorClassifier):
        rank = config["encoder"].get("lora_rank")
        encoder = AdaptableEncoder(rank) if rank else PackageEncoder()
        return load_model_encoder(folder.root, config["encoder"], encoder), network.eval()
    codec: TextCodec = parse_redactory_tokenizer(read_json(folder.tokenizer)) or FolderTokenizer.from_folder(
        folder.root
    )
    return codec if chat_template is None else ChatCodec.from_template(codec, chat_template, "all"), network.eval()


def _select_unique_tensors(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by name; a shared tensor only under its first name."""
    first_names: dict[int, str] = {}
    for name, value in weights.items():
        first_names.setdefault(value.data_ptr(), name)
    return {name: weights[name].contiguous() for name in first_names.values()}


def get_library_name(kind: str) -> str:
    """Return the library that reads a network of this kind, for the front matter of a model card."""
    return (
        "redactory" if kind in (*_RECURRENT_KINDS, "encoder") else "pytorch" if kind == CUSTOM_KIND else "transformers"
    )


def format_loading_instructions(kind: str, task: str, name: str) -> str:
    """Format, for a model card, what opens the folder ``name`` of the model: a sentence, and code in Markdown."""
    if kind == CUSTOM_KIND:
        return (
            "`config.json` names the class of this network: build one as for the training, and load "
            "`model.safetensors` into it; `redactory predict` cannot open it."
        )
    if get_library_name(kind) == "transformers":
        library_class = LIBRARY_CLASSES[task]
        sentence = "Plain `transformers` opens this folder:"
        code = f"from transformers import {library_class}, AutoTokenizer\n"
        code += f'\nmodel = {library_class}.from_pretrained("./{name}")'
        code += f'\ntokenizer = AutoTokenizer.from_pretrained("./{name}")'
        code += '\ninputs = tokenizer("Some text", return_tensors="pt")\n'
        answer = "model(**inputs).logits.softmax(-1)"
        if task != "classify":
            answer = "tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0])"
        code += f"print({answer})"
    else:
        sentence = "Plain `transformers` cannot open this network (`config.json` names no `model_type`):"
        if kind == "encoder":
            sentence = "The folder holds a linear layer; the encoder below it is in the package, or in `encoder/`:"
        text, answer = ("Some text", "classes") if task == "classify" else ("The beginning of", "next tokens")
        code = f'import redactory\n\nanswer = redactory.predict("./{name}", ["{text}"])'
        code += f'\nanswer["results"]  # the likeliest {answer} for each text, with probabilities'
    return f"{sentence}\n\n```python\n{code}\n```"
