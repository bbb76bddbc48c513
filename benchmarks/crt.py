"""Figures 2 to 6 of "Provably Confidential Language Modelling", with each published claim beside ours.

    python benchmarks/crt.py --figure 6 --out F                              by formula: seconds
    python benchmarks/crt.py --figure 3 --out F --rows 500 --seeds 1         CustomerSim, simulated: minutes
    python benchmarks/crt.py --figure 2 --out F --data train.jsonl --test test.jsonl --rows 3000

2: perplexity per word outside of secrets against epsilon; 3: highest exposure of ten canaries against the
miss rate; 4 and 5: accuracy of membership inference against it, of secrets and of groups of 20; 6: the
Bayesian epsilon by formula, as published and as it is sound.  Labelled rows are JSON lines {text, spans:
[{start, end, label}]}.

No detector runs: π knows the labelled values and misses a share γ of them (of the canaries exactly γ), each
wherever it stands; π_c misses none.  In Figure 2 the noise is that of the Bayesian epsilon for ``crt`` and
``crt-drop``, and of one point exchanged for ``dpsgd``; ``sdp``, which has no finite epsilon under such a π,
is drawn at the published one.  In Figures 3 to 5 every miss rate has the same noise, that of ``--epsilons``
for one point exchanged (``crt``, ``dpsgd``) or there or not (``crt-drop``, ``sdp``).

Models and measurements are kept in F, which is of one corpus and one set of constants: figures share there
what they have in common, and what is done is not done again.  Writes F/figure-N.json and F/figure-N.svg.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from crt_corpus import CANARIES, GROUP_SIZE, SEGMENT, TEST_POINTS, Corpus
from crt_trends import PUBLISHED, compared
from epsilons import compute_epsilon, compute_step_epsilon, find_noise_multiplier
from line_plot import Axes, Line, line_plot
from scipy import optimize

from redactory.evaluation.canary import compute_chance_quantile, measure_canary_exposure
from redactory.evaluation.membership import run_membership_attack
from redactory.evaluation.statistics import resample_sums
from redactory.foundation.canonical import file_sha256
from redactory.foundation.files import write_json, write_text
from redactory.redaction import MASK, read_column
from redactory.training import load_model, train_model
from redactory.training.accounting import Spending
from redactory.training.accounting.published_epsilons import compute_crt_bayesian_epsilon, compute_renyi_epsilon
from redactory.training.guarantee.spec import compute_bayesian_epsilon
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from redactory.training.settings import TrainSettings

Row = dict[str, Any]
TRAINERS = ("sgd", "redact-only", "sdp", "dpsgd", "crt", "crt-drop")
WITHOUT_NOISE = ("sgd", "redact-only")
ON_ORIGINALS = ("sgd", "sdp", "dpsgd")
BLIND_TO_PI = ("sgd", "dpsgd")
"""Trainers that do not ask π: what they learn is the same at every miss rate, and is learnt once."""
EXCHANGED = ("crt", "dpsgd")
MISS_RATES, EPSILONS = (0.0, 0.1, 0.2, 0.3, 0.5), (0.5, 1.0, 4.0)
MEASURES = {2: "perplexity", 3: "exposure", 4: "membership", 5: "membership"}
DELTA = 8e-5
FORMULA_RATE, FORMULA_STEPS = 0.1, 100
"""The mechanism of the authors' notebook (Figure 6): ten epochs at a sampling rate of 0.1."""
CONSTANTS: dict[str, Any] = {
    "epochs": 2,
    "sampling_rate": 0.005,
    "clip_norm": 0.5,
    "min_public_steps": 50,
    "public_batch_size": 64,
    "learning_rate": 1e-2,
    "dp_learning_rate": 4e-2,
    "learning_rate_schedule": "linear",
    "vocabulary_size": 2000,
    "max_tokens": 64,
    "threads": 1,
    "group_sizes": (),
    "max_physical_batch_tokens": 16384,
}
"""The section ``train`` of every training, the same for all corpora."""


