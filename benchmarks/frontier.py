"""Layers of the encoder against accuracy, public text and speed, and a cascade of two of them.

FOLDER is one that ``examples/encoder_tagger/export.py`` writes for a number of layers, with its head as ``head.npz``
(``weights``, ``bias``, ``labels``). The tagger alone, without patterns: names covered at score 0.4, and rows without
any label whose every token reaches the bound 0.85. In the cascade the second encoder reads only the texts in which the
first doubts something. One thread. Prints JSON.

    python benchmarks/frontier.py FOLDER FOLDER --cascade FOLDER FOLDER --data FILE.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tagger import NAMES, Row, read_rows

from redactory.detectors.engine import EngineOutput
from redactory.detectors.tagger.engine import DEFAULT_FOLDER, _TaggerModel
from redactory.detectors.tagger.head import Head
from redactory.encoder import TextEncoder

MIN_SCORE, BOUND, CASCADE_BOUND = 0.4, 0.85, 0.97
TEMPERATURE = 1.2


def main() -> None:
    """Measure every folder; one JSON object on standard output."""
    parser = argparse.ArgumentParser(description="layers against accuracy and speed")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--cascade", type=Path, nargs=2)
    parser.add_argument("--data", type=Path, action="append", required=True)
    arguments = parser.parse_args()
    rows = {file.stem: read_rows(file) for file in arguments.data}
    result = [measure([load(folder)], [folder], rows) for folder in arguments.folders]
    if arguments.cascade:
        result.append(measure([load(folder) for folder in arguments.cascade], arguments.cascade, rows))
    print(
        json.dumps({"benchmark": "frontier", "bound": BOUND, "cascade_bound": CASCADE_BOUND, "rows": result}, indent=1)
    )


def load(folder: Path) -> _TaggerModel:
    """Load the built-in tagger with the encoder and the head of ``folder``."""
    model = _TaggerModel(DEFAULT_FOLDER)
    with np.load(folder / "head.npz") as arrays:
        labels = tuple(map(str, arrays["labels"]))
        weights, bias = (arrays[name] / np.float32(TEMPERATURE) for name in ("weights", "bias"))
    model._pipe._encoder, model._pipe.head = TextEncoder(folder), Head(labels, weights, bias)
    return model


def measure(models: list[_TaggerModel], folders: list[Path], rows: dict[str, list[Row]]) -> dict[str, Any]:
    """Measure one model, or a cascade of two."""
    seconds, sets = 0.0, {}
    for name, texts in rows.items():
        start = time.perf_counter()
        outputs = models[0].read([text for text, _ in texts])
        if len(models) > 1:
            doubtful = [n for n, output in enumerate(outputs) if not is_public(output, CASCADE_BOUND)]
            for n, output in zip(doubtful, models[1].read([texts[n][0] for n in doubtful]), strict=True):
                outputs[n] = output
        seconds += time.perf_counter() - start
        sets[name] = count(texts, outputs)
    files = [file for folder in folders for file in folder.iterdir() if file.suffix in (".onnx", ".bin", ".json")]
    print([folder.name for folder in folders], sets, file=sys.stderr)
    return {
        "layers": " → ".join(str(json.loads((f / "encoder.json").read_text())["layers"]) for f in folders),
        "model": " → ".join(folder.name for folder in folders),
        "megabytes": sum(file.stat().st_size for file in files) / 1e6,
        "texts_per_second": sum(map(len, rows.values())) / seconds,
        "sets": sets,
    }


def is_public(output: EngineOutput, bound: float) -> bool:
    """Whether nothing is found and no token is doubtful."""
    return not output.spans and all(token.probability >= bound for token in output.non_entity_scores)


def count(texts: list[Row], outputs: list[EngineOutput]) -> dict[str, Any]:
    """Names covered, clean rows public, and names in public rows."""
    counts = Counter[str]()
    for (text, spans), output in zip(texts, outputs, strict=True):
        masked = {n for span in output.spans if span.score >= MIN_SCORE for n in range(span.start, span.end)}
        public = is_public(output, BOUND)
        counts.update(clean=+(not spans), public=+(not spans and public))
        for start, end, kind in spans:
            if kind in NAMES:
                signs = {n for n in range(start, end) if text[n].isalnum()}
                counts.update(names=1, covered=+(signs <= masked), missed=+public)
    return {
        "covered": counts["covered"] / counts["names"],
        "public": counts["public"] / counts["clean"],
        "missed": counts["missed"],
        "names": counts["names"],
    }


if __name__ == "__main__":
    main()
