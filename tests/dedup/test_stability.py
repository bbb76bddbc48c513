"""Rule S1: one text more, less or other changes the kept texts by one substitution at most.

``docs/guarantees.md``, deduplication.  Redaction comes first, so that a secret that is caught changes
nothing.  The rules that the page calls unstable are here too, as sabotage: the same check must find them.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dedup.worlds import planned, substitutions

Rule = Callable[[list[str]], list[str]]


def redact(text: str) -> str:
    """A perfect policy for secrets that are digits; a function of the text alone."""
    return re.sub(r"\d+", "<MASK>", text)


def kept_by_the_room(texts: list[str]) -> list[str]:
    """Redact, then keep the first of each digest: the real digests, ranges and plan, in two partitions."""
    with tempfile.TemporaryDirectory() as folder:
        return planned(Path(folder), [redact(text) for text in texts], "exact")


def changed(texts: list[str], place: int, text: str | None) -> list[str]:
    return texts[:place] + ([] if text is None else [text]) + texts[place + 1 :]


WORDS = st.sampled_from(
    ["ssn 1", "ssn 2", "ssn 34", "ssn <MASK>", "hello", "hello you", "Hello", "call 5", ""]
)


@settings(max_examples=12, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8), st.data())
def test_one_text_changes_at_most_one(texts: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(texts) - 1))
    other = changed(texts, place, data.draw(st.none() | WORDS))
    kept = kept_by_the_room(texts)
    assert len(kept) == len(set(kept)), "the kept texts are a set"
    assert set(kept) == {redact(text) for text in texts}
    assert substitutions(kept, kept_by_the_room(other)) <= 1


@settings(max_examples=4, deadline=None)
@given(st.lists(WORDS, max_size=8), st.integers(0, 8), st.integers(0, 99), st.integers(0, 99))
def test_a_caught_secret_changes_nothing(texts: list[str], place: int, one: int, other: int) -> None:
    before, after = texts[:place], texts[place:]
    kept = kept_by_the_room([*before, f"ssn {one}", *after])
    assert kept == kept_by_the_room([*before, f"ssn {other}", *after])
    assert kept == kept_by_the_room([*before, "ssn <MASK>", *after])


def set_rule(texts: list[str]) -> list[str]:
    """What S1 says, in one line."""
    return list(dict.fromkeys(redact(text) for text in texts))


def placeholder_rule(texts: list[str]) -> list[str]:
    """Sabotage: a duplicate stays in its place as a mask, and places count (numbered rows)."""
    seen: set[str] = set()
    rows = []
    for place, text in enumerate(redact(text) for text in texts):
        rows.append(f"{place}:{'<MASK>' if text in seen else text}")
        seen.add(text)
    return rows


def dedup_first_rule(texts: list[str]) -> list[str]:
    """Sabotage: dedup before redaction, as published."""
    return [redact(text) for text in dict.fromkeys(texts)]


def near_rule(texts: list[str]) -> list[str]:
    """Sabotage: a text that differs from a kept one in one character is dropped too."""
    kept: list[str] = []
    for text in texts:
        if not any(
            len(text) == len(k) and sum(a != b for a, b in zip(text, k, strict=True)) <= 1 for k in kept
        ):
            kept.append(text)
    return kept


SMALL = ["aa", "ab", "ba", "bb"]
SECRETS = ["s 1", "s 2", "s <MASK>", "t"]


def worst(rule: Rule, alphabet: list[str], length: int) -> int:
    """The most substitutions that changing one text can cause, over every corpus of ``length`` texts."""
    most = 0
    for texts in itertools.product(alphabet, repeat=length):
        own = rule(list(texts))
        for place, text in itertools.product(range(length), alphabet):
            most = max(most, substitutions(own, rule(changed(list(texts), place, text))))
    return most


def worst_of_a_caught_secret(rule: Rule, length: int) -> int:
    """As :func:`worst`, where only digits change into other digits or into the mask."""
    most = 0
    for texts in itertools.product(SECRETS, repeat=length):
        own = rule(list(texts))
        for place, secret in itertools.product(range(length), ["1", "2", "<MASK>"]):
            other = changed(list(texts), place, re.sub(r"\d|<MASK>", secret, texts[place]))
            most = max(most, substitutions(own, rule(other)))
    return most


def test_s1_over_every_small_corpus() -> None:
    assert worst(set_rule, SMALL, 4) == 1
    assert worst(set_rule, SECRETS, 4) == 1
    assert worst_of_a_caught_secret(set_rule, 4) == 0


@pytest.mark.parametrize("texts", [list(t) for t in itertools.product(SECRETS[:3], repeat=2)])
def test_the_room_follows_s1(texts: list[str]) -> None:
    assert kept_by_the_room(texts) == set_rule(texts)


def test_rules_that_are_not_stable_are_found() -> None:
    assert worst(placeholder_rule, SMALL, 4) == 3
    assert worst(near_rule, SMALL, 4) > 1
    assert worst_of_a_caught_secret(dedup_first_rule, 4) > 0
