"""The section ``train``: every number here is public; none is computed from private data."""

from __future__ import annotations

import datetime
import importlib
import json
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_core import to_jsonable_python

from redactory.foundation.errors import ConfigurationError, join_words
from redactory.foundation.settings import FileSettings, Settings
from redactory.training.mechanisms.mechanism import MAX_CLIP_NORM, MIN_CLIP_NORM
from redactory.training.models.settings import CLASSIFIER_KINDS, LstmSettings, ModelSettings
from redactory.training.unit_settings import BoundingSettings, ChatSettings, FederatedSettings, Task, UnitSettings


def _require_known_device(value: Any) -> Any:
    if isinstance(value, str) and value.partition(":")[0] in ("mps", "gpu", "cuda") and value != "cuda":
        raise ValueError(
            "training runs on 'cpu', or on 'cuda' with one card, which CUDA_VISIBLE_DEVICES can choose: set "
            "one of them, or 'auto' for what is available"
        )
    return value


Device = Annotated[Literal["cpu", "cuda", "auto"], BeforeValidator(_require_known_device)]


Confidence = Annotated[float, Field(ge=0.5, lt=1)]
"""At least 0.5: otherwise an upper bound would be below the observed share."""


class StratifiedSample(FileSettings):
    """A stratified sample of the run's examples that was labelled, with its own upper bounds.

    If public examples are over-sampled, the share of misses among the labels is no bound: use those that
    ``redactory label score`` combined over the strata (``docs/how-to/audit.md``).
    """

    name: str = Field(description="The sample's name.")
    date: datetime.date = Field(description="When its labels were scored.")
    texts: PositiveInt = Field(description="Number of distinct labelled texts.")
    gamma_upper: Annotated[float, Field(ge=0, le=1)] = Field(description="Upper bound of γ.")
    delta_2_upper: Annotated[float, Field(ge=0, le=1)] = Field(description="Upper bound of δ₂.")


class RecallMeasurement(FileSettings):
    """How often the policies missed a labelled secret (``docs/guarantees.md``, "Coverage failure").

    The labels must be drawn i.i.d. from the secrets of this corpus, or be those of a stratified sample with its own
    bounds, and must not have been used to tune a policy. Whoever provides them vouches for that. The strict policy
    missed a secret unless perfect masking would have produced the same masked example. Both policies missed it if any
    part of it became public.
    """

    @model_validator(mode="before")
    @classmethod
    def _load_file(cls, value: Any) -> Any:
        """Extract these fields from a measurement record, which has more."""
        value = super()._load_file(value)  # type: ignore[operator]
        if not (isinstance(value, dict) and isinstance(value.get("misses"), dict)):
            return value
        misses = value["misses"]
        try:
            return {
                "labels": misses["n"],
                "missed_by_strict": misses["gamma"]["misses"],
                "missed_by_both": misses["delta_2"]["misses"],
                "confidence": misses["confidence"],
                "date": value.get("date"),
                "sample": value.get("sample"),
                "public_labels": value.get("public_labels", ()),
            }
        except (KeyError, TypeError):
            raise ValueError("it is not a measurement record of this version") from None

    labels: PositiveInt = Field(description="Number of labelled secrets that were checked.")
    missed_by_strict: int = Field(ge=0, description="How many of those the strict policy π missed.")
    missed_by_both: int = Field(ge=0, description="How many of those are unmasked in a public example.")
    confidence: Confidence = Field(0.95, description="One-sided confidence of each upper bound.")
    date: datetime.date | None = Field(None, description="Date of the measurement.")
    sample: StratifiedSample | None = Field(
        None, description="The stratified sample that was labelled; its bounds replace those of the counts."
    )

    public_labels: tuple[str, ...] = Field(
        (),
        description="detect.public_labels of the measured run: spans with one of them were not secrets. A "
        "measurement with other public labels is refused.",
    )

    def require_public_labels(self, labels: Iterable[str]) -> None:
        """Raise ``ConfigurationError`` unless the misses were measured with ``labels`` as the public labels."""
        # an LDP service reads these settings without the detector dependencies
        from redactory.detectors.settings import get_kinds

        labels = tuple(labels)
        if get_kinds(labels) != get_kinds(self.public_labels):
            run_labels, measured_labels = (join_words(names or ["none"]) for names in (labels, self.public_labels))
            raise ConfigurationError(
                f"train.detector_recall_file: the misses were measured with other public labels ({measured_labels}) "
                f"than the run's ({run_labels}), so other spans counted as secrets; measure again (redactory label "
                "score, redactory run)"
            )

    @model_validator(mode="after")
    def _require_consistent_counts(self) -> Self:
        if not self.missed_by_both <= self.missed_by_strict <= self.labels:
            raise ValueError("misses must satisfy missed_by_both <= missed_by_strict <= labels")
        if self.sample is None:
            return self
        gamma, delta_2 = self.sample.gamma_upper, self.sample.delta_2_upper
        if gamma < delta_2 or (self.missed_by_strict and not gamma) or (self.missed_by_both and not delta_2):
            raise ValueError("sample: a bound is below what was observed, or gamma_upper below delta_2_upper")
        return self


