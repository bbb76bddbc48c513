"""How often detection misses a secret, measured on labelled secrets, with exact (Clopper-Pearson) bounds.

A miss is what the theorem needs it to be (``docs/guarantees.md``, "Amplification by redaction"): the whole
pipeline F of a point is run twice, on the text as it is and on the text in which ``<MASK>`` replaces the one
secret.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from redactory.foundation.intervals import upper_bound
from redactory.foundation.progress import Progress, silent
from redactory.redaction.mask import MASK

DetectFate = Callable[[Sequence[str]], Sequence[tuple[str, str]]]
"""F: texts of points -> (side or "quarantined", redacted text) of each."""

_CHUNK_SECRETS = 4096


def measure_misses(
    detect_fate: DetectFate,
    texts: Sequence[str],
    spans: Sequence[Sequence[Mapping[str, Any]]],
    confidence: float = 0.95,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Misses of γ and δ₂ over every labelled secret of ``texts``, in all and by label.

    ``texts`` are points; ``spans[i]`` the labelled secrets of ``texts[i]``, {start, end, label} each, in code
    points.  With s the text and s' the text in which that one secret is ``<MASK>``: a **γ miss** is
    F(s) ≠ F(s'), a **δ₂ miss** is a different fate of the two, a quarantined point counting as private
    (CRT, Theorem 8.3, as corrected in ``docs/guarantees.md``, "Amplification by redaction").  Each bound
    holds at ``confidence``, both together at 2·confidence - 1, for secrets drawn like these, which were not
    used to tune the policies (``docs/guarantees.md``, "Coverage failure").

    Returns {n, confidence, joint_confidence, gamma, delta_2, labels: {label: {n, gamma, delta_2}},
    highest_gamma: {label, upper} or null}, where gamma and delta_2 are {misses, rate, upper}.
    """
    seen: Counter[str] = Counter()
    gamma: Counter[str] = Counter()
    delta_2: Counter[str] = Counter()
    total = sum(len(row) for row in spans)
    secrets = _secrets(texts, spans)
    while chunk := list(islice(secrets, _CHUNK_SECRETS)):
        whole = detect_fate([text for _, text, _ in chunk])
        without = detect_fate([masked for _, _, masked in chunk])
        for (label, _, _), left, right in zip(chunk, whole, without, strict=True):
            seen[label] += 1
            gamma[label] += tuple(left) != tuple(right)
            delta_2[label] += _side(left) != _side(right)
        progress("recall", seen.total(), total, "secrets")
    labels = {label: _shares(seen[label], gamma[label], delta_2[label], confidence) for label in sorted(seen)}
    worst = max(labels, key=lambda label: labels[label]["gamma"]["upper"], default=None)
    return {
        **_shares(seen.total(), gamma.total(), delta_2.total(), confidence),
        "confidence": confidence,
        "joint_confidence": max(0.0, 2 * confidence - 1),
        "labels": labels,
        "highest_gamma": worst and {"label": worst, "upper": labels[worst]["gamma"]["upper"]},
    }


def _secrets(
    texts: Sequence[str], spans: Sequence[Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[str, str, str]]:
    for number, (text, row) in enumerate(zip(texts, spans, strict=True)):
        for span in row:
            start, end = int(span["start"]), int(span["end"])
            if not 0 <= start < end <= len(text):
                raise ValueError(f"text {number}: a labelled span does not lie in it")
            yield str(span["label"]), text, text[:start] + MASK + text[end:]


def _side(fate: tuple[str, str]) -> str:
    return "private" if fate[0] == "quarantined" else fate[0]


def _shares(n: int, gamma: int, delta_2: int, confidence: float) -> dict[str, Any]:
    def share(misses: int) -> dict[str, Any]:
        rate = misses / n if n else None
        return {"misses": misses, "rate": rate, "upper": upper_bound(misses, n, confidence)}

    return {"n": n, "gamma": share(gamma), "delta_2": share(delta_2)}
