"""Settings of detection, and the record of a policy fit (its labels and resulting bound).

Thresholds fitted on labels are a function of those labels (``docs/guarantees.md``, "Side channels", item 2), so what a
policy misses is never measured on the rows that it was fitted on.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, JsonValue, PositiveInt, field_validator, model_validator

from redactory.foundation.errors import ConfigurationError, join_words, shorten_name
from redactory.foundation.files import write_json
from redactory.foundation.keys import DigestKey
from redactory.foundation.settings import FileSettings, Settings

_FORMAT = "redactory-fitted-rows/1"
_PURPOSE = "fitted-rows"
_KEY = "detect.conservative.fitted"
_Share = Annotated[float, Field(gt=0, lt=1)]
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class PolicyFit(FileSettings):
    """How ``redactory fit policy`` chose the thresholds; a configuration gives the path of its file."""

    rows: PositiveInt = Field(description="Labelled rows.")
    secrets: PositiveInt = Field(description="Number of labelled secrets that were tested, one per unit.")
    unit: Literal["user", "row"] = Field(description="The unit that one secret each was drawn from.")
    misses: int = Field(ge=0, description="How many of those both policies missed.")
    miss_rate: _Share = Field(description="Upper bound on the share of secrets that both policies miss.")
    confidence: _Share = Field(description="Confidence of that bound, for secrets drawn like these.")
    segment: str = Field(description="How the rows were split into examples.")
    policies: dict[str, _Sha256] = Field(
        description="Hashes of the strict and the conservative policy that the bound holds for."
    )
    date: datetime.date = Field(description="When.")
    rows_file: str = Field(description="The file with keyed digests of the rows, which are excluded from measurements.")
    rows_sha256: _Sha256 = Field(description="The sha256 of that file.")

    @model_validator(mode="before")
    @classmethod
    def _load_file(cls, value: Any) -> Any:
        if not isinstance(value, str | Path):
            return value
        path = Path(value).absolute()
        try:
            data = path.read_bytes()
            record = json.loads(data)["fit"]
        except OSError as error:
            raise ValueError(f"its file cannot be read: {error.strerror}") from None
        except (ValueError, LookupError, TypeError):
            raise ValueError("its file was not written by redactory fit policy") from None
        return {**record, "rows_file": str(path), "rows_sha256": hashlib.sha256(data).hexdigest()}


def write_fit_record(path: Path, record: Mapping[str, Any], texts: Iterable[str], key: DigestKey) -> PolicyFit:
    """Write the ``record`` of a fit and the keyed digests of its ``texts`` to ``path``, mode 0600."""
    digests = sorted({_digest_text(text, key, key.derive_subkey(_PURPOSE)) for text in texts})
    write_json(path, {"format": _FORMAT, "key": key.fingerprint, "fit": record, "digests": digests})
    return PolicyFit.model_validate(path)


def flag_fitted_texts(texts: Iterable[str], fit: PolicyFit, key: DigestKey) -> list[bool]:
    """Return for each of ``texts`` (rows or examples) whether the policy was fitted on it.

    ``ConfigurationError`` if that cannot be known: the file is missing, changed, or of another key.
    """
    digests = _read_row_digests(Path(fit.rows_file), fit.rows_sha256, key.fingerprint)
    return [_digest_text(text, key, key.derive_subkey(_PURPOSE)) in digests for text in texts]


def require_unfitted_rows(texts: Iterable[str], fit: PolicyFit | None, key: DigestKey) -> None:
    """Raise ``ConfigurationError`` if any of ``texts`` was fitted on, or if that cannot be known.

    Call it before measuring γ or δ₂ on labelled ``texts``; ``fit`` is None for a policy without a fit.
    """
    if fit is None:
        return
    flags = flag_fitted_texts(texts, fit, key)
    if any(flags):
        raise ConfigurationError(
            f"{_KEY}: {sum(flags):,} of these {len(flags):,} texts are among the {fit.rows:,} rows that "
            "the policy was fitted on, so the measured misses do not carry over to other text. Measure on "
            "other labelled rows, or fit again without these"
        )


def describe_fit_side_channel(policies: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return what a card must state about a fitted policy; ``policies`` is that entry of a manifest.

    None if the conservative policy was not fitted (``docs/guarantees.md``, "Side channels", item 2).
    """
    fit = policies["conservative"].get("fitted")
    if fit is None:
        return None
    sentence = (
        f"The conservative policy's thresholds were fitted on {fit['date']}, to labels of "
        f"{fit['secrets']:,} secrets in {fit['rows']:,} rows. If these rows belong to the training "
        "corpus, their labels are a side channel that no epsilon covers, and no confidentiality is claimed "
        "for that corpus."
    )
    if {name: policy["hash"] for name, policy in policies.items()} != fit["policies"]:
        sentence += " The policies or their engines have changed since the fit, so its bound does not hold for them."
    return sentence


