"""Perplexity against epsilon, as Figure 2 of the CRT paper: sgd, redact-only, sdp, dpsgd, crt, crt-drop.

    python benchmarks/crt_figure2.py --out figure2                      a simulated corpus, small
    python benchmarks/crt_figure2.py --out F --data train.jsonl --test test.jsonl --rows 10000
    python benchmarks/crt_figure2.py --out F --draw docs/results         JSON and SVG of what is done

Every (trainer, seed, epsilon) is one line of F/results.jsonl and is not done again.  A row of ``--data`` is
{"id", "text", "spans": [{"start", "end", "label"}]}.  π marks the labelled values but a share of them
(``--gamma``, drawn by value); π_c suspects every labelled value, every digit and every capital letter
within a sentence, so that δ₂ is 0 on the labels.  Epsilon is the Bayesian figure for crt and crt-drop (at
γ and δ, from the substitution and the add/remove epsilon), and that of substitution for dpsgd.  Of sdp it
is infinite under such a π; drawn is what was published, for a π that misses nothing.

The perplexity that is compared is that of text outside of secrets: each model reads a held-out point in
the form it was trained on (masked or as it is), and the same characters are scored.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import redactory
from redactory.evaluation.labelled_policies import LabelledPolicies
from redactory.evaluation.simulator import simulate_customersim
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.labelled import labelled_points
from redactory.pipelines.reproduce_plan import CONSTANTS
from redactory.pipelines.segment import segmenter
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK, mask
from redactory.redaction.shards import read_column
from redactory.training import TrainSettings, load_model, train_model
from redactory.training.accounting import calibrate_noise, epsilon
from redactory.training.mechanism import PoissonGaussian, Relation

TRAINERS = ("sgd", "redact-only", "sdp", "dpsgd", "crt", "crt-drop")
WITHOUT_EPSILON = ("sgd", "redact-only")
ON_ORIGINALS = ("sgd", "sdp", "dpsgd")
COLOURS = {
    "sgd": "#555",
    "redact-only": "#999",
    "sdp": "#b58900",
    "dpsgd": "#cb4b16",
    "crt": "#268bd2",
    "crt-drop": "#2aa198",
}

LEGEND = {
    "sgd": "sgd (no guarantee)",
    "redact-only": "redact-only (none)",
    "sdp": "sdp (ε as published)",
}
X_AXIS = "ε, logarithmic: Bayesian for crt and crt-drop, of substitution for dpsgd"
Y_AXIS = "perplexity outside of secrets, logarithmic"
TICKS = (1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 2.5, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 60, 100)


# ----------------------------------------------------------------------------------------- the corpus


def rows_of(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to train on and rows to measure on."""
    if arguments.data is None:
        rows = list(simulate_customersim(arguments.rows, seed=1).rows)
        return rows, list(simulate_customersim(max(arguments.rows // 10, 50), seed=2).rows)
    train = [json.loads(line) for line in arguments.data.open(encoding="utf-8")][: arguments.rows]
    test = [json.loads(line) for line in arguments.test.open(encoding="utf-8")]
    return train, test[: max(arguments.rows // 10, 50)]


def curated(arguments: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> RunFolder:
    """The run that every training works on; made once."""
    run = RunFolder(arguments.out / "run")
    if not run.success.exists():
        corpus = arguments.out / "corpus.jsonl"
        with corpus.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"id": str(row["id"]), "text": row["text"]}) + "\n" for row in rows)
        config = {
            "input": str(corpus),
            "output": str(run.root),
            "segment": {"mode": "turn"},
            "dedup": {"mode": arguments.dedup},
            "detect": {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}},
        }
        policies = LabelledPolicies.of(rows, arguments.gamma, 1)
        redactory.curate(config, detector=policies, resume=True)
    return run


# ---------------------------------------------------------------------------------------- the trainings


def settings_of(
    arguments: argparse.Namespace, trainer: str, seed: int, target: float | None
) -> TrainSettings:
    """The settings of one training; its noise gives the target epsilon."""
    given: dict[str, Any] = {
        **CONSTANTS,
        **arguments.constants,
        "model": network_of(arguments),
        "seed": seed,
        "trainer": trainer,
    }
    counts = {"delta": arguments.delta, "name": name_of(trainer, seed, target)}
    settings = TrainSettings.model_validate({**given, **counts, "noise_multiplier": 1.0})
    expected = max(1.0, settings.sampling_rate * arguments.noised[trainer])
    changes: dict[str, Any] = {"expected_batch_size": given.get("expected_batch_size", expected)}
    if target is not None:
        changes["noise_multiplier"] = noise_of(settings, arguments.gamma, target)
    return settings.model_copy(update=changes)


def network_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The network of every training: fresh, of the width that was asked for."""
    width = arguments.width
    if arguments.model == "gpt2":
        return {"kind": "gpt2", "width": width, "layers": 2, "heads": 2, "context": 65}
    return {"kind": "lstm", "embedding_size": width, "hidden_size": width}


def noise_of(settings: TrainSettings, gamma: float, target: float) -> float:
    """The noise multiplier at which the trainer's epsilon is ``target``."""
    steps = settings.epochs * math.ceil(1 / settings.sampling_rate)
    relation = Relation.SUBSTITUTION if settings.trainer in ("crt", "dpsgd") else Relation.ADD_OR_REMOVE
    delta = settings.delta
    if settings.trainer.startswith("crt"):
        # log(1 + γ(e^ε − 1)) = target at δ = γδ'
        target, delta = math.log1p(math.expm1(target) / gamma), delta / gamma
    return float(
        calibrate_noise(target, delta, settings.sampling_rate, steps, relation=relation, tolerance=1e-3)
    )


def spent(settings: TrainSettings, gamma: float) -> dict[str, float | None]:
    """The epsilons of one training: Bayesian or of substitution, and as published."""
    if settings.trainer in WITHOUT_EPSILON or settings.noise_multiplier is None:
        return {"epsilon": None, "as_published": None}
    mechanism = PoissonGaussian(settings.sampling_rate, settings.noise_multiplier, settings.clip_norm, 1.0)
    steps, delta = settings.epochs * math.ceil(1 / settings.sampling_rate), settings.delta
    published = epsilon(mechanism, steps, delta, Relation.ADD_OR_REMOVE)
    if settings.trainer == "sdp":
        return {"epsilon": None, "as_published": published}
    if settings.trainer == "dpsgd":
        return {"epsilon": epsilon(mechanism, steps, delta, Relation.SUBSTITUTION), "as_published": published}
    relation = Relation.SUBSTITUTION if settings.trainer == "crt" else Relation.ADD_OR_REMOVE
    inner = epsilon(mechanism, steps, delta / gamma, relation)
    amplified = None if inner is None else math.log1p(gamma * math.expm1(inner))
    return {"epsilon": amplified, "as_published": published}


def name_of(trainer: str, seed: int, target: float | None) -> str:
    """The model's name."""
    return f"{trainer}-s{seed}" + ("" if target is None else f"-e{target:g}")


# ------------------------------------------------------------------------------------------ perplexity


@dataclass(frozen=True)
class HeldOut:
    """Held-out points as they are and masked, and which characters lie outside of secrets."""

    texts: list[str]
    spans: list[list[tuple[int, int]]]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], most: int) -> HeldOut:
        """At most ``most`` points of ``rows``."""
        cut = segmenter(SegmentSettings(mode="turn"))
        texts, spans = [], []
        for row in rows:
            for text, own in labelled_points(row, cut):
                texts.append(text)
                spans.append([(s["start"], s["end"]) for s in own])
        return cls(texts[:most], spans[:most])

    def measure(self, model: Any, on_originals: bool) -> dict[str, float]:
        """Perplexities: outside of secrets (in the model's own form), as it is, and masked."""
        masked = [mask(text, own) for text, own in zip(self.texts, self.spans, strict=True)]
        as_is, hidden = (model.token_log_probs(texts) for texts in (self.texts, masked))
        outside, count = 0.0, 0
        for row, text in enumerate(self.texts):
            inside = marked(model.tokenizer.places(text), self.spans[row])
            count += len(inside) - sum(inside) + 1
            if on_originals:
                outside += sum(s for s, i in zip(as_is[row], [*inside, False], strict=True) if not i)
            else:
                ids = [*model.tokenizer.encode(masked[row]), model.tokenizer.end_id]
                outside += sum(
                    s for s, i in zip(hidden[row], ids, strict=True) if i != model.tokenizer.mask_id
                )
        return {
            "perplexity": math.exp(-outside / count),
            "as_is": math.exp(-float(np.concatenate(as_is).mean())),
            "masked": math.exp(-float(np.concatenate(hidden).mean())),
        }


