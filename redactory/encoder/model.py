"""Load an encoder folder, and encode texts: one vector per piece, independent of the texts encoded before or with it.

A folder has four files: ``tokenizer.json`` (pieces), ``embeddings.bin`` (a vector of 4-bit weights per piece),
``layers.onnx`` (the transformer, 8-bit) and ``encoder.json`` (sizes, and the sha256 of the other three). A folder whose
``encoder.json`` names a ``base`` has only its own layers; the other two files are those of that neighbouring folder.

Each window of a text runs alone and in one thread: the activations are quantised by the range of the whole input, so
a batch would let one text change another's vectors. The weights have 7 of 8 bits: a sum of two products fits into 16
bits, and CPUs with and without VNNI instructions get the same integers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json

FORMAT = "redactory-encoder/1"
DEFAULT_FOLDER = Path(__file__).parent / "default"
"""The encoder of the tagger: six layers, trained to label tokens."""
SENTENCE_FOLDER = Path(__file__).parent / "e5"
"""The encoder of whole texts: multilingual-e5-small as published; a vector joins the states of layers 8, 10 and 12."""
FILES = ("tokenizer.json", "embeddings.bin", "layers.onnx")
START_PIECE, UNKNOWN_PIECE, END_PIECE = 0, 3, 2
BLOCK = np.dtype([("scale", "<f2"), ("nibbles", "u1", 16)])
"""32 weights: a scale, and 4 bits each (less 8), the first 16 weights in the low halves."""
OVERLAP = 64
"""Pieces that neighbouring windows share; each piece is read where it has more context."""


class EncodedText(NamedTuple):
    """The pieces of a text: code points [start, end) of each [n, 2], whether it is known [n], its vector [n, width]."""

    ranges: NDArray[np.int64]
    is_known: NDArray[np.bool_]
    vectors: NDArray[np.float32]


class TextEncoder:
    """Encodes texts with the model in ``folder``.

    ``ConfigurationError`` if a file is missing or differs from its recorded sha256.
    """

    def __init__(self, folder: Path) -> None:
        # it queues usage events for its vendor unless this is set before the import
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        # imported on first use: together a fifth of a second
        from onnxruntime import InferenceSession, SessionOptions, disable_telemetry_events
        from tokenizers import Tokenizer

        facts = read_encoder_facts(folder)
        self.sha256: str = facts["sha256"]
        self.width: int = facts.get("output_width", facts["width"])
        self._piece_width: int = facts["width"]
        self.window: int = facts["window"]
        self._tokenizer = Tokenizer.from_file(str(_find_file(folder, facts, "tokenizer.json")))
        blocks = self._piece_width // 32
        embeddings = _find_file(folder, facts, "embeddings.bin")
        self._embeddings = np.memmap(embeddings, BLOCK, "r").reshape(-1, blocks)
        disable_telemetry_events()
        options = SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = InferenceSession(str(folder / "layers.onnx"), options, providers=["CPUExecutionProvider"])

    def encode(self, text: str) -> EncodedText:
        """Encode one text of any length; a text without visible characters has no pieces."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        pieces = np.array(encoding.ids, np.int64)
        vectors = np.empty((len(pieces), self.width), np.float32)
        for window, kept in plan_windows(len(pieces), self.window):
            first = 1 + kept.start - window.start
            vectors[kept] = self._run(pieces[window])[first : first + kept.stop - kept.start]
        if not np.isfinite(vectors).all():
            raise ValueError("the encoder returned vectors that are not finite")
        ranges = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        return EncodedText(ranges, pieces != UNKNOWN_PIECE, vectors)

    def encode_window(self, text: str, max_pieces: int | None = None) -> NDArray[np.float32]:
        """Encode the first ``max_pieces`` pieces of a text, at most a window, between start and end token.

        Returns one vector for each, [2 + pieces, width].
        """
        pieces = np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
        return self._run(pieces[: min(max_pieces or self.window, self.window)])

    def _run(self, pieces: NDArray[np.int64]) -> NDArray[np.float32]:
        ids = np.concatenate(([START_PIECE], pieces, [END_PIECE]))
        [hidden] = self._session.run(None, {"words": self._look_up(ids)[None]})
        return np.asarray(hidden[0])

    def _look_up(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        blocks = self._embeddings[ids]
        low, high = blocks["nibbles"] & 15, blocks["nibbles"] >> 4
        weights = np.concatenate((low, high), axis=2).astype(np.float32) - 8
        return (weights * blocks["scale"].astype(np.float32)[..., None]).reshape(len(ids), self._piece_width)


def plan_windows(pieces: int, window: int) -> Iterator[tuple[slice, slice]]:
    """Yield the windows of a text of ``pieces`` pieces, each with the pieces that are taken from it.

    A window has at most ``window`` pieces and shares ``OVERLAP`` with the next; half of those are taken from each.
    """
    start, taken = 0, 0
    while taken < pieces:
        stop = min(pieces, start + window)
        end = pieces if stop == pieces else stop - OVERLAP // 2
        yield slice(start, stop), slice(taken, end)
        start, taken = stop - OVERLAP, end


def read_encoder_facts(folder: Path) -> dict[str, Any]:
    """Read ``encoder.json`` and check the files against it; adds their common ``sha256``."""
    path = folder / "encoder.json"
    facts: dict[str, Any] = read_json(path) if path.is_file() else {}
    if facts.get("format") != FORMAT:
        raise ConfigurationError(f"encoder '{folder.name}': encoder.json is missing or of another format than {FORMAT}")
    for name, expected in facts["files"].items():
        file = _find_file(folder, facts, name)
        actual = file_sha256(file) if file.is_file() else "no file"
        if actual != expected:
            raise ConfigurationError(
                f"encoder '{folder.name}': {name} is damaged: expected sha256 {expected}, got {actual}; reinstall it"
            )
    return {**facts, "sha256": file_sha256(path)}


def _find_file(folder: Path, facts: dict[str, Any], name: str) -> Path:
    """Return the path of one of ``FILES``: in ``folder``, or in its base."""
    return folder / name if name == "layers.onnx" else folder.parent / facts.get("base", folder.name) / name


@functools.lru_cache(maxsize=2)
def load_encoder(folder: Path = DEFAULT_FOLDER) -> TextEncoder:
    """Load an encoder once per process."""
    return TextEncoder(folder)
