"""Test which of a run's secrets a model writes, compared with unseen values of the same form."""

from __future__ import annotations

import functools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from redactory import training
from redactory.evaluation.generation import generate_texts
from redactory.evaluation.linkage import ValueSearch
from redactory.evaluation.statistics import compute_fisher_p_value, estimate_proportion, make_estimate
from redactory.foundation.progress import Progress, ignore_progress
from redactory.redaction.folder import RunFolder
from redactory.redaction.shards import read_values

TIMES_SEEN_GROUPS = ((0, 0), (1, 1), (2, 4), (5, 9), (10, 99), (100, None))
"""Groups by how often training data held a secret; both bounds inclusive, the last open."""
_EXTRA_TOKENS = 4


@dataclass(frozen=True)
class ExtractionSettings:
    """Sizes: ``samples`` texts of at most ``tokens`` tokens, half with prompts, and ``completions`` tried secrets."""

    samples: int = 1_000
    tokens: int = 64
    temperature: float = 1.0
    top_k: int | None = None
    completions: int = 500
    seed: int = 0


@dataclass(frozen=True)
class VaultSecret:
    """A value with its label; it must not be printed, logged or written.

    ``times_seen`` is how often the model's training data holds it; ``prefix`` is the text before its first occurrence
    in an example.
    """

    value: str = field(repr=False)
    label: str
    times_seen: int
    prefix: str = field(repr=False)


class ExtractionTrial(NamedTuple):
    """One secret: whether it was found, and whether its control was, None without one."""

    label: str
    times_seen: int
    secret_found: bool
    control_found: bool | None


