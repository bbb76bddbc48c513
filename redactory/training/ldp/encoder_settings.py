"""Stage 1 of LDP-NLP: the encoder that users are given, learnt from public text alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from redactory.foundation.settings import Settings
from redactory.training.models.settings import BiLstmSettings


class FrozenFolderSettings(Settings):
    """A local Hugging Face folder whose weights stay as they are; only what stands on it is learnt."""

    kind: Literal["folder"] = Field(description="The network that this section describes.")
    folder: Path = Field(
        description="The folder: BERT and its kin, or a sentence encoder of them, with a fast tokenizer. It "
        "must be public."
    )
    pooling: Literal["folder", "mean", "first"] = Field(
        "folder",
        description="What of the states over a text is read: their mean, the first one, or whichever the "
        "folder names (1_Pooling/config.json; the mean where it names none).",
    )


EncoderModel = Annotated[BiLstmSettings | FrozenFolderSettings, Field(discriminator="kind")]


class EncoderSettings(Settings):
    """How the encoder is learnt from public labelled text; no number here changes an epsilon."""

    model: EncoderModel = Field(
        BiLstmSettings(kind="bilstm"), description="The network below the representation."
    )
    classes: tuple[str, ...] = Field(
        (), description="The classes it is taught to tell; empty: all that the public text has."
    )
    dimension: PositiveInt = Field(
        16, description="Width of the linear layer that a sentence is represented by; noise is on each."
    )
    clip_norm: PositiveFloat = Field(
        1.0, description="C that messages will be clipped to; the classes are told from the clipped vector."
    )
    noise_multiplier: NonNegativeFloat = Field(
        0.0,
        description="Noise over clip_norm that is put on the clipped vector while it is learnt, so that it "
        "learns to stand the noise of messages. Public text: nothing is protected by it.",
    )
    epochs: PositiveInt = Field(10, description="Passes over the public text.")
    learning_rate: PositiveFloat = Field(2e-3, description="Step size of Adam, falling to zero.")
    batch_size: PositiveInt = Field(32, description="Sentences in a step.")
    max_tokens: PositiveInt = Field(64, description="Tokens that a sentence is cut or filled up to.")
    vocabulary_size: PositiveInt = Field(10_000, description="At most this many words are tokens (bilstm).")
    minimum_count: PositiveInt = Field(2, description="A word is a token from this count on (bilstm).")
    seed: NonNegativeInt = Field(0, description="First weights and order: public, as the text is.")
    threads: PositiveInt = Field(2, description="Threads of the numerics.")

    @model_validator(mode="after")
    def _a_bottleneck_is_the_dimension(self) -> Self:
        if isinstance(self.model, BiLstmSettings) and self.model.bottleneck is not None:
            raise ValueError("model.bottleneck: here it is called dimension; leave it out")
        return self

    @model_validator(mode="after")
    def _classes_are_told_apart(self) -> Self:
        named = self.classes
        if named and (len(named) < 2 or len(set(named)) < len(named) or "" in named):
            raise ValueError("classes: two or more, every name once, none empty")
        return self
