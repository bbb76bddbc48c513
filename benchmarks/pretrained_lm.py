"""A pretrained language model fine-tuned with LoRA, beside a fresh LSTM, at several epsilons; prints JSON.

    python benchmarks/pretrained_lm.py --data shared/data --folder MODEL --work W
    python benchmarks/pretrained_lm.py --data shared/data --folder MODEL --work W --corpus multiwoz --epsilons 8

``--folder`` is a local folder of any causal language model, in float32. Dialogues are segmented in turns, secrets are
those of the corpus's labels, and canaries are planted as turns of their own. Every model is measured by perplexity per
character (end of a turn included) on held-out turns, as they are and masked, by the exposure of the canaries, and by
the texts it generates: the share of their words that the held-out turns contain, and distinct pairs of words. The
folder's model without any training is the row ``base``. Each model is one line of W/results.jsonl with its seconds and
the peak of its process in MB (one process for each), and is not trained again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from uedp_corpora import Recorded

import redactory
from redactory.evaluation.canary import measure_canary_exposure
from redactory.evaluation.generation import generate_texts
from redactory.evaluation.labelled import split_labelled_row
from redactory.evaluation.utility import measure_perplexity
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.segment import make_segmenter
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import mask_intervals
from redactory.training import TrainSettings, load_model, train_model
from redactory.training.model import LanguageModel, build_language_network
from redactory.training.models.settings import FolderSettings
from redactory.training.tokenizer import FolderTokenizer

Row = dict[str, Any]
FILES = {"customersim": ("train", "test"), "multiwoz": ("valid", "test")}
FOLDERS = {"customersim": "customersim", "multiwoz": "multiwoz21"}
TRAINERS = ("crt", "dpsgd", "uedp-bounded")
CANARY_DIGITS, CANARIES, COPIES = 3, 4, 5
TEMPLATE = "My code is: {digits}"
SHARED: dict[str, Any] = {
    "threads": 1,
    "group_sizes": (),
    "noise": "float",
    "max_tokens": 48,
    "sampling_rate": 0.05,
    "public_batch_size": 16,
    "learning_rate_schedule": "linear",
    "delta": 1e-5,
    "seed": 1,
}
"""Public constants of every training."""
LORA = {"learning_rate": 1e-3, "dp_learning_rate": 1e-3}
LSTM = {
    "model": {"embedding_size": 96, "hidden_size": 128},
    "tokenizer": "shipped",
    "vocabulary_size": 2000,
    "learning_rate": 4e-3,
    "dp_learning_rate": 4e-3,
}
BOUNDING = {"k_user": 8, "k_entity": 8}


def main() -> None:
    """Every model that is not done yet; as a child process, one."""
    arguments = parse_arguments()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        print(json.dumps(measure_model(arguments, *arguments.child)))
        return
    results = arguments.work / "results.jsonl"
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    rows = {row["name"]: row for row in map(json.loads, lines)}
    for network, trainer, epsilon in list_models(arguments):
        name = name_model(network, trainer, epsilon)
        if name in rows:
            continue
        command = [sys.executable, __file__, *sys.argv[1:], "--child", network, trainer, epsilon]
        rows[name] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[name]) + "\n")
        print(name, f"{rows[name]['seconds']} s", file=sys.stderr, flush=True)
    constants = {"corpus": arguments.corpus, "dialogues": arguments.dialogues, "epochs": arguments.epochs, **SHARED}
    constants |= {"rank": arguments.rank, "test_turns": arguments.test_turns, "canaries": CANARIES}
    print(json.dumps({"benchmark": "pretrained_lm", **constants, "models": list(rows.values())}, indent=1))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the public corpora")
    parser.add_argument("--folder", type=Path, required=True, help="a pretrained causal language model")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the run, the models and the results")
    parser.add_argument("--corpus", choices=FILES, default="customersim")
    parser.add_argument("--dialogues", type=int, default=60)
    parser.add_argument("--test-turns", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=1, help="of 20 noisy steps")
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--texts", type=int, default=20, help="generated texts of each model")
    parser.add_argument("--epsilons", default="1,3,8")
    parser.add_argument("--trainers", default=",".join(TRAINERS))
    parser.add_argument("--networks", default="lstm,lora")
    parser.add_argument("--child", nargs=3, metavar=("NETWORK", "TRAINER", "EPSILON"), help=argparse.SUPPRESS)
    return parser.parse_args()


def list_models(arguments: argparse.Namespace) -> Iterable[tuple[str, str, str]]:
    """Network, trainer and epsilon of every model."""
    yield "base", "none", ""
    for network in arguments.networks.split(","):
        for trainer in arguments.trainers.split(","):
            for epsilon in arguments.epsilons.split(","):
                yield network, trainer, epsilon


def name_model(network: str, trainer: str, epsilon: str) -> str:
    """The model's name."""
    return f"{network}-{trainer}-{epsilon}".strip("-")


