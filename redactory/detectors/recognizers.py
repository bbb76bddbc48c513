"""The pattern recognizers: those that are shipped, Presidio's by name, and a configuration's own.

The shipped ones are addresses, postal codes, ages, titles, dates in words, keys of programs, and numbers,
codes and contacts in the forms that people write.  They are data, ``forms/*.yaml``: ``pieces`` of expressions
and lists of ``terms``, which stand in later ones as ``<NAME>``, then recognizers and their forms.  A form is
an expression in the dialect of the ``regex`` package in which case counts and ``\\K`` drops what stands
before it; what it ``needs`` is its trigger.  Recognizers with ``languages`` run in these alone, and a match
that fails its ``check`` digit is none.  One that plain text shares has a doubtful score: π_c sees it and
π does not, until a context word raises it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import regex
import yaml
from pydantic import ConfigDict, Field, ValidationError, field_validator

from redactory.detectors.check_digits import make_rejector
from redactory.detectors.phones import list_extra_regions
from redactory.detectors.rules import load_common_words
from redactory.detectors.settings import AUTO, DEFAULT_RECOGNIZERS, CustomRecognizer, PatternSettings
from redactory.detectors.spacy_model import hide_packages
from redactory.detectors.triggers import ALWAYS_FIRES, Trigger, split_words
from redactory.foundation.errors import ConfigurationError, did_you_mean, shorten
from redactory.foundation.settings import Settings, format_validation_error

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer

SCORES = {"strong": 0.6, "sure": 0.5, "fair": 0.4, "doubtful": 0.2}
"""Of a form that little else has; of one known by a word before it; masked by π under the default bounds;
and seen by π_c alone until a context word raises it."""

_ROOT = files("redactory.detectors")
_PLACEHOLDER = re.compile("<([A-Z_]+)>")
_YEARS = re.compile(r"(?:(?:19|20)\d{2}[ -]?){2,}")
_YEARS_ONLY = re.compile(r"\(?(?:1[5-9]|20)\d{2}\)?(?:\D{1,3}(?:1[5-9]|20)\d{2}\)?)+")
_DECIMALS = re.compile(r"\(?\d{1,4}\.\d+(?:[ ()-]{1,3}\d{1,4}\.\d+)*\)?")
_THOUSANDS = re.compile(r"\d{1,3}(?:([ .])\d{3})(?:\1\d{3})*")


def _lacks_long_number(value: str) -> bool:
    """Fewer than 7 digits, a range of years, decimals, or an amount in groups of thousands."""
    groups = re.findall(r"\d+", value)
    if sum(map(len, groups)) < 7 or _YEARS_ONLY.fullmatch(value) or _DECIMALS.fullmatch(value):
        return True
    return _THOUSANDS.fullmatch(value) is not None and (len(groups[0]) < 3 or groups[-1] == "000")


REJECTION_CHECKS: dict[str, Callable[[str], bool]] = {
    "nothing": lambda value: False,
    "years": lambda value: _YEARS.fullmatch(value) is not None,
    "no_long_number": _lacks_long_number,
    "ordinary_word": lambda value: value.casefold() in load_common_words("en"),
    "round_number": lambda value: value.endswith("000"),
}
"""What a recognizer ``refuses``: a match that is none after all."""


class PatternFragments:
    """The pieces of one file: expressions by name, and the words without which a list of terms cannot match.

    In a term ``_`` stands for white space.  Letters must not stand directly around the terms in an expression
    that has them for its trigger.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self.expressions: dict[str, str] = {}
        self.words: dict[str, frozenset[str]] = {}
        terms: dict[str, list[str]] = {}
        for name, piece in definitions.items():
            if isinstance(piece, str):
                self.expressions[name] = self.expand(piece)
                continue
            terms[name] = [*terms.get(piece.get("with", ""), ()), *piece["terms"].split()]
            self._add_term_list(name, terms[name], piece.get("case", "any"))

    def expand(self, expression: str) -> str:
        """``expression`` in one line, with the pieces that it names."""
        return _PLACEHOLDER.sub(lambda place: self.expressions[place[1]], expression.replace("\n", ""))

    def build_trigger(self, needs: Mapping[str, Any] | None) -> Trigger:
        """The trigger that a form or a recognizer ``needs``."""
        if needs is None:
            return ALWAYS_FIRES
        words = needs.get("words", "").split()
        term_words = (self.words[name] for name in needs.get("terms", "").split())
        endings = (part for name in needs.get("endings", "").split() for part in self.expressions[name].split("|"))
        return Trigger(
            needs.get("digits", 0),
            frozenset(words).union(*term_words),
            tuple(sorted({ending.removesuffix("[.]").casefold() for ending in endings})),
            tuple(needs["shapes"].split("|")) if "shapes" in needs else (),
            regex.compile(self.expand(needs["look"])) if "look" in needs else None,
        )

    def _add_term_list(self, name: str, terms: Iterable[str], case: str) -> None:
        """Terms in ``any`` case; as ``written``; or as written and all in ``capitals``."""
        forms = {form for term in terms for form in ((term, term.upper()) if case == "capitals" else (term,))}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        listed = "|".join(form.replace(".", r"\.").replace("_", r"\s+") for form in longest_first)
        self.expressions[name] = f"(?i:{listed})" if case == "any" else f"(?:{listed})"
        # capitals may fold to other letters than the small ones they stand for: the Turkish ı and I
        words = (split_words(form.replace("_", " ")) for form in forms)
        self.words[name] = frozenset(max(form_words, key=lambda word: (len(word), word)) for form_words in words)


