"""Fictitious messages on clause types: in training and in queries, with and without, at equal sound epsilon.

    python benchmarks/ldp_sampling.py --out F --data D train      every service (--minutes, --repeats)
    python benchmarks/ldp_sampling.py --out F draw docs/results   JSON and SVG of what is done

LDP-NLP's Tables 2 and 3 and Figures 6 and 7, in the form that hides something (docs/guarantees.md, "Coins
hidden by noise alone").  Corpus and encoder are those of ``ldp.py``; every service is trained at a sound
epsilon of 8 for a sentence, the encoder taught under the noise of one send at it.  A line of F/sampling.jsonl
is a service, or a way to ask it, and is not made again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ldp import DELTA, DIMENSION
from ldp_corpus import Clauses
from line_plot import Axes, Line, line_plot

import redactory
from redactory.training.ldp.accounting import FixedSends, calibrate_message_noise

EPSILON, QUERY_EPSILONS = 8.0, (8.0, 2.0)
TYPES, TEXTS = 12, 300
FIXED: dict[str, Any] = {"kind": "fixed"}
HIDDEN = ((0.9, 1), (0.7, 2), (0.5, 4), (0.2, 20))
"""Rates and steps of training messages."""
CLASSES = ((0.9, 1), (0.7, 2), (0.5, 2))
"""Where classes are hidden, too: (0.5, 4) spends more than EPSILON on the class alone."""
ASKED = ((0.9, 1), (0.3, 4), (0.2, 10), (0.1, 30), (0.05, 30), (0.05, 100), (0.02, 100))
BOTH = ((8.0, 0.05, 100), (2.0, 0.02, 100))
"""Epsilon, rate and steps of questions to the service that was trained on HIDDEN[0]."""
RATES = (0.03, 0.2, 0.5, 0.9)
"""Of 30 messages of a question, beside those of ASKED."""


def trainings() -> Iterator[dict[str, Any]]:
    """How training sentences take part: once, by coins that are seen, hidden, hidden with their class."""
    yield FIXED
    yield from ({"kind": "secret_bernoulli", "rate": rate, "steps": steps} for rate, steps in HIDDEN)
    yield from ({"kind": "secret_bernoulli", "rate": r, "steps": n, "classes": TYPES} for r, n in CLASSES)
    yield {"kind": "public_bernoulli", "rate": 0.5, "steps": 4}


def questions() -> Iterator[tuple[float, dict[str, Any]]]:
    """Epsilon of a question, and how it is sent, of a service that was trained on single sends."""
    for epsilon in QUERY_EPSILONS:
        ways = [*ASKED, *((rate, 30) for rate in RATES if epsilon == EPSILON)]
        yield epsilon, FIXED
        yield from ((epsilon, {"kind": "secret_bernoulli", "rate": rate, "steps": steps}) for rate, steps in ways)


def made(corpus: Clauses, out: Path, epochs: int, repeat: int, done: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The rows of repetition ``repeat`` that are not ``done``, each as soon as it is there."""
    noise = calibrate_message_noise(EPSILON, 1, FixedSends(), DELTA)
    encoder = out / "encoders" / f"sampling-{repeat}"
    if not (encoder / "_SUCCESS").exists():
        shutil.rmtree(encoder, ignore_errors=True)
        taught = {"dimension": DIMENSION, "noise_multiplier": noise, "seed": repeat, "epochs": epochs, "threads": 1}
        redactory.ldp_encoder(corpus.path("public"), encoder, taught)
    for way in trainings():
        service = out / f"service-{repeat}-{_name(way)}"
        key = {"part": "training", "repeat": repeat, "sampling": way}
        if key in done:
            continue
        begun = time.monotonic()
        shutil.rmtree(service, ignore_errors=True)
        told = redactory.ldp_train(
            corpus.path("users"), encoder, service, {"epsilon": EPSILON, "delta": DELTA, "sampling": way}
        )
        card, asked = told["guarantee"], _asked(corpus, encoder, service, EPSILON, FIXED)
        kept = ("epsilon_sound", "epsilon_as_published", "noise_multiplier", "unit")
        yield {
            **key,
            **{name: card[name] for name in kept},
            "sentences": told["slots"],
            "messages": told["messages"],
            **asked,
            "seconds": round(time.monotonic() - begun, 1),
        }
    hidden = {"kind": "secret_bernoulli", "rate": HIDDEN[0][0], "steps": HIDDEN[0][1]}
    both = [("both", hidden, e, {"kind": "secret_bernoulli", "rate": r, "steps": n}) for e, r, n in BOTH]
    for part, trained, epsilon, way in [*(("query", FIXED, *asked) for asked in questions()), *both]:
        key = {"part": part, "repeat": repeat, "epsilon": epsilon, "sampling": way}
        if key not in done:
            begun = time.monotonic()
            found = _asked(corpus, encoder, out / f"service-{repeat}-{_name(trained)}", epsilon, way)
            yield {**key, **found["query"], **found, "seconds": round(time.monotonic() - begun, 1)}


