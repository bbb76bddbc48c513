"""Synthetic corpora: what a classifier and a language model learn from them, and what they give away.

    python benchmarks/synthesize.py --data shared/data --work FOLDER           both corpora, one seed
    python benchmarks/synthesize.py --data shared/data --work FOLDER --only cuad --seeds 1,2
    python benchmarks/synthesize.py --data shared/data --work FOLDER --only multiwoz --public-text T

CUAD's twelve commonest clause types: 30% of the contracts are donated (public), the other rows are split at
random into private and test rows.  A language model is trained on the private rows with DP-SGD at epsilon 8
from the donated ones, writes as many rows, with classes and lengths from a noisy histogram or classes from
public constants; a classifier learns from what it wrote, beside one that is trained with DP-SGD on the real
rows.  Simulated CustomerSim: planted numbers, and attacks on the texts, of a model with a guarantee and of
one that learnt by heart (``sgd``, many passes over few dialogues): what an attack does not find there says
nothing where it finds nothing elsewhere (``speaks``).  MultiWOZ, human dialogues: a model that was
pretrained on ``--public-text``, JSON lines {text}.  Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import redactory
from redactory.redaction import read_batches
from redactory.redaction.folder import SyntheticFolder

Row = dict[str, Any]
CLASSES, WORDS, EPSILON, HISTOGRAM = 12, 16, 7.9, 20.0
"""The histogram takes what is left of epsilon 8."""
ENGINES: dict[str, Any] = {
    "tagger": None,
    "patterns": None,
    "spacy": {"model": "blank:en"},
    "lists": {"deny": [{"words": ["nobody at all"]}]},
}
SHARED: dict[str, Any] = {
    "threads": 1,
    "group_sizes": (),
    "noise": "float",
    "vocabulary_size": 2000,
    "max_tokens": 40,
    "max_physical_batch_tokens": 16384,
    "learning_rate_schedule": "linear",
}
LANGUAGE = {"model": {"embedding_size": 96, "hidden_size": 128}, "learning_rate": 4e-3}
CLASSIFIER = {"task": "classify", "model": {"kind": "bag"}, "learning_rate": 1e-2}
NOISY = {"epsilon": EPSILON, "delta": 1e-5, "sampling_rate": 0.1, "epochs": 6, "dp_learning_rate": 4e-3}


def main() -> None:
    """Both corpora, for every seed."""
    asked = _arguments()
    asked.work.mkdir(parents=True, exist_ok=True)
    of = {"cuad": cuad, "customersim": customersim, "multiwoz": multiwoz}
    wanted = [name for name in of if asked.only == name or (asked.only is None and name != "multiwoz")]
    found: dict[str, Any] = {name: [] for name in wanted}
    for seed in asked.seeds:
        for name in found:
            begun = time.monotonic()
            row = of[name](asked, asked.work / f"{name}-{seed}", seed)
            found[name].append({"seed": seed, **row, "seconds": round(time.monotonic() - begun)})
    print(json.dumps(found, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with cuad_clauses/")
    parser.add_argument("--work", type=Path, required=True, help="a folder for runs and models")
    parser.add_argument("--only", choices=("cuad", "customersim", "multiwoz"))
    parser.add_argument("--public-text", type=Path, help="other people's text, for multiwoz")
    parser.add_argument("--seeds", type=lambda given: [int(one) for one in given.split(",")], default=[1])
    parser.add_argument("--dialogues", type=int, default=3_000, help="that dpsgd learns from")
    parser.add_argument("--by-heart", type=int, default=300, help="dialogues that sgd learns by heart")
    parser.add_argument("--passes", type=int, default=12, help="of sgd over them")
    return parser.parse_args()


def written(path: Path, rows: Iterable[Row]) -> str:
    """The path of ``rows`` as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def curated(source: str, run: Path, **more: Any) -> dict[str, Any]:
    """The configuration of a finished run of rows of text and class."""
    config = {
        "input": {"path": source, "label": "label"},
        "segment": {"mode": "line"},
        "detect": ENGINES,
        "dedup": {"mode": "none", "report_cross_split": False},
        "release": {"allow_uncovered_kinds": ["PERSON", "LOCATION", "ORGANIZATION"]},
        **more,
    }
    redactory.curate(config, output=run)
    return config


