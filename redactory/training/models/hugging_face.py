"""Hugging Face networks: any local folder, fresh GPT-2, Llama and BERT, and adapters.

Nothing here knows an architecture by name. Batches are padded on the right and the model sets its positions. A trial on
a few tokens shows how to use a model: its output layer, its cache and its direction.
"""

from __future__ import annotations

import inspect
import json
import math
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import commit_file, make_folder
from redactory.foundation.stream import RandomStream
from redactory.training.clipping import check_exact_clipping
from redactory.training.data import Batch
from redactory.training.models.network import (
    ClassifierNetwork,
    LanguageNetwork,
    Network,
    NetworkPart,
    State,
    fill_normal,
    fill_uniform,
)
from redactory.training.models.settings import CLASSIFIER_KINDS, LoraSettings, TransformerSettings
from redactory.training.tokenizer import require_transformers, silence_transformers

LIBRARY_CLASSES = {"next-word": "AutoModelForCausalLM", "classify": "AutoModelForSequenceClassification"}


class HuggingFaceNetwork(Network):
    """Any text ``model`` of ``transformers``, without dropout.

    ``fresh_parameters`` are the parameters missing from a pretrained folder, by their names in the model.
    """

    def __init__(self, model: Any, pretrained: bool = False, fresh_parameters: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.model, self.pretrained, self._fresh_parameters = model, pretrained, fresh_parameters
        self.context = get_context_length(model)

    def initialise(self, stream: RandomStream) -> None:
        """Draw or keep the parameters.

        Fresh networks: weights from N(0, 0.02²), norms one, biases zero (GPT-2's rule). Pretrained networks keep the
        parameters of the folder and draw missing ones by the same rule. Of each adapter the first matrix is uniform
        within ±1/√(inputs) and the second zero, so that training starts from the pretrained network.
        """
        if has_adapters(self.model):
            for index, (name, parameter) in enumerate(self.named_parameters()):
                if ".lora_A." in name:
                    fill_uniform(parameter, 1.0 / math.sqrt(parameter.shape[1]), stream, index)
                elif ".lora_B." in name:
                    nn.init.zeros_(parameter)
            if not self.pretrained:
                return
        # the index of a draw counts every parameter
        network = self._base_model if self.pretrained else self
        for index, (name, parameter) in enumerate(network.named_parameters()):
            if is_fresh_parameter(name, self._fresh_parameters) if self.pretrained else parameter.requires_grad:
                if parameter.ndim > 1:
                    fill_normal(parameter, 0.02, stream, index)
                else:
                    nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    @property
    def _base_model(self) -> Any:
        return self.model.get_base_model() if has_adapters(self.model) else self.model

    def describe(self) -> dict[str, Any]:
        """The library's configuration, which plain ``transformers`` reads."""
        config: dict[str, Any] = self.model.config.to_dict()
        description = {key: value for key, value in config.items() if not key.startswith("_")}
        return {**description, "architectures": [type(self._base_model).__name__]}


class CausalNetwork(HuggingFaceNetwork, LanguageNetwork):
    """A model for causal language modelling.

    Examples are padded on the right, and a position sees only earlier positions. So no attention mask is needed, and
    padding changes nothing. ``ConfigurationError`` for a bidirectional model.

    Formal guarantees: those of :class:`redactory.training.models.network.Network`.
    """

    def __init__(self, model: Any, pretrained: bool = False, fresh_parameters: frozenset[str] = frozenset()) -> None:
        super().__init__(model, pretrained, fresh_parameters)
        self._has_final_head = _detect_plain_output_head(self._base_model)
        self.has_narrow_states = self._has_final_head or _can_replace_states(self._base_model)
        self._empty_cache: list[Any] | None = None

    @property
    def head(self) -> nn.Module:
        """The output layer, whose weight may be the embedding's; an identity if the model adds layers after it."""
        layer: nn.Module = self._base_model.get_output_embeddings() if self._has_final_head else nn.Identity()
        return layer

    def hidden_states(self, batch: Batch) -> Tensor:
        """Return the last block's output [B, T, H] after its norm, or the logits [B, T, V]."""
        return self.read_states(batch.inputs) if self._has_final_head else self._read_logits(batch.inputs)

    def read_states(self, ids: Tensor) -> Tensor:
        """Return the last block's output [B, T, H] after ``ids`` [B, T]; the logits without ``has_narrow_states``."""
        if not self.has_narrow_states:
            return self._read_logits(ids)
        states: Tensor = self._base_model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return states

    def _read_logits(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits

    def compute_logits(self, states: Tensor) -> Tensor:
        """Return the logits [N, V] after ``states`` [N, H], including layers after the output layer."""
        is_complete = self._has_final_head or not self.has_narrow_states
        return super().compute_logits(states) if is_complete else _run_output_layers(self._base_model, states)

    @property
    def kept_logits(self) -> int:
        """The logits, log probabilities and their gradients if the model adds layers after its output layer."""
        vocabulary = len(self._base_model.get_output_embeddings().weight)
        return super().kept_logits if self._has_final_head else 4 * vocabulary

    def make_initial_state(self, batch: int) -> State:
        """Return empty keys and values [batch, heads, 0, width] of every layer, or empty ids, int64 [batch, 0]."""
        if self._empty_cache is None:
            self._empty_cache = self._probe_cache()
        if not self._empty_cache:
            return (torch.zeros(batch, 0, dtype=torch.int64, device=self.device),)
        return tuple(part.new_zeros(batch, part.shape[1], 0, part.shape[3]) for part in self._empty_cache)

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token per row, ids [B]; ``ValueError`` beyond the context."""
        has_no_cache = not state[0].is_floating_point()
        tokens_read = state[0].shape[1 if has_no_cache else 2]
        if self.context is not None and tokens_read >= self.context:
            raise ValueError("the model's context is full")
        if has_no_cache:
            all_ids = torch.cat([state[0], ids[:, None]], 1)
            new_state: State = (all_ids,)
            last_logits = self.compute_logits(self.read_states(all_ids)[:, -1])
        else:
            logits, new_state = self._read_token(ids, state, tokens_read)
            last_logits = logits[:, -1]
        return F.log_softmax(last_logits, -1), new_state

    def read_tokens(self, ids: Tensor, state: State) -> State:
        """Return the state after ``ids`` [B, N]; without a cache, nothing is computed."""
        has_no_cache = not state[0].is_floating_point()
        return (torch.cat([state[0], ids], 1),) if has_no_cache else super().read_tokens(ids, state)

    def _read_token(self, ids: Tensor, state: State, tokens_read: int) -> tuple[Tensor, State]:
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        if tokens_read:
            for layer in range(len(state) // 2):
                cache.update(state[2 * layer], state[2 * layer + 1], layer)
        # renamed in transformers 5.24 for some networks
        name = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        positions = torch.full_like(ids[:, None], tokens_read)
        logits = self.model(input_ids=ids[:, None], position_ids=positions, use_cache=True, **{name: cache}).logits
        new_state = tuple(part for layer in cache.layers for part in (layer.keys, layer.values))
        return logits, new_state

    @torch.no_grad()
    def _probe_cache(self) -> list[Any]:
        """Return the cache after a few tokens, or nothing if it changes the logits.

        Also returns nothing if a layer has a bounded attention window, which the short trial cannot exceed.
        """
        config, ids = self.model.config, _make_trial_tokens(self.model)
        if getattr(config, "sliding_window", None) or getattr(config, "attention_window_size", None):
            return []
        state: State = ()
        try:
            for position in range(ids.shape[1]):
                logits, state = self._read_token(ids[:, position], state, position)
            expected = self.model(input_ids=ids, use_cache=False).logits[:, -1]
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            return []
        has_all_tokens = bool(state) and all(part.dim() == 4 and part.shape[2] == ids.shape[1] for part in state)
        return list(state) if has_all_tokens and torch.allclose(logits[:, -1], expected, rtol=1e-4, atol=1e-4) else []


class SequenceClassifier(HuggingFaceNetwork, ClassifierNetwork):
    """A model for sequence classification.

    ``fresh_parameters`` are the head and any other parameters missing from the folder.

    Formal guarantees: those of :class:`redactory.training.models.network.ClassifierNetwork`.
    """

    def __init__(self, model: Any, pretrained: bool = False, fresh_parameters: frozenset[str] = frozenset()) -> None:
        super().__init__(model, pretrained, fresh_parameters)
        self.classes = tuple(str(name) for _, name in sorted(model.config.id2label.items()))

    def logits(self, batch: Batch) -> Tensor:
        """Unnormalised log probabilities of the classes, [B, classes]."""
        pad = self.model.config.pad_token_id
        # some models search for the last non-padding token
        inputs = batch.inputs if pad is None else batch.inputs.masked_fill(~batch.real, pad)
        logits: Tensor = self.model(input_ids=inputs, attention_mask=batch.real.long()).logits
        return logits


@torch.no_grad()
def _detect_plain_output_head(model: Any) -> bool:
    """Return whether the logits are the output layer applied to the last states, with nothing after it.

    ``ConfigurationError`` if a position depends on the next one.
    """
    head, ids, head_calls = model.get_output_embeddings(), _make_trial_tokens(model), list[tuple[Tensor, Tensor]]()
    hook = head and head.register_forward_hook(lambda _, args, output: head_calls.append((args[0], output)))
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        if hook:
            hook.remove()
    other_logits = model(input_ids=torch.cat([ids[:, :-1], ids[:, :1]], 1), use_cache=False).logits
    if not torch.allclose(logits[:, :-1], other_logits[:, :-1], rtol=1e-3, atol=1e-4):
        raise ConfigurationError(
            "train.model.folder: this model reads a text in both directions and cannot predict the next "
            "word; use it with train.task: classify"
        )
    if len(head_calls) != 1 or head_calls[0][1].data_ptr() != logits.data_ptr() or model.base_model is model:
        return False
    states = getattr(model.base_model(input_ids=ids, use_cache=False), "last_hidden_state", None)
    return states is not None and torch.equal(states, head_calls[0][0])


def _run_output_layers(model: Any, states: Tensor) -> Tensor:
    """Return the logits [N, V] of ``model`` from its last ``states`` [N, H]; the layers before them read one token."""

    def replace_states(module: nn.Module, arguments: Any, output: Any) -> Any:
        output.last_hidden_state = states[None]
        return output

    hook = model.base_model.register_forward_hook(replace_states)
    try:
        logits: Tensor = model(input_ids=_make_trial_tokens(model)[:, :1], use_cache=False).logits[0]
    finally:
        hook.remove()
    return logits


@torch.no_grad()
def _can_replace_states(model: Any) -> bool:
    """Return whether :func:`_run_output_layers` gives the model's logits."""
    ids = _make_trial_tokens(model)
    states = getattr(model.base_model(input_ids=ids, use_cache=False), "last_hidden_state", None)
    if model.base_model is model or states is None:
        return False
    return torch.equal(_run_output_layers(model, states[0]), model(input_ids=ids, use_cache=False).logits[0])


def _make_trial_tokens(model: Any) -> Tensor:
    weight: Tensor = model.get_input_embeddings().weight
    return torch.arange(4, device=weight.device)[None] % len(weight)


def get_context_length(model: Any) -> int | None:
    """Return how many tokens the model can read; None if its positions are unbounded."""
    config = model.config
    length = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)
    for name, module in model.named_modules():
        ids = module.padding_idx if isinstance(module, nn.Embedding) and "position" in name else None
        if ids is not None and module.num_embeddings == length:
            return int(length) - ids - 1  # positions are counted from the padding index
    return None if length is None or length < 0 else int(length)


_UNREADABLE_MESSAGE = "it cannot read examples of several lengths, with and without an end token ({})"
TRIAL_LENGTHS = (5, 3, 2)
"""Lengths of the synthetic examples; their number and the longest are prime."""


def require_exact_clipping(
    network: Network, pad_id: int, end_id: int, longest: int, token_count: int = 0, classes: int = 0
) -> None:
    """Raise ``ConfigurationError`` naming the part of ``network`` that is not clipped exactly.

    The trial uses synthetic examples. ``longest`` is the maximum number of tokens of a training example, including its
    begin token. ``token_count`` is the number of ids and ``classes`` that of the classes, 0 for a language model; a
    Hugging Face network declares both itself.
    """
    display_name = type(getattr(network, "model", network)).__name__
    if isinstance(network, HuggingFaceNetwork):
        token_count, display_name = len(network.model.get_input_embeddings().weight), network.model.config.model_type
        classes = len(network.classes) if isinstance(network, SequenceClassifier) else 0
    token_ids = [number for number in range(min(token_count, 64)) if number not in (pad_id, end_id)]
    draws = torch.randint(
        len(token_ids), (len(TRIAL_LENGTHS), max(TRIAL_LENGTHS)), generator=torch.Generator().manual_seed(0)
    )
    real = torch.arange(max(TRIAL_LENGTHS)) < torch.tensor(TRIAL_LENGTHS)[:, None]
    inputs = torch.tensor(token_ids)[draws].masked_fill(~real, pad_id)
    for index, length in enumerate(TRIAL_LENGTHS[1:], 1):
        inputs[index, length - 1] = end_id
    targets = torch.arange(len(TRIAL_LENGTHS))[:, None] % classes if classes else inputs.roll(-1, 1)
    batch = Batch(inputs, targets, real).to(network.device)
    single_losses = [
        partial(network.example_losses, batch.select_example(index)) for index in range(len(TRIAL_LENGTHS))
    ]
    last_token = token_count - 1 if token_count - 1 not in (pad_id, end_id) else token_ids[-1]
    long_batch = _make_long_batch(batch, max(longest, inputs.shape[1]), pad_id, last_token)
    try:
        check_exact_clipping(
            network.train(),
            partial(network.example_losses, batch),
            single_losses,
            partial(network.example_losses, long_batch),
        )
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = error if isinstance(error, ConfigurationError) else _UNREADABLE_MESSAGE.format(type(error).__name__)
        raise ConfigurationError(
            f"train.model: no support for private training of this {display_name}: {reason}"
        ) from None


def _make_long_batch(batch: Batch, length: int, pad_id: int, token: int) -> Batch:
    width, targets = batch.inputs.shape[1], batch.targets[:1].repeat(2, 1)
    inputs = F.pad(batch.inputs[:1], (0, length - width), value=token).repeat(2, 1)
    inputs[0, width:] = pad_id
    real = torch.ones_like(inputs, dtype=torch.bool)
    real[0, width:] = False
    if targets.shape[1] > 1:
        targets = F.pad(targets, (0, length - width), value=token)
    return Batch(inputs, targets, real)


def is_fresh_parameter(name: str, fresh_parameters: frozenset[str]) -> bool:
    """Return whether ``name`` is one of ``fresh_parameters`` or belongs to a module among them."""
    base_name = name.replace(".base_layer", "")
    return any(base_name == fresh_name or base_name.startswith(f"{fresh_name}.") for fresh_name in fresh_parameters)


# Low-rank adapters through ``peft``.


class AdapterDropout(NetworkPart):
    """Dropout of the inputs of adapter ``index``: one mask for all examples and positions of a step.

    Formal guarantees: those of :class:`redactory.training.models.network.NetworkPart`.
    """

    def __init__(self, index: int, rate: float) -> None:
        super().__init__()
        self.index, self.rate = index, rate

    def initialise(self, stream: RandomStream) -> None:
        """Nothing: it has no parameters."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop features of ``inputs`` [..., features] in a training step."""
        mask = self.draw_mask("adapters", self.index, inputs.shape[-1:], self.rate)
        return inputs if mask is None else inputs * mask.to(inputs)


def add_adapters(model: Any, settings: LoraSettings, folder_name: str) -> Any:
    """Return ``model`` with adapters and everything else frozen; ``folder_name`` is used in messages.

    Adapters go to the layers in ``settings``, or those that peft names for the model's kind, or every linear layer.
    ``ConfigurationError`` if there is none.
    """
    try:
        from peft import LoraConfig, get_peft_model
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL
    except ImportError:
        raise ConfigurationError("lora needs peft, which is not installed: pip install 'redactory[lora]'") from None
    modules: Any = list(settings.modules) or USUAL.get(model.config.model_type, "all-linear")
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha or 2 * settings.rank,
        lora_dropout=settings.dropout,
        use_rslora=settings.method == "rslora",
        use_dora=settings.method == "dora",
        target_modules=modules,
        modules_to_save=list(settings.modules_to_save) or None,
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
        bias="none",
    )
    try:
        with silence_transformers():
            adapted = get_peft_model(model, config)
    except ValueError:
        raise ConfigurationError("train.model.lora.modules: no layer of the model has one of these names") from None
    parameters = list(adapted.named_parameters(remove_duplicate=False))
    uses = Counter(id(parameter) for _, parameter in parameters)
    for name in settings.modules_to_save:
        originals = [parameter for path, parameter in parameters if f"{name}.original_module." in path]
        if not originals or any(uses[id(parameter)] > 1 for parameter in originals):
            problem = "shares its weights with another layer" if originals else "is no layer of the model"
            raise ConfigurationError(f"train.model.lora.modules_to_save: {name} {problem}; remove it")
    layers: list[Any] = [module for module in adapted.modules() if hasattr(module, "lora_dropout")]
    for index, layer in enumerate(layers if settings.dropout else ()):
        layer.lora_dropout["default"] = AdapterDropout(index, settings.dropout)
    adapted.peft_config["default"].base_model_name_or_path = folder_name
    return adapted


