"""Extraction: which of a run's secrets a model writes, against values of the same form that it never saw."""

from __future__ import annotations

import functools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redactory.evaluation.generation import generate
from redactory.evaluation.linkage import ValueSearch
from redactory.evaluation.statistics import figure, proportion
from redactory.foundation.progress import Progress, silent
from redactory.redaction.folder import RunFolder
from redactory.redaction.shards import read_batches

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
    search = ValueSearch([*(s.value for s in secrets), *(value or "" for value in controls)])
    found: Counter[int] = Counter()
    prompted = settings.samples // 2 if prompts else 0
    kinds = [(NO_PROMPT, settings.samples - prompted, ()), (PUBLIC_PROMPT, prompted, prompts)]
    by_prompt = {}
    for number, (kind, count, own) in enumerate(kinds[: 2 if prompted else 1]):
        sampling = settings.tokens, settings.temperature, settings.top_k, settings.seed + number
        hits = search.count(generate(model, count, *sampling, own, progress))
        known = sum(index < len(secrets) for index in hits)
        counts = {"samples": count, "secrets_found": known, "controls_found": len(hits) - known}
        by_prompt[kind] = counts
        found.update(hits)
    trials = [
        Trial(s.label, s.times_seen, n in found, controls[n] is not None, len(secrets) + n in found)
        for n, s in enumerate(secrets)
    ]
    return {
        "samples": settings.samples,
        "tokens": settings.tokens,
        "temperature": settings.temperature,
        "top_k": settings.top_k,
        "seed": settings.seed,
        **extraction_figures(trials),
        "by_prompt": by_prompt,
        "occurrences": sum(times for index, times in found.items() if index < len(secrets)),
        "completion": _completion(model, secrets, controls, settings, progress),
    }


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

    def named(work: str, done: int, total: int | None, unit: str = "") -> None:
        progress("completion", done, total, unit)

    written = generate(model, len(chosen), longest, 0.0, None, 0, prompts, named)
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


# Counts of secrets found and of controls: in all, by label, by how often training data held a secret.


TIMES_SEEN = ((0, 0), (1, 1), (2, 4), (5, 9), (10, 99), (100, None))
"""Bounds of the groups, both inclusive; the last is open."""
_NONE = "no secret was tried"
_NO_CONTROL = "no control value could be made"


class Trial(NamedTuple):
    """One secret: whether it was found, whether it has a control, and whether that was found."""

    label: str
    times_seen: int
    found: bool
    has_control: bool
    control_found: bool


def extraction_figures(trials: Sequence[Trial]) -> dict[str, Any]:
    """{secrets, secrets_found, controls, controls_found, found, controls_share, p_value, by_label,
    by_times_seen, reasons}.

    ``found`` and ``controls_share`` are {value, low, high}, 95 % Clopper-Pearson; the ``p_value`` of Fisher's
    exact test is that of at least so many secrets found, were those with a control found no more easily than
    controls are.
    """
    labels = sorted({trial.label for trial in trials})
    whole = _counts(trials)

    def share(kind: str) -> dict[str, Any]:
        return proportion(whole[f"{kind}_found"], whole[kind]) if whole[kind] else figure(None)

    return {
        **whole,
        "found": share("secrets"),
        "controls_share": share("controls"),
        "p_value": _p_value(trials),
        "by_label": {label: _counts([t for t in trials if t.label == label]) for label in labels},
        "by_times_seen": [
            {"from": low, "to": high, **_counts([t for t in trials if _within(t, low, high)])}
            for low, high in TIMES_SEEN
        ],
        "reasons": [] if whole["controls"] else [_NO_CONTROL if trials else _NONE],
    }


def _within(trial: Trial, low: int, high: int | None) -> bool:
    return low <= trial.times_seen and (high is None or trial.times_seen <= high)


def _counts(own: Sequence[Trial]) -> dict[str, int]:
    return {
        "secrets": len(own),
        "secrets_found": sum(t.found for t in own),
        "controls": sum(t.has_control for t in own),
        "controls_found": sum(t.control_found for t in own),
    }


def _p_value(trials: Sequence[Trial]) -> float | None:
    """Of a table of two arms with as many in each: P(at least so many of those found are secrets)."""
    from scipy.stats import hypergeom

    paired = [t for t in trials if t.has_control]
    if not paired:
        return None
    found = sum(t.found for t in paired)
    both = found + sum(t.control_found for t in paired)
    return min(1.0, float(hypergeom.sf(found - 1, 2 * len(paired), len(paired), both)))


# The secrets of a run as values, cut out of its vault where the span ledger says: in memory only.


STRICT = "strict"
SURE_RULES = frozenset({"DIGIT", "SYMBOL"})
"""Rules whose hits have the form of an identifier."""
_NO_VALUES = frozenset({"EVERYTHING", "UNSURE", "CAPITAL", "NAME", "WORD"})
"""Hits of π_c that say where a secret may be, not what it is."""
LEAST_CHARS = 4


@dataclass(frozen=True)
class Secret:
    """A value with its label; nothing of it may be printed, logged or written.

    ``copies`` is how often the vault holds it, ``times_seen`` how often what the model was trained on does;
    ``prefix`` is the text before its first place in a point.
    """

    value: str = field(repr=False)
    label: str
    copies: int
    times_seen: int
    prefix: str = field(repr=False)