# CUAD: classes.


def clauses(data: Path, seed: int) -> tuple[dict[str, list[Row]], list[str]]:
    """Donated, private and test rows of the twelve commonest types, and these."""
    with (data / "cuad_clauses" / "clauses.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    common = [name for name, _ in Counter(row["label"] for row in rows).most_common(CLASSES)]
    rows = [
        {**{key: row[key] for key in ("id", "user_id", "label")}, "text": " ".join(row["text"].split()[:WORDS])}
        for row in rows
        if row["label"] in common
    ]
    draw = random.Random(seed)
    users = sorted({row["user_id"] for row in rows})
    donors = set(draw.sample(users, round(0.3 * len(users))))
    rest = [row for row in rows if row["user_id"] not in donors]
    draw.shuffle(rest)
    cut = round(0.75 * len(rest))
    donated = [row for row in rows if row["user_id"] in donors]
    return {"donated": donated, "private": rest[:cut], "test": rest[cut:]}, common


def cuad(asked: argparse.Namespace, work: Path, seed: int) -> dict[str, Any]:
    """Errors of classifiers on real test rows, by what they learnt from."""
    parts, classes = clauses(asked.data, seed)
    paths = {name: written(work / f"{name}.jsonl", rows) for name, rows in parts.items()}
    config = curated(paths["private"], work / "run")
    public = {"public_text": paths["donated"], **SHARED}
    classify = {**CLASSIFIER, "classes": classes, **public}

    def error(rows: str, name: str, **settings: Any) -> float:
        run = work / name
        own = config if rows == paths["private"] else curated(rows, run)
        run = work / "run" if rows == paths["private"] else run
        given = {**own, "train": {**classify, "name": name, **settings}}
        redactory.train(given, output=run)
        return float(redactory.evaluate_model(run, name, (paths["test"],))["error_rate"])

    private, open_ = (
        {"trainer": "dpsgd", **NOISY, "epochs": 8, "dp_learning_rate": 2e-2},
        {"trainer": "noiseless", "epochs": 12},
    )
    errors = {
        "real_without_guarantee": error(paths["private"], "real-sgd", **open_, pretraining_epochs=12),
        "donated_alone": error(paths["donated"], "donated-alone", **open_, public_text=None),
        "real_dpsgd": error(paths["private"], "real-dpsgd", **private, pretraining_epochs=12),
        "real_dpsgd_from_scratch": error(paths["private"], "real-dpsgd-scratch", **private),
        "majority": 1 - max(Counter(row["label"] for row in parts["test"]).values()) / len(parts["test"]),
    }
    language = {**LANGUAGE, **public, "prefix": "class", "trainer": "dpsgd", "pretraining_epochs": 12, **NOISY}
    redactory.train({**config, "train": language}, output=work / "run")
    ways: dict[str, dict[str, Any]] = {"uniform": {}, "histogram": {"histogram": HISTOGRAM}}
    measured = {}
    for way, more in ways.items():
        out = work / f"written-{way}"
        told = redactory.synthesize(
            work / "run", "dpsgd", rows=len(parts["private"]), out=out, labels=classes, tokens=60, seed=seed, **more
        )
        rows = [
            {"id": row["example_id"], "user_id": row["example_id"], "label": row["class"], "text": row["text"]}
            for batch in read_batches(SyntheticFolder(out).public)
            for row in batch.to_pylist()
            if row["text"].split()
        ]
        source = written(work / f"written-{way}.jsonl", rows)
        errors[f"written_{way}"] = error(source, f"written-{way}-run", **open_)
        errors[f"written_{way}_after_donated"] = error(source, f"written-{way}-after", **open_, pretraining_epochs=12)
        figures = redactory.evaluate_synthetic(work / "run", out, "dpsgd", test=(paths["test"],), seed=seed)
        measured[way] = {"epsilon": told["epsilon"], "lengths_met": told["lengths_met"], **shown(figures)}
    counts = {name: len(rows) for name, rows in parts.items()}
    return {"rows": counts, "error_rate": errors, "measured": measured}


# CustomerSim: planted numbers.


def customersim(asked: argparse.Namespace, work: Path, seed: int) -> dict[str, Any]:
    """What texts of a model with a guarantee show, and of one without that learnt the corpus by heart."""
    found = {}
    noisy: dict[str, Any] = {**NOISY, "sampling_rate": 0.02, "epochs": 10, "dp_learning_rate": 1e-2}
    by_count = {"strategy": "count", "epsilon": 1.0, "delta": 1e-6, "texts_per_user": 4}
    counted = {"route": by_count, "dedup": {"private_mode": "none"}}
    kinds: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
        "dpsgd": (asked.dialogues, noisy, {}),
        "crt": (asked.dialogues, {**noisy, "public_weighting": "count"}, counted),
        "sgd": (asked.by_heart, {"epochs": asked.passes}, {}),
    }
    for name, (dialogues, settings, more) in kinds.items():
        folder = work / name
        folder.mkdir(parents=True, exist_ok=True)
        made = redactory.simulate(folder / "corpus.jsonl", dialogues, seed, 20, 20)
        redactory.simulate(folder / "test.jsonl", 300, seed + 1000, 0, 1)
        config = curated(
            str(folder / "corpus.jsonl"),
            folder / "run",
            input={"path": str(folder / "corpus.jsonl")},
            segment={"mode": "turn"},
            **more,
        )
        train = {**SHARED, **LANGUAGE, "trainer": name, "tokenizer": "shipped", **settings}
        redactory.train({**config, "train": train}, output=folder / "run")
        out = folder / "written"
        told = redactory.synthesize(
            folder / "run", name, rows=3000, out=out, tokens=40, seed=seed, no_guarantee=name == "sgd"
        )
        figures = redactory.evaluate_synthetic(
            folder / "run", out, name, test=(str(folder / "test.jsonl"),), canaries=made["canaries_file"], seed=seed
        )
        found[name] = {"dialogues": dialogues, **{key: told[key] for key in ("epsilon", "holds")}}
        found[name] |= shown(figures)
    return {**found, "speaks": found["sgd"]["above_chance"]}