def has_adapters(model: Any) -> bool:
    """Whether :func:`add_adapters` made ``model``."""
    return hasattr(model, "merge_and_unload")


def save_adapters(model: Any, folder: Path) -> list[Path]:
    """Write only the adapters to ``folder`` in peft's format and return the files' paths."""
    from peft import get_peft_model_state_dict

    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    make_folder(folder)
    name = model.active_adapter
    state = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    with commit_file(weights) as temporary:
        save_file({name: value.contiguous() for name, value in state.items()}, temporary, {"format": "pt"})
    adapter_config = model.peft_config[name]
    adapter_config.task_type = "CAUSAL_LM"  # so that peft's Auto classes read it
    adapter_config.save_pretrained(folder)
    return [config, weights]


# Fresh models and models from a folder.


def make_fresh_transformer(kind: str, settings: TransformerSettings, **config: Any) -> Any:
    """Make a model of the sizes in ``settings``, without dropout; its weights are not initialised."""
    library = get_library_class("classify" if kind in CLASSIFIER_KINDS else "next-word")
    from transformers import AutoConfig

    config |= {
        "hidden_size": settings.width,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "max_position_embeddings": settings.context,
    }
    if kind != "gpt2":  # there it follows from the width
        config["intermediate_size"] = 4 * settings.width
    return disable_dropout(library.from_config(AutoConfig.for_model(kind, **config)))


