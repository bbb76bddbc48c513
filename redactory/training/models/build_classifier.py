"""From settings to a network that tells classes, and from a saved ``config.json`` to the network."""

from __future__ import annotations

from typing import Any

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.training.models import awd, bilstm, lstm, pooled
from redactory.training.models.classifier import ClassifierNetwork, is_drawn
from redactory.training.models.lora import with_adapters
from redactory.training.models.network import Classifier, Encoder
from redactory.training.models.pooled import PooledClassifier
from redactory.training.models.pretrained import (
    fit_vocabulary,
    read_in_part,
    require_transformers,
    without_dropout,
)
from redactory.training.models.settings import (
    AwdLstmSettings,
    BertSettings,
    BiLstmSettings,
    LstmSettings,
    ModelSettings,
)
from redactory.training.tokenizer import TextCodec

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
        both = bilstm.BiLstmEncoder.of(tokenizer.size, settings)
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

    return ClassifierNetwork(_empty(AutoConfig.for_model(**config)), pretrained=True)


def _encoder(name: str, config: dict[str, Any]) -> Encoder:
    match config.get("format"):
        case lstm.FORMAT:
            sizes = (config[key] for key in ("vocabulary", "embedding_size", "hidden_size", "layers"))
            return lstm.LstmEncoder(*sizes)
        case awd.FORMAT:
            return awd.AwdLstmEncoder(
                config["vocabulary"], AwdLstmSettings.model_validate(config["settings"])
            )
        case bilstm.FORMAT:
            sizes = (config[key] for key in ("vocabulary", "embedding_size", "hidden_size"))
            return bilstm.BiLstmEncoder(*sizes)
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
        return ClassifierNetwork(_empty(config))
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


def _empty(config: Any) -> Any:
    from transformers import AutoModelForSequenceClassification

    task: Any = AutoModelForSequenceClassification
    return without_dropout(task.from_config(config))
