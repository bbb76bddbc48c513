"""Names of people in Latin letters: Faker's, romanised ones, invented ones, and those that are words too.

Names are drawn uniformly over the distinct ones of a locale, not by how many people bear them, so that
rare names occur as often as common ones.
"""

from __future__ import annotations

import importlib
import random
import re
from functools import cache
from typing import Any, NamedTuple

from varied.stock import stock

_LOCALES = {
    "en_US": 9, "en": 6, "en_GB": 5, "en_IE": 2, "en_IN": 4, "en_NZ": 2, "en_KE": 2, "en_PK": 2, "en_TH": 1,
    "es_ES": 2, "es_MX": 3, "es_AR": 1, "es_CO": 1, "es_CL": 1, "de_DE": 3, "de_AT": 1, "de_CH": 1,
    "fr_FR": 2, "fr_CA": 1, "fr_BE": 1, "it_IT": 2, "pt_BR": 2, "pt_PT": 1, "nl_NL": 2, "nl_BE": 1,
    "sv_SE": 1, "da_DK": 1, "no_NO": 1, "fi_FI": 1, "cs_CZ": 1, "sk_SK": 1, "hu_HU": 1, "hr_HR": 1,
    "sl_SI": 1, "ro_RO": 1, "tr_TR": 1, "et_EE": 1, "lt_LT": 1, "lv_LV": 1, "az_AZ": 1, "uz_UZ": 1,
    "id_ID": 1, "vi_VN": 1, "ig_NG": 1, "yo_NG": 1, "ha_NG": 1, "tw_GH": 1, "sw": 1, "zu_ZA": 1, "ga_IE": 1,
}  # fmt: skip
_CLEAN = re.compile(r"[A-Z'\u00c0-\u024f\u1e00-\u1eff][A-Za-z' \u00c0-\u024f\u1e00-\u1eff-]+")
_PARTICLES = re.compile(r"(van|de|da|di|del|le|der|den|von|dos) ")

_ROMANISED = ("chinese", "japanese", "korean", "arabic", "slavic", "mixed")
_ONSETS = stock("names", "onsets")
_VOWELS = stock("names", "vowels")
_CODAS = stock("names", "codas")
_ENDINGS = (
    "", "", "", "a", "o", "i", "e", "son", "sen", "ez", "ov", "ova", "ski", "ska", "wicz", "ian", "yan",
    "idis", "ou",
    "oglu", "shvili", "enko", "uk", "ic", "ley", "ton", "ford", "well", "man", "mann", "berg", "stein",
    "ini",
    "elli", "etti", "eau", "ard", "ier", "wala", "kar", "nath", "pur",
)  # fmt: skip


class Names(NamedTuple):
    """A given name and a surname."""

    first: str
    last: str


@cache
def _locale(locale: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The distinct given names and surnames of one of Faker's locales, sorted."""
    provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
    return _stock(provider, "first_names"), _stock(provider, "last_names")


def _stock(provider: Any, name: str) -> tuple[str, ...]:
    found: set[str] = set()
    for suffix in ("", "_male", "_female"):
        listed = getattr(provider, name + suffix, ())
        if isinstance(listed, tuple | list | dict):
            found.update(each.strip() for each in listed)
    return tuple(sorted(n for n in found if _CLEAN.fullmatch(n) or _PARTICLES.match(n)))


@cache
def _weighted() -> tuple[tuple[str, ...], tuple[int, ...]]:
    return tuple(_LOCALES), tuple(_LOCALES.values())


_ROMAN = tuple((stock("names", f"{tongue}_first"), stock("names", f"{tongue}_last")) for tongue in _ROMANISED)
WORD_FIRSTS = stock("names", "word_firsts")
WORD_LASTS = stock("names", "word_lasts")
NICKS = stock("names", "nicks")


def invented(draw: random.Random, syllables: int = 0) -> str:
    """A name that nobody bears, of one or two syllables and an ending."""
    count = syllables or draw.choice((1, 1, 2, 2))
    made = ""
    for number in range(count):
        onset = "" if number == 0 and draw.random() < 0.15 else draw.choice(_ONSETS)
        made += onset + draw.choice(_VOWELS)
    made += draw.choice(_CODAS) if draw.random() < 0.8 else ""
    return (made + (draw.choice(_ENDINGS) if len(made) < 8 else "")).capitalize()


def _drawn(draw: random.Random) -> Names:
    kind = draw.random()
    if kind < 0.10:
        return Names(invented(draw), invented(draw))
    if kind < 0.22:
        firsts, lasts = draw.choice(_ROMAN)
        return Names(draw.choice(firsts), draw.choice(lasts))
    locale = draw.choices(*_weighted())[0]
    firsts, lasts = _locale(locale)
    if len(lasts) < 15:
        lasts = _locale("en_US")[1]
    return Names(draw.choice(firsts), draw.choice(lasts))


def draw_names(draw: random.Random) -> Names:
    """A given name and a surname: mostly of one language, at times mixed, invented, or English words."""
    names = _drawn(draw)
    if draw.random() < 0.12:
        names = Names(names.first, _drawn(draw).last)
    if draw.random() < 0.06:
        names = Names(draw.choice(WORD_FIRSTS), names.last)
    if draw.random() < 0.07:
        names = Names(names.first, draw.choice(WORD_LASTS))
    return names
