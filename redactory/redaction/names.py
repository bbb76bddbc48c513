"""Persons' names: read their parts, decide whether one name abbreviates another, and look words up in Faker's lists."""

from __future__ import annotations

import unicodedata
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import regex

if TYPE_CHECKING:
    from faker import Faker

_MALE, _FEMALE = "m", "f"
_GENDERS = {"male": _MALE, "female": _FEMALE}
_TITLES_BY_GENDER = {
    "": "dr drs prof professor doctor docteur doktor mx rev reverend dott dottore avv ing dring capt captain lt sgt "
    "sergeant colonel",
    _MALE: "mr mister sir lord herr herrn hr monsieur senor sr signor signore sig dhr senhor meneer heer",
    _FEMALE: "mrs ms miss madam dame lady frau fraulein mme mlle madame mademoiselle dra senora sra senorita srta "
    "signora signorina sigra signa dottssa profssa mevr mevrouw mw",
}
_TITLES = {title: gender for gender, titles in _TITLES_BY_GENDER.items() for title in titles.split()}
"""Gender by title, folded and without dots; empty if the title has none."""
_DON = {"don": _MALE, "dona": _FEMALE, "dna": _FEMALE}
_LOCAL_TITLES = {"fr": {"m": _MALE, "me": "", "pr": ""}, **dict.fromkeys(("es", "it", "pt"), _DON), "de": {"mag": ""}}
"""Titles that are names or initials in other languages."""
_NAMES_ELSEWHERE = {"heer": ("nl",), "ing": ("de", "es", "it", "nl", "pt"), "sig": ("it",)}
"""Titles that are names in other languages than these, unless in lower case or with a full stop."""
_GENERATIONS = {"jr": "jr", "junior": "jr", "jun": "jr", "sr": "sr", "senior": "sr", "sen": "sr"}
_GENERATIONS |= {number: number for number in ("ii", "iii", "iv")}
_NAMES = {"jun", "sen"}
"""Generations that are also names: Amartya Sen."""
_DEGREES = {"MD", "PhD", "Ph D", "Esq", "MBA", "CPA", "DDS", "JD", "OBE", "CBE", "MBE", "MSc", "BSc", "LLM", "RN"}
_PARTICLE_WORDS = (
    "van von vom zu zum zur af der den de dem het ten ter te t del della delle dello dei di da do dos das du des la "
    "las los le el al bin ibn bint"
)
_PARTICLES = frozenset(_PARTICLE_WORDS.split())
_FIRST_PARTICLES = {"van", "von", "vom", "zu", "de"}
_ARTICLES = {"der", "den", "de", "dem", "het", "ten", "ter", "te", "t", "la", "las", "los"}
"""Particles with a capital at the start of a name, as in "Van der Berg"; others are names there ("Do Van Minh")."""
_FACULTIES = {"med", "phil", "jur", "rer", "nat", "habil"}
_CONJUNCTIONS = {"and", "und", "y", "et", "e", "en", "i", "og", "och"}
_LETTERS = r"[\p{L}\p{M}\p{N}]"
_WORD = regex.compile(
    r"(?:dott|prof)\.ssa\b|sig\.(?:ra|na)\b|dr\.-ing\b|(?<=\p{L}[\s,]+)(?:ph\.\s?d|m\.\s?d)(?=\.?$)"
    rf"|['’]s\b(*SKIP)(*FAIL)|{_LETTERS}+(?:['’](?!s\b){_LETTERS}+)*",
    regex.IGNORECASE,
)
"""A word without the possessive 's, or an abbreviation with dots."""


class NameWord(NamedTuple):
    """One word of a name: its place in the value, its folded text, and what it is."""

    start: int
    end: int
    text: str
    role: str
    """``word``, ``initial``, ``title``, ``particle``, ``generation`` (Jr., III), ``degree`` or ``conjunction``."""


class PersonName(NamedTuple):
    """What distinguishes a person's name, in the order of "Mary Smith"; compound words keep their hyphen."""

    words: tuple[str, ...]
    gender: str = ""
    """``m`` or ``f``, from a title; empty without."""
    generation: str = ""
    title: str = ""
    is_list: bool = False
    """Several persons, or a form that was not understood: equal only to itself."""

    @property
    def surname_start(self) -> int:
        """Where the surname begins, particles included ("van der Berg")."""
        start = len(self.words) - 1
        while start > 0 and self.words[start - 1] in _PARTICLES:
            start -= 1
        return start


