"""The configuration: one definition for the file, the command line, the documentation and the hash.

Other sections are defined with their subject: ``input`` in ``readers/documents.py``, ``detect`` in
``detectors/settings.py``, ``dedup`` in ``dedup/settings.py``, ``train`` in ``training/settings.py`` (and ``units.py``,
``models/settings.py``), ``nightly.drift`` in ``evaluation/drift.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from redactory.dedup import DedupSettings
from redactory.detectors import DetectSettings, NameKind
from redactory.evaluation.drift import DriftSettings
from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import ConfigurationError, shorten_name
from redactory.foundation.files import read_json
from redactory.foundation.settings import AbsolutePath, Settings
from redactory.pipelines.readers import InputSettings
from redactory.pipelines.readers.documents import OneOrMore
from redactory.pipelines.store import is_url
from redactory.training.settings import TrainSettings

# The nightly job (section ``nightly``); affects no shard.


class NightlySettings(Settings):
    """Settings of a scheduled run besides the curation."""

    partial_row_grace_minutes: float = Field(
        60,
        ge=0,
        description="Leave an incomplete last row (no line end, an open quotation) for a later run, until "
        "the file has not been written for this many minutes; then read it.",
    )
    publish: str | None = Field(
        None, description="URL that each released run is mirrored to, under its name; runs must be encrypted."
    )
    keep: dict[Literal["vault", "quarantine", "state"], Annotated[int, Field(ge=0)]] = Field(
        {},
        description="How many days after the release each private part of a run is kept (default: for ever): "
        "vault (the original text), quarantine (what could not be processed), state (samples, tracebacks, "
        "the orchestrator's home).",
    )
    approve: Literal["always", "drift", "never"] = Field(
        "drift",
        description="When a person must approve a run before it is released. always: each run; drift: a run that is "
        "unlike earlier ones, or has fewer than five released runs before it to compare it with; never: none. Under "
        "each of them, a run that is uncovered or has no example is held.",
    )
    drift: DriftSettings = DriftSettings()
    hook: tuple[str, ...] = Field(
        (),
        description="A program with its arguments (not a shell command), called with the outcome of a run in "
        "REDACTORY_EVENT (released, held, failed, approved, rejected).",
    )


# A masked copy (section ``redact``); affects no shard.


DROP, KEEP = "drop", "keep"
ReplacementName = Literal["mask", "label", "number", "pseudonym", "surrogate"]


class Redaction(Settings):
    """Settings of `redactory redact` besides masking the texts that `input.text` names."""

    columns: dict[str, str] = Field(
        {},
        description="What to do with columns: a label (replace the whole value), drop or keep. Replaced and "
        "dropped values are masked in the row's texts too.",
    )
    keep_other_columns: bool = Field(False, description="Keep all columns that are not named.")
    replace: ReplacementName = Field("mask", description="What replaces a span.")
    known_values: bool = Field(
        True, description="Mask a value that was found once in a row, a name with confidence, everywhere in that row."
    )
    language_column: str | None = Field(
        None,
        description="Column with the language of each row (de, pt-BR), to read it in; other values, and languages that "
        "nothing covers, are read as with detect.language: auto.",
    )
    vault: str | None = Field(
        None, description="With replace pseudonym: the encrypted file that redactory unmask restores them from."
    )

    @field_validator("columns")
    @classmethod
    def _check_column_actions(cls, value: dict[str, str]) -> dict[str, str]:
        for name, action in value.items():
            if action not in (DROP, KEEP) and not re.fullmatch("[A-Z][A-Z0-9_]*", action):
                raise ValueError(f"'{shorten_name(name)}' needs a label (capitals, digits and _), {DROP} or {KEEP}")
        return value

    @property
    def masked_columns(self) -> dict[str, str]:
        """The columns that are replaced or dropped."""
        return {name: label for name, label in self.columns.items() if label != KEEP}

    def override(self, other: Redaction) -> Redaction:
        """Return these settings, replaced by what is set in ``other``; ``columns`` are merged."""
        changes = {**other.model_dump(exclude_unset=True), "columns": {**self.columns, **other.columns}}
        return self.model_copy(update=changes)


# A whole run.


SegmentMode = Literal["sentence", "turn", "line", "document"]


class SegmentSettings(Settings):
    """How a document is cut into examples."""

    mode: SegmentMode = Field(
        "sentence",
        description="sentence: whole natural sentences; turn: a dialogue's lines without their speaker; "
        "line; document.",
    )
    speaker: str = Field(
        r"\w{1,20}:[ \t]+", description="mode turn: the speaker's label at the start of a line (a regular expression)."
    )


class PartitionSettings(Settings):
    """The size of a partition; it determines the layout of the output, so it never depends on the machine."""

    documents: int = Field(2_000, ge=1, description="Maximum number of documents in a partition.")
    bytes: ClassVar[int] = 8 << 20
    """A partition is closed once its text exceeds this."""


class ReleaseSettings(Settings):
    """How the split is decided, and checks before a release."""

    unit: Literal["example", "document"] = Field(
        "example",
        description="What the split is decided for: each example, or its whole document, which is private if "
        "one of its examples is private or was not processed.",
    )
    known_values: bool = Field(
        False,
        description="Mask a value that was masked once in a document, a name with confidence, everywhere in that "
        "document. Needs unit: document; the guarantee card of a training says what then holds.",
    )
    max_open_values: int | None = Field(
        None, ge=0, description="verify fails if more public examples than this show a value that was masked elsewhere."
    )
    max_cross_split_duplicates: int | None = Field(
        None, ge=0, description="Nothing is released if more public examples than this nearly duplicate a private one."
    )
    allow_uncovered_kinds: tuple[NameKind, ...] = Field(
        (),
        description="Kinds of names that no policy may look for; EVERYTHING for a strict policy that masks "
        "nothing in a built-in text. A run with any other gap is neither exported, published nor released.",
    )


class RouteSettings(Settings):
    """Whether policies decide an example's split, or how many users wrote its masked text."""

    strategy: Literal["policies", "count", "both"] = Field(
        "policies",
        description="policies: the policies decide; count: a masked text that enough users wrote is public, "
        "whatever the policies say, with a separate epsilon; both: a text that enough users wrote and "
        "no policy finds anything in.",
    )
    epsilon: Annotated[float, Field(gt=0, le=50)] = Field(
        1.0, description="count, both: epsilon of the selection, for one user exchanged."
    )
    delta: Annotated[float, Field(gt=0, lt=0.1)] = Field(1e-6, description="Delta of that epsilon.")
    texts_per_user: Annotated[int, Field(ge=1, le=100_000)] = Field(
        4, description="Maximum distinct texts per user that count; choose it without looking at the corpus."
    )


