"""Pattern recognizers: the built-in ones, Presidio's by name, and custom ones from the configuration.

The built-in recognizers find addresses, postal codes, ages, titles, dates in words, API keys, and common forms of
numbers, codes and contacts. They are data (``forms/*.yaml``): named ``pieces`` and ``terms``, used in later expressions
as ``<NAME>``, then recognizers and their forms. A form is a case-sensitive expression of the ``regex`` package, where
``\\K`` drops what precedes it; ``needs`` is its trigger. Recognizers with ``languages`` run only for these, and a match
must pass its ``check`` digit. A form that ordinary text shares has a low score: π_c sees it, and π only after a context
word raises it.
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
from redactory.detectors.rules import load_common_words
from redactory.detectors.settings import AUTO, DEFAULT_PRESIDIO_RECOGNIZERS, CustomRecognizer, PatternSettings
from redactory.detectors.spacy_model import hide_unused_packages, import_lean_spacy
from redactory.detectors.triggers import ALWAYS_FIRES, Trigger, split_words
from redactory.foundation.errors import ConfigurationError, did_you_mean, shorten_name
from redactory.foundation.settings import Settings, format_validation_error

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer

SCORES = {"strong": 0.6, "sure": 0.5, "fair": 0.4, "doubtful": 0.2}
"""Scores: distinctive form; known by a word before; masked by π by default; seen only by π_c without context."""

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
"""Checks by the name in ``refuses``: true for a false match."""


class PatternFragments:
    """The expression pieces of one file by name, and the words that a list of terms needs to match.

    In a term ``_`` means white space. If an expression uses the terms as trigger, no letter may touch them.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self.expressions: dict[str, str] = {}
        self.words: dict[str, frozenset[str]] = {}
        terms: dict[str, list[str]] = {}
        for name, piece in definitions.items():
            if isinstance(piece, str):
                self.expressions[name] = self.expand_fragments(piece)
                continue
            terms[name] = [*terms.get(piece.get("with", ""), ()), *piece["terms"].split()]
            self._add_term_list(name, terms[name], piece.get("case", "any"))

    def expand_fragments(self, expression: str) -> str:
        """``expression`` in one line, with the named fragments inserted."""
        return _PLACEHOLDER.sub(lambda place: self.expressions[place[1]], expression.replace("\n", ""))

    def build_trigger(self, needs: Mapping[str, Any] | None) -> Trigger:
        """Build the trigger of a form or recognizer from its ``needs``."""
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
            regex.compile(self.expand_fragments(needs["look"])) if "look" in needs else None,
        )

    def _add_term_list(self, name: str, terms: Iterable[str], case: str) -> None:
        """Add terms in ``any`` case; as ``written``; or as written and all in ``capitals``."""
        forms = {form for term in terms for form in ((term, term.upper()) if case == "capitals" else (term,))}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        listed = "|".join(form.replace(".", r"\.").replace("_", r"\s+") for form in longest_first)
        self.expressions[name] = f"(?i:{listed})" if case == "any" else f"(?:{listed})"
        # capitals may fold to other letters than their lower case: Turkish ı and I
        words = (split_words(form.replace("_", " ")) for form in forms)
        self.words[name] = frozenset(max(form_words, key=lambda word: (len(word), word)) for form_words in words)


class PatternForm(NamedTuple):
    """One expression with its score and trigger."""

    expression: str
    score: float
    trigger: Trigger


