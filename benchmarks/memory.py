"""Peak resident memory of a curation against the size of its input: a flat line is the aim.

The real engines at a few sizes; with ``--recorded-mb`` also with recorded spans in place of detection, at a
size that would take the engines days.  Each size runs in a process of its own.  Prints JSON.

    python benchmarks/memory.py --mb 4 16 64
    python benchmarks/memory.py --mb --recorded-mb 5120
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from redactory.detectors import Detection, Span

LIMIT_MB = 1536
_SENTENCE = "the order was sent to them last week and it has not come so what shall we do about it"


class EveryThirdDetector:
    """Recorded spans: the decision of a text by its length, one span where it is private."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """One detection a text."""
        for text in texts:
            private = len(text) % 3 == 0
            spans = (Span(0, min(4, len(text)), "RECORDED", 1.0, "recorded"),) if private else ()
            yield Detection(spans, spans)


def main() -> None:
    """Run every size, or, as a child, one."""
    parser = argparse.ArgumentParser(description="peak memory of a curation by input size")
    parser.add_argument("--mb", type=int, nargs="*", default=[4, 16], help="sizes with the real engines")
    parser.add_argument("--recorded-mb", type=int, nargs="*", default=[64], help="sizes with recorded spans")
    parser.add_argument("--folder", type=Path, help="where the corpora are written; a temporary one by default")
    parser.add_argument("--child", nargs=2, metavar=("FILE", "KIND"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_curate(Path(arguments.child[0]), arguments.child[1])))
        return
    sizes = [("engines", mb) for mb in arguments.mb] + [("recorded", mb) for mb in arguments.recorded_mb]
    rows = [_measure(kind, mb, arguments.folder) for kind, mb in sizes]
    flat = all(row["peak_mb"] <= LIMIT_MB for row in rows)
    print(json.dumps({"benchmark": "memory", "limit_mb": LIMIT_MB, "within_limit": flat, "rows": rows}, indent=2))


def _measure(kind: str, mb: int, folder: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        corpus = Path(place) / "corpus.jsonl"
        (_dialogues if kind == "engines" else _long_texts)(corpus, mb)
        command = [sys.executable, __file__, "--child", str(corpus), kind]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {"kind": kind, "input_mb": mb, **json.loads(done.stdout.splitlines()[-1])}


def _dialogues(path: Path, mb: int) -> None:
    from redactory.evaluation.simulator import simulate_dialogues

    _write(path, mb, (json.dumps(row) + "\n" for row in simulate_dialogues(1 << 30, 1).rows))


def _long_texts(path: Path, mb: int) -> None:
    words = tuple(_SENTENCE.split())
    sentences = [" ".join(words[i:] + words[:i]) for i in range(len(words))]

    def rows() -> Iterator[str]:
        number = 0
        while True:
            number += 1
            text = ". ".join(f"{sentences[(number + i) % len(sentences)]} {number}-{i}" for i in range(20))
            yield json.dumps({"id": str(number), "text": text}) + "\n"

    _write(path, mb, rows())


def _write(path: Path, mb: int, lines: Iterable[str]) -> None:
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            written += file.write(line)
            if written >= mb << 20:
                return


def _curate(corpus: Path, kind: str) -> dict[str, Any]:
    import redactory
    from redactory.pipelines.curation.stage_context import measure_peak_memory_mb

    mode = "turn" if kind == "engines" else "document"
    start = time.perf_counter()
    result = redactory.curate(
        {"input": str(corpus), "segment": {"mode": mode}},
        output=corpus.parent / "run",
        detector=None if kind == "engines" else EveryThirdDetector(),
    )
    return {
        "peak_mb": round(measure_peak_memory_mb()),
        "seconds": round(time.perf_counter() - start, 1),
        "examples": result["examples"],
        "documents": result["documents"],
    }


if __name__ == "__main__":
    main()
