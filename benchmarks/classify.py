"""Accuracy of private text classifiers, by default settings, beside other ways to train them on the same rows.

    python benchmarks/classify_corpora.py --clones CLONES DATA
    python benchmarks/classify.py DATA --weights base.pt --encoder FOLDER --work WORK

DATA has ``SET_train.jsonl`` and ``SET_test.jsonl``, rows of text and label. Each set is curated once for each number
of rows. Then ``redactory train`` runs with its defaults for task classify; only epsilon, the name and the number of
threads (1) are set. Repetitions draw fresh noise: ``train.seed`` is never set. No setting was chosen on these sets.

``base.pt`` has the pretrained weights of multilingual-e5-small; ``examples/encoder_tagger/unpack.py`` writes it. The
recipe of Opacus for text starts from them: everybody has the same encoder. ``classify_rivals.py`` has the competitors.

Parts: accuracy, attack, rivals, cost, curves (more epsilons and 4,000 rows for two sets), adapters (in the encoder's
last layers), folder (the encoder in the folder ``--encoder``). Measurements are kept in WORK, and what is there is not
measured again. The vectors of a set are encoded once and put into the cache of each of its runs; the part cost measures
a training that encodes its texts. Writes ``classify.json`` and ``classify.svg`` into ``--out`` and prints the JSON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from classify_corpora import RANDOM_LABELS, SOURCES
from classify_cost import measure_encoding, measure_text_to_model
from classify_rivals import RIVALS, describe_rivals, train_rival
from line_plot import Axes, Line, line_plot

import redactory
from redactory.evaluation.membership import measure_roc_metrics
from redactory.evaluation.utility import measure_accuracy
from redactory.foundation.files import write_json, write_text
from redactory.redaction import RunFolder
from redactory.training.model import TextClassifier, load_classifier
from redactory.training.models.adapted_encoder import AdaptedClassifier
from redactory.training.models.frozen_encoder import FrozenEncoder, open_encoder
from redactory.training.models.settings import FrozenEncoderSettings
from redactory.training.settings import TrainSettings

Row = dict[str, Any]
PARTS = ("accuracy", "attack", "rivals", "cost", "curves", "adapters", "folder")
EPSILONS, SMALL_EPSILONS, SMALL_SIZES = (0.5, 1.0, 3.0, 8.0), (8.0, 1.0), (500, 1_000, 2_000)
CURVE_SETS, CURVE_SIZES = ("ag", "sst"), (500, 1_000, 2_000, 4_000)
RIVAL_SETS, COST_SETS = ("sst", "ag"), ("sst", "ag")
DEFAULT, ADAPTERS = FrozenEncoderSettings(), FrozenEncoderSettings(lora_rank=16)
DELTA, REPETITIONS = 1e-5, 5
NOISE_FREE = "none"
TARGETS = (
    *(("ag", None, epsilon, share) for epsilon, share in ((0.5, 0.815), (1.0, 0.86), (8.0, 0.885))),
    *(("sst", None, epsilon, share) for epsilon, share in ((0.5, 0.80), (1.0, 0.815), (8.0, 0.825))),
    ("ag", 500, 8.0, 0.75),
)
"""Set, rows (None: all), epsilon, and the accuracy that was aimed at before anything was measured."""
ATTACK_SIZES = (500, None)
COLOURS = dict(zip(EPSILONS, ("#b5541c", "#8a8a8a", "#2e7d32", "#1f5f8b"), strict=True))


class Store:
    """The measurements so far, one JSON line each, by their key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: dict[str, Row] = {row["key"]: row for row in map(json.loads, lines)}

    def measure(self, key: str, measure: Callable[[], Row]) -> Row:
        """Return the row of ``key``, measured now unless it is there."""
        if key not in self.rows:
            started = time.monotonic()
            row = {"key": key, **measure(), "wall_seconds": round(time.monotonic() - started, 2)}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            self.rows[key] = row
            print(json.dumps(row)[:200], file=sys.stderr, flush=True)
        return self.rows[key]

    def select(self, part: str) -> list[Row]:
        """Return the rows of one part, in the order in which they were measured."""
        return [row for row in self.rows.values() if row["part"] == part]