@functools.lru_cache(maxsize=2)
def _read_row_digests(path: Path, sha256: str, fingerprint: str) -> frozenset[str]:
    advice = "so it is unknown which rows were fitted on; restore the file, or fit again"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{_KEY}: {path.name}: {error.strerror}: {advice}") from None
    value = json.loads(data) if hashlib.sha256(data).hexdigest() == sha256 else {}
    if value.get("format") != _FORMAT:
        raise ConfigurationError(f"{_KEY}: {path.name} changed since redactory fit policy wrote it: {advice}")
    if value["key"] != fingerprint:
        raise ConfigurationError(
            f"{_KEY}: {path.name} was written with another key, so it is unknown which rows were fitted on; "
            "set the REDACTORY_KEY of the fit, or fit again with a permanent one"
        )
    return frozenset(value["digests"])


def _digest_text(text: str, key: DigestKey, purpose: bytes) -> str:
    # surrounding white space is not part of a labelled text
    return key.compute_text_digest(purpose, text.strip().encode("utf-8", "surrogatepass")).hex()


AUTO = "auto"
"""Value of ``detect.language``: detect the language of each text."""

RuleName = Literal["digit", "symbol", "capital", "name", "word"]

_MIN_SCORES = {
    "DATE_TIME": 0.5,
    # a host without a scheme: "os.system"
    "URL": 0.55,
    # without a context word fewer than half are licences: "float64"
    "US_DRIVER_LICENSE": 0.6,
}
DEFAULT_LABELS: dict[str, float] = {
    label: _MIN_SCORES.get(label, 0.3)
    for label in (
        # spaCy's OntoNotes labels; the score of a span is the mean of 1 - P(non-entity) over its tokens
        *("PERSON", "NORP", "FAC", "ORG", "GPE", "LOC", "DATE"),
        # labels of Stanza's and other CoNLL-like models, and of our own taggers
        *("PER", "ORGANIZATION", "LOCATION", "NRP", "TITLE", "AGE", "ACCOUNT"),
        # Presidio's labels; the score is the pattern's, raised by checksums and context words
        *("CREDIT_CARD", "CRYPTO", "DATE_TIME", "EMAIL_ADDRESS", "IBAN_CODE", "IP_ADDRESS", "MAC_ADDRESS"),
        *("MEDICAL_LICENSE", "PHONE_NUMBER", "UK_NHS", "URL", "US_BANK_NUMBER", "US_DRIVER_LICENSE"),
        *("US_ITIN", "US_PASSPORT", "US_SSN", "UUID"),
        *("API_KEY", "IDENTIFIER", "STREET_ADDRESS", "POSTAL_CODE"),
    )
}

SUSPECTED_LABELS = frozenset(
    {
        *("CARDINAL", "ORDINAL", "QUANTITY", "MONEY", "PERCENT", "TIME"),
        *("EVENT", "WORK_OF_ART", "LAW", "LANGUAGE", "PRODUCT", "MISC"),
    }
)
"""Other labels of entity models, masked only if listed in ``strict.labels``."""

