"""Plain slots: words, small numbers, prices, clock times, jobs, capitalised headings.  None is sensitive."""

from __future__ import annotations

import importlib
from functools import cache

from varied.grammar import Filler
from varied.scene import Scene
from varied.stock import stock

_HEAD_FIRST = stock("plain", "head_first")
_HEAD_LAST = stock("plain", "head_last")
_HEADINGS = stock("plain", "headings")
_GOODS = stock("plain", "goods")
_PLACES = stock("plain", "places")
_FOLK = stock("plain", "folk")
_TECH = (
    "4K", "1080p", "5G", "A4", "3D", "MP3", "24/7", "COVID-19", "9-to-5", "4x4", "2x4", "H2O", "B12", "mp4",
    "USB-C", "Wi-Fi 6", "Type 2", "AA", "XL", "B2B", "K-12", "1:1", "50/50", "5-star", "7-day", "100%", "PDF",
    "HTML5", "UTF-8", "T-shirt", "X-ray", "DVD", "LED", "CPU", "HDMI", "SMS", "OK", "No. 1", "10x", "2FA",
)  # fmt: skip
_CURRENCIES = ["USD", "EUR", "GBP", "dollars", "euros", "pounds", "bucks", "AUD", "CHF"]
_COUNTS = stock("plain", "counts")
_NEVER = frozenset(["english", "american", "british", "christian", "chinese", "christmas", "may", "march"])


@cache
def words(sort: str) -> tuple[str, ...]:
    """English words of one part of speech (noun, verb, adjective, adverb) from Faker's list."""
    provider = importlib.import_module("faker.providers.lorem.en_US").Provider
    told = getattr(provider, "parts_of_speech", {}).get(sort, provider.word_list)
    return tuple(sorted({word for word in told if word.isalpha() and word.islower() and word not in _NEVER}))


@cache
def jobs() -> tuple[str, ...]:
    """Names of trades, as lists of jobs write them."""
    listed = importlib.import_module("faker.providers.job").Provider.jobs
    return tuple(
        sorted({job for job in listed if "(" not in job and "," not in job and "/" not in job and "English" not in job})
    )


def _word(sort: str) -> Filler:
    return lambda scene: scene.of(words(sort))


