"""Collect the inputs of a guarantee, from the settings of a planned training or from a finished ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from redactory.dedup import RULES
from redactory.detectors import get_publishable_gaps
from redactory.detectors.settings import get_public_labels
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError
from redactory.foundation.files import read_json
from redactory.foundation.intervals import clopper_pearson_upper
from redactory.foundation.records import compute_chain_head, read_records
from redactory.redaction.folder import ModelFolder, RunFolder
from redactory.redaction.sealing import find_release, is_finished
from redactory.training.accounting import Spending, Spendings
from redactory.training.count_selection import CountSelection
from redactory.training.guarantee import WORDS
from redactory.training.mechanisms.ledger import END, FORMAT, HEAD, NOISY_STEP
from redactory.training.mechanisms.mechanism import Mechanism, Relation, parse_mechanism_json
from redactory.training.settings import ENCODER_SOURCE, VOCABULARY_SOURCES, RecallMeasurement, TrainSettings
from redactory.training.tokenizer import compute_tokenizer_digest
from redactory.training.trainers import Trainer, get_trainer
from redactory.training.trainers.base import EXAMPLE_NOUN
from redactory.training.unit_settings import PrivacyUnit

KNOWN_IN_DOCUMENT, KNOWN_IN_EXAMPLE = "document", "example"
"""Scope in which a run masks known values (``known_in`` in its manifest)."""
IN_PRIVATE_SPLIT = "in the private split"
"""Addition to a privacy unit that does not cover public examples."""
STABLE_RULES = {(rule.name, rule.group_size) for rule in RULES.values() if rule.group_size is not None}
"""Rules with a stability proof, each with the number of texts that one exchanged example exchanges."""


@dataclass(frozen=True)
class MissRates:
    """Upper bounds on misses: ``gamma`` for the strict policy, ``delta_2`` for both policies.

    Without a measurement ``delta_2`` is None and ``gamma`` is 1.
    """

    gamma: float = 1.0
    delta_2: float | None = None

    @classmethod
    def from_measurement(cls, recall: RecallMeasurement | None, is_all_private: bool = False) -> MissRates:
        """Compute the bounds of a measurement, each at its confidence c (both at once at 2c − 1).

        If labels were sampled by stratum, counts bound nothing, so the sample's own bounds are used.
        With ``is_all_private`` no public example can contain a secret: δ₂ is 0.
        """
        if recall is None:
            rates = NOT_MEASURED
        elif recall.sample is not None:
            rates = cls(recall.sample.gamma_upper, recall.sample.delta_2_upper)
        else:
            gamma = clopper_pearson_upper(recall.missed_by_strict, recall.labels, recall.confidence)
            both = clopper_pearson_upper(recall.missed_by_both, recall.labels, recall.confidence)
            rates = cls(gamma, min(both, gamma))
        return cls(rates.gamma, 0.0) if is_all_private else rates

    def merge_larger_bounds(self, other: MissRates) -> MissRates:
        """Take the larger of each bound, for two models of one run: a secret is in the same example for both."""
        known = [rates.delta_2 for rates in (self, other) if rates.delta_2 is not None]
        return MissRates(max(self.gamma, other.gamma), max(known) if len(known) == 2 else None)

    @classmethod
    def from_run(cls, recall: RecallMeasurement | None, manifest: Mapping[str, Any]) -> MissRates:
        """Compute the bounds for a finished run; not measured if the run does not cover some kind of names.

        Also not measured if decisions depend on more than one text, because misses are measured on single texts.
        ``ConfigurationError`` if the measurement used other public labels than the run.
        If counts decide what is public, every secret has a guarantee, whatever is missed.
        """
        if recall is not None:
            recall.require_public_labels(get_public_labels(manifest))
        if CountSelection.from_manifest(manifest) is not None:
            measured = recall if is_routed_by_text(manifest) and not get_publishable_gaps(manifest)["kinds"] else None
            return cls.from_measurement(measured, is_all_private=True)
        if manifest["uncovered"]["kinds"]:
            return NOT_MEASURED
        everything = manifest["policies"]["conservative"].get("flags_everything") is True
        return cls.from_measurement(recall if is_routed_by_text(manifest) else None, everything)


NOT_MEASURED = MissRates()


def has_only_public_sources(vocabulary_sources: Iterable[str]) -> bool:
    """Whether all ``vocabulary_sources`` are known and outside the corpus: not its public split, the first one."""
    sources = set(vocabulary_sources)
    return bool(sources) and sources <= set(VOCABULARY_SOURCES[1:])


def is_routed_by_text(manifest: Mapping[str, Any]) -> bool:
    """Whether an example's text alone decides its routing, not other examples or columns of its document."""
    declared = manifest.get("configuration", {}).get("input", {}).get("known_value_columns")
    return manifest.get("known_in") != KNOWN_IN_DOCUMENT and not declared


