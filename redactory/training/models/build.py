"""From settings to a network and its tokenizer, and from a saved model's ``config.json`` to the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.training.models import awd, lstm, pooled
from redactory.training.models.causal import CausalNetwork, ClassifierNetwork, is_drawn, with_adapters
from redactory.training.models.network import Classifier, Encoder, LanguageNetwork
from redactory.training.models.pooled import PooledClassifier
from redactory.training.models.pretrained import (
    FolderTokenizer,
    fit_vocabulary,
    read_in_part,
    read_model,
    require_transformers,
    without_dropout,
)
from redactory.training.models.settings import (
    AwdLstmSettings,
    BertSettings,
    BiLstmSettings,
    Gpt2Settings,
    LlamaSettings,
    LstmSettings,
    ModelSettings,
    TransformerSettings,
)
from redactory.training.tokenizer import TextCodec, Tokenizer

CAUSAL = ("gpt2", "llama")


def tokenizer_of(
    settings: ModelSettings, public_texts: Callable[[], Iterable[str]], size: int, minimum_count: int
) -> TextCodec:
    """The folder's own tokenizer, or one of the words of ``public_texts``; no private text is read."""
    if isinstance(settings, TransformerSettings) and settings.folder is not None:
        return FolderTokenizer.from_folder(settings.folder, settings.single_digits)
    return Tokenizer.from_texts(public_texts(), size, minimum_count)


def network_of(settings: ModelSettings, tokenizer: TextCodec) -> LanguageNetwork:
    """The language model that ``settings`` describe, for the ids of ``tokenizer``; not yet initialised.

    ``ConfigurationError`` where they describe a network that foretells no words.
    """
    if isinstance(settings, LstmSettings):
        return lstm.LstmLanguageModel(
            tokenizer.size, settings.embedding_size, settings.hidden_size, settings.layers
        )
    if isinstance(settings, AwdLstmSettings):
        return awd.AwdLstm(tokenizer.size, settings)
    if isinstance(settings, BertSettings | BiLstmSettings):
        raise ConfigurationError(
            f"train.model.kind: {settings.kind} reads a text from both sides and foretells nothing; use it "
            "with train.task: classify"
        )
    model = _pretrained(settings, tokenizer) if settings.folder else _fresh(settings, tokenizer)
    return CausalNetwork(model, pretrained=settings.folder is not None)


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


def rebuilt(name: str, config: dict[str, Any]) -> LanguageNetwork:
    """The network of a saved ``config.json``, its weights still to be loaded; ``InputError`` if unknown."""
    match config.get("format"):
        case lstm.FORMAT:
            sizes = (config[key] for key in ("vocabulary", "embedding_size", "hidden_size", "layers"))
            return lstm.LstmLanguageModel(*sizes)
        case awd.FORMAT:
            return awd.AwdLstm(config["vocabulary"], AwdLstmSettings.model_validate(config["settings"]))
    if config.get("model_type") not in CAUSAL:
        raise InputError(f"{name}/config.json has another format than this version reads")
    require_transformers()
    from transformers import AutoConfig

    return CausalNetwork(_empty(AutoConfig.for_model(**config)), pretrained=True)


def _pretrained(settings: TransformerSettings, tokenizer: TextCodec) -> Any:
    from transformers import AutoModelForCausalLM

    assert settings.folder is not None
    kind = "gpt2" if isinstance(settings, Gpt2Settings) else "llama"
    model = read_model(settings.folder, kind, AutoModelForCausalLM)
    fit_vocabulary(model, tokenizer.size)
    return model if settings.lora is None else with_adapters(model, settings.lora)


def _fresh(settings: TransformerSettings, tokenizer: TextCodec) -> Any:
    require_transformers()
    from transformers import GPT2Config, LlamaConfig

    shared: dict[str, Any] = {
        "vocab_size": tokenizer.size,
        "bos_token_id": tokenizer.begin_id,
        "eos_token_id": tokenizer.end_id,
    }
    if isinstance(settings, LlamaSettings):
        config: Any = LlamaConfig(
            hidden_size=settings.width,
            intermediate_size=4 * settings.width,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            max_position_embeddings=settings.context,
            **shared,
        )
    else:
        config = GPT2Config(
            n_embd=settings.width,
            n_layer=settings.layers,
            n_head=settings.heads,
            n_positions=settings.context,
            **shared,
        )
    return _empty(config)


