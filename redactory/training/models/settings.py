"""Settings of the network: its kind and size, which are public constants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, NonNegativeInt, PositiveInt, Tag, model_validator

from redactory.foundation.settings import Settings


class LstmSettings(Settings):
    """LSTM layers over trained embeddings; one layer of 200 units is the language model of the CRT paper."""

    kind: Literal["lstm"] = Field("lstm", description="The network that this section describes.")
    embedding_size: PositiveInt = Field(200, description="Width of the token embedding.")
    hidden_size: PositiveInt = Field(200, description="Width of each LSTM layer's state.")
    layers: PositiveInt = Field(1, description="Number of stacked LSTM layers.")
    pooling: ClassVar[str] = "last-max-mean"
    """Pooling of a text's states for classification (:class:`.recurrent.PooledClassifier`)."""


class AwdLstmSettings(Settings):
    """AWD-LSTM (Merity et al. 2018) at the size of the UeDP paper; dropout does not depend on text."""

    kind: Literal["awd-lstm"] = Field(description="The network that this section describes.")
    embedding_size: PositiveInt = Field(100, description="Width of the token embedding, and of the last layer.")
    hidden_size: PositiveInt = Field(1150, description="Width of the other LSTM layers' states.")
    layers: PositiveInt = Field(3, description="Number of stacked LSTM layers.")
    word_dropout: ClassVar[float] = 0.1
    """Share of the vocabulary's embeddings dropped in a step; the paper's value, as all of these."""
    input_dropout: ClassVar[float] = 0.65
    """Share of an embedding dropped, the same at every position."""
    layer_dropout: ClassVar[float] = 0.3
    """The same, between two LSTM layers."""
    output_dropout: ClassVar[float] = 0.4
    """The same, after the last LSTM layer."""
    weight_dropout: ClassVar[float] = 0.5
    """Share of the recurrent weights dropped in a step."""
    pooling: ClassVar[str] = "last-max-mean"
    """Pooling of a text's states for classification (:class:`.recurrent.PooledClassifier`)."""


class BiLstmSettings(Settings):
    """LSTMs over a text and over its reversal, for task classify: the encoder of the LDP-NLP paper."""

    kind: Literal["bilstm"] = Field(description="The network that this section describes.")
    embedding_size: PositiveInt = Field(128, description="Width of the token embedding.")
    hidden_size: PositiveInt = Field(128, description="Width of the state in each of the two directions.")
    pooling: ClassVar[str] = "max-mean"
    """The largest and the mean value of each unit."""
    bottleneck: PositiveInt | None = Field(
        None, description="Width of a linear layer before the classes, which represents the text."
    )


class BagSettings(Settings):
    """The mean of a text's trained embeddings and a linear layer, for task classify: a simple baseline."""

    kind: Literal["bag"] = Field(description="The network that this section describes.")
    embedding_size: PositiveInt = Field(64, description="Width of the token embedding.")
    pooling: ClassVar[str] = "mean"
    """The mean over the text, independent of token order."""


class LoraSettings(Settings):
    """Low-rank adapters (peft, the extra ``lora``); all other weights of ``folder`` stay frozen."""

    rank: PositiveInt = Field(8, description="Rank of each adapter.")
    method: Literal["lora", "rslora", "dora"] = Field(
        "lora",
        description="lora; rslora, which divides by the root of the rank; dora, which also learns the length "
        "of each row of a weight.",
    )
    alpha: PositiveInt | None = Field(
        None, description="Scale: an adapter's output is multiplied by alpha / rank; default: twice the rank."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of an adapter's inputs that are zero in a step, the same for all examples."
    )
    modules: tuple[str, ...] = Field(
        (), description="Names of the linear layers that get an adapter; default: the attention's projections."
    )
    modules_to_save: tuple[str, ...] = Field(
        (), description="Names of layers that are trained as a whole, such as lm_head; all their weights get noise."
    )


