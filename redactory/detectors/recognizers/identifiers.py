"""Codes and numbers that give themselves away by their form."""

from __future__ import annotations

import re

from redactory.detectors.recognizers.family import DOUBTFUL, FAIR, STRONG, SURE, Family, Form, Terms
from redactory.detectors.triggers import trigger
from redactory.detectors.words import words_of

_UNITS = (
    r"percent|per\s?cent|dollars?|euros?|pounds?|usd|eur|gbp|cents?|yen|rupees?|km|kms|kilomet\w{1,6}|"
    r"met(?:er|re)s?|"
    r"miles?|mi|ft|feet|cm|mm|kg|kgs|grams?|lbs?|tons?|tonnes?|people|persons|users|customers|times|"
    r"years?|days?|hours?|"
    r"hrs?|minutes?|mins?|seconds?|secs?|ms|words?|pages?|copies|units?|shares?|votes?|points?|"
    r"calories|kcal|watts?|kw|"
    r"mw|mhz|ghz|hz|rpm|mah|gb|mb|kb|tb|sq\w{0,6}|acres?|hectares?|employees|students|soldiers|troops|"
    r"residents|"
    r"inhabitants"
)
_NO_UNIT = rf"(?!\s?(?i:{_UNITS})\b|\s?%)"
_NO_PRICE = r"(?<![$€£¥₹]\s?|\b(?i:usd|eur|gbp|rs|inr)\.?\s?)"
_NO_MEASURE = (
    r"(?!\d+(?i:st|nd|rd|th|s|x|k|m|bn|km|kms|kg|mg|ml|cm|mm|ft|lbs|gb|mb|kb|tb|mhz|ghz|hz|mah|am|pm|"
    r"hrs?|mins?|px|dpi|"
    r"bit)\b)"
)
_NO_COUNTED = (
    r"(?!\d{1,4}-(?:year|day|month|week|hour|minute|mile|foot|meter|metre|page|point|word|room|bed|"
    r"person|bit|inch|watt|"
    r"seat|man))"
)

_DIGIT_WORDS = Terms(
    "zero oh one two three four five six seven eight nine nought naught null niner double triple"
)
_DIGIT_WORD = (
    r"(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|nought|naught|null|niner|"
    r"(?:double|triple)[ -]\w{1,6})"
)
_JOIN = r"[\s,.;–-]{1,3}"

_DIGIT = re.compile(r"\d")
_GROUPS = re.compile(r"\d+")
_YEARS = re.compile(r"\(?(?:1[5-9]|20)\d{2}\)?(?:\D{1,3}(?:1[5-9]|20)\d{2}\)?)+")
_DECIMALS = re.compile(r"\(?\d{1,4}\.\d+(?:[ ()-]{1,3}\d{1,4}\.\d+)*\)?")
_THOUSANDS = re.compile(r"\d{1,3}(?:([ .])\d{3})(?:\1\d{3})*")


def _no_long_number(value: str) -> bool:
    """Fewer than 7 digits, a range of years, decimals, or an amount in groups of thousands."""
    groups = _GROUPS.findall(value)
    if len(_DIGIT.findall(value)) < 7 or _YEARS.fullmatch(value) or _DECIMALS.fullmatch(value):
        return True
    return _THOUSANDS.fullmatch(value) is not None and (len(groups[0]) < 3 or groups[-1] == "000")


def _is_word(value: str) -> bool:
    return value.casefold() in words_of("en")


NUMBERS = Family(
    "IDENTIFIER",
    "LongNumber",
    {
        "in groups": Form(
            rf"(?<![\w$€£¥₹]|\d[.,:/]){_NO_PRICE}(?>\+?\(?\d+(?:(?:[ ]?[-.()‐–][ ]?|[ ])\(?\d+)+)(?:\s*x\d+)?"
            rf"(?!\w|[:%/]|,\d){_NO_UNIT}",
            FAIR,
        ),
    },
    needs=trigger(7, form=r"\d[-.()‐– ]{1,4}\d"),
    refuses=_no_long_number,
)

