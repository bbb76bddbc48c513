"""Apply: use a trained model on texts, its guarantee card read along (the patent's application manager)."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.evaluations.model import CLASSIFY, task_of
from redactory.pipelines.models import require_training_packages
from redactory.redaction import ModelFolder, broken_files, is_finished, read_manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from redactory.training import LanguageModel
    from redactory.training.tokenizer import TextCodec


Task = Literal["next-word", "classify"]
FORMAT = "redactory-model/"
END = "<END>"
"""How the end of a text is said."""
_UNSAID = ""
_PROMISE = (
    "trainer",
    "holds",
    "holds_reason",
    "unit",
    "relation",
    "relation_meaning",
    "epsilon",
    "delta",
)


def apply(
    model: str | Path, texts: Sequence[str], *, task: Task | None = None, top: int = 5
) -> dict[str, Any]:
    """What the model in folder ``model`` (``RUN/models/NAME``, or a copy of it) says of each of ``texts``.

    ``task`` is the model's own, and is checked where it is given.  Next word: the ``top`` likeliest tokens
    after the text, ``{"token", "probability"}`` each, the likeliest first; a token is a word with the space
    before it, or a piece of one, ``<END>`` the end of the text; an octet that is no text by itself reads
    ``\\xe2``.  Classify: the ``top`` likeliest classes, ``{"class", "probability"}``.

    Returns {model, task, guarantee, results}: a list of these for each text, in the order of ``texts``,
    which are not repeated.  ``guarantee`` is the promise of the model's card: {trainer, holds,
    holds_reason, unit, relation, relation_meaning, epsilon, delta, reason}, ``reason`` why there is no
    epsilon.  Raises ``RunStateError`` where the folder is no finished model, ``CheckFailed`` where a file
    of it is not the one that was sealed, so that the card would be that of another model.
    """
    if top < 1:
        raise ConfigurationError("top: at least one answer is needed")
    folder = opened(Path(model))
    own = task_of(read_manifest(folder))
    if task is not None and task != own:
        raise ConfigurationError(f"task: {folder.root.name} was trained for {own}, not for {task}")
    require_training_packages()
    say = _classes if own == CLASSIFY else _next_words
    return {
        "model": folder.root.name,
        "task": own,
        "guarantee": promise(read_json(folder.guarantee)),
        "results": list(say(folder, texts, top)) if texts else [],
    }


def promise(card: dict[str, Any]) -> dict[str, Any]:
    """Of a guarantee card what must stand beside anything that the model says."""
    told = {key: card.get(key) for key in _PROMISE}
    reason = card.get("reasons", {}).get("epsilon") if card.get("epsilon") is None else None
    return {**told, "reason": reason or (None if card.get("holds") else card.get("holds_reason"))}


def opened(root: Path) -> ModelFolder:
    """The finished model in ``root``, each file the one that was sealed; else what :func:`apply` raises."""
    folder = ModelFolder(root)
    if not is_finished(folder):
        raise RunStateError(f"{root} is no finished model: give a folder RUN/models/NAME")
    problems = broken_files(folder)
    if problems:
        raise CheckFailed(f"{root.name}: {'; '.join(problems)}")
    if not str(read_manifest(folder).get("format")).startswith(FORMAT):
        raise RunStateError(f"{root} is no model's folder: give a folder RUN/models/NAME")
    return folder


def _next_words(folder: ModelFolder, texts: Sequence[str], top: int) -> Iterator[list[dict[str, Any]]]:
    import numpy as np

    from redactory.training import load_model

    trained: LanguageModel = load_model(folder)
    names, which = _names(trained.tokenizer)
    for scores in trained.next_log_probs(texts):
        # ids that read the same (a letter and its byte) are one answer
        probabilities = np.zeros(len(names))
        np.add.at(probabilities, which, np.exp(scores))
        probabilities[names.index(_UNSAID)] = 0.0
        yield [{"token": names[n], "probability": p} for n, p in _likeliest(probabilities, top)]


def _names(codec: TextCodec) -> tuple[list[str], list[int]]:
    """Every text that an id stands for, once, and the place of each id's own among them."""
    own = [codec.spelled(number) for number in range(codec.size)]
    own[codec.pad_id] = own[codec.begin_id] = _UNSAID
    own[codec.end_id] = END
    places = {name: place for place, name in enumerate(dict.fromkeys([_UNSAID, *own]))}
    return list(places), [places[name] for name in own]


def _classes(folder: ModelFolder, texts: Sequence[str], top: int) -> Iterator[list[dict[str, Any]]]:
    import numpy as np

    from redactory.training.model import load_classifier

    trained = load_classifier(folder)
    for scores in trained.log_probs(texts):
        yield [{"class": trained.classes[n], "probability": p} for n, p in _likeliest(np.exp(scores), top)]


def _likeliest(probabilities: NDArray[np.float64], top: int) -> list[tuple[int, float]]:
    """The ``top`` places with the highest probability above 0, and that probability."""
    order = (-probabilities).argsort(kind="stable")[:top]
    return [(int(number), float(probabilities[number])) for number in order if probabilities[number] > 0.0]


# Generate: texts that a trained model writes, with its guarantee card read along.


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
            f"generate: {folder.root.name} tells classes and writes nothing; ask it with redactory predict"
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
