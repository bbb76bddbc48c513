"""Accounts, cards and secret codes, told by the words before them or by their form."""

from __future__ import annotations

import re

from redactory.detectors.recognizers.family import STRONG, SURE, Family, Form, Terms
from redactory.detectors.triggers import trigger

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

FAMILIES = (ACCOUNTS,)
