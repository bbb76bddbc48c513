"""Correlated noise against independent noise at one epsilon of one point exchanged, with ``crt``.

    python benchmarks/bands.py --out F --rows 500 --seeds 2                       CustomerSim, simulated
    python benchmarks/bands.py --out F --data valid.jsonl --test test.jsonl --rows 300 --epsilons 8

Corpus, policies and constants are those of Figure 2 (``crt.py``); perplexity is outside of secrets, held out,
``excess`` what lies above that of ``redact-only``.  ``--rates`` multiply ``private_learning_rate``.  Writes
F/bands.jsonl, a line a model, and F/bands.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from crt import CONSTANTS, DELTA, Corpus

from redactory.foundation.files import write_json
from redactory.redaction import read_column
from redactory.training import load_model, train_model
from redactory.training.mechanism import Relation
from redactory.training.settings import TrainSettings
from redactory.training.trainers import trainer_of
from redactory.training.widths import bands_of, widths

GAMMA, KEYS = 0.1, ("trainer", "epsilon", "bands", "taken", "rate")
Row = dict[str, Any]


def main() -> None:
    """Train and measure what is not done yet, and print the table."""
    asked = _arguments()
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "bands.jsonl"
    kept = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done, corpus = {row["name"] for row in kept}, Corpus(asked)
    run = corpus.curated(GAMMA)
    private = len(read_column(run.private, "text"))
    for own, facts in trainings(asked, private):
        if own.model_name not in done:
            begun = time.monotonic()
            train_model(run, own)
            seconds = round(time.monotonic() - begun, 1)
            found = corpus.held_out.measure(load_model(run.model(own.model_name)), masked=True)
            kept.append(
                {"name": own.model_name, **facts, "perplexity": found["perplexity"], "seconds": seconds}
            )
            with file.open("a", encoding="utf-8") as results:
                results.write(json.dumps(kept[-1]) + "\n")
            print(kept[-1], flush=True)
    facts = {"private": private, "constants": asked.train, "widths": by_formula(asked)}
    write_json(asked.out / "bands.json", {**facts, "table": table(kept)})
    print(json.dumps(table(kept), indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    for name, kind, default in (("data", Path, None), ("test", Path, None), ("rows", int, 500)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    for name, default in (("epsilons", "8"), ("bands", "1,auto"), ("rates", "1")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of train")
    asked = parser.parse_args()
    asked.train = {**CONSTANTS, **{k: yaml.safe_load(v) for k, _, v in (s.partition("=") for s in asked.set)}}
    asked.copies = 1
    return asked


def trainings(asked: argparse.Namespace, private: int) -> Iterator[tuple[TrainSettings, Row]]:
    """Settings of every model, and what tells it apart; ``redact-only`` first."""
    network = {"kind": "lstm", "embedding_size": 64, "hidden_size": 64}
    batch = max(1.0, asked.train["sampling_rate"] * private)
    shared = {"model": network, "delta": DELTA, "expected_batch_size": batch, **asked.train}
    for seed in range(1, asked.seeds + 1):
        own = {**shared, "seed": seed, "trainer": "redact-only", "name": f"redact-only-s{seed}"}
        yield TrainSettings.model_validate(own), {"trainer": "redact-only", "seed": seed}
        for epsilon in map(float, asked.epsilons.split(",")):
            for bands in map(yaml.safe_load, asked.bands.split(",")):
                for factor in map(float, asked.rates.split(",")):
                    name = f"crt-e{epsilon:g}-b{bands}-r{factor:g}-s{seed}"
                    rate = factor * asked.train["private_learning_rate"]
                    own = {**shared, "seed": seed, "trainer": "crt", "name": name, "epsilon": epsilon}
                    made = TrainSettings.model_validate(
                        {**own, "bands": bands, "private_learning_rate": rate}
                    )
                    taken = bands_of(made, trainer_of(made).steps(made), Relation.SUBSTITUTION)
                    facts = {"trainer": "crt", "epsilon": epsilon, "bands": bands, "taken": taken}
                    yield made, {**facts, "rate": factor, "seed": seed}


def by_formula(asked: argparse.Namespace) -> Row:
    """By epsilon: noise and error of every number of bands."""
    found = {}
    for epsilon in (1.0, 2.0, 4.0, 8.0, 16.0):
        own = TrainSettings.model_validate({**asked.train, "epsilon": epsilon, "delta": DELTA})
        found[f"{epsilon:g}"] = [
            asdict(one) for one in widths(own, trainer_of(own).steps(own), Relation.SUBSTITUTION)
        ]
    return found


def table(rows: list[Row]) -> list[Row]:
    """Means over seeds: perplexity, and its excess over ``redact-only`` with the same seeds."""
    plain = {row["seed"]: row["perplexity"] for row in rows if row["trainer"] == "redact-only"}
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(str(row.get(key)) for key in KEYS)].append(row)
    found = []
    for told, own in sorted(groups.items()):
        means = {"perplexity": mean(row["perplexity"] for row in own), "seeds": len(own)}
        excess = mean(row["perplexity"] / plain[row["seed"]] - 1.0 for row in own)
        found.append({**dict(zip(KEYS, told, strict=True)), **means, "excess": excess})
    return found


if __name__ == "__main__":
    main()