LABEL_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("PER", "PERSON"), "PERSON"),
    **dict.fromkeys(("LOC", "GPE", "FAC", "LOCATION"), "LOCATION"),
    **dict.fromkeys(("ORG", "ORGANIZATION"), "ORGANIZATION"),
    **dict.fromkeys(("DATE", "DATE_TIME"), "DATE"),
    "NORP": "NRP",
    # labels of OpenAI's Privacy Filter; its secret is a password or a key, for which we have two kinds
    "private_person": "PERSON",
    "private_address": "STREET_ADDRESS",
    "private_email": "EMAIL_ADDRESS",
    "private_phone": "PHONE_NUMBER",
    "private_url": "URL",
    "private_date": "DATE",
    "account_number": "ACCOUNT",
}
"""Labels of several engines for the same kind."""


def get_kind(label: str) -> str:
    """Return the kind of a label, common to all engines."""
    return LABEL_KINDS.get(label, label)


def get_kinds(labels: Iterable[str]) -> frozenset[str]:
    """The kinds that labels stand for."""
    return frozenset(map(get_kind, labels))


def get_public_labels(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the public labels of a manifest; none for an earlier version's."""
    section = manifest["configuration"].get("detect", {}) if "configuration" in manifest else manifest
    return tuple(section.get("public_labels", ()))


def format_public_label_note(labels: Iterable[str]) -> str | None:
    """Return the note on public labels for recipients (``docs/guarantees.md``, "Not covered"); None without."""
    labels = tuple(labels)
    if not labels:
        return None
    return (
        f"Public by configuration (detect.public_labels): what is confidently {join_words(labels, 'or')} does "
        "not count as a secret. It is public as written, and no guarantee and no bound on misses covers it."
    )


KNOWN_LABELS = SUSPECTED_LABELS | DEFAULT_LABELS.keys()
"""Labels that policies know; a model's other labels are masked because the configuration names the model."""

DEFAULT_PRESIDIO_RECOGNIZERS: tuple[str, ...] = tuple(
    f"{name}Recognizer"
    for name in (
        *("CreditCard", "Crypto", "Date", "Email", "Iban", "Ip", "MacAddress", "MedicalLicense", "Nhs"),
        *("Phone", "Url", "UsBank", "UsItin", "UsLicense", "UsPassport", "UsSsn", "Uuid"),
    )
)


class TaggerSettings(Settings):
    """Token taggers made by ``redactory fit tagger``."""

    models: tuple[str, ...] = Field(
        ("default",), description="Folders written by redactory fit tagger; default means the shipped tagger."
    )


class FitSettings(Settings):
    """How to build and train a tagger."""

    epochs: int = Field(10, ge=1, description="Number of passes over the rows.")
    learning_rate: float = Field(2e-3, gt=0, description="Maximum learning rate; rises, then decays to zero.")
    weight_decay: float = Field(0.01, ge=0, description="How strongly the weights are pulled to those of ``start``.")
    held_out: float = Field(0.1, gt=0, lt=1, description="Share of the rows kept for calibration.")
    start: str | None = Field(
        "default", description="The tagger whose head fitting starts from; default: the built-in one; null: zeros."
    )
    seed: int = Field(0, description="The same seed, rows and versions give the same tagger.")


PartOfSpeech = Literal[
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM",
    "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X",
]  # fmt: skip
"""Parts of speech of Universal Dependencies."""


class SpacySettings(Settings):
    """A spaCy pipeline's entity recognizer."""

    model: str = Field(
        description="spaCy pipeline for entities: an installed package's name, a folder, or blank:LANGUAGE."
    )
    parts_of_speech: tuple[PartOfSpeech, ...] = Field(
        (), description="Parts of speech whose words all become spans, labelled with the part of speech."
    )


class CustomRecognizer(Settings):
    """A pattern recognizer in Presidio's terms."""

    name: str = Field(description="Name of the recognizer.")
    label: str = Field(
        description="Label of its spans: capitals, digits and _. They are masked at any score, unless "
        "strict.labels sets another bound."
    )
    patterns: dict[str, float] = Field({}, description="Regular expressions, each with its score.")
    context: tuple[str, ...] = Field((), description="Words nearby that raise the score.")
    require_context: bool = Field(False, description="Find nothing without one of these words nearby.")

    @model_validator(mode="after")
    def _check_context(self) -> Self:
        if self.require_context and not any(word.strip() for word in self.context):
            raise ValueError("require_context needs words in context")
        return self

    @field_validator("label")
    @classmethod
    def _check_label(cls, value: str) -> str:
        if not re.fullmatch("[A-Z][A-Z0-9_]*", value):
            raise ValueError(
                f"'{shorten_name(value)}' is not a label: use capitals, digits and _, like CUSTOMER_NUMBER"
            )
        return value


class PatternSettings(Settings):
    """Presidio's pattern recognizers, with checksums and context words."""

    recognizers: tuple[str, ...] = Field(
        DEFAULT_PRESIDIO_RECOGNIZERS,
        description="Presidio's recognizers, by class name. Labels of non-default ones are masked like those "
        "of custom ones.",
    )
    custom: tuple[CustomRecognizer, ...] = Field((), description="Custom recognizers.")
    files: tuple[str, ...] = Field((), description="YAML files of recognizers in Presidio's format, used unchanged.")


class PresidioSettings(Settings):
    """Presidio's own analyzer, configured by a file."""

    configuration: str = Field(
        description="Presidio's YAML file of an analyzer, with nlp_configuration; nothing is downloaded."
    )
    languages: tuple[str, ...] = Field(
        (), description="Languages of that file that each text is analysed in; default: detect.language."
    )


class StanzaSettings(Settings):
    """A Stanza entity recognizer from a local folder; needs the extra ``stanza``."""

    folder: str = Field(description="Folder with Stanza's resources.json; nothing is downloaded.")
    package: str | None = Field(None, description="Name of the ner package; default: the folder's only one.")


class TransformersSettings(Settings):
    """A Hugging Face token classifier from a local folder; needs the extra ``train``."""

    folder: str = Field(description="Folder with the model and its fast tokenizer; nothing is downloaded.")
    device: str = Field("cpu", description="Device of the model, as in torch.")


class TermList(Settings):
    """Terms, given here or in a file with one per line."""

    words: tuple[str, ...] = Field((), description="The terms; re:EXPRESSION is a regular expression.")
    file: str | None = Field(
        None, description='A file of terms: one per line, or .jsonl with "text" and optionally "label".'
    )


class WordList(TermList):
    """Terms that become spans with a label."""

    label: str = Field(
        "LISTED",
        description="Label of the spans: capital letters, digits and _; a .jsonl file may give each term a "
        "different one.",
    )


class ListSettings(Settings):
    """Deny and allow lists; matching ignores case, white space and accents."""

    deny: tuple[WordList, ...] = Field(
        (), description="Terms that are always masked, with score 1: a client's sensitive entities."
    )
    allow: tuple[TermList, ...] = Field(
        (), description="Public terms: a span of another engine, or of a rule, inside one is ignored."
    )


class StrictSettings(Settings):
    """Strict policy (π): which spans are masked."""

    labels: dict[str, float] = Field(
        DEFAULT_LABELS,
        description="Labels that are masked, each with its minimum score. Labels that only a configured "
        "model or recognizer has are masked at any score.",
    )
    engines: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        {"tagger": 0.4},
        description="Engines whose spans must also reach a minimum score of the engine; for the tagger it is a "
        "probability. A missed name costs more than a needless mask, so the default is below one half.",
    )
    extra_labels: dict[str, float] = Field(
        {}, description="Labels to mask in addition to labels, or other scores for some of them."
    )

    @field_validator("labels", "extra_labels")
    @classmethod
    def _check_scores(cls, labels: dict[str, float]) -> dict[str, float]:
        if wrong := {shorten_name(label): score for label, score in labels.items() if not 0 <= score <= 1}:
            problems = join_words(f"{label} has {score:g}" for label, score in wrong.items())
            raise ValueError(
                f"a bound is a score from 0 to 1, but {problems}; give such a score, or remove a label that "
                "should not be masked from strict.labels"
            )
        return labels