def main() -> None:
    """Make one figure, and print what it shows."""
    asked = _arguments()
    asked.out.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any]
    if asked.figure == 6:
        facts = {"mechanism": {"sampling_rate": FORMULA_RATE, "steps": FORMULA_STEPS, "delta": DELTA}}
        results, table = [], amplification(asked.epsilons, asked.gammas)
    else:
        facts, results = trained_and_measured(asked)
        table = table_of(asked, results)
    page = {
        "figure": asked.figure,
        "published": PUBLISHED[asked.figure],
        "ours": compared(asked.figure, table),
        "facts": facts,
        "table": table,
    }
    file = asked.out / f"figure-{asked.figure}.json"
    write_json(file, {**page, "runs": results})
    write_text(file.with_suffix(".svg"), line_plot(_lines(asked, table), _axes(asked)))
    print(json.dumps(page, indent=1))


def _arguments() -> argparse.Namespace:
    def numbers(given: str) -> tuple[float, ...]:
        return tuple(sorted({float(number) for number in given.split(",")}))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=int, choices=(2, 3, 4, 5, 6), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="labelled rows to train on; CustomerSim without them")
    parser.add_argument("--test", type=Path, help="labelled rows to measure on; goes with --data")
    parser.add_argument("--rows", type=int, default=3_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--gammas", type=numbers, help="miss rates of π (Figure 2: one, above 0)")
    parser.add_argument("--epsilons", type=numbers, help="Figures 3 to 5: one")
    parser.add_argument("--trainers", default=",".join(TRAINERS))
    parser.add_argument("--width", type=int, default=64, help="of the embedding and of the network")
    parser.add_argument("--kind", choices=("lstm", "gpt2"), default="lstm", help="gpt2: fresh, without sdp")
    parser.add_argument("--label", help="whose membership Figures 4 and 5 infer")
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--copies", type=int, default=20, help="of each of the ten canaries")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of train")
    asked = parser.parse_args()
    asked.gammas = asked.gammas or ((0.1,) if asked.figure == 2 else MISS_RATES)
    asked.epsilons = asked.epsilons or (EPSILONS if asked.figure in (2, 6) else (1.0,))
    chosen = [name for name in asked.trainers.split(",") if asked.kind == "lstm" or name != "sdp"]
    asked.trainers = tuple(name for name in TRAINERS if name in chosen)
    asked.train = {**CONSTANTS, **{k: yaml.safe_load(v) for k, _, v in (s.partition("=") for s in asked.set)}}
    if (asked.data is None) != (asked.test is None):
        parser.error("--data and --test go together")
    if asked.figure == 2 and (len(asked.gammas) > 1 or not all(asked.gammas)):
        parser.error("Figure 2 has one miss rate, above 0; its axis is epsilon")
    if asked.figure in (3, 4, 5) and len(asked.epsilons) > 1:
        parser.error("Figures 3 to 5 have one epsilon; their axis is the miss rate")
    return asked


# --------------------------------------------------------------------------------------- the trainings


@dataclass(frozen=True)
class Training:
    """One model: ``gamma`` is that of the run that it is trained on, ``target`` None without noise.

    ``bayesian``: the target is the amplified epsilon, not that of one point.
    """

    trainer: str
    seed: int
    gamma: float
    target: float | None
    bayesian: bool

    @property
    def name(self) -> str:
        """The model's name in its run."""
        told = "" if self.target is None else f"-{'bayes' if self.bayesian else 'e'}{self.target:g}"
        return f"{self.trainer}-s{self.seed}{told}"

    @property
    def key(self) -> str:
        """The model's name among those of all runs."""
        return f"gamma-{self.gamma:g}/{self.name}"


def trainings(asked: argparse.Namespace) -> Iterator[Training]:
    """Every training that the figure needs; a trainer that does not ask π is trained at one miss rate."""
    for seed in range(1, asked.seeds + 1):
        for trainer in asked.trainers:
            for gamma in asked.gammas[:1] if trainer in BLIND_TO_PI else asked.gammas:
                for target in [None] if trainer in WITHOUT_NOISE else asked.epsilons:
                    bayesian = asked.figure == 2 and trainer.startswith("crt")
                    yield Training(trainer, seed, gamma, target, bayesian)


