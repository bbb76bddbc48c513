"""Networks of Hugging Face: GPT-2, Llama and BERT, fresh or from a local folder, with adapters or without."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.data import Batch
from redactory.training.models.network import Classifier, LanguageNetwork, Network, State, normal_, uniform_
from redactory.training.models.settings import LoraSettings, TransformerSettings
from redactory.training.tokenizer import quiet, require_transformers


def _sizes(own: TransformerSettings) -> dict[str, Any]:
    return {
        "hidden_size": own.width,
        "intermediate_size": 4 * own.width,
        "num_hidden_layers": own.layers,
        "num_attention_heads": own.heads,
        "max_position_embeddings": own.context,
    }


def _gpt2_sizes(own: TransformerSettings) -> dict[str, Any]:
    return {"n_embd": own.width, "n_layer": own.layers, "n_head": own.heads, "n_positions": own.context}


LIBRARY: dict[str, tuple[str, Callable[[TransformerSettings], dict[str, Any]], tuple[str, ...]]] = {
    "gpt2": ("AutoModelForCausalLM", _gpt2_sizes, ("c_attn",)),
    "llama": ("AutoModelForCausalLM", _sizes, ("q_proj", "v_proj")),
    "bert": ("AutoModelForSequenceClassification", _sizes, ("query", "value")),
}
"""By kind: the class of ``transformers`` that reads it, the sizes of a fresh one, and the attention's
projections, which get an adapter where nothing else is said."""


class HuggingFaceNetwork(Network):
    """Any ``model`` of ``transformers`` that has no dropout.

    ``drawn`` are the parameters that a pretrained folder does not hold, by the names of the model.
    """

    def __init__(self, model: Any, pretrained: bool = False, drawn: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.model, self.pretrained, self._drawn = model, pretrained, drawn
        self.context = int(model.config.max_position_embeddings)

    def initialise(self, stream: RandomStream) -> None:
        """Fresh: weights from N(0, 0.02²), norms one, biases zero (GPT-2's rule).

        Pretrained: as read, what no folder holds by the same rule, and of each adapter the first matrix
        uniform within ±1/√(inputs), the second zero, so that the network starts as the pretrained one.
        """
        if has_adapters(self.model):
            for index, (name, parameter) in enumerate(self.named_parameters()):
                if parameter.requires_grad and ".lora_A." in name:
                    uniform_(parameter, 1.0 / math.sqrt(parameter.shape[1]), stream, index)
                elif parameter.requires_grad:
                    nn.init.zeros_(parameter)
            if not self.pretrained:
                return
        # the index, which names the draws, counts every parameter
        own = self._plain if self.pretrained else self
        for index, (name, parameter) in enumerate(own.named_parameters()):
            if is_drawn(name, self._drawn) if self.pretrained else parameter.requires_grad:
                if parameter.ndim > 1:
                    normal_(parameter, 0.02, stream, index)
                else:
                    nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    @property
    def _plain(self) -> Any:
        return self.model.get_base_model() if has_adapters(self.model) else self.model

    def describe(self) -> dict[str, Any]:
        """The library's own configuration, which plain ``transformers`` reads."""
        config: dict[str, Any] = self.model.config.to_dict()
        return {key: value for key, value in config.items() if not key.startswith("_")}


class CausalNetwork(HuggingFaceNetwork, LanguageNetwork):
    """A model for causal language modelling (GPT-2, Llama).

    Points are padded on the right, and a place sees only places before it: so no attention mask is needed,
    and padding changes nothing.  Position ids are given for every row ([B, T]): left to itself the library
    looks up one row of positions for the whole batch, of which no point has a gradient of its own.

    Formal guarantees: those of :class:`redactory.training.models.network.Network`.
    """

    @property
    def head(self) -> nn.Module:
        """The output layer; its weight may be the embedding's."""
        found: nn.Module = self._plain.get_output_embeddings()
        return found

    def hidden(self, batch: Batch) -> Tensor:
        """The last block's output [B, T, H], after its norm."""
        found: Tensor = self._plain.base_model(
            input_ids=batch.inputs, position_ids=_places(batch), attention_mask=None, use_cache=False
        ).last_hidden_state
        return found

    def initial_state(self, batch: int) -> State:
        """An empty cache: keys and values [batch, heads, 0, width] of every layer."""
        config = self.model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        like = next(self.parameters())
        layers = range(2 * int(config.num_hidden_layers))
        return tuple(like.new_zeros(batch, int(heads), 0, int(width)) for _ in layers)

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token a row, ids [B]; ``ValueError`` beyond the context."""
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        seen = state[0].shape[2]
        if self.context is not None and seen >= self.context:
            raise ValueError("the model's context is full")
        if seen:
            for layer in range(len(state) // 2):
                cache.update(state[2 * layer], state[2 * layer + 1], layer)
        logits = self.model(
            input_ids=ids[:, None],
            position_ids=torch.full_like(ids[:, None], seen),
            past_key_values=cache,
            use_cache=True,
        ).logits
        after = [part for layer in cache.layers for part in (layer.keys, layer.values)]
        return F.log_softmax(logits[:, -1], -1), tuple(after)


class ClassifierNetwork(HuggingFaceNetwork, Classifier):
    """A model for sequence classification (BERT).

    ``drawn`` is the head, and the pooler where the folder was pretrained without one.

    Formal guarantees: those of :class:`redactory.training.models.network.Classifier`.
    """

    def __init__(
        self, model: Any, pretrained: bool = False, drawn: frozenset[str] = frozenset({"classifier"})
    ) -> None:
        super().__init__(model, pretrained, drawn)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number."""
        names = self.model.config.id2label
        return tuple(str(names[number]) for number in sorted(names))

    def logits(self, batch: Batch) -> Tensor:
        """Unnormalised log probabilities of the classes, [B, classes]."""
        found: Tensor = self.model(
            input_ids=batch.inputs,
            attention_mask=batch.real.long(),
            token_type_ids=torch.zeros_like(batch.inputs),
            position_ids=_places(batch),
        ).logits
        return found


def _places(batch: Batch) -> Tensor:
    return torch.arange(batch.inputs.shape[1], device=batch.inputs.device).expand_as(batch.inputs)


def is_drawn(name: str, drawn: frozenset[str]) -> bool:
    """Whether the parameter ``name`` is one of ``drawn``: itself, or in a module that is named there."""
    own = name.replace(".base_layer", "")
    return any(own == one or own.startswith(f"{one}.") for one in drawn)


# Low-rank adapters through ``peft``.


def with_adapters(model: Any, settings: LoraSettings) -> Any:
    """``model`` with adapters, everything else frozen."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigurationError(
            "lora needs peft, not installed here: pip install 'redactory[lora]'"
        ) from None
    kind = model.config.model_type
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=list(LIBRARY[kind][2]),
        fan_in_fan_out=kind == "gpt2",
        bias="none",
    )
    with quiet():
        return get_peft_model(model, config)


def has_adapters(model: Any) -> bool:
    """Whether ``model`` was made by :func:`with_adapters`."""
    return hasattr(model, "merge_and_unload")


def merged(model: Any) -> Any:
    """A copy of the model with its adapters added to its weights: an ordinary one of ``transformers``."""
    return copy.deepcopy(model).merge_and_unload()


# Fresh models, and those of a folder.


def fresh(kind: str, settings: TransformerSettings, **config: Any) -> Any:
    """A model of the sizes in ``settings``, without dropout; its weights mean nothing."""
    task = library_class(kind)
    from transformers import AutoConfig

    sizes = LIBRARY[kind][1](settings)
    return without_dropout(task.from_config(AutoConfig.for_model(kind, **sizes, **config)))


def library_class(kind: str) -> Any:
    """The class of ``transformers`` that reads a model of ``kind``."""
    require_transformers()
    import transformers

    return getattr(transformers, LIBRARY[kind][0])


def read_model(folder: Path, kind: str, task: Any, **config: Any) -> tuple[Any, frozenset[str]]:
    """The model in ``folder`` as ``task`` (a class of ``transformers``), without dropout.

    ``config`` replaces keys of the folder's own.  The names of the parameters that the folder does not hold
    in the shape that is needed come with it; their values mean nothing.

    ``ConfigurationError`` where it is of another kind, cannot be read, or is a model of a run: that one
    was trained on private text, whose budget would have to be composed with this one's.
    """
    require_transformers()
    if (folder / "ledger.jsonl").exists():
        raise ConfigurationError(
            "model.folder: this is a model of a run, so trained on its text; give weights that are public"
        )
    if (folder / "fit.json").exists():
        raise ConfigurationError(
            "model.folder: redactory fit trained these weights on labelled rows; give weights that are public"
        )
    try:
        named = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError):
        raise ConfigurationError(f"model.folder: {folder.name}/config.json cannot be read") from None
    if named != kind:
        raise ConfigurationError(f"model.folder: {folder.name} holds a model of kind '{named}', not '{kind}'")
    try:
        with quiet():
            model, loading = task.from_pretrained(
                folder,
                local_files_only=True,
                dtype="float32",
                use_safetensors=True,
                ignore_mismatched_sizes=bool(config),
                output_loading_info=True,
                **config,
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"model.folder: no weights can be read from {folder.name} ({type(error).__name__})"
        ) from None
    other = (entry[0] for entry in loading["mismatched_keys"])
    return without_dropout(model), frozenset({*loading["missing_keys"], *other})


def without_dropout(model: Any) -> Any:
    """The model with every dropout and jitter set to nothing, in its modules and in its configuration."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and _draws(name):
                setattr(module, name, 0.0)
    for key, value in model.config.to_dict().items():
        if isinstance(value, float) and _draws(key):
            setattr(model.config, key, 0.0)
    return model


def _draws(name: str) -> bool:
    return "drop" in name or "jitter" in name


def fit_vocabulary(model: Any, size: int) -> None:
    """Make room for added tokens; a new row is the mean of those before it, which is public."""
    before = model.get_input_embeddings().weight.shape[0]
    if size <= before:
        return
    model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if layer is not None:
                layer.weight[before:] = layer.weight[:before].mean(0)
