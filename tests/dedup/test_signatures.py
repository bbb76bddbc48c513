"""Words, shingles, signatures and bands: against plain Python, datasketch itself, and the formula."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.dedup.settings import NearSettings
from redactory.dedup.signatures import (
    MARGIN,
    Banding,
    Shingler,
    ShingleSets,
    choose_banding,
    compute_buckets,
    compute_signatures,
    describe_near_parameters,
)
from redactory.foundation.keys import DigestKey
from tests.dedup.worlds import KEY, WORDS

TEXTS = st.lists(
    st.text(max_size=30)
    | st.lists(st.sampled_from(["call", "me", "now", "<MASK>", "x1", "?"]), max_size=9).map(" ".join),
    max_size=12,
)


def hashed(texts: list[str], length: int, key: DigestKey = KEY) -> list[frozenset[int]]:
    sets = Shingler(key, length, WORDS).make_shingle_sets(texts)
    return [frozenset(values.tolist()) for values in np.split(sets.values, sets.offsets[1:-1])][: len(texts)]


def named(text: str, length: int) -> frozenset[tuple[str, ...]]:
    """The shingles of a text, in plain Python."""
    words = WORDS.split_words(text)
    if sum(word == "<mask>" for word in words) >= sum(word != "<mask>" for word in words):
        words = [f"all of {text}"]
    return frozenset(tuple(words[i : i + length]) for i in range(max(1, len(words) - length + 1)))


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.integers(1, 4))
def test_shingle_sets_are_those_of_plain_python_up_to_names(texts: list[str], length: int) -> None:
    own, plain = hashed(texts, length), [named(text, length) for text in texts]
    for one, other in itertools.combinations_with_replacement(range(len(texts)), 2):
        assert len(own[one] & own[other]) == len(plain[one] & plain[other])
    sets = Shingler(KEY, length, WORDS).make_shingle_sets(texts)
    for values in np.split(sets.values, sets.offsets[1:-1])[: len(texts)]:
        assert len(values), "no set is empty"
        assert (np.diff(values.astype(object)) > 0).all(), "sorted, each value once"


@settings(max_examples=30, deadline=None)
@given(TEXTS)
def test_a_set_depends_on_its_text_alone_and_on_the_key(texts: list[str]) -> None:
    assert hashed(texts, 2) == [hashed([text], 2)[0] for text in texts]
    for own, other in zip(hashed(texts, 2), hashed(texts, 2, DigestKey(b"another key, for tests")), strict=True):
        assert not own & other


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Call ME, now!", ["call", "me", "now"]),
        ("I am <MASK>'s friend", ["i", "am", "<mask>", "s", "friend"]),
        ("straße STRASSE", ["strasse", "strasse"]),
        ("東京で会う", list("東京で会う")),
        ("?! ...", []),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert WORDS.split_words(text) == words


# as the English engines mask Finnish, Turkish, Japanese, German and Hungarian
MASKED = [
    "<MASK>.",
    "<MASK>?",
    "<MASK>。",
    "<MASK>, <MASK>.",
    "<MASK>. <MASK>, <MASK>",
    "<MASK> bir <MASK>.",
    "<MASK>, bir <MASK>!",
    "<MASK> bir. <MASK> bir <MASK>",
    "Ich <MASK>.",
    "ich <MASK>?",
    "Ich <MASK>. <MASK>, ich <MASK>!",
    "<MASK> für <MASK>.",
    "<MASK>, <MASK> on <MASK>. <MASK>?",
    "<MASK>. <MASK> on <MASK>, <MASK>",
]


def test_texts_that_are_masked_by_half_are_near_to_themselves_alone() -> None:
    """What is left of them would be alike whatever was said: rows that differ would be dropped."""
    sets = hashed([*MASKED, *MASKED], 2)
    assert sets[: len(MASKED)] == sets[len(MASKED) :]
    assert len({*sets}) == len(MASKED)
    assert all(len(own) == 1 for own in sets)
    # one more word, and it is compared as any text
    (less,) = hashed(["Ich heiße <MASK>."], 2)
    assert less == hashed(["ich heiße, <MASK>"], 2)[0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Call 555-1234, please", "call  9-1  PLEASE!", True),
        ("I met <MASK>.", "i met <mask>", True),
        ("ﬁne", "fine", True),
        ("call me", "call you", False),
        ("?!", "!?", False),
        ("?!", "", False),
        ("call #", "call", True),
        ("call #", "call 1", False),
    ],
)
def test_the_local_key(one: str, other: str, same: bool) -> None:
    assert (WORDS.fold_text(one) == WORDS.fold_text(other)) is same


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=40), max_size=20), st.integers(1, 96))
def test_signatures_are_datasketchs_bit_for_bit(values: list[set[int]], permutations: int) -> None:
    ordered = [sorted(own) for own in values]
    sets = ShingleSets(
        np.array(list(itertools.chain(*ordered)), np.uint64), np.cumsum([0, *map(len, ordered)]).astype(np.int64)
    )
    theirs = MinHash.bulk(
        [[v >> 32 for v in own] for own in ordered], num_perm=permutations, hashfunc=lambda value: value
    )
    own = compute_signatures(sets, permutations)
    assert own.shape == (len(values), permutations)
    assert all((a == b.hashvalues).all() for a, b in zip(own, theirs, strict=True))


def test_many_and_long_texts_are_signed_in_pieces() -> None:
    chance = np.random.default_rng(5)
    lengths = [3, 20_000, 1, 9_000, *chance.integers(1, 60, 400).tolist()]
    values = chance.integers(0, 2**64, sum(lengths), dtype=np.uint64)
    offsets = np.cumsum([0, *lengths]).astype(np.int64)
    own = compute_signatures(ShingleSets(values, offsets), 16)
    for i in range(len(lengths)):
        alone = values[offsets[i] : offsets[i + 1]]
        again = compute_signatures(ShingleSets(alone, np.array([0, len(alone)])), 16)
        assert (own[i] == again[0]).all()


@pytest.mark.parametrize("threshold", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0])
def test_the_banding_finds_what_it_must_within_its_budget(threshold: float) -> None:
    banding = choose_banding(threshold, 128)
    assert banding.permutations <= 128
    assert banding.compute_comparison_probability(min(threshold + MARGIN, (1 + threshold) / 2)) >= 0.99
    vain = np.mean([banding.compute_comparison_probability(s) for s in np.linspace(0, threshold, 50)])
    for rows, bands in itertools.product(range(1, 129), range(1, 129)):
        other = Banding(bands, rows)
        if (
            rows * bands <= 128
            and other.compute_comparison_probability(min(threshold + MARGIN, (1 + threshold) / 2)) >= 0.99
        ):
            assert (
                np.mean([other.compute_comparison_probability(s) for s in np.linspace(0, threshold, 50)]) >= vain - 0.01
            )


def test_a_pair_shares_a_bucket_as_often_as_the_formula_says() -> None:
    banding, common, own, trials = Banding(16, 6), 14, 3, 400  # similarity 14 / 20
    chance = np.random.default_rng(6)
    drawn = chance.integers(0, 2**64, (trials, common + 2 * own), dtype=np.uint64)
    one, other = drawn[:, : common + own], drawn[:, own:]
    offsets = (np.arange(trials + 1) * (common + own)).astype(np.int64)
    signed = [compute_signatures(ShingleSets(np.ascontiguousarray(v).ravel(), offsets), 96) for v in (one, other)]
    found = np.zeros(trials, bool)
    for a, b in zip(*(compute_buckets(s, banding) for s in signed), strict=True):
        found |= a == b
    expected = banding.compute_comparison_probability(0.7)
    assert abs(found.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / trials)


def test_bands_do_not_share_buckets_and_order_counts() -> None:
    first, second = compute_buckets(np.array([[1, 2, 1, 2], [2, 1, 1, 2]], np.uint32), Banding(2, 2))
    assert first[0] != second[0]
    assert first[0] != first[1]
    assert second[0] == second[1]


def test_the_parameters_are_printed() -> None:
    told = describe_near_parameters(NearSettings(threshold=0.7))
    assert (told["bands"], told["rows"]) == (16, 6)
    assert told["found_at"]["0.8"] > 0.99 > told["found_at"]["0.5"]