def get_library_class(task: str) -> Any:
    """The class of ``transformers`` that reads a model for ``task``."""
    require_transformers()
    import transformers

    return getattr(transformers, LIBRARY_CLASSES[task])


def read_model_type(folder: Path) -> str:
    """Read the kind of the model in ``folder`` from its ``config.json``."""
    config = _read_config(folder)
    if "model_type" not in config:
        raise ConfigurationError(f"model.folder: {folder.name}/config.json has no key model_type")
    return str(config["model_type"])


def _read_config(folder: Path) -> dict[str, Any]:
    """Read the folder's ``config.json``; ``ConfigurationError`` if the weights are quantized."""
    key = "quantization_config"
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise ConfigurationError(f"model.folder: {folder.name}/config.json cannot be read")
    text_config = config.get("text_config")
    if any(part.get(key) is not None for part in (config, text_config) if isinstance(part, dict)):
        raise ConfigurationError(
            f"model.folder: {folder.name}/config.json has the key {key}: quantized weights are not "
            "supported; give the folder of the original model, or one saved dequantized"
        )
    return config


def require_task_support(folder: Path, task: str) -> None:
    """Raise ``ConfigurationError`` if ``transformers`` has no network of the folder's kind for ``task``."""
    require_transformers()
    from transformers.models.auto import modeling_auto as modeling_auto

    kind = read_model_type(folder)
    kinds_by_task = {
        "next-word": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "classify": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    }
    if kind not in kinds_by_task[task]:
        supported_tasks = [name for name, kinds in kinds_by_task.items() if kind in kinds]
        fix = f"; it can be trained with train.task: {supported_tasks[0]}" if supported_tasks else ""
        raise ConfigurationError(
            f"model.folder: {folder.name} holds a model of kind '{kind}', which {LIBRARY_CLASSES[task]} of the "
            f"installed transformers cannot read{fix}"
        )