class BuiltinRecognizer(NamedTuple):
    """Forms of one label that share context words; ``trigger`` applies to all of them."""

    name: str
    label: str
    forms: Mapping[str, PatternForm]
    context: tuple[str, ...]
    trigger: Trigger
    rejects: Callable[[str], bool]
    languages: tuple[str, ...]

    def supports_language(self, language: str) -> bool:
        """Whether the recognizer reads text in ``language``."""
        return not self.languages or language == AUTO or language.partition("-")[0] in self.languages

    def build_recognizer(self, language: str) -> EntityRecognizer:
        """Build the Presidio recognizer."""
        import_lean_spacy()
        from presidio_analyzer import Pattern, PatternRecognizer

        rejects = self.rejects

        def make_pattern(name: str, form: PatternForm) -> Any:
            # without Presidio's check, which compiles: the tests compile every built-in expression
            pattern = Pattern.__new__(Pattern)
            values = {"name": name, "regex": form.expression, "score": form.score}
            pattern.__dict__.update(values, compiled_regex=None, compiled_with_flags=None)
            return pattern

        class Recognizer(PatternRecognizer):
            def invalidate_result(self, pattern_text: str) -> bool:
                return rejects(pattern_text)

        return Recognizer(
            supported_entity=self.label,
            name=f"Redactory{self.name}",
            supported_language=language,
            patterns=[make_pattern(name, form) for name, form in self.forms.items()],
            context=list(self.context),
            # case distinguishes an address from prose, so no IGNORECASE, unlike Presidio
            global_regex_flags=0,
        )


@functools.cache
def load_builtin_recognizers() -> tuple[BuiltinRecognizer, ...]:
    """Load every recognizer of ``forms/*.yaml``."""
    files = sorted((_ROOT / "forms").iterdir(), key=lambda file: file.name)
    return tuple(recognizer for file in files for recognizer in parse_recognizers(file.read_text(encoding="utf-8")))