class FolderSettings(Settings):
    """Any Hugging Face network from a local folder, without dropout; its ``config.json`` names the architecture."""

    kind: Literal["folder"] = Field("folder", description="The network that this section describes.")
    folder: Path = Field(
        description="A local folder with pretrained weights and their fast tokenizer, both public; or a "
        "model of the same run, whose guarantee is added to this one's."
    )
    lora: LoraSettings | None = Field(None, description="Train only low-rank adapters.")


class TransformerSettings(Settings):
    """Settings that fresh GPT-2, Llama and BERT share."""

    layers: PositiveInt = Field(4, description="Blocks.")
    width: PositiveInt = Field(256, description="Width.")
    heads: PositiveInt = Field(4, description="Attention heads; must divide the width.")
    context: PositiveInt = Field(128, description="Maximum tokens in the context; at least max_tokens.")

    @model_validator(mode="after")
    def _require_heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError("heads must divide width")
        return self


class Gpt2Settings(TransformerSettings):
    """GPT-2 of Hugging Face, fresh; no dropout."""

    kind: Literal["gpt2"] = Field(description="The network that this section describes.")


class LlamaSettings(TransformerSettings):
    """A Llama-style network of Hugging Face, fresh."""

    kind: Literal["llama"] = Field(description="The network that this section describes.")


class BertSettings(TransformerSettings):
    """BERT of Hugging Face for task classify, fresh; no dropout."""

    kind: Literal["bert"] = Field(description="The network that this section describes.")


class FrozenEncoderSettings(Settings):
    """A linear layer on the vectors of a frozen, public encoder, for task classify: the best for most private data."""

    kind: Literal["encoder"] = Field("encoder", description="The network that this section describes.")
    folder: Path | None = Field(
        None,
        description="A local folder with an encoder of Hugging Face and its fast tokenizer, both public; default: "
        "multilingual-e5-small, which is part of the package.",
    )
    lora_rank: Literal["auto"] | NonNegativeInt = Field(
        "auto",
        description="Rank of adapters that are trained in the last two layers of the package's encoder; 0: none, only "
        "the linear layer. auto: rank 16 with very many examples for the noise, from about 120,000 at epsilon 8 on, "
        "otherwise none.",
    )

    @model_validator(mode="after")
    def _require_adaptable_encoder(self) -> Self:
        if self.folder is not None and self.lora_rank not in ("auto", 0):
            raise ValueError("lora_rank: adapters are for the package's encoder; remove folder or lora_rank")
        return self


KINDS = ("encoder", "lstm", "awd-lstm", "gpt2", "llama", "bert", "bilstm", "bag", "folder")
CLASSIFIER_KINDS = ("encoder", "bert", "bilstm", "bag")
"""The kinds that only classify."""


def _get_model_kind(value: Any) -> str | None:
    if not isinstance(value, dict):
        return getattr(value, "kind", None)
    # LSTM by default, so that `model: {hidden_size: 64}` is enough
    kind = value.get("kind", "folder" if "folder" in value else "lstm")
    return kind if isinstance(kind, str) else None


ModelSettings = Annotated[
    Annotated[FrozenEncoderSettings, Tag("encoder")]
    | Annotated[LstmSettings, Tag("lstm")]
    | Annotated[AwdLstmSettings, Tag("awd-lstm")]
    | Annotated[Gpt2Settings, Tag("gpt2")]
    | Annotated[LlamaSettings, Tag("llama")]
    | Annotated[BertSettings, Tag("bert")]
    | Annotated[BiLstmSettings, Tag("bilstm")]
    | Annotated[BagSettings, Tag("bag")]
    | Annotated[FolderSettings, Tag("folder")],
    Discriminator(
        _get_model_kind,
        custom_error_type="model_kind",
        custom_error_message=f"kind must be one of {', '.join(KINDS)}, as in model: {{kind: lstm}}; for pretrained "
        "weights set model.folder to a local folder with them",
    ),
]
"""The section ``train.model``; ``kind`` selects the network."""
