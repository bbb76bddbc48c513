"""The tokenizer is an exact inverse, spells numbers, and is a function of public text alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from redactory.foundation.errors import ConfigurationError
from redactory.redaction.mask import MASK
from redactory.training import Tokenizer
from redactory.training.tokenizer import FolderTokenizer, compute_tokenizer_digest, parse_redactory_tokenizer
from tests.training.tiny_folders import causal_folder

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
    mask = TOKENIZER.mask_id
    assert TOKENIZER.encode(f"My{MASK} order") == [*TOKENIZER.encode("My"), mask, *TOKENIZER.encode("order")]


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_the_vocabulary_depends_on_the_texts_and_not_on_their_order(shuffle: random.Random, size: int) -> None:
    shuffled = list(PUBLIC)
    shuffle.shuffle(shuffled)
    assert Tokenizer.from_texts(shuffled, size) == Tokenizer.from_texts(PUBLIC, size)
    assert len(Tokenizer.from_texts(PUBLIC, size).words) <= size


def test_a_word_is_one_entry_wherever_it_stands() -> None:
    [order] = TOKENIZER.encode("order")
    for text in ("the order", "My\norder", "(order", "and/order", "re-order"):
        assert TOKENIZER.encode(text)[-1] == order
    assert {word for word in TOKENIZER.words if word.strip() == "order"} == {" order"}


def test_a_word_that_is_rare_does_not_bear_on_the_pieces() -> None:
    assert Tokenizer.from_texts(["bb aa aa cc"], size=9, minimum_count=2).words == (" a", " aa")


@given(text=TEXTS)
def test_plain_transformers_has_the_same_ids(library: Any, text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert library.encode(text, add_special_tokens=False) == ids
    assert TOKENIZER.decode(ids) == library.decode(ids) == text
    assert len(TOKENIZER.token_offsets(text)) == len(ids)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("library")
    TOKENIZER.save_for_library(folder, 128, add_end_token=False)
    value = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert (parse_redactory_tokenizer(value), compute_tokenizer_digest(value)) == (TOKENIZER, TOKENIZER.digest)
    return AutoTokenizer.from_pretrained(folder)


def test_json_round_trip() -> None:
    assert parse_redactory_tokenizer(TOKENIZER.to_json()) == TOKENIZER


def test_a_lone_surrogate_is_refused_without_quoting_the_text() -> None:
    with pytest.raises(ValueError, match="lone surrogate") as caught:
        TOKENIZER.encode("secret \ud800")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_without_its_tokenizer_is_refused(kind: str, tmp_path: Path) -> None:
    """The library makes an empty one of it, with which a training would learn nothing and say so nowhere."""
    folder = causal_folder(tmp_path / kind, kind)
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(ConfigurationError, match=f"(tokenizer.*{kind}|{kind} has no tokenizer).*save_pretrained"):
        FolderTokenizer.from_folder(folder)
