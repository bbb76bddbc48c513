"""Linkage: a corpus whose people give themselves away is linked, one whose people do not is not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.detectors.engine import EngineOutput, Span
from redactory.evaluation.linkage import (
    ReleasedExample,
    count_residual_identifiers,
    find_linkage_claims,
    iter_phrases,
    run_linkage_attack,
)

PLAIN = ("the", "order", "came", "late", "and", "I", "want", "my", "money", "back", "please", "tell", "me")
WORDS = st.sampled_from(["a", "b", "c", "<MASK>", "B"])


def _corpus(people: int, habit: bool, seed: int = 1) -> tuple[list[ReleasedExample], list[ReleasedExample]]:
    """A public and a private point of each person; with ``habit`` both hold a word of her own."""
    draw = random.Random(seed)
    public, private = [], []
    for number in range(people):
        own = f"quirk{number}" if habit else ""
        author = frozenset({f"author {number}"})
        said, hidden = (" ".join(draw.choices(PLAIN, k=7)) for _ in range(2))
        public.append(ReleasedExample(f"p{number}", f"{said} {own}", author))
        private.append(ReleasedExample(f"q{number}", f"{hidden} <MASK> {own} <MASK>", author))
    draw.shuffle(public)
    return public, private


def test_people_with_a_word_of_their_own_are_linked_and_those_who_share_their_words_are_not() -> None:
    found = run_linkage_attack(*_corpus(150, habit=True))
    assert found["claimed"] == 150
    assert found["share"]["value"] > 0.95
    assert found["share"]["low"] > 0.9
    assert found["excess"]["low"] > 0.9
    assert found["chance"]["value"] == pytest.approx(1 / 150)
    found = run_linkage_attack(*_corpus(150, habit=False))
    assert found["claimed"] > 30, "a phrase of three common words is rare too: there is something to claim"
    assert found["share"]["value"] < 0.1
    assert found["excess"]["low"] <= 0.0 <= found["excess"]["high"]


def test_chance_is_the_mean_over_all_ways_of_dealing_the_claims() -> None:
    public, private = _corpus(40, habit=True)
    # one public text that ten people wrote: its claims are right more often by chance
    crowd = frozenset(f"author {n}" for n in range(10))
    public.append(ReleasedExample("crowd", "fortytwo zebras", crowd))
    private[20] = ReleasedExample("q20", "fortytwo zebras <MASK>", private[20].authors)
    found = run_linkage_attack(public, private)
    made = list(find_linkage_claims([p.text for p in public], [p.text for p in private]))
    every = [not point.authors.isdisjoint(public[place].authors) for (_, place), point in product(made, private)]
    assert found["chance"]["value"] == pytest.approx(sum(every) / len(every))
    assert found["chance"]["value"] > 1 / len(private)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=8), st.integers(1, 3))
def test_a_phrase_is_a_run_of_words_between_masks(words: list[str], longest: int) -> None:
    runs = {
        tuple(word.lower() for word in words[i:j])
        for i in range(len(words))
        for j in range(i + 1, min(i + longest, len(words)) + 1)
        if "<MASK>" not in words[i:j]
    }
    phrases = {phrase for *_, phrase in iter_phrases(" ".join(words), longest)}
    assert phrases == {" ".join(run) for run in runs}


def test_a_phrase_that_many_public_points_hold_ties_nothing() -> None:
    public = ["red kite", "red kite", "red kite", "blue whale"]
    assert list(find_linkage_claims(public, ["a red kite", "a blue whale"])) == [(1, 3)]
    assert not list(find_linkage_claims(["red kite", "red kite"], ["red kite"])), "two that weigh the same are no claim"
    assert not list(find_linkage_claims([], ["red kite"]))


def test_nothing_to_link_is_null() -> None:
    found = run_linkage_attack([], [ReleasedExample("q", "hello", frozenset({"a"}))])
    assert found["claimed"] == 0
    assert found["share"] == {"value": None, "low": None, "high": None}
    assert found["share_of_private"]["value"] == 0.0


def test_residual_hits_are_counted_beside_masks_and_failures() -> None:
    def read(texts: Sequence[str]) -> list[EngineOutput]:
        return [
            EngineOutput(failure="too_long")
            if "long" in text
            else EngineOutput(
                tuple(
                    Span(text.index(word), text.index(word) + len(word), "NAME", 1.0, "test")
                    for word in ("Zoe", "<MASK>", "MASK> Li")
                    if word in text
                )
            )
            for text in texts
        ]

    points = [("1", "Zoe went"), ("2", "<MASK> went"), ("3", "so long"), ("4", "it went"), ("5", "<MASK> Li")]
    found = count_residual_identifiers(read, points)
    assert (found["looked_at"], found["failed"], found["held"]) == (5, 1, 1)
    assert found["share"]["value"] == 0.25
    assert found["share"]["low"] < 0.25 < found["share"]["high"]
    assert found["listed"] == [{"example_id": "1", "labels": {"NAME": 1}}]
    assert "Zoe" not in str(found)
    sampled = count_residual_identifiers(
        read, [(str(n), "Zoe" if n % 4 == 0 else "it") for n in range(400)], max_examples=100
    )
    assert sampled["looked_at"] == 100
    assert sampled["share"]["low"] < 0.25 < sampled["share"]["high"]