def measure_model(arguments: argparse.Namespace, network: str, trainer: str, epsilon: str) -> Row:
    """Train one model and measure it: a row of the results."""
    run, canaries, test = prepare_corpus(arguments)
    name, started_at = name_model(network, trainer, epsilon), time.monotonic()
    card: Mapping[str, Any] = {}
    if network == "base":
        model = load_base(arguments.folder)
    else:
        settings = make_settings(arguments, network, trainer, float(epsilon))
        card = train_model(run, settings)["guarantee"]
        model = load_model(run.get_model_folder(name))
    trained_at = time.monotonic()
    measured = {
        "as_is": measure_characters(model, [text for text, _ in test]),
        "masked": measure_characters(model, [mask_intervals(text, spans) for text, spans in test]),
    }
    exposure = measure_canary_exposure(model, canaries)
    generated = generate_texts(model, arguments.texts, 24, seed=1)
    return {
        "name": name,
        "trainer": trainer,
        **{key: card.get(key) for key in ("epsilon", "relation", "steps", "noise_multiplier")},
        "perplexity_per_character": measured,
        "exposure": {
            key: exposure[key]
            for key in ("highest_exposure", "mean_exposure", "control_highest_exposure", "control_mean_exposure")
        },
        "generated": compare_with_turns(generated, [text for text, _ in test]),
        "seconds": {
            "training": round(trained_at - started_at, 1),
            "measurement": round(time.monotonic() - trained_at, 1),
        },
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def make_settings(arguments: argparse.Namespace, network: str, trainer: str, epsilon: float) -> TrainSettings:
    """The section ``train`` of one model."""
    name = name_model(network, trainer, f"{epsilon:g}")
    common = {**SHARED, "name": name, "trainer": trainer, "epsilon": epsilon, "epochs": arguments.epochs}
    if trainer == "crt":
        common["min_public_steps"] = 10
    if trainer == "uedp-bounded":
        common["bounding"] = BOUNDING
    lora = {**LORA, "model": {"folder": str(arguments.folder.resolve()), "lora": {"rank": arguments.rank}}}
    return TrainSettings.model_validate({**common, **(lora if network == "lora" else LSTM)})


def load_base(folder: Path) -> LanguageModel:
    """The folder's model as it is before any training."""
    tokenizer = FolderTokenizer.from_folder(folder, single_digits=True)
    return LanguageModel(tokenizer, build_language_network(FolderSettings(folder=folder.resolve()), tokenizer))


def measure_characters(model: LanguageModel, texts: Sequence[str]) -> float | None:
    """Perplexity per character."""
    bits = measure_perplexity(model, texts)["bits_per_character"]
    return None if bits is None else math.exp(bits * math.log(2.0))


def compare_with_turns(generated: Sequence[str], turns: Sequence[str]) -> Row:
    """The share of generated words that occur in ``turns``, distinct pairs of words, and words a text."""
    vocabulary = {word.casefold() for text in turns for word in text.split()}
    words = [text.casefold().split() for text in generated]
    pairs = [pair for text in words for pair in pairwise(text)]
    count = sum(map(len, words))
    return {
        "known_words": sum(word in vocabulary for text in words for word in text) / max(1, count),
        "distinct_2": len(set(pairs)) / max(1, len(pairs)),
        "words_per_text": count / max(1, len(generated)),
    }


def prepare_corpus(arguments: argparse.Namespace) -> tuple[RunFolder, Row, list[tuple[str, list[tuple[int, int]]]]]:
    """Curate the dialogues with canaries once; return the run, the canaries and the held-out turns."""
    folder = arguments.data / FOLDERS[arguments.corpus]
    train_file, test_file = (folder / f"{part}.jsonl" for part in FILES[arguments.corpus])
    rows, test_rows = read_rows(train_file, arguments.dialogues), read_rows(test_file, arguments.test_turns)
    canaries = plant_canaries(rows)
    cut = make_segmenter(SegmentSettings.model_validate({"mode": "turn"}))
    turns = [point for row in rows for point in split_labelled_row(row, cut)]
    test_turns = [point for row in test_rows for point in split_labelled_row(row, cut)][: arguments.test_turns]
    test = [(text, [(span["start"], span["end"]) for span in spans]) for text, spans in test_turns]
    run = RunFolder(arguments.work / "run")
    if not run.success.exists():
        corpus = arguments.work / "corpus.jsonl"
        kept = ({key: row[key] for key in ("id", "user_id", "text")} for row in rows)
        corpus.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        config = {
            "input": {"path": str(corpus), "user": "user_id"},
            "output": str(run.root),
            "segment": {"mode": "turn"},
            "dedup": {"mode": "none"},
            "detect": {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}},
        }
        redactory.curate(config, detector=Recorded.of(turns), resume=True)
    return run, canaries, test


def read_rows(file: Path, count: int) -> list[Row]:
    """The first ``count`` rows; one without a user is its own user."""
    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [{**row, "user_id": row["user_id"] or row["id"]} for row in rows]


def plant_canaries(rows: list[Row]) -> Row:
    """Put each canary ``COPIES`` times among ``rows`` as labelled rows; return the canary file."""
    draw = random.Random(1)
    numbers = [f"{number:0{CANARY_DIGITS}d}" for number in draw.sample(range(10**CANARY_DIGITS), 2 * CANARIES)]
    for index, number in enumerate(numbers[:CANARIES]):
        text = TEMPLATE.format(digits=number)
        span = {"start": len(text) - CANARY_DIGITS, "end": len(text), "label": "CODE"}
        for copy in range(COPIES):
            row = {"id": f"canary-{index}-{copy}", "user_id": f"canary-{index}", "text": text, "spans": [span]}
            rows.insert(draw.randrange(len(rows) + 1), row)
    return {"template": TEMPLATE, "inserted": numbers[:CANARIES], "control": numbers[CANARIES:], "copies": COPIES}


if __name__ == "__main__":
    main()
