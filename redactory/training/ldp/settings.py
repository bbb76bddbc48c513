"""The settings of LDP-NLP: public constants that users and server know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from redactory.foundation.errors import GuaranteeError
from redactory.foundation.settings import Settings
from redactory.training.ldp.accounting import (
    FixedSends,
    HiddenSampling,
    Participation,
    calibrate_message_noise,
    confirm_message_epsilon,
)
from redactory.training.models.settings import BiLstmSettings
from redactory.training.settings import ClipNorm, Probability

if TYPE_CHECKING:
    from redactory.training.accounting import Spendings


_JOINERS = "\u200c\u200d"
"""Unprintable characters that words of some scripts need."""


class HeadSettings(Settings):
    """The server's network, trained only on noisy messages: nothing here changes an epsilon."""

    hidden_size: PositiveInt = Field(64, description="Width of the hidden layer, or of each LSTM's state.")
    epochs: PositiveInt = Field(30, description="Passes over the received messages; post-processing.")
    learning_rate: PositiveFloat = Field(1e-2, description="Learning rate of Adam.")
    batch_size: PositiveInt = Field(64, description="Messages in a step.")


class QuerySettings(Settings):
    """How queries are sent if not like training sentences: with fictitious ones between them."""

    sampling: Participation = Field(
        description="Same as for training sentences; secret_bernoulli sends fictitious queries between the true one's."
    )
    noise_multiplier: PositiveFloat | None = Field(
        None,
        description="z of a query's messages; default: the value at which a query costs no more than a "
        "training sentence.",
    )

    @model_validator(mode="after")
    def _require_no_hidden_classes(self) -> Self:
        if isinstance(self.sampling, HiddenSampling) and self.sampling.classes is not None:
            raise ValueError("sampling.classes: a query carries no class; remove it")
        return self


class LdpSettings(Settings):
    """One service: what a user sends, with which noise, and how the server uses it.

    Source: LDP-NLP, Algorithm 1 (clip C, noise σ = z·C); accounted by ``docs/guarantees.md``, "Local differential
    privacy".
    """

    clip_norm: ClipNorm = Field(1.0, description="C, the L2 bound of one vector: of a sentence's whole representation.")
    noise_multiplier: PositiveFloat | None = Field(
        None, description="z = σ/C, noise over clip_norm; set it instead of calibrating to epsilon."
    )
    epsilon: PositiveFloat = Field(
        8.0, description="Target epsilon of one sentence, over all its training messages together."
    )
    delta: Probability = Field(1e-5, description="Delta at which every epsilon is stated.")
    sampling: Participation = Field(
        FixedSends(), description="How often a sentence is sent, and whether that is visible."
    )
    query: QuerySettings | None = Field(None, description="How queries are sent; default: as training sentences.")
    pairs: bool = Field(
        False, description="Each example is a pair of sentences (matching): two vectors, each clipped to C."
    )
    represent: Literal["latent", "token"] = Field(
        "latent", description="What gets noise: one vector of a sentence, or the embeddings of its tokens."
    )
    dimension: PositiveInt = Field(16, description="Length of the encoder's latent vector.")
    max_tokens: PositiveInt = Field(
        64, description="Tokens that a sentence is truncated or padded to, to hide its length."
    )
    classes: tuple[str, ...] = Field((), description="The names of the classes, a public list.")
    head: HeadSettings = Field(HeadSettings(), description="The server's network.")
    seed: int | None = Field(
        None, description="Test mode: random draws repeat, and whoever knows the seed can subtract the noise."
    )

    @model_validator(mode="after")
    def _require_compatible_settings(self) -> Self:
        if len(set(self.classes)) != len(self.classes) or not all(name.strip() for name in self.classes):
            raise ValueError("classes: names must be unique and not empty")
        # they are printed to users, and a service's come from a stranger
        if not all(c.isprintable() or c in _JOINERS for name in self.classes for c in name):
            raise ValueError("classes: control characters are not allowed in a name")
        if self.pairs and self.represent == "token":
            raise ValueError("pairs are matched on their latent vectors: set represent to latent")
        hidden = getattr(self.sampling, "classes", None)
        if hidden is not None and self.classes and hidden != len(self.classes):
            raise ValueError(f"sampling.classes: expected {len(self.classes)}, as in classes, got {hidden}")
        return self

    @property
    def query_participation(self) -> Participation:
        """How queries are sent: without ``query`` like training sentences, but without a class."""
        if self.query is not None:
            return self.query.sampling
        way = self.sampling
        return way.model_copy(update={"classes": None}) if isinstance(way, HiddenSampling) else way

    @property
    def vectors(self) -> int:
        """How many vectors, each clipped to C, one message holds: 2 for a pair, else 1."""
        return 2 if self.pairs else 1

    def resolve_noise(self, encoder_costs: Spendings = ()) -> float:
        """Return z: ``noise_multiplier``, or the noise whose epsilon, with the encoder's, is at most the target.

        ``GuaranteeError`` if no noise below 10,000 reaches the target.
        """
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        return calibrate_message_noise(self.epsilon, self.vectors, self.sampling, self.delta, encoder_costs)

    def resolve_all_noise(self, encoder_costs: Spendings = ()) -> LdpSettings:
        """Return the settings with every noise as a number.

        ``GuaranteeError`` if no noise below 10,000 reaches the target, or if the noise of queries is to match a
        training sentence's epsilon that is not finite.
        """
        noise, query = self.resolve_noise(encoder_costs), self.query
        if query is not None and query.noise_multiplier is None:
            arguments = self.vectors, self.sampling, self.delta, encoder_costs
            target = confirm_message_epsilon(noise, *arguments).value
            if target is None:
                raise GuaranteeError("query.noise_multiplier: set it, since a sentence has no finite epsilon")
            query_noise = calibrate_message_noise(target, self.vectors, query.sampling, self.delta, encoder_costs)
            query = query.model_copy(update={"noise_multiplier": query_noise})
        return self.model_copy(update={"noise_multiplier": noise, "query": query})

    def make_query_settings(self, encoder_costs: Spendings = ()) -> LdpSettings:
        """Return the settings of a query's messages, in the form of a training sentence's."""
        resolved = self.resolve_all_noise(encoder_costs)
        noise = (resolved.query or resolved).noise_multiplier
        changes = {"sampling": resolved.query_participation, "noise_multiplier": noise, "query": None}
        return resolved.model_copy(update=changes)