class PatternForm(NamedTuple):
    """One expression, its score and its trigger."""

    expression: str
    score: float
    trigger: Trigger


class BuiltinRecognizer(NamedTuple):
    """Forms of one label with context words, or parts of them, in common; ``needs`` is the trigger of all."""

    name: str
    label: str
    forms: Mapping[str, PatternForm]
    context: tuple[str, ...]
    trigger: Trigger
    rejects: Callable[[str], bool]
    languages: tuple[str, ...]

    def supports_language(self, language: str) -> bool:
        """Whether it looks at text of ``language``."""
        return not self.languages or language == AUTO or language.partition("-")[0] in self.languages

    def build_recognizer(self, language: str) -> EntityRecognizer:
        """As a recognizer of Presidio's."""
        with hide_packages():
            from presidio_analyzer import Pattern, PatternRecognizer

        rejects = self.rejects

        class Recognizer(PatternRecognizer):
            def invalidate_result(self, pattern_text: str) -> bool:
                return rejects(pattern_text)

        return Recognizer(
            supported_entity=self.label,
            name=f"Redactory{self.name}",
            supported_language=language,
            patterns=[Pattern(name, form.expression, form.score) for name, form in self.forms.items()],
            context=list(self.context),
            # letters' case is what tells an address from prose, so no IGNORECASE as Presidio has it
            global_regex_flags=0,
        )


@functools.cache
def load_builtin_recognizers() -> tuple[BuiltinRecognizer, ...]:
    """Every recognizer of ``forms/*.yaml``."""
    files = sorted((_ROOT / "forms").iterdir(), key=lambda file: file.name)
    return tuple(recognizer for file in files for recognizer in parse_recognizers(file.read_text(encoding="utf-8")))


def parse_recognizers(content: str) -> Iterator[BuiltinRecognizer]:
    """The recognizers of one file's ``content``."""
    document = _parse_yaml(content)
    fragments = PatternFragments(document.get("pieces", {}))
    for name, definition in document["recognizers"].items():
        forms = {
            title: PatternForm(
                # two long runs of white space would cost the square of one
                fragments.expand(form["form"]).replace(r"\s*", r"\s{0,9}").replace(r"\s+", r"\s{1,9}"),
                SCORES.get(form["score"], form["score"]),
                fragments.build_trigger(form.get("needs")),
            )
            for title, form in definition["forms"].items()
        }
        rejects = (
            make_rejector(definition["check"])
            if "check" in definition
            else REJECTION_CHECKS[definition.get("refuses", "nothing")]
        )
        context, languages = (tuple(definition.get(key, "").split()) for key in ("context", "languages"))
        trigger = fragments.build_trigger(definition.get("needs"))
        yield BuiltinRecognizer(name, definition["label"], forms, context, trigger, rejects, languages)


@functools.cache
def load_presidio_triggers() -> dict[str, tuple[Trigger, dict[str, Trigger]]]:
    """The triggers of Presidio's recognizers, by class name, and of their single expressions."""
    trigger = PatternFragments({}).build_trigger
    return {
        name: (trigger(entry["needs"]), {form: trigger(needs) for form, needs in entry.get("within", {}).items()})
        for name, entry in _parse_yaml((_ROOT / "presidio.yaml").read_text(encoding="utf-8")).items()
    }


def _parse_yaml(content: str) -> dict[str, Any]:
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    value: dict[str, Any] = yaml.load(content, loader)
    return value


# The recognizers that a configuration chooses, made here or refused by name.


class _NotPatternBasedError(Exception):
    """The recognizer needs a model or another machine."""