def run_extraction_attack(
    model: training.LanguageModel,
    secrets: Sequence[VaultSecret],
    controls: Sequence[str | None],
    settings: ExtractionSettings,
    prompts: Sequence[str] = (),
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Test which ``secrets`` ``model`` writes, and which ``controls``: one of the same form for each, or None.

    ``prompts`` are texts that an adversary has. A secret is found if some text contains it completely, ignoring case.
    Returns counts only: {samples, tokens, temperature, top_k, seed, by_prompt, occurrences}, those of
    :func:`summarize_trials`, and ``completion``, the same for the likeliest continuation of the words before some
    secrets.
    """
    search = ValueSearch([*(s.value for s in secrets), *(value or "" for value in controls)])
    occurrences: Counter[int] = Counter()
    prompted = settings.samples // 2 if prompts else 0
    by_prompt = {}
    for number, (kind, count) in enumerate({"none": settings.samples - prompted, "public": prompted}.items()):
        if not count:
            continue
        sampling = settings.tokens, settings.temperature, settings.top_k, settings.seed + number
        matches = search.count_occurrences(generate_texts(model, count, *sampling, prompts if number else (), progress))
        known = sum(index < len(secrets) for index in matches)
        by_prompt[kind] = {"samples": count, "secrets_found": known, "controls_found": len(matches) - known}
        occurrences.update(matches)
    trials = [
        ExtractionTrial(
            s.label, s.times_seen, n in occurrences, None if control is None else len(secrets) + n in occurrences
        )
        for n, (s, control) in enumerate(zip(secrets, controls, strict=True))
    ]
    return {
        **{name: value for name, value in asdict(settings).items() if name != "completions"},
        **summarize_trials(trials),
        "by_prompt": by_prompt,
        "occurrences": sum(times for index, times in occurrences.items() if index < len(secrets)),
        "completion": _complete_prefixes(model, secrets, controls, settings, progress),
    }


def _complete_prefixes(
    model: training.LanguageModel,
    secrets: Sequence[VaultSecret],
    controls: Sequence[str | None],
    settings: ExtractionSettings,
    progress: Progress,
) -> dict[str, Any]:
    eligible = [index for index, secret in enumerate(secrets) if secret.prefix.strip()]
    draw = random.Random(f"completions {settings.seed}")
    chosen = sorted(draw.sample(eligible, min(settings.completions, len(eligible))))
    if not chosen:
        reason = "no secret has words before it in its example, or none was requested"
        return {**summarize_trials([]), "reasons": [reason]}
    max_tokens = max(len(model.tokenizer.encode(secrets[index].value)) for index in chosen) + _EXTRA_TOKENS
    max_tokens = min(max_tokens, (getattr(model.network, "context", None) or max_tokens + 1) - 1)
    prompts = [secrets[index].prefix.rstrip() for index in chosen]

    def report_progress(work: str, done: int, total: int | None, unit: str = "") -> None:
        progress("completion", done, total, unit)

    generated = generate_texts(model, len(chosen), max_tokens, 0.0, None, 0, prompts, report_progress)
    trials = []
    for index, text in zip(chosen, generated, strict=True):
        secret, control = secrets[index], controls[index]
        control_found = None if control is None else _starts_with_value(text, control)
        secret_found = _starts_with_value(text, secret.value)
        trials.append(ExtractionTrial(secret.label, secret.times_seen, secret_found, control_found))
    return summarize_trials(trials)


def _starts_with_value(text: str, value: str) -> bool:
    generated, value = text.lstrip().casefold(), value.casefold()
    next_char = generated[len(value) : len(value) + 1]
    return generated.startswith(value) and not (next_char.isalnum() and value[-1].isalnum())


def summarize_trials(trials: Sequence[ExtractionTrial]) -> dict[str, Any]:
    """Count found secrets and controls, in total, ``by_label`` and ``by_times_seen``.

    ``found`` and ``controls_share`` are {value, low, high}, 95 % Clopper-Pearson. ``p_value`` is the probability of at
    least as many found secrets if those with a control were no easier to find than controls (Fisher's exact test,
    one-sided).
    """
    whole = _count_trials(trials)
    labels = sorted({trial.label for trial in trials})
    missing = "no control value could be generated" if trials else "no secret was tried"
    paired = _count_trials([trial for trial in trials if trial.control_found is not None])

    def estimate_share(kind: str) -> dict[str, Any]:
        return estimate_proportion(whole[f"{kind}_found"], whole[kind]) if whole[kind] else make_estimate(None)

    def select_by_times_seen(low: int, high: int | None) -> list[ExtractionTrial]:
        return [t for t in trials if low <= t.times_seen and (high is None or t.times_seen <= high)]

    return {
        **whole,
        "found": estimate_share("secrets"),
        "controls_share": estimate_share("controls"),
        "p_value": compute_fisher_p_value(**paired) if paired["controls"] else None,
        "by_label": {label: _count_trials([trial for trial in trials if trial.label == label]) for label in labels},
        "by_times_seen": [
            {"from": low, "to": high, **_count_trials(select_by_times_seen(low, high))}
            for low, high in TIMES_SEEN_GROUPS
        ],
        "reasons": [] if whole["controls"] else [missing],
    }


def _count_trials(trials: Sequence[ExtractionTrial]) -> dict[str, int]:
    return {
        "secrets": len(trials),
        "secrets_found": sum(trial.secret_found for trial in trials),
        "controls": sum(trial.control_found is not None for trial in trials),
        "controls_found": sum(bool(trial.control_found) for trial in trials),
    }


# The secrets of a run as values, cut from its vault by the span ledger: in memory only.


IDENTIFIER_RULES = frozenset({"DIGIT", "SYMBOL"})
"""Rules whose spans have the form of an identifier."""
_NON_VALUE_LABELS = frozenset({"EVERYTHING", "UNSURE", "CAPITAL", "NAME", "WORD"})
"""Conservative labels that only suggest where a secret may be, without its value."""
MIN_VALUE_CHARS = 4


def collect_vault_secrets(run: RunFolder, training_folders: Iterable[Path]) -> list[VaultSecret]:
    """Return every distinct value (ignoring case) that the policies marked in the vault, by first occurrence.

    A strictly masked value has the strict policy's label; any other has the engine's, or DIGIT or SYMBOL. Spans of
    other conservative rules are not values. Values of fewer than ``MIN_VALUE_CHARS`` code points are left out, because
    they occur in any text. ``training_folders`` are the data folders that the model was trained on.
    """
    spans: dict[int, list[tuple[int, int, str, bool]]] = defaultdict(list)
    for example_id, start, end, label, policy in read_values(
        run.spans, "example_id", "start", "end", "label", "policy"
    ):
        if label not in _NON_VALUE_LABELS and policy != "public":
            spans[example_id].append((start, end, label, policy == "strict"))
    first: dict[str, tuple[str, str]] = {}
    labels: dict[str, tuple[bool, str]] = {}
    for example_id, text in read_values(run.vault, "example_id", "text"):
        hits = sorted(spans.pop(example_id, ()), key=lambda hit: (not hit[3], hit[2] in IDENTIFIER_RULES, hit[:2]))
        for start, end, label, strict in hits:
            value = text[start:end].strip()
            key = value.casefold()
            if len(value) < MIN_VALUE_CHARS:
                continue
            first.setdefault(key, (value, text[:start]))
            if key not in labels or (strict and not labels[key][0]):
                labels[key] = strict, label
    search = ValueSearch(list(first))
    times_seen = search.count_occurrences(
        text for folder in training_folders for (text,) in read_values(folder, "text")
    )
    return [
        VaultSecret(value, labels[key][1], times_seen[index], prefix)
        for index, (key, (value, prefix)) in enumerate(first.items())
    ]


# Controls: values of the same form that do not occur in the corpus, to measure chance findings.


_TOKEN_RUN = re.compile(r"[^\W\d_]+|\d+|[\W_]+")
_MAX_ROUNDS, _POOL_ROUNDS = 8, 4

WordPools = dict[tuple[str, tuple[str, ...], int], list[str]]


def make_control_values(
    values: Sequence[tuple[str, str]], find_present: Callable[[list[str]], Collection[str]], seed: int = 0
) -> list[str | None]:
    """Make for each (label, value) another, distinct value of its form; None if none was found.

    ``find_present`` returns which of many strings occur in the corpus (ignoring case), and is called a few times. The
    same values, corpus and seed give the same controls. They consist of parts of secrets, and are as private.
    """
    draw = random.Random(f"control values {seed}")
    pools: WordPools = defaultdict(list)
    for label, value in values:
        fragments, form = _split_value(value)
        for position, fragment in enumerate(fragments):
            if fragment.isalpha():
                pools[label, form, position].append(fragment)
    taken = {value.casefold() for _, value in values}
    controls: list[str | None] = [None] * len(values)
    for attempt in range(_MAX_ROUNDS):
        proposed: dict[str, int] = {}
        for index, (label, value) in enumerate(values):
            if controls[index] is None:
                candidate = _make_similar_value(value, label, pools if attempt < _POOL_ROUNDS else {}, draw)
                if candidate.casefold() not in taken and candidate.casefold() not in proposed:
                    proposed[candidate.casefold()] = index
                    controls[index] = candidate
        standing = {value.casefold() for value in find_present([str(controls[i]) for i in proposed.values()])}
        for folded, index in proposed.items():
            if folded in standing:
                controls[index] = None
            else:
                taken.add(folded)
        if None not in controls:
            break
    return controls


def _split_value(value: str) -> tuple[list[str], tuple[str, ...]]:
    fragments = _TOKEN_RUN.findall(value)
    return fragments, tuple(
        "w" if fragment.isalpha() else "d" if fragment.isdecimal() else fragment for fragment in fragments
    )


def _make_similar_value(value: str, label: str, pools: WordPools, random_source: random.Random) -> str:
    fragments, form = _split_value(value)
    made = []
    for position, fragment in enumerate(fragments):
        if fragment.isdecimal():
            first = random_source.choice("123456789") if fragment[0] != "0" else "0"
            made.append(first + "".join(random_source.choice("0123456789") for _ in fragment[1:]))
        elif fragment.isalpha() and (pool := pools.get((label, form, position))):
            made.append(random_source.choice(pool))
        elif fragment.isalpha():
            word = random_source.choice(_load_public_names())
            is_acronym = fragment.isupper() and len(fragment) > 1
            made.append(word.upper() if is_acronym else word.lower() if fragment.islower() else word)
        else:
            made.append(fragment)
    return "".join(made)


@functools.cache
def _load_public_names() -> tuple[str, ...]:
    from faker.providers.person.en_GB import Provider as British
    from faker.providers.person.en_US import Provider as American

    lists = (names for provider in (American, British) for names in (provider.first_names, provider.last_names))
    return tuple(sorted({name for names in lists for name in names if name.isalpha()}))
