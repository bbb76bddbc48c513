"""From settings, or a saved ``config.json``, to a network; and from settings to its tokenizer.

A kind of recurrent network is a row of :data:`_RECURRENT`, one of Hugging Face a row of :data:`LIBRARY`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.training.models.folder_tokenizer import FolderTokenizer
from redactory.training.models.hugging_face import (
    CausalNetwork,
    ClassifierNetwork,
    fit_vocabulary,
    is_drawn,
    read_model,
    require_transformers,
    with_adapters,
    without_dropout,
)
from redactory.training.models.network import Classifier, LanguageNetwork
from redactory.training.models.recurrent import (
    AwdLstm,
    AwdLstmEncoder,
    BiLstmEncoder,
    LstmEncoder,
    LstmLanguageModel,
    PooledClassifier,
)
from redactory.training.models.settings import ModelSettings, TransformerSettings
from redactory.training.tokenizer import TextCodec, Tokenizer

_RECURRENT: dict[str, tuple[Any, Any]] = {
    "lstm": (LstmEncoder, LstmLanguageModel),
    "awd-lstm": (AwdLstmEncoder, AwdLstm),
    "bilstm": (BiLstmEncoder, None),
}
"""By kind: the encoder below a classifier, and the language model."""
_FORMATS = {encoder.FORMAT: (encoder, language) for encoder, language in _RECURRENT.values()}


def _sizes(own: TransformerSettings) -> dict[str, Any]:
    return {
        "hidden_size": own.width,
        "intermediate_size": 4 * own.width,
        "num_hidden_layers": own.layers,
        "num_attention_heads": own.heads,
        "max_position_embeddings": own.context,
    }


LIBRARY: dict[str, tuple[str, Callable[[TransformerSettings], dict[str, Any]]]] = {
    "gpt2": (
        "AutoModelForCausalLM",
        lambda own: {
            "n_embd": own.width,
            "n_layer": own.layers,
            "n_head": own.heads,
            "n_positions": own.context,
        },
    ),
    "llama": ("AutoModelForCausalLM", _sizes),
    "bert": ("AutoModelForSequenceClassification", _sizes),
}
"""By kind: the class of ``transformers`` that reads it, and the sizes of a fresh one."""
_HEAD = "classifier"


MINIMUM_COUNT = 2
"""A word is a token from this count in the public text on."""


def tokenizer_of(settings: ModelSettings, public_texts: Callable[[], Iterable[str]], size: int) -> TextCodec:
    """The folder's own tokenizer, or one of the words of ``public_texts``; no private text is read."""
    if isinstance(settings, TransformerSettings) and settings.folder is not None:
        return FolderTokenizer.from_folder(settings.folder, single_digits=True)
    return Tokenizer.from_texts(public_texts(), size, MINIMUM_COUNT)


def identity_of(settings: ModelSettings) -> dict[str, Any] | None:
    """What besides the settings decides the first weights: the content of a pretrained folder."""
    if isinstance(settings, TransformerSettings) and settings.folder is not None:
        if not settings.folder.is_dir():
            raise ConfigurationError(
                f"train.model.folder: there is no folder {settings.folder}; give one on this "
                "machine, nothing is downloaded"
            )
        return {"folder_sha256": folder_sha256(settings.folder)}
    return None


def network_of(settings: ModelSettings, tokenizer: TextCodec) -> LanguageNetwork:
    """The language model that ``settings`` describe, for the ids of ``tokenizer``; not yet initialised.

    ``ConfigurationError`` where they describe a network that predicts no words.
    """
    if settings.kind in ("bert", "bilstm"):
        raise ConfigurationError(
            f"train.model.kind: {settings.kind} reads a text from both sides and predicts no next word; "
            "use it with train.task: classify"
        )
    if not isinstance(settings, TransformerSettings):
        found: LanguageNetwork = _RECURRENT[settings.kind][1].of(tokenizer.size, settings)
        return found
    if settings.folder is None:
        ends = {"bos_token_id": tokenizer.begin_id, "eos_token_id": tokenizer.end_id}
        return CausalNetwork(_fresh(settings.kind, settings, vocab_size=tokenizer.size, **ends))
    model, _ = read_model(settings.folder, settings.kind, _task(settings.kind))
    fit_vocabulary(model, tokenizer.size)
    if settings.lora is not None:
        model = with_adapters(model, settings.lora)
    return CausalNetwork(model, pretrained=True)