class LabelledSet:
    """The rows of one set, its vectors, and a curated run for each number of rows."""

    def __init__(self, name: str, data: Path, work: Path) -> None:
        self.name, self._work = name, work
        self.train, self.test = ([*self._read_rows(data / f"{name}_{part}.jsonl")] for part in ("train", "test"))
        # nested subsets: the first rows of one order
        random.Random(1).shuffle(self.train)
        self.classes = sorted({label for _, label in self.train})
        self._encoders: dict[str, FrozenEncoder] = {}

    @staticmethod
    def _read_rows(path: Path) -> Iterator[tuple[str, str]]:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            # like a curated example: otherwise the vectors in the cache would not be found
            yield row["text"].strip(), str(row["label"])

    def open_encoder(self, settings: FrozenEncoderSettings) -> tuple[FrozenEncoder, Path]:
        """Return the encoder of ``settings`` and its cache, with the vectors of every row in it."""
        name = self.name if settings.folder is None else f"{self.name}-{settings.folder.name}"
        cache = self._work / f"{name}-vectors.npz"
        if name not in self._encoders:
            self._encoders[name] = open_encoder(settings, cache)
            self._encoders[name].encode([text for text, _ in (*self.train, *self.test)])
        return self._encoders[name], cache

    def count_rows(self, rows: int | None) -> int:
        """Return the number of training rows; None means all."""
        return len(self.train) if rows is None else min(rows, len(self.train))

    def make_config(self, rows: int | None, folder: Path | None = None) -> dict[str, Any]:
        """Make the configuration of a run on the first ``rows``, as a user writes it; also writes its input."""
        count = self.count_rows(rows)
        path = (folder or self._work) / f"{self.name}-{count}.jsonl"
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in self.train[:count]]
        path.write_text("".join(lines), encoding="utf-8")
        return {
            "input": {"path": str(path), "label": "label"},
            "segment": {"mode": "document"},
            "detect": {"language": SOURCES[self.name].language},
            "output": str(path.with_suffix("")),
            "train": {"trainer": "dpsgd", "task": "classify", "classes": self.classes, "delta": DELTA, "threads": 1},
        }

    def open_run(self, rows: int | None) -> tuple[dict[str, Any], RunFolder]:
        """Return configuration and folder of the run on the first ``rows``, curated if it is not there."""
        config = self.make_config(rows)
        run = RunFolder(Path(config["output"]))
        if not (run.root / "_SUCCESS").exists():
            redactory.curate(config)
        return config, run

    def load(self, run: RunFolder, name: str, settings: FrozenEncoderSettings = DEFAULT) -> TextClassifier:
        """Load a trained classifier; one on vectors reads them from this set's cache."""
        model = load_classifier(run.get_model_folder(name))
        is_adapted = isinstance(model.network, AdaptedClassifier)
        return model if is_adapted else replace(model, tokenizer=self.open_encoder(settings)[0])

    def measure_test_accuracy(self, model: TextClassifier) -> Row:
        """Return {accuracy, majority} on the test rows."""
        result = measure_accuracy(model, [text for text, _ in self.test], [label for _, label in self.test])
        return {"accuracy": 1 - result["error_rate"], "majority": 1 - result["majority_error_rate"]}


