"""What the default policies and other engines cover of the names in labelled files, and what stays public.

A name is a labelled person, place or organisation. *covered*: share of the names of which the strict policy (or the
engine) masks every letter and digit. *missed*: names in a row that both policies leave public. *public*: share of the
rows without any label of the file, works and events included, that stay public. *precision*: share of the masked
letters and digits that lie in any labelled span; only a file that labels every kind, dates and numbers too, makes it a
precision. One process, one thread; every engine reads every row as a whole. Prints JSON.

    OMP_NUM_THREADS=1 python benchmarks/tagger.py --data FOLDER --data FILE.jsonl --against presidio,rampart
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from redactory.detectors import Detection, Detector, DetectSettings
from redactory.detectors.baselines import ReferenceDetector, resolve_reference_engines
from redactory.detectors.settings import get_kind
from redactory.evaluation.statistics import estimate_proportion

NAMES = frozenset({"PERSON", "LOCATION", "ORGANIZATION"})
ALIASES = {"person": "PERSON", "location": "LOCATION", "group": "ORGANIZATION", "corporation": "ORGANIZATION"}
"""Labels of WNUT-17."""
Row = tuple[str, list[tuple[int, int, str]]]
Detect = Callable[[Iterable[str]], Iterator[Detection]]


def main() -> None:
    """Measure every file; one JSON object on standard output."""
    parser = argparse.ArgumentParser(description="coverage and public share of the default policies and of rivals")
    parser.add_argument("--data", type=Path, action="append", required=True, help="a labelled file, or a folder")
    parser.add_argument("--against", default="", help="engines, as in redactory evaluate detection, with commas")
    arguments = parser.parse_args()
    files = [file for path in arguments.data for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    engines: dict[str, Detect] = {"redactory": Detector(DetectSettings()).detect}
    for engine in resolve_reference_engines(filter(None, arguments.against.split(",")), "en"):
        engines[engine.name] = ReferenceDetector(engine).detect
    result: dict[str, Any] = {}
    for file in files:
        rows = read_rows(file)
        result[file.stem] = {"rows": len(rows)} | {name: measure(rows, detect) for name, detect in engines.items()}
        print(file.stem, result[file.stem], file=sys.stderr)
    print(json.dumps({"benchmark": "tagger", "files": result}, indent=1))


def read_rows(file: Path) -> list[Row]:
    """Read texts with (start, end, kind) of their labelled spans."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        spans = [(s["start"], s["end"], get_kind(ALIASES.get(s["label"], s["label"]))) for s in row["spans"]]
        rows.append((row["text"], spans))
    return rows


def measure(rows: list[Row], detect: Detect) -> dict[str, Any]:
    """Measure one engine on the rows."""
    start = time.perf_counter()
    detections = list(detect(text for text, _ in rows))
    seconds = time.perf_counter() - start
    counts, covered, names = Counter[str](), Counter[str](), Counter[str]()
    for (text, spans), detection in zip(rows, detections, strict=True):
        if detection.failure:
            raise ValueError(f"a text cannot be processed: {detection.failure}")
        masked = {place for span in detection.strict for place in range(span.start, span.end) if text[place].isalnum()}
        labelled = {place for first, last, _ in spans for place in range(first, last)}
        counts["masked"] += len(masked)
        counts["masked and labelled"] += len(masked & labelled)
        is_public = not (detection.strict or detection.conservative)
        counts["clean"] += not spans
        counts["clean and public"] += not spans and is_public
        for first, last, kind in spans:
            if kind in NAMES:
                signs = {place for place in range(first, last) if text[place].isalnum()}
                names[kind] += 1
                covered[kind] += signs <= masked
                counts["missed"] += is_public
    total = names.total()
    return {
        "names": total,
        "covered": estimate_proportion(covered.total(), total),
        "covered_by_kind": {kind: estimate_proportion(covered[kind], names[kind]) for kind in sorted(names)},
        "missed": {**estimate_proportion(counts["missed"], total), "n": counts["missed"]},
        "public": estimate_proportion(counts["clean and public"], counts["clean"]),
        "clean_rows": counts["clean"],
        "precision": round(counts["masked and labelled"] / max(1, counts["masked"]), 4),
        "texts_per_second": round(len(rows) / seconds, 1),
    }


if __name__ == "__main__":
    main()