def trained_and_measured(asked: argparse.Namespace) -> tuple[dict[str, Any], list[Row]]:
    """Train and measure what is not done yet; facts of the runs, and a row for each model of the figure."""
    facts = _facts(asked)
    kind = MEASURES[asked.figure]
    comparisons = len(asked.gammas) * len(asked.trainers) * asked.seeds
    told = f"-{asked.members}x{GROUP_SIZE}-{comparisons}" if kind == "membership" else ""
    file = asked.out / f"{kind}{told}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    kept = {row["key"]: row for row in map(json.loads, lines)}
    wanted = list(trainings(asked))
    if any(one.key not in kept for one in wanted):
        corpus = Corpus(asked)
        measure = _measure(kind, corpus, asked, comparisons)
    for number, one in enumerate(wanted, 1):
        if one.key not in kept:
            run = corpus.curated(one.gamma)
            private = read_column(run.private, "text")
            sides = {
                "public": len(read_column(run.public, "text")),
                "private": len(private),
                "vault": len(read_column(run.vault, "text")),
                "private_masked": sum(MASK in text for text in private),
            }
            facts["runs"][f"{one.gamma:g}"] = sides
            write_json(asked.out / "facts.json", facts)
            settings = settings_of(asked, one, sides)
            begun = time.monotonic()
            train_model(run, settings)
            seconds = time.monotonic() - begun
            kept[one.key] = {
                "key": one.key,
                "trainer": one.trainer,
                "seed": one.seed,
                "gamma": one.gamma,
                "target": one.target,
                "noise_multiplier": settings.noise_multiplier if one.target is not None else None,
                **spent(settings, one),
                **measure(load_model(run.get_model_folder(one.name)), one),
                "seconds": round(seconds, 1),
            }
            with file.open("a", encoding="utf-8") as results:
                results.write(json.dumps(kept[one.key]) + "\n")
        print(f"{number} of {len(wanted)}: {one.key}", flush=True)
    return facts, [kept[one.key] for one in wanted]


def _facts(asked: argparse.Namespace) -> dict[str, Any]:
    """What the runs and models of the folder depend on; the end where it holds others."""
    files = {name: getattr(asked, name) for name in ("data", "test")}
    own = {
        **{name: None if path is None else path.name for name, path in files.items()},
        **{name: getattr(asked, name) for name in ("rows", "kind", "width", "copies", "label")},
        "delta": DELTA,
        "dedup": "none",
        "segment": SEGMENT,
        "test_points": TEST_POINTS,
        "canaries": CANARIES,
        "constants": asked.train,
        "sha256": {name: None if path is None else file_sha256(path) for name, path in files.items()},
    }
    own = json.loads(json.dumps(own))
    path = asked.out / "facts.json"
    if not path.exists():
        return {**own, "runs": {}}
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    differ = [key for key in own if facts.get(key) != own[key]]
    if differ:
        raise SystemExit(f"--out: {asked.out} holds figures with other {', '.join(differ)}")
    return facts


def settings_of(asked: argparse.Namespace, one: Training, sides: Mapping[str, int]) -> TrainSettings:
    """The section ``train`` of one training; ``sides`` counts the points that noise is added over."""
    network = {"kind": "lstm", "embedding_size": asked.width, "hidden_size": asked.width}
    if asked.kind == "gpt2":
        network = {"kind": "gpt2", "width": asked.width, "layers": 2, "heads": 2, "context": 65}
    own = {"model": network, "seed": one.seed, "trainer": one.trainer, "name": one.name, "delta": DELTA}
    settings = TrainSettings.model_validate({**asked.train, **own, "noise_multiplier": 1.0})
    noised = sides["private" if one.trainer.startswith("crt") else "vault"]
    batch = asked.train.get("expected_batch_size", max(1.0, settings.sampling_rate * noised))
    changes: dict[str, Any] = {"expected_batch_size": batch}
    if one.target is not None:
        target, delta = one.target, DELTA
        if one.bayesian:
            # log(1 + γ(e^ε − 1)) = target at δ = γδ'
            target, delta = math.log1p(math.expm1(target) / one.gamma), delta / one.gamma
        mechanism = (settings.sampling_rate, _steps(settings))
        changes["noise_multiplier"] = _calibrated(target, delta, *mechanism, one.trainer in EXCHANGED)
    return settings.model_copy(update=changes)


