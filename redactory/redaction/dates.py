"""Shift dates by a number of days per document, and keep the format of each date.

A value is shifted as a whole or not at all: if any part of it is not understood, the result is None, because that part
could reveal the day.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from functools import cached_property

_MONTHS = {
    "en": "january february march april may june july august september october november december",
    "de": "januar februar märz april mai juni juli august september oktober november dezember",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "fr": "janvier/janv février/févr mars avril mai juin juillet/juil août septembre/sept octobre novembre "
    "décembre",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "nl": "januari februari maart/mrt april mei juni juli augustus september oktober november december",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "pl": "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada "
    "grudnia",
}  # fmt: skip
"""Month names by language, with the short form if it is not the shortest unique prefix."""
_WEEKDAYS = {
    "en": "monday tuesday wednesday thursday friday saturday sunday",
    "de": "montag dienstag mittwoch donnerstag freitag samstag sonntag",
    "es": "lunes martes miércoles jueves viernes sábado domingo",
    "fr": "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "it": "lunedì martedì mercoledì giovedì venerdì sabato domenica",
    "nl": "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
    "pt": "segunda terça quarta quinta sexta sábado domingo",
    "pl": "poniedziałek wtorek środa czwartek piątek sobota niedziela",
}
_LINKS = {
    "en": "the of on at to in and or from until till by since between before after about dated born",
    "de": "der den dem am im vom von zum bis und oder um uhr seit ab geboren",
    "es": "el la los las de del al y o a en desde hasta",
    "fr": "le la les de du des d au aux et ou à en depuis né née",
    "it": "il la i le del di dal al e o a il nel",
    "nl": "de het van op tot en of om sinds",
    "pt": "o a os as de do da dos em e ou até desde às",
    "pl": "od do dnia i lub w r",
}
"""Words that may occur between the parts of a date."""


def _fold_word(word: str) -> str:
    plain = unicodedata.normalize("NFKD", word.casefold())
    return "".join(letter for letter in plain if not unicodedata.combining(letter))


class _NameTable:
    """Months or weekdays of one language: full names, and short forms if unique."""

    def __init__(self, names: str) -> None:
        pairs = [name.split("/") for name in names.split()]
        self.whole = [pair[0] for pair in pairs]
        self.read: dict[str, tuple[int, bool]] = {}
        """The number of a folded name, and whether the name is short."""
        self.short = []
        for number, (name, *other) in enumerate(pairs):
            rest = [one for one in self.whole if one != name]
            starts = (name[:size] for size in range(3, len(name)))
            unique = [one for one in starts if not any(_fold_word(r).startswith(_fold_word(one)) for r in rest)]
            self.short.append((*other, *unique, name)[0])
            self.read |= {_fold_word(one): (number, True) for one in (*other, *unique)} | {
                _fold_word(name): (number, False)
            }


_NAMES = {language: (_NameTable(_MONTHS[language]), _NameTable(_WEEKDAYS[language])) for language in _MONTHS}
_LINKED = {language: frozenset(map(_fold_word, links.split())) for language, links in _LINKS.items()}
_WORDS = {
    language: _LINKED[language].union(*(map(_fold_word, names.whole) for names in both))
    for language, both in _NAMES.items()
}
_NAMES["roman"] = _NameTable("i ii iii iv v vi vii viii ix x xi xii"), _NameTable("")
"""Months in Roman numerals, used only by their own form."""
_JOIN = r"(?:[\s.,/‐–-]|(?:of|the|de|del|di|do|den)\b|d['’]){0,6}"
_DAY = r"(?P<d>\d{1,2})(?P<o>st|nd|rd|th|er|º|ª)?(?![\d:])"
_NAME = r"(?<![^\W\d_])(?![ivx]+(?![^\W\d_]))(?P<n>[^\W\d_]{3,20}+)(?![^\W\d_])"
_FULL = r"(?P<y>\d{4})(?!\d)"
_YEAR = r"['’]?(?P<y>\d{4}(?!\d)|\d{2}(?![\d:]|\s?[ap]\.?m\b))"
_BARE = rf"(?:{_FULL}|['’](?P<yy>\d{{2}})(?!\d))"
_PLAIN_FORMS = (
    r"(?P<y>\d{4})(?P<s>[-/.])(?P<m>\d{1,2})(?P=s)(?P<d>\d{1,2})(?!\d)",
    rf"{_FULL}{_JOIN}{_NAME}{_JOIN}{_DAY}",
    rf"{_DAY}{_JOIN}{_NAME}{_JOIN}{_YEAR}",
    rf"{_NAME}{_JOIN}{_DAY}{_JOIN}{_YEAR}",
)
"""Unambiguous forms of a day with its year."""
_FORMS = [
    re.compile(form, re.IGNORECASE)
    for form in (
        *_PLAIN_FORMS,
        r"(?P<a>\d{1,2})(?P<s> ?[-/.‐–] ?| )(?P<b>\d{1,2})(?P=s)['’]?(?P<y>\d{4}|\d{2})(?!\d)",
        r"(?P<d>\d{1,2})(?P<s> ?[-/.] ?| )(?P<n>[IVX]{1,4})(?P=s)(?P<y>\d{4}|\d{2})(?!\d)",
        r"(?P<y>(?:1[5-9]|20)\d{2})(?P<m>\d{2})(?P<d>\d{2})(?!\d)",
        r"(?P<a>\d{2})(?P<b>\d{2})(?P<y>(?:1[5-9]|20)\d{2})(?!\d)",
        rf"{_DAY}{_JOIN}{_NAME}",
        rf"{_NAME}{_JOIN}{_DAY}",
        rf"{_NAME}{_JOIN}{_BARE}",
        rf"{_FULL}{_JOIN}{_NAME}",
        r"(?P<m>\d{1,2}) ?[-/.] ?(?P<y>\d{4})(?!\d)",
        r"(?P<y>\d{4})[-/.](?P<m>\d{1,2})(?!\d)",
        r"\A(?P<a>\d{1,2})(?P<s> ?[-/.] ?)(?P<b>\d{1,2})\.?\Z",
        _NAME,
        r"(?P<y>1[5-9]\d{2}|20\d{2})(?!\d)",
    )
]
_PLAIN = _FORMS[: len(_PLAIN_FORMS)]
_TIME = re.compile(
    r"T?(?P<h>\d{1,2})"
    r"(?:(?:[:h]|(?<=T..))(?P<m>\d{2})(?::?(?P<s>\d{2})(?:[.,](?P<f>\d+))?)?(?!\d)|(?= ?[ap]\.?m))"
    r"(?: ?(?P<p>[ap])(?=\.?m\b)\.?m\.?)?(?: ?(?:Z|UTC|GMT)\b)?(?P<z> ?[+-]\d{2}:?\d{2}(?!\d))?",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"[^\w]+|_+|[^\W\d_]+")
_WORD = re.compile(r"[^\W\d_]{3}")
_IN_ORDER = re.compile(r"(?<!\d)(\d{1,2})([-/])(\d{1,2})\2(\d{4}|\d{2})(?!\d)")
_FEWEST, _MOST = 190, 698
"""Range of the shift in days. It changes a lone year, which is shifted from its middle."""
_NEAR = range(334, 397)
"""About a year, after which the month could be the same."""


def draw_day_shift(draw: random.Random) -> int:
    """Draw a document's shift, forwards or back, that changes the month, a lone year and the weekday."""
    days = draw.choice([n for n in range(_FEWEST, _MOST + 1) if n % 7 and n not in _NEAR])
    return days if draw.random() < 0.5 else -days


