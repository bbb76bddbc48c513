"""Blind spots: kinds of names that nothing in a policy looks for, in the language of the text.

Patterns and lists find forms and what was listed.  Names of persons, places and organisations in running
text are found by a model of that language, or made private by rules under which no name passes for a word.
Where there is neither, such names are public, and no check of what the policies found could tell.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from redactory.detectors.engine import MODELS, finds_of
from redactory.detectors.rules import holding, words_if_any
from redactory.detectors.settings import AUTO, DetectSettings, RuleName
from redactory.foundation.errors import listed

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

Kind = Literal["PERSON", "LOCATION", "ORGANIZATION", "EVERYTHING"]
"""EVERYTHING stands for a policy that masks nothing in the texts of ``detector.PROBE``."""

_LABELS: dict[Kind, re.Pattern[str]] = {
    # as models name what they find, in whatever spelling
    "PERSON": re.compile(
        r"(?:.*_)?(?:PERS?|PERSON|PERSONA|PERSONNE|PATIENT|DOCTOR|NOMBRE|SURNAME|APELLIDOS?)(?:_.*)?|"
        r"(?:(?:FIRST|LAST|MIDDLE|GIVEN|FULL|FAMILY)_?)?NAME"
    ),
    "LOCATION": re.compile(r"(?:.*_)?(?:LOC|LOCATION|GPE|PLACE|CITY|TOWN|LUGAR|LIEU|ORT|TERRITORIO)(?:_.*)?"),
    "ORGANIZATION": re.compile(
        r"(?:.*_)?(?:ORG|ORGANI[SZ]ATION|COMPANY|CORP|HOSPITAL|INSTITUTION|INSTITUCION)(?:_.*)?"
    ),
}
_RULES: dict[Kind, frozenset[RuleName]] = {
    "PERSON": frozenset({"capital", "word", "name"}),
    "LOCATION": frozenset({"capital", "word"}),
    "ORGANIZATION": frozenset({"capital", "word"}),
}
"""The rules that together leave no such name public, but one of ordinary words at a sentence's start."""

MOST_CHARS, PIECE, MOST_PIECES = 1_500, 300, 60
"""Of a sampled text so many code points are looked at; so many at once tell a language; so many a sample."""
SURE = 0.9
"""From this probability on a text, or a piece of a sample, is in a language."""
_SHARE = 0.1
"""From this share of a sample on, a language is one of the corpus."""
_ONE_LANGUAGE = {"nb": "no", "nn": "no", "nno": "no", "hr": "sh", "bs": "sh", "sr": "sh"}


def blind_kinds(settings: DetectSettings, language: str) -> list[Kind]:
    """The kinds of names that no engine and no rule of ``settings`` finds in text of ``language``."""
    if settings.conservative.flags_everything or settings.language == AUTO:
        return []
    return _unseen(settings, language, settings.language)


def _unseen(settings: DetectSettings, language: str, ruled: str) -> list[Kind]:
    """The same, where the rules of words and capitals are those of the language ``ruled``."""
    read = {_plain(language), "xx", None}
    models = [found for _, found in finds_of(settings, MODELS) if found.labels and found.reads != "forms"]
    labels = {
        re.sub(r"\W", "_", label).upper()
        for found in models
        for label in found.labels
        if (found.language and _plain(found.language)) in read
    }
    # a model that is sure that a word is plain forgives it the rules
    heard = not any(found.reads == "tokens" for found in models) or settings.conservative.confident_threshold >= 1
    asked = settings.conservative.rules if heard and _plain(ruled) in read else ()
    rules = frozenset(holding(asked, _plain(ruled)))
    return [kind for kind, form in _LABELS.items() if not (_RULES[kind] <= rules or any(map(form.fullmatch, labels)))]


