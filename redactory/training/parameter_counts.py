"""Count the trained parameters of a network that its settings describe, without torch unless it is in a folder."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from redactory.encoder import SENTENCE_FOLDER
from redactory.foundation.files import read_json
from redactory.training.models.settings import (
    AwdLstmSettings,
    BagSettings,
    BertSettings,
    BiLstmSettings,
    FolderSettings,
    FrozenEncoderSettings,
    Gpt2Settings,
    LlamaSettings,
    LstmSettings,
)
from redactory.training.tokenizer import FIXED_SIZE

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings


def count_max_parameters(settings: TrainSettings) -> int | None:
    """Count the trained parameters, with a vocabulary of maximum size; None for a folder without a ``config.json``.

    That file is enough, no weights are needed.
    """
    model, classes = settings.model, len(settings.classes)
    folder = getattr(model, "folder", None)
    if folder is not None and not (folder / "config.json").is_file():
        return None  # a plan may come before the folder
    if isinstance(model, FolderSettings):
        from redactory.training.model import count_folder_parameters

        return count_folder_parameters(model, settings.classes)
    vocabulary = FIXED_SIZE + settings.vocabulary_size
    if isinstance(model, Gpt2Settings | LlamaSettings | BertSettings):
        return _count_transformer_parameters(model, vocabulary, classes)
    if not isinstance(model, FrozenEncoderSettings):
        return _count_recurrent_parameters(model, vocabulary, classes)
    facts = read_json(SENTENCE_FOLDER / "encoder.json" if folder is None else folder / "config.json")
    width = next((facts[name] for name in ("output_width", "width", "hidden_size") if name in facts), None)
    adapters = 0
    if model.lora_rank not in ("auto", 0):
        from redactory.training.models.adapted_encoder import count_adapter_parameters

        adapters = count_adapter_parameters(int(model.lora_rank))
    return None if width is None else (int(width) + 1) * classes + adapters


def _count_transformer_parameters(
    model: Gpt2Settings | LlamaSettings | BertSettings, vocabulary: int, classes: int
) -> int:
    """Count as ``transformers`` builds GPT-2, whose embedding is its output layer, too, Llama and BERT."""
    width, embedded = model.width, (vocabulary + model.context) * model.width
    if model.kind == "llama":
        return 2 * vocabulary * width + model.layers * (16 * width**2 + 2 * width) + width
    blocks = model.layers * (12 * width**2 + 13 * width)
    head = 2 * width if model.kind == "gpt2" else width**2 + 5 * width + (width + 1) * classes
    return embedded + blocks + head


def _count_recurrent_parameters(
    model: LstmSettings | AwdLstmSettings | BiLstmSettings | BagSettings, vocabulary: int, classes: int
) -> int:
    """Count as :mod:`.models.recurrent` builds: for ``classes`` if there are any, otherwise for the next word."""
    width, layers = model.embedding_size, list[tuple[int, int]]()
    match model:
        case BiLstmSettings():
            layers, width = [(width, model.hidden_size)] * 2, 2 * model.hidden_size
        case AwdLstmSettings():
            layers = [*pairwise((width, *[model.hidden_size] * (model.layers - 1), width))]
        case LstmSettings():
            layers, width = [*pairwise((width, *[model.hidden_size] * model.layers))], model.hidden_size
    below = vocabulary * model.embedding_size + sum(4 * units * (inputs + units + 2) for inputs, units in layers)
    if not classes:  # the embedding of an AWD-LSTM is its output layer, too
        return below + vocabulary * (1 if isinstance(model, AwdLstmSettings) else width + 1)
    pooled = width * len(model.pooling.split("-"))
    if bottleneck := getattr(model, "bottleneck", None):
        below, pooled = below + bottleneck * (pooled + 1), bottleneck
    return below + (pooled + 1) * classes
