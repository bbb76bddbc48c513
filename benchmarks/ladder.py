"""A recipe for ``crt``, rung by rung: what each change of a key is worth at one epsilon.

    python benchmarks/ladder.py --out F --rows 500 --seeds 2                       CustomerSim, simulated
    python benchmarks/ladder.py --out F --data valid.jsonl --test test.jsonl --rows 999 --public-text T

Corpus, policies and the constants of the first rung are those of Figure 2 (``crt.py``); ``--epsilon`` is
Bayesian at a miss rate of 0.1.  A rung adds its keys to those of the rungs before it; with ``--alone`` to the
first one alone.  Perplexity is per word outside of secrets, held out; ``excess`` is what lies above
``redact-only`` with the same vocabulary, first weights and seed.  ``pretrained`` passes over
``--public-text`` first, JSON lines {text}.  ``noiseless`` has the last rung's keys and next to no
noise, ``unclipped`` no clipping either: what is left of the excess there is not the noise's.  Writes
F/ladder.jsonl, a line a model, and F/ladder.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from crt import CONSTANTS, DELTA
from crt_corpus import Corpus

from redactory.foundation.files import write_json
from redactory.redaction import read_column
from redactory.training import load_model, train_model
from redactory.training.settings import TrainSettings

GAMMA = 0.1
RUNGS: dict[str, dict[str, Any]] = {
    "figure 2": {"tokenizer": "public", "vocabulary_size": 2000},
    "filled up": {"tokenizer": "auto"},
    "rate": {"tokenizer": "public", "sampling_rate": 0.02, "epochs": 8},
    "public first": {"public_pretraining_epochs": 5},
    "mixed": {"public_share": 1 / 3},
    "cosine": {"learning_rate_schedule": "cosine", "warm_up": 0.05},
    "pretrained": {"pretraining_epochs": 3},
    "small steps": {"dp_learning_rate": 0.01},
    "few public": {"public_share": 0.02},
}
"""The keys of each rung."""
FLOORS = {"noiseless": {"noise_multiplier": 1e-3}, "unclipped": {"noise_multiplier": 1e-9, "clip_norm": 1e3}}
OF_THE_START = ("tokenizer", "vocabulary_size", "public_text", "pretraining_epochs")
"""What ``redact-only`` shares with a rung that it is compared with."""
Row = dict[str, Any]


def main() -> None:
    """Train and measure what is not done yet, and print the table."""
    asked = _arguments()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "ladder.jsonl"
    kept = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done, corpus = {row["name"] for row in kept}, Corpus(asked)
    run = corpus.curated(GAMMA)
    private = len(read_column(run.private, "text"))
    wanted = list(trainings(asked, private))
    for own, facts in wanted:
        if own.model_name in done:
            continue
        begun = time.process_time()
        summary = train_model(run, own)
        seconds = round(time.process_time() - begun, 1)
        found = corpus.held_out.measure(load_model(run.get_model_folder(own.model_name)), masked=True)
        own_facts = {"name": own.model_name, **facts, "parameters": summary["parameters"], "cpu": seconds}
        kept.append({**own_facts, "perplexity": found["per_word"], "per_token": found["perplexity"]})
        with file.open("a", encoding="utf-8") as results:
            results.write(json.dumps(kept[-1]) + "\n")
        print(kept[-1], flush=True)
    # models of other targets and trainers lie in the same file
    names = {own.model_name for own, _ in wanted}
    kept = [row for row in kept if row["name"] in names]
    page = {"private": private, "epsilon": asked.epsilon, "delta": DELTA, "gamma": GAMMA, "rungs": RUNGS}
    write_json(asked.out / "ladder.json", {**page, "table": table(kept)})
    print(json.dumps(table(kept), indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    for name in ("data", "test", "public-text"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--rungs", default="all", help="their names, parted by commas; all")
    parser.add_argument("--trainer", default="crt", choices=("crt", "dpsgd"))
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--floors", action="store_true")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of train")
    asked = parser.parse_args()
    asked.train = {**CONSTANTS, **{k: yaml.safe_load(v) for k, _, v in (s.partition("=") for s in asked.set)}}
    asked.copies = 1
    return asked


def trainings(asked: argparse.Namespace, private: int) -> Iterator[tuple[TrainSettings, Row]]:
    """Settings of every model, and what tells it apart; ``redact-only`` before those it is compared with."""
    target, delta = asked.epsilon, DELTA
    if asked.trainer == "crt":
        target, delta = math.log1p(math.expm1(asked.epsilon) / GAMMA), DELTA / GAMMA
    shared = {**asked.train, "model": {"kind": "lstm", "embedding_size": 64, "hidden_size": 64}}
    for seed in range(1, asked.seeds + 1):
        compared: list[str] = []
        for rung, keys in _rungs(asked):
            start = {key: keys[key] for key in OF_THE_START if key in keys}
            named = "-".join(str(getattr(value, "stem", value)) for value in start.values())
            plain = f"redact-only-{named}-s{seed}"
            if plain not in compared:
                own = {**shared, **start, "trainer": "redact-only", "name": plain, "seed": seed}
                yield TrainSettings.model_validate(own), {"rung": "redact-only", "seed": seed}
                compared.append(plain)
            name = f"{asked.trainer}-e{asked.epsilon:g}-{rung.replace(' ', '-')}-s{seed}"
            own = {**shared, "epsilon": target, "delta": delta, **keys}
            own |= {"trainer": asked.trainer, "name": name, "seed": seed}
            own["expected_batch_size"] = max(1.0, own["sampling_rate"] * private)
            yield TrainSettings.model_validate(own), {"rung": rung, "seed": seed, "beside": plain}


def _rungs(asked: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    first, *_ = RUNGS.values()
    chosen = list(RUNGS) if asked.rungs == "all" else asked.rungs.split(",")
    so_far: dict[str, Any] = {}
    for rung, keys in RUNGS.items():
        if rung == "pretrained" and asked.public_text is None:
            break
        if rung == "pretrained":
            keys = {**keys, "tokenizer": "public_text", "public_text": asked.public_text}
        so_far = {**(first if asked.alone else so_far), **keys}
        if rung in chosen:
            yield rung, so_far
    if asked.floors:
        for floor, keys in FLOORS.items():
            yield floor, {**so_far, **keys}


def table(rows: list[Row]) -> list[Row]:
    """Means over seeds, in the order of the rungs: perplexity per word, and its excess."""
    plain = {row["name"]: row["perplexity"] for row in rows if row["rung"] == "redact-only"}
    found = []
    for rung in dict.fromkeys(row["rung"] for row in rows if "beside" in row):
        own = [row for row in rows if row["rung"] == rung]
        beside = [plain[row["beside"]] for row in own]
        excesses = [row["perplexity"] / bound - 1.0 for row, bound in zip(own, beside, strict=True)]
        found.append(
            {
                "rung": rung,
                "seeds": len(own),
                "perplexity": mean(row["perplexity"] for row in own),
                "redact_only": mean(beside),
                "excess": mean(excesses),
                "least": min(excesses),
                "greatest": max(excesses),
                "cpu": mean(row["cpu"] for row in own),
            }
        )
    return found


if __name__ == "__main__":
    main()
