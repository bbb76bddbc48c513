"""Precision of each pattern recognizer on labelled tickets and harmless sentences, and on labelled files.

A hit is right if it overlaps a labelled span. *masked* are the hits that the strict policy masks because of the
recognizer: its score is high enough, and the tagger does not hold an ambiguous form for harmless. A recognizer whose
hits are right less often than not should only raise suspicion. Prints JSON.

    python benchmarks/recognizers.py
    python benchmarks/recognizers.py --data FILE.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path

from tickets import generate_tickets, list_harmless_texts

from redactory.detectors import Detector, DetectSettings
from redactory.detectors.patterns import PatternEngine
from redactory.detectors.settings import PatternSettings

Row = tuple[str, list[tuple[int, int]]]


def main() -> None:
    """Count the hits of every recognizer; one JSON object on standard output."""
    parser = argparse.ArgumentParser(description="precision of the pattern recognizers")
    parser.add_argument("--data", type=Path, action="append", default=[], help="a labelled file that labels every kind")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--seed", type=int, default=11)
    arguments = parser.parse_args()
    rows = [*generate_tickets(arguments.rows, arguments.seed), *map(json.loads, _read_lines(arguments.data))]
    texts: list[Row] = [(row["text"], [(span["start"], span["end"]) for span in row["spans"]]) for row in rows]
    texts += [(text, []) for _, text in list_harmless_texts()]
    engine, detector = PatternEngine(PatternSettings(), "en"), Detector(DetectSettings())
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for text, labelled in texts:
        output = detector.run_engines([text])[0]
        for runner, span in engine.iter_spans(text):
            name = f"{runner.recognizer.name}: {span.label}"
            is_right = any(start < span.end and span.start < end for start, end in labelled)
            hit = span._replace(score=round(span.score, 6))
            is_masked = hit in set(detector.strict.select_spans(text, detector.prepare_output(text, output)))
            counts[name].update(hits=1, right=+is_right, masked=+is_masked, masked_right=+(is_right and is_masked))
    result = {
        name: {**count, "precision": _divide(count["right"], count["hits"]), "precision_masked": _divide(
            count["masked_right"], count["masked"])}
        for name, count in sorted(counts.items())
    }  # fmt: skip
    print(json.dumps({"benchmark": "recognizers", "texts": len(texts), "recognizers": result}, indent=1))


def _read_lines(files: list[Path]) -> list[str]:
    return [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def _divide(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


if __name__ == "__main__":
    main()