def marked(places: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Which tokens lie within a secret."""
    return [any(start < high and low < end for low, high in spans) for start, end in places]


# ------------------------------------------------------------------------------------------- the figure


def summary(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean, least and greatest perplexity of each trainer at each epsilon."""
    groups: dict[tuple[str, float | None], list[Mapping[str, Any]]] = defaultdict(list)
    for row in results:
        groups[row["trainer"], row["target"]].append(row)
    found = []
    for (trainer, target), rows in sorted(
        groups.items(), key=lambda item: (TRAINERS.index(item[0][0]), item[0][1] or 0)
    ):
        values = [row["perplexity"] for row in rows]
        found.append(
            {
                "trainer": trainer,
                "target": target,
                "epsilon": rows[0]["epsilon"],
                "as_published": rows[0]["as_published"],
                "noise_multiplier": rows[0]["noise_multiplier"],
                "seeds": len(rows),
                "perplexity": float(np.mean(values)),
                "least": min(values),
                "greatest": max(values),
                **{key: float(np.mean([row[key] for row in rows])) for key in ("as_is", "masked", "seconds")},
            }
        )
    return found


def svg(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """Perplexity (logarithmic) against epsilon (logarithmic); trainers without one are lines across."""
    points = [(row["target"], row[key]) for row in rows for key in ("least", "greatest")]
    xs = [x for x, _ in points if x is not None] or [1.0]
    ys = [y for _, y in points]
    left, right, top, bottom = 70.0, 560.0, 40.0, 360.0
    low, high = math.log(min(ys)) - 0.05, math.log(max(ys)) + 0.05

    def x_of(value: float) -> float:
        start, end = math.log(min(xs)) - 0.2, math.log(max(xs)) + 0.2
        return left + (right - left) * (math.log(value) - start) / (end - start)

    def y_of(value: float) -> float:
        return bottom - (bottom - top) * (math.log(value) - low) / (high - low)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 420" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="700" height="420" fill="white"/>',
        f'<text x="{left}" y="22" font-size="14">{title}</text>',
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#333"/>',
        f'<text x="{(left + right) / 2}" y="405" text-anchor="middle">{X_AXIS}</text>',
        f'<text transform="translate(18 {(top + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{Y_AXIS}</text>",
    ]
    parts += [
        f'<text x="{x_of(x):.1f}" y="{bottom + 18}" text-anchor="middle">{x:g}</text>'
        for x in sorted(set(xs))
    ]
    for tick in (tick for tick in TICKS if low <= math.log(tick) <= high):
        parts.append(f'<path d="M{left - 4} {y_of(tick):.1f}H{left}" stroke="#333"/>')
        parts.append(f'<text x="{left - 8}" y="{y_of(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for place, trainer in enumerate(dict.fromkeys(row["trainer"] for row in rows)):
        own, colour = [row for row in rows if row["trainer"] == trainer], COLOURS[trainer]
        told = LEGEND.get(trainer, trainer)
        parts.append(f'<text x="{right + 12}" y="{top + 18 * place}" fill="{colour}">{told}</text>')
        if own[0]["target"] is None:
            y = y_of(own[0]["perplexity"])
            parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="{colour}" stroke-dasharray="6 4"/>')
            continue
        path = " ".join(f"{x_of(r['target']):.1f},{y_of(r['perplexity']):.1f}" for r in own)
        dashed = ' stroke-dasharray="2 3"' if trainer == "sdp" else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>')
        for row in own:
            x = x_of(row["target"])
            ends = f"M{x:.1f} {y_of(row['least']):.1f}V{y_of(row['greatest']):.1f}"
            parts.append(f'<path d="{ends}" stroke="{colour}"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{y_of(row["perplexity"]):.1f}" r="3" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>\n"])


# ------------------------------------------------------------------------------------------------- main


def main() -> None:
    """Train what is not done yet, or draw what is."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("REDACTORY_KEY", "a key for a corpus that is public anyway")
    results = arguments.out / "results.jsonl"
    if arguments.draw is None:
        _train(arguments, results)
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    table = summary(rows)
    _show(table)
    folder = arguments.draw or arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    facts = json.loads((arguments.out / "facts.json").read_text(encoding="utf-8"))
    page = {"what": __doc__, "facts": facts, "figure": table, "runs": rows}
    (folder / f"{arguments.name}.json").write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    seeds = max(row["seeds"] for row in table)
    title = f"{arguments.title or facts['corpus']}: {facts['model']}, {seeds} seed(s)"
    (folder / f"{arguments.name}.svg").write_text(svg(table, title), encoding="utf-8")


def _train(arguments: argparse.Namespace, results: Path) -> None:
    train_rows, test_rows = rows_of(arguments)
    run, held_out = curated(arguments, train_rows), HeldOut.of(test_rows, arguments.test_points)
    sides = {
        side: sum(1 for _ in read_column(getattr(run, side), "text"))
        for side in ("public", "private", "vault")
    }
    distinct = len(set(read_column(run.private, "text")))
    masked = sum(MASK in text for text in read_column(run.private, "text"))
    arguments.noised = defaultdict(
        lambda: sides["vault"], {"crt": sides["private"], "crt-drop": sides["private"]}
    )
    facts = {
        "corpus": arguments.data.stem if arguments.data else "simulated",
        "rows": len(train_rows),
        **sides,
        "private_distinct": distinct,
        "private_masked": masked,
        "gamma": arguments.gamma,
        "delta": arguments.delta,
        "dedup": arguments.dedup,
        "model": {"lstm": "LSTM 1", "gpt2": "GPT-2 2"}[arguments.model]
        + f"x{arguments.width}, not pretrained",
        "constants": {**CONSTANTS, **arguments.constants},
        "test_points": len(held_out.texts),
    }
    (arguments.out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))
    done = set()
    if results.exists():
        done = {json.loads(line)["name"] for line in results.read_text(encoding="utf-8").splitlines()}
    for seed in range(1, arguments.seeds + 1):
        for trainer in arguments.trainers:
            for target in [None] if trainer in WITHOUT_EPSILON else arguments.epsilons:
                if name_of(trainer, seed, target) not in done:
                    row = one(arguments, run, held_out, trainer, seed, target)
                    with results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


def one(
    arguments: argparse.Namespace,
    run: RunFolder,
    held_out: HeldOut,
    trainer: str,
    seed: int,
    target: float | None,
) -> dict[str, Any]:
    """Train, measure, and say what it cost."""
    settings = settings_of(arguments, trainer, seed, target)
    begun = time.monotonic()
    train_model(run, settings)
    seconds = time.monotonic() - begun
    measured = held_out.measure(load_model(run.model(settings.model_name)), trainer in ON_ORIGINALS)
    row = {
        "name": settings.model_name,
        "trainer": trainer,
        "seed": seed,
        "target": target,
        **spent(settings, arguments.gamma),
        "noise_multiplier": settings.noise_multiplier if target else None,
        **measured,
        "seconds": round(seconds, 1),
    }
    print(
        f"{row['name']:24} {row['perplexity']:8.3f}  masked {row['masked']:8.3f}  {seconds:6.1f} s",
        flush=True,
    )
    return row


def _show(table: Sequence[Mapping[str, Any]]) -> None:
    write: Callable[[str], None] = print
    for row in table:
        asked = "-" if row["target"] is None else f"{row['target']:g}"
        write(
            f"{row['trainer']:12} ε {asked:>5}  {row['perplexity']:9.3f}  "
            f"[{row['least']:.3f}, {row['greatest']:.3f}]"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="where the run, the models and results.jsonl lie"
    )
    parser.add_argument("--data", type=Path, help="labelled rows to train on; simulated if absent")
    parser.add_argument("--test", type=Path, help="labelled rows to measure on")
    parser.add_argument("--rows", type=int, default=3000, help="rows (dialogues) of the corpus")
    parser.add_argument("--test-points", type=int, default=3000, help="held-out points")
    parser.add_argument("--trainers", nargs="+", default=list(TRAINERS), choices=TRAINERS)
    parser.add_argument(
        "--model", choices=("lstm", "gpt2"), default="lstm", help="fresh; sdp knows the LSTM only"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 4.0])
    parser.add_argument("--gamma", type=float, default=0.1, help="share of the labelled values that π misses")
    parser.add_argument("--delta", type=float, default=8e-5, help="as in the paper")
    parser.add_argument("--dedup", choices=("exact", "none"), default="none")
    parser.add_argument("--width", type=int, default=64, help="of the embedding and of the LSTM")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a key of train, as JSON"
    )
    parser.add_argument("--name", default="crt_figure2", help="of the JSON and the SVG")
    parser.add_argument("--title", help="the corpus's name in the SVG; the file's by default")
    parser.add_argument(
        "--draw", type=Path, metavar="FOLDER", help="only write JSON and SVG of what is done there"
    )
    arguments = parser.parse_args()
    arguments.constants = {
        key: json.loads(value) for key, value in (pair.split("=", 1) for pair in arguments.set)
    }
    if (arguments.data is None) != (arguments.test is None):
        parser.error("--data and --test go together")
    return arguments


if __name__ == "__main__":
    main()