@dataclass(frozen=True)
class TrainingSpec:
    """Describe one training: ``mechanism`` (None without noise) for ``steps`` noisy steps, and its ``settings``.

    ``dedup`` holds ``rule`` and ``group_size`` of the private split, ``rates`` miss bounds.  ``public``: the vocabulary
    is recorded and does not come from the corpus, as the protection of units or of any example needs.  ``seeded``: the
    noise can be repeated.  ``known_in`` is the scope of masking known values, or None; ``selection`` the selection by
    counts, if any.  ``start`` is the model of the same run that gave the initial weights: its spending is added.
    """

    settings: TrainSettings
    mechanism: Mechanism | None
    steps: int
    dedup: Mapping[str, Any] | None = None
    rates: MissRates = NOT_MEASURED
    public: bool = True
    seeded: bool = False
    known_in: str | None = None
    start: TrainingSpec | None = None
    selection: CountSelection | None = None

    @classmethod
    def from_settings(
        cls, settings: TrainSettings, dedup: Mapping[str, Any] | None, steps: int | None = None, **known: Any
    ) -> TrainingSpec:
        """Make the spec of a training that is planned or starting; calibrates the noise if none is given."""
        trainer = get_trainer(settings)
        steps = trainer.count_noisy_steps(settings) if steps is None else steps
        known.setdefault("seeded", settings.seed is not None)
        known.setdefault("public", has_only_public_sources(settings.vocabulary_sources))
        spec = cls(settings, None, 0, dedup, **known)
        spec.require_count_support()
        mechanism = trainer.make_mechanism(
            settings, (dedup or {}).get("group_size"), steps, other_spendings=spec.selection_spendings
        )
        return replace(spec, mechanism=mechanism, steps=steps if mechanism else 0)

    def require_count_support(self) -> None:
        """Raise ``ConfigurationError`` if counts decided what is public and the training uses more than they covered.

        They covered texts and their noisy numbers, not the class or role of a text.
        """
        settings = self.settings
        if not self.selection_spendings:
            return
        for is_set, key in (
            (settings.task == "classify" and self.trainer.noise_free_folders, "task: classes"),
            (settings.prefix, "prefix: classes and roles"),
            (settings.chat, "chat: roles"),
        ):
            if is_set:
                raise ConfigurationError(
                    f"train.{key} were not counted, and with route.strategy count or both only counted parts "
                    "of a public row may be used: curate with route.strategy policies, or remove it"
                )

    @property
    def selection_spendings(self) -> Spendings:
        """The cost of the selection for one example; empty if the training uses no part of ``public/``."""
        if self.selection is None or self.trainer.has_units:
            return ()
        return (self.selection.compute_example_spending(),)

    @property
    def trainer(self) -> Trainer:
        """The trainer class of the settings."""
        return get_trainer(self.settings)

    @property
    def delta(self) -> float:
        """The delta of every epsilon."""
        return self.settings.delta

    @property
    def relation(self) -> Relation:
        """The relation of the two worlds in the noised examples: a secret and its mask, or a unit's example."""
        return self.trainer.relation

    @property
    def protected_unit(self) -> PrivacyUnit:
        """The privacy unit that a trainer with units protects."""
        return self.trainer.get_privacy_unit(self.settings)

    @property
    def exchanged_row_count(self) -> int:
        """The number of noised rows that one exchanged example exchanges; for a unit, its examples K."""
        return self.trainer.count_exchanged_rows(self.settings, (self.dedup or {}).get("group_size"))

    @property
    def spending(self) -> Spending | None:
        """The spending of these steps; None without noise, or without a proved pair."""
        return self.trainer.compute_spending(self.mechanism, self.steps, self.exchanged_row_count)

    @property
    def total_spendings(self) -> Spendings:
        """The spendings of all stages that led to these weights."""
        return (*(self.start.total_spendings if self.start else ()), *((self.spending,) if self.spending else ()))

    @property
    def privacy_unit_description(self) -> str:
        """The protected unit in words; cards with different units make different claims."""
        if self.trainer.has_units:
            return f"{self.units_description} ({self.settings.trainer})"
        noun = self.exchanged_example
        if self.settings.has_whole_conversations and self.trainer.uses_policy:
            noun = "turn of one conversation"
        unit = self.trainer.privacy_unit.replace(EXAMPLE_NOUN, noun)
        is_restricted = not self.trainer.uses_policy and self.depends_on_public_split
        return f"{unit}, {IN_PRIVATE_SPLIT}" if is_restricted else unit

    @property
    def exchanged_example(self) -> str:
        """What one example is: a sentence or a turn, a document, or a conversation."""
        if self.settings.has_whole_conversations:
            return "conversation"
        return KNOWN_IN_DOCUMENT if self.known_in == KNOWN_IN_EXAMPLE else EXAMPLE_NOUN

    @property
    def depends_on_public_split(self) -> bool:
        """Whether the public split affects the model outside of its epsilon: steps without noise, or the vocabulary."""
        vocabulary = not self.public if self.start is None else self.start.depends_on_public_split
        return vocabulary or bool(self.trainer.noise_free_folders)

    @property
    def units_description(self) -> str:
        """The protected users or entities, and the lists that define them."""
        if not self.trainer.hides_units:
            return "nothing"
        units = self.settings.units
        description = WORDS["units"]["unit"][self.protected_unit.value]
        if units.duplicates == "merge":
            description += "; copies of a text are one example, of all users who have one"
        if self.protected_unit is PrivacyUnit.USERS:
            return str(description)
        labels = "" if units.labels is None else f"; entities are those labelled {', '.join(sorted(units.labels))}"
        files = ["a list of hubs"] if units.high_degree_files else []
        hubs = [*sorted(one for one in units.high_degree_entities if isinstance(one, str)), *files]
        list_texts = (
            ("entities on a list count", units.entities is not None),
            ("aliases on a list are one entity", units.aliases is not None),
            (f"the values in {', '.join(hubs)} are not entities", bool(hubs)),
        )
        return "; ".join([f"{description}{labels}", *(words for words, is_so in list_texts if is_so)])

    @property
    def refusal_reason(self) -> str | None:
        """The reason why no epsilon can be stated, or None."""
        if self.mechanism is None:
            return self.trainer.no_guarantee_reason
        if self.start is not None and (problem := self._find_start_problem(self.start)):
            return f"no finite epsilon: it starts from the model {self.start.settings.model_name}, {problem}"
        if self.trainer.has_units:
            return None if self.public else WORDS["from_corpus"]
        if self.known_in == KNOWN_IN_DOCUMENT and not self.settings.has_whole_conversations:
            return str(WORDS["known_in_document"])
        if not self.trainer.uses_policy:
            return None
        if self.settings.has_whole_conversations and (self.dedup or {}).get("rule") != "none":
            return str(WORDS["merged_turns"])
        assert self.dedup is not None
        rule = self.dedup["rule"]
        if rule in WORDS["lost"]:
            return f"no finite epsilon: {WORDS['lost'][rule]}"
        if (rule, self.dedup["group_size"]) not in STABLE_RULES:
            return f"no finite epsilon: deduplication rule {rule} is not a known stable rule"
        return None

    def _find_start_problem(self, start: TrainingSpec) -> str | None:
        """Return why the spending of ``start`` cannot be composed with this training, or None."""
        if start.failure_reason:
            return f"which has no guarantee ({start.failure_reason})"
        start_promise = start.privacy_unit_description, start.relation
        if self.trainer.hides_units or (self.privacy_unit_description, self.relation) != start_promise:
            return "whose epsilons are about another privacy unit or relation"
        return None

    @property
    def failure_reason(self) -> str | None:
        """The reason why nothing is guaranteed, or None: :attr:`refusal_reason`, or draws that anybody can repeat."""
        return self.refusal_reason or (WORDS["seeded"] if self.seeded else None)


