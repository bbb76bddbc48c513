"""A model before its first step: its vocabulary and its weights, from public text, constants and coins."""

from __future__ import annotations

from collections.abc import Iterator

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training.model import LanguageModel, TextClassifier
from redactory.training.models.build import network_of, tokenizer_of
from redactory.training.models.build_classifier import classifier_of
from redactory.training.models.network import Classifier, LanguageNetwork
from redactory.training.publictext import PublicText
from redactory.training.runinput import public_texts
from redactory.training.settings import TrainSettings

Model = LanguageModel | TextClassifier


def fresh_model(
    run: RunFolder, settings: TrainSettings, stream: RandomStream, public_text: PublicText | None
) -> Model:
    """The public vocabulary, or the folder's, and a network as it is before the first step.

    Words come from ``public_text`` where there is one, else from the run's public side.
    ``ConfigurationError`` where ``max_tokens`` is more than the network reads.
    """
    return drawn(undrawn_model(run, settings, public_text), settings, stream)


def undrawn_model(run: RunFolder, settings: TrainSettings, public_text: PublicText | None) -> Model:
    """As :func:`fresh_model`, before any coin is thrown: what cannot be built is refused here."""

    def texts() -> Iterator[str]:
        return public_texts(run) if public_text is None else public_text.texts()

    tokenizer = tokenizer_of(settings.model, texts, settings.vocabulary_size, settings.minimum_count)
    classify = settings.task == "classify"
    network: LanguageNetwork | Classifier
    if classify:
        network = classifier_of(settings.model, tokenizer, settings.classes)
    else:
        network = network_of(settings.model, tokenizer)
    needed = settings.max_tokens + classify  # a classifier reads the begin token beside them
    if network.context is not None and needed > network.context:
        raise ConfigurationError(
            f"train.max_tokens: the model reads {network.context} tokens, and {needed} are asked for: "
            "lower it, or raise train.model.context"
        )
    if isinstance(network, LanguageNetwork):
        return LanguageModel(tokenizer, network)
    return TextClassifier(tokenizer, network, settings.max_tokens)


def drawn(model: Model, settings: TrainSettings, stream: RandomStream) -> Model:
    """``model`` with its weights drawn from ``stream``, on the device of the training."""
    model.network.initialise(stream)
    model.network.to(settings.device)
    return model