COUNTRY_RECOGNIZERS: Mapping[str, tuple[str, ...]] = {
    language: tuple(f"{language.title()}{name}Recognizer" for name in names.split())
    for language, names in {
        "de": "TaxId TaxNumber SocialSecurity HealthInsurance IdCard Passport Fuehrerschein VatId Handelsregister",
        "es": "Nif Nie Passport",
        "it": "FiscalCode VatCode DriverLicense Passport IdentityCard",
    }.items()
}
"""Presidio's recognizers that a language switches on; others of these countries take plain text too."""


def _is_not_address(value: str) -> bool:
    """Two colons beside few groups of letters, as in "add::Type": in an address one has a digit."""
    return "::" in value and not re.search(r"\d", value) and len(re.findall("[^:]+", value)) < 4


REJECTED_MATCHES: Mapping[str, Callable[[str], bool]] = {
    "IpRecognizer": _is_not_address,
    # "A4", "v2", "B737": behind its announcement a shipped recognizer finds a shorter one
    "UsLicenseRecognizer": lambda value: len(value) < 6,
}
"""Matches of Presidio's recognizers, by class name, that are too short to be what they are taken for."""


def list_recognizer_names(settings: PatternSettings, language: str) -> tuple[str, ...]:
    """Presidio's recognizers that run: those of the settings, and with the default those of the language."""
    if settings.recognizers != DEFAULT_RECOGNIZERS:
        return settings.recognizers
    countries = COUNTRY_RECOGNIZERS if language == AUTO else (language.partition("-")[0],)
    return (*settings.recognizers, *(name for country in countries for name in COUNTRY_RECOGNIZERS.get(country, ())))


def create_predefined_recognizers(names: Iterable[str], language: str) -> list[EntityRecognizer]:
    """Presidio's recognizers by class name; ``ConfigurationError`` for one that cannot be had here."""
    with hide_packages():
        import presidio_analyzer.predefined_recognizers as predefined
        from presidio_analyzer import EntityRecognizer

    made: list[EntityRecognizer] = []
    for name in names:
        recognizer: Any = getattr(predefined, name, None)
        known = isinstance(recognizer, type) and issubclass(recognizer, EntityRecognizer)
        if not known:
            hint = did_you_mean(name, dir(predefined)) or "; see the recognizers in its documentation"
            raise ConfigurationError(
                f"detect.patterns.recognizers: the installed Presidio has no '{shorten(name)}'{hint}"
            )
        regions = list_extra_regions(language) if name == "PhoneRecognizer" else ()
        options = {"supported_regions": (*recognizer.DEFAULT_SUPPORTED_REGIONS, *regions)} if regions else {}
        try:
            instance: Any = _require_pattern_based(recognizer(supported_language=language, **options))
        except Exception as error:
            raise ConfigurationError(
                f"detect.patterns.recognizers: '{name}' cannot be created ({_describe_error(error)})"
            ) from None
        if name in REJECTED_MATCHES:
            instance.invalidate_result = _reject_either(REJECTED_MATCHES[name], instance.invalidate_result)
        made.append(instance)
    return made


def _reject_either(rejects: Callable[[str], bool], is_invalid: Callable[[str], bool | None]) -> Callable[[str], bool]:
    return lambda value: rejects(value) or bool(is_invalid(value))


def create_custom_recognizer(settings: CustomRecognizer, language: str) -> EntityRecognizer:
    """A recognizer of the configuration's own; ``ConfigurationError`` names the one that is wrong."""
    with hide_packages():
        from presidio_analyzer import Pattern, PatternRecognizer

    key = f"detect.patterns.custom: '{shorten(settings.name)}'"
    if not settings.patterns:
        raise ConfigurationError(f"{key} has no patterns; put words to be masked always in detect.lists.deny")
    patterns = []
    for number, (expression, score) in enumerate(settings.patterns.items(), 1):
        try:
            # Presidio's own check: its dialect is that of the regex package, not of re
            patterns.append(Pattern(f"{settings.name} {number}", expression, score))
        except ValueError:
            raise ConfigurationError(
                f"{key}, pattern {number}: invalid regular expression, or a score that is not between 0 and 1"
            ) from None
    arguments: dict[str, Any] = {
        "supported_entity": settings.label,
        "name": settings.name,
        "supported_language": language,
        "patterns": patterns,
        "context": list(settings.context) or None,
    }
    return PatternRecognizer(**arguments)


