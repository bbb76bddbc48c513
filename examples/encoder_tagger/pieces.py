"""The tokenizer, and labelled rows as numbered pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

LABELS = (
    "O", "ACCOUNT", "AGE", "CREDIT_CARD", "DATE_TIME", "EMAIL_ADDRESS", "IBAN_CODE", "IDENTIFIER", "IP_ADDRESS",
    "LOCATION", "MISC", "NRP", "ORGANIZATION", "PERSON", "PHONE_NUMBER", "POSTAL_CODE", "STREET_ADDRESS", "TITLE",
    "URL", "US_SSN",
)  # fmt: skip
IGNORED = -100
"""The label of a piece that does not count: its source does not say what it is."""
WINDOW = 254
Span = tuple[int, int, str]


def make_tokenizer(pieces: Sequence[str], scores: Sequence[float]) -> Tokenizer:
    """A unigram tokenizer, as XLM-R's: NFKC, words between white space, the space before a word as ``▁``."""
    tokenizer = Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    return tokenizer


def read_tokenizer(work: Path) -> Tokenizer:
    """The tokenizer of ``unpack.py``."""
    stored = json.loads((work / "pieces.json").read_text(encoding="utf-8"))
    return make_tokenizer(stored["pieces"], stored["scores"])


def number_labels(
    offsets: Sequence[tuple[int, int]], spans: Sequence[Span], ignored: Sequence[tuple[int, int]]
) -> NDArray[np.int8]:
    """The label of each piece: that of the span it overlaps."""
    starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    labels = np.zeros(len(starts), np.int8)
    for start, end in ignored:
        labels[(starts < end) & (ends > start)] = IGNORED
    for start, end, label in spans:
        labels[(starts < end) & (ends > start)] = LABELS.index(label)
    return labels