def fold_word(word: str) -> str:
    """Fold the case of ``word``; drop apostrophes, and the accents of Latin and Greek letters."""
    folded = regex.sub("['’.\\s-]", "", word.casefold())
    if regex.match(r"[\p{Latin}\p{Greek}]", folded):
        folded = "".join(one for one in unicodedata.normalize("NFKD", folded) if not unicodedata.combining(one))
    return unicodedata.normalize("NFC", folded).replace("ς", "σ")


def _get_titles(language: str) -> dict[str, str]:
    return _TITLES | _LOCAL_TITLES.get(language.partition("-")[0], {})


def is_title(value: str, language: str = "en") -> bool:
    """Return whether ``value`` consists of titles, like "Prof. Dr. med."."""
    titles = {*_get_titles(language), *_FACULTIES}
    words = [fold_word(match[0]) for match in _WORD.finditer(value)]
    return bool(words) and all(word in titles for word in words)


def has_gendered_title(title: str) -> bool:
    """Return whether ``title`` is one like "Mrs. ", which tells the gender of the name that follows."""
    return bool(_TITLES.get(fold_word(title)))


def split_name_words(value: str, language: str = "en") -> list[NameWord]:
    """Split a person's name into its words and tell what each is."""
    titles, language = _get_titles(language), language.partition("-")[0]
    matches = [*_WORD.finditer(value)]
    texts = [fold_word(match[0]) for match in matches]
    is_titles = [
        text in titles and (language in _NAMES_ELSEWHERE.get(text, (language,)) or _is_abbreviation(value, match))
        for text, match in zip(texts, matches, strict=True)
    ]
    first, last = 0, len(texts)
    # "de heer", "Dr. med."
    while first < last - 1 and (
        is_titles[first]
        or (texts[first] == "de" and is_titles[first + 1])
        or (first and texts[first] in _FACULTIES and _is_abbreviation(value, matches[first]))
    ):
        first += 1
    while last > first + 1 and (
        (
            texts[last - 1] in _GENERATIONS
            and (texts[last - 1] not in _NAMES or _is_abbreviation(value, matches[last - 1]))
        )
        or matches[last - 1][0].replace(".", "") in _DEGREES
    ):
        last -= 1
    words: list[NameWord] = []
    for place, (match, text) in enumerate(zip(matches, texts, strict=True)):
        if place < first or (words and words[-1].role in ("conjunction", "title") and is_titles[place]):
            role = "title" if place < last - 1 else "word"
        elif place >= last:
            role = "generation" if text in _GENERATIONS else "degree"
        elif match[0] in _CONJUNCTIONS and 0 < place < last - 1:
            role = "conjunction"
        elif len(text) == 1 and text.upper() != text and match[0].isupper():
            role = "initial"
        else:
            is_pair = place + 2 < last and text in _FIRST_PARTICLES and texts[place + 1] in _ARTICLES
            is_inside = place > first and not (texts[first] in _PARTICLES and words[first].role == "word")
            is_particle = text in _PARTICLES and (is_inside or is_pair or match[0].islower())
            role = "particle" if is_particle and place < last - 1 else "word"
        words.append(NameWord(match.start(), match.end(), text, role))
    return words


def _is_abbreviation(value: str, match: regex.Match[str]) -> bool:
    """Return whether a word is in lower case or has a full stop, as "jun." and "Dr. phil." but not "Dr. Phil"."""
    return match[0].islower() or value[match.end() : match.end() + 1] == "."


@lru_cache(maxsize=10_000)
def parse_name(value: str, language: str = "en") -> PersonName:
    """Parse a person's name, in either order ("Smith, Mary", "Smith Mary", "Smith M.")."""
    value = unicodedata.normalize("NFC", value).strip()
    parsed = split_name_words(value, language)
    titles = _get_titles(language)
    genders = {titles.get(one.text, "") for one in parsed if one.role == "title"} - {""}
    generations = [_GENERATIONS[one.text] for one in parsed if one.role == "generation"]
    title = " ".join(one.text for one in parsed if one.role == "title")
    # each piece between commas; "Jr." behind a comma is none
    pieces: dict[int, list[str]] = {}
    end = -1
    for one in parsed:
        if one.role not in ("title", "generation", "degree"):
            piece = pieces.setdefault(value.count(",", 0, one.start), [])
            is_joined = piece and regex.fullmatch(r"\.?[-‐]", value[end : one.start])
            piece[-1:] = [f"{piece[-1]}-{one.text}"] if is_joined else [*piece[-1:], one.text]
            end = one.end
    ordered = _order_pieces([*pieces.values()], language)
    is_list = ordered is None or len(genders) > 1 or any(one.role == "conjunction" for one in parsed)
    if is_list or ordered is None or regex.search("[&/+;]", value):
        return PersonName((" ".join(value.casefold().split()),), is_list=True)
    return PersonName(tuple(ordered), "".join(genders), "".join(generations[:1]), title)