def vault_secrets(run: RunFolder, seen: Iterable[Path], least_chars: int = LEAST_CHARS) -> list[Secret]:
    """Every distinct value (but for its case) that the policies marked in the vault, in order of first place.

    A value that π marked has π's label; one that only π_c did, the engine's, or DIGIT or SYMBOL for a word
    with a digit or a sign of an address; hits of its other rules are no values.  Values shorter than
    ``least_chars`` code points are left out: they stand in any text.  ``seen`` are the data folders that the
    model was trained on.
    """
    spans: dict[int, list[tuple[int, int, str, bool]]] = defaultdict(list)
    for batch in read_batches(run.spans, ["point_id", "start", "end", "label", "policy"]):
        for point_id, start, end, label, policy in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if label not in _NO_VALUES:
                spans[point_id].append((start, end, label, policy == STRICT))
    first: dict[str, tuple[str, str]] = {}
    labels: dict[str, tuple[bool, str]] = {}
    for batch in read_batches(run.vault, ["point_id", "text"]):
        for point_id, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            # π's hits first
            hits = sorted(
                spans.pop(point_id, ()), key=lambda hit: (not hit[3], hit[2] in SURE_RULES, hit[:2])
            )
            for start, end, label, strict in hits:
                value = text[start:end].strip()
                key = value.casefold()
                if len(value) < least_chars:
                    continue
                first.setdefault(key, (value, text[:start]))
                if key not in labels or (strict and not labels[key][0]):
                    labels[key] = strict, label
    search = ValueSearch(list(first))
    vault, told = search.count(_texts([run.vault])), search.count(_texts(seen))
    return [
        Secret(value, labels[key][1], vault[index], told[index], prefix)
        for index, (key, (value, prefix)) in enumerate(first.items())
    ]


def _texts(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for batch in read_batches(folder, ["text"]):
            yield from (str(text) for text in batch.column(0).to_pylist())


# Values of the same form as given ones that stand nowhere in a corpus: what finding one by chance is worth.


_PIECE = re.compile(r"[^\W\d_]+|\d+|[\W_]+")
_ROUNDS, _OF_CORPUS = 8, 4

Pools = dict[tuple[str, tuple[str, ...], int], list[str]]


def control_values(
    values: Sequence[tuple[str, str]], present: Callable[[list[str]], Collection[str]], seed: int = 0
) -> list[str | None]:
    """For each (label, value) another value of its form, all different; None where none was found.

    ``present`` tells which of many strings stand in the corpus (whatever their case), and is asked a few
    times.  The same values, corpus and seed give the same controls.  They are made of pieces of secrets, and
    are as private as these.
    """
    draw = random.Random(f"control values {seed}")
    pools = _pools(values)
    taken = {value.casefold() for _, value in values}
    found: list[str | None] = [None] * len(values)
    for attempt in range(_ROUNDS):
        proposed: dict[str, int] = {}
        for index, (label, value) in enumerate(values):
            if found[index] is None:
                other = _like(value, label, pools if attempt < _OF_CORPUS else {}, draw)
                if other.casefold() not in taken and other.casefold() not in proposed:
                    proposed[other.casefold()] = index
                    found[index] = other
        standing = {value.casefold() for value in present([str(found[i]) for i in proposed.values()])}
        for folded, index in proposed.items():
            if folded in standing:
                found[index] = None
            else:
                taken.add(folded)
        if None not in found:
            break
    return found


def _pools(values: Sequence[tuple[str, str]]) -> Pools:
    """The words of each label, form and place."""
    pools: Pools = defaultdict(list)
    for label, value in values:
        pieces = _PIECE.findall(value)
        form = _form(pieces)
        for place, piece in enumerate(pieces):
            if piece.isalpha():
                pools[label, form, place].append(piece)
    return pools


def _form(pieces: Sequence[str]) -> tuple[str, ...]:
    return tuple("w" if piece.isalpha() else "d" if piece.isdecimal() else piece for piece in pieces)


def _like(value: str, label: str, pools: Pools, draw: random.Random) -> str:
    pieces = _PIECE.findall(value)
    form = _form(pieces)
    return "".join(
        _digits(piece, draw)
        if piece.isdecimal()
        else _word(piece, pools.get((label, form, place), ()), draw)
        if piece.isalpha()
        else piece
        for place, piece in enumerate(pieces)
    )


def _digits(piece: str, draw: random.Random) -> str:
    """As many digits; none begins with 0 unless the value's own did."""
    first = draw.choice("123456789") if piece[0] != "0" else "0"
    return first + "".join(draw.choice("0123456789") for _ in piece[1:])


def _word(piece: str, pool: Sequence[str], draw: random.Random) -> str:
    if pool:
        return draw.choice(pool)
    word = draw.choice(_public_names())
    return word.upper() if piece.isupper() and len(piece) > 1 else word.lower() if piece.islower() else word


@functools.cache
def _public_names() -> tuple[str, ...]:
    """Given names and surnames of Faker's public English lists that are letters only."""
    from faker.providers.person.en_GB import Provider as British
    from faker.providers.person.en_US import Provider as American

    names: set[str] = set()
    for provider in (American, British):
        names.update(provider.first_names, provider.last_names)
    return tuple(sorted(name for name in names if name.isalpha()))
