"""The main job on a labelled corpus: what curation leaves, and what three trainers make of it.

Plants canaries in a copy of the corpus, curates it, measures what the policies miss, then trains ``sgd``,
``dpsgd`` and ``crt`` and measures perplexity and canary exposure of each.  Prints JSON.

    python benchmarks/main_job.py --train train.jsonl --test test.jsonl --segment turn --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import redactory
from redactory.pipelines.curation.stage_context import measure_peak_memory_mb
from redactory.redaction import RunFolder, read_manifest

TEMPLATE = "My ID is: {digits}"
TRAINERS = ("sgd", "dpsgd", "crt")


def main() -> None:
    """Run everything and print one JSON object."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    corpus, canaries = _with_canaries(arguments)
    config = {
        "input": str(corpus),
        "output": str(arguments.out / "run"),
        "segment": {"mode": arguments.segment},
        "dedup": {"mode": arguments.dedup},
        "evaluate": {"test": str(arguments.test), "canaries": str(canaries), "labelled": str(corpus)},
        "workers": arguments.workers,
        "train": json.loads(arguments.train_settings),
    }
    curated = redactory.curate(config, progress=_say)
    recall = redactory.evaluate_recall(config, progress=_say)
    manifest = read_manifest(RunFolder(arguments.out / "run"))
    result = {
        "benchmark": "main_job",
        "corpus": arguments.train.name,
        "curated": curated,
        "counts": manifest["counts"],
        "stages": manifest["stages"],
        "misses": recall["misses"],
        "secrets_left": recall["left"],
        "models": {name: _model(config, name) for name in arguments.trainers},
    }
    print(json.dumps(result, indent=2))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the main job on a labelled corpus")
    parser.add_argument("--train", type=Path, required=True, help="labelled JSONL to curate and train on")
    parser.add_argument("--test", type=Path, required=True, help="held-out JSONL")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for corpus, run and models")
    parser.add_argument("--segment", default="turn")
    parser.add_argument("--dedup", default="exact")
    parser.add_argument("--canaries", type=int, default=10)
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--train-settings", default="{}", help="JSON of the section train")
    parser.add_argument("--trainers", nargs="*", default=TRAINERS, choices=TRAINERS)
    return parser.parse_args()


def _with_canaries(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """A copy of the corpus with each canary planted, as a labelled turn of a dialogue of its own."""
    draw = random.Random(1)
    numbers = [f"{n:06d}" for n in draw.sample(range(10**6), 2 * arguments.canaries)]
    inserted, control = numbers[: arguments.canaries], numbers[arguments.canaries :]
    lines = arguments.train.read_text(encoding="utf-8").splitlines()
    for number in inserted:
        text = "USR: " + TEMPLATE.format(digits=number)
        start = text.index(number)
        span = {"start": start, "end": start + len(number), "label": "CANARY", "value": number}
        for copy in range(arguments.copies):
            row = {"id": f"canary-{number}-{copy}", "user_id": None, "text": text, "spans": [span]}
            lines.insert(draw.randrange(len(lines) + 1), json.dumps(row))
    corpus = arguments.out / "corpus.jsonl"
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    canaries = arguments.out / "corpus.jsonl.canaries.json"
    told = {"template": TEMPLATE, "inserted": inserted, "control": control, "copies": arguments.copies, "seed": 1}
    canaries.write_text(json.dumps(told), encoding="utf-8")
    return corpus, canaries


def _model(config: dict[str, Any], trainer: str) -> dict[str, Any]:
    start = time.perf_counter()
    trained = redactory.train(config, trainer=trainer, progress=_say)
    seconds = time.perf_counter() - start
    perplexity = redactory.evaluate_model(config["output"], trainer, progress=_say)
    canary = redactory.evaluate_canary(config["output"], trainer, progress=_say)
    card = trained["guarantee"]
    return {
        "seconds": round(seconds, 1),
        "peak_mb": round(measure_peak_memory_mb()),
        "steps": trained["steps"],
        "perplexity": perplexity["as_is"]["perplexity"],
        "perplexity_masked": perplexity["masked"]["perplexity"],
        "canary": {k: v for k, v in canary.items() if k not in ("canaries", "run", "model")},
        "guarantee": {k: card[k] for k in card if k.startswith("epsilon") or k == "coverage_failure"},
    }


def _say(work: str, done: int, total: int | None, unit: str = "") -> None:
    if done == total:
        import sys

        print(f"{work}: {done} {unit}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