def blindness(settings: DetectSettings, sample: Mapping[str, int], masks_nothing: bool = False) -> dict[str, Any]:
    """``{"kinds": {kind: [language]}, "languages": {language: share}}``: what a policy does not see.

    ``sample`` counts pieces of the corpus by the language that each is in (:func:`languages_of`); where it
    is empty, the language is taken to be that of the settings.
    """
    decided = sum(sample.values())
    shares = {language: count / decided for language, count in sorted(sample.items())}
    there = {language: round(share, 2) for language, share in shares.items() if share >= _SHARE}
    kinds: dict[str, list[str]] = {}
    for language in dict.fromkeys((settings.language, *there)):
        for kind in blind_kinds(settings, language):
            kinds.setdefault(kind, []).append(language)
    if masks_nothing:
        kinds["EVERYTHING"] = [settings.language]
    return {"kinds": kinds, "languages": there}


def blind_words(blind: Mapping[str, Any]) -> str | None:
    """What :func:`blindness` found, as one sentence; None where there is no blind spot."""
    if "EVERYTHING" in blind["kinds"]:
        return (
            "Blind: the strict policy masks nothing, not even the names, the e-mail address, the telephone "
            "number and the card number of a built-in text: see detect.strict.labels and the engines."
        )
    if not blind["kinds"]:
        return None
    kinds = listed(blind["kinds"], "or")
    by_language = dict.fromkeys(language for found in blind["kinds"].values() for language in found)
    shares = blind["languages"]
    languages = [f"'{one}'" + (f" ({shares[one]:.0%} of a sample)" if one in shares else "") for one in by_language]
    return (
        f"Blind: no engine and no rule of this policy finds the kinds {kinds} in {listed(languages, 'or')} "
        "text, so such names can remain unmasked in the public text."
    )


def blind_said(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """A manifest's :func:`blindness` that may leave; where counts decide, that of the settings' language.

    What a sample of the whole corpus is in follows from private text, and the counts do not hide it.
    """
    blind: Mapping[str, Any] = manifest["blind"]
    if "route" not in manifest:
        return blind
    own = manifest.get("configuration", {}).get("detect", {}).get("language", "en")
    return {"kinds": {kind: [own] for kind, found in blind["kinds"].items() if own in found}, "languages": {}}


def languages_of(texts: Iterable[str]) -> Iterator[str]:
    """The language of each piece of ``texts``, joined and cut anew, of which it is sure.

    A function of the texts alone; nothing is downloaded.  Too little text has no language.
    """
    joined = "\n".join(text[:MOST_CHARS] for text in texts)
    pieces = [joined[start : start + PIECE] for start in range(0, len(joined) - PIECE + 1, PIECE)]
    # from all over the texts, not from the first of them
    for piece in pieces[:: max(1, -(-len(pieces) // MOST_PIECES))]:
        language, probability = _identifier().classify(piece)
        if probability >= SURE:
            yield _plain(language)


@functools.lru_cache(maxsize=64)
def language_of(text: str) -> str | None:
    """The language that half of ``text`` or more is surely in, and none of it surely in another; else None.

    A function of the text alone.  It is looked at in parts of 300 to 600 code points, or as one: a long text
    of which each part is sure may be none as a whole.
    """
    starts = range(0, max(0, len(text) - PIECE) + 1, PIECE)
    parts = [text[start : start + PIECE] for start in starts[:-1]] + [text[starts[-1] :]]
    classified = map(_identifier().classify, parts)
    sure = [_plain(language) for language, probability in classified if probability >= SURE]
    return sure[0] if len(set(sure)) == 1 and 2 * len(sure) >= len(parts) else None


def languages_read(settings: DetectSettings) -> frozenset[str]:
    """The languages in which ``settings`` find names of every kind; ``xx`` where they do in any."""
    declared = {_plain(found.language or "xx") for _, found in finds_of(settings, MODELS)}
    listed_words = {language: language if words_if_any(language) else "" for language in declared | {"en"}}
    return frozenset(one for one, ruled in listed_words.items() if not _unseen(settings, one, ruled))


def _plain(language: str) -> str:
    """Without its region, and by one name where a language has several."""
    own = re.split("[-_]", language.lower())[0]
    return _ONE_LANGUAGE.get(own, own)


@functools.cache
def _identifier() -> LanguageIdentifier:
    # its model takes a second to unpack
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
