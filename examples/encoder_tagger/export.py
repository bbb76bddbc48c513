"""Write the folders of the package: the encoder, and the tagger with its head.

    python examples/encoder_tagger/export.py WORK teacher.pt --layers 6 --rows HELD_OUT

Also writes the encoder of whole texts, from the pretrained weights in ``WORK/base.pt``. The layers become 8-bit ONNX
with weights of 7 bits (``redactory/encoder/model.py`` says why). The head's temperature is fitted on HELD_OUT, labelled
rows that were not trained on.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from pieces import LABELS, WINDOW, read_tokenizer
from torch import Tensor, nn
from train import WIDTH, make_model

from redactory.detectors.spacy_model import import_lean_spacy
from redactory.detectors.tagger.engine import DEFAULT_FOLDER as TAGGER_FOLDER
from redactory.detectors.tagger.fitting import LabelledText, calibrate_tagger
from redactory.detectors.tagger.head import FACTORY, Head
from redactory.encoder.model import DEFAULT_FOLDER, FILES, FORMAT, SENTENCE_FOLDER
from redactory.evaluation.labelled import read_labelled_rows
from redactory.foundation.canonical import file_sha256

META = {
    "name": "default",
    "version": "3.0.0",
    "description": "A linear head on the multilingual encoder of the package redactory",
    "license": "CC BY-SA 4.0",
}
SENTENCE_LAYERS = (8, 10, 12)
"""Their states are a text's features: chosen on TREC, subjectivity, customer reviews and MPQA."""


class _OnVectors(nn.Module):
    """The layers, from the vectors of pieces to the hidden states after ``layers``, joined."""

    def __init__(self, model: nn.Module, layers: Sequence[int]) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, words: Tensor) -> Tensor:
        states = self.model(inputs_embeds=words, output_hidden_states=True).hidden_states
        return torch.cat([states[layer] for layer in self.layers], dim=-1)


def write_layers(model: nn.Module, path: Path, layers: Sequence[int]) -> None:
    """Write 8-bit layers; ``words`` is [1, pieces, width], ``hidden`` as wide for each of ``layers``."""
    model.eval()
    with tempfile.TemporaryDirectory() as folder:
        exact = Path(folder) / "layers.onnx"
        torch.onnx.export(
            _OnVectors(model, layers),
            (torch.zeros(1, 7, WIDTH),),
            str(exact),
            input_names=["words"],
            output_names=["hidden"],
            dynamic_axes={"words": {1: "pieces"}, "hidden": {1: "pieces"}},
            opset_version=17,
            dynamo=False,
        )
        quantize_dynamic(
            str(exact), str(path), per_channel=True, reduce_range=True, weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip


def write_encoder(work: Path, stored: dict[str, dict[str, Tensor]], layers: int) -> None:
    """Write the encoder folder."""
    DEFAULT_FOLDER.mkdir(parents=True, exist_ok=True)
    write_layers(make_model(stored["model"], layers), DEFAULT_FOLDER / "layers.onnx", [layers])
    read_tokenizer(work).save(str(DEFAULT_FOLDER / "tokenizer.json"), pretty=False)
    (DEFAULT_FOLDER / "embeddings.bin").write_bytes((work / "embeddings.bin").read_bytes())
    facts = {
        "format": FORMAT,
        "layers": layers,
        "width": WIDTH,
        "window": WINDOW,
        "files": {name: file_sha256(DEFAULT_FOLDER / name) for name in FILES},
    }
    (DEFAULT_FOLDER / "encoder.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def write_sentence_encoder(work: Path) -> None:
    """Write the encoder of whole texts: pretrained layers, with the pieces and embeddings of the encoder folder."""
    SENTENCE_FOLDER.mkdir(parents=True, exist_ok=True)
    state = torch.load(work / "base.pt", weights_only=True)
    write_layers(make_model(state, max(SENTENCE_LAYERS)), SENTENCE_FOLDER / "layers.onnx", SENTENCE_LAYERS)
    folders = {name: SENTENCE_FOLDER if name == "layers.onnx" else DEFAULT_FOLDER for name in FILES}
    facts = {
        "format": FORMAT,
        "base": DEFAULT_FOLDER.name,
        "layers": max(SENTENCE_LAYERS),
        "width": WIDTH,
        "output_width": WIDTH * len(SENTENCE_LAYERS),
        "window": WINDOW,
        "files": {name: file_sha256(folder / name) for name, folder in folders.items()},
    }
    (SENTENCE_FOLDER / "encoder.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def write_tagger(head: dict[str, Tensor], layers: int, held_out: Path, measured: dict[str, dict[str, object]]) -> None:
    """Write the tagger folder, calibrated on ``held_out``; ``measured`` has the metrics of each language."""
    nlp = import_lean_spacy().blank("xx")
    nlp.meta.update(**META, measured=measured)
    weights, bias = (head[f"{layers}.{part}"].numpy().astype(np.float32) for part in ("weight", "bias"))
    nlp.add_pipe(FACTORY).head = Head(LABELS, weights, bias)
    rows = [
        LabelledText(row["text"], tuple((s["start"], s["end"], s["label"]) for s in row["spans"]))
        for row in read_labelled_rows(held_out, to_fit=True)
    ]
    reliability = calibrate_tagger(nlp, rows[::2], rows[1::2])
    print("temperature", reliability.temperature, "error", reliability.error_before, "→", reliability.error)
    nlp.to_disk(TAGGER_FOLDER)


def main() -> None:
    """Write both folders."""
    parser = argparse.ArgumentParser(description="write the encoder and the tagger of the package")
    parser.add_argument("work", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--measured", type=Path, help="the metrics of these weights by language, for the tagger's meta")
    arguments = parser.parse_args()
    stored = torch.load(arguments.checkpoint, weights_only=True)
    write_encoder(arguments.work, stored, arguments.layers)
    measured = json.loads(arguments.measured.read_text("utf-8")) if arguments.measured else {}
    write_sentence_encoder(arguments.work)
    write_tagger(stored["heads"], arguments.layers, arguments.rows, measured)


if __name__ == "__main__":
    main()
