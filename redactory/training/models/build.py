"""From settings to a network and its tokenizer, and from a saved model's ``config.json`` to the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from redactory.foundation.canonical import folder_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.training.models import awd, lstm
from redactory.training.models.causal import CausalNetwork
from redactory.training.models.lora import with_adapters
from redactory.training.models.network import LanguageNetwork
from redactory.training.models.pretrained import (
    FolderTokenizer,
    fit_vocabulary,
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
