"""Hidden forms: secrets written so that people read them and programs do not, and what detection finds.

Invented secrets of many kinds are hidden in one form each (zero-width characters, letters of other alphabets,
digits in words, and so on) and put into sentences that are public without them, so that nothing else makes
the point private.  Printed as JSON, by form and by kind: how many secrets π masks whole, and how many both
policies miss, which is that the point stays public; ``plain`` are the same secrets as they are.  Then the
sentences without a secret, and lawful text with characters that can hide something (joined emoji, Persian,
soft hyphens, ...): how many are public.  Then as many cases again in six other languages.

    python benchmarks/hidden_forms.py
    python benchmarks/hidden_forms.py --cases 3000 --seed 7 --show      # the misses, on standard error
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from faker import Faker

from redactory.detectors import Detector, DetectSettings, compute_policy_hashes
from redactory.detectors.rules import SOFT_RULES
from redactory.detectors.settings import ConservativeSettings
from redactory.evaluation.statistics import estimate_proportion
from redactory.redaction import PUBLIC, merge_intervals, route_example

LOCALES = ("en_US", "en_GB", "de_DE", "es_ES", "fr_FR", "it_IT", "pt_PT", "nl_NL", "pl_PL", "en_IN")
NATIONAL = ("de_DE", "es_ES", "fr_FR", "it_IT", "pt_BR", "nl_NL")
CARRIERS: Mapping[str, Sequence[str]] = {
    # the second part, in braces, is what stands there without a secret
    "name": (
        "please say hello to {my friend} when you are there",
        "it was {my brother} who told us about the party",
        "we had dinner with {the neighbours} and it was lovely",
        "the room was booked by {a friend} last night",
        "can you ask {the manager} about the delay, please",
        "I am sure that {nobody} will be happy to help you",
    ),
    "number": (
        "please use {this one} if you need anything else",
        "it is {the old one} as far as I remember, thanks",
        "she wrote {something} on the back of the paper",
        "they asked me again and I told them {everything}, that is all",
        "the right one is {here}, sorry for the trouble",
        "you will find that {it} is on the letter we sent",
    ),
    "contact": (
        "just write to {us} when you have the time",
        "you can find everything at {home} if you like",
        "I think that {the last one} is the one that we need",
        "please send the rest to {me} when you can",
    ),
    "address": (
        "the boxes are at {home} now",
        "they moved to {the coast} a while ago and like it there",
        "please bring the boxes to {the garage} in the morning",
        "please leave everything at {the door} if you can",
    ),
}
ABROAD: Mapping[str, Mapping[str, Sequence[str]]] = {
    "de": {
        "name": ("ich habe es {meiner Mutter} schon gesagt", "am Abend hat uns {die Schwester} angerufen"),
        "number": ("bitte nimm {das hier}, wenn du noch etwas brauchst", "auf dem Zettel steht {etwas}, glaube ich"),
        "contact": ("schreib einfach an {uns}, wenn du Zeit hast", "du findest alles bei {mir}, wenn du willst"),
        "address": ("das alles liegt jetzt bei {uns}", "wir wohnen seit langem in {der Stadt} und bleiben da"),
    },
    "es": {
        "name": ("ya se lo he dicho a {mi madre} esta tarde", "anoche nos llamó {mi hermana} muy contenta"),
        "number": ("usa {este} si necesitas algo más", "en el papel pone {algo}, me parece"),
        "contact": ("escribe a {nosotros} cuando tengas tiempo", "lo puedes ver todo en {casa} si quieres"),
        "address": ("las cajas están en {casa} ahora", "viven en {la costa} desde hace tiempo"),
    },
    "fr": {
        "name": ("je l'ai déjà dit à {ma mère} ce matin", "hier soir {ma sœur} nous a parlé longtemps"),
        "number": ("prenez {celui-ci} si vous avez besoin d'autre chose", "sur le papier il y a {ceci}, je crois"),
        "contact": ("il suffit d'écrire à {nous} quand vous avez le temps", "tout est chez {moi} si tu veux"),
        "address": ("les cartons sont à {la maison} maintenant", "ils vivent à {la campagne} depuis longtemps"),
    },
    "it": {
        "name": ("l'ho già detto a {mia madre} questa mattina", "ieri sera ci ha chiamato {mia sorella}"),
        "number": ("prendi {questo} se ti serve altro", "sul foglio c'è scritto {qualcosa}, credo"),
        "contact": ("scrivi a {noi} quando hai tempo", "trovi tutto da {me} se vuoi"),
        "address": ("le scatole sono a {casa} adesso", "abitano in {campagna} da tanto tempo"),
    },
    "nl": {
        "name": ("ik heb het al aan {mijn moeder} verteld", "gisteren belde {mijn zus} ons op"),
        "number": ("neem {deze} als je nog iets nodig hebt", "op het papier staat {iets}, denk ik"),
        "contact": ("schrijf maar naar {ons} als je tijd hebt", "je vindt alles bij {mij} als je wilt"),
        "address": ("de dozen staan nu bij {ons}", "ze wonen al lang in {de stad} en blijven daar"),
    },
    "pt": {
        "name": ("já contei tudo para {minha mãe} esta manhã", "ontem à noite {minha irmã} ligou para nós"),
        "number": ("use {este} se precisar de mais alguma coisa", "no papel está escrito {algo}, acho eu"),
        "contact": ("escreva para {nós} quando tiver tempo", "tudo está em {casa} se você quiser"),
        "address": ("as caixas estão em {casa} agora", "eles moram em {uma aldeia} há muito tempo"),
    },
}
"""The same in other languages."""
DIGITS = {
    "de": "null eins zwei drei vier fünf sechs sieben acht neun",
    "es": "cero uno dos tres cuatro cinco seis siete ocho nueve",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf",
    "it": "zero uno due tre quattro cinque sei sette otto nove",
    "nl": "nul een twee drie vier vijf zes zeven acht negen",
    "pt": "zero um dois três quatro cinco seis sete oito nove",
}
SIGNS_ABROAD = {
    "de": {".": "punkt", "@": "at", "-": "strich", "/": "schrägstrich", ":": "doppelpunkt", "_": "unterstrich"},
    "es": {".": "punto", "@": "arroba", "-": "guion", "/": "barra", ":": "dos puntos", "_": "guion bajo"},
    "fr": {".": "point", "@": "arobase", "-": "tiret", "/": "barre", ":": "deux points", "_": "souligné"},
    "it": {".": "punto", "@": "chiocciola", "-": "trattino", "/": "barra", ":": "due punti", "_": "trattino basso"},
    "nl": {".": "punt", "@": "apenstaartje", "-": "streepje", "/": "schuine streep", ":": "dubbele punt"},
    "pt": {".": "ponto", "@": "arroba", "-": "traço", "/": "barra", ":": "dois pontos", "_": "sublinhado"},
}
LAWFUL: Mapping[str, tuple[str, Sequence[str]]] = {
    "joined emoji": (
        "en",
        ("we had a great day at the beach 👨\u200d👩\u200d👧", "well done 👩🏽\u200d💻❤\ufe0f and thank you"),
    ),
    "French no-break spaces": (
        "fr",
        ("est-ce que vous venez\u00a0?", "c’est vraiment très bien\u202f!", "il a dit\u00a0: «\u00a0oui\u00a0»"),
    ),
    "soft hyphens": (
        "de",
        ("die Wohn\u00adungs\u00adsuche ist schwer", "das ist eine Ge\u00adwohn\u00adheits\u00adsache von uns allen"),
    ),
    "Persian": ("fa", ("من می\u200cخواهم به خانه بروم", "کتاب\u200cها روی میز هستند")),
    "Hindi": ("hi", ("यह एक अच्छा दिन है क्\u200dष", "हम श्री\u200dमान से मिले थे")),
    "full-width signs": ("ja", ("今日はとても暑いですね！", "これはＯＫです（たぶん）。", "はい、ＣＤを聞きました。")),
    "right-to-left marks": ("he", ("שלום לכולם\u200f!", "\u200fזה יום טוב\u200f.")),
    "accents apart": ("fr", ("le cafe\u0301 est de\u0301ja\u0300 froid", "une fore\u0302t tre\u0300s belle")),
    "Greek and Russian": ("el", ("καλημέρα σε όλους σας", "добрый день, как дела", "ο λόγος που ήρθα")),
    "accents apart in English": ("en", ("we had a nice cafe\u0301 lunch",)),
    "signs of English": (
        "en",
        ("it’s fine — really… isn’t it?", "the “big” one, no\u00a0doubt", "tea & cake &amp; more"),
    ),
    "line ends": ("en", ("thanks for the help\nwe will see you there\r\n", "it is late\nand we are tired")),
    "counting": ("en", ("one or two of them were late", "it takes four to six of us, maybe seven")),
}
CYRILLIC = dict(zip("aceopxyijsABCEHIJKMOPSTXY", "асеорхуіјѕАВСЕНІЈКМОРЅТХУ", strict=True))
GREEK = dict(zip("oviptuABEHIKMNOPTXYZ", "ονιρτυΑΒΕΗΙΚΜΝΟΡΤΧΥΖ", strict=True))
OTHER_SIGNS = {".": "․", "-": "‐", "@": "＠", ":": "꞉", "/": "⁄"}
ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff\u180e"
MARKS = "\u200e\u200f\u202a\u202b\u202d\u2066\u2067\u202c\u2069\u061c"
ACCENTS = "\u0301\u0300\u0308\u0323\u0331\u0335\u0336\u0337\u0338\u0332\u034f\u0489"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
TEENS = (
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen"),
    *("sixteen", "seventeen", "eighteen", "nineteen"),
)
SPELLED_SIGNS = {".": "dot", "@": "at", "-": "dash", "/": "slash", ":": "colon", "_": "underscore", "+": "plus"}
LEET = dict(zip("aeiostbgl", "431057691", strict=True))
LETTERS_FOR_DIGITS = dict(zip("01258", "OlZSB", strict=True))
ENTITIES = {"@": "&commat;", ".": "&period;", "-": "&hyphen;", "/": "&sol;", ":": "&colon;", "_": "&lowbar;"}

Chance = random.Random


class Case(NamedTuple):
    """A text with a secret at [start, end), the form in which it is hidden and its kind."""

    text: str
    start: int
    end: int
    form: str
    kind: str


# Secrets, invented.


_faker = functools.cache(Faker)


def _card(chance: Chance, faker: Faker) -> str:
    number = faker.credit_card_number(chance.choice(("visa", "mastercard")))
    return chance.choice(("", " ", "-")).join(re.findall("....", number))


def _phone(chance: Chance, faker: Faker) -> str:
    form = chance.choice(
        ("+1 {0}-{1}-{2}", "({0}) {1}-{2}", "{0}-{1}-{2}", "+44 20 {1} {2}", "+49 30 {2}{1}", "0{0} {1}{2}")
    )
    return form.format(chance.randint(201, 989), chance.randint(200, 999), chance.randint(1000, 9999))


def _iban(chance: Chance, faker: Faker) -> str:
    number = _faker(chance.choice(NATIONAL)).iban()
    return " ".join(re.findall(".{1,4}", number)) if chance.random() < 0.5 else number


def _national(chance: Chance, faker: Faker) -> str:
    locale = chance.choice(NATIONAL)
    own: Any = _faker(locale)
    if locale == "es_ES":
        # Faker's own is drawn past its seed
        number = chance.randrange(10**8)
        return f"{number:08}{'TRWAGMYFPDXBNJZSQVHLCKE'[number % 23]}"
    return str(own.rvnr() if locale == "de_DE" else own.ssn())


def _name(chance: Chance, faker: Faker) -> str:
    return f"{faker.first_name()} {faker.last_name()}"


KINDS: Mapping[str, tuple[str, Callable[[Chance, Faker], str]]] = {
    "name": ("name", _name),
    "e-mail": ("contact", lambda c, f: f.ascii_free_email()),
    "telephone": ("number", _phone),
    "card": ("number", _card),
    "IBAN": ("number", _iban),
    "SSN": ("number", lambda c, f: _faker("en_US").ssn()),
    "national number": ("number", _national),
    "address": ("address", lambda c, f: f.street_address().replace("\n", ", ")),
    "IP address": ("number", lambda c, f: f.ipv4_public()),
    "link": ("contact", lambda c, f: f"{c.choice(('instagram', 'twitter', 'github'))}.com/{f.user_name()}"),
}
"""Kinds of secrets: the sentences that each stands in, and how one is made."""


# Forms, each a function of a secret; None where the secret cannot be written in it.


def _between(secret: str, signs: str, chance: Chance) -> str:
    """With some of ``signs`` between characters, everywhere or here and there."""
    share = chance.choice((0.3, 0.6, 1.0))
    places = range(1, len(secret))
    chosen = {place for place in places if chance.random() < share} or {chance.choice(places)}
    return "".join(chance.choice(signs) * (i in chosen) + sign for i, sign in enumerate(secret))


def _replaced(secret: str, table: Mapping[str, str], chance: Chance) -> str | None:
    """With some characters, or all that there are, replaced by those of ``table``."""
    share = chance.choice((0.5, 0.8, 1.0))
    written = "".join(table[s] if s in table and chance.random() < share else s for s in secret)
    return written if written != secret else None


def _styled(secret: str, chance: Chance) -> str:
    """In letters and digits of mathematics, of one style."""
    upper, lower, digit = chance.choice(
        ((0x1D400, 0x1D41A, 0x1D7CE), (0x1D5D4, 0x1D5EE, 0x1D7EC), (0x1D670, 0x1D68A, 0x1D7F6))
    )
    bases = ((ord("A"), 26, upper), (ord("a"), 26, lower), (ord("0"), 10, digit))
    table = {chr(first + i): chr(base + i) for first, count, base in bases for i in range(count)}
    return "".join(table.get(sign, sign) for sign in secret)


def _wide(secret: str, chance: Chance) -> str | None:
    table = {chr(code): chr(code + 0xFEE0) for code in range(0x21, 0x7F)}
    return _replaced(secret, table, chance)


def _spelled_abroad(secret: str, chance: Chance, language: str) -> str | None:
    """Digits and signs in words of another language."""
    if sum(map(str.isdigit, secret)) < 4:
        return None
    digits, signs = DIGITS[language].split(), SIGNS_ABROAD[language]
    words = [digits[int(sign)] if sign.isdigit() else signs.get(sign, sign) for sign in secret if sign not in " -()+"]
    return chance.choice((" ", " ", ", ", "-")).join(words)


def _at_dot_abroad(secret: str, chance: Chance, language: str) -> str | None:
    if "@" not in secret and not re.search(r"[a-z]\.[a-z]", secret):
        return None
    signs = SIGNS_ABROAD[language]
    around = chance.choice(("({})", "[{}]", " {} ", " ({}) ", "{{{}}}", "-{}-"))
    return secret.replace("@", around.format(signs["@"])).replace(".", around.format(signs["."]))


def _spelled(secret: str, chance: Chance) -> str | None:
    """Digits in words, some pairs of them as one number."""
    if sum(map(str.isdigit, secret)) < 4:
        return None
    pairs, join = chance.random() < 0.3, chance.choice((" ", " ", ", ", "-"))
    words, at = [], 0
    while at < len(secret):
        two = secret[at : at + 2]
        if pairs and two.isdigit() and len(two) == 2 and two[0] != "0" and chance.random() < 0.5:
            tens, one = map(int, two)
            words.append(TEENS[one] if tens == 1 else TENS[tens] + (f"-{WORDS[one]}" if one else ""))
            at += 2
            continue
        sign = secret[at]
        # "oh" is how people say a zero
        words.append(chance.choice(("zero", "oh")) if sign == "0" else WORDS[int(sign)] if sign.isdigit() else sign)
        at += 1
    kept = [SPELLED_SIGNS.get(word, word) if word in ".@/:" else word for word in words if word not in " -()+"]
    return join.join(kept)


def _leet(secret: str, chance: Chance) -> str | None:
    if any(map(str.isdigit, secret)) and not any(map(str.islower, secret)):
        return _replaced(secret, LETTERS_FOR_DIGITS, chance)
    return _replaced(secret, LEET, chance)


def _separated(secret: str, chance: Chance) -> str:
    """With one and the same sign after every character, or every two or three, of a run."""
    bare = re.sub(r"(?<=\d)[ .()-]+(?=\d)", "", secret)
    size, sign = (
        chance.choice((1, 1, 2, 3)),
        chance.choice((" ", " ", "  ", ".", "-", "_", " - ", "/", "·", "*", "|", ",")),
    )
    if not any(map(str.isdigit, bare)):
        size = 1
    return " ".join(sign.join(re.findall(f".{{1,{size}}}", part)) for part in bare.split())


def _broken(secret: str, chance: Chance) -> str:
    """With a line break at a space, or within a word."""
    sign = chance.choice(("\n", "\r\n", "-\n", "\n\n", "\u2028"))
    spaces = [match.start() for match in re.finditer("[ .@/-]", secret)]
    place = chance.choice(spaces) + 1 if spaces and chance.random() < 0.6 else chance.randint(2, len(secret) - 2)
    return secret[:place].rstrip(" ") + sign + secret[place:].lstrip(" ")


def _at_dot(secret: str, chance: Chance) -> str | None:
    if "@" not in secret and not re.search(r"[a-z]\.[a-z]", secret):
        return None
    at = chance.choice(("(at)", "[at]", " at ", " (at) ", " [ at ] ", "{at}", " AT ", "<at>", "-at-", "_at_"))
    dot = chance.choice(("(dot)", "[dot]", " dot ", " (dot) ", "{dot}", " DOT ", "[.]", "(.)", "<dot>", "_dot_"))
    return secret.replace("@", at).replace(".", dot)


def _entities(secret: str, chance: Chance) -> str:
    share, form = chance.choice((0.3, 1.0)), chance.choice(("&#{};", "&#x{:x};", "&#x{:04X};", "&#{:05d};"))
    first = chance.randrange(len(secret))
    if chance.random() < 0.25 and any(sign in ENTITIES for sign in secret):
        return "".join(ENTITIES.get(sign, sign) for sign in secret)
    return "".join(
        form.format(ord(sign)) if sign != " " and (i == first or chance.random() < share) else sign
        for i, sign in enumerate(secret)
    )


def _accented(secret: str, chance: Chance) -> str:
    marks = chance.choice((ACCENTS, "\u0336", "\u0332", "\u0338"))
    return "".join(sign + (chance.choice(marks) if sign.isalnum() else "") for sign in secret)


def _turned(secret: str, chance: Chance) -> str:
    """With marks of direction in between, or written backwards and turned round by one."""
    return f"\u202e{secret[::-1]}\u202c" if chance.random() < 0.2 else _between(secret, MARKS, chance)


FORMS: Mapping[str, Callable[[str, Chance], str | None]] = {
    "zero-width": lambda s, c: _between(s, ZERO_WIDTH, c),
    "Cyrillic and Greek": lambda s, c: _replaced(s, c.choice((CYRILLIC, GREEK, CYRILLIC | OTHER_SIGNS)), c),
    "full-width": _wide,
    "mathematical": _styled,
    "digits in words": _spelled,
    "leetspeak": _leet,
    "separators": _separated,
    "line breaks": _broken,
    "(at), [dot]": _at_dot,
    "HTML entities": _entities,
    "combining accents": _accented,
    "direction marks": _turned,
    "soft hyphens": lambda s, c: _between(s, "\u00ad", c),
}


# The benchmark.


def cases(count: int, seed: int, language: str = "en") -> list[tuple[Case, Case]]:
    """``count`` cases in turn over the forms, each with the secret as it is beside it."""
    chance, found = random.Random(seed), list[tuple[Case, Case]]()
    Faker.seed(seed)
    own = [locale for locale in LOCALES if locale.startswith(language)]
    fakers = [_faker(locale) for locale in (LOCALES if language == "en" else own)]
    carriers = CARRIERS if language == "en" else ABROAD[language]
    for form in itertools.islice(itertools.cycle(FORMS), count):
        kind, secret, hidden = _hidden(form, chance, fakers, language)
        carrier = chance.choice(carriers[KINDS[kind][0]])
        found.append((_placed(carrier, hidden, form, kind), _placed(carrier, secret, "plain", kind)))
    return found


_ABROAD_FORMS = {"digits in words": _spelled_abroad, "(at), [dot]": _at_dot_abroad}


def _hidden(form: str, chance: Chance, fakers: Sequence[Faker], language: str) -> tuple[str, str, str]:
    """A kind, a secret of it, and how it is written in ``form``."""
    own = None if language == "en" else _ABROAD_FORMS.get(form)
    while True:
        kind = chance.choice(tuple(KINDS))
        # letters that ASCII does not have would be found by themselves
        secret = unicodedata.normalize("NFKD", KINDS[kind][1](chance, chance.choice(fakers)))
        secret = secret.encode("ascii", "ignore").decode()
        hidden = own(secret, chance, language) if own else FORMS[form](secret, chance)
        if hidden is not None and hidden != secret:
            return kind, secret, hidden


def _placed(carrier: str, secret: str, form: str, kind: str) -> Case:
    start = carrier.index("{")
    text = f"{carrier[:start]}{secret}{carrier[carrier.index('}') + 1 :]}"
    return Case(text, start, start + len(secret), form, kind)


def measured(detector: Detector, found: Sequence[Case], show: bool) -> dict[str, Any]:
    """{n, covered by π, missed by both} of all cases, and by form and kind."""
    rows: dict[str, dict[str, list[tuple[bool, bool]]]] = defaultdict(lambda: defaultdict(list))
    for case, detection in zip(found, detector.detect(case.text for case in found), strict=True):
        masked = merge_intervals(case.text, ((span.start, span.end) for span in detection.strict))
        covered = any(start <= case.start and case.end <= end for start, end in masked)
        missed = route_example(case.text, detection).split == PUBLIC
        for part, name in (("all", "all"), ("by_form", case.form), ("by_kind", case.kind)):
            rows[part][name].append((covered, missed))
        if show and missed:
            print(f"{case.form}, {case.kind}: {case.text!r}", file=sys.stderr)
    table = {part: {name: _figures(own) for name, own in named.items()} for part, named in rows.items()}
    return {**table.pop("all")["all"], **table}


def _figures(own: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    covered, missed = (sum(column) for column in zip(*own, strict=True))
    return {
        "n": len(own),
        "covered_by_strict": {"spans": covered, **estimate_proportion(covered, len(own))},
        "missed_by_both": {"misses": missed, **estimate_proportion(missed, len(own))},
    }


def public_of(detector: Detector, texts: Iterable[str]) -> dict[str, int]:
    """How many of ``texts`` are public."""
    own = list(texts)
    sides = [route_example(t, d).split for t, d in zip(own, detector.detect(own), strict=True)]
    return {"n": len(own), "public": sides.count(PUBLIC)}


def _plain_settings(language: str) -> DetectSettings:
    """Without what knows English alone, in another language."""
    if language == "en":
        return DetectSettings()
    rules = [name for name in ConservativeSettings().rules if name not in SOFT_RULES]
    given = {"language": language, "tagger": None, "conservative": {"rules": rules}}
    return DetectSettings.model_validate(given)


def _abroad(language: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same of another language, with a sixth of the cases."""
    detector = Detector(DetectSettings.model_validate({"language": language}))
    found = [hidden for hidden, _ in cases(arguments.cases // len(ABROAD) + 1, arguments.seed, language)]
    clean = [re.sub("[{}]", "", carrier) for carriers in ABROAD[language].values() for carrier in carriers]
    return {"hidden": measured(detector, found, arguments.show), "clean": public_of(detector, clean)}


def main() -> None:
    """Measure; one JSON object on standard output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--show", action="store_true", help="print the cases that both policies miss")
    arguments = parser.parse_args()
    detector = Detector(DetectSettings())
    pairs = cases(arguments.cases, arguments.seed)
    clean = [re.sub("[{}]", "", carrier) for carriers in CARRIERS.values() for carrier in carriers]
    result = {
        "benchmark": "hidden_forms",
        "seed": arguments.seed,
        "policies": compute_policy_hashes(DetectSettings()),
        "hidden": measured(detector, [hidden for hidden, _ in pairs], arguments.show),
        "plain": measured(detector, [plain for _, plain in pairs], False),
        "clean": {
            "sentences": public_of(detector, clean),
            **{
                name: public_of(Detector(_plain_settings(language)), texts)
                for name, (language, texts) in LAWFUL.items()
            },
        },
        **{language: _abroad(language, arguments) for language in ABROAD},
    }
    print(json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False))


if __name__ == "__main__":
    main()
