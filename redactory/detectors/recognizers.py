"""Pattern recognizers that Presidio lacks and everyday corpora need."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer

_STREET = (
    r"(?:Alley|Avenue|Ave|Boulevard|Blvd|Bridge|Causeway|Circle|Circles|Close|Court|Courts|Cove|Crescent|"
    r"Crossing|Drive|Dr|Estate|Estates|Expressway|Extension|Fork|Gardens|Gateway|Glen|Green|Grove|Heights|"
    r"Highway|Hill|Hills|Junction|Knoll|Lake|Landing|Lane|Ln|Loop|Manor|Meadow|Meadows|Mews|Mill|Mills|"
    r"Motorway|Mount|Orchard|Overpass|Park|Parkway|Parkways|Pass|Passage|Path|Pike|Pine|Place|Plain|Plaza|"
    r"Point|Points|Port|Prairie|Ramp|Ranch|Rapids|Rest|Ridge|River|Road|Rd|Roads|Route|Row|Run|Shoal|Shore|"
    r"Shores|Skyway|Springs|Spur|Square|Station|Stravenue|Stream|Street|St|Streets|Summit|Terrace|"
    r"Throughway|Trace|Track|Trafficway|Trail|Tunnel|Turnpike|Underpass|Union|Unions|Valley|Via|Viaduct|"
    r"View|Views|Village|Ville|Vista|Walk|Walks|Wall|Way|Ways|Wells)"
)
_UNIT = r"(?:\s*,?\s*(?:Apt|Apartment|Suite|Ste|Unit|Floor|Room)\.?\s*#?\s*\w+)?"
_CITY = r"(?:\s*,?\s+(?:[A-Z][\w'’.-]*\s*){1,4},\s*[A-Z]{2}\s+\d{5}(?:-\d{4})?)?"
_WORDS = r"(?:[A-Z][\w'’.-]*\s+){1,4}"


def shipped_recognizers(language: str) -> list[EntityRecognizer]:
    """Street addresses, postal codes, and identifiers such as order and tracking numbers."""
    from presidio_analyzer import Pattern, PatternRecognizer

    def recognizer(
        label: str, patterns: dict[str, tuple[str, float]], context: list[str]
    ) -> EntityRecognizer:
        return PatternRecognizer(
            supported_entity=label,
            name=f"Redactory{label.title().replace('_', '')}",
            supported_language=language,
            patterns=[Pattern(name, expression, score) for name, (expression, score) in patterns.items()],
            context=context,
            # letters' case is what tells an address from prose, so no IGNORECASE as Presidio has it
            global_regex_flags=0,
        )

    return [
        recognizer(
            "STREET_ADDRESS",
            {
                "number, street, unit, city": (
                    rf"\b\d{{1,6}}\s+{_WORDS}{_STREET}\b\.?{_UNIT}{_CITY}",
                    0.6,
                ),
                "to the state and ZIP code": (
                    rf"\b\d{{1,6}}\s+{_WORDS}(?:(?:Apt|Suite)\.?\s*\d+\s*,?\s*)?(?:[A-Z][\w'’.-]*\s*){{0,4}},"
                    r"\s*[A-Z]{2}\s+\d{5}(?:-\d{4})?\b",
                    0.7,
                ),
                "military": (
                    r"\b(?:PSC\s+\d+,?\s+Box\s+\d+|Unit\s+\d+\s+Box\s+\d+|US[A-Z]{2}\s+[A-Z]\w+)"
                    r"\s*,?\s*(?:(?:APO|FPO|DPO)\s+(?:AA|AE|AP)\s+\d{5})",
                    0.7,
                ),
            },
            ["address", "street", "live", "lives", "ship", "shipping", "deliver", "delivery"],
        ),
        recognizer(
            "POSTAL_CODE",
            {
                "state and ZIP code": (r"\b[A-Z]{2}\s+\d{5}(?:-\d{4})?\b", 0.5),
                "UK": (r"\b[A-Z]{1,2}\d[A-Z\d]?\s*\d[A-Z]{2}\b", 0.4),
            },
            ["zip", "postcode", "postal"],
        ),
        recognizer(
            "IDENTIFIER",
            {
                "letters and digits mixed": (r"\b(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{6,}\b", 0.5),
                "capitals": (r"\b[A-Z]{8,}\b", 0.35),
                "groups of letters and digits": (r"\b(?=\S*\d)[A-Z0-9]{2,}(?:[-/][A-Z0-9]{2,})+\b", 0.4),
                "many digits": (r"\b\d{5,}\b", 0.4),
                "long number": (r"(?<![\w.])\+?\(?\d[\d\s().-]{5,}\d(?:\s*x\d+)?(?![\w])", 0.4),
            },
            ["order", "tracking", "number", "account", "id", "reference", "ticket", "case", "confirmation"],
        ),
    ]