def main() -> None:
    """Measure what is asked for, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="runs, models and measurements")
    parser.add_argument("--weights", type=Path, help="the pretrained weights that Opacus' recipe starts from")
    parser.add_argument("--encoder", type=Path, help="the folder of another encoder, for the part folder")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "results")
    parser.add_argument("--sets", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="none: only write the results")
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS))
    parser.add_argument("--rival-epsilons", nargs="+", type=float, default=SMALL_EPSILONS, help="inf: no noise")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    arguments = parser.parse_args()
    if "folder" in arguments.parts and arguments.encoder is None:
        parser.error("--parts folder: also give --encoder")
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    store = Store(arguments.work / "measurements.jsonl")
    sets = {name: LabelledSet(name, arguments.data, arguments.work.resolve()) for name in arguments.sets}
    measures = {
        "accuracy": measure_sets,
        "attack": attack_heads,
        "rivals": measure_rivals,
        "cost": measure_costs,
        "curves": measure_curves,
        "adapters": measure_adapters,
        "folder": measure_folder,
    }
    for part in arguments.parts:
        for labelled in sets.values():
            measures[part](store, labelled, arguments)
    page = summarize(store, {name: LabelledSet(name, arguments.data, arguments.work) for name in SOURCES})
    write_json(arguments.out / "classify.json", page)
    write_text(arguments.out / "classify.svg", draw_curves(page["accuracy"]))
    print(json.dumps(page, indent=1))


# Redactory's default.


def measure_sets(store: Store, labelled: LabelledSet, arguments: argparse.Namespace) -> None:
    """Measure every row count and epsilon of the table, and the same without noise."""
    for epsilon in (*EPSILONS, None):
        measure_repetitions(store, labelled, None, epsilon, arguments.repetitions if epsilon else 1)
    for rows in SMALL_SIZES:
        if rows < len(labelled.train):
            for epsilon in (*SMALL_EPSILONS, None):
                measure_repetitions(store, labelled, rows, epsilon, arguments.repetitions if epsilon else 1)


def measure_curves(store: Store, labelled: LabelledSet, arguments: argparse.Namespace) -> None:
    """Measure the other points of the learning curves."""
    if labelled.name in CURVE_SETS:
        for repetition in range(1, arguments.repetitions + 1):
            for rows in CURVE_SIZES:
                for epsilon in EPSILONS:
                    measure_repetitions(store, labelled, rows, epsilon, repetition)


def measure_adapters(store: Store, labelled: LabelledSet, arguments: argparse.Namespace) -> None:
    """Train adapters in the encoder's last layers once, at the largest epsilon."""
    if labelled.name in CURVE_SETS:
        measure_model(store, labelled, "adapters", ADAPTERS, 1)


def measure_folder(store: Store, labelled: LabelledSet, arguments: argparse.Namespace) -> None:
    """Train on the vectors of the encoder in another folder, at the largest epsilon."""
    if labelled.name in CURVE_SETS:
        measure_model(store, labelled, "folder", FrozenEncoderSettings(folder=arguments.encoder), arguments.repetitions)


def measure_model(
    store: Store, labelled: LabelledSet, part: str, settings: FrozenEncoderSettings, repetitions: int
) -> None:
    """Train with other settings of the model than the default ones, on all rows."""
    described = {
        "lora_rank": settings.lora_rank,
        "encoder": settings.folder and settings.folder.name,
        "redactory": metadata.version("redactory"),
    }
    for repetition in range(1, repetitions + 1):
        measure = partial(train_and_test, labelled, None, max(EPSILONS), repetition, part, settings)
        store.measure(f"{part} {labelled.name} {repetition}", lambda: {**measure(), **described})  # noqa: B023


def measure_repetitions(
    store: Store, labelled: LabelledSet, rows: int | None, epsilon: float | None, repetitions: int
) -> None:
    """Train and test ``repetitions`` times with fresh noise; without noise if ``epsilon`` is None."""
    for repetition in range(1, repetitions + 1):
        key = f"accuracy {labelled.name} {labelled.count_rows(rows)} {epsilon or NOISE_FREE} {repetition}"
        store.measure(key, lambda n=repetition: train_and_test(labelled, rows, epsilon, n))  # type: ignore[misc]