def spent(settings: TrainSettings, one: Training) -> dict[str, float | None]:
    """{epsilon, epsilon_named, as_published} of one training, δ₂ being 0 on the labels.

    ``epsilon`` is Bayesian for ``crt`` and ``crt-drop`` and that of substitution for ``dpsgd``; of ``sdp`` it
    is infinite under a π that misses anything, and null.
    """
    nothing: dict[str, float | None] = {"epsilon": None, "epsilon_named": None, "as_published": None}
    if one.target is None or settings.noise_multiplier is None:
        return nothing
    mechanism = (settings.sampling_rate, settings.noise_multiplier, _steps(settings))
    exchanged = one.trainer in EXCHANGED
    published = _epsilon(*mechanism, DELTA, False)
    if one.trainer == "sdp":
        return {**nothing, "as_published": published}
    named = _epsilon(*mechanism, DELTA, exchanged)
    bayesian = named
    if one.trainer.startswith("crt"):
        bayesian = compute_bayesian_epsilon(lambda at: _epsilon(*mechanism, at, exchanged), DELTA, one.gamma, 0.0)
    return {"epsilon": bayesian, "epsilon_named": named, "as_published": published}


def _steps(settings: TrainSettings) -> int:
    return settings.epochs * math.ceil(1.0 / settings.sampling_rate)


@lru_cache
def _calibrated(target: float, delta: float, rate: float, steps: int, exchanged: bool) -> float:
    """Seeds and miss rates share their noise: it is looked for once."""
    relation = Relation.SUBSTITUTION if exchanged else Relation.ADD_OR_REMOVE
    return find_noise_multiplier(target, delta, rate, steps, relation)


@lru_cache
def _epsilon(rate: float, noise: float, steps: int, delta: float, exchanged: bool) -> float | None:
    relation = Relation.SUBSTITUTION if exchanged else Relation.ADD_OR_REMOVE
    return compute_step_epsilon(rate, noise, steps, delta, relation)


# ------------------------------------------------------------------------------------ what is measured

Measure = Callable[[Any, Training], Row]


def _measure(kind: str, corpus: Corpus, asked: argparse.Namespace, comparisons: int) -> Measure:
    def perplexity(model: Any, one: Training) -> Row:
        return corpus.held_out.measure(model, masked=one.trainer not in ON_ORIGINALS)

    def exposure(model: Any, one: Training) -> Row:
        found = measure_canary_exposure(model, corpus.canaries)
        by = {
            side: [row["exposure"] for row in found["canaries"] if row["inserted"] is planted]
            for side, planted in (("inserted", True), ("control", False))
        }
        names = ("highest_exposure", "mean_exposure", "control_highest_exposure", "control_mean_exposure")
        return {**{name: found[name] for name in names}, "candidates": found["candidates"], "exposures": by}

    if kind != "membership":
        return perplexity if kind == "perplexity" else exposure
    members, others = corpus.members(asked.label, asked.members)
    # Bonferroni: all intervals of a figure are read together
    constants = {"groups": asked.members, "group_size": GROUP_SIZE, "confidence": 1 - 0.05 / comparisons}

    def inferred(model: Any, one: Training) -> Row:
        found = run_membership_attack(model, members, others, **constants, seed=0)
        return {
            "members": len(members),
            "others": len(others),
            "confidence": found["confidence"],
            "accuracy": found["individual"]["accuracy"],
            "auc": found["individual"]["auc"],
            "group_accuracy": found["group"]["accuracy"],
            "group_size": GROUP_SIZE,
        }

    return inferred