def load_file_recognizers(file: str, language: str) -> list[EntityRecognizer]:
    """The recognizers of ``language`` in a YAML file of Presidio's own form, taken as they are.

    ``ConfigurationError`` names the file and, where it is one of them that is wrong, the recognizer; so
    does a file that has none for the language.
    """
    with hide_packages():
        from presidio_analyzer.recognizer_registry.recognizers_loader_utils import RecognizerListLoader

    document = _load_document(file)
    # without flags of its own: DOTALL, MULTILINE and IGNORECASE, as in Presidio
    flags = document.get("global_regex_flags", 26)
    made: list[EntityRecognizer] = []
    for number, entry in enumerate(document["recognizers"], 1):
        name = entry.get("name") if isinstance(entry, dict) else entry
        location = f"detect.patterns.files: {file}, recognizer {number} ('{shorten(name)}')"
        try:
            _RecognizerEntry.model_validate(entry if isinstance(entry, dict) else {})
        except ValidationError as error:
            problems = (
                f"{'.'.join(map(shorten, problem['loc']))}: {format_validation_error(problem)}"
                for problem in error.errors()
            )
            raise ConfigurationError(f"{location}: {'; '.join(problems)}") from None
        try:
            # a name alone stands for a recognizer of Presidio's
            definitions: Any = [{"name": entry, "type": "predefined"} if isinstance(entry, str) else entry]
            made += map(_require_pattern_based, RecognizerListLoader.get(definitions, [language], flags))
        except Exception as error:
            raise ConfigurationError(f"{location}: Presidio cannot create it ({_describe_error(error)})") from None
    if not made:
        raise ConfigurationError(f"detect.patterns.files: {file} has no enabled recognizer for '{language}'")
    return made


def check_patterns(settings: PatternSettings, language: str) -> None:
    """Make every recognizer of the settings once; ``ConfigurationError`` names the one that is wrong."""
    create_predefined_recognizers(list_recognizer_names(settings, language), language)
    for recognizer in settings.custom:
        create_custom_recognizer(recognizer, language)
    for file in settings.files:
        load_file_recognizers(file, language)


def list_custom_labels(settings: PatternSettings, language: str) -> tuple[str, ...]:
    """Labels of the recognizers that the configuration brings in, masked whatever the score of a hit.

    Those that it writes or has in files, and those of Presidio's that it names, or its
    language switches on, beyond the default.
    """
    named = [name for name in list_recognizer_names(settings, language) if name not in DEFAULT_RECOGNIZERS]
    made = create_predefined_recognizers(named, language) if named else []
    for file in settings.files:
        made += load_file_recognizers(file, language)
    labels = {recognizer.label for recognizer in settings.custom}
    return tuple(sorted(labels.union(*(extra.supported_entities for extra in made))))


def _require_pattern_based(recognizer: Any) -> EntityRecognizer:
    """``recognizer``, if it finds by itself; one that waits for a model's entities would never hit."""
    from presidio_analyzer import PatternRecognizer
    from presidio_analyzer.predefined_recognizers import PhoneRecognizer

    if not isinstance(recognizer, PatternRecognizer | PhoneRecognizer):
        raise _NotPatternBasedError
    return recognizer


def _describe_error(error: Exception) -> str:
    """What went wrong, without the message: it may quote an expression."""
    if isinstance(error, _NotPatternBasedError):
        return "not a pattern recognizer; models are separate engines"
    return type(error).__name__


def _load_document(file: str) -> dict[str, Any]:
    with hide_packages():
        from presidio_analyzer.recognizer_registry.recognizers_loader_utils import RecognizerConfigurationLoader

    if not Path(file).is_file():
        raise ConfigurationError(f"detect.patterns.files: there is no file {file}")
    try:
        document = RecognizerConfigurationLoader.get(conf_file=file)
    except Exception as error:
        raise ConfigurationError(
            f"detect.patterns.files: {file} is not a YAML file with a list 'recognizers' ({type(error).__name__})"
        ) from None
    if not isinstance(document.get("recognizers"), list):
        raise ConfigurationError(f"detect.patterns.files: {file} has no list 'recognizers'")
    return document


class _Pattern(Settings):
    name: str
    regex: str
    score: float = Field(ge=0, le=1, strict=True)

    @field_validator("regex")
    @classmethod
    def _check_regex(cls, value: str) -> str:
        try:
            regex.compile(value)
        except regex.error as error:
            raise ValueError(f"invalid regular expression at character {(error.pos or 0) + 1}") from None
        return value


class _RecognizerEntry(Settings):
    """What Presidio takes for something else (text for the list of its letters), or refuses by no name."""

    model_config = ConfigDict(extra="allow")

    patterns: list[_Pattern] | None = None
    deny_list: list[Any] | None = None
    context: list[Any] | None = None
    supported_languages: list[Any] | None = None