def read_folder_model(folder: Path, model_class: Any, **config: Any) -> tuple[Any, frozenset[str]]:
    """Read the model in ``folder`` as ``model_class`` (a class of ``transformers``), without dropout.

    ``config`` replaces keys of the folder's configuration. Also returns the names of the parameters that the folder
    lacks in the needed shape; their values are arbitrary.

    ``ConfigurationError`` if the model cannot be read, reads more than text, or was fitted to labelled rows.
    """
    require_transformers()
    if (folder / "fit.json").exists():
        raise ConfigurationError(
            "model.folder: redactory fit tagger trained these weights on labelled rows; give public weights"
        )
    _read_config(folder)
    try:
        with silence_transformers():
            model, loading = model_class.from_pretrained(
                folder,
                local_files_only=True,
                dtype="float32",
                use_safetensors=True,
                ignore_mismatched_sizes=bool(config),
                output_loading_info=True,
                **config,
            )
    except Exception as error:  # a config.json can raise any error in the library
        raise ConfigurationError(
            f"model.folder: cannot read weights from {folder.name} ({type(error).__name__})"
        ) from None
    if model.config.get_text_config() is not model.config:
        raise ConfigurationError(
            f"model.folder: the model in {folder.name} reads more than text; save only its language model"
        )
    mismatched = (entry[0] for entry in loading["mismatched_keys"])
    return disable_dropout(model), frozenset({*loading["missing_keys"], *mismatched})