def train_and_test(
    labelled: LabelledSet,
    rows: int | None,
    epsilon: float | None,
    repetition: int,
    part: str = "accuracy",
    settings: FrozenEncoderSettings = DEFAULT,
) -> Row:
    """Train one model by the defaults, except for ``settings`` of the model, and test it."""
    config, run = labelled.open_run(rows)
    name = f"e{epsilon:g}-{repetition}".replace(".", "_") if epsilon else NOISE_FREE
    changes: dict[str, Any] = {"epsilon": epsilon} if epsilon else {"trainer": "noiseless"}
    if settings is not DEFAULT:
        model_keys = settings.model_dump(mode="json", exclude_unset=True)
        name, changes = f"{part}-{name}", {**changes, "model": {"kind": "encoder", **model_keys}}
    shutil.copyfile(labelled.open_encoder(settings)[1], run.text_vectors)
    started = time.process_time()
    card = redactory.train(config, name=name, **changes)["guarantee"]
    seconds = time.process_time() - started
    model = labelled.load(run, name, settings)
    measured = labelled.measure_test_accuracy(model)
    if repetition == 1 and epsilon == max(EPSILONS) and settings is DEFAULT:
        check_command(labelled, run, name, measured["accuracy"])
    return {
        "part": part,
        "set": labelled.name,
        "rows": labelled.count_rows(rows),
        "epsilon": epsilon,
        "repetition": repetition,
        **measured,
        "noise_multiplier": card.get("noise_multiplier"),
        "relation": card.get("relation"),
        "train_cpu_seconds": round(seconds, 2),
    }


def check_command(labelled: LabelledSet, run: RunFolder, name: str, accuracy: float) -> None:
    """Check that ``redactory evaluate model`` has the same accuracy on a few hundred test rows or all."""
    path = run.root.with_name(f"{labelled.name}-test.jsonl")
    test = labelled.test[:300]
    path.write_text("".join(json.dumps({"text": t, "label": c}) + "\n" for t, c in test), encoding="utf-8")
    command = redactory.evaluate_model(run.root, name, [str(path)])
    direct = measure_accuracy(labelled.load(run, name), [t for t, _ in test], [c for _, c in test])
    assert command["errors"] == direct["errors"], (command["errors"], direct["errors"], accuracy)


# Competitors, costs, and an attack.


def measure_rivals(store: Store, labelled: LabelledSet, arguments: argparse.Namespace) -> None:
    """Train every competitor on the same rows."""
    if labelled.name not in RIVAL_SETS:
        return
    for epsilon in arguments.rival_epsilons:
        for method in arguments.rivals:
            for repetition in range(1, RIVALS[method] + 1):
                key = f"rivals {labelled.name} {method} {epsilon} {repetition}"

                def measure(method: str = method, epsilon: float = epsilon, repetition: int = repetition) -> Row:
                    stated = epsilon if math.isfinite(epsilon) else None
                    head = {"part": "rivals", "set": labelled.name, "method": method, "epsilon": stated}
                    return {**head, **train_rival(method, labelled, epsilon, DELTA, repetition, arguments.weights)}

                store.measure(key, measure)


def measure_costs(store: Store, labelled: LabelledSet, arguments: argparse.Namespace) -> None:
    """Measure time and memory from text to model, with each kind in turn, and of encoding alone."""
    head = {"part": "cost", "set": labelled.name}
    encoded = store.measure(f"cost {labelled.name} encode", lambda: {**head, **measure_encoding(labelled.test)})
    assert encoded["texts"]
    if labelled.name in COST_SETS:
        for kind in ("encoder", "lstm"):
            folder = arguments.work.resolve() / "cost"
            folder.mkdir(exist_ok=True)
            config = labelled.make_config(None, folder)
            store.measure(
                f"cost {labelled.name} {kind}",
                lambda kind=kind, config=config: {**head, **measure_text_to_model(config, kind)},  # type: ignore[misc]
            )


