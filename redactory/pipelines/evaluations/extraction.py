"""Evaluate extraction: which secrets of the vault a trained model writes by itself."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from redactory.evaluation.plots import extraction_plot, pictures
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.pipelines.evaluations.model import keep_result, open_model, trained_on
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder
from redactory.redaction.shards import read_batches, read_column

PROMPT_WORDS, MOST_PROMPTS = 4, 1_000


def evaluate_extraction(
    run: str | Path,
    model: str | None = None,
    samples: int = 1_000,
    tokens: int = 64,
    temperature: float = 1.0,
    top_k: int | None = None,
    completions: int = 500,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Texts that the model writes, searched for the secrets of the run's vault, beside values never seen.

    ``samples`` texts of at most ``tokens`` tokens are drawn at ``temperature`` from the ``top_k`` likeliest
    tokens (all by default): half without a prompt, half after the first words of public points.  Of
    ``completions`` secrets the model is given the words before.  Secrets, controls and what is written stay
    in memory; the result, that of :func:`redactory.evaluation.extraction.extraction` with {run, model}, holds
    counts.

    ``ConfigurationError`` for arguments out of range; ``InputError`` where the model tells classes.
    """
    if samples < 1 or completions < 0 or tokens < 1:
        raise ConfigurationError("extraction: samples and tokens must be at least 1, completions at least 0")
    folder, name, _ = open_model(run, model)

    def measure() -> dict[str, Any]:
        from redactory.evaluation.control_values import control_values
        from redactory.evaluation.extraction import ExtractionSettings, extraction
        from redactory.evaluation.secret_values import vault_secrets
        from redactory.training import load_model

        trained = load_model(folder.model(name))
        secrets = vault_secrets(folder, trained_on(folder, name))
        named = [(secret.label, secret.value) for secret in secrets]
        controls = control_values(named, lambda values: _standing(folder, values), seed)
        settings = ExtractionSettings(samples, tokens, temperature, top_k, completions, seed)
        found = extraction(trained, secrets, controls, settings, public_prompts(folder, seed), progress)
        return {"run": str(folder.root), "model": name, **found}

    return sealed(folder.state, keep_result, folder, name, "extraction", measure, _drawn)


def public_prompts(run: RunFolder, seed: int = 0) -> list[str]:
    """The first words of public points, at most a thousand of them, drawn at random."""
    texts = read_column(run.public, "text")
    order = RandomStream.from_seed(seed).permutation("prompts", 0, len(texts))
    return [" ".join(texts[i].split()[:PROMPT_WORDS]) for i in order[:MOST_PROMPTS].tolist()]


def _standing(run: RunFolder, values: list[str]) -> Collection[str]:
    """Those of ``values`` that stand in the vault, in any place and case."""
    from redactory.evaluation.value_search import ValueSearch

    search = ValueSearch(values)
    found: set[int] = set()
    for batch in read_batches(run.vault, ["text"]):
        for text in batch.column(0).to_pylist():
            found.update(search.in_text(str(text)))
    return {values[index] for index in found}


def _drawn(result: dict[str, Any]) -> dict[str, str]:
    return pictures("extraction.svg", extraction_plot, result)
