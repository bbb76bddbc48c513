"""Examples for the report: public points as they are, private ones as skeletons without a word."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.shards import read_batches

BLOCK = "▇▇"
MORE = "…"
_LONGEST_TEXT = 320
_LONGEST_SKELETON = 24
_WORD_OR_MASK = re.compile(rf"{re.escape(MASK)}|\w+(?:['’\-.@]\w+)*")


@dataclass(frozen=True)
class Examples:
    """``public`` texts as they stand in the shards, ``skeletons`` of private ones: a list of pieces each."""

    public: list[str]
    skeletons: list[list[str]]


def pick_examples(run: RunFolder, count: int = 8) -> Examples:
    """The ``count`` points of each side whose released ids come first.

    Released ids are keyed pseudonyms, so the pick is random over the points and the same in each rendering.
    """
    return Examples(
        public=[_shortened(text) for text in _first(run.public, count)],
        skeletons=[skeleton(text) for text in _first(run.private, count)],
    )


def skeleton(text: str) -> list[str]:
    """What may be seen of a private point: ``<MASK>`` where a mask is, one same block for any word.

    A masked text can still hold what π missed, so neither letters nor lengths of words are shown.
    """
    pieces = [MASK if piece == MASK else BLOCK for piece in _WORD_OR_MASK.findall(text)]
    return pieces if len(pieces) <= _LONGEST_SKELETON else [*pieces[:_LONGEST_SKELETON], MORE]


def _first(folder: Path, count: int) -> list[str]:
    return [text for _, text in heapq.nsmallest(count, _rows(folder, count))]


def _rows(folder: Path, count: int) -> Iterator[tuple[str, str]]:
    """(id, text) of the first ``count`` of each batch: few of millions of points become Python objects."""
    for batch in read_batches(folder, ["point_id", "text"]):
        least = batch.take(pc.select_k_unstable(batch, count, [("point_id", "ascending")]))
        yield from zip(*(column.to_pylist() for column in least.columns), strict=True)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + MORE