class DateShifter:
    """Shifts the dates of one document by one amount, with one order of day and month.

    ``draw`` returns the random source for another time of day, given the time to replace.
    """

    def __init__(
        self,
        days: int,
        texts: Sequence[str] = (),
        language: str = "en",
        draw: Callable[[str], random.Random] = random.Random,
    ) -> None:
        self.days = days
        self._texts, self._language, self._draw = texts, language.partition("-")[0], draw

    def is_date(self, value: str) -> bool:
        """Return whether ``value`` is only a day with its year, or numbers with the name of a month."""
        read = self._parse_value(value)
        is_named = _WORD.search(value) is not None and any(map(str.isdigit, value))
        # "Y19871103" is an identifier, although "y" joins dates in Spanish
        is_phone = value.lstrip().startswith("+")
        return read is not None and not is_phone and (is_named or ("date" in read[1] and "link" not in read[1]))

    def shift_dates(self, value: str) -> str | None:
        """Shift every date and replace every time in ``value``; None if it contains anything else."""
        read = self._parse_value(value)
        return read and read[0]

    def read_day(self, value: str) -> date | None:
        """Return the day of ``value`` if it is one day with its year, perhaps repeated or with its weekday."""
        read = self._parse_value(value)
        if read is None or read[1] - {"date", "weekday", "sign", "link"} or len({*read[2]}) != 1:
            return None
        return read[2][0] - timedelta(self.days)

    def _parse_value(self, value: str) -> tuple[str, set[str], list[date]] | None:
        """Return ``value`` shifted, the kinds of its parts, and the shifted days that have a year."""
        pieces, position, kinds, before, days = list[str](), 0, set[str](), "", list[date]()
        while position < len(value):
            new, kind, end, day = self._replace_next_part(value, position)
            # "3-15 November 1987", "November 3-15, 1987": one date of several days
            if new is None or (kind == "part" and before in ("date", "day")):
                return None
            pieces.append(new)
            kinds.add(kind)
            days += [day] if day and kind == "date" else []
            before = before if kind == "sign" else kind
            position = end
        return ("".join(pieces), kinds, days) if kinds - {"link", "sign"} else None

    def _replace_next_part(self, value: str, position: int) -> tuple[str | None, str, int, date | None]:
        """Return the replacement of what is at ``position``, its kind, its end, and the day of a date."""
        for form in _FORMS:
            match = form.match(value, position)
            new = match and self._shift_match(match)
            if match and new is not None:
                parts = form.groupindex.keys()
                kind = "part" if parts.isdisjoint("da") else "date" if "y" in parts else "day"
                return new[0], kind, match.end(), new[1]
        if match := _TIME.match(value, position):
            return self._replace_time(match), "time", match.end(), None
        match = _BETWEEN.match(value, position)
        if match is None:
            return None, "", position, None
        word = _fold_word(match[0])
        for language in self._ordered_languages:
            days = _NAMES[language][1]
            if word in days.read:
                number, is_short = days.read[word]
                names = days.short if is_short else days.whole
                return _match_case(names[(number + self.days) % 7], match[0]), "weekday", match.end(), None
        if match[0][0].isalpha() and not any(word in links for links in _LINKED.values()):
            return None, "", position, None
        return match[0], "link" if match[0][0].isalpha() else "sign", match.end(), None

    def _shift_match(self, match: re.Match[str]) -> tuple[str, date] | None:
        """Return a date in its form after the shift, and its day."""
        parts = {at: text for at, text in match.groupdict().items() if text}
        named = dict(zip("aby", self._infer_part_order(parts), strict=True)) if "a" in parts else {"yy": "y"}
        spans = {named.get(at, at): match.span(at) for at in parts}
        parts = {named.get(at, at): text for at, text in parts.items()}
        name = self._read_month(parts["n"]) if "n" in parts else None
        if "n" in parts and name is None:
            return None
        month = name[1] + 1 if name else int(parts.get("m", 7))
        then = self._shift_day(parts, month)
        if then is None:
            return None
        news = {spans[at]: new for at, new in self._format_parts(parts, then, name).items() if at in spans}
        return _replace_groups(match, news), then

    def _shift_day(self, parts: dict[str, str], month: int) -> date | None:
        """Return the shifted day; for a month or year alone, shift its middle."""
        day = int(parts.get("d", 15 if "m" in parts or "n" in parts else 2))
        try:
            if "y" in parts:
                then = date(_expand_year(parts["y"]), month, day)
            else:
                years = [one.year for one in self._unambiguous_days if (one.month, one.day) == (month, day)]
                then = date((years or [2000])[0], month, day)
            return then + timedelta(self.days)
        except (ValueError, OverflowError):
            return None

    def _format_parts(
        self, parts: dict[str, str], new_date: date, name: tuple[str, int, bool] | None
    ) -> dict[str, str]:
        """Format each part as long or short as the old one."""
        numbers = [parts[at] for at in "md" if at in parts]
        padded = any(n.startswith("0") for n in numbers) or (
            name is None and all(len(number) == 2 for number in numbers)
        )
        news = {at: f"{getattr(new_date, of):0{1 + padded}d}" for at, of in (("m", "month"), ("d", "day"))}
        news["y"] = f"{new_date.year:04d}"[-len(parts.get("y", "0000")) :]
        if name:
            language, _, is_short = name
            names = _NAMES[language][0]
            news["n"] = _match_case((names.short if is_short else names.whole)[new_date.month - 1], parts["n"])
        if "o" in parts:
            news["o"] = _match_case(_get_ordinal_suffix(parts["o"], new_date.day), parts["o"])
        return news

    def _infer_part_order(self, parts: dict[str, str]) -> str:
        """Return which of two or three parts is the year (y), the month (m) and the day (d)."""
        one, two = int(parts["a"]), int(parts["b"])
        if "y" not in parts:
            if two > 31:
                return "myd"
            return "dmy" if one > 12 or (two <= 12 and self._is_day_first) else "mdy"
        if one > 31:
            return "ymd"
        if one > 12 or two > 12:
            return "dmy" if one > 12 else "mdy"
        if "." in parts.get("s", ""):
            return "dmy"
        known = {(day.day, day.month) for day in self._unambiguous_days if day.year == _expand_year(parts["y"])}
        if ((one, two) in known) != ((two, one) in known):
            return "dmy" if (one, two) in known else "mdy"
        return "dmy" if self._is_day_first else "mdy"

    def _read_month(self, word: str) -> tuple[str, int, bool] | None:
        """Return the language of a month name, its number (from 0) and whether it is short."""
        word = _fold_word(word)
        months = ((name, _NAMES[name][0].read.get(word)) for name in (*self._ordered_languages, "roman"))
        return next(((name, *read) for name, read in months if read), None)

    def _replace_time(self, match: re.Match[str]) -> str:
        """Return another time of day in the same form, without UTC offset; equal times give equal results."""
        half = (match["p"] or "").lower()
        hour = int(match["h"]) % 12 + 12 * (half == "p") if half else int(match["h"])
        draw = self._draw(f"{hour}:{int(match['m'] or 0)}:{int(match['s'] or 0)}")
        hour, minute, second = draw.randrange(24), draw.randrange(60), draw.randrange(60)
        news = {
            "h": str(hour % 12 or 12 if half else hour).zfill(len(match["h"])),
            "m": f"{minute:02d}",
            "s": f"{second:02d}",
            "f": "".join(draw.choice("0123456789") for _ in match["f"] or ""),
            "p": _match_case("p" if hour >= 12 else "a", match["p"] or "a"),
            "z": re.sub(r"\d", "0", match["z"] or ""),
        }
        return _replace_groups(match, {match.span(at): new for at, new in news.items() if match[at] is not None})

    @cached_property
    def _ordered_languages(self) -> list[str]:
        """Languages of names: the settings' first, then by number of words in the document."""
        words = Counter(_fold_word(word) for text in self._texts for word in re.findall(r"[^\W\d_]+", text))
        counts = {name: sum(words[word] for word in known) for name, known in _WORDS.items()}
        return sorted(_MONTHS, key=lambda name: (name != self._language, -counts[name]))

    @cached_property
    def _unambiguous_days(self) -> list[date]:
        days = []
        for match in (match for text in self._texts for form in _PLAIN for match in form.finditer(text)):
            if match.start() and match.string[match.start() - 1].isalnum():
                continue
            written = match.groupdict()
            name = self._read_month(written["n"]) if "n" in written else None
            if name or "n" not in written:
                with suppress(ValueError):
                    month = name[1] + 1 if name else int(match["m"])
                    days.append(date(_expand_year(match["y"]), month, int(match["d"])))
        return days

    @cached_property
    def _is_day_first(self) -> bool:
        """Return whether ``07/11/2001`` is in November here.

        Decided by dates with a part above 12, and by dates that the document also writes in another form; otherwise
        English is read with the month first.
        """
        votes = 0
        for text in self._texts:
            for one, _, two, year in _IN_ORDER.findall(text):
                one, two = int(one), int(two)
                votes += (one > 12 >= two) - (two > 12 >= one)
                known = {(day.month, day.day) for day in self._unambiguous_days if day.year == _expand_year(year)}
                votes += ((two, one) in known) - ((one, two) in known)
        return votes > 0 if votes else self._ordered_languages[0] != "en"


def _replace_groups(match: re.Match[str], replacements: Mapping[tuple[int, int], str]) -> str:
    text, start = match[0], match.start()
    for (first, last), new in sorted(replacements.items(), reverse=True):
        text = text[: first - start] + new + text[last - start :]
    return text


def _expand_year(year: str) -> int:
    """Expand a year of two digits: from 69 on to the last century, as in POSIX."""
    return int(year) if len(year) == 4 else int(year) + (1900 if int(year) >= 69 else 2000)


def _match_case(new: str, old: str) -> str:
    if old.isupper():
        return new.upper()
    return new[:1].upper() + new[1:] if old[:1].isupper() else new


def _get_ordinal_suffix(old: str, day: int) -> str:
    if old.lower() not in ("st", "nd", "rd", "th"):
        return "" if old.lower() == "er" and day != 1 else old
    tens, ones = divmod(day, 10)
    return "th" if tens == 1 else {1: "st", 2: "nd", 3: "rd"}.get(ones, "th")
