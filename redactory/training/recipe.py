"""The recipe: settings of a training that are chosen from its other settings, never from the corpus.

Every choice is a function of the task, the trainer, the network and declared public numbers, so it costs no privacy.
The constants of fresh classifiers come from a grid over seven public corpora (``docs/results/recipe.json``), without AG
News and SST-2; those of language models from the trainings named in ``docs/how-to/train.md``, "The recipe".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redactory.training.models.settings import CLASSIFIER_KINDS

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings
    from redactory.training.trainers.base import Trainer

_STEPS, _MIN_PASSES, _MAX_PASSES, _MAX_GRADIENTS = 200, 3, 20, 400_000
"""A classifier's noisy steps, its passes over the examples, and its example gradients if their number is known."""
_CLASSIFIER_RATES = {"encoder": 0.06, "bag": 0.1, "folder": 5e-4}
"""Learning rates of noisy steps of classifiers, by ``model.kind``."""
_OTHER_CLASSIFIER_RATE = 0.01
_FOLDER_RATES = {"learning_rate": 1e-4, "dp_learning_rate": 5e-4}
"""Learning rates of pretrained networks."""
_PRETRAINING = {"pretraining_epochs": 3, "dp_learning_rate": 0.01}
"""Passes over public text, and the learning rate of noisy steps after them."""
_HELD_OUT_SHARE = 0.05


def choose_settings(settings: TrainSettings, trainer: Trainer) -> dict[str, Any]:
    """Return what ``recipe: auto`` chooses for ``settings``, by key, whether or not the key is set."""
    kind, passes = settings.model.kind, _choose_passes(settings.max_examples)
    if kind != "encoder" and (trainer.noised_folder is None or trainer.samples_users):
        return {}
    chosen: dict[str, Any] = {}
    if settings.task == "classify":
        chosen = {"sampling_rate": passes / _STEPS, "epochs": passes}
        chosen["dp_learning_rate"] = _CLASSIFIER_RATES.get(kind, _OTHER_CLASSIFIER_RATE)
        chosen |= {"clip_norm": 0.5} if kind == "encoder" else {"learning_rate_schedule": "linear"}
    elif kind == "folder":
        chosen = {**_FOLDER_RATES, "learning_rate_schedule": "linear"}
    else:
        chosen = {"learning_rate_schedule": "linear"}
        if settings.public_text is not None:
            chosen |= _PRETRAINING
    if trainer.noise_free_folders[:1] == ("public",) and kind not in CLASSIFIER_KINDS:
        chosen["held_out"] = _HELD_OUT_SHARE
    if settings.max_examples is not None:
        rate = settings.sampling_rate if "sampling_rate" in settings.model_fields_set else chosen.get("sampling_rate")
        chosen["expected_batch_size"] = settings.max_examples * (rate or settings.sampling_rate)
    return chosen


def _choose_passes(max_examples: int | None) -> int:
    """Choose the passes over at most ``max_examples`` examples: fewer above 20,000, where a step has more of them."""
    if max_examples is None:
        return _MAX_PASSES
    return max(_MIN_PASSES, min(_MAX_PASSES, _MAX_GRADIENTS // max_examples))


def list_choices(settings: TrainSettings, trainer: Trainer) -> dict[str, Any]:
    """Return the keys of ``settings`` that have the value of ``recipe: auto``; none if it is off."""
    chosen = choose_settings(settings, trainer) if settings.recipe == "auto" else {}
    return {key: value for key, value in chosen.items() if getattr(settings, key) == value}


def describe_choices(settings: TrainSettings, trainer: Trainer) -> list[str]:
    """Return the choices of ``recipe: auto``, as key and value."""
    return [f"{key} {value}" for key, value in list_choices(settings, trainer).items()]
