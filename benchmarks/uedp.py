"""The figures of UeDP: data sets, epsilon against steps, perplexity and error rate against sound epsilon.

    python benchmarks/uedp.py --out F --data D table       counts of both corpora
    python benchmarks/uedp.py --out F epsilon              accounting alone
    python benchmarks/uedp.py --out F --data D train       every training (--only, --minutes)
    python benchmarks/uedp.py --out F draw docs/results    JSON and SVG of what is done

Every training is one line of F/results.jsonl and is not done again.  The corpora are split by user
(``uedp_corpora``); settings were chosen on the validation users, figures are of the test users.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uedp_epsilon
import uedp_pages
from uedp_corpora import CUAD, CUAD_45, CUSTOMERSIM, Corpus
from uedp_heldout import HeldOut
from uedp_jobs import every_job, tuned
from uedp_tables import table
from uedp_trainings import train_one

SOURCES = {source.name: source for source in (CUAD, CUSTOMERSIM, CUAD_45)}
TEST_POINTS = 1200


def main() -> None:
    """One of the four parts."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("REDACTORY_KEY", "a key for a corpus that is public anyway")
    match arguments.part:
        case "table":
            _write(arguments.out / "table.json", [table(_corpus(arguments, name)) for name in SOURCES])
        case "epsilon":
            tables = json.loads((arguments.out / "table.json").read_text(encoding="utf-8"))
            _write(
                arguments.out / "epsilon.json", [uedp_epsilon.curves(t) for t in tables if t["corpus"] != CUAD_45.name]
            )
        case "train":
            _train(arguments)
        case "draw":
            uedp_pages.write(arguments.out, arguments.folder)


def _corpus(arguments: argparse.Namespace, name: str) -> Corpus:
    source = SOURCES[name]
    return Corpus.prepared(replace(source, path=arguments.data / source.path), arguments.out / name)


def _train(arguments: argparse.Namespace) -> None:
    results, begun = arguments.out / "results.jsonl", time.monotonic()
    done = {(row["corpus"], row["name"]) for row in _lines(results)}
    corpora: dict[str, tuple[Corpus, HeldOut]] = {}
    for job in every_job():
        if (job.corpus, job.name) in done or (arguments.only and job.figure not in arguments.only):
            continue
        if arguments.minutes and time.monotonic() - begun > 60 * arguments.minutes:
            break
        if job.corpus not in corpora:
            corpus = _corpus(arguments, job.corpus)
            corpora[job.corpus] = corpus, HeldOut.of(corpus, "test", TEST_POINTS)
        row = train_one(job, *corpora[job.corpus], tuned(job))
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        shown = row["error_rate"] if job.figure == "classify" else row["perplexity"]
        print(f"{job.corpus:12} {job.name:52} {shown:8.3f} {row['seconds']:6.1f} s", flush=True)


def _lines(path: Path) -> Sequence[Mapping[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where corpora, models and results lie")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the folder of the public corpora")
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("table")
    parts.add_parser("epsilon")
    train = parts.add_parser("train")
    train.add_argument("--only", nargs="+", help="figures to train for")
    train.add_argument("--minutes", type=float, help="start no training after that many")
    parts.add_parser("draw").add_argument("folder", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