def attack_heads(store: Store, labelled: LabelledSet, arguments: argparse.Namespace) -> None:
    """Attack heads with the strongest target's epsilon, and without noise, by the loss on the true class."""
    if labelled.name not in CURVE_SETS:
        return
    for rows in ATTACK_SIZES:
        for name, epsilon in (("e8-1", 8.0), (NOISE_FREE, None)):
            measure_repetitions(store, labelled, rows, epsilon, 1)
            key = f"attack {labelled.name} {labelled.count_rows(rows)} {epsilon or NOISE_FREE}"
            store.measure(key, lambda r=rows, n=name, e=epsilon: attack_head(labelled, r, n, e))  # type: ignore[misc]


def attack_head(labelled: LabelledSet, rows: int | None, name: str, epsilon: float | None) -> Row:
    """Infer membership: rows that were trained on against as many test rows, by log probability of the class."""
    _, run = labelled.open_run(rows)
    model, count = labelled.load(run, name), min(labelled.count_rows(rows), len(labelled.test))

    def score(examples: list[tuple[str, str]]) -> Any:
        log_probs = model.compute_class_log_probs([text for text, _ in examples])
        return log_probs[np.arange(len(examples)), [model.classes.index(label) for _, label in examples]]

    metrics = measure_roc_metrics(score(labelled.train[:count]), score(labelled.test[:count]))
    return {
        "part": "attack",
        "set": labelled.name,
        "rows": labelled.count_rows(rows),
        "epsilon": epsilon,
        "members": count,
        "non_members": count,
        "auc": metrics["auc"],
        "tpr": metrics["tpr"],
    }


# The results.


def summarize(store: Store, sets: Mapping[str, LabelledSet]) -> Row:
    """Make the page of results from the measurements."""
    accuracy = summarize_repetitions(store.select("accuracy"), ("set", "rows", "epsilon"))
    means = {(row["set"], row["rows"], row["epsilon"]): row["mean"] for row in accuracy}
    rivals = summarize_repetitions(store.select("rivals"), ("set", "method", "epsilon"))
    for row in rivals:
        default = means.get((row["set"], len(sets[row["set"]].train), row["epsilon"]))
        if default is not None:
            row |= {"redactory": default, "ratio": round(row["mean"] / default, 4)}
    return {
        "benchmark": "classify",
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), **read_versions()},
        "settings": {
            "trainer": "dpsgd",
            "model": "encoder (the default): a linear layer on the vectors of the package's multilingual-e5-small",
            "defaults": TrainSettings(trainer="dpsgd", task="classify", classes=("a", "b")).choose_values(),
            "changed": "epsilon, name and threads (1); train.seed is not set",
            "relation": "substitution: one example is exchanged for another one",
            "delta": DELTA,
            "chosen_on_these_sets": "nothing",
            "without_noise": "epsilon null: the trainer noiseless with the same defaults, once",
            "vectors": "encoded once for each set and put into the cache of its runs; cost is measured without that",
            "subsets": "the first rows of one shuffled order, so that they are nested",
        },
        "sets": {name: describe_set(labelled) for name, labelled in sets.items()},
        "accuracy": accuracy,
        "other_models": {
            "adapters": [drop_key(row) for row in store.select("adapters")],
            "folder": summarize_repetitions(store.select("folder"), ("set", "encoder")),
        },
        "targets": compare_targets(means, sets),
        "rivals": {"methods": describe_rivals(), "rows": rivals, "not_run": list_missing_rivals(store)},
        "machine": "two cores, shared with other work: processor time, and few repetitions of slow competitors",
        "cost": [drop_key(row) for row in store.select("cost")],
        "attack": {
            "score": "log probability of a row's class; training rows against as many test rows",
            "command": "the score of redactory evaluate attack membership, here for all rows of two sets",
            "rows": [drop_key(row) for row in store.select("attack")],
        },
    }