def plural(word: str) -> str:
    """The plural as spelling makes it; good enough for simulated text."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


def article(words_: str) -> str:
    """``a`` or ``an`` and the words."""
    return ("an " if words_[0] in "aeiou" and not words_.startswith(("uni", "use", "euro", "one")) else "a ") + words_


def third(verb: str) -> str:
    """The third person of a verb as spelling makes it."""
    return plural(verb)


def _heading(scene: Scene) -> str:
    return scene.of(_HEADINGS) if scene.chance(0.4) else f"{scene.of(_HEAD_FIRST)} {scene.of(_HEAD_LAST)}"


def _price(scene: Scene) -> str:
    amount = scene.one(
        f"{scene.draw.randint(1, 999)}",
        f"{scene.draw.randint(1, 999)}.{scene.shape('##')}",
        f"{scene.draw.randint(1, 99)},{scene.shape('###')}",
        f"{scene.draw.randint(2, 9)}00",
    )
    form = scene.one("${}", "${}", "£{}", "€{}", "{} €", "{} " + scene.of(_CURRENCIES), "US${}", "₹{}", "${} million")
    return form.format(amount)


def _time(scene: Scene) -> str:
    hour, minute = (scene.draw.randint(1, 12), scene.one("00", "15", "30", "45", f"{scene.draw.randrange(60):02d}"))
    form = scene.one(
        "{h}:{m}",
        "{h} am",
        "{h} pm",
        "{h}pm",
        "{h}:{m} AM",
        "{h}:{m}pm",
        "{h} o'clock",
        "{k}:{m}",
        "{h}.{m}",
        "noon",
        "midnight",
        "half past {w}",
        "{h} p.m.",
    )
    return form.format(h=hour, m=minute, k=hour + 11, w=scene.of(_COUNTS[:10]))


def _small(scene: Scene) -> str:
    return (
        scene.of(_COUNTS)
        if scene.chance(0.35)
        else str(scene.draw.choice((scene.draw.randint(2, 12), scene.draw.randint(2, 60), scene.draw.randint(10, 900))))
    )


def _measure(scene: Scene) -> str:
    number = scene.one(
        str(scene.draw.randint(1, 99)),
        f"{scene.draw.randint(0, 30)}.{scene.draw.randint(1, 9)}",
        f"{scene.draw.randint(1, 9)},{scene.shape('###')}",
    )
    return number + scene.one(
        " kg",
        " km",
        "%",
        " percent",
        " mg",
        " ml",
        "mm",
        "cm",
        " inches",
        '"',
        " GB",
        "GB",
        " MB",
        " miles",
        " mph",
        " bpm",
        "°C",
        " degrees",
        "x",
        " hours",
        " minutes",
        " days",
        " weeks",
        " MHz",
        "k",
        " litres",
        " lbs",
        " pages",
        " points",
        " watts",
        "V",
    )


def _big(scene: Scene) -> str:
    """A count of hundreds or thousands, among them those that look like years."""
    number = scene.draw.choice(
        (scene.draw.randint(1000, 9999), scene.draw.randint(1900, 2030), scene.draw.randint(200, 99999))
    )
    return scene.one(str(number), f"{number:,}", f"{number // 100}00")


def _ago(scene: Scene) -> str:
    return scene.one(
        "yesterday",
        "today",
        "tomorrow",
        "last week",
        "last month",
        "last year",
        "next week",
        "two days ago",
        "a few days ago",
        "this morning",
        "tonight",
        "on Monday",
        "on Friday",
        "this afternoon",
        "in three weeks",
        "over the weekend",
        "in the meantime",
        "recently",
        "a while ago",
        "last night",
        "every day",
        "on Tuesday morning",
    )


PLAIN: dict[str, Filler] = {
    "noun": _word("noun"),
    "verb": _word("verb"),
    "adj": _word("adjective"),
    "adverb": _word("adverb"),
    "nouns": lambda scene: plural(scene.of(words("noun"))),
    "a_noun": lambda scene: article(scene.of(words("noun"))),
    "a_adj": lambda scene: article(scene.of(words("adjective"))),
    "thing": lambda scene: scene.of(_GOODS),
    "a_thing": lambda scene: article(scene.of(_GOODS)),
    "things": lambda scene: plural(scene.of(_GOODS)),
    "spot": lambda scene: scene.of(_PLACES),
    "folk": lambda scene: scene.of(_FOLK),
    "a_folk": lambda scene: article(scene.of(_FOLK)),
    "job": lambda scene: scene.of(jobs()).lower(),
    "Job": lambda scene: scene.of(jobs()),
    "a_job": lambda scene: article(scene.of(jobs()).lower()),
    "Heading": _heading,
    "heading": lambda scene: _heading(scene).lower(),
    "verbs": lambda scene: third(scene.of(words("verb"))),
    "pct": lambda scene: (
        scene.one(scene.digits(1), scene.digits(2), f"{scene.digits(1)}.{scene.digits(1)}")
        + scene.one("%", "%", " percent", " per cent")
    ),
    "big": _big,
    "tech": lambda scene: scene.of(_TECH),
    "price": _price,
    "time": _time,
    "n": _small,
    "measure": _measure,
    "ago": _ago,
    "d": lambda scene: scene.digits(scene.of((1, 1, 2, 2, 3))),
    "dur": lambda scene: (
        f"{scene.digits(scene.of((1, 2)))} "
        + scene.one("seconds", "minutes", "hours", "days", "weeks", "min", "sec", "ms", "hrs")
    ),
}
