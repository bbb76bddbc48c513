"""Years, decades and centuries alone: they identify nobody, and HIPAA's Safe Harbor lets a year stay.

45 CFR 164.514(b)(2)(i)(C): "all elements of dates (except year)".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_YEAR = re.compile(
    r"(?:ca?)?\.?['’]?(?:1\d|20)\d\d(?:['’]?s|ern?|er-jahren?)?"
    r"(?:[-–—/](?:(?:1\d|20)\d\d|1[3-9]|[2-9]\d))?[.,]?"
)
_NUMERAL = re.compile(r"\d{1,2}(?:st|nd|rd|th|\.|e|er|[èe]me|º|°)?|[ivx]{1,5}e?")
_CENTURY = re.compile("century|centuries|jahrhunderts?|siècles?|siglos?|secol[oi]|séculos?|eeuw|eeuwen")
_WORD = re.compile(
    # English, German, French, Spanish, Italian, Portuguese, Dutch
    "the|a|at|in|of|on|from|to|and|until|till|since|by|about|around|circa|before|after|early|late|mid|beginning|end"
    "|middle|turn|years?|decades?"
    "|im|der|die|das|den|dem|des|von|vom|bis|seit|um|und|anfang|ende|mitte|jahre?|jahren|jahres"
    "|las?|les?|l|de|du|en|aux?|à|et|depuis|vers|jusqu|an|années?|début|fin"
    "|el|los|del|desde|hasta|y|hacia|años?|principios|finales"
    "|il|lo|i|gli|nel|nei|negli|dal|dai|al|ai|di|fino|e|ann[oi]|inizio"
    "|os?|as|nas?|nos?|do|das?|dos|em|anos?|início|fins"
    "|het|van|tot|vanaf|sinds|rond|begin|eind|jaar|jaren"
)


def is_only_years(tokens: Sequence[str]) -> bool:
    """Whether the tokens of a date name years, decades or centuries only, as in "from 1976 to the 1980s"."""
    words = [token.casefold() for token in tokens if any(map(str.isalnum, token))]
    has_century = any(map(_CENTURY.fullmatch, words))
    forms = (_YEAR, _WORD, _CENTURY, *((_NUMERAL,) if has_century else ()))
    return bool(words) and all(any(form.fullmatch(word) for form in forms) for word in words)
