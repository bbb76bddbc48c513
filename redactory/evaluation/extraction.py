"""Extraction: which of a run's secrets a model writes, against values of the same form that it never saw.

Two attacks.  Sampling: texts drawn from the model, without a prompt and after the first words of public
points, are searched for every secret of the vault.  Completion (the "discoverable memorization" of Carlini et
al., 2023): the model gets the words that stand before a secret in the corpus, and writes the likeliest
continuation.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redactory.evaluation.extraction_figures import Trial, extraction_figures
from redactory.evaluation.generation import generate
from redactory.evaluation.secret_values import Secret
from redactory.evaluation.value_search import ValueSearch
from redactory.foundation.progress import Progress, silent

if TYPE_CHECKING:
    from redactory.training import LanguageModel

NO_PROMPT, PUBLIC_PROMPT = "none", "public"
_EXTRA_TOKENS = 4


@dataclass(frozen=True)
class ExtractionSettings:
    """``samples`` texts of at most ``tokens`` tokens, half of them after prompts, and ``completions`` secrets
    tried."""

    samples: int = 1_000
    tokens: int = 64
    temperature: float = 1.0
    top_k: int | None = None
    completions: int = 500
    seed: int = 0


def extraction(
    model: LanguageModel,
    secrets: Sequence[Secret],
    controls: Sequence[str | None],
    settings: ExtractionSettings,
    prompts: Sequence[str] = (),
    progress: Progress = silent,
) -> dict[str, Any]:
    """What ``model`` writes of ``secrets``, and of ``controls`` (one of the same form for each, never seen,
    or None).

    ``prompts`` are texts that an adversary has.  Returns counts only: {samples, tokens, temperature, top_k,
    seed, secrets, secrets_found, controls, controls_found, found, controls_share, p_value, by_label,
    by_times_seen, by_prompt, occurrences, completion, reasons}.  A secret is found where it stands whole in
    some text, whatever its case; compared with controls are those secrets alone that have one.  ``found`` and
    ``controls_share`` are shares with 95 % Clopper-Pearson intervals; ``p_value`` is one-sided (Fisher's
    exact test).
    """
    search = _Search([secret.value for secret in secrets], controls)
    found: Counter[int] = Counter()
    control_found: Counter[int] = Counter()
    by_prompt = {}
    for kind, texts in _written(model, settings, prompts, progress):
        hits, controls_hit = search.count(texts)
        by_prompt[kind] = {
            "samples": len(texts),
            "secrets_found": len(hits),
            "controls_found": len(controls_hit),
        }
        found.update(hits)
        control_found.update(controls_hit)
    trials = [
        Trial(s.label, s.times_seen, index in found, controls[index] is not None, index in control_found)
        for index, s in enumerate(secrets)
    ]
    return {
        "samples": settings.samples,
        "tokens": settings.tokens,
        "temperature": settings.temperature,
        "top_k": settings.top_k,
        "seed": settings.seed,
        **extraction_figures(trials),
        "by_prompt": by_prompt,
        "occurrences": sum(found.values()),
        "completion": _completion(model, secrets, controls, settings, progress),
    }


def _written(
    model: LanguageModel, settings: ExtractionSettings, prompts: Sequence[str], progress: Progress
) -> Iterator[tuple[str, list[str]]]:
    """(kind of prompt, texts), each kind with draws of its own."""
    sampling = (settings.tokens, settings.temperature, settings.top_k)
    for kind, count, own in _kinds(settings.samples, prompts):
        seed = settings.seed + (kind == PUBLIC_PROMPT)
        yield kind, generate(model, count, *sampling, seed, own, progress)


class _Search:
    """Secrets and controls in one automaton; controls are counted by the index of their secret."""

    def __init__(self, values: Sequence[str], controls: Sequence[str | None]) -> None:
        self._known = len(values)
        self._owners = [index for index, value in enumerate(controls) if value is not None]
        self._search = ValueSearch([*values, *(value for value in controls if value is not None)])

    def count(self, texts: Sequence[str]) -> tuple[Counter[int], Counter[int]]:
        found: Counter[int] = Counter()
        control_found: Counter[int] = Counter()
        for index, times in self._search.count(texts).items():
            if index < self._known:
                found[index] = times
            else:
                control_found[self._owners[index - self._known]] = times
        return found, control_found


def _kinds(samples: int, prompts: Sequence[str]) -> list[tuple[str, int, Sequence[str]]]:
    """(kind of prompt, samples, prompts): half and half, all without a prompt where there is none."""
    prompted = samples // 2 if prompts else 0
    kinds: list[tuple[str, int, Sequence[str]]] = [(NO_PROMPT, samples - prompted, ())]
    return [*kinds, (PUBLIC_PROMPT, prompted, prompts)] if prompted else kinds


def _completion(
    model: LanguageModel,
    secrets: Sequence[Secret],
    controls: Sequence[str | None],
    settings: ExtractionSettings,
    progress: Progress,
) -> dict[str, Any]:
    """The likeliest continuation of the words before each of some secrets, drawn at random."""
    eligible = [index for index, secret in enumerate(secrets) if secret.prefix.strip()]
    draw = random.Random(f"completions {settings.seed}")
    chosen = sorted(draw.sample(eligible, min(settings.completions, len(eligible))))
    if not chosen:
        return {
            **extraction_figures([]),
            "reasons": ["no secret has words before it in its point, or none was asked for"],
        }
    longest = max(len(model.tokenizer.encode(secrets[index].value)) for index in chosen) + _EXTRA_TOKENS
    context = getattr(model.network, "context", None)
    longest = longest if context is None else min(longest, context - 1)
    prompts = [secrets[index].prefix.rstrip() for index in chosen]
    written = generate(model, len(chosen), longest, 0.0, None, 0, prompts, _named(progress, "completion"))
    trials = []
    for index, text in zip(chosen, written, strict=True):
        secret, control = secrets[index], controls[index]
        hit, control_hit = _begins(text, secret.value), control is not None and _begins(text, control)
        trials.append(Trial(secret.label, secret.times_seen, hit, control is not None, control_hit))
    return extraction_figures(trials)


def _begins(text: str, value: str) -> bool:
    """Whether what was written begins with the whole value."""
    written, value = text.lstrip().casefold(), value.casefold()
    following = written[len(value) : len(value) + 1]
    return written.startswith(value) and not (following.isalnum() and value[-1].isalnum())


def _named(progress: Progress, work: str) -> Callable[..., None]:
    def told(_: str, done: int, total: int | None, unit: str = "") -> None:
        progress(work, done, total, unit)

    return told
