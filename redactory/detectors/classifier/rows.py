"""Labelled texts as a Hugging Face token classifier takes them: windows of pieces, a label for each."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from redactory.detectors.classifier.engine import words_of
from redactory.detectors.classifier.model import Piece, trimmed
from redactory.detectors.settings import TransformersSettings
from redactory.detectors.tagger.calibration import UNKNOWN
from redactory.detectors.tagger.fitting import PLAIN, LabelledText
from redactory.foundation.errors import InputError

if TYPE_CHECKING:
    import torch


class Window(NamedTuple):
    """The model's input for one window of a text; the word and the column of each of its pieces.

    A piece that stands for no character, [CLS] say, has the word -1 and the column ``UNKNOWN``.
    """

    inputs: dict[str, list[int]]
    words: list[int]
    truth: list[int]


class ReadRow(NamedTuple):
    """A labelled text's windows, and the column of the label of each of its words."""

    windows: list[Window]
    truth: list[int]


@dataclass(frozen=True)
class RowReader:
    """Cuts labelled texts as ``TransformersEngine`` reads them: the same windows, the same words.

    ``labels`` are the model's columns, "O" among them; ``window`` is the most tokens the model takes.
    """

    tokenizer: Any
    labels: tuple[str, ...]
    window: int

    @property
    def stride(self) -> int:
        """Tokens that neighbouring windows share: the engine's default, or half of a window that is short."""
        inner = self.window - int(self.tokenizer.num_special_tokens_to_add())
        return min(int(TransformersSettings.model_fields["stride"].default), inner // 2)

    def read(self, row: LabelledText) -> ReadRow:
        """``row``, cut; every piece of a word has the word's label.  ``InputError`` without the text."""
        try:
            encoded = self.tokenizer(
                row.text,
                truncation=True,
                max_length=self.window,
                stride=self.stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
        except Exception as error:
            problem = type(error).__name__
            raise InputError(f"the base's tokenizer cannot read a labelled text ({problem})") from None
        places = [[trimmed(row.text, *ends) for ends in window] for window in encoded["offset_mapping"]]
        pieces = sorted({place for window in places for place in window if place[0] < place[1]})
        words = list(words_of(row.text, [Piece(*place, 1.0, "") for place in pieces]))
        starts = [word.start for word in words]
        truth = self._truth(words, row.spans)
        windows = []
        for index, window in enumerate(places):
            inputs = {name: encoded[name][index] for name in self.tokenizer.model_input_names}
            inside = [bisect.bisect_right(starts, start) - 1 if start < end else -1 for start, end in window]
            columns = [truth[word] if word >= 0 else UNKNOWN for word in inside]
            windows.append(Window(inputs, inside, columns))
        return ReadRow(windows, truth)

    def _truth(self, words: Sequence[Piece], spans: Sequence[tuple[int, int, str]]) -> list[int]:
        """One column a word: that of the label of a span that it shares a character with, or of "O"."""
        column = {label: number for number, label in enumerate(self.labels)}
        truth = [column[PLAIN]] * len(words)
        for start, end, label in spans:
            for number, word in enumerate(words):
                if word.start < end and word.end > start:
                    truth[number] = column.get(label, UNKNOWN)
        return truth


def batches_of(windows: Sequence[Window], pieces: int, draw: random.Random) -> list[list[Window]]:
    """Windows of about one length together, in random order; padded, a batch has at most ``pieces``."""
    batches: list[list[Window]] = []
    for window in sorted(windows, key=lambda w: len(w.truth)):
        if not batches or (len(batches[-1]) + 1) * len(window.truth) > pieces:
            batches.append([])
        batches[-1].append(window)
    draw.shuffle(batches)
    return batches


def padded(batch: Sequence[Window], pad: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The model's inputs (windows, longest) with ``pad`` for absent pieces, which are masked, and truth."""
    import torch

    longest = max(len(window.truth) for window in batch)

    def joined(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
        return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])

    inputs = {name: joined([w.inputs[name] for w in batch], 0) for name in batch[0].inputs}
    inputs["input_ids"] = joined([w.inputs["input_ids"] for w in batch], pad)
    inputs["attention_mask"] = joined([[1] * len(w.truth) for w in batch], 0)
    return inputs, joined([w.truth for w in batch], UNKNOWN)