def make_folder_architecture(folder: Path, classes: tuple[str, ...]) -> Any:
    """Make the network that the folder's ``config.json`` describes, for ``classes`` if any; no weights are read."""
    task = "classify" if classes else "next-word"
    require_task_support(folder, task)
    from transformers import AutoConfig

    try:
        with silence_transformers():
            config = AutoConfig.from_pretrained(folder, local_files_only=True, num_labels=len(classes))
            return get_library_class(task).from_config(config)
    except Exception as error:  # a config.json can raise any error in the library
        raise ConfigurationError(
            f"model.folder: cannot read {folder.name}/config.json ({type(error).__name__})"
        ) from None


def disable_dropout(model: Any) -> Any:
    """Set every dropout and jitter to zero, in the model's modules and its configuration."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and _is_dropout_key(name):
                setattr(module, name, 0.0)
    for key, value in model.config.to_dict().items():
        if isinstance(value, float) and _is_dropout_key(key):
            setattr(model.config, key, 0.0)
    return model


def _is_dropout_key(name: str) -> bool:
    return "drop" in name or "jitter" in name


def extend_vocabulary(model: Any, size: int) -> None:
    """Add rows for new tokens; each is the mean of the existing rows, which is public."""
    old_size = model.get_input_embeddings().weight.shape[0]
    if size <= old_size:
        return
    model.resize_token_embeddings(size, mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            for tensor in () if layer is None else (layer.weight, getattr(layer, "bias", None)):
                if tensor is not None:
                    tensor[old_size:] = tensor[:old_size].mean(0)
