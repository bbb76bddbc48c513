"""Encoders for the tests of LDP-NLP: one of stage 1, and one of Hugging Face, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from redactory.training.ldp.settings import EncoderSettings

GOOD, BAD = ("good", "fine", "lovely", "great"), ("bad", "poor", "awful", "dreadful")
THINGS = ("film", "meal", "trip", "book", "room")
ROWS = [
    (f"a {word} {thing}", label)
    for label, words in (("+", GOOD), ("-", BAD))
    for word in words
    for thing in THINGS
]
SMALL: dict[str, Any] = {
    "model": {"kind": "bilstm", "embedding_size": 8, "hidden_size": 6},
    "dimension": 4,
    "epochs": 12,
    "learning_rate": 2e-2,
    "batch_size": 8,
    "max_tokens": 12,
    "minimum_count": 1,
    "threads": 1,
}


def small(**changes: Any) -> EncoderSettings:
    """Settings of a stage 1 that takes well under a second."""
    return EncoderSettings(**{**SMALL, **changes})


def write_rows(path: Path) -> Path:
    """Public labelled text of two classes."""
    lines = [json.dumps({"text": text, "label": label}) for text, label in ROWS]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
