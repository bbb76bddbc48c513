"""What slots of people draw: PERSON, TITLE, AGE, NRP."""

from __future__ import annotations

from varied.grammar import Filler
from varied.names import NICKS
from varied.scene import Scene
from varied.stock import stock
from varied.times import ordinal

_SUFFIXES = (" Jr.", " Jr", " Sr.", " II", " III", " IV", ", Jr.")
_TITLES = stock("people", "titles")
_USUAL_TITLES = ("Mr.", "Mrs.", "Ms.", "Dr.", "Mr", "Mrs", "Ms", "Miss", "Dr", "Prof.")
_TITLE_WORDS = ("Mr", "Mrs", "Ms", "Miss", "Dr", "Prof", "Mx", "Mr.", "Mrs.", "Ms.", "Dr.", "Prof.")
_NATIONS = stock("people", "nations")
_FAITHS = stock("people", "faiths")
_PARTIES = stock("people", "parties")


def _full(scene: Scene) -> str:
    first, last = scene.names()
    kind = scene.draw.random()
    if kind < 0.60:
        return f"{first} {last}"
    if kind < 0.70:
        return f"{first} {scene.shape('?')}. {last}"
    if kind < 0.74:
        return f"{first} {scene.names().first} {last}"
    if kind < 0.79:
        return f"{first} {last}-{scene.names().last}"
    if kind < 0.82:
        return f"{first}-{scene.names().first} {last}"
    if kind < 0.86:
        return f"{first} {last}{scene.of(_SUFFIXES)}"
    if kind < 0.89:
        return f"{first} {scene.one('O’', 'O' + chr(39), 'D' + chr(39), 'Mc', 'Mac', 'Fitz', 'St. ')}{last}"
    if kind < 0.93:
        particle = scene.one("van", "van der", "de", "de la", "von", "bin", "al", "del", "di", "da", "dos", "ibn")
        return f"{first} {particle} {last}"
    if kind < 0.95:
        quote = scene.one('"{}"', "'{}'", "“{}”", "({})").format(scene.of(NICKS))
        return f"{first} {quote} {last}"
    if kind < 0.97:
        return f"{first} {scene.shape('?')} {last}"
    return f"{first} {last} {scene.names().last}"


def _initials(scene: Scene) -> str:
    form = scene.one(
        "{a}. {l}", "{a}. {b}. {l}", "{a}.{b}. {l}", "{a}{b} {l}", "{a} {l}", "{f} {a}.", "{a}.{b}.", "{l} {a}."
    )
    first, last = scene.names()
    return form.format(a=scene.shape("?"), b=scene.shape("?"), l=last, f=first)


def _reversed(scene: Scene) -> str:
    first, last = scene.names()
    form = scene.one("{l}, {f}", "{l}, {f}", "{l}, {f} {a}.", "{l} {f}", "{L}, {f}", "{L} {f}")
    return form.format(l=last, f=first, L=last.upper(), a=scene.shape("?"))


def _first(scene: Scene) -> str:
    return scene.of(NICKS) if scene.chance(0.12) else scene.names().first


def _last(scene: Scene) -> str:
    return f"{scene.names().last}-{scene.names().last}" if scene.chance(0.05) else scene.names().last


def _spelled(scene: Scene) -> str:
    name = scene.names().last if scene.chance(0.6) else scene.names().first
    return scene.one("-", " ", ". ", "-").join(name.upper().replace(" ", "").replace("-", ""))


def _plain_full(scene: Scene) -> str:
    return " ".join(scene.names())


def _any(scene: Scene) -> str:
    kind = scene.draw.random()
    if kind < 0.55:
        return _full(scene)
    if kind < 0.78:
        return _first(scene)
    return _last(scene) if kind < 0.92 else _initials(scene)


def _age(scene: Scene) -> str:
    number = scene.draw.choice((scene.draw.randint(1, 99), scene.draw.randint(18, 75)))
    return str(number)


_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ONES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = (
    "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "sixteen",
    "nineteen",
)  # fmt: skip


def _age_words(scene: Scene) -> str:
    number = scene.of(_TEENS)
    if scene.chance(0.7):
        number = scene.of(_TENS) + (scene.one("-", " ") + scene.of(_ONES) if scene.chance(0.7) else "")
    return number


def _age_phrase(scene: Scene) -> str:
    number = _age(scene) if scene.chance(0.85) else _age_words(scene)
    form = scene.one(
        "{} years old", "{} years old", "{} yrs old", "{} years of age", "{} y/o", "{}yo", "{} yo",
        "{} months old", "{} years", "{} yrs", "{}y",
    )  # fmt: skip
    return form.format(number)


def _age_adjective(scene: Scene) -> str:
    number = _age(scene) if scene.chance(0.85) else _age_words(scene)
    return number + scene.one("-year-old", "-year-old", " year old", "-yr-old", "yo", " y/o", "-month-old")


def _age_ordinal(scene: Scene) -> str:
    return ordinal(scene.draw.randint(1, 99))


def _age_group(scene: Scene) -> str:
    decade = scene.one(
        "20s", "30s", "40s", "50s", "60s", "70s", "twenties", "thirties", "forties", "fifties", "sixties"
    )
    return scene.one("mid-", "late ", "early ", "") + decade


def _nrp(scene: Scene) -> str:
    kind = scene.draw.random()
    return scene.of(_NATIONS if kind < 0.7 else _FAITHS if kind < 0.87 else _PARTIES)


def _people(scene: Scene) -> str:
    """A group: Dutch-like words have no plural of their own and stay as they are."""
    word = _nrp(scene)
    return word if word.endswith(("sh", "ch", "ese", "s", "ss", "z", "ic")) else word + "s"


SECRETS: dict[tuple[str, str | None], Filler] = {
    ("PERSON", None): _any,
    ("PERSON", "full"): _full,
    ("PERSON", "first"): _first,
    ("PERSON", "last"): _last,
    ("PERSON", "initials"): _initials,
    ("PERSON", "reversed"): _reversed,
    ("PERSON", "royal"): lambda scene: scene.names().first + scene.one("", " I", " II", " III", " IV", " VIII", " XIV"),
    ("PERSON", "spelled"): _spelled,
    ("PERSON", "plain"): _plain_full,
    ("PERSON", "nick"): lambda scene: scene.of(NICKS),
    ("PERSON", "me"): lambda scene: f"{scene.me.first} {scene.me.last}",
    ("PERSON", "mefirst"): lambda scene: scene.me.first,
    ("PERSON", "melast"): lambda scene: scene.me.last,
    ("TITLE", None): lambda scene: scene.of(_USUAL_TITLES if scene.chance(0.8) else _TITLES),
    ("TITLE", "word"): lambda scene: scene.of(_TITLE_WORDS),
    ("TITLE", "noble"): lambda scene: scene.one("Sir", "Lady", "Lord", "Dame"),
    ("AGE", None): _age,
    ("AGE", "words"): _age_words,
    ("AGE", "phrase"): _age_phrase,
    ("AGE", "adj"): _age_adjective,
    ("AGE", "ordinal"): _age_ordinal,
    ("AGE", "group"): _age_group,
    ("NRP", None): _nrp,
    ("NRP", "nation"): lambda scene: scene.of(_NATIONS),
    ("NRP", "faith"): lambda scene: scene.of(_FAITHS),
    ("NRP", "party"): lambda scene: scene.of(_PARTIES),
    ("NRP", "people"): _people,
}
