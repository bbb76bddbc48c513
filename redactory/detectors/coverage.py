"""Coverage gaps: kinds of names that no engine or rule of a policy can find in the language of the text.

Patterns and lists find forms and listed terms. Names of persons, places and organisations in running text need a model
of that language, or rules that make every unknown name private. Without either, such names are public, and no check of
the policies' own findings could reveal it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from redactory.detectors.engine_registry import MODEL_ENGINES, iter_capabilities
from redactory.detectors.rules import choose_rules, load_optional_words
from redactory.detectors.settings import AUTO, DetectSettings, RuleName
from redactory.foundation.errors import join_words

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

NameKind = Literal["PERSON", "LOCATION", "ORGANIZATION", "EVERYTHING"]
"""EVERYTHING marks a policy that masks nothing in ``detector.PROBE_TEXTS``."""

_LABEL_PATTERNS: dict[NameKind, re.Pattern[str]] = {
    "PERSON": re.compile(
        r"(?:.*_)?(?:PERS?|PERSON|PERSONA|PERSONNE|PATIENT|DOCTOR|NOMBRE|SURNAME|APELLIDOS?)(?:_.*)?|"
        r"(?:(?:FIRST|LAST|MIDDLE|GIVEN|FULL|FAMILY)_?)?NAME"
    ),
    "LOCATION": re.compile(r"(?:.*_)?(?:LOC|LOCATION|GPE|PLACE|CITY|TOWN|LUGAR|LIEU|ORT|TERRITORIO)(?:_.*)?"),
    "ORGANIZATION": re.compile(
        r"(?:.*_)?(?:ORG|ORGANI[SZ]ATION|COMPANY|CORP|HOSPITAL|INSTITUTION|INSTITUCION)(?:_.*)?"
    ),
}
_RULES_BY_KIND: dict[NameKind, frozenset[RuleName]] = {
    "PERSON": frozenset({"capital", "word", "name"}),
    "LOCATION": frozenset({"capital", "word"}),
    "ORGANIZATION": frozenset({"capital", "word"}),
}
"""Rules that together make every such name private, except common words at the start of a sentence."""

MAX_SAMPLE_CHARS, CHUNK_CHARS, MAX_CHUNKS = 1_500, 300, 60
"""Code points read per sampled text, per language decision, and per sample."""
LANGUAGE_THRESHOLD = 0.9
"""Minimum probability to assign a language to a text or a piece of a sample."""
_MIN_SHARE = 0.1
"""Minimum share of a sample for a language to count as part of the corpus."""
_LANGUAGE_ALIASES = {"nb": "no", "nn": "no", "nno": "no", "hr": "sh", "bs": "sh", "sr": "sh"}


def find_uncovered_kinds(settings: DetectSettings, language: str) -> list[NameKind]:
    """Return the kinds of names that no engine and no rule of ``settings`` finds in text of ``language``."""
    if settings.conservative.flags_everything or settings.language == AUTO:
        return []
    return _compute_uncovered_kinds(settings, language, settings.language)


def _compute_uncovered_kinds(settings: DetectSettings, language: str, rules_language: str) -> list[NameKind]:
    """Do the same, with the word and capital rules of ``rules_language``."""
    read = {_normalize_language(language), "xx", None}
    models = [
        capability
        for _, capability in iter_capabilities(settings, MODEL_ENGINES)
        if capability.labels and capability.scope != "forms"
    ]
    labels = {
        re.sub(r"\W", "_", label).upper()
        for capability in models
        for label in capability.labels
        if (capability.language and _normalize_language(capability.language)) in read
    }
    chosen_rules = choose_rules(settings.conservative.rules, rules_language, settings.tagger is not None)
    rules = frozenset(chosen_rules if _normalize_language(rules_language) in read else ())
    return [
        kind
        for kind, pattern in _LABEL_PATTERNS.items()
        if not (_RULES_BY_KIND[kind] <= rules or any(map(pattern.fullmatch, labels)))
    ]


def find_coverage_gaps(
    settings: DetectSettings, language_counts: Mapping[str, int], masks_nothing: bool = False
) -> dict[str, Any]:
    """Return ``{"kinds": {kind: [language]}, "languages": {language: share}}`` of what a policy cannot see.

    ``language_counts`` counts pieces of the corpus by language (:func:`detect_languages`). If it is empty, the language
    of the settings counts.
    """
    total = sum(language_counts.values())
    shares = {language: count / total for language, count in sorted(language_counts.items())}
    there = {language: round(share, 2) for language, share in shares.items() if share >= _MIN_SHARE}
    kinds: dict[str, list[str]] = {}
    for language in dict.fromkeys((settings.language, *there)):
        for kind in find_uncovered_kinds(settings, language):
            kinds.setdefault(kind, []).append(language)
    if masks_nothing:
        kinds["EVERYTHING"] = [settings.language]
    return {"kinds": kinds, "languages": there}


def describe_gaps(gaps: Mapping[str, Any]) -> str | None:
    """Describe the result of :func:`find_coverage_gaps` in one sentence; None without gaps."""
    if "EVERYTHING" in gaps["kinds"]:
        return (
            "Not covered: the strict policy masks nothing, not even the names, the e-mail address, the telephone "
            "number and the card number of a built-in text: see detect.strict.labels and the engines."
        )
    if not gaps["kinds"]:
        return None
    kinds = join_words(gaps["kinds"], "or")
    by_language = dict.fromkeys(language for kind_languages in gaps["kinds"].values() for language in kind_languages)
    shares = gaps["languages"]
    languages = [f"'{code}'" + (f" ({shares[code]:.0%} of a sample)" if code in shares else "") for code in by_language]
    return (
        f"Not covered: no engine and no rule of this policy finds the kinds {kinds} in {join_words(languages, 'or')} "
        "text, so such names can remain unmasked in the public text."
    )


def get_publishable_gaps(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the gaps of a manifest that may be published.

    For a corpus that is public by count, these are the gaps of the settings' language: the languages of a sample depend
    on private text, and the counts do not hide it.
    """
    gaps: Mapping[str, Any] = manifest["uncovered"]
    if "route" not in manifest:
        return gaps
    language = manifest.get("configuration", {}).get("detect", {}).get("language", "en")
    return {
        "kinds": {kind: [language] for kind, kind_languages in gaps["kinds"].items() if language in kind_languages},
        "languages": {},
    }


