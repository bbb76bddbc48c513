"""What a model writes has the probabilities that it says, and depends on nothing beside."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redactory.evaluation.generation import generate_texts
from redactory.foundation.errors import ConfigurationError
from redactory.training.model import LanguageModel, build_language_network
from redactory.training.models.settings import FolderSettings
from redactory.training.tokenizer import FolderTokenizer
from tests.evaluation.small_model import Parrot, SmallModel
from tests.training.tiny_folders import causal_folder


def _parrot() -> Any:
    return Parrot.of(["My ID is: 417", "My dog eats 7"], 0.9)


def test_texts_come_with_the_probabilities_that_the_model_says() -> None:
    texts = generate_texts(_parrot(), 2_000, 1, prompts=["My "])
    counts = Counter(texts)
    # after "My " the two texts go on with I and d, 0.45 each and a little of the rest
    for sign in "Id":
        assert abs(counts[sign] / 2_000 - 0.4515) < 0.045
    flat = Counter(generate_texts(Parrot.of([], 0.0), 3_000, 1))
    size = Parrot.of([], 0.0).tokenizer.size
    expected = 3_000 / size
    # begin and end write nothing and stand together under the empty text
    excess = sum((n - expected) ** 2 / expected for text, n in flat.items() if text)
    assert excess < size + 6 * np.sqrt(2 * size)


def test_temperature_and_top_k_do_what_they_say() -> None:
    model = _parrot()
    assert generate_texts(model, 3, 20, temperature=0.0, prompts=["My I"]) == ["D is: 417"] * 3
    only = generate_texts(model, 200, 1, top_k=2, prompts=["My "])
    assert set(only) == {"I", "d"}
    cold = generate_texts(model, 200, 1, temperature=0.05, prompts=["My "])
    assert set(cold) == {"I", "d"}


def test_a_text_depends_neither_on_its_neighbours_nor_on_their_prompts() -> None:
    model = _parrot()
    alone = generate_texts(model, 1, 12, seed=3, prompts=["My "])
    many = generate_texts(model, 30, 12, seed=3, prompts=["My ", "My dog eats 7 and long", "M"])
    assert many[0] == alone[0]
    assert generate_texts(model, 30, 12, seed=4, prompts=["My "])[0] != alone[0]
    assert len(set(many)) > 5


def test_a_trained_network_completes_what_it_knows(model: SmallModel) -> None:
    writer: Any = model
    assert generate_texts(writer, 1, 10, temperature=0.0, prompts=["My ID is: "]) == ["417"]
    assert any("417" in text for text in generate_texts(writer, 40, 16, seed=1))


def test_a_transformer_writes_within_its_context(tmp_path: Path) -> None:
    folder = causal_folder(tmp_path / "gpt2", "gpt2")
    tokenizer = FolderTokenizer.from_folder(folder, True)
    settings = FolderSettings(kind="folder", folder=folder)
    model = LanguageModel(tokenizer, build_language_network(settings, tokenizer).double())
    texts = generate_texts(model, 3, 20, prompts=["word " * 60, "a"], seed=1)
    assert all(texts)
    with pytest.raises(ConfigurationError, match="context"):
        generate_texts(model, 1, 64)


@pytest.mark.parametrize("wrong", [{"count": -1}, {"max_tokens": 0}, {"temperature": -0.1}, {"top_k": 0}])
def test_arguments_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        generate_texts(_parrot(), **{"count": 1, "max_tokens": 1, **wrong})
