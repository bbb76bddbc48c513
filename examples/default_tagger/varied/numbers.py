"""What slots of numbers draw: phones, cards, IBANs, accounts, identifiers, IP addresses."""

from __future__ import annotations

from varied.grammar import Filler
from varied.scene import Scene
from varied.stock import stock

_PHONES = stock("numbers", "phones")
_EXTENSIONS = (
    " x###", " x#####", " ext ###", " ext. ##", "x####", " extension ###", ", ext. ####", " Ext. ^#",
)  # fmt: skip
_DIGIT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_CARDS = (
    "4###############", "5^##############", "2221############", "6011############", "34#############",
    "37#############", "3528############", "30###########", "4############", "5018########",
)  # fmt: skip
_IBANS = {
    "DE": "18", "GB": "?14", "FR": "25", "NL": "?10", "ES": "20", "IT": "22", "PL": "24", "BE": "12",
    "CH": "17", "IE": "?14", "PT": "21", "SE": "20", "AT": "16", "NO": "11", "DK": "14", "FI": "14",
    "TR": "22", "SA": "20", "AE": "19", "GR": "23",
}  # fmt: skip
_ACCOUNTS = stock("numbers", "accounts")
_SSNS = (
    "###-##-####", "###-##-####", "### ## ####", "#########", "###.##.####", "XXX-XX-####", "***-**-####",
)  # fmt: skip
_ORDERS = stock("numbers", "orders")
_TRACKING = stock("numbers", "tracking")
_TICKETS = stock("numbers", "tickets")
_PASSPORTS = ("#########", "?########", "??#######", "C~~~~~~~~", "?? #######", "?#######")
_LICENCES = (
    "?#######", "?###-####-####", "#########", "?????######??#??", "??######", "### ### ###",
    "?##-##-####", "DL-##########", "?############",
)  # fmt: skip
_PLATES = stock("numbers", "plates")
_SERIALS = (
    "SN-########", "~~~~~~~~~~~~", "~~~~-~~~~-~~~~", "~~~~~~~~~~~~~~~~~", "###############", "?#~##~#~##",
    "SN ########", "~~~~~-~~~~~-~~~~~-~~~~~", "M/N ?#-####", "##-####-######",
)  # fmt: skip
_BOOKINGS = (
    "~~~~~~", "??????", "?~~~~#", "BK#######", "RES-######", "~~~~~", "#########", "?#?#?#", "HTL-#####",
    "##########", "QX-####-?",
)  # fmt: skip
_FLIGHTS = ("??###", "??####", "?? ###", "??##", "#? ####")
_CODES = stock("numbers", "codes")
_STAFF = stock("numbers", "staff")
_TAX = stock("numbers", "tax")
_LONG = stock("numbers", "long")


def _of(*patterns: str) -> Filler:
    return lambda scene: scene.shape(scene.of(patterns))


def _spoken(scene: Scene) -> str:
    words = [scene.of(_DIGIT_WORDS) if scene.chance(0.97) else "oh" for _ in range(scene.of((7, 10, 10, 11)))]
    return scene.one(" ", " ", "-", ", ").join(words)


def _phone(scene: Scene) -> str:
    if scene.chance(0.03):
        return _spoken(scene)
    pattern = scene.of(_PHONES[:16]) if scene.chance(0.4) else scene.of(_PHONES)
    return scene.shape(pattern + (scene.of(_EXTENSIONS) if scene.chance(0.07) else ""))


def _luhn(digits: str) -> str:
    """``digits`` with the last one changed so that the card's checksum holds."""
    total = 0
    for place, sign in enumerate(reversed(digits[:-1])):
        value = int(sign) * (2 if place % 2 == 0 else 1)
        total += value - 9 if value > 9 else value
    return digits[:-1] + str(-total % 10)


def _card(scene: Scene) -> str:
    digits = _luhn(scene.shape(scene.of(_CARDS[:2] if scene.chance(0.5) else _CARDS)))
    form = scene.draw.random()
    if form < 0.45:
        return digits
    separator = scene.one(" ", "-", " ")
    if len(digits) == 15:
        return separator.join((digits[:4], digits[4:10], digits[10:]))
    if form > 0.95:
        return scene.one("**** **** **** ", "xxxx-xxxx-xxxx-", "XXXX XXXX XXXX ", "************") + digits[-4:]
    return separator.join(digits[at : at + 4] for at in range(0, len(digits), 4))