def remove_title(value: str, language: str = "en") -> str:
    """Remove the titles before a name."""
    return value[next((word.start for word in split_name_words(value, language) if word.role != "title"), 0) :]


def split_suffix(value: str, language: str = "en") -> tuple[str, tuple[str, ...]]:
    """Split "John Smith Jr., MD" into the name and the folded spellings of its generation, if it has one."""
    words = split_name_words(value, language)
    is_suffix = [word.role in ("generation", "degree") for word in words]
    if not words or not is_suffix[-1] or all(is_suffix):
        return value, ()
    first = len(words) - is_suffix[::-1].index(False)
    generations = {_GENERATIONS[word.text] for word in words[first:] if word.role == "generation"}
    spellings = tuple(spelling for spelling, generation in _GENERATIONS.items() if generation in generations)
    return value[: words[first - 1].end], spellings


def _order_pieces(pieces: list[list[str]], language: str) -> list[str] | None:
    """Return the words in the order of "Mary Smith"; None for a list of names."""
    if len(pieces) == 1:
        return _turn_surname_first(pieces[0], language)
    if len(pieces) != 2:
        return None
    last, first = pieces
    is_surname = PersonName(tuple(last)).surname_start == 0
    is_double = not _is_given_name(last[0], language) and (len(first[0]) == 1 or _is_given_name(first[0], language))
    return [*first, *last] if is_surname or is_double else None


def _turn_surname_first(words: list[str], language: str) -> list[str]:
    """Turn "Smith Mary" and "Smith M." into the usual order, if lists of names leave no doubt."""
    start = next((place for place, word in enumerate(words) if word not in _PARTICLES), 0) + 1
    surname, rest = words[:start], words[start:]
    if not rest or _is_given_name(surname[-1], language) or len(surname[-1]) == 1:
        return words
    is_turned = all(is_initial(word) for word in rest) or (
        _is_given_name(rest[0], language) and "last" not in find_name_lists(rest[0], language)
    )
    return [*rest, *surname] if is_turned else words


def is_initial(word: str) -> bool:
    """Return whether a folded word is an initial, or several with hyphens ("j-p"), of a script with case."""
    return all(len(part) == 1 and part.upper() != part for part in word.split("-"))


def is_short_form(short: PersonName, name: PersonName, language: str = "en") -> bool:
    """Return whether ``short`` abbreviates ``name`` ("Smith", "M. Smith", "Mary", "Mrs. Smith"), which says more.

    Whether another name of the document could be meant too is for the caller to decide.
    """
    if short.is_list or name.is_list or (short.gender and name.gender and short.gender != name.gender):
        return False
    if short.generation and short.generation != name.generation:
        return False
    if _join(short.words) == _join(name.words):
        return short.generation == name.generation and not short.gender and bool(name.gender)
    if name.generation and not short.generation and short.surname_start:
        # "John Smith" beside "John Smith Jr." may be his father
        return False
    if not _abbreviates(short.words, name, language):
        return False
    listed = find_name_lists(name.words[0].partition("-")[0], language) & _GENDERS.keys()
    implied = name.gender or (_GENDERS[min(listed)] if len(listed) == 1 else "")
    return short.words[0] == name.words[0] or not short.gender or implied in ("", short.gender)


def is_turned(name: PersonName, other: PersonName, language: str = "en") -> bool:
    """Return whether two names of two words differ in their order only, and both words are not given names."""
    is_same = len(name.words) == 2 and name.words[::-1] == other.words and name[1:3] == other[1:3]
    return is_same and not all(_is_given_name(word, language) for word in name.words)


