"""Accounts, cards and secret codes, told by the words before them or by their form."""

from __future__ import annotations

import re

from redactory.detectors.recognizers.family import DOUBTFUL, FAIR, STRONG, SURE, Family, Form, Terms
from redactory.detectors.rules import words_of
from redactory.detectors.triggers import Trigger, trigger

LINK = (
    r"(?:\s*(?:(?i:numbers?|num|no|nr|nos|code|id|ids|is|was|are|ends?|ending|in|with|of|for|as|the|"
    r"my|your|his|her|its|"
    r"it['’]s|which|that|following|below|called|ref|reference|card)\b\.?|[:=#№º°*\"'“‘(\[<,-])){0,8}\s*"
)
"""What may stand between a name and its number: "number is :", "no.", "#", "ending in", brackets, quotes."""

END = r"(?![\w%]|[.,:]\d)"
CODE = rf"(?=[\p{{L}}-]{{0,12}}\d)[\p{{L}}\d]{{1,24}}(?:[-/.][\p{{L}}\d]{{1,24}}){{0,6}}(?!['’]\p{{L}}){END}"
"""One word with a digit in it, maybe in groups."""
DIGITS = rf"\d(?:[ .-]?\d){{2,23}}{END}"
NUMBER = r"(?:(?i:number|num|no|nr|code|id)\b\.?|#|№)"

_YEARS = re.compile(r"(?:(?:19|20)\d{2}[ -]?){2,}")

_ACCOUNT = Terms("account acct acc konto kontonummer cuenta compte conto checking savings")
_CODES = Terms("routing aba sort_code sortcode bsb blz bic swift ifsc iban micr clabe transit")
_CARD = Terms("card visa mastercard amex maestro debit credit cc")
_SECRET = Terms(
    """
    pin cvv cvv2 cvc cvc2 csc passcode otp tan one-time_code one-time_password one-time_pin
    verification_code security_code access_code login_code door_code gate_code unlock_code entry_code
    """
)
_PASSWORD = Terms("password passwort passphrase pwd passwd")

ACCOUNTS = Family(
    "ACCOUNT",
    "Account",
    {
        "bank account": Form(rf"\b{_ACCOUNT}\b\.?{LINK}\K{DIGITS}", SURE, _ACCOUNT.needed(3)),
        "account with letters": Form(
            rf"\b(?i:account|acct)\b\.?\s*{NUMBER}{LINK}\K{CODE}", SURE, _ACCOUNT.needed()
        ),
        "bank codes": Form(
            rf"\b{_CODES}\b{LINK}\K(?:{DIGITS}|{CODE}|[A-Z]{{6}}[A-Z\d]{{2}}(?:[A-Z\d]{{3}})?\b)",
            SURE,
            _CODES.needed(0),
        ),
        "IBAN": Form(
            r"\b(?=(?:[A-Za-z -]{0,6}\d){6})"
            r"(?i:[A-Z]{2}\d{2}[ -]?[A-Z\d]{4}(?:[ -]?(?=[A-Z\d]{0,3}\d)[A-Z\d]{4}){1,6}"
            r"(?:[ -]?\d[A-Z\d]{0,3})?)\b",
            STRONG,
            trigger(6, "AA99|Aa99|aa99|aA99"),
        ),
        "card": Form(rf"\b{_CARD}\b{LINK}\K\d(?:[ .-]?\d){{7,18}}(?!\w)", SURE, _CARD.needed(8)),
        "card number in groups": Form(
            r"(?<![\w.-])(?:\d{4}[ -]){3}\d{1,7}(?![\w-])", SURE, trigger(13, "9999 9999|9999-9999")
        ),
        "card number in groups of American Express": Form(
            r"(?<![\w.-])3\d{3}[ -]\d{6}[ -]\d{5}(?![\w-])", SURE, trigger(15, "999999")
        ),
        "last digits": Form(
            r"\b(?i:ending|ends|finishing|last\s+(?:four|4|three|3|five|5|six|6)(?:\s+(?:digits|numbers))?)\b"
            r"(?:\s*(?i:in|with|of|are|is|on|my|the|card|account)\b|"
            r"\s*:){0,5}\s*[:#*]*\s*\K\d{3,6}\b(?![.,:]\d|%)",
            SURE,
            trigger(3, words="ending ends finishing last"),
        ),
        "hidden digits": Form(
            r"(?<!\w)(?:(?:[xX*•]{4}[ -]?){1,4}|[xX*•]{2,12})\d{2,6}\b",
            SURE,
            trigger(2, "aa|aA|Aa|AA|**|••|*•|•*|a*|*a|A*|*A|a•|•a|A•|•A", r"[xX*•]{2}[ -]?\d"),
        ),
        "secret code": Form(rf"\b{_SECRET}\b{LINK}\K\d{{3,10}}\b(?![.,:]\d|%)", SURE, _SECRET.needed(3)),
        "password": Form(
            rf"\b{_PASSWORD}\b(?:\s*(?i:is|was|to)\b|\s*[:=]){{1,3}}\s*[\"'“‘]?"
            r"\K(?=\S{0,30}[\d!@#$%^&*_])\S{4,40}(?<![\"'”’.,;:!?)])",
            SURE,
            _PASSWORD.needed(0),
        ),
    },
    "account bank card",
    refuses=lambda value: _YEARS.fullmatch(value) is not None,
)