def amplification(epsilons: Sequence[float], gammas: Sequence[float]) -> list[Row]:
    """Rows {trainer, target, gamma, noise_multiplier, named, as_published, sound} for Figure 6.

    For each ε' the noise is that at which the Rényi epsilon of one point there or not is ε' at δ, which is
    what the paper holds fixed.  ``as_published`` is log(1 + γ(exp(ε_RDP(δ/γ)) − 1)).  ``sound`` is the same
    with the epsilon of one point exchanged for its masked form, δ₂ being 0
    (``docs/guarantees.md``, "Amplification by redaction"); ``named`` is that epsilon without amplification.
    """
    rows: list[Row] = []
    for target in epsilons:

        def mechanism(noise: float) -> PoissonGaussian:
            return PoissonGaussian(FORMULA_RATE, noise, 1.0, 1.0)

        def beyond(noise: float, target: float = target) -> float:
            spent = (Spending(mechanism(noise), FORMULA_STEPS),)
            found = compute_renyi_epsilon(spent, DELTA, Relation.ADD_OR_REMOVE)
            return (1e6 if found is None else found) - target

        low, high = 0.3, 1.0
        while beyond(high) > 0:
            low, high = high, 2 * high
        noise = float(optimize.brentq(beyond, low, high, xtol=1e-4))

        def exchanged(delta: float, noise: float = noise) -> float | None:
            return compute_epsilon((Spending(mechanism(noise), FORMULA_STEPS),), delta, Relation.SUBSTITUTION)

        rows += [
            {
                "trainer": "crt",
                "target": target,
                "gamma": gamma,
                "noise_multiplier": noise,
                "named": exchanged(DELTA),
                "as_published": compute_crt_bayesian_epsilon(
                    (Spending(mechanism(noise), FORMULA_STEPS),), DELTA, gamma
                ),
                "sound": compute_bayesian_epsilon(exchanged, DELTA, gamma, 0.0),
            }
            for gamma in gammas
        ]
    return rows


# ------------------------------------------------------------------------------- tables and pictures


def table_of(asked: argparse.Namespace, results: Sequence[Row]) -> list[Row]:
    """One row for each trainer and place on the figure's axis, over its seeds."""
    groups: dict[tuple[str, float, float | None], list[Row]] = defaultdict(list)
    for row in results:
        groups[row["trainer"], row["gamma"], row["target"]].append(row)
    found: list[Row] = []
    for (trainer, gamma, target), rows in groups.items():
        told = {key: rows[0][key] for key in ("epsilon", "epsilon_named", "as_published", "noise_multiplier")}
        one = {"trainer": trainer, "target": target, "seeds": len(rows), **told}
        places = asked.gammas if asked.figure != 2 and trainer in BLIND_TO_PI else (gamma,)
        found += [{**one, "gamma": place, **_figures(asked.figure, rows)} for place in places]
    found.sort(key=lambda row: (TRAINERS.index(row["trainer"]), row["gamma"], row["target"] or 0.0))
    return found


def _figures(figure: int, rows: Sequence[Row]) -> Row:
    if figure == 2:
        names = ("per_word", "perplexity", "as_is", "masked")
        return {name: _over([row[name] for row in rows]) for name in names}
    if figure == 3:
        inserted, control = (np.array([row["exposures"][side] for row in rows]) for side in ("inserted", "control"))
        return {
            "highest": _over([row["highest_exposure"] for row in rows]),
            "mean": _over([row["mean_exposure"] for row in rows]),
            "control_highest": _over([row["control_highest_exposure"] for row in rows]),
            "difference": _difference(inserted.mean(axis=0), control.mean(axis=0)),
            "chance": compute_chance_quantile(inserted.shape[1]),
        }
    key = "accuracy" if figure == 4 else "group_accuracy"
    told: Row = {
        "accuracy": _over([row[key]["value"] for row in rows]),
        "intervals": [[row[key]["low"], row[key]["high"]] for row in rows],
        "confidence": rows[0]["confidence"],
    }
    single = {"single": float(np.mean([row["accuracy"]["value"] for row in rows]))}
    return {**told, **(single if figure == 5 else {})}