def _empty(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    task: Any = AutoModelForCausalLM
    return without_dropout(task.from_config(config))


# From settings to a network that tells classes, and from a saved ``config.json`` to the network.


_BERT = "bert"
_HEAD = "classifier"


def classifier_of(settings: ModelSettings, tokenizer: TextCodec, classes: tuple[str, ...]) -> Classifier:
    """The classifier that ``settings`` describe, for the ids of ``tokenizer``; not yet initialised.

    ``classes`` are public names, by number.  ``ConfigurationError`` where they are fewer than two or not
    distinct, or where the network is none that tells classes.
    """
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise ConfigurationError("train.classes: task classify needs two classes or more, each named once")
    if isinstance(settings, LstmSettings):
        sizes = (settings.embedding_size, settings.hidden_size, settings.layers)
        return PooledClassifier(lstm.LstmEncoder(tokenizer.size, *sizes), classes, settings.pooling)
    if isinstance(settings, AwdLstmSettings):
        return PooledClassifier(awd.AwdLstmEncoder(tokenizer.size, settings), classes, settings.pooling)
    if isinstance(settings, BiLstmSettings):
        both = pooled.BiLstmEncoder.of(tokenizer.size, settings)
        return PooledClassifier(both, classes, settings.pooling, settings.bottleneck)
    if isinstance(settings, BertSettings):
        return _bert(settings, tokenizer, classes)
    raise ConfigurationError(
        f"train.model.kind: {settings.kind} foretells words; task classify needs lstm, awd-lstm, "
        "bilstm or bert"
    )


def is_classifier(config: dict[str, Any]) -> bool:
    """Whether a saved ``config.json`` is that of a classifier."""
    return config.get("format") == pooled.FORMAT or config.get("model_type") == _BERT


def rebuilt_classifier(name: str, config: dict[str, Any]) -> Classifier:
    """The network of a saved ``config.json``, its weights still to be loaded; ``InputError`` if unknown."""
    if not is_classifier(config):
        raise InputError(f"{name}/config.json is not that of a classifier that this version reads")
    if config.get("format") == pooled.FORMAT:
        encoder, narrow = _encoder(name, config["encoder"]), config.get("bottleneck")
        return PooledClassifier(encoder, tuple(config["classes"]), config["pooling"], narrow)
    require_transformers()
    from transformers import AutoConfig

    return ClassifierNetwork(_empty_build_classifier(AutoConfig.for_model(**config)), pretrained=True)


def _encoder(name: str, config: dict[str, Any]) -> Encoder:
    match config.get("format"):
        case lstm.FORMAT:
            sizes = (config[key] for key in ("vocabulary", "embedding_size", "hidden_size", "layers"))
            return lstm.LstmEncoder(*sizes)
        case awd.FORMAT:
            return awd.AwdLstmEncoder(
                config["vocabulary"], AwdLstmSettings.model_validate(config["settings"])
            )
        case pooled.BILSTM_FORMAT:
            sizes = (config[key] for key in ("vocabulary", "embedding_size", "hidden_size"))
            return pooled.BiLstmEncoder(*sizes)
    raise InputError(f"{name}/config.json has another encoder than this version reads")


def _bert(settings: BertSettings, tokenizer: TextCodec, classes: tuple[str, ...]) -> ClassifierNetwork:
    require_transformers()
    from transformers import AutoModelForSequenceClassification, BertConfig

    names: dict[str, Any] = {
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
    }
    if settings.folder is None:
        config = BertConfig(
            vocab_size=tokenizer.size,
            hidden_size=settings.width,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            intermediate_size=4 * settings.width,
            max_position_embeddings=settings.context,
            pad_token_id=tokenizer.pad_id,
            **names,
        )
        return ClassifierNetwork(_empty_build_classifier(config))
    model, missing = read_in_part(settings.folder, _BERT, AutoModelForSequenceClassification, **names)
    fit_vocabulary(model, tokenizer.size)
    # a head that the folder does have was learnt for other classes
    drawn = frozenset({_HEAD, *missing})
    if settings.lora is not None:
        model = with_adapters(model, settings.lora)
        for name, parameter in model.get_base_model().named_parameters():
            if is_drawn(name, drawn):
                parameter.requires_grad_(True)
    return ClassifierNetwork(model, pretrained=True, drawn=drawn)


def _empty_build_classifier(config: Any) -> Any:
    from transformers import AutoModelForSequenceClassification

    task: Any = AutoModelForSequenceClassification
    return without_dropout(task.from_config(config))