# Numbers of documents, orders, bookings and plates, told by the words before them.


_PAPERS = Terms("passport license licence licenses licences permit visa dl green_card identity_card id_card")
_REGISTERS = Terms(
    "passport license licence permit social_security ssn itin ein vat_number tax_number nino nhs medicare"
)
_NUMBERED = Terms(
    """
    order tracking parcel package shipment invoice receipt ticket case claim policy contract customer
    client member membership patient student employee staff badge serial model part item product
    transaction payment reference ref booking reservation confirmation registration record file docket
    loyalty flyer flight train mrn chart insurance group subscriber vehicle vin device imei meid iccid sim
    asset po rma user session request job lot batch delivery consignment waybill awb
    """
)
_KNOWN = Terms(
    """
    order tracking parcel invoice receipt ticket case claim policy contract patient student employee badge
    serial transaction reference ref booking reservation confirmation registration docket mrn vin imei awb
    rma id
    """
)
_BOOKED = Terms(
    """
    booking reservation confirmation reference ref pnr locator tracking order ticket voucher coupon promo
    gift_card activation licence_key license_key product_key serial
    """
)
_LOCATORS = Terms("pnr locator")
_BOOKED_SMALL = Terms("booking reservation confirmation reference ref pnr")
_PLATES = Terms(
    """
    number_plate number_plates license_plate license_plates licence_plate licence_plates
    registration_plate plate plates plated registration reg tag
    """
)

DOCUMENTS = Family(
    "IDENTIFIER",
    "AnnouncedIdentifier",
    {
        "document": Form(rf"\b{_PAPERS}\b{LINK}\K(?:[A-Z]{{2,6}} )?{CODE}", SURE, _PAPERS.needed()),
        "document in groups": Form(rf"\b{_REGISTERS}\b{LINK}\K{DIGITS}", SURE, _REGISTERS.needed(3)),
        "number of something": Form(
            rf"\b{_NUMBERED}\b\s*{NUMBER}{LINK}\K(?:[A-Z]{{2,6}} )?(?=[\p{{L}}\d/-]{{3}}){CODE}",
            SURE,
            _NUMBERED.needed(),
        ),
        "something and its number": Form(
            rf"\b{_KNOWN}\b(?:\s*(?i:is|was|for|code|it['’]s)\b|\s*[:=#№(]){{0,4}}\s*"
            rf"\K(?=[\p{{L}}-]{{0,6}}\d)(?=\S*\d\S*\d\S*\d)[\p{{L}}\d][\p{{L}}\d/-]{{3,30}}{END}",
            SURE,
            _KNOWN.needed(3),
        ),
        "booking reference": Form(
            rf"\b{_BOOKED}\b{LINK}\K(?=[A-Z]{{0,15}}\d)[A-Z\d]{{5,16}}(?:-[A-Z\d]{{3,8}}){{0,5}}\b(?![.,]\d)",
            SURE,
            _BOOKED.needed(),
        ),
        "locator": Form(rf"\b{_LOCATORS}\b{LINK}\K[A-Z\d]{{5,8}}\b", SURE, _LOCATORS.needed(0)),
        # in a text all in capitals any word would do
        "booking reference of letters": Form(
            rf"\b(?!\p{{Lu}}{{2}}){_BOOKED}\b{LINK}(?<=(?:\b(?:number|code|no|id|is|was)\b|"
            rf"[:#№(\"'“‘])\W{{0,3}})"
            r"\K[A-Z]{5,16}(?:-[A-Z\d]{3,8}){0,5}\b",
            SURE,
            Trigger(words=_BOOKED.words, shapes=("AAAAA",)),
        ),
        "reference in small letters": Form(
            rf"\b{_BOOKED_SMALL}\b{LINK}\K(?=[a-z]{{0,9}}\d)[a-z\d]{{5,10}}\b(?![.,:]\d)",
            SURE,
            _BOOKED_SMALL.needed(),
        ),
        "plate": Form(
            rf"\b{_PLATES}\b{LINK}\K(?=[A-Z\d -]{{0,8}}\d)[A-Z\d]{{1,4}}(?:[ -]?[A-Z\d]{{1,5}}){{0,2}}\b"
            r"(?![.,:]\d)",
            SURE,
            _PLATES.needed(),
        ),
    },
)


