"""How often detection misses a secret, measured on labelled secrets, with exact (Clopper-Pearson) bounds.

"γ belongs to the slot": a recall of 0.9 over all secrets can hide a kind that is always missed, so misses are
counted by stratum too (``docs/guarantees.md``, "Amplification by redaction").
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from redactory.foundation.intervals import upper_bound
from redactory.foundation.progress import Progress, silent
from redactory.redaction.mask import mask
from redactory.redaction.sides import PRIVATE

Fate = tuple[str, str]
DetectFate = Callable[[Sequence[str]], Sequence[Fate]]
"""F: texts of points -> (side or "quarantined", redacted text) of each."""

TEMPLATE = "template_id"
"""The key of a labelled span that names the template its text was made from, where there is one."""

_CHUNK_TEXTS = 1024
_LETTERS = re.compile(r"[^\W\d_]+")
_EVERY = ("", "")


def fates_of_secrets(
    detect_fate: DetectFate,
    rows: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    progress: Progress = silent,
) -> Iterator[tuple[Fate, list[Fate]]]:
    """F of each text, and F of it with each of its secrets (start, end) masked alone."""
    done, total = 0, sum(len(places) for _, places in rows)
    for start in range(0, len(rows), _CHUNK_TEXTS):
        chunk = rows[start : start + _CHUNK_TEXTS]
        masked = [mask(text, [place]) for text, places in chunk for place in places]
        whole, without = detect_fate([text for text, _ in chunk]), iter(detect_fate(masked))
        done += len(masked)
        progress("recall", done, total, "secrets")
        for (side, text), (_, places) in zip(whole, chunk, strict=True):
            yield (side, text), list(islice(without, len(places)))


def measure_misses(
    detect_fate: DetectFate,
    texts: Sequence[str],
    spans: Sequence[Sequence[Mapping[str, Any]]],
    confidence: float = 0.95,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Misses of γ and δ₂ over every labelled secret of ``texts``, in all, by label and by stratum.

    ``texts`` are points; ``spans[i]`` the labelled secrets of ``texts[i]``, {start, end, label} each, in code
    points, and ``template_id`` where it is known.  With s the text and s' the text in which that one secret
    is ``<MASK>``: a **γ miss** is F(s) ≠ F(s'), a **δ₂ miss** is a different fate of the two, a quarantined
    point counting as private (CRT, Theorem 8.3, as corrected in ``docs/guarantees.md``, "Amplification by
    redaction").  Each bound holds at ``confidence``, both together at 2·confidence - 1, for secrets drawn
    like these, which were not used to tune the policies (``docs/guarantees.md``, "Coverage failure").

    Returns {n, confidence, joint_confidence, gamma, delta_2, labels: {label: {n, gamma, delta_2}},
    highest_gamma: {label, upper} or null, strata: {casing, label, template: {stratum: {n, gamma, delta_2}}},
    highest_gamma_of_strata: {stratification, stratum, n, misses, rate, upper} or null}, where gamma and
    delta_2 are {misses, rate, upper}.
    """
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    labelled = [(text, own) for text, own in zip(texts, spans, strict=True) if own]
    places = [(text, [(int(s["start"]), int(s["end"])) for s in own]) for text, own in labelled]
    for (text, own), fates in zip(labelled, fates_of_secrets(detect_fate, places, progress), strict=True):
        for span, without in zip(own, fates[1], strict=True):
            secret = text[int(span["start"]) : int(span["end"])]
            for key in (_EVERY, *_strata_of(secret, span)):
                counts[key]["n"] += 1
                counts[key]["gamma"] += fates[0] != tuple(without)
                counts[key]["delta_2"] += _side(fates[0]) != _side(without)
    every = _shares(counts.pop(_EVERY, Counter()), confidence)
    strata: dict[str, dict[str, Any]] = {}
    for (stratification, stratum), count in sorted(counts.items()):
        strata.setdefault(stratification, {})[stratum] = _shares(count, confidence)
    return {
        **every,
        **by_label(strata.get("label", {}), confidence),
        "strata": strata,
        "highest_gamma_of_strata": _highest(strata),
    }


def by_label(labels: Mapping[str, Mapping[str, Any]], confidence: float) -> dict[str, Any]:
    """What stands beside the figures of all secrets: those of each label, and what they hold together."""
    worst = max(labels, key=lambda label: labels[label]["gamma"]["upper"], default=None)
    return {
        "confidence": confidence,
        "joint_confidence": max(0.0, 2 * confidence - 1),
        "labels": labels,
        "highest_gamma": worst and {"label": worst, "upper": labels[worst]["gamma"]["upper"]},
    }


def casing(secret: str) -> str:
    """digits (it holds one), or of its letters: lower, upper, title or mixed; uncased where none has a case.

    In title case every word begins with a capital and none of several letters is all capitals.
    """
    if any(sign.isdigit() for sign in secret):
        return "digits"
    if secret.islower():
        return "lower"
    if secret.isupper():
        return "upper"
    words = ["".join(_LETTERS.findall(word)) for word in secret.split()]
    cased = [word for word in words if word.lower() != word.upper()]
    if not cased:
        return "uncased"
    title = all(word[0].isupper() and not (len(word) > 1 and word.isupper()) for word in cased)
    return "title" if title else "mixed"


def _strata_of(secret: str, span: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The (stratification, stratum) pairs of one labelled secret: casing, label and, if known, template."""
    yield "casing", casing(secret)
    yield "label", str(span["label"])
    if span.get(TEMPLATE) is not None:
        yield "template", str(span[TEMPLATE])


def _side(fate: Fate) -> str:
    return PRIVATE if fate[0] == "quarantined" else fate[0]


def _shares(count: Counter[str], confidence: float) -> dict[str, Any]:
    n = count["n"]

    def share(misses: int) -> dict[str, Any]:
        rate = misses / n if n else None
        return {"misses": misses, "rate": rate, "upper": upper_bound(misses, n, confidence)}

    return {"n": n, "gamma": share(count["gamma"]), "delta_2": share(count["delta_2"])}


def _highest(strata: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The stratum whose γ has the highest upper bound; the higher rate, then the larger one, breaks ties."""
    every = [
        {"stratification": stratification, "stratum": name, "n": shares["n"], **shares["gamma"]}
        for stratification, own in strata.items()
        for name, shares in own.items()
    ]
    return max(every, key=lambda entry: (entry["upper"], entry["rate"], entry["n"]), default=None)