# MultiWOZ: human dialogues.


def multiwoz(asked: argparse.Namespace, work: Path, seed: int) -> dict[str, Any]:
    """What texts are worth, and show, of a model that learnt from human dialogues after public text."""
    paths = {}
    for part in ("valid", "test"):
        with (asked.data / "multiwoz21" / f"{part}.jsonl").open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        paths[part] = written(work / f"{part}.jsonl", ({"id": row["id"], "text": row["text"]} for row in rows))
    config = curated(paths["valid"], work / "run", input={"path": paths["valid"]}, segment={"mode": "turn"})
    noisy = {**NOISY, "sampling_rate": 0.02, "epochs": 8, "dp_learning_rate": 1e-2}
    public = {"public_text": str(asked.public_text.resolve()), "pretraining_epochs": 3}
    train = {**SHARED, **LANGUAGE, "trainer": "dpsgd", **public, **noisy}
    redactory.train({**config, "train": train}, output=work / "run")
    out = work / "written"
    told = redactory.synthesize(work / "run", "dpsgd", rows=3000, out=out, tokens=40, seed=seed)
    figures = redactory.evaluate_synthetic(work / "run", out, "dpsgd", test=(paths["test"],), seed=seed)
    return {**{key: told[key] for key in ("epsilon", "holds")}, **shown(figures)}


_SHOWN = ("next_word_accuracy", "classifier_error", "unigram_distance", "bigram_distance", "length_distance")
_SHOWN_TOO = ("distinct_2", "mauve", "coverage", "compared", "nearest", "canaries", "above_chance")


def shown(figures: Mapping[str, Any], names: Sequence[str] = (*_SHOWN, *_SHOWN_TOO)) -> dict[str, Any]:
    """What of a result is printed."""
    return {name: figures[name] for name in names} | {"membership": figures["membership"]["auc"]}


if __name__ == "__main__":
    main()
