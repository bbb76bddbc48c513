"""Local privacy on clause types: accuracy against epsilon, latent against token, dimensions, pairs.

    python benchmarks/ldp.py --out F --data D train      every service (--only, --minutes, --repeats)
    python benchmarks/ldp.py --out F draw docs/results   JSON and SVG of what is done

Every service is one line of F/results.jsonl and is not made again.  Contracts are split: donated ones are
public text for the encoder, users' clauses are sent as noisy vectors, accuracy is on further contracts, with
noise on every query.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ldp_corpus import DIFFERENT, SAME, Clauses
from line_plot import Axes, Line, line_plot

import redactory
from redactory.training.accounting.published_epsilons import (
    compute_published_gaussian_epsilon,
    compute_published_ldp_epsilon,
)
from redactory.training.ldp.accounting import FixedSends, calibrate_message_noise, confirm_message_epsilon

DELTA, DRAWS = 1e-5, 5
EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SAMPLED = (0.0038, 790)
"""Sampling rate and steps at which the paper trains: three sends of a sentence on average."""
NO_NOISE = 1e-3
"""A noise that hides nothing, and costs no accuracy: its epsilon is over 4096."""
DIMENSION, DIMENSIONS = 16, (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Job:
    """A service: ``epsilon`` None without noise; ``taught`` whether its encoder learnt under that noise."""

    figure: str
    epsilon: float | None
    represent: str = "latent"
    dimension: int = DIMENSION
    pairs: bool = False
    taught: bool = True
    repeat: int = 0

    @property
    def noise(self) -> float:
        """z of one send."""
        if self.epsilon is None:
            return NO_NOISE
        return calibrate_message_noise(self.epsilon, 2 if self.pairs else 1, FixedSends(), DELTA)


def every_job(repeats: int) -> Iterator[Job]:
    """Every service; those whose figures answer the most come first."""
    for repeat in range(repeats):
        for epsilon in (None, 8.0, 2.0, 32.0, 4.0, 1.0, 16.0):
            yield Job("epsilon", epsilon, repeat=repeat)
        for epsilon in (8.0, 32.0, None):
            yield Job("token", epsilon, represent="token", repeat=repeat)
        for epsilon in (None, 8.0, 32.0, 2.0):
            yield Job("pairs", epsilon, pairs=True, repeat=repeat)
        for dimension in DIMENSIONS:
            if dimension != DIMENSION:
                yield Job("dimension", 8.0, dimension=dimension, repeat=repeat)
        for epsilon in (8.0, 2.0, 32.0):
            yield Job("untaught", epsilon, taught=False, repeat=repeat)


def made(job: Job, corpus: Clauses, out: Path, encoding: Mapping[str, Any]) -> dict[str, Any]:
    """The encoder, if it is not there, the service of ``job``, and its accuracy, as one row."""
    begun, noise, vectors = time.monotonic(), job.noise, 2 if job.pairs else 1
    # what is learnt under noise learns under that of its own epsilon, on public text; tokens are not clipped
    under = noise if job.taught and job.epsilon is not None and job.represent == "latent" else 0.0
    encoder = out / "encoders" / f"d{job.dimension}-z{under:g}"
    if not (encoder / "_SUCCESS").exists():
        shutil.rmtree(encoder, ignore_errors=True)
        given = {**encoding, "dimension": job.dimension, "noise_multiplier": under}
        redactory.ldp_encoder(corpus.path("public"), encoder, given)
    settings: dict[str, Any] = {
        "noise_multiplier": noise,
        "delta": DELTA,
        "represent": job.represent,
        "dimension": job.dimension,
        "pairs": job.pairs,
    }
    if job.pairs:
        settings["classes"] = [DIFFERENT, SAME]
    service = out / "service"
    shutil.rmtree(service, ignore_errors=True)
    told = redactory.ldp_train(corpus.path("users", job.pairs), encoder, service, settings)
    found = redactory.ldp_evaluate(service, encoder, corpus.path("test", job.pairs), draws=DRAWS)
    kept = ("accuracy", "accuracy_without_noise", "majority_accuracy", "texts")
    return {
        **asdict(job),
        "noise": noise,
        "epsilon_sound": confirm_message_epsilon(noise, vectors, FixedSends(), DELTA).value,
        "epsilon_as_published": compute_published_gaussian_epsilon(noise, 1, DELTA, vectors),
        "epsilon_as_published_sampled": compute_published_ldp_epsilon(noise, *SAMPLED, DELTA, vectors),
        "sentences": told["slots"],
        **{key: found[key] for key in kept},
        "seconds": round(time.monotonic() - begun, 1),
    }


def _train(arguments: argparse.Namespace) -> None:
    results, begun = arguments.out / "results.jsonl", time.monotonic()
    source = arguments.data / "cuad_clauses" / "clauses.jsonl"
    corpus = Clauses.prepared(source, arguments.out / f"corpus-{arguments.types}", arguments.types)
    done = {tuple(row[key] for key in Job.__dataclass_fields__) for row in _lines(results)}
    encoding = {"epochs": arguments.epochs, "threads": arguments.threads}
    for job in every_job(arguments.repeats):
        if tuple(asdict(job).values()) in done or (arguments.only and job.figure not in arguments.only):
            continue
        if arguments.minutes and time.monotonic() - begun > 60 * arguments.minutes:
            break
        row = made(job, corpus, arguments.out, encoding)
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        mean = row["accuracy"]["mean"]
        print(f"{job.figure:10} {job.epsilon!s:5} d{job.dimension:<3} {mean:.3f} {row['seconds']:6.1f} s", flush=True)


def _draw(out: Path, folder: Path) -> None:
    """The rows as JSON, and accuracy against both epsilons, which have an axis each."""
    rows = _lines(out / "results.jsonl")
    text = json.dumps(rows, indent=1) + "\n"
    (folder / "ldp_accuracy.json").write_text(text, encoding="utf-8")
    for key, title in (
        ("epsilon_sound", "epsilon, sound: one send, substitution"),
        ("epsilon_as_published", "epsilon as published (section 4.1), NOT a guarantee"),
    ):
        lines = [
            _line("latent", rows, key, "#268bd2", figure="epsilon"),
            _line("latent, encoder untaught", rows, key, "#2aa198", figure="untaught"),
            _line("token", rows, key, "#cb4b16", figure="token"),
            _line("pairs", rows, key, "#b58900", figure="pairs"),
            *_levels(rows),
        ]
        note = "noise on every training sentence and query; delta 1e-5"
        axes = Axes("Clause types of contracts", title, "accuracy", log_x=True, notes=(note,))
        drawn = line_plot([line for line in lines if line.points or line.flat], axes)
        (folder / f"ldp_{key}.svg").write_text(drawn, encoding="utf-8")
    sweep = [row for row in rows if row["epsilon"] == 8.0 and row["figure"] in ("epsilon", "dimension")]
    if sweep:
        line = Line("latent, epsilon 8", "#268bd2", _means(sweep, "dimension"))
        note, x = "sound epsilon 8 a sentence, delta 1e-5", "dimension of the vector"
        axes = Axes("Clause types of contracts", x, "accuracy", True, notes=(note,), ticks=DIMENSIONS)
        drawn = line_plot([line], axes)
        (folder / "ldp_dimension.svg").write_text(drawn, encoding="utf-8")


def _line(name: str, rows: Sequence[Mapping[str, Any]], key: str, colour: str, figure: str) -> Line:
    chosen = [row for row in rows if row["figure"] == figure and row["epsilon"] is not None]
    return Line(name, colour, _means(chosen, key))


def _levels(rows: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    levels = (("epsilon", "no noise", "#268bd2"), ("pairs", "no noise, pairs", "#b58900"))
    for figure, name, colour in levels:
        found = [r["accuracy"]["mean"] for r in rows if r["figure"] == figure and r["epsilon"] is None]
        if found:
            yield Line(name, colour, flat=fmean(found), style="--")


def _means(rows: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    found: dict[float, list[float]] = {}
    for row in rows:
        if row[key] is not None:
            found.setdefault(row[key], []).append(row["accuracy"]["mean"])
    return [(x, fmean(values)) for x, values in sorted(found.items())]


def _lines(path: Path) -> Sequence[Mapping[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def main() -> None:
    """One of the two parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where corpus, encoders and results lie")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the public corpora")
    parts = parser.add_subparsers(dest="part", required=True)
    train = parts.add_parser("train")
    train.add_argument("--only", nargs="+", help="figures to make services for")
    train.add_argument("--minutes", type=float, help="start no service after that many")
    train.add_argument("--repeats", type=int, default=1, help="services of each kind")
    train.add_argument("--types", type=int, default=12, help="clause types, the most frequent donated ones")
    train.add_argument("--epochs", type=int, default=10, help="passes over donated text")
    train.add_argument("--threads", type=int, default=1)
    parts.add_parser("draw").add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.part == "draw":
        _draw(arguments.out, arguments.folder)
    else:
        _train(arguments)


if __name__ == "__main__":
    main()