# Stage 1 of LDP-NLP: the users' encoder, trained only on public text.


class FrozenFolderSettings(Settings):
    """A local Hugging Face folder with frozen weights; only the layers above it are trained."""

    kind: Literal["folder"] = Field(description="The network that this section describes.")
    folder: Path = Field(
        description="The folder of BERT or a similar model, or of a sentence encoder based on one, with a "
        "fast tokenizer. It must be public."
    )


EncoderModel = Annotated[BiLstmSettings | FrozenFolderSettings, Field(discriminator="kind")]


class EncoderSettings(Settings):
    """How the encoder is trained on public labelled text; no number here changes an epsilon."""

    model: EncoderModel = Field(BiLstmSettings(kind="bilstm"), description="The network below the representation.")
    dimension: PositiveInt = Field(
        16, description="Width of the linear layer that represents a sentence; each dimension gets noise."
    )
    clip_norm: PositiveFloat = Field(
        1.0, description="C that messages will be clipped to; the classes are predicted from the clipped vector."
    )
    noise_multiplier: NonNegativeFloat = Field(
        0.0,
        description="Noise over clip_norm that is added to the clipped vector in training, so that it "
        "becomes robust to the noise of messages. The text is public: this protects nothing.",
    )
    epochs: PositiveInt = Field(10, description="Number of passes over the public text.")
    learning_rate: PositiveFloat = Field(2e-3, description="Learning rate of Adam, decaying to zero.")
    batch_size: PositiveInt = Field(32, description="Sentences in a step.")
    max_tokens: PositiveInt = Field(64, description="Tokens that a sentence is truncated or padded to.")
    vocabulary_size: PositiveInt = Field(10_000, description="Maximum size of the vocabulary (bilstm).")
    seed: NonNegativeInt = Field(0, description="Seed of initial weights and order: public, like the text.")
    threads: PositiveInt = Field(2, description="Number of CPU threads.")

    @model_validator(mode="after")
    def _require_compatible_settings(self) -> Self:
        if isinstance(self.model, BiLstmSettings) and self.model.bottleneck is not None:
            raise ValueError("model.bottleneck: use dimension instead")
        return self
