"""Dates, moved in the form in which they stand, and invented in that form where they cannot be moved."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from datetime import date, timedelta

from redactory.redaction.letters import cased

_MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_ELSEWHERE = [
    names.split()
    for names in (
        " ".join(_MONTHS),
        "januar februar märz april mai juni juli august september oktober november dezember",
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "januari februari maart april mei juni juli augustus september oktober november december",
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        "montag dienstag mittwoch donnerstag freitag samstag sonntag",
        "lunes martes miércoles jueves viernes sábado domingo",
        "lundi mardi mercredi jeudi vendredi samedi dimanche",
        "spring summer autumn winter",
    )
]
"""Words of which another one of the same line may stand in a date."""
_LOOSE = ("the other day", "some time ago", "recently", "a while ago", "lately")
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if name[3:] else name for name in _MONTHS)
_WEEKDAY = "|".join(_WEEKDAYS)
_DAY, _YEAR = r"(?P<d>\d{1,2})(?!\d)(?P<o>st|nd|rd|th)?", r"(?P<y>\d{4})"
_NAMED = rf"(?P<n>{_MONTH})\.?"
_DATES = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?<!\d){_YEAR}(?P<s>[-/.])(?P<m>\d{{1,2}})(?P=s)(?P<d>\d{{1,2}})(?!\d)",
        r"(?<!\d)(?P<a>\d{1,2})(?P<s>[-/.])(?P<b>\d{1,2})(?P=s)(?P<y>\d{4}|\d{2})(?!\d)",
        r"(?<!\d)(?P<y>(?:19|20)\d{2})(?P<m>\d{2})(?P<d>\d{2})(?!\d)",
        rf"{_NAMED}\s+{_DAY}(?:,?\s+{_YEAR})?",
        rf"{_DAY}\.?\s+(?:of\s+)?{_NAMED}(?:,?\s+{_YEAR})?",
        rf"{_NAMED},?\s+{_YEAR}",
        rf"(?P<w>{_WEEKDAY})",
        r"(?<!\d)(?P<y>(?:19|20)\d{2})(?!\d)",
    )
)


_WHOLE = re.compile(
    r"\s*(?:\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2\d{4})"
    r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*(?:Z|[AaPp][Mm]|[+-]\d{2}:?\d{2})?)?\s*"
)
_IN_ORDER = re.compile(r"(?<!\d)(\d{1,2})([-/])(\d{1,2})\2(?:\d{4}|\d{2})(?!\d)")
_REST = re.compile(
    r"(?P<time>\d{1,2}(?::\d{2}){1,2})|(?P<number>\d+)(?P<o>(?:st|nd|rd|th)\b)?|(?P<word>[^\W\d_]+)"
)


def is_date(value: str) -> bool:
    """Whether ``value`` is a day in digits with a year of four, maybe with a time, and nothing else."""
    whole = _WHOLE.fullmatch(value)
    form = whole and next((m for m in (form.match(value.strip()) for form in _DATES[:2]) if m), None)
    return form is not None and _moved(form, 0, False) is not None


def day_first(texts: Iterable[str], language: str = "en") -> bool:
    """Whether ``07/11/2001`` in ``texts`` is in November: as other dates there say, else as one writes so.

    A date with a part above 12 tells.  Where none does, English is read with the month first.
    """
    told = 0
    for text in texts:
        for one, _, two in _IN_ORDER.findall(text):
            told += (int(one) > 12 >= int(two)) - (int(two) > 12 >= int(one))
    return told > 0 if told else language != "en"


def moved(value: str, days: int, is_day_first: bool = False, draw: random.Random | None = None) -> str | None:
    """The dates in ``value`` moved by ``days``, each in its own form.

    With ``draw`` what else tells of a time is invented; without, None where anything cannot be moved.
    """
    pieces, position, found, left = list[str](), 0, 0, 0
    while position < len(value):
        match = next((m for m in (form.match(value, position) for form in _DATES) if m), None)
        new = None if match is None else _moved(match, days, is_day_first)
        if new is None and draw is not None:
            match = _REST.match(value, position)
            new = None if match is None else _other(match, draw)
        if match is None or new is None:
            left += value[position].isdigit()
            pieces.append(value[position])
            position += 1
            continue
        found += 1
        pieces.append(new)
        position = match.end()
    # a time, a day of the month by itself: what is left may still tell the date
    return "".join(pieces) if found and not left else None


def invented(value: str, days: int, is_day_first: bool, draw: random.Random) -> str:
    """:func:`moved`, with words for some time where nothing in ``value`` tells of one that is known."""
    new = moved(value, days, is_day_first, draw)
    return cased(draw.choice(_LOOSE), value) if new is None else new


def _other(match: re.Match[str], draw: random.Random) -> str | None:
    """Another time, number or name of a month, of the same form; None for any other word."""
    old = match[0]
    if match["time"]:
        hour, *rest = old.split(":")
        new = f"{draw.randint(1, 12 if len(hour) == 2 else 9)}".zfill(len(hour))
        return ":".join([new, *(f"{draw.randrange(60):02d}" for _ in rest)])
    if number := match["number"]:
        if len(number) == 4 and 1000 < int(number) < 9990:
            return str(int(number) + draw.choice((-3, -2, -1, 1, 2, 3)))
        if len(number) > 2:
            return "".join(draw.choice("123456789") for _ in number)
        # in whatever order it stands, a month or a day; by itself, a quarter
        most = 4 if match.string[: match.start()][-1:] in ("Q", "q") else 9 if len(number) == 1 else 12
        few = draw.randint(1, most)
        return str(few).zfill(len(number)) + (_ordinal(few) if match["o"] else "")
    names = next((names for names in _ELSEWHERE if old.lower() in names), None)
    return None if names is None else cased(draw.choice(names).capitalize(), old)


def _moved(match: re.Match[str], days: int, is_day_first: bool) -> str | None:
    part = match.groupdict()
    if part.get("w"):
        return cased(_WEEKDAYS[(_WEEKDAYS.index(part["w"].lower()) + days) % 7].capitalize(), part["w"])
    year = part.get("y")
    month, day = part.get("m"), part.get("d")
    names = {"y": "y", "m": "m", "d": "d"}
    if part.get("a"):
        one, two = int(part["a"]), int(part["b"])
        comes_first = two > 12 or (one <= 12 and not is_day_first and part["s"] != ".")
        names = {"y": "y", "m": "a", "d": "b"} if comes_first else {"y": "y", "m": "b", "d": "a"}
        month, day = part[names["m"]], part[names["d"]]
    if part.get("n"):
        month = str([name[:3] for name in _MONTHS].index(part["n"].lower()[:3]) + 1)
    full = 2000 if year is None else int(year) + (2000 if len(year) == 2 else 0)
    try:
        then = date(full, int(month or 1), int(day or 1)) + timedelta(days)
    except (ValueError, OverflowError):
        return None
    news = {"y": f"{then.year:04d}"[-len(year or "0000") :], "m": str(then.month), "d": str(then.day)}
    edits = [(match.span(names[k]), v) for k, v in news.items() if part.get(names[k])]
    if part.get("n"):
        name = _MONTHS[then.month - 1].capitalize()
        is_whole = len(part["n"]) > 3 or part["n"].lower() == "may"
        edits.append((match.span("n"), cased(name if is_whole else name[:3], part["n"])))
    if part.get("o"):
        edits.append((match.span("o"), _ordinal(then.day)))
    numbers = [part[name] for name in names.values() if part.get(name) and name != "y"]
    padded = any(n.startswith("0") for n in numbers) or (
        not part.get("n") and all(len(n) == 2 for n in numbers)
    )
    text, start = match[0], match.start()
    for (first, last), new in sorted(edits, reverse=True):
        text = text[: first - start] + (new.zfill(2) if padded else new) + text[last - start :]
    return text


def _ordinal(number: int) -> str:
    tens, ones = divmod(number, 10)
    return "th" if tens == 1 else {1: "st", 2: "nd", 3: "rd"}.get(ones, "th")
