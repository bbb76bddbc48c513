"""What a finished ledger proves: read again, checked line by line, refused where anything is amiss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from redactory.dedup import RULES
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, GuaranteeError
from redactory.foundation.records import Record, chain_head, read_records
from redactory.redaction.folder import ModelFolder, RunFolder
from redactory.redaction.releases import release_with
from redactory.redaction.sealing import is_finished
from redactory.training import guarantee_figures as words
from redactory.training.ledger import END, FORMAT, HEAD, NOISY_STEP, AnyMechanism, any_mechanism_from_json
from redactory.training.mechanism import Mechanism, PoissonGaussian, Relation, TruncatedPoissonGaussian
from redactory.training.settings import TrainSettings
from redactory.training.units.federated_mechanism import PoissonUsersGaussian
from redactory.training.units.settings import FEDERATED_TRAINERS, UEDP_TRAINERS

STABLE_RULES = {(rule.name, rule.group_size) for rule in RULES.values() if rule.group_size is not None}
"""The rules that have a stability proof, and how many texts one exchanged point exchanges under each."""
BY_POLICY = ("crt", "crt-drop")
"""The trainers in which the policies decide what is noised."""


@dataclass(frozen=True)
class LedgerFacts:
    """``mechanism`` is ``None`` and ``steps`` 0 for a training without noise; ``chain_head`` is hex.

    A training that samples users has its mechanism in ``users`` instead, and none of points.

    ``relation`` is what a secret and its mask are to the noised points; under a user or entity relation,
    what a unit's point is to them.  ``public_text`` is the sha256 of the text that made the vocabulary,
    ``base`` that of a pretrained folder; None where there is none.
    """

    settings: TrainSettings
    mechanism: Mechanism | None
    relation: Relation
    steps: int
    seeded: bool
    parent: str
    versions: dict[str, str]
    chain_head: str
    users: PoissonUsersGaussian | None = None
    public_text: str | None = None
    base: dict[str, Any] | None = None

    @property
    def noised(self) -> AnyMechanism | None:
        """The mechanism of whichever kind; None for a training without noise."""
        return self.users or self.mechanism

    def broken_by(self, manifest: dict[str, Any]) -> str | None:
        """Why nothing holds of the model, or ``None``; ``manifest`` is that of its run."""
        dedup = manifest.get("dedup")
        return broken_by(self.settings, self.noised, dedup, self.learnt_from_public, self.seeded)

    def refusal(self, manifest: dict[str, Any]) -> str | None:
        """Why no epsilon at all can be stated of it, or ``None``."""
        return refusal_of(self.settings, self.noised, manifest.get("dedup"), self.learnt_from_public)

    @property
    def learnt_from_public(self) -> bool:
        """Whether something on record besides the corpus made the vocabulary."""
        return self.public_text is not None or self.base is not None


def ledger_facts(run: RunFolder, folder: ModelFolder) -> LedgerFacts:
    """The facts of the ledger in ``folder``, checked against the weights and the curated ``run``.

    ``GuaranteeError`` where the ledger is missing, broken, of another run or other weights, lacks a
    step that was promised, holds one that was not, or names a sampler or mechanism that is not known.
    """
    records = _records(folder)
    head, steps, end = records[0].body, records[1:-1], records[-1].body
    mechanism = None if head["mechanism"] is None else any_mechanism_from_json(head["mechanism"])
    try:
        settings = TrainSettings.model_validate(head["settings"])
    except ValidationError:
        raise GuaranteeError("no guarantee: this version refuses the ledger's settings") from None
    points = mechanism if isinstance(mechanism, PoissonGaussian | TruncatedPoissonGaussian) else None
    users = mechanism if not isinstance(mechanism, PoissonGaussian | TruncatedPoissonGaussian) else None
    federated = settings.trainer in FEDERATED_TRAINERS
    _require(points is None if federated else users is None, "names another mechanism than its trainer's")
    _require(head["relation"] == relation_of(settings).value, "was accounted for another relation")
    sampler = None if mechanism is None else mechanism.sampler
    _require(head["sampler"] == sampler, "names a sampler that is not known")
    _require(_is_of(run, head["parent"]), "belongs to another curated run")
    _require(end["steps"] == head["steps"] == len(steps), "lacks steps that were promised, or holds more")
    _require_steps(steps, mechanism)
    _require(end["weights"] == file_sha256(folder.weights), "belongs to other weights")
    return LedgerFacts(
        settings=settings,
        mechanism=points,
        users=users,
        relation=relation_of(settings),
        steps=len(steps),
        seeded=bool(head["seeded"]),
        parent=head["parent"],
        versions=head["versions"],
        chain_head=chain_head(folder.ledger),
        public_text=head.get("public_text"),
        base=head.get("base"),
    )


def refusal_of(
    settings: TrainSettings,
    mechanism: AnyMechanism | None,
    dedup: dict[str, Any] | None,
    learnt_from_public: bool = True,
) -> str | None:
    """Why no epsilon at all can be stated of a training, or ``None``.

    ``dedup`` is what the run's manifest says of deduplication; only where the policies decide what is noised
    does it count (``docs/guarantees.md``, "Deduplication").
    """
    trainer = settings.trainer
    if mechanism is None:
        return words.NO_NOISE[trainer]
    if trainer in UEDP_TRAINERS:
        return None if learnt_from_public else words.FROM_CORPUS
    if trainer not in BY_POLICY:
        return None
    assert dedup is not None
    rule = dedup["rule"]
    if rule in words.LOST:
        return f"no finite epsilon: {words.LOST[rule]}"
    if (rule, dedup["group_size"]) not in STABLE_RULES:
        return f"no finite epsilon: deduplication rule {rule} is not on the list of stable rules"
    return None


def broken_by(
    settings: TrainSettings,
    mechanism: AnyMechanism | None,
    dedup: dict[str, Any] | None,
    learnt_from_public: bool = True,
    seeded: bool = False,
) -> str | None:
    """Why nothing holds of a training, or ``None``: :func:`refusal_of`, or draws that anybody can repeat.

    The one place that decides it: asked before anything is booked or told of a training, and by its card.
    """
    return refusal_of(settings, mechanism, dedup, learnt_from_public) or (words.SEEDED if seeded else None)


def _is_of(run: RunFolder, parent: str) -> bool:
    """Whether ``parent`` is the run's manifest, or one that was superseded after the training."""
    return file_sha256(run.manifest) == parent or (is_finished(run) and release_with(run, parent) is not None)


def noise_of(facts: LedgerFacts) -> dict[str, Any]:
    """Clip, rate, noise and steps as a card says them; None where nothing was noised."""
    mechanism = facts.noised
    keys = ("clip_norm", "sampling_rate", "noise_multiplier", "noise", "normaliser")
    told = {key: None if mechanism is None else getattr(mechanism, key) for key in keys}
    return {**told, "steps": facts.steps, "delta": facts.settings.delta}


def parent_manifest(run: RunFolder, facts: LedgerFacts) -> dict[str, Any]:
    """The manifest that a model was trained under: the run's, or one that was superseded since."""
    found = release_with(run, facts.parent)
    if found is None:
        raise GuaranteeError("no guarantee: the ledger belongs to another curated run")
    return found.manifest


def relation_of(settings: TrainSettings) -> Relation:
    """What a secret and its mask are to the noised points: ``crt-drop`` gives a masked point no gradient.

    Under a user or entity relation a unit's point is there in one world, and null in the other.
    """
    gone = settings.trainer == "crt-drop" or settings.trainer in UEDP_TRAINERS
    return Relation.ADD_OR_REMOVE if gone else Relation.SUBSTITUTION


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