class EvaluateSettings(Settings):
    """Data for measuring a trained model."""

    test: OneOrMore[AbsolutePath] = Field((), description="Held-out corpus with the input's columns, for perplexity.")
    canaries: AbsolutePath | None = Field(None, description="FILE.canaries.json of a simulated corpus.")
    labelled: AbsolutePath | None = Field(
        None, description="JSONL with the true spans (id, text, spans): measures what the policies miss."
    )
    labelled_secrets: int = Field(
        2_000, ge=1, description="Number of secrets, drawn at random from the file, that recall is measured on."
    )


class Config(Settings):
    """The configuration of a run."""

    input: InputSettings
    output: Path = Field(
        Path("run"),
        description="The run folder; it must not exist, or hold a run to resume. Or a URL (s3://…): the run "
        "is then created in a folder with its name below $REDACTORY_WORK, or beside the configuration, and "
        "published there when it is finished.",
    )
    store: str | None = Field(
        None, description="The URL that the finished run is published to; set by an output that is a URL."
    )
    segment: SegmentSettings = SegmentSettings()
    detect: DetectSettings = DetectSettings()
    dedup: DedupSettings = DedupSettings()
    partition: PartitionSettings = PartitionSettings()
    release: ReleaseSettings = ReleaseSettings()
    route: RouteSettings = RouteSettings()
    train: TrainSettings = TrainSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    nightly: NightlySettings = NightlySettings()
    redact: Redaction = Redaction()
    workers: int = Field(1, ge=1, description="Number of processes for curation; affects speed only.")

    @field_validator("output", mode="before")
    @classmethod
    def _reject_output_url(cls, value: Any) -> Any:
        if is_url(value):
            raise ValueError("a URL means a local folder and a store: use load_config, which separates them")
        return value

    @field_validator("store")
    @classmethod
    def _require_store_url(cls, value: str | None) -> str | None:
        if value is not None and not is_url(value):
            raise ValueError("expected a URL, like s3://bucket/runs/x; an output on this machine is a folder")
        return value

    @model_validator(mode="before")
    @classmethod
    def _expand_bare_input(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("input"), str | list):
            value = {**value, "input": {"path": value["input"]}}
        return value

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        release, dedup, classifies = self.release, self.dedup, self.train.task == "classify"
        has_metadata = bool(self.input.metadata_columns) or self.input.emit_document_order
        uncounted = (
            (release.unit == "document", "release.unit: document decides by a text's neighbours"),
            (has_metadata, "input.metadata_columns and input.emit_document_order publish uncounted values"),
            (dedup.scope == "user", "dedup.scope: user keeps a public text once per user"),
            (dedup.mode != "exact", "dedup.mode: a counted text is public once: use exact"),
            (dedup.private_mode not in (None, "exact", "none"), "dedup.private_mode: use exact or none"),
        )
        counts_only = f"route.strategy {self.route.strategy}: only a text and its count are public; "
        rules = (
            (
                release.known_values and release.unit != "document",
                "release.known_values needs release.unit: document. Otherwise the masks of an example, and so its "
                "split, would depend on the other examples of its document: one exchanged example could move others "
                "into the public shards, and no epsilon could be stated. For files that nothing is trained on, use "
                "'redactory redact'",
            ),
            *((self.route.strategy != "policies" and rule, counts_only + problem) for rule, problem in uncounted),
            (
                self.input.known_value_columns and not release.known_values,
                "input.known_value_columns needs release.known_values (which needs release.unit: document): set it, or "
                "remove the columns",
            ),
            (
                release.max_cross_split_duplicates is not None and not dedup.report_cross_split,
                "release.max_cross_split_duplicates needs dedup.report_cross_split: nothing is counted without it",
            ),
            (
                classifies and self.input.label is None,
                "train.task classify needs input.label, the column with the class of each row",
            ),
            (
                classifies and self.evaluate.canaries is not None,
                "evaluate.canaries needs train.task next-word, not a classifier",
            ),
        )
        for is_broken, problem in rules:
            if is_broken:
                raise ValueError(problem)
        return self

    def select_curation_settings(self) -> dict[str, Any]:
        """Return the settings that determine the shards: no speed, locations or later steps."""
        kept = self.model_dump(mode="json", include={"input", "segment", "detect", "dedup", "partition"})
        kept |= self.select_routing_settings()
        # the journal records the index and its runs
        if kept["dedup"].pop("index") is not None:
            kept["dedup"]["index"] = True
        kept["input"].pop("path")
        return kept

    def select_routing_settings(self) -> dict[str, Any]:
        """Return the settings of ``release`` and ``route`` that affect shards; none if policies decide per example."""
        release = self.release.model_dump(mode="json", include={"unit", "known_values"})
        counted = {} if self.route.strategy == "policies" else {"route": self.route.model_dump(mode="json")}
        return ({"release": release} if self.release.unit == "document" else {}) | counted

    @property
    def known_values_scope(self) -> str | None:
        """The scope in which known values are masked: ``document``, or ``example`` if a document is one example."""
        if not self.release.known_values:
            return None
        return "example" if self.segment.mode == "document" and not self.input.has_multiple_texts else "document"

    def compute_curation_hash(self) -> str:
        """Hex sha256 of :meth:`select_curation_settings`."""
        return json_sha256(self.select_curation_settings())


# The JSON Schemas (draft 2020-12) of Redactory's output, for checks by other programs.


_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCHEMAS, _ENDING = Path(__file__).resolve().parents[2] / "schemas", ".schema.json"


def schemas() -> dict[str, str]:
    """Return the title of every schema by name."""
    return {name: str(schema(name)["title"]) for name in _list_schema_names()}


def schema(name: str) -> dict[str, Any]:
    """Return one JSON Schema; ``ConfigurationError`` with the valid names for an unknown ``name``."""
    if name not in _list_schema_names():
        raise ConfigurationError(
            f"there is no schema '{shorten_name(name)}'; valid names: {', '.join(_list_schema_names())}"
        )
    if name == "configuration":
        return {"$schema": _DIALECT, **Config.model_json_schema(), "title": "A configuration of Redactory"}
    return {"$schema": _DIALECT, **read_json(_SCHEMAS / f"{name}{_ENDING}")}


def _list_schema_names() -> list[str]:
    return sorted(["configuration", *(path.name.removesuffix(_ENDING) for path in _SCHEMAS.glob(f"*{_ENDING}"))])