def compute_bayesian_epsilon(
    epsilon_at: Callable[[float], float | None], delta: float, gamma: float, delta_2: float
) -> float | None:
    """Compute CRT's Theorem 8.3 as corrected in ``docs/guarantees.md``, "Amplification by redaction".

    ``epsilon_at`` is the substitution curve (delta to epsilon).  The strict policy misses a secret with probability
    at most ``gamma``, both policies with at most ``delta_2``:

        ε(δ) = log(1 + γ(exp(ε_sub((δ − δ₂)/γ)) − 1)),

    0 if (δ − δ₂)/γ >= 1, and None (no finite epsilon) if δ <= δ₂.
    """
    if delta <= delta_2:
        return None
    if gamma <= 0.0 or (delta - delta_2) / gamma >= 1.0:
        return 0.0
    missed = epsilon_at((delta - delta_2) / gamma)
    if missed is None:
        return None
    if missed > 500.0:
        return missed + math.log(gamma) + math.log1p((1.0 / gamma - 1.0) * math.exp(-missed))
    return math.log1p(gamma * math.expm1(missed))


# Facts of a finished ledger, checked line by line.


@dataclass(frozen=True)
class LedgerFacts:
    """Hold the checked facts of a ledger; without noise ``mechanism`` is None and ``steps`` is 0.

    ``chain_head`` is hex, ``public_text`` a sha256.  ``base`` holds the sha256 of a pretrained folder, or name and
    chain head of a model of this run.  ``vocabulary`` is its record (``redactory.training.vocabulary``), and
    ``private_loop`` describes a user's own loop around the steps.  ``other_trainings`` are the models whose training on
    the same run had started when this one ended.  Absent facts are None.
    """

    settings: TrainSettings
    mechanism: Mechanism | None
    steps: int
    seeded: bool
    parent: str
    versions: dict[str, str]
    chain_head: str
    vocabulary: dict[str, Any]
    trainable_parameters: int
    other_trainings: tuple[str, ...] = ()
    public_text: str | None = None
    base: dict[str, Any] | None = None
    private_loop: dict[str, Any] | None = None

    @property
    def trainer(self) -> Trainer:
        """The trainer that the ledger names."""
        return get_trainer(self.settings)

    def make_spec(
        self,
        dedup: Mapping[str, Any] | None = None,
        rates: MissRates = NOT_MEASURED,
        known_in: str | None = None,
        start: TrainingSpec | None = None,
        selection: CountSelection | None = None,
    ) -> TrainingSpec:
        """Make the spec, with deduplication, miss rates and routing from the run's manifest."""
        public = has_only_public_sources(self.vocabulary["made_of"]) and START_KEY not in (self.base or ())
        rates = rates if start is None else rates.merge_larger_bounds(start.rates)
        run = (dedup, rates, public, self.seeded, known_in, start, selection)
        return TrainingSpec(self.settings, self.mechanism, self.steps, *run)