TRAINERS: dict[str, Any] = importlib.import_module("redactory.training.trainers").TRAINERS
"""Every trainer by name; imported dynamically because the trainers read settings too, as does the recipe."""
if TYPE_CHECKING:
    TrainerName = str
else:
    TrainerName = Literal[tuple(TRAINERS)]
Rate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]
ClipNorm = Annotated[float, Field(ge=MIN_CLIP_NORM, le=MAX_CLIP_NORM)]


ENCODER_SOURCE = "encoder"
VOCABULARY_SOURCES = ("public", "public_text", "shipped", "file", "folder", "model.folder", ENCODER_SOURCE)
"""Possible sources of a vocabulary; only the first is part of the corpus."""


class BudgetSettings(Settings):
    """The common privacy budget of all models of one corpus (``docs/how-to/guarantee.md``)."""

    path: Path = Field(description="The record of spending; created by the first training that uses it.")
    epsilon: PositiveFloat = Field(description="Maximum epsilon of all trainings together (substitution).")
    delta: Probability = Field(1e-5, description="Delta of that epsilon.")

    def to_record(self) -> dict[str, Any]:
        """Return the file's resolved path, the limit and delta, for the manifest of a model under this budget."""
        path = self.path.parent.resolve() / self.path.name  # resolved the way the file is opened
        return {"path": str(path), "epsilon": self.epsilon, "delta": self.delta}


