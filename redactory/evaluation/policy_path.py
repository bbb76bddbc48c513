"""A path of conservative policies from the safest to the riskiest, fixed before any label is seen.

Along the path a policy never makes private what an earlier one leaves public: bounds only fall and rules
only go.  So the public side grows from policy to policy, and with it the set of secrets that are missed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from redactory.detectors import (
    ConservativePolicy,
    ConservativeSettings,
    Detection,
    DetectSettings,
    Reading,
    StrictPolicy,
    policies_of,
)
from redactory.detectors.rules import SOFT_RULES, words_of
from redactory.detectors.settings import RuleName
from redactory.foundation.errors import ConfigurationError
from redactory.redaction import PUBLIC, route

DROPPED: tuple[RuleName, ...] = ("word", "name", "capital", "symbol", "digit")
"""Every rule, in the order in which the path gives them up: much text for few secrets goes first."""

DOUBTS = (0.0, *(digit * 10.0**-place for place in range(8, 0, -1) for digit in (1, 2, 3, 5, 7)))
"""1 - ``sure``: how much doubt about a word forgives the hit of a soft rule on it."""

ODDS = 100.0
"""A word that a soft rule points at counts as this many times as likely to be secret as another one.

So the bound on 1 - P(plain) for words without such a hit is this many times as wide: the ratio of the two
bounds is that of prior odds, as the test with the fewest false alarms would have it.  On labelled news, web
and template texts the public share at a miss rate of 0.1 to 1 % was about the same from 30 to 300, and
lower at 10 and below.
"""


def policy_path(detect: DetectSettings) -> list[ConservativeSettings]:
    """The policies in order; a function of the settings alone.

    It begins with every rule that the language has and every word private that is not certainly plain;
    gives up the rules that ``detect`` does not name and that confidence cannot forgive; then lets both
    bounds fall together; then gives up the other rules one by one.
    """
    own = detect.conservative
    every = [rule for rule in DROPPED if rule in own.rules or rule != "word" or _has_words(detect.language)]

    def policy(doubt: float, rules: Sequence[RuleName]) -> ConservativeSettings:
        return ConservativeSettings(
            plain_confidence=_complement(ODDS * doubt),
            sure=_complement(doubt),
            rules=tuple(reversed(rules)),
        )

    kept, start = list(every), [policy(0.0, every)]
    for rule in every:
        if rule not in own.rules and rule not in SOFT_RULES:
            kept.remove(rule)
            start.append(policy(0.0, kept))
    falling = [policy(doubt, kept) for doubt in DOUBTS[1:]]
    return [*start, *falling, *(policy(DOUBTS[-1], kept[gone:]) for gone in range(1, len(kept) + 1))]


def policies_along(detect: DetectSettings, path: Sequence[ConservativeSettings]) -> list[ConservativePolicy]:
    """π_c of each step of ``path``, in the configuration ``detect``."""
    return [policies_of(detect.model_copy(update={"conservative": step}))[1] for step in path]


def first_public(
    text: str, reading: Reading, strict: StrictPolicy, path: Sequence[ConservativePolicy]
) -> int:
    """The number, from 0, of the first policy of ``path`` with which F leaves the point public.

    ``len(path)`` where it never goes public.  Bisects: what one policy leaves public all later ones do.
    """
    marked = tuple(strict.marks(text, reading)) if reading.failure is None else ()

    def is_public(policy: ConservativePolicy) -> bool:
        hits = tuple(policy.marks(text, reading)) if reading.failure is None else ()
        return route(text, Detection(marked, hits, reading.failure)).side == PUBLIC

    return bisect_left(path, True, key=is_public)


def _has_words(language: str) -> bool:
    try:
        return bool(words_of(language))
    except ConfigurationError:
        return False


def _complement(doubt: float) -> float:
    return round(max(0.0, 1.0 - doubt), 10)