def _over(values: Sequence[float]) -> dict[str, float]:
    return {"value": float(np.mean(values)), "least": min(values), "greatest": max(values)}


def _difference(inserted: Any, control: Any) -> Row:
    """Mean of inserted minus never inserted canaries, bootstrapped over canaries (seeds averaged)."""
    two = [
        np.divide(*resample_sums(np.column_stack([side, np.ones(len(side))]), seed=seed).T)
        for seed, side in enumerate((inserted, control))
    ]
    low, high = np.percentile(two[0] - two[1], [2.5, 97.5])
    return {"value": float(inserted.mean() - control.mean()), "low": float(low), "high": float(high)}


COLOURS = dict(zip(TRAINERS, ("#555555", "#8a8a8a", "#b58900", "#cb4b16", "#268bd2", "#2aa198"), strict=True))
STYLES = {"sdp": ":", "redact-only": "--"}
EPSILON_COLOURS = ("#268bd2", "#2aa198", "#cb4b16", "#6c71c4", "#b58900", "#555555")


def _lines(asked: argparse.Namespace, table: Sequence[Row]) -> list[Line]:
    if asked.figure == 6:
        return [
            Line(
                f"ε′ = {target:g}, {told}",
                EPSILON_COLOURS[number % len(EPSILON_COLOURS)],
                [(row["gamma"], *[row[key]] * 3) for row in table if row["target"] == target and row[key] is not None],
                style,
            )
            for number, target in enumerate(asked.epsilons)
            for key, told, style in (("sound", "sound", "-"), ("as_published", "as published", "--"))
        ]
    name = {2: "per_word", 3: "highest"}.get(asked.figure, "accuracy")
    axis = "target" if asked.figure == 2 else "gamma"
    lines = []
    for trainer in dict.fromkeys(row["trainer"] for row in table):
        own = [row for row in table if row["trainer"] == trainer]
        told = f"{trainer} (as published)" if asked.figure == 2 and trainer == "sdp" else trainer
        style = {"name": told, "colour": COLOURS[trainer], "style": STYLES.get(trainer, "-")}
        if own[0][axis] is None:
            lines.append(Line(**style, flat=own[0][name]["value"]))
        else:
            bars = [(row[axis], *(row[name][end] for end in ("value", "least", "greatest"))) for row in own]
            lines.append(Line(**style, points=bars))
    if asked.figure == 3:
        lines.append(Line("95 % by chance", "#111111", flat=table[0]["chance"], style=":"))
    elif asked.figure in (4, 5):
        lines.append(Line("a fair coin", "#111111", flat=0.5, style=":"))
    return lines


def _axes(asked: argparse.Namespace) -> Axes:
    corpus = "simulated CustomerSim" if asked.data is None else asked.data.stem
    network = f"{corpus}, {asked.kind.upper()} {asked.width}"
    x = "miss rate γ of the policy π"
    seeds = (f"mean of {asked.seeds} seeds", "bars: least and greatest") if asked.seeds > 1 else ("one seed",)
    match asked.figure:
        case 2:
            title, x = f"Perplexity against epsilon: {network}", "epsilon (Bayesian for crt)"
            return Axes(title, x, "perplexity per word, outside of secrets", True, True, notes=seeds)
        case 3:
            title, y = f"Canary exposure against the miss rate: {network}", "highest canary exposure (bits)"
            return Axes(title, x, y, low=0.0, high=20.0, notes=seeds)
        case 6:
            title = f"What redaction makes of an epsilon (δ = {DELTA:g})"
            notes = ("as published: no guarantee", "sound: one secret exchanged", "for its mask, δ₂ = 0")
            return Axes(title, x, "Bayesian epsilon", low=0.0, notes=notes)
    who = "membership" if asked.figure == 4 else f"membership of groups of {GROUP_SIZE}"
    title = f"Membership inference{'' if asked.figure == 4 else ' of groups'}: {network}"
    return Axes(title, x, f"accuracy, {who}", low=0.4, high=1.0, notes=seeds)


if __name__ == "__main__":
    main()