def detect_languages(texts: Iterable[str]) -> Iterator[str]:
    """Join ``texts``, cut them into pieces, and yield the language of each piece that has a certain one.

    A function of the texts alone; downloads nothing. Too little text has no language.
    """
    sample = "\n".join(text[:MAX_SAMPLE_CHARS] for text in texts)
    chunks = [sample[start : start + CHUNK_CHARS] for start in range(0, len(sample) - CHUNK_CHARS + 1, CHUNK_CHARS)]
    # evenly over the texts, not only the first ones
    for chunk in chunks[:: max(1, -(-len(chunks) // MAX_CHUNKS))]:
        language, probability = _load_language_identifier().classify(chunk)
        if probability >= LANGUAGE_THRESHOLD:
            yield _normalize_language(language)


@functools.lru_cache(maxsize=64)
def detect_language(text: str) -> str | None:
    """Return the language of at least half of ``text``, if no part is certainly in another; else None.

    A function of the text alone. It is read in parts of 300 to 600 code points, or as one: a long text can be uncertain
    as a whole although each part is certain.
    """
    starts = range(0, max(0, len(text) - CHUNK_CHARS) + 1, CHUNK_CHARS)
    parts = [text[start : start + CHUNK_CHARS] for start in starts[:-1]] + [text[starts[-1] :]]
    predictions = map(_load_language_identifier().classify, parts)
    sure = [_normalize_language(language) for language, probability in predictions if probability >= LANGUAGE_THRESHOLD]
    return sure[0] if len(set(sure)) == 1 and 2 * len(sure) >= len(parts) else None


def list_covered_languages(settings: DetectSettings) -> frozenset[str]:
    """List the languages in which ``settings`` find names of every kind; ``xx`` means any language."""
    declared = {
        _normalize_language(capability.language or "xx") for _, capability in iter_capabilities(settings, MODEL_ENGINES)
    }
    rules_languages = {language: language if load_optional_words(language) else "" for language in declared | {"en"}}
    return frozenset(
        code for code, ruled in rules_languages.items() if not _compute_uncovered_kinds(settings, code, ruled)
    )


def _normalize_language(language: str) -> str:
    """Drop the region, and unify languages with several codes."""
    primary = re.split("[-_]", language.lower())[0]
    return _LANGUAGE_ALIASES.get(primary, primary)


@functools.cache
def _load_language_identifier() -> LanguageIdentifier:
    # unpacking the model takes a second
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
