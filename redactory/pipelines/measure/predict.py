"""Predict with a trained model and return its guarantee card, too (the patent's application manager)."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory import training
from redactory.evaluation.generation import generate_texts
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.curation.models import require_training_packages
from redactory.pipelines.measure.evaluate import CLASSIFY
from redactory.redaction import ModelFolder, is_finished, list_broken_files, read_manifest
from redactory.training.chat import ChatCodec, format_turns, make_prompt

Prompt = str | Sequence[Mapping[str, str]]
END = "<END>"
"""Representation of the end of a text."""
_HIDDEN_TOKEN = ""
_GUARANTEE_KEYS = (*("trainer", "holds", "holds_reason", "unit"), *("relation", "relation_meaning", "epsilon", "delta"))
_SEED_BITS = 32


def predict(
    model: str | Path,
    texts: Sequence[Prompt] = ("",),
    *,
    top: int = 5,
    write: int | None = None,
    tokens: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Predict the next word or the class of each of ``texts``, or continue them, with the model in folder ``model``.

    ``model`` is ``RUN/models/NAME`` or a copy of it. For a chat model (``train.chat``) each text is a user's message,
    or a list of turns ``{"role", "content"}``; it answers until its turn ends.

    Without ``write``, returns {model, task, guarantee, results}: for each text the ``top`` most likely next tokens,
    {token, probability} (a word with the space before it, or a part of one; ``<END>``; a single byte as ``\\xe2``), or
    classes, {class, probability}. With ``write``, returns {model, guarantee, seed, texts}: that many continuations of
    each text, of at most ``tokens`` tokens, drawn from the ``top_k`` most likely (all if None) in proportion to
    p^(1/``temperature``), and for a chat model the ``prompts``. Continuations may repeat text of the training data.

    ``guarantee`` is the promise of the model's card, with the ``reason`` if it has no epsilon. ``RunStateError`` if
    the folder is not a finished model, ``CheckFailed`` if it changed after sealing.
    """
    in_range = min(top, 1 if write is None else write, tokens, 1 if top_k is None else top_k) >= 1
    if not in_range or not 0.0 <= temperature < math.inf or (write is not None and not texts):
        raise ConfigurationError(
            "predict: top, number of texts, tokens and top-k must be at least 1, and the temperature a "
            "finite number of at least 0"
        )
    folder = ModelFolder(Path(model))
    if not is_finished(folder) or not str(read_manifest(folder).get("format")).startswith("redactory-model/"):
        raise RunStateError(f"{folder.root} is not a finished model: give a folder RUN/models/NAME")
    if problems := list_broken_files(folder):
        raise CheckFailed(f"{folder.root.name}: {'; '.join(problems)}")
    task, card = str(read_manifest(folder)["settings"]["task"]), read_json(folder.guarantee)
    reason = card.get("reasons", {}).get("epsilon") if card.get("epsilon") is None else None
    reason = reason or (None if card.get("holds") else card.get("holds_reason"))
    about = {
        "model": folder.root.name,
        "guarantee": {key: card.get(key) for key in _GUARANTEE_KEYS} | {"reason": reason},
    }
    require_training_packages()
    if write is None:
        answer = _predict_classes if task == CLASSIFY else _predict_next_words
        return about | {"task": task, "results": list(answer(folder, texts, top)) if texts else []}
    if task == CLASSIFY:
        raise ConfigurationError(f"predict: {folder.root.name} predicts classes and cannot generate text")
    seed = secrets.randbits(_SEED_BITS) if seed is None else seed
    count, many = write * len(texts), len(texts)
    trained, prompts = _prepare_prompts(folder, texts)
    continuations = generate_texts(trained, count, tokens, temperature, top_k, seed, prompts, progress)
    prompt_record: dict[str, Any] = {}
    if prompts != list(texts):
        continuations = [text.strip() for text in continuations]
        prompt_record = {"prompts": [format_turns(prompt) for prompt in prompts]}
    return about | {"seed": seed, "texts": [continuations[place::many] for place in range(many)]} | prompt_record


def _prepare_prompts(folder: ModelFolder, texts: Sequence[Prompt]) -> tuple[training.LanguageModel, list[str]]:
    """Load the language model, and format ``texts`` as its prompts: for a chat model in its template."""
    trained = training.load_model(folder)
    if isinstance(trained.tokenizer, ChatCodec):
        return trained, list(map(make_prompt, texts))
    if not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(
            f"predict: {folder.root.name} is not a chat model: give texts, or train with train.chat"
        )
    return trained, list(map(str, texts))


def _predict_next_words(folder: ModelFolder, texts: Sequence[Prompt], top: int) -> Iterator[list[dict[str, Any]]]:
    trained, prompts = _prepare_prompts(folder, texts)
    codec = trained.tokenizer
    spellings = [codec.decode_token(number) for number in range(codec.size)]
    spellings[codec.pad_id] = spellings[codec.begin_id] = _HIDDEN_TOKEN
    spellings[codec.end_id] = END
    # merge ids with the same text (a letter and its byte)
    answer_numbers = {name: answer_number for answer_number, name in enumerate(dict.fromkeys(spellings))}
    names, answer_ids = list(answer_numbers), [answer_numbers[name] for name in spellings]
    for scores in trained.compute_next_log_probs(prompts):
        probabilities = np.zeros(len(names))
        np.add.at(probabilities, answer_ids, np.exp(scores))
        if _HIDDEN_TOKEN in answer_numbers:  # a folder's tokenizer may begin, end and pad with one token
            probabilities[answer_numbers[_HIDDEN_TOKEN]] = 0.0
        yield [{"token": names[n], "probability": p} for n, p in _find_top_k(probabilities, top)]


def _predict_classes(folder: ModelFolder, texts: Sequence[Any], top: int) -> Iterator[list[dict[str, Any]]]:
    classifier = training.model.load_classifier(folder)
    for scores in classifier.compute_class_log_probs(texts):
        yield [{"class": classifier.classes[n], "probability": p} for n, p in _find_top_k(np.exp(scores), top)]


def _find_top_k(probabilities: NDArray[np.float64], top: int) -> list[tuple[int, float]]:
    """Return the ``top`` indices with the highest probabilities above 0, and the probabilities."""
    order = (-probabilities).argsort(kind="stable")[:top]
    return [(int(number), float(probabilities[number])) for number in order if probabilities[number] > 0.0]
