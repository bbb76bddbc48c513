"""The tokenizer is an exact inverse, spells numbers, and is a function of public text alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.redaction.mask import MASK
from redactory.training import Tokenizer

PUBLIC = ["My name is on the order.", "the order is late", "My ID card", "Füße und Straße Straße", "x² m²"]
TOKENIZER = Tokenizer.from_texts(PUBLIC, size=100)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(
    st.sampled_from([MASK, " order", "order", "  ", "7", "٣", "²", "<", "MASK>", "Straße", "\n", "😀", "My"])
).map("".join)


@given(TEXTS)
def test_decoding_is_the_exact_inverse(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(TOKENIZER.mask_id <= number < TOKENIZER.size for number in ids)


@given(st.text("0123456789", min_size=6, max_size=6))
def test_a_number_is_one_token_a_digit_after_a_fixed_prefix(digits: str) -> None:
    prefix = TOKENIZER.encode("My ID is: ")
    ids = TOKENIZER.encode(f"My ID is: {digits}")
    assert ids[: len(prefix)] == prefix
    assert [TOKENIZER.decode([number]) for number in ids[len(prefix) :]] == list(digits)


def test_no_word_holds_anything_but_letters_even_where_public_text_is_full_of_numbers() -> None:
    tokenizer = Tokenizer.from_texts(["a1 b22 333 x² ½ Ⅷ m² ٣٤ 4th"] * 5, size=100)
    assert all(word.strip().isalpha() for word in tokenizer.words)
    assert len(tokenizer.encode("333")) == 3


def test_the_mask_is_one_token_wherever_it_stands() -> None:
    assert TOKENIZER.encode(f"My{MASK}order") == [
        *TOKENIZER.encode("My"),
        TOKENIZER.mask_id,
        *TOKENIZER.encode("order"),
    ]


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_the_vocabulary_depends_on_the_texts_and_not_on_their_order(
    shuffle: random.Random, size: int
) -> None:
    shuffled = list(PUBLIC)
    shuffle.shuffle(shuffled)
    assert Tokenizer.from_texts(shuffled, size) == Tokenizer.from_texts(PUBLIC, size)
    assert len(Tokenizer.from_texts(PUBLIC, size).words) <= size


def test_words_stand_by_count_and_then_by_code_point() -> None:
    assert Tokenizer.from_texts(["bb aa aa cc"], size=9).words == (" aa", " cc", "bb")
    assert Tokenizer.from_texts(["bb aa aa cc"], size=9, minimum_count=2).words == (" aa",)


def test_json_round_trip() -> None:
    assert Tokenizer.from_json(TOKENIZER.to_json()) == TOKENIZER


def test_a_lone_surrogate_is_refused_without_quoting_the_text() -> None:
    with pytest.raises(ValueError, match="lone surrogate") as caught:
        TOKENIZER.encode("secret \ud800")
    assert "secret" not in str(caught.value)
