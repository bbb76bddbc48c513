"""The recipe: settings of a training that are chosen from its other settings, never from the corpus.

Every choice is a function of the task, the trainer, the network and declared public numbers, so it costs no privacy.
The constants of fresh networks come from grids over public corpora (``docs/results/recipe.json`` and
``recipe_language.json``), without AG News and SST-2; those of pretrained ones from ``docs/how-to/train.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings
    from redactory.training.trainers import Trainer

_STEPS, _MIN_PASSES, _MAX_PASSES, _MAX_GRADIENTS = 200, 3, 20, 400_000
"""A classifier's noisy steps, its passes over the examples, and its example gradients if their number is known."""
_CLASSIFIER_RATES = {"encoder": 0.06, "bag": 0.1, "lstm": 0.015, "folder": 5e-4}
"""Learning rates of noisy steps of classifiers, by ``model.kind``."""
_OTHER_CLASSIFIER_RATE = 0.01
_LSTM_CLASSIFIER_SIZES = {"model.embedding_size": 64, "model.hidden_size": 64}
"""A third of the language model's: noise reaches every parameter."""
_FOLDER_RATES = {"learning_rate": 1e-4, "dp_learning_rate": 5e-4}
"""Learning rates of pretrained networks."""
_FOLDER_PASSES = 3
"""Passes of a pretrained network over public text: what transformers' Trainer does by default, not measured here."""
_PRETRAINING_PASSES, _PRETRAINED_RATE = 10, 0.01
"""Passes over public text, and the learning rate of noisy steps after them."""
_SMALL_EPSILON, _SMALL_EPSILON_RATE = 5.0, 0.003
"""The learning rate of these steps for a target epsilon below the first."""
_HELD_OUT_SHARE = 0.05


def choose_values(settings: TrainSettings, trainer: Trainer) -> dict[str, Any]:
    """Return the values that ``recipe: auto`` has for keys of the section ``train``, also below ``model``."""
    kind, max_examples, has_public_text = settings.model.kind, settings.max_examples, settings.public_text is not None
    if kind != "encoder" and (trainer.noised_folder is None or trainer.samples_users):
        return {}
    is_classifier, passes = settings.task == "classify", _choose_passes(max_examples)
    fades = kind == "folder" or (is_classifier and kind != "encoder")
    chosen: dict[str, Any] = {"learning_rate_schedule": "linear"} if fades else {}
    if is_classifier:
        chosen |= {"sampling_rate": passes / _STEPS, "epochs": passes}
        chosen["dp_learning_rate"] = _CLASSIFIER_RATES.get(kind, _OTHER_CLASSIFIER_RATE)
        chosen |= {"clip_norm": 0.5} if kind == "encoder" else {}
        chosen |= _LSTM_CLASSIFIER_SIZES if kind == "lstm" else {}
    elif kind == "folder":
        chosen |= _FOLDER_RATES | ({"pretraining_epochs": _FOLDER_PASSES} if has_public_text else {})
    elif has_public_text:
        is_small = settings.noise_multiplier is None and settings.epsilon < _SMALL_EPSILON
        rate = _SMALL_EPSILON_RATE if is_small else _PRETRAINED_RATE
        chosen |= {"pretraining_epochs": _PRETRAINING_PASSES, "dp_learning_rate": rate}
    if trainer.noise_free_folders[:1] == ("public",):
        chosen["held_out"] = _HELD_OUT_SHARE
    if max_examples is not None:
        rate = settings.sampling_rate
        if "sampling_rate" not in settings.model_fields_set:
            rate = chosen.get("sampling_rate", rate)
        chosen["expected_batch_size"] = max_examples * rate
    return chosen


def _choose_passes(max_examples: int | None) -> int:
    """Choose the passes over at most ``max_examples`` examples: fewer above 20,000, where a step has more of them."""
    if max_examples is None:
        return _MAX_PASSES
    return max(_MIN_PASSES, min(_MAX_PASSES, _MAX_GRADIENTS // max_examples))
