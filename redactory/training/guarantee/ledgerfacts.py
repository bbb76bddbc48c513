"""What a finished ledger proves: read again, checked line by line, refused where anything is amiss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, GuaranteeError
from redactory.foundation.records import Record, chain_head, read_records
from redactory.redaction.folder import ModelFolder, RunFolder
from redactory.redaction.sealing import is_finished, release_with
from redactory.training.guarantee.spec import NOT_MEASURED, MissRates, TrainingSpec
from redactory.training.ledger import END, FORMAT, HEAD, NOISY_STEP
from redactory.training.mechanism import AnyMechanism, PoissonUsersGaussian, mechanism_from_json
from redactory.training.settings import TrainSettings, as_now
from redactory.training.trainers import Trainer, trainer_of


@dataclass(frozen=True)
class LedgerFacts:
    """``mechanism`` is ``None`` and ``steps`` 0 for a training without noise; ``chain_head`` is hex.

    ``public_text`` is the sha256 of the text that made the vocabulary, ``base`` that of a pretrained folder;
    None where there is none.
    """

    settings: TrainSettings
    mechanism: AnyMechanism | None
    steps: int
    seeded: bool
    parent: str
    versions: dict[str, str]
    chain_head: str
    public_text: str | None = None
    base: dict[str, Any] | None = None

    @property
    def trainer(self) -> Trainer:
        """The trainer that the ledger names."""
        return trainer_of(self.settings)

    def spec(self, dedup: Mapping[str, Any] | None = None, rates: MissRates = NOT_MEASURED) -> TrainingSpec:
        """What decides the figures, with what the run's manifest says of deduplication and of misses."""
        public = self.public_text is not None or self.base is not None
        return TrainingSpec(self.settings, self.mechanism, self.steps, dedup, rates, public, self.seeded)


def ledger_facts(run: RunFolder, folder: ModelFolder) -> LedgerFacts:
    """The facts of the ledger in ``folder``, checked against the weights and the curated ``run``.

    ``GuaranteeError`` where the ledger is missing, broken, of another run or other weights, lacks a
    step that was promised, holds one that was not, or names a sampler or mechanism that is not known.
    """
    records = _records(folder)
    head, steps, end = records[0].body, records[1:-1], records[-1].body
    mechanism = None if head["mechanism"] is None else mechanism_from_json(head["mechanism"])
    try:
        settings = TrainSettings.model_validate(as_now(head["settings"]))
    except ValidationError:
        raise GuaranteeError("no guarantee: this version refuses the ledger's settings") from None
    trainer = trainer_of(settings)
    users = isinstance(mechanism, PoissonUsersGaussian)
    fits = users is trainer.samples_users if mechanism else trainer.noised is None
    _require(fits, "names another mechanism than its trainer's")
    _require(head["relation"] == trainer.relation.value, "was accounted for another relation")
    sampler = None if mechanism is None else mechanism.sampler
    _require(head["sampler"] == sampler, "names a sampler that is not known")
    _require(_is_of(run, head["parent"]), "belongs to another curated run")
    _require(end["steps"] == head["steps"] == len(steps), "lacks steps that were promised, or holds more")
    _require_steps(steps, mechanism)
    _require(end["weights"] == file_sha256(folder.weights), "belongs to other weights")
    return LedgerFacts(
        settings=settings,
        mechanism=mechanism,
        steps=len(steps),
        seeded=bool(head["seeded"]),
        parent=head["parent"],
        versions=head["versions"],
        chain_head=chain_head(folder.ledger),
        public_text=head.get("public_text"),
        base=head.get("base"),
    )


def _is_of(run: RunFolder, parent: str) -> bool:
    """Whether ``parent`` is the run's manifest, or one that was superseded after the training."""
    return file_sha256(run.manifest) == parent or (is_finished(run) and release_with(run, parent) is not None)


def parent_manifest(run: RunFolder, facts: LedgerFacts) -> dict[str, Any]:
    """The manifest that a model was trained under: the run's, or one that was superseded since."""
    found = release_with(run, facts.parent)
    if found is None:
        raise GuaranteeError("no guarantee: the ledger belongs to another curated run")
    return found.manifest


def _records(folder: ModelFolder) -> list[Record]:
    if not folder.ledger.exists():
        raise GuaranteeError(f"models/{folder.root.name} has no ledger")
    try:
        records = read_records(folder.ledger)
    except CheckFailed as error:
        raise GuaranteeError(str(error)) from None
    begun = len(records) >= 2 and records[0].type == HEAD and records[0].body.get("format") == FORMAT
    _require(begun and records[-1].type == END, "has no head or no end: the training is not finished")
    return records


def _require_steps(steps: list[Record], mechanism: AnyMechanism | None) -> None:
    _require(mechanism is not None or not steps, "holds noisy steps of a training without noise")
    event: dict[str, Any] = mechanism.event() if mechanism else {}
    for number, record in enumerate(steps):
        known = record.type == NOISY_STEP and record.body.get("event") == event
        _require(known and record.body.get("step") == number, f"has no such event at step {number}")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise GuaranteeError(f"no guarantee: the ledger {problem}")