class ConservativeSettings(Settings):
    """Conservative policy (π_c): which examples are private, whatever π masks."""

    min_non_entity_probability: float = Field(
        0.85,
        ge=0,
        le=1,
        description="A token whose probability of being a non-entity is below this makes its example private.",
    )
    rules: tuple[RuleName, ...] | None = Field(
        None,
        description="Rules that make an example private: a digit; an @ or a URL character; a capital not at "
        "the start of a sentence; a word in the list of given names; a word not in the word list. Default: "
        "none; without the built-in tagger, all of them.",
    )
    fitted: PolicyFit | None = Field(None, description="The file that redactory fit policy wrote beside these numbers.")
    flags_everything: bool = Field(
        False, description="Make every example private: no public split, and a coverage failure of exactly 0."
    )


class DetectSettings(Settings):
    """Engines, one section each (null switches one off), and the two policies."""

    def list_file_keys(self) -> list[str]:
        """List the keys that name a local file or folder that engines read."""
        lists = self.lists or ListSettings()
        named = {
            "tagger.models": self.tagger is not None and self.tagger.models != TaggerSettings().models,
            "spacy.model": self.spacy is not None and ("/" in self.spacy.model or os.path.exists(self.spacy.model)),
            "patterns.files": self.patterns is not None and self.patterns.files,
            "presidio.configuration": self.presidio,
            "stanza.folder": self.stanza,
            "transformers.folder": self.transformers,
            "lists.file": any(terms.file is not None for terms in (*lists.deny, *lists.allow)),
            "engines": self.engines,
        }
        return [f"detect.{key}" for key, names in named.items() if names]

    @property
    def has_builtin_tagger(self) -> bool:
        """Whether the tagger of the package is among those that read every text."""
        return self.tagger is not None and "default" in self.tagger.models

    language: str = Field(
        "en",
        description="Language code for every engine; auto: detect it for each text; a text whose names "
        "nothing finds is private.",
    )
    tagger: TaggerSettings | None = Field(TaggerSettings(), description="The built-in token taggers.")
    spacy: SpacySettings | None = Field(None, description="A spaCy pipeline.")
    patterns: PatternSettings | None = Field(PatternSettings(), description="Pattern recognizers.")
    presidio: PresidioSettings | None = Field(None, description="Presidio's analyzer.")
    stanza: StanzaSettings | None = Field(None, description="A Stanza model.")
    transformers: TransformersSettings | None = Field(None, description="A Hugging Face model.")
    lists: ListSettings | None = Field(None, description="Deny and allow lists.")
    engines: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_-]*$")], dict[str, JsonValue]] = Field(
        {}, description="Engines of other packages, by installed name, each with its options."
    )
    batch_size: ClassVar[int] = 64
    """Texts per model pass; affects speed only."""
    max_chars: int = Field(
        1_000_000,
        ge=1,
        description="An example longer than this (code points) is quarantined as too_long; the default "
        "equals input.max_chars, so that none is.",
    )
    profile: Literal["text", "code"] = Field(
        "text",
        description="code: in lines that look like code or a log, find only secrets of code, addresses and "
        "the people in headers and notices.",
    )
    public_labels: tuple[str, ...] = Field(
        (),
        description="Labels that may be public: what an engine finds with them at the score that strict "
        "requires is neither masked nor a reason to be private, and no rule applies inside it.",
    )
    sensitivity: float = Field(
        0.5,
        ge=0.1,
        le=0.75,
        description="How much the strict policy masks: it multiplies every minimum score by 2 (1 - sensitivity). "
        "At 0.5 the tagger masks from a probability of 0.4 on, at 0.75 from 0.2, at 0.25 from 0.6.",
    )
    strict: StrictSettings = StrictSettings()
    conservative: ConservativeSettings = ConservativeSettings()

    @field_validator("engines")
    @classmethod
    def _reject_reserved_names(cls, engines: dict[str, Any]) -> dict[str, Any]:
        # spans carry their engine's name, and those of lists and rules take precedence
        if reserved := sorted(engines.keys() & {*cls.model_fields, "list", "rule"}):
            raise ValueError(f"'{reserved[0]}' is a built-in engine; an engine of a package needs another name")
        return engines
