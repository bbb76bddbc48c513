"""The trainings of the UeDP figures: what each method is told, one training, and what is measured of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uedp_corpora import Corpus
from uedp_heldout import HeldOut
from uedp_pretraining import kept_at, pretrained_once

from redactory.evaluation.utility import measure_accuracy
from redactory.training import TrainSettings, load_model, train_model
from redactory.training.model import load_classifier
from redactory.training.uedp.bounding import bound_contributions
from redactory.training.uedp.units import read_unit_incidence
from redactory.training.unit_settings import UnitSettings

METHODS = ("noiseless", "de-identification", "user-level", "uedp-alg1", "uedp-alg1-all-users", "uedp-bounded")
PRETRAINED = "pretraining-alone"
WITHOUT_EPSILON = ("noiseless", "de-identification")
CLASSES = 12
"""The clause types that are told apart: those with the most clauses among the donated contracts."""

SHARED: dict[str, Any] = {
    "model": {"embedding_size": 200, "hidden_size": 200},
    "vocabulary_size": 2000,
    "max_tokens": 48,
    "threads": 1,
    "noise": "float",
    "group_sizes": (),
    "max_physical_batch_tokens": 16384,
    "public_batch_size": 32,
    "learning_rate": 3e-3,
    "min_public_steps": 1,
    "delta": 1e-5,
    "learning_rate_schedule": "linear",
}
"""Public constants of every training."""


@dataclass(frozen=True)
class Job:
    """One training: its figure, corpus, start (scratch or donated), method, target epsilon and changes.

    ``changes`` are keys of ``train`` (those of a section joined to it); ``note`` tells two jobs of a figure
    apart that differ in nothing else by name.
    """

    figure: str
    corpus: str
    start: str
    method: str
    target: float | None = None
    note: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1

    @property
    def name(self) -> str:
        """The model's name, of letters, digits and dashes."""
        target = "" if self.target is None else f"-e{self.target:g}"
        note = f"-{self.note}" if self.note else ""
        seed = f"-s{self.seed}" if self.seed > 1 else ""
        return f"{self.figure}-{self.start}-{self.method}{target}{note}{seed}"

    @property
    def trainer(self) -> str:
        """The trainer's name; pretraining alone is a training whose one step moves nothing."""
        if self.method == PRETRAINED:
            return "uedp-bounded"
        return self.method.removesuffix("-all-users")


def settings_of(job: Job, corpus: Corpus, tuned: Mapping[str, Any]) -> TrainSettings:
    """The settings of one training: shared, then ``tuned`` for the method and start, then the job's own."""
    given: dict[str, Any] = {
        **SHARED,
        "trainer": job.trainer,
        "name": job.name,
        "seed": job.seed,
        "public_text": str(corpus.public),
        "epsilon": job.target or 8.0,
    }
    if job.figure == "classify":
        donated = Counter(label for *_, label in corpus.points("donated"))
        given |= {"task": "classify", "classes": tuple(name for name, _ in donated.most_common(CLASSES))}
    for own in (tuned, job.changes):
        for key, value in own.items():
            given[key] = {**given[key], **value} if isinstance(given.get(key), dict) else value
    if job.start == "scratch":
        given["pretraining_epochs"] = 0
    if job.trainer in ("user-level", "uedp-alg1"):
        given["federated"] = {"users": len({row["user_id"] for row in corpus.parts["private"]})} | given.get(
            "federated", {}
        )
        if job.method == "uedp-alg1-all-users":
            given["federated"].pop("max_users_per_entity", None)
    if job.trainer == "uedp-bounded":
        # on a fixed graph the number of kept points is the same in both worlds: q times it divides the sum
        kept = kept_points(corpus, given["bounding"])
        given["expected_batch_size"] = max(1.0, given["sampling_rate"] * kept)
    return TrainSettings.model_validate(given)


def kept_points(corpus: Corpus, caps: Mapping[str, Any]) -> int:
    """How many points the caps of ``train.bounding`` keep."""
    units = read_unit_incidence(corpus.run, UnitSettings())
    return len(units.select_examples(bound_contributions(units, caps["k_user"], caps["k_entity"])))


def train_one(job: Job, corpus: Corpus, held_out: HeldOut, tuned: Mapping[str, Any]) -> dict[str, Any]:
    """Train, measure on held-out users, and say what was promised and what it cost."""
    settings = settings_of(job, corpus, tuned)
    begun = time.monotonic()
    with pretrained_once(kept_at(corpus, settings)):
        card = train_model(corpus.run, settings)["guarantee"]
    seconds = time.monotonic() - begun
    folder = corpus.run.get_model_folder(job.name)
    if settings.task == "classify":
        model = load_classifier(folder)
        measured: dict[str, Any] = {
            "as_is": _errors(model, held_out.texts, held_out.classes),
            "masked": _errors(model, held_out.masked, held_out.classes),
        }
        measured["error_rate"] = measured["as_is"]["error_rate"]
    else:
        measured = held_out.perplexities(load_model(folder), job.trainer == "de-identification")
    published = card["epsilon_as_published"]
    return {
        "name": job.name,
        "figure": job.figure,
        "corpus": job.corpus,
        "start": job.start,
        "method": job.method,
        "target": job.target,
        "note": job.note,
        "seed": job.seed,
        "relation": card["relation"],
        "epsilon": card["epsilon"],
        "epsilon_as_published": published["epsilon"] if isinstance(published, dict) else published,
        "K": card.get("K"),
        "M": card.get("M"),
        "noise_multiplier": card["noise_multiplier"],
        "normaliser": card["normaliser"],
        "steps": card["steps"],
        "settings": _told(settings),
        **measured,
        "seconds": round(seconds, 1),
    }


def _errors(model: Any, texts: list[str], classes: list[str | None]) -> dict[str, Any]:
    found = measure_accuracy(model, texts, classes)
    return {key: found[key] for key in ("error_rate", "texts", "majority_error_rate", "log_loss")}


def _told(settings: TrainSettings) -> dict[str, Any]:
    keys = {
        "epochs",
        "sampling_rate",
        "expected_batch_size",
        "clip_norm",
        "learning_rate",
        "dp_learning_rate",
        "optimizer",
        "pretraining_epochs",
        "federated",
        "bounding",
        "model",
    }
    return settings.model_dump(mode="json", include=keys, exclude_defaults=True)