def _iban(scene: Scene) -> str:
    country = scene.of(tuple(_IBANS))
    shape = _IBANS[country]
    body = scene.shape(shape.replace(shape.lstrip("?"), "#" * int(shape.lstrip("?"))).replace("?", "????"))
    number = "".join(str(int(sign, 36)) for sign in body + country + "00")
    whole = f"{country}{98 - int(number) % 97:02d}{body}"
    return " ".join(whole[at : at + 4] for at in range(0, len(whole), 4)) if scene.chance(0.4) else whole


def _v4(scene: Scene) -> str:
    head = scene.one("10.", "192.168.", "172.16.", "") if scene.chance(0.4) else ""
    rest = 4 - head.count(".")
    return head + ".".join(str(scene.draw.randrange(256)) for _ in range(rest))


def _v6(scene: Scene) -> str:
    groups = [f"{scene.draw.randrange(1, 65536):x}" for _ in range(8)]
    if scene.chance(0.5):
        groups[2:6] = [""]
    return ":".join(groups) if scene.chance(0.9) else f"fe80::{groups[-1]}:{groups[-2]}"


def _ip(scene: Scene) -> str:
    address = _v4(scene) if scene.chance(0.75) else _v6(scene)
    if "." in address and scene.chance(0.08):
        return address + scene.one("/24", "/16", "/32")
    return address


def _spelled(scene: Scene) -> str:
    """A short code, sign by sign: "A as in Alpha" is left to speech; here "a b four nine"."""
    signs = scene.shape(scene.one("??##", "?###", "######", "??####", "#####", "?#?#"))
    if scene.chance(0.5):
        return scene.one(" ", "-", ", ").join(signs)
    return " ".join(_DIGIT_WORDS[int(sign)] if sign.isdigit() else sign for sign in signs)


_ANY = stock("numbers", "any")
SECRETS: dict[tuple[str, str | None], Filler] = {
    ("PHONE_NUMBER", None): _phone,
    ("PHONE_NUMBER", "spoken"): _spoken,
    ("PHONE_NUMBER", "short"): _of("###-####", "### ####", "#### ####", "######"),
    ("CREDIT_CARD", None): _card,
    ("CREDIT_CARD", "last"): _of("####"),
    ("IBAN_CODE", None): _iban,
    ("ACCOUNT", None): _of(*_ACCOUNTS),
    ("ACCOUNT", "digits"): _of("########", "##########", "#########", "######", "############"),
    ("ACCOUNT", "last"): _of("####", "###"),
    ("ACCOUNT", "wallet"): _of(
        "1~~~~~~~~~~~~~~~~~~~~~~~~~~~~~",
        "0x!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!",
        "bc1q!!!!!!!!!!!!!!!!!!!!!!!!!!!!",
    ),
    ("US_SSN", None): _of(*_SSNS),
    ("IDENTIFIER", None): _of(*_ANY),
    ("IDENTIFIER", "order"): _of(*_ORDERS),
    ("IDENTIFIER", "tracking"): _of(*_TRACKING),
    ("IDENTIFIER", "ticket"): _of(*_TICKETS),
    ("IDENTIFIER", "passport"): _of(*_PASSPORTS),
    ("IDENTIFIER", "licence"): _of(*_LICENCES),
    ("IDENTIFIER", "plate"): _of(*_PLATES),
    ("IDENTIFIER", "serial"): _of(*_SERIALS),
    ("IDENTIFIER", "booking"): _of(*_BOOKINGS),
    ("IDENTIFIER", "flight"): _of(*_FLIGHTS),
    ("IDENTIFIER", "code"): _of(*_CODES),
    ("IDENTIFIER", "staff"): _of(*_STAFF),
    ("IDENTIFIER", "tax"): _of(*_TAX),
    ("IDENTIFIER", "long"): _of(*_LONG),
    ("IDENTIFIER", "spelled"): _spelled,
    ("IP_ADDRESS", None): _ip,
    ("IP_ADDRESS", "v4"): _v4,
}
