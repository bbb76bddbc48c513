"""Vary the rows, join some of them to longer texts, and write them as numbered pieces.

    python examples/encoder_tagger/encode.py ROWS WORK OUT --seed 1

A row is {"text", "spans": [{start, end, label}], "ignored": [[start, end]], "source"}.  WORK has the
files of ``unpack.py``.  A second seed gives other variants of the same rows, for another epoch.
"""

from __future__ import annotations

import argparse
import json
import random
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pieces import IGNORED, WINDOW, number_labels, read_tokenizer

_OCR = {"l": "1", "O": "0", "o": "0", "I": "l", "S": "5", "e": "c", "B": "8", "a": "o", "t": "f", "i": "j"}
_OCR_RATE = 0.05
_JOINED, _JOINED_CHARS = 0.25, 500
"""The share of rows that are joined to an earlier row of their language, if that is no longer than this."""
_BATCH = 2_000
Row = dict[str, Any]


@cache
def _base_letter(letter: str) -> str:
    parts = unicodedata.normalize("NFD", letter)
    return parts[0] if len(parts) > 1 and unicodedata.combining(parts[1]) else letter


def _without_accents(text: str, draw: random.Random) -> str:
    return "".join(map(_base_letter, text))


def _scanned(text: str, draw: random.Random) -> str:
    return "".join(_OCR.get(c, c) if draw.random() < _OCR_RATE else c for c in text)


_VARIANTS: tuple[tuple[float, Callable[[str, random.Random], str]], ...] = (
    (0.13, lambda text, draw: text.lower()),
    (0.05, lambda text, draw: text.upper()),
    (0.02, lambda text, draw: text.title()),
    (0.035, _without_accents),
    (0.025, _scanned),
)


def vary(text: str, draw: random.Random) -> str:
    """The text as somebody in a hurry, a form or a scanner writes it; offsets stay what they are."""
    chance = draw.random()
    for share, change in _VARIANTS:
        chance -= share
        if chance < 0:
            changed = change(text, draw)
            return changed if len(changed) == len(text) else text
    return text


def join_rows(rows: list[Row], draw: random.Random) -> list[Row]:
    """The rows, a part of them appended to an earlier one of the same language."""
    last: dict[str, Row] = {}
    joined = []
    for row in rows:
        language = row["source"].split(".")[0]
        before = last.get(language)
        if before is None or draw.random() >= _JOINED or len(before["text"]) >= _JOINED_CHARS:
            last[language] = row
            joined.append(row)
            continue
        gap = draw.choice((" ", "\n", "\n\n", " "))
        moved = len(before["text"]) + len(gap)
        before["text"] += gap + row["text"]
        before["spans"] += [{**s, "start": s["start"] + moved, "end": s["end"] + moved} for s in row["spans"]]
        before["ignored"] += [[start + moved, end + moved] for start, end in row["ignored"]]
    return joined


def encode_rows(rows: list[Row], work: Path, draw: random.Random) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Piece numbers and labels of each window of each row, with a start and an end piece."""
    tokenizer = read_tokenizer(work)
    for first in range(0, len(rows), _BATCH):
        batch = rows[first : first + _BATCH]
        texts = [vary(row["text"], draw) for row in batch]
        for row, encoding in zip(batch, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
            spans = [(s["start"], s["end"], s["label"]) for s in row["spans"]]
            labels, numbers = number_labels(encoding.offsets, spans, row["ignored"]), np.array(encoding.ids, np.int32)
            for start in range(0, len(numbers), WINDOW):
                window = slice(start, start + WINDOW)
                yield (
                    np.concatenate(([0], numbers[window], [2])),
                    np.concatenate(([IGNORED], labels[window], [IGNORED])),
                )


def main() -> None:
    """Write one file of pieces."""
    parser = argparse.ArgumentParser(description="rows as numbered pieces")
    for name in ("rows", "work", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    rows = [json.loads(line) for line in arguments.rows.read_text(encoding="utf-8").splitlines()]
    draw.shuffle(rows)
    windows = list(encode_rows(join_rows(rows, draw), arguments.work, draw))
    offsets = np.cumsum([0, *(len(numbers) for numbers, _ in windows)])
    numbers, labels = (np.concatenate(parts) for parts in zip(*windows, strict=True))
    with arguments.out.open("wb") as file:  # a name would get the suffix .npz
        np.savez(file, numbers=numbers.astype(np.int32), labels=labels.astype(np.int8), offsets=offsets)
    print(len(windows), "windows,", offsets[-1], "pieces")


if __name__ == "__main__":
    main()