class TrainSettings(Settings):
    """Settings of one training; sampling rate, step counts and normaliser are constants."""

    trainer: TrainerName = Field(
        "crt", description="; ".join(f"{trainer.name}: {trainer.description}" for trainer in TRAINERS.values()) + "."
    )
    recipe: Literal["auto", "fixed"] = Field(
        "auto",
        description="auto: keys that are not set are chosen from the other settings, never from the corpus (list: "
        "docs/how-to/train.md); fixed: they have the values in this table.",
    )
    max_examples: PositiveInt | None = Field(
        None,
        description="Maximum number of examples for noisy steps, a public bound. More are refused, unless their number "
        "is secret. The recipe then chooses expected_batch_size, and with many examples fewer passes.",
    )
    task: Task = Field("next-word", description="What is learned: the next word, or the class of each example.")
    classes: tuple[str, ...] = Field(
        (), description="task classify: the names of the classes, a public list; a row's class is in input.label."
    )
    units: UnitSettings = Field(UnitSettings(), description="UeDP: which users or entities are protected, and how.")
    bounding: BoundingSettings = Field(
        BoundingSettings(), description="uedp-bounded: how many examples of a privacy unit are trained on."
    )
    federated: FederatedSettings = Field(
        FederatedSettings(), description="uedp-alg1 and user-level: how users are sampled."
    )
    tokenizer: Literal["auto", "public", "public_text", "shipped"] | Path = Field(
        "auto",
        description="Source of the vocabulary: public, the words of the public split; public_text; shipped, "
        "the list of common English words in the package; or a tokenizer's file (tokenizer.json) or folder, "
        "which must be public. auto: public_text if set, otherwise the public split if the trainer may use "
        "it, completed by the shipped list; for a trainer that protects users and entities only that list. A "
        "pretrained model.folder has its vocabulary.",
    )
    public_text: Path | None = Field(
        None,
        description="Text that is not part of the corpus, donated or otherwise public: JSON lines with the "
        "column input.text, or plain lines, one example each. It determines the vocabulary.",
    )
    pretraining_epochs: NonNegativeInt = Field(
        0,
        description="Number of noise-free passes over public_text before the first step on the corpus. Recipe: 10 for "
        "fresh language models, 3 for a folder's.",
    )
    held_out: float | Path | None = Field(
        None,
        description="Public text that no step learns from: the loss on it is measured after every epoch. A "
        "share (0.05) of the public split, or of public_text for trainers without the public split; or a "
        "file like public_text's. Recipe: 0.05 for crt and crt-drop, if that is at least 20 texts; the weights "
        "after the epoch with the least loss are saved, and a classifier's probabilities calibrated on these texts. No "
        "noisy step is left out.",
    )
    name: str | None = Field(None, description="The model's folder below models/; default: the trainer's name.")
    model: ModelSettings = Field(LstmSettings(), description="The network; default: lstm, or encoder for classify.")
    prefix: Literal["role", "class"] | None = Field(
        None,
        description="A text is read as 'role: text' (crt, crt-drop and redact-only, of conversations), with "
        "class as 'class: text' (of a corpus with input.label). No guarantee hides a role.",
    )
    chat: ChatSettings | None = Field(
        None,
        description="Conversations (input.text: messages) with their roles in a chat template; {} for the defaults.",
    )
    epochs: PositiveInt = Field(
        3, description="Number of epochs; each has ceil(1 / sampling_rate) noisy steps. Recipe: 20 for classifiers."
    )

    epsilon: PositiveFloat = Field(8.0, description="Target epsilon (substitution) that noise is calibrated to.")
    delta: Probability = Field(1e-5, description="Delta at which every epsilon is stated.")
    noise_multiplier: PositiveFloat | None = Field(
        None, description="Noise standard deviation over clip_norm; set it instead of calibrating to epsilon."
    )
    sampling_rate: Rate = Field(
        0.01,
        description="Probability q of each example in each noisy step: chosen, never a count of private text. "
        "Recipe: 0.1 for classifiers.",
    )
    expected_batch_size: PositiveFloat = Field(
        256.0, description="The public constant that divides the noisy sum; never the realised batch size."
    )
    clip_norm: ClipNorm = Field(1.0, description="L2 bound C of one example's gradient.")
    noise: Literal["float", "lattice"] = Field(
        "lattice",
        description="How noise is drawn: in double precision, or as integers, which floating point cannot "
        "reveal (slower).",
    )

    public_batch_size: PositiveInt = Field(32, description="Number of examples in a noise-free step.")
    min_public_steps: PositiveInt = Field(
        100, description="Minimum noise-free steps per epoch: a small split is passed over again."
    )
    public_pretraining_epochs: NonNegativeInt = Field(
        0, description="crt: passes over public/ without noise before the first epoch."
    )
    public_weighting: Literal["unique", "count"] = Field(
        "unique",
        description="crt, a pass over public/: each distinct text once, as published, or as often as it "
        "occurred before deduplication. Public examples are equal in both worlds of the guarantee, so no "
        "epsilon changes; but a secret that both policies missed is then seen as often as it occurred.",
    )
    public_share: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="crt, an epoch's steps: first all noise-free ones, then all noisy ones, as published; "
        "or, with a number, in random order, with this share of them noise-free, a public constant.",
    )
    learning_rate: PositiveFloat = Field(2e-3, description="Learning rate of noise-free steps.")
    dp_learning_rate: PositiveFloat = Field(
        1e-2, description="Learning rate of noisy steps; recipe: by network (docs/how-to/train.md)."
    )
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="linear, cosine: learning rates decay to zero over the training, by step number. Recipe: "
        "linear for a folder's networks and for classifiers, but those on an encoder.",
    )
    warm_up: Share = Field(
        0.0, description="Warm-up: the first share of the steps of a kind, in which their learning rate rises."
    )
    optimizer: Literal["adam", "sgd"] = Field(
        "adam", description="Optimizer of both kinds of step, each with a separate state."
    )
    weight_decay: NonNegativeFloat = Field(
        0.0, description="Weight decay (AdamW), times the learning rate, in every step."
    )

    max_tokens: PositiveInt = Field(
        128, description="Tokens of an example beyond this number are not trained on; at most model.context."
    )
    vocabulary_size: PositiveInt = Field(
        4_000,
        description="Maximum number of word pieces in the vocabulary; a word of a text counts from its "
        "second occurrence on.",
    )

    budget: BudgetSettings | None = Field(
        None, description="The budget that this training must stay within; otherwise it is refused."
    )
    detector_recall_file: RecallMeasurement | None = Field(
        None,
        description="The misses of the two policies: the JSON record that evaluate detection or label score "
        "wrote; default: the run's measurement.",
    )
    group_sizes: tuple[Annotated[int, Field(ge=2)], ...] = Field(
        (2, 4, 8), description="Numbers of examples that group epsilons are computed for."
    )
    seed: int | None = Field(
        None, description="Test mode: random draws repeat, and whoever knows the seed can subtract the noise."
    )
    threads: PositiveInt = Field(2, description="Number of CPU threads; results are bit-equal for equal numbers.")
    device: Device = Field(
        "cpu",
        description="Where to compute; a replayed step is bit-equal on cpu only. auto: on cuda if torch "
        "finds a GPU, otherwise on cpu; ledger and guarantee record which.",
    )
    precision: Literal["float32", "bf16"] = Field(
        "float32",
        description="bf16: noise-free steps multiply in bfloat16, under autocast. Weights and noisy steps "
        "stay in single precision: with coarser rounding an example would influence others' gradients.",
    )
    max_physical_batch_tokens: PositiveInt = Field(
        4096,
        description="Tokens (with padding) held in memory at once in a noisy step; changes no result beyond rounding.",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _fill_recipe(cls, value: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Use the package's encoder for task classify by default, and the recipe's values of keys that are not set.

        These values count as unset, so that a command that changes the model gets the values of that model.
        """
        if not isinstance(value, dict):
            return validate(value)
        defaults: dict[str, Any] = {}
        if value.get("task") == "classify" and value.get("trainer") != "sdp":
            defaults["model"] = {"kind": "encoder"}
        settings = validate({**defaults, **value})
        if settings.recipe == "auto":
            chosen = settings.choose_values()
            sizes = {key.removeprefix("model."): chosen.pop(key) for key in [*chosen] if key.startswith("model.")}
            defaults |= chosen
            model = value.get("model")
            if sizes and isinstance(model, dict):
                settings = validate({**defaults, **value, "model": {**sizes, **model}})
                settings.model.__pydantic_fields_set__.difference_update(sizes.keys() - model.keys())
            else:
                settings = validate({**defaults, **value})
        settings.__pydantic_fields_set__.difference_update(defaults.keys() - value.keys())
        return settings

    def choose_values(self) -> dict[str, Any]:
        """Return the values that the recipe has for keys of this section, whether or not they are set."""
        recipe = importlib.import_module("redactory.training.recipe")
        chosen: dict[str, Any] = recipe.choose_values(self, TRAINERS[self.trainer])
        return chosen

    def describe_choices(self) -> list[str]:
        """Return the keys that have the recipe's value, each with it; none with ``recipe: fixed``."""
        chosen = self.choose_values() if self.recipe == "auto" else {}
        return [f"{key} {value}" for key, value in chosen.items() if attrgetter(key)(self) == value]

    @property
    def keeps_best_weights(self) -> bool:
        """Whether the weights with the least loss on held-out public text are saved, not those after the last step."""
        return self.recipe == "auto" and self.held_out is not None

    def is_chosen(self, key: str) -> bool:
        """Whether the recipe may choose the value of ``key``: it is not set."""
        return self.recipe == "auto" and key not in self.model_fields_set

    @model_validator(mode="after")
    def _require_compatible_settings(self) -> Self:
        if problem := next(self._find_problems(), None) or TRAINERS[self.trainer].find_settings_problem(self):
            raise ValueError(problem)
        return self

    def _find_problems(self) -> Iterator[str]:
        """Yield the keys that do not suit each other, whatever the trainer refuses itself; each with a fix."""
        trainer, model, tokenizer = TRAINERS[self.trainer], self.model, self.tokenizer
        is_classifier, folder = self.task == "classify", getattr(model, "folder", None)
        context = None if folder else getattr(model, "context", None)
        if not is_classifier and context is not None and self.max_tokens > context:
            yield (
                f"max_tokens: the model reads {context} tokens, but max_tokens is {self.max_tokens}: lower "
                "it, or raise model.context"
            )
        if self.prefix == "role" and not set(trainer.folder_names) <= {"public", "private"}:
            yield "train.prefix: only crt, crt-drop and redact-only read roles: use one of them"
        if self.prefix == "class" and (trainer.has_units or is_classifier):
            yield "train.prefix: class needs a model that predicts words, and secrets or examples to protect"
        if self.chat is not None:
            if is_classifier or self.prefix:
                yield f"train.chat: a template writes the roles; remove {'prefix' if self.prefix else 'task'}"
            if self.public_weighting == "count":
                yield "train.public_weighting: the occurrences of conversations are not counted; remove it"
            if not trainer.can_chat:
                yield f"train.chat: conversations are trained by {_name_trainers('can_chat')}; use one of them"
            if trainer.has_units and (self.chat.example == "turn" or self.units.duplicates == "merge"):
                yield (
                    f"train.chat: {self.trainer} takes whole conversations, each of one user: set example to "
                    "conversation, and units.duplicates to keep"
                )
        if is_classifier and len(self.classes) < 2:
            yield "train.classes: task classify needs the names of at least two classes"
        if len(set(self.classes)) != len(self.classes) or "" in self.classes:
            yield "train.classes: a name is empty or occurs twice"
        if self.classes and not is_classifier:
            yield "train.classes: only for task classify"
        if is_classifier and model.kind in ("gpt2", "llama"):
            yield (
                f"train.model.kind: {model.kind} predicts words; task classify needs encoder, bag, lstm, awd-lstm, "
                "bilstm, bert or a folder"
            )
        if not is_classifier and model.kind in CLASSIFIER_KINDS:
            yield f"train.model.kind: {model.kind} predicts classes; set task to classify, or use another kind"
        if is_classifier and not trainer.can_classify:
            yield f"train.task: classify is trained by {_name_trainers('can_classify')}"
        if self.public_text is None and (self.pretraining_epochs or tokenizer == "public_text"):
            reason = "pretraining_epochs needs it" if self.pretraining_epochs else "train.tokenizer names it"
            yield f"train.public_text: {reason}, but it is not set"
        if tokenizer != "auto" and (model.kind == "encoder" or folder is not None):
            yield "train.tokenizer: a pretrained model has its tokenizer: remove one of the two"
        if trainer.hides_units and tokenizer == "public":
            yield (
                f"train.tokenizer: {self.trainer} protects users and entities, so not even the vocabulary "
                "may come from the corpus: remove it, or give other public text (train.public_text)"
            )
        if isinstance(self.held_out, float):
            if not 0.0 < self.held_out <= 0.5:
                yield "train.held_out: expected a share above 0 and at most 0.5, or a file of public text"
            if trainer.noise_free_folders[:1] != ("public",) and self.public_text is None:
                yield f"train.held_out: {self.trainer} does not use the public split: give a file of public text"
        if self.budget is not None and trainer.hides_units and self.units.file_keys:
            yield (
                f"train.budget: the contents of units.{self.units.file_keys[0]} are not recorded, so different "
                "trainings might protect different units: remove the budget or the list"
            )
        if self.precision == "bf16" and not trainer.noise_free_folders and not self.pretraining_epochs:
            yield (
                f"train.precision: bf16 is for noise-free steps, but {self.trainer} has none: remove it, or "
                "set public_text and pretraining_epochs"
            )

    @property
    def vocabulary_sources(self) -> tuple[str, ...]:
        """The sources of the vocabulary: a pretrained folder's tokenizer, otherwise the value of ``tokenizer``.

        ``auto`` means ``public_text`` if set, otherwise ``public/`` if the trainer may read it, each completed by the
        shipped list; otherwise that list alone.
        """
        tokenizer = self.tokenizer
        if self.model.kind == "encoder":
            return (ENCODER_SOURCE,)
        if getattr(self.model, "folder", None) is not None:
            return ("model.folder",)
        if isinstance(tokenizer, Path):
            return ("folder" if tokenizer.is_dir() else "file",)
        if tokenizer != "auto":
            return (tokenizer,)
        if self.public_text is not None:
            return ("public_text", "shipped")
        return ("shipped",) if TRAINERS[self.trainer].hides_units else ("public", "shipped")

    @property
    def example_format(self) -> Literal["texts", "roles", "class", "turn", "conversation"]:
        """How the run's examples are read."""
        if self.chat is not None:
            return self.chat.example
        return "class" if self.prefix == "class" else "roles" if self.prefix else "texts"

    @property
    def has_whole_conversations(self) -> bool:
        """Whether an example is a whole conversation."""
        return self.example_format == "conversation"

    @property
    def model_name(self) -> str:
        """The model folder's name: ``name``, or the trainer's."""
        return self.name or self.trainer


def settings_to_json(settings: TrainSettings) -> dict[str, Any]:
    """Convert ``settings`` to JSON with names for paths, without the budget."""

    def convert(value: Any) -> Any:
        return value.name if isinstance(value, Path) else to_jsonable_python(value)

    result: dict[str, Any] = json.loads(json.dumps(settings.model_dump(exclude={"budget"}), default=convert))
    return result


def _name_trainers(ability: str) -> str:
    return ", ".join(name for name, trainer in TRAINERS.items() if getattr(trainer, ability))
