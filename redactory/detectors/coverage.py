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
from redactory.detectors.rules import choose_rules
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
_MIN_SHOWN_SHARE = 0.02
"""Minimum share of other languages to mention; less can be rounding."""
UNCERTAIN = "und"
"""Language of a piece of a sample that has no certain one (ISO 639-2: undetermined)."""
_MEASURED_SETTINGS = ("strict", "sensitivity", "public_labels", "profile")
"""Settings that decide what the strict policy masks of a tagger's spans."""
_LANGUAGE_ALIASES = {"nb": "no", "nn": "no", "nno": "no", "hr": "sh", "bs": "sh", "sr": "sh"}


def find_uncovered_kinds(settings: DetectSettings, language: str) -> list[NameKind]:
    """Return the kinds of names that no engine and no rule of ``settings`` finds in text of ``language``."""
    is_private = settings.conservative.flags_everything or settings.language == AUTO
    return [] if is_private else _compute_uncovered_kinds(settings, language)


def _compute_uncovered_kinds(settings: DetectSettings, language: str) -> list[NameKind]:
    rules_language = "en" if settings.language == AUTO else settings.language
    read = {_normalize_language(language), "xx"}
    labels = {
        re.sub(r"\W", "_", label).upper()
        for _, capability in iter_capabilities(settings, MODEL_ENGINES)
        for label in capability.labels
        if capability.scope != "forms" and _normalize_language(capability.language or "xx") in read
    }
    chosen_rules = choose_rules(settings.conservative.rules, rules_language, settings.has_builtin_tagger)
    rules = frozenset(chosen_rules if _normalize_language(rules_language) in read else ())
    return [
        kind
        for kind, pattern in _LABEL_PATTERNS.items()
        if not (_RULES_BY_KIND[kind] <= rules or any(map(pattern.fullmatch, labels)))
    ]


def read_measured_languages(settings: DetectSettings) -> dict[str, dict[str, Any]]:
    """Return ``{language: {"set", "rows", "coverage"}}``, as measured with the built-in tagger.

    ``coverage`` is the share of labelled names that the strict policy masks whole. Nothing is measured for a tagger
    without figures, or for another strict policy than the default one.
    """
    # it imports spaCy, which would delay every command
    from redactory.detectors.tagger.engine import read_measured_languages as read_tagger_figures

    default = DetectSettings()
    changed = [name for name in _MEASURED_SETTINGS if getattr(settings, name) != getattr(default, name)]
    return {} if settings.tagger is None or changed else read_tagger_figures(settings.tagger)


def find_coverage_gaps(
    settings: DetectSettings, language_counts: Mapping[str, int], masks_nothing: bool = False
) -> dict[str, Any]:
    """Return what a policy cannot see: ``{"kinds": {kind: [language]}, "languages": {language: share}, "measured"}``.

    ``language_counts`` counts pieces of the corpus by language (:func:`detect_languages`). If it is empty, the language
    of the settings counts. ``measured`` has the figures of :func:`read_measured_languages` for these languages.
    """
    certain = {language: count for language, count in sorted(language_counts.items()) if language != UNCERTAIN}
    there = [language for language, count in certain.items() if count >= _MIN_SHARE * sum(certain.values())]
    kinds: dict[str, list[str]] = {}
    for language in dict.fromkeys((settings.language, *there)):
        for kind in find_uncovered_kinds(settings, language):
            kinds.setdefault(kind, []).append(language)
    if masks_nothing:
        kinds["EVERYTHING"] = [settings.language]
    listed, total = [*there, *({UNCERTAIN} & language_counts.keys())], sum(language_counts.values())
    figures = read_measured_languages(settings)
    return {
        "kinds": kinds,
        "languages": {language: round(language_counts[language] / total, 2) for language in listed},
        "measured": {language: figures[language] for language in there if language in figures},
    }


def describe_languages(gaps: Mapping[str, Any]) -> str | None:
    """Describe the language mix in the result of :func:`find_coverage_gaps`; None without a sample."""
    shares, measured = gaps["languages"], gaps.get("measured", {})
    parts = []
    for language in sorted(shares, key=lambda code: (code == UNCERTAIN, -shares[code])):
        figures, share = measured.get(language), f"{shares[language]:.0%}"
        if language == UNCERTAIN:
            parts.append(f"uncertain {share}")
        elif figures:
            parts.append(f"{language} {share} (measured: {figures['coverage']:.1%} of names masked, {figures['set']})")
        else:
            parts.append(f"{language} {share} (not measured)")
    others = round(1 - sum(shares.values()), 2)
    parts += [f"others {others:.0%}"] * (others >= _MIN_SHOWN_SHARE)
    return f"Languages of a sample: {', '.join(parts)}." if shares else None


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
    """Join ``texts``, cut them into pieces, and yield the language of each, or :data:`UNCERTAIN`.

    A function of the texts alone; downloads nothing. Too little text has no piece.
    """
    sample = "\n".join(text[:MAX_SAMPLE_CHARS] for text in texts)
    chunks = [sample[start : start + CHUNK_CHARS] for start in range(0, len(sample) - CHUNK_CHARS + 1, CHUNK_CHARS)]
    # evenly over the texts, not only the first ones
    for chunk in chunks[:: max(1, -(-len(chunks) // MAX_CHUNKS))]:
        language, probability = _load_language_identifier().classify(chunk)
        yield _normalize_language(language) if probability >= LANGUAGE_THRESHOLD else UNCERTAIN


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
    return frozenset(code for code in declared | {"en"} if not _compute_uncovered_kinds(settings, code))


def _normalize_language(language: str) -> str:
    """Drop the region, and unify languages with several codes."""
    primary = re.split("[-_]", language.lower())[0]
    return _LANGUAGE_ALIASES.get(primary, primary)


@functools.cache
def _load_language_identifier() -> LanguageIdentifier:
    # unpacking the model takes a second
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