def read_ledger_facts(run: RunFolder, folder: ModelFolder) -> LedgerFacts:
    """Read the ledger in ``folder`` and check it against the weights and the curated ``run``.

    ``GuaranteeError`` if the ledger is missing, broken, belongs to another run or other weights, lacks a planned step,
    has an extra one, or names an unknown sampler or mechanism.
    """
    if not folder.ledger.exists():
        raise GuaranteeError(f"models/{folder.root.name} has no ledger")
    try:
        records = read_records(folder.ledger)
    except CheckFailed as error:
        raise GuaranteeError(str(error)) from None
    has_head = len(records) >= 2 and records[0].type == HEAD and records[0].body.get("format") == FORMAT
    _require_ledger_condition(has_head and records[-1].type == END, "has no head or no end: the training is unfinished")
    head, steps, end = records[0].body, records[1:-1], records[-1].body
    mechanism = None if head["mechanism"] is None else parse_mechanism_json(head["mechanism"])
    try:
        settings = TrainSettings.model_validate(head["settings"])
    except ValidationError:
        raise GuaranteeError("no guarantee: this version refuses the ledger's settings") from None
    trainer = get_trainer(settings)
    fits = mechanism.samples_users is trainer.samples_users if mechanism else trainer.noised_folder is None
    _require_ledger_condition(fits, "has a mechanism that is not its trainer's")
    _require_ledger_condition(head["relation"] == trainer.relation.value, "was accounted for another relation")
    sampler = None if mechanism is None else mechanism.sampler
    _require_ledger_condition(head["sampler"] == sampler, "has an unknown sampler")
    # the run's manifest, or one that was superseded after the training
    is_own_run = file_sha256(run.manifest) == head["parent"]
    is_own_run = is_own_run or (is_finished(run) and find_release(run, head["parent"]) is not None)
    _require_ledger_condition(is_own_run, "belongs to another curated run")
    _require_ledger_condition(end["steps"] == head["steps"] == len(steps), "has more or fewer steps than stated")
    _require_ledger_condition(mechanism is not None or not steps, "has noisy steps in a training without noise")
    event: dict[str, Any] = mechanism.to_event() if mechanism else {}
    for number, record in enumerate(steps):
        step = (record.type, record.body.get("event"), record.body.get("step"))
        _require_ledger_condition(step == (NOISY_STEP, event, number), f"has no such event at step {number}")
    _require_ledger_condition(end["weights"] == file_sha256(folder.weights), "belongs to other weights")
    vocabulary = head["vocabulary"]
    sources = set(vocabulary["made_of"])
    is_known = bool(sources) and sources <= set(VOCABULARY_SOURCES)
    _require_ledger_condition(is_known, "has an unknown source of the vocabulary")
    is_own_vocabulary = vocabulary["sha256"] == _read_vocabulary_digest(folder, sources)
    _require_ledger_condition(is_own_vocabulary, "belongs to another tokenizer or encoder")
    return LedgerFacts(
        settings=settings,
        mechanism=mechanism,
        steps=len(steps),
        seeded=bool(head["seeded"]),
        parent=head["parent"],
        versions=head["versions"],
        chain_head=compute_chain_head(folder.ledger),
        public_text=head.get("public_text"),
        base=head.get("base"),
        vocabulary=vocabulary,
        trainable_parameters=end["trainable_parameters"],
        other_trainings=tuple(end["other_trainings"]),
        private_loop=head.get("own_loop"),
    )


