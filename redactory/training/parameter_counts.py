"""Count the trained parameters of a network that its settings describe, without torch for networks of our own."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

from redactory.encoder import SENTENCE_FOLDER
from redactory.foundation.files import read_json
from redactory.training.models.settings import (
    AwdLstmSettings,
    BagSettings,
    BiLstmSettings,
    FolderSettings,
    FrozenEncoderSettings,
    LstmSettings,
    TransformerSettings,
)

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings


def count_max_parameters(settings: TrainSettings) -> int | None:
    """Count the trained parameters, with a vocabulary of maximum size; None for a folder that cannot be read.

    A folder's are counted from its ``config.json``; its weights are not needed.
    """
    model = settings.model
    if isinstance(model, FrozenEncoderSettings):
        return _count_encoder_head(model, len(settings.classes))
    if isinstance(model, FolderSettings | TransformerSettings):
        if isinstance(model, FolderSettings) and not (model.folder / "config.json").is_file():
            return None  # a plan may come before the folder
        from redactory.training.model import count_transformer_parameters

        return count_transformer_parameters(settings)
    return _count_recurrent_parameters(model, settings.vocabulary_size, len(settings.classes))


def _count_encoder_head(model: FrozenEncoderSettings, classes: int) -> int | None:
    adapters = 0
    if model.folder is not None:
        try:
            width = json.loads((model.folder / "config.json").read_text(encoding="utf-8")).get("hidden_size")
        except (OSError, ValueError, AttributeError):
            width = None
    else:
        facts = read_json(SENTENCE_FOLDER / "encoder.json")
        width = facts.get("output_width", facts["width"])
        if model.lora_rank not in ("auto", 0):
            from redactory.training.models.adapted_encoder import count_adapter_parameters

            adapters = count_adapter_parameters(int(model.lora_rank))
    return (width + 1) * classes + adapters if isinstance(width, int) else None


def _count_recurrent_parameters(
    model: LstmSettings | AwdLstmSettings | BiLstmSettings | BagSettings, vocabulary: int, classes: int
) -> int:
    """Count as :mod:`.models.recurrent` builds: for ``classes`` if there are any, otherwise for the next word."""
    inputs, layers = model.embedding_size, list[tuple[int, int]]()
    match model:
        case BagSettings():
            width = inputs
        case BiLstmSettings():
            layers, width = [(inputs, model.hidden_size)] * 2, 2 * model.hidden_size
        case AwdLstmSettings():
            layers, width = [*pairwise((inputs, *[model.hidden_size] * (model.layers - 1), inputs))], inputs
        case LstmSettings():
            layers, width = [*pairwise((inputs, *[model.hidden_size] * model.layers))], model.hidden_size
    below = vocabulary * inputs + sum(4 * units * (size + units + 2) for size, units in layers)
    if classes:
        pooled, bottleneck = width * len(model.pooling.split("-")), getattr(model, "bottleneck", None)
        head = (bottleneck or pooled) * classes + classes
        return below + head + (bottleneck * (pooled + 1) if bottleneck else 0)
    # the embedding of an AWD-LSTM is its output layer, too
    return below + vocabulary * (1 if isinstance(model, AwdLstmSettings) else width + 1)
