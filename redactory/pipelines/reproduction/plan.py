"""What a reproduction is told: public constants, the same for every trainer of a figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, InputError

TRAINERS = ("sgd", "redact-only", "sdp", "dpsgd", "crt", "crt-drop")
WITHOUT_NOISE = ("sgd", "redact-only")
ON_ORIGINALS = ("sgd", "sdp", "dpsgd")
BLIND_TO_PI = ("sgd", "dpsgd")
"""Trainers that do not ask π: what they learn is the same at every miss rate, and is learnt once."""

FIGURES = (2, 3, 4, 5, 6)
MISS_RATES = (0.0, 0.1, 0.2, 0.3, 0.5)
EPSILONS = (0.5, 1.0, 4.0)
MEASURES = {2: "perplexity", 3: "exposure", 4: "membership", 5: "membership"}
"""What is measured of each model for a figure: Figures 4 and 5 share theirs."""

CONSTANTS: dict[str, Any] = {
    "epochs": 2,
    "sampling_rate": 0.005,
    "clip_norm": 0.5,
    "minimum_plain_steps": 50,
    "public_batch_size": 64,
    "learning_rate": 1e-2,
    "private_learning_rate": 4e-2,
    "learning_rate_schedule": "linear",
    "vocabulary_size": 2000,
    "max_tokens": 64,
    "threads": 1,
    "group_sizes": (),
    "physical_tokens": 16384,
}
"""The section ``train`` of every training, the same for all corpora."""


@dataclass(frozen=True)
class Plan:
    """One reproduction.  ``gammas`` and ``epsilons`` are what the figure's x axis runs over.

    ``data`` and ``test`` hold labelled rows (JSON lines); without them CustomerSim is simulated.  ``label``
    names the secrets that membership is inferred of.
    """

    figure: int
    out: Path
    data: Path | None = None
    test: Path | None = None
    rows: int = 3_000
    test_points: int = 3_000
    seeds: int = 5
    gammas: tuple[float, ...] = ()
    epsilons: tuple[float, ...] = ()
    trainers: tuple[str, ...] = TRAINERS
    delta: float = 8e-5
    dedup: str = "none"
    segment: str = "turn"
    kind: str = "lstm"
    width: int = 64
    canaries: int = 10
    copies: int = 20
    label: str | None = None
    members: int = 1_000
    group_size: int = 20
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measure(self) -> str:
        """What is measured of each model."""
        return MEASURES[self.figure]

    @property
    def train(self) -> dict[str, Any]:
        """The section ``train`` that all trainings have in common."""
        return {**CONSTANTS, **self.constants}

    @property
    def comparisons(self) -> int:
        """Intervals that are read together, which Bonferroni's correction counts."""
        return len(self.gammas) * len(self.trainers) * self.seeds

    @property
    def results(self) -> Path:
        """Where the measurements are kept, a line a model; one that its settings change has its own file."""
        if self.measure != "membership":
            return self.out / f"{self.measure}.jsonl"
        return self.out / f"membership-{self.members}x{self.group_size}-{self.comparisons}.jsonl"

    def corpus(self) -> dict[str, Any]:
        """What the runs and the models of a folder depend on, whichever figure is asked of them."""
        own = asdict(self)
        for free in ("figure", "out", "seeds", "gammas", "epsilons", "trainers", "members", "group_size"):
            own.pop(free)
        given = {key: value.name if isinstance(value, Path) else value for key, value in own.items()}
        read = {name: None if path is None else file_sha256(path) for name, path in self.files.items()}
        return {**given, "constants": self.train, "sha256": read}

    @property
    def files(self) -> dict[str, Path | None]:
        """The labelled rows that are read."""
        return {"data": self.data, "test": self.test}


def checked(plan: Plan) -> Plan:
    """``plan`` with its figure's axis filled in; ``ConfigurationError`` for what cannot be reproduced."""
    if plan.figure not in FIGURES:
        raise ConfigurationError(f"figure: one of {', '.join(map(str, FIGURES))}")
    if (plan.data is None) != (plan.test is None):
        raise ConfigurationError("data and test go together: rows to train on, and rows held out")
    for name, path in plan.files.items():
        if path is not None and not path.is_file():
            raise InputError(f"{name}: {path} is no file of labelled rows")
    unknown = set(plan.trainers) - set(TRAINERS)
    if unknown or not plan.trainers:
        raise ConfigurationError(f"trainers: some of {', '.join(TRAINERS)}")
    gammas = plan.gammas or ((0.1,) if plan.figure == 2 else MISS_RATES)
    epsilons = plan.epsilons or (EPSILONS if plan.figure in (2, 6) else (1.0,))
    if not all(0 <= gamma < 1 for gamma in gammas) or not all(epsilon > 0 for epsilon in epsilons):
        raise ConfigurationError("gammas are from 0 to below 1, epsilons above 0")
    if plan.figure == 2 and (len(gammas) > 1 or not all(gammas)):
        raise ConfigurationError("gammas: Figure 2 has one miss rate, above 0; its axis is epsilon")
    if plan.figure in (3, 4, 5) and len(epsilons) > 1:
        raise ConfigurationError("epsilons: Figures 3 to 5 have one; their axis is the miss rate")
    if min(plan.rows, plan.seeds, plan.members, plan.width, plan.test_points, plan.group_size) < 1:
        raise ConfigurationError("rows, test-points, seeds, members, group-size and width are at least 1")
    if plan.canaries < 2 or plan.copies < 1:
        raise ConfigurationError("canaries is at least 2 and copies at least 1")
    trainers = tuple(name for name in TRAINERS if name in plan.trainers)
    if plan.kind != "lstm":
        trainers = tuple(name for name in trainers if name != "sdp")
    fixed = {"gammas": tuple(sorted(set(gammas))), "epsilons": tuple(sorted(set(epsilons)))}
    return Plan(**{**plan.__dict__, **fixed, "trainers": trainers})
