"""Generate: texts that a trained model writes, with its guarantee card read along."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.apply import opened, promise
from redactory.pipelines.evaluations.accuracy import CLASSIFY, task_of
from redactory.pipelines.models import require_training_packages
from redactory.redaction import read_manifest

_SEED_BITS = 32


def generate(
    model: str | Path,
    prompts: Sequence[str] = ("",),
    *,
    samples: int = 1,
    tokens: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """``samples`` texts after each of ``prompts`` by the language model in folder ``model``.

    ``model`` is ``RUN/models/NAME`` or a copy of it.  A text has at most ``tokens`` tokens, and ends where
    the model ends it.  Each token is drawn from the ``top_k`` likeliest (all if None) with probabilities
    proportional to p^(1/``temperature``); temperature 0 takes the likeliest.  Without ``seed`` one is drawn;
    the same arguments with the same seed give the same texts on one machine.

    Returns {model, guarantee, seed, texts}: for each prompt a list of ``samples`` texts, the prompt not
    repeated.  ``guarantee`` is that of :func:`redactory.pipelines.apply.apply`.  What is written may be text
    that the model was trained on.  Raises what ``apply`` raises for a folder that is none, or not the sealed
    one, and ``ConfigurationError`` for a classifier and for arguments out of range.
    """
    in_range = samples >= 1 and tokens >= 1 and 0.0 <= temperature < math.inf
    if not prompts or not in_range or (top_k is not None and top_k < 1):
        raise ConfigurationError(
            "generate: give at least one prompt, samples, tokens and top-k of at least 1, and a temperature "
            "that is a number and not below 0"
        )
    folder = opened(Path(model))
    if task_of(read_manifest(folder)) == CLASSIFY:
        raise ConfigurationError(
            f"generate: {folder.root.name} tells classes and writes nothing; ask it with redactory apply"
        )
    require_training_packages()
    from redactory.evaluation.generation import generate as written
    from redactory.training import load_model

    number = secrets.randbits(_SEED_BITS) if seed is None else seed
    count = samples * len(prompts)
    texts = written(load_model(folder), count, tokens, temperature, top_k, number, prompts, progress)
    return {
        "model": folder.root.name,
        "guarantee": promise(read_json(folder.guarantee)),
        "seed": number,
        "texts": [texts[place :: len(prompts)] for place in range(len(prompts))],
    }
