"""Parameters are counted without building a network, and equal those of the network that is built."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from redactory.training.model import build_classifier, build_language_network
from redactory.training.parameter_counts import count_max_parameters
from redactory.training.settings import TrainSettings
from redactory.training.tokenizer import Tokenizer

WORDS = {f"w{chr(97 + number % 26)}{chr(97 + number // 26)}x": 3 for number in range(600)}
LARGEST = Tokenizer.from_counts(WORDS, 300)
"""As many pieces as are allowed."""
SIZES = {"embedding_size": 5, "hidden_size": 9}
MODELS = [
    ("next-word", {"kind": "lstm", "layers": 2, **SIZES}),
    ("next-word", {"kind": "awd-lstm", **SIZES}),
    ("next-word", {"kind": "awd-lstm", "layers": 1, **SIZES}),
    ("next-word", {"kind": "gpt2", "width": 8, "layers": 2, "heads": 2}),
    ("next-word", {"kind": "llama", "width": 8, "layers": 3, "heads": 2}),
    ("classify", {"kind": "lstm", **SIZES}),
    ("classify", {"kind": "awd-lstm", **SIZES}),
    ("classify", {"kind": "bilstm", **SIZES}),
    ("classify", {"kind": "bilstm", "bottleneck": 4, **SIZES}),
    ("classify", {"kind": "bag", "embedding_size": 6}),
    ("classify", {"kind": "bert", "width": 8, "layers": 2, "heads": 2}),
]


@pytest.mark.parametrize(("task", "model"), MODELS)
def test_the_count_is_that_of_the_network(task: str, model: dict[str, Any]) -> None:
    classes = ("a", "b", "c") if task == "classify" else ()
    settings = TrainSettings.model_validate(
        {"trainer": "dpsgd", "task": task, "classes": classes, "model": model, "vocabulary_size": 300}
    )
    tokenizer: Any = SimpleNamespace(size=LARGEST.size, begin_id=0, end_id=1, pad_id=2)
    network: torch.nn.Module = (
        build_classifier(settings.model, tokenizer, classes)
        if classes
        else build_language_network(settings.model, tokenizer)
    )
    assert count_max_parameters(settings) == sum(parameter.numel() for parameter in network.parameters())