def _read_vocabulary_digest(folder: ModelFolder, sources: Collection[str]) -> str | None:
    """Return the digest of the tokenizer in ``folder``, or of the encoder that ``config.json`` names; None without."""
    if ENCODER_SOURCE not in sources:
        return compute_tokenizer_digest(read_json(folder.tokenizer)) if folder.tokenizer.exists() else None
    return str(read_json(folder.config)["encoder"]["sha256"]) if folder.config.exists() else None


START_KEY = "start"
"""Key in a ledger's ``base`` that names the model of the run with the initial weights."""


def read_training_spec(run: RunFolder, facts: LedgerFacts, recall: RecallMeasurement | None) -> TrainingSpec:
    """Read the spec of a training of ``run`` on secrets or examples, with all stages before it.

    ``recall`` replaces the measurement of every stage.  ``GuaranteeError`` if the start model of a stage is missing
    or changed, or does not match its ledger.
    """
    manifest, start = read_parent_manifest(run, facts), None
    if facts.base is not None and START_KEY in facts.base:
        name = facts.base[START_KEY]
        before = read_ledger_facts(run, run.get_model_folder(name))
        _require_ledger_condition(before.chain_head == facts.base["ledger"], f"starts from another models/{name}")
        _require_ledger_condition(before.parent == facts.parent, f"and that of models/{name} are of different releases")
        start = read_training_spec(run, before, recall or before.settings.detector_recall_file)
    rates = MissRates.from_run(recall, manifest)
    return facts.make_spec(
        manifest["dedup"], rates, manifest.get("known_in"), start, CountSelection.from_manifest(manifest)
    )


def read_parent_manifest(run: RunFolder, facts: LedgerFacts) -> dict[str, Any]:
    """Read the manifest that a model was trained under: the run's current one, or a superseded one."""
    release = find_release(run, facts.parent)
    if release is None:
        raise GuaranteeError("no guarantee: the ledger belongs to another curated run")
    return release.manifest


def _require_ledger_condition(is_satisfied: bool, problem: str) -> None:
    if not is_satisfied:
        raise GuaranteeError(f"no guarantee: the ledger {problem}")