def classifier_of(settings: ModelSettings, tokenizer: TextCodec, classes: tuple[str, ...]) -> Classifier:
    """The classifier that ``settings`` describe, for the ids of ``tokenizer``; not yet initialised.

    ``classes`` are public names, by number.  ``ConfigurationError`` where they are fewer than two or not
    distinct, or where the network is not one that predicts classes.
    """
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise ConfigurationError("train.classes: task classify needs two classes or more, each named once")
    if settings.kind == "gpt2" or settings.kind == "llama":
        raise ConfigurationError(
            f"train.model.kind: {settings.kind} predicts words; task classify needs lstm, awd-lstm, "
            "bilstm or bert"
        )
    if settings.kind != "bert":
        encoder = _RECURRENT[settings.kind][0].of(tokenizer.size, settings)
        narrow = settings.bottleneck if settings.kind == "bilstm" else None
        return PooledClassifier(encoder, classes, settings.pooling, narrow)
    names: dict[str, Any] = {
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
    }
    if settings.folder is None:
        ends = {"vocab_size": tokenizer.size, "pad_token_id": tokenizer.pad_id}
        return ClassifierNetwork(_fresh("bert", settings, **ends, **names))
    model, missing = read_model(settings.folder, "bert", _task("bert"), **names)
    fit_vocabulary(model, tokenizer.size)
    # a head that the folder does have was learnt for other classes
    drawn = frozenset({_HEAD, *missing})
    if settings.lora is not None:
        model = with_adapters(model, settings.lora)
        for name, parameter in model.get_base_model().named_parameters():
            if is_drawn(name, drawn):
                parameter.requires_grad_(True)
    return ClassifierNetwork(model, pretrained=True, drawn=drawn)


def is_classifier(config: dict[str, Any]) -> bool:
    """Whether a saved ``config.json`` is that of a classifier."""
    return config.get("format") == PooledClassifier.FORMAT or config.get("model_type") == "bert"


def rebuilt(name: str, config: dict[str, Any]) -> LanguageNetwork | Classifier:
    """The network of a saved ``config.json``, its weights still to be loaded; ``InputError`` if unknown."""
    kind, saved = config.get("model_type"), config.get("format")
    if kind in LIBRARY:
        require_transformers()
        from transformers import AutoConfig

        model = without_dropout(_task(kind).from_config(AutoConfig.for_model(**config)))
        return ClassifierNetwork(model, True) if is_classifier(config) else CausalNetwork(model, True)
    if saved == PooledClassifier.FORMAT and config["encoder"].get("format") in _FORMATS:
        encoder = _FORMATS[config["encoder"]["format"]][0].rebuilt(config["encoder"])
        narrow = config.get("bottleneck")
        return PooledClassifier(encoder, tuple(config["classes"]), config["pooling"], narrow)
    language = _FORMATS.get(str(saved), (None, None))[1]
    if language is None:
        raise InputError(f"{name}/config.json has another format than this version reads")
    found: LanguageNetwork = language.rebuilt(config)
    return found


def _task(kind: str) -> Any:
    require_transformers()
    import transformers

    return getattr(transformers, LIBRARY[kind][0])


def _fresh(kind: str, settings: TransformerSettings, **more: Any) -> Any:
    task = _task(kind)
    from transformers import AutoConfig

    return without_dropout(task.from_config(AutoConfig.for_model(kind, **LIBRARY[kind][1](settings), **more)))
