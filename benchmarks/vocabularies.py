"""What a vocabulary is worth: a small model of each, trained and measured in the same way.

    python benchmarks/vocabularies.py --data train.jsonl --test test.jsonl --rows 1500 --seeds 2

Labelled rows are JSON lines {text, spans: [{start, end, label}]}.  No detector runs: π knows the labelled
values.  ``words`` are whole words of public/, each with a space and without one, as versions before word
pieces had them; ``public`` and ``shipped`` are ``train.tokenizer``, ``auto`` is both together.  Of each, with
at most so many entries: how it fits the held-out text, and a small LSTM's perplexity per word and bits per
character there, the mean over seeds.  With ``--epsilon`` the trainer is crt in the place of redact-only.
Prints JSON."""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

from labelled_policies import LabelledPolicies

from redactory.evaluation.labelled import labelled_points, labelled_rows
from redactory.evaluation.utility import perplexity
from redactory.foundation.files import write_json
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.curate import curate
from redactory.pipelines.segment import segmenter
from redactory.redaction import RunFolder, read_column
from redactory.training import Tokenizer, load_model, train_model
from redactory.training.settings import TrainSettings
from redactory.training.vocabulary import MINIMUM_COUNT, fit_of, vocabulary_of

CHOICES, TEST_POINTS = ("words", "public", "shipped", "auto"), 600
CONSTANTS: dict[str, Any] = {
    "epochs": 8,
    "sampling_rate": 0.01,
    "minimum_plain_steps": 50,
    "public_batch_size": 16,
    "max_tokens": 128,
    "learning_rate": 1e-2,
    "private_learning_rate": 1e-2,
    "learning_rate_schedule": "linear",
    "threads": 1,
    "clip_norm": 0.5,
    "group_sizes": (),
    "physical_tokens": 16384,
    "noise": "float",
    "model": {"kind": "lstm", "embedding_size": 96, "hidden_size": 128},
}


def main() -> None:
    """Train and measure every choice, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--test", type=Path, help="held-out rows; every tenth of --data without it")
    parser.add_argument("--rows", type=int, default=1_500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sizes", default="2000,10000")
    parser.add_argument("--choices", default=",".join(CHOICES))
    parser.add_argument("--segment", default="turn")
    parser.add_argument("--epsilon", type=float)
    asked = parser.parse_args()
    rows = list(labelled_rows(asked.data))
    held = rows[::10] if asked.test is None else list(labelled_rows(asked.test))
    rows = [r for n, r in enumerate(rows) if n % 10 or asked.test is not None][: asked.rows]
    cut = segmenter(SegmentSettings.model_validate({"mode": asked.segment}))
    test = [text for row in held for text, _ in labelled_points(row, cut)][:TEST_POINTS]
    with tempfile.TemporaryDirectory() as folder:
        run = _curated(Path(folder), rows, asked.segment)
        made = [
            _measured(run, asked, choice, size, test)
            for size in map(int, asked.sizes.split(","))
            for choice in asked.choices.split(",")
        ]
    told = {name: getattr(asked, name) for name in ("rows", "seeds", "epsilon")}
    print(json.dumps({"data": asked.data.name, **told, "choices": made}, indent=1))


def _curated(folder: Path, rows: list[dict[str, Any]], segment: str) -> RunFolder:
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "text": row["text"]}) + "\n" for n, row in enumerate(rows))
    )
    config = {
        "input": str(folder / "corpus.jsonl"),
        "output": str(folder / "run"),
        "segment": {"mode": segment},
        # no engine is asked: the labels are; the settings still need one
        "detect": {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}},
    }
    curate(config, detector=LabelledPolicies.of(rows, 0.0, 1))
    return RunFolder(folder / "run")


def _measured(
    run: RunFolder, asked: argparse.Namespace, choice: str, size: int, test: list[str]
) -> dict[str, Any]:
    tokenizer: Any = choice
    if choice == "words":
        found_words = re.compile(r" ?[^\W\d_]{2,}")
        counts = Counter(w for text in read_column(run.public, "text") for w in found_words.findall(text))
        frequent = sorted((w for w, n in counts.items() if n >= MINIMUM_COUNT), key=lambda w: (-counts[w], w))
        tokenizer = run.root.parent / f"words-{size}.json"
        write_json(tokenizer, Tokenizer(tuple(frequent[:size])).to_json())
    private = len(read_column(run.private, "text"))
    found = []
    for seed in range(1, asked.seeds + 1):
        name = f"{choice}-{size}-{seed}"
        own = {"name": name, "seed": seed, "tokenizer": tokenizer, "vocabulary_size": size, **CONSTANTS}
        own["trainer"] = "redact-only" if asked.epsilon is None else "crt"
        own |= {} if asked.epsilon is None else {"epsilon": asked.epsilon}
        own["expected_batch_size"] = CONSTANTS["sampling_rate"] * private
        settings = TrainSettings.model_validate(own)
        train_model(run, settings)
        found.append(perplexity(load_model(run.model(name)), test))
    vocabulary = vocabulary_of(run, settings, None)
    fit = fit_of(vocabulary, lambda: test, settings.max_tokens)
    figures = {key: mean(one[key] for one in found) for key in ("perplexity_per_word", "bits_per_character")}
    return {"choice": choice, "size": size, "entries": vocabulary.tokenizer.size, **fit, **figures}


if __name__ == "__main__":
    main()