def _abbreviates(short: tuple[str, ...], name: PersonName, language: str) -> bool:
    words = name.words
    if all(map(is_initial, short)):
        return 1 < len(short) == len(words) and all(map(_matches, short, words)) and not all(map(is_initial, words))
    if all(word in _PARTICLES for word in short):
        return False
    for start in range(1, len(words) - len(short) + 1):
        # "Beethoven" for "van Beethoven", but not "Berg" for "van der Berg"
        is_whole = start == name.surname_start or start == len(words) - 1 == name.surname_start + 1
        if words[start : start + len(short)] == short and (is_whole or not _is_given_name(short[0], language)):
            return True
    if not _matches(short[0], words[0]):
        return False
    rest = iter(range(1, len(words)))
    places = [next((place for place in rest if _matches(word, words[place])), None) for word in short[1:]]
    if None in places:
        return False
    if not places:
        return True
    if places[-1] == len(words) - 1:
        particles = words[name.surname_start : -1]
        return short[len(short) - 1 - len(particles) : -1] == particles
    # "María García" for "María García López", "Mary Ann" or "Mary A." for "Mary Ann Smith"
    is_given = is_initial(short[-1]) or _is_given_name(short[-1], language)
    return is_given or language.partition("-")[0] in ("es", "pt")


def _matches(word: str, full: str) -> bool:
    if word == full:
        return True
    parts, whole = word.split("-"), full.split("-")
    return is_initial(word) and len(parts) <= len(whole) and all(map(str.startswith, whole, parts))


def _join(words: tuple[str, ...]) -> str:
    return " ".join(words).replace("-", " ")


def get_name_key(name: PersonName) -> str:
    """Return a key that is equal for equal names: "Jean Pierre" is "Jean-Pierre", and titles only tell a gender."""
    return " ".join((_join(name.words), name.generation, name.gender)).rstrip()


# Faker's lists of names.

_SCRIPT_LOCALES = {
    "CYRILLIC": "ru_RU", "GREEK": "el_GR", "HEBREW": "he_IL", "ARABIC": "ar_AA", "DEVANAGARI": "hi_IN",
    "HIRAGANA": "ja_JP", "KATAKANA": "ja_JP", "CJK": "zh_CN", "HANGUL": "ko_KR",
}  # fmt: skip
"""Faker's locale by the first word of a letter's Unicode name."""
_LOCALES = {
    "de": "de_DE", "es": "es_ES", "fr": "fr_FR", "it": "it_IT", "nl": "nl_NL", "pl": "pl_PL", "pt": "pt_PT",
    "sv": "sv_SE", "da": "da_DK", "fi": "fi_FI", "cs": "cs_CZ", "ro": "ro_RO", "tr": "tr_TR",
}  # fmt: skip


def choose_faker_locale(value: str, language: str) -> str:
    """Return Faker's locale for the script of ``value``; for Latin letters, for ``language``."""
    scripts = (unicodedata.name(letter, "").partition(" ")[0] for letter in value)
    return next((_SCRIPT_LOCALES[s] for s in scripts if s in _SCRIPT_LOCALES), _LOCALES.get(language, "en_US"))


@cache
def create_faker(locale: str) -> Faker:
    """Create Faker for ``locale``, with the same order of its lists in every process."""
    from faker import Faker

    fake = Faker(locale)
    if locale == "it_IT":
        # set order differs between processes
        address: Any = next(one for one in fake.get_providers() if hasattr(one, "cities"))
        address.cities = sorted(address.cities)
    return fake


@lru_cache(maxsize=16)
def load_faker_names(locale: str) -> dict[str, Any]:
    """Return Faker's given names and surnames of a locale, folded and as written."""
    provider = next(one for one in create_faker(locale).get_providers() if hasattr(one, "last_names"))
    last, first = list(provider.last_names), list(getattr(provider, "first_names", provider.last_names))
    female = list(getattr(provider, "first_names_female", None) or first)
    male = list(getattr(provider, "first_names_male", None) or first)
    written = {"last": last, "female": female, "male": male}
    sets = {kind: {fold_word(str(name)) for name in names} for kind, names in written.items()}
    return {**sets, "as written": written}


@lru_cache(maxsize=10_000)
def find_name_lists(word: str, language: str = "en") -> frozenset[str]:
    """Return which lists of its script and language hold a folded word: ``female``, ``male``, ``last``."""
    locale = choose_faker_locale(word, language)
    lists = [load_faker_names(one) for one in {locale, "en_US" if locale in _LOCALES.values() else locale}]
    return frozenset(kind for kind in ("female", "male", "last") if any(word in names[kind] for names in lists))


def _is_given_name(word: str, language: str) -> bool:
    return bool(find_name_lists(word.partition("-")[0], language) & _GENDERS.keys())


def is_listed_full_name(first_name: str, last_name: str) -> bool:
    """Return whether Faker's English lists hold both names, whatever their case."""
    return _is_given_name(fold_word(first_name), "en") and "last" in find_name_lists(fold_word(last_name))