# Codes and numbers that give themselves away by their form.


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
_YEARS_ONLY = re.compile(r"\(?(?:1[5-9]|20)\d{2}\)?(?:\D{1,3}(?:1[5-9]|20)\d{2}\)?)+")
_DECIMALS = re.compile(r"\(?\d{1,4}\.\d+(?:[ ()-]{1,3}\d{1,4}\.\d+)*\)?")
_THOUSANDS = re.compile(r"\d{1,3}(?:([ .])\d{3})(?:\1\d{3})*")


def _no_long_number(value: str) -> bool:
    """Fewer than 7 digits, a range of years, decimals, or an amount in groups of thousands."""
    groups = _GROUPS.findall(value)
    if len(_DIGIT.findall(value)) < 7 or _YEARS_ONLY.fullmatch(value) or _DECIMALS.fullmatch(value):
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


# Keys and tokens of programs: each opens a service to whoever reads it.


# as their issuers document them: Stripe, OpenAI, Anthropic, GitHub, GitLab, Hugging Face, npm, PyPI, Slack,
# DigitalOcean, Shopify, SendGrid, Google
_BEGINNING = (
    r"(?:(?:[prs]k_(?:live|test)|gh[oprsu]|github_pat|hf|npm|dop_v1|shpat|whsec)_|"
    r"(?:sk|pypi|glpat|xapp|xox[abeoprs])-|SG\.|AIza)"
)
_SIGN = r"[\w+/.=~-]"
_NAMES = Terms("key keys token secret bearer apikey")
_NAME = (
    r"(?i:(?:api|access|secret|auth|private|client|service|signing)[ _-]?(?:keys?|token|secret)|"
    r"bearer|token|secret|apikey)"
)
_CAPITAL, _SMALL, _DIGITS = (
    rf"(?=[\w-]{{0,200}}{kind})" for kind in (r"[A-Z]", r"[a-z]", r"\d[\w-]{0,200}\d")
)

KEYS = Family(
    "API_KEY",
    "SecretKey",
    {
        "a known beginning": Form(
            rf"(?<![\w-]){_BEGINNING}(?=[\w.-]{{0,250}}\d)[\w-]{{12,250}}(?:\.[\w-]{{8,250}})?",
            STRONG,
            trigger(1, form=_BEGINNING),
        ),
        "JSON web token": Form(
            r"(?<![\w-])eyJ[\w-]{8,4000}\.[\w-]{8,4000}(?:\.[\w-]{0,4000})?", STRONG, trigger(0, form="eyJ")
        ),
        "private key": Form(
            r"-----BEGIN (?:[A-Z]{2,20} ){0,3}PRIVATE KEY-----[A-Za-z0-9+/=\s]{0,9000}"
            r"(?:-----END (?:[A-Z]{2,20} ){0,3}PRIVATE KEY-----)?",
            STRONG,
            trigger(0, "-----AAAAA", words="private"),
        ),
        # a line of a key whose first line stands in another data point
        "a line of Base64": Form(
            r"(?<![\w+/=-])(?=[^\d]{0,200}\d)(?=[^A-Z]{0,200}[A-Z])(?=[^a-z]{0,200}[a-z])"
            r"[A-Za-z0-9+/]{56,400}={0,2}(?![\w+/=-])",
            FAIR,
            trigger(1),
        ),
        "told by a word": Form(
            rf"(?<![\p{{L}}\d]){_NAME}\b(?:\s*(?i:is|was)\b|\s*[:=]|\s){{1,3}}\s*[\"'“‘`<]{{0,2}}"
            rf"\K(?={_SIGN}{{0,250}}\d){_SIGN}{{12,250}}(?<![.,;:])",
            SURE,
            _NAMES.needed(),
        ),
        "letters, digits and hyphens": Form(
            rf"(?<![\w-]){_CAPITAL}{_SMALL}{_DIGITS}(?=[A-Za-z\d]{{0,200}}[_-])[\w-]{{20,200}}(?![\w-])",
            DOUBTFUL,
            trigger(2, "_|-"),
        ),
    },
    "key token secret api bearer credential",
)

FAMILIES = (
    ACCOUNTS,
    DOCUMENTS,
    NUMBERS,
    CODES,
    PLATES,
    CAPITALS,
    SPELLED,
    KEYS,
)
