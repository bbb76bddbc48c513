"""Postal codes."""

from __future__ import annotations

from redactory.detectors.recognizers.family import DOUBTFUL, FAIR, STRONG, SURE, Family, Form
from redactory.detectors.triggers import trigger

# letters that the inward part of a British code never has
_INWARD = r"\d(?![A-Za-z]?[CIKMOVcikmov])"
_CANADIAN = "ABCEGHJ-NPRSTV-Z"

BY_FORM = Family(
    "POSTAL_CODE",
    "PostalCode",
    {
        "state and ZIP code": Form(
            r"\b[A-Z]{2},?\s+\d{5}(?:-\d{4})?\b", SURE, trigger(5, "99999", r"[A-Z],?\s+\d{5}")
        ),
        "ZIP code and four": Form(r"(?<![\w.-])\d{5}-\d{4}\b(?!-)", FAIR, trigger(9, "99999-9999")),
        "UK": Form(
            rf"\b[A-Z]{{1,2}}\d[A-Z\d]?\s*{_INWARD}[A-Z]{{2}}\b",
            SURE,
            trigger(2, "A9", r"[A-Z]\d[A-Z\d]?\s*\d[A-Z]"),
        ),
        "UK in small letters": Form(
            rf"\b[a-z]{{1,2}}\d[a-z\d]?\s{_INWARD}(?!nd\b|st\b|rd\b|th\b|pm\b|am\b)[a-z]{{2}}\b",
            FAIR,
            trigger(2, "a9", r"[a-z]\d[a-z\d]?\s\d[a-z]"),
        ),
        "Canada": Form(
            rf"\b(?i:[{_CANADIAN}]\d[{_CANADIAN}][ -]?\d[{_CANADIAN}]\d)\b",
            SURE,
            trigger(3, "9A 9A9|9A9A9|9A-9A9|9a 9a9|9a9a9|9a-9a9|9A 9a9|9a 9A9|9A9a9|9a9A9|9A-9a9|9a-9A9"),
        ),
        "Australia": Form(
            r"\b(?:NSW|VIC|QLD|TAS|ACT|WA|SA|NT)\s+\d{4}\b",
            SURE,
            trigger(4, words="nsw vic qld tas act wa sa nt"),
        ),
        "Netherlands": Form(
            r"(?<![\w.,-])(?!19|20)[1-9]\d{3}\s(?!AD|BC|CE|AM|PM|KM|MB|GB|KB|TB|HZ|US|UK|EU|IT|CM|MM|"
            r"FT|SQ|KG|ML|TV|PC)"
            r"[A-Z]{2}\b(?![\s-][A-Z]{2})",
            FAIR,
            trigger(4, "9999", r"\d{4}\s[A-Z]{2}\b"),
        ),
        "Portugal, Brazil": Form(r"(?<![\w.-])\d{4,5}-\d{3}\b(?!-)", FAIR, trigger(7, "9999-999")),
        "two and three digits, town": Form(
            r"(?<![\w.-])\d{2}-\d{3}\b(?!-)(?=\s+\p{Lu}\p{Ll})", FAIR, trigger(5, "99-999")
        ),
        "three and two digits, town": Form(
            r"(?<![\w.,$€£-])\d{3} \d{2}(?=,?\s+\p{Lu}[\p{L}-]{2,}\b)", FAIR, trigger(5, "999 99")
        ),
        "country and code": Form(
            r"\b(?:D|DE|F|FR|A|AT|CH|B|BE|I|E|ES|L|LU|DK|S|SE|N|NO|FI|FIN|PL|CZ|HR|SI)-\d{4,5}\b",
            SURE,
            trigger(4, "A-9999"),
        ),
        "Japan": Form(r"〒\s?\d{3}-?\d{4}", STRONG, trigger(7, "〒")),
        "India": Form(r"(?<=\p{L}\s?-\s?)[1-8]\d{2}\s?\d{3}\b", FAIR, trigger(6, "-", r"-\s?\d{3}\s?\d{3}")),
        # a year before a capital looks the same
        "four digits, town": Form(
            r"(?<![\w.,$€£:/-])(?!19|20)[1-9]\d{3}(?=\s+\p{Lu}[\p{L}-]{2,}\b)",
            DOUBTFUL,
            trigger(4, "9999", r"\d{4}\s+\p{Lu}"),
        ),
    },
    "zip postcode postal postleitzahl plz pincode address city town",
    trigger(2),
)

ANNOUNCED = Family(
    "POSTAL_CODE",
    "AnnouncedPostalCode",
    {
        "after its name": Form(
            r"(?i:\b(?:zip(?:\s*-?\s*codes?)?|zipcodes?|post(?:al)?\s*-?\s*codes?|postcodes?|"
            r"pin\s*code|pincode|plz|"
            r"postleitzahl|code\s+postal|código\s+postal|codice\s+postale|(?-i:CAP|CEP)|eircode)\b)"
            r"(?:\s*(?i:number|is|was|ist|est|es|of|for|to|my|your|in)\b){0,3}\s*[:=#-]?\s*"
            r"\K(?=[A-Za-z]{0,3}\d)[A-Za-z0-9]{2,8}(?:[ -](?=[A-Za-z]{0,2}\d|[A-Z]{2}\b)[A-Za-z0-9]{2,4}\b)?",
            STRONG,
            trigger(
                1,
                words="zip zipcode zipcodes post postal postcode postcodes postalcode postalcodes pin "
                "pincode plz postleitzahl postale cap cep eircode",
            ),
        )
    },
    needs=trigger(1),
)

FAMILIES = (BY_FORM, ANNOUNCED)