def summarize_repetitions(rows: list[Row], names: tuple[str, ...]) -> list[Row]:
    """Join repetitions: their values, mean, sample standard deviation, and what else they have in common."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    summary = []
    for group in groups.values():
        values = [round(row["accuracy"], 4) for row in group]
        common = {name: value for name, value in group[0].items() if all(row.get(name) == value for row in group)}
        dropped = ("key", "part", "accuracy", "repetition", "wall_seconds", "train_cpu_seconds")
        summary.append(
            {name: value for name, value in common.items() if name not in dropped}
            | {
                "repetitions": len(values),
                "mean": round(float(np.mean(values)), 4),
                "deviation": round(float(np.std(values, ddof=1)), 4) if len(values) > 1 else None,
                "values": values,
                "cpu_seconds": round(float(np.median([row["train_cpu_seconds"] for row in group])), 1),
            }
        )
    return sorted(summary, key=lambda row: tuple(math.inf if row[name] is None else row[name] for name in names))


def drop_key(row: Row) -> Row:
    """Return ``row`` without what only the store needs."""
    return {name: value for name, value in row.items() if name not in ("key", "part", "wall_seconds")}


def describe_set(labelled: LabelledSet) -> Row:
    """Describe a set: its source, sizes, and the share of the most frequent class in the test rows."""
    labels = [label for _, label in labelled.test]
    described = {
        **SOURCES[labelled.name]._asdict(),
        "train": len(labelled.train),
        "test": len(labelled.test),
        "classes": len(labelled.classes),
        "majority": round(max(labels.count(name) for name in labelled.classes) / len(labels), 4),
    }
    if labelled.name == "departments":
        described["expected_share_of_right_labels"] = round(
            1 - RANDOM_LABELS + RANDOM_LABELS / len(labelled.classes), 4
        )
    return described


def compare_targets(means: Mapping[tuple[str, int, float], float], sets: Mapping[str, LabelledSet]) -> list[Row]:
    """Compare means with what was aimed at."""
    compared = []
    for name, rows, epsilon, target in TARGETS:
        mean = means.get((name, sets[name].count_rows(rows), epsilon))
        reached = None if mean is None else mean >= target
        row = {"set": name, "rows": sets[name].count_rows(rows), "epsilon": epsilon, "target": target}
        compared.append({**row, "mean": mean, "reached": reached})
    return compared


def list_missing_rivals(store: Store) -> list[Row]:
    """List the comparisons that were not run."""
    rows = {(row["set"], row["method"], row["epsilon"]) for row in store.select("rivals")}
    wanted = ((name, method, epsilon) for name in SOURCES for method in RIVALS for epsilon in SMALL_EPSILONS)
    return [dict(zip(("set", "method", "epsilon"), one, strict=True)) for one in wanted if one not in rows]


def read_versions() -> dict[str, str]:
    """Read the versions of the packages that compute something here."""
    packages = ("redactory", "torch", "onnxruntime", "numpy", "dp-accounting", "opacus", "transformers", "tokenizers")
    return {name: metadata.version(name) for name in packages}


def draw_curves(accuracy: list[Row]) -> str:
    """Draw accuracy against the number of training rows, a line for each set and epsilon."""
    lines = []
    for name, style in zip(CURVE_SETS, ("-", "--"), strict=True):
        for epsilon in reversed(EPSILONS):
            rows = [row for row in accuracy if (row["set"], row["epsilon"]) == (name, epsilon)]
            points = [(row["rows"], row["mean"], min(row["values"]), max(row["values"])) for row in rows]
            title = SOURCES[name].task.partition(":")[0]
            if points:
                lines.append(Line(f"{title}, ε = {epsilon:g}", COLOURS[epsilon], sorted(points), style))
    notes = (f"task classify by default, δ = {DELTA:g}", "one example exchanged", "bars: least and greatest")
    axes = Axes("Accuracy against the number of training rows", "training rows", "test accuracy", True, notes=notes)
    return line_plot(lines, replace(axes, ticks=(*CURVE_SIZES, 6_735)))


if __name__ == "__main__":
    main()