def parse_recognizers(content: str) -> Iterator[BuiltinRecognizer]:
    """Parse the recognizers of one file's ``content``."""
    document = _parse_yaml(content)
    fragments = PatternFragments(document.get("pieces", {}))
    for name, definition in document["recognizers"].items():
        forms = {
            title: PatternForm(
                # two long runs of white space would take quadratic time
                fragments.expand_fragments(form["form"]).replace(r"\s*", r"\s{0,9}").replace(r"\s+", r"\s{1,9}"),
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
    """Load the triggers of Presidio's recognizers by class name, and of their single expressions."""
    trigger = PatternFragments({}).build_trigger
    return {
        name: (trigger(entry["needs"]), {form: trigger(needs) for form, needs in entry.get("within", {}).items()})
        for name, entry in _parse_yaml((_ROOT / "presidio.yaml").read_text(encoding="utf-8")).items()
    }


def _parse_yaml(content: str) -> dict[str, Any]:
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    value: dict[str, Any] = yaml.load(content, loader)
    return value


COUNTRY_RECOGNIZERS: Mapping[str, tuple[str, ...]] = {
    language: tuple(f"{language.title()}{name}Recognizer" for name in names.split())
    for language, names in {
        "de": "TaxId TaxNumber SocialSecurity HealthInsurance IdCard Passport Fuehrerschein VatId Handelsregister",
        "es": "Nif Nie Passport",
        "it": "FiscalCode VatCode DriverLicense Passport IdentityCard",
    }.items()
}
"""Presidio's recognizers that a language enables; others of these countries also match ordinary text."""

_REGIONS_BY_LANGUAGE = {
    "de": ("AT", "CH"),
    "es": ("ES", "MX", "AR", "CO", "CL", "PE"),
    "fr": ("BE", "CH", "LU"),
    "it": ("IT", "CH"),
    "pt": ("PT",),
    "nl": ("NL", "BE"),
}
"""Regions of telephone numbers that a language adds to Presidio's."""


def list_extra_regions(language: str) -> tuple[str, ...]:
    """List the regions that a language adds to the default ones; ``auto`` adds all."""
    if language == AUTO:
        return tuple(dict.fromkeys(region for regions in _REGIONS_BY_LANGUAGE.values() for region in regions))
    return _REGIONS_BY_LANGUAGE.get(language.partition("-")[0], ())


@functools.cache
def list_recognized_languages() -> frozenset[str]:
    """List the languages with recognizers of their own, and English, for which the default ones are made."""
    builtin = {language for recognizer in load_builtin_recognizers() for language in recognizer.languages}
    return frozenset({"en", *COUNTRY_RECOGNIZERS, *builtin})


def _is_not_address(value: str) -> bool:
    """Reject "::" beside few letters and digits, as in "add::Type" or "values[::2]"."""
    groups = re.findall("[^:]+", value)
    return "::" in value and len(groups) < 4 and (not re.search(r"\d", value) or len("".join(groups)) < 5)


REJECTED_MATCHES: Mapping[str, Callable[[str], bool]] = {
    "IpRecognizer": _is_not_address,
    # "A4", "v2", "B737": a built-in recognizer finds short ones after a keyword
    "UsLicenseRecognizer": lambda value: len(value) < 6,
}
"""False matches of Presidio's recognizers, by class name: too short to be real."""


def list_recognizer_names(settings: PatternSettings, language: str) -> tuple[str, ...]:
    """List Presidio's recognizers that run: the configured ones; by default also the language's."""
    if settings.recognizers != DEFAULT_PRESIDIO_RECOGNIZERS:
        return settings.recognizers
    countries = COUNTRY_RECOGNIZERS if language == AUTO else (language.partition("-")[0],)
    return (*settings.recognizers, *(name for country in countries for name in COUNTRY_RECOGNIZERS.get(country, ())))


def create_predefined_recognizers(names: Iterable[str], language: str) -> list[EntityRecognizer]:
    """Create Presidio's recognizers by class name; ``ConfigurationError`` for an unavailable one."""
    import_lean_spacy()
    import presidio_analyzer.predefined_recognizers as predefined
    from presidio_analyzer import EntityRecognizer

    made: list[EntityRecognizer] = []
    for name in names:
        recognizer: Any = getattr(predefined, name, None)
        known = isinstance(recognizer, type) and issubclass(recognizer, EntityRecognizer)
        if not known:
            hint = did_you_mean(name, dir(predefined)) or "; see the recognizers in its documentation"
            raise ConfigurationError(
                f"detect.patterns.recognizers: the installed Presidio has no '{shorten_name(name)}'{hint}"
            )
        regions = list_extra_regions(language) if name == "PhoneRecognizer" else ()
        options = {"supported_regions": (*recognizer.DEFAULT_SUPPORTED_REGIONS, *regions)} if regions else {}
        try:
            instance: Any = _require_pattern_based(recognizer(supported_language=language, **options))
        except Exception as error:
            raise ConfigurationError(
                f"detect.patterns.recognizers: '{name}' cannot be created ({_describe_error(error)})"
            ) from None
        if rejects := REJECTED_MATCHES.get(name):
            is_invalid = instance.invalidate_result
            instance.invalidate_result = lambda value, r=rejects, i=is_invalid: r(value) or bool(i(value))
        made.append(instance)
    return made


@functools.cache
def _load_offline_suffix_list() -> Callable[[str], Any]:
    import tldextract

    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


def keep_offline(recognizer: EntityRecognizer) -> None:
    """Let Presidio's e-mail recognizer use the public suffixes that ``tldextract`` ships, not download a list."""
    from presidio_analyzer.predefined_recognizers import EmailRecognizer

    if isinstance(recognizer, EmailRecognizer):
        instance: Any = recognizer
        instance.validate_result = lambda address: _load_offline_suffix_list()(address).fqdn != ""


def create_custom_recognizer(settings: CustomRecognizer, language: str) -> EntityRecognizer:
    """Create a custom recognizer; ``ConfigurationError`` names an invalid one."""
    with hide_unused_packages():
        from presidio_analyzer import Pattern, PatternRecognizer

    key = f"detect.patterns.custom: '{shorten_name(settings.name)}'"
    if not settings.patterns:
        raise ConfigurationError(f"{key} has no patterns; put words to be masked always in detect.lists.deny")
    patterns = []
    for number, (expression, score) in enumerate(settings.patterns.items(), 1):
        try:
            # Presidio's own check; its dialect is that of the regex package, not of re
            patterns.append(Pattern(f"{settings.name} {number}", expression, score))
        except (ValueError, RecursionError):
            raise ConfigurationError(
                f"{key}, pattern {number}: invalid regular expression, or a score that is not between 0 and 1"
            ) from None
    recognizer: Any = PatternRecognizer(
        supported_entity=settings.label,
        name=settings.name,
        supported_language=language,
        patterns=patterns,
        context=list(settings.context),
    )
    recognizer.require_context = settings.require_context
    made: EntityRecognizer = recognizer
    return made


def load_file_recognizers(file: str, language: str) -> list[EntityRecognizer]:
    """Load the recognizers of ``language`` from a Presidio YAML file, unchanged.

    ``ConfigurationError`` names the file and, if one is wrong, the recognizer; also raised if the file has none for the
    language.
    """
    with hide_unused_packages():
        from presidio_analyzer.recognizer_registry.recognizers_loader_utils import RecognizerListLoader

    document = _load_recognizer_file(file)
    # default flags: DOTALL, MULTILINE and IGNORECASE, as in Presidio
    flags = document.get("global_regex_flags", 26)
    made: list[EntityRecognizer] = []
    for number, entry in enumerate(document["recognizers"], 1):
        name = entry.get("name") if isinstance(entry, dict) else entry
        location = f"detect.patterns.files: {file}, recognizer {number} ('{shorten_name(name)}')"
        try:
            _RecognizerEntry.model_validate(entry if isinstance(entry, dict) else {})
        except ValidationError as error:
            problems = (
                f"{'.'.join(map(shorten_name, problem['loc']))}: {format_validation_error(problem)}"
                for problem in error.errors()
            )
            raise ConfigurationError(f"{location}: {'; '.join(problems)}") from None
        try:
            definitions: Any = [{"name": entry, "type": "predefined"} if isinstance(entry, str) else entry]
            made += map(_require_pattern_based, RecognizerListLoader.get(definitions, [language], flags))
        except Exception as error:
            raise ConfigurationError(f"{location}: Presidio cannot create it ({_describe_error(error)})") from None
    if not made:
        raise ConfigurationError(f"detect.patterns.files: {file} has no enabled recognizer for '{language}'")
    return made


def create_recognizers(
    settings: PatternSettings, language: str
) -> tuple[list[EntityRecognizer], list[EntityRecognizer]]:
    """Create Presidio's recognizers, and the custom ones; ``ConfigurationError`` names an invalid one."""
    predefined = create_predefined_recognizers(list_recognizer_names(settings, language), language)
    custom = [create_custom_recognizer(recognizer, language) for recognizer in settings.custom]
    from_files = [entry for file in settings.files for entry in load_file_recognizers(file, language)]
    return predefined, [*custom, *from_files]


def list_custom_labels(settings: PatternSettings, language: str) -> tuple[str, ...]:
    """List labels of recognizers that the configuration adds; their spans are masked at any score.

    These are custom recognizers, those in files, and Presidio's recognizers that the configuration names or its
    language enables beyond the default.
    """
    named = [name for name in list_recognizer_names(settings, language) if name not in DEFAULT_PRESIDIO_RECOGNIZERS]
    made = create_predefined_recognizers(named, language) if named else []
    for file in settings.files:
        made += load_file_recognizers(file, language)
    labels = {recognizer.label for recognizer in settings.custom}
    return tuple(sorted(labels.union(*(extra.supported_entities for extra in made))))


def _require_pattern_based(recognizer: Any) -> EntityRecognizer:
    """Return ``recognizer``, offline, if it finds spans itself; one that waits for a model's entities finds none."""
    from presidio_analyzer import PatternRecognizer
    from presidio_analyzer.predefined_recognizers import PhoneRecognizer

    if not isinstance(recognizer, PatternRecognizer | PhoneRecognizer):
        raise ConfigurationError("not a pattern recognizer; models are separate engines")
    keep_offline(recognizer)
    return recognizer


def _describe_error(error: Exception) -> str:
    """Describe the error, but not with a message of Presidio, which may quote an expression."""
    return str(error) if isinstance(error, ConfigurationError) else type(error).__name__


def _load_recognizer_file(file: str) -> dict[str, Any]:
    with hide_unused_packages():
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
        except RecursionError:
            raise ValueError("this regular expression has too many nested parentheses; use fewer") from None
        return value


class _RecognizerEntry(Settings):
    """Fields that Presidio misreads (a string as a list of letters) or rejects without naming them."""

    model_config = ConfigDict(extra="allow")

    patterns: list[_Pattern] | None = None
    deny_list: list[Any] | None = None
    context: list[Any] | None = None
    supported_languages: list[Any] | None = None
