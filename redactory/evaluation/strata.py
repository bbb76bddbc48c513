"""Strata of labelled secrets: kinds of secrets that a policy might miss far more often than the others.

"γ belongs to the slot": a recall of 0.9 over all secrets can hide a kind that is always missed
(``docs/guarantees.md``, "Amplification by redaction").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

TEMPLATE = "template_id"
"""The key of a labelled span that names the template its text was made from, where there is one."""

_LETTERS = re.compile(r"[^\W\d_]+")


def strata_of(secret: str, span: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The (stratification, stratum) pairs of one labelled secret: casing, label and, if known, template."""
    yield "casing", casing(secret)
    yield "label", str(span["label"])
    if span.get(TEMPLATE) is not None:
        yield "template", str(span[TEMPLATE])


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