def _asked(corpus: Clauses, encoder: Path, service: Path, epsilon: float, way: Mapping[str, Any]) -> dict[str, Any]:
    """Accuracy on the first TEXTS clauses, each asked once in this ``way`` at ``epsilon``."""
    settings = redactory.plan(trainer="ldp", sampling=way, epsilon=epsilon, delta=DELTA)
    query = {"sampling": way, "noise_multiplier": settings["noise_multiplier"]}
    found = redactory.ldp_evaluate(service, encoder, corpus.path("test"), {"query": query}, draws=1, limit=TEXTS)
    first = found["questions"][0]
    names = ("noise_multiplier", "epsilon_sound", "epsilon_as_published", "messages")
    return {
        "accuracy": found["accuracy"]["mean"],
        "accuracy_without_noise": found["accuracy_without_noise"],
        "majority_accuracy": found["majority_accuracy"],
        "texts": found["texts"],
        "query": {name: first[name] for name in names},
    }


def _name(way: Mapping[str, Any]) -> str:
    return "-".join(str(value) for value in way.values())


def _train(arguments: argparse.Namespace) -> None:
    results, begun = arguments.out / "sampling.jsonl", time.monotonic()
    source = arguments.data / "cuad_clauses" / "clauses.jsonl"
    corpus = Clauses.prepared(source, arguments.out / f"corpus-{TYPES}", TYPES)
    keys = ("part", "repeat", "epsilon", "sampling")
    done = [{key: row[key] for key in keys if key in row} for row in _lines(results)]
    for repeat in range(arguments.repeats):
        for row in made(corpus, arguments.out, arguments.epochs, repeat, done):
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            told = f"{row['part']:8} {row.get('epsilon', EPSILON):4} {_name(row['sampling']):20}"
            print(
                f"{told} {row['accuracy']:.3f} {row['accuracy_without_noise']:.3f} {row['seconds']:6.1f} s", flush=True
            )
            if time.monotonic() - begun > 60 * arguments.minutes:
                return


def _draw(out: Path, folder: Path) -> None:
    rows = _lines(out / "sampling.jsonl")
    text = json.dumps(rows, indent=1) + "\n"
    (folder / "ldp_sampling.json").write_text(text, encoding="utf-8")
    lines = []
    for epsilon, colour in zip(QUERY_EPSILONS, ("#268bd2", "#cb4b16"), strict=True):
        own = [row for row in rows if row["part"] == "query" and row["epsilon"] == epsilon]
        lines.append(Line(f"epsilon {epsilon:g}", colour, _best(own)))
    clean = [row["accuracy_without_noise"] for row in rows if row["part"] == "query"]
    lines.append(Line("no noise on queries", "#93a1a1", flat=fmean(clean), style="--"))
    note = "the best rate of those tried; 1: sent once, nothing fictitious; delta 1e-5"
    axes = Axes("Questions among fictitious ones", "messages of a question", "accuracy", True, notes=(note,))
    (folder / "ldp_sampling.svg").write_text(line_plot(lines, axes), encoding="utf-8")


def _best(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, ...]]:
    """By number of messages: the mean over repetitions at the best rate, with the least and the greatest."""
    found: dict[int, dict[str, list[float]]] = {}
    for row in rows:
        way = found.setdefault(row["query"]["messages"], {})
        way.setdefault(_name(row["sampling"]), []).append(row["accuracy"])
    points: list[tuple[float, ...]] = []
    for messages, ways in sorted(found.items()):
        best = ways["fixed"] if "fixed" in ways else max(ways.values(), key=fmean)
        points.append((messages, fmean(best), min(best), max(best)))
    return points


def _lines(path: Path) -> Sequence[Mapping[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def main() -> None:
    """One of the two parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where corpus, encoders and results lie")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the public corpora")
    parts = parser.add_subparsers(dest="part", required=True)
    train = parts.add_parser("train")
    train.add_argument("--minutes", type=float, default=1e9, help="end after that many")
    train.add_argument("--repeats", type=int, default=1, help="encoders, and services of each kind")
    train.add_argument("--epochs", type=int, default=10, help="passes over donated text")
    parts.add_parser("draw").add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.part == "draw":
        _draw(arguments.out, arguments.folder)
    else:
        _train(arguments)


if __name__ == "__main__":
    main()