CODES = Family(
    "IDENTIFIER",
    "Code",
    {
        "many digits": Form(
            rf"(?<![\w$€£¥₹.]|\d,){_NO_PRICE}\d{{5,}}+(?![\w]|[.,]\d{{1,2}}\b|,\d{{3}}\b){_NO_UNIT}",
            FAIR,
            trigger(5, "99999"),
        ),
        "letters and digits mixed": Form(
            rf"(?<!\w|\d[.,]){_NO_MEASURE}(?=[A-Za-z]*\d)(?=\d*[A-Za-z])(?!\d[a-z]+\b|"
            rf"[A-Z]?[a-z]+\d\b)[A-Za-z0-9]{{6,}}+(?!\w)",
            SURE,
            trigger(1, "a9|A9|9a|9A"),
        ),
        # "2write", "Paper4"
        "a small word and a digit": Form(
            r"(?<!\w|\d[.,])(?:\d[a-z]{5,40}|[A-Z]?[a-z]{4,40}\d)(?!\w)",
            DOUBTFUL,
            trigger(1, "9a|a9"),
        ),
        "groups of letters and digits": Form(
            r"(?<![\w-])(?=[A-Z/-]{0,30}\d)(?=[\d/-]{0,30}[A-Z])(?!COVID-19\b|(?:UTF|ISO|SHA|RFC|MP|HTTP)-\d)"
            r"(?=[A-Z0-9/-]{6})[A-Z0-9]++(?:[-/][A-Z0-9]++)+(?![\w-])",
            FAIR,
            trigger(1, "A-A|A-9|9-A|9-9|A/A|A/9|9/A|9/9"),
        ),
        "groups of small letters and digits": Form(
            rf"(?<![\w-])(?=[a-z-]{0, 40}\d[a-z-]{0, 40}\d[a-z-]{0, 40}\d)(?=[\d-]{0, 40}[a-z]){_NO_COUNTED}"
            r"[a-z\d]{2,}+(?:-[a-z\d]{2,}+)+(?![\w-])",
            DOUBTFUL,
            trigger(3, "a-9|9-a|a-a|9-9"),
        ),
        "letters, then digits": Form(
            r"(?<![\w-])[A-Z]{2,4}-?\d{4,}\b(?![.,]\d)", FAIR, trigger(4, "A9999|A-9999")
        ),
        "UUID": Form(
            r"(?<!\w)(?i:[\da-f]{8}-(?:[\da-f]{4}-){3}[\da-f]{12})(?!\w)",
            STRONG,
            trigger(0, "-", r"\w{8}-\w{4}-"),
        ),
        "coordinates": Form(
            r"(?<![\w.])[-+]?\d{1,3}\.\d{3,12}°?\s?[NS]?\s*[,;/ ]\s*[-+]?\d{1,3}\.\d{3,12}°?\s?[EW]?(?!\w)",
            SURE,
            trigger(8, ".999"),
        ),
        "social security": Form(
            r"(?<![\w-])\d{3}([- ])\d{2}\1\d{4}(?![\w-])", SURE, trigger(9, "999-99-9999|999 99 9999")
        ),
    },
    "number code reference tracking order ticket serial account",
)

PLATES = Family(
    "IDENTIFIER",
    "Plate",
    {
        "plate of Britain": Form(r"\b[A-Z]{2}\d{2}\s?[A-Z]{3}\b", FAIR, trigger(2, "AA99")),
        "plate of Germany": Form(
            r"(?<![\w-])[A-ZÄÖÜ]{1,3}-[A-Z]{1,2}[ -]?\d{1,4}[EH]?\b(?![-\w])", FAIR, trigger(1, "-A")
        ),
        "plate in groups": Form(
            r"(?<![\w-])(?:\d[A-Z]{3}\d{3}|[A-Z]{3}[ -]\d{3,4}|\d{3}[ -][A-Z]{3})\b(?!-)",
            DOUBTFUL,
            trigger(3, "A999|A 999|A-999|999 AAA|999-AAA"),
        ),
    },
    "plate registration vehicle license licence parked car",
    trigger(1),
)

CAPITALS = Family(
    "IDENTIFIER",
    "Capitals",
    {"no word": Form(r"\b(?!\w*?(\w)\1\1)[A-Z]{8,40}+\b", FAIR)},
    needs=trigger(0, "AAAAAAAA"),
    refuses=_is_word,
)

SPELLED = Family(
    "IDENTIFIER",
    "SpelledDigits",
    {
        "digits in words": Form(
            rf"\b(?i:{_DIGIT_WORD}(?:{_JOIN}(?:{_DIGIT_WORD}|o|\d)){{4,40}})\b",
            STRONG,
            _DIGIT_WORDS.needed(0),
        ),
        "digits one by one": Form(
            r"(?<![\w.,-])\d([ .-]|, )\d(?:\1\d){5,30}(?![\w-]|[.,]\d)",
            SURE,
            trigger(7, form=r"\b\d[ ,.-]{1,2}\d[ ,.-]{1,2}\d\b"),
        ),
        "letters one by one": Form(
            r"(?<![\w-])(?=[A-Z -]{0,64}\d)[A-Z\d](?:[ -][A-Z\d]){4,30}(?![\w-])",
            FAIR,
            trigger(1, "A A|A 9|9 A|9 9|A-A|A-9|9-A|9-9", r"\b[A-Z\d][ -][A-Z\d][ -][A-Z\d]\b"),
        ),
    },
)

FAMILIES = (NUMBERS, CODES, PLATES, CAPITALS, SPELLED)
