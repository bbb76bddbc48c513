"""The recipe: settings of a training that are chosen from its other settings, never from the corpus.

Every choice is a function of the task, the trainer, the network and declared public numbers, so it costs no privacy.
The constants of fresh networks come from grids over public corpora (``docs/results/recipe.json`` and
``recipe_language.json``), without AG News and SST-2; those of pretrained ones from ``docs/how-to/train.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class RecipeInputs:
    """What the recipe reads: ``kind`` is ``model.kind``, and ``sampling_rate`` is None unless it is set.

    ``epsilon`` is the target, infinite if the noise is set.

    ``has_noisy_steps``: the trainer takes noisy steps on examples; ``learns_public_split``: and others on ``public/``.
    """

    task: str
    kind: str
    has_noisy_steps: bool
    learns_public_split: bool
    has_public_text: bool
    epsilon: float
    max_examples: int | None
    sampling_rate: float | None
    default_sampling_rate: float


def choose_values(inputs: RecipeInputs) -> dict[str, Any]:
    """Return the values that ``recipe: auto`` has for keys of the section ``train``, also below ``model``."""
    kind, passes = inputs.kind, _choose_passes(inputs.max_examples)
    if kind != "encoder" and not inputs.has_noisy_steps:
        return {}
    fades = kind == "folder" or (inputs.task == "classify" and kind != "encoder")
    chosen: dict[str, Any] = {"learning_rate_schedule": "linear"} if fades else {}
    if inputs.task == "classify":
        chosen |= {"sampling_rate": passes / _STEPS, "epochs": passes}
        chosen["dp_learning_rate"] = _CLASSIFIER_RATES.get(kind, _OTHER_CLASSIFIER_RATE)
        chosen |= {"clip_norm": 0.5} if kind == "encoder" else {}
        chosen |= _LSTM_CLASSIFIER_SIZES if kind == "lstm" else {}
    elif kind == "folder":
        chosen |= _FOLDER_RATES | ({"pretraining_epochs": _FOLDER_PASSES} if inputs.has_public_text else {})
    elif inputs.has_public_text:
        rate = _SMALL_EPSILON_RATE if inputs.epsilon < _SMALL_EPSILON else _PRETRAINED_RATE
        chosen |= {"pretraining_epochs": _PRETRAINING_PASSES, "dp_learning_rate": rate}
    if inputs.learns_public_split:
        chosen["held_out"] = _HELD_OUT_SHARE
    if inputs.max_examples is not None:
        rate = inputs.sampling_rate or chosen.get("sampling_rate", inputs.default_sampling_rate)
        chosen["expected_batch_size"] = inputs.max_examples * rate
    return chosen


def _choose_passes(max_examples: int | None) -> int:
    """Choose the passes over at most ``max_examples`` examples: fewer above 20,000, where a step has more of them."""
    if max_examples is None:
        return _MAX_PASSES
    return max(_MIN_PASSES, min(_MAX_PASSES, _MAX_GRADIENTS // max_examples))
