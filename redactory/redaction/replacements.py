"""Replacements: what appears in place of a span.

Each replacement is a registered class. Training reads only ``mask``, and only for it a guarantee is stated; ``reveals``
describes what the others disclose.
"""

from __future__ import annotations

import base64
import hmac
import random
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

from redactory.detectors.settings import get_kind
from redactory.foundation.errors import ConfigurationError, join_words
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.redaction.dates import DateShifter, draw_day_shift
from redactory.redaction.mask import MASK, Edit, merge_intervals
from redactory.redaction.names import (
    choose_faker_locale,
    create_faker,
    fold_word,
    has_gendered_title,
    is_title,
    load_faker_names,
    split_name_words,
)
from redactory.redaction.spellings import Spellings, normalize_value, parse_phone
from redactory.redaction.structured import (
    STRUCTURED,
    detect_kind,
    invent_identifier,
    invent_phone,
    match_case,
    replace_letters,
)

_VAGUE = "IDENTIFIER"


class ReplacedSpan(NamedTuple):
    """A range of a text to replace: code points [start, end), label and score."""

    start: int
    end: int
    label: str
    score: float = 1.0


Replacer = Callable[[str, str], str]
"""Returns the replacement of a value, given its kind and text; of a person, with a title that tells the gender."""
Values = Iterable[tuple[str, str]]
"""Values by kind and text."""


def plan_edits(
    text: str, spans: Sequence[ReplacedSpan], replacer: Replacer | None = None, has_titles: bool = True
) -> list[Edit]:
    """Plan the edits that replace every span of ``text``, in order.

    Overlapping spans become one, with the label of the longest, then of the highest score; ``IDENTIFIER``, which says
    least, gives way. With ``has_titles`` the replacer gets a name with the title before it ("Mrs. Smith"). Without
    ``replacer`` each becomes :data:`MASK`, and spans that are adjacent or separated only by white space merge too.
    """
    result: list[Edit] = []
    for start, end in merge_intervals(text, ((one.start, one.end) for one in spans), merge_near=replacer is None):
        inside = [one for one in spans if start <= one.start and one.end <= end]
        longest = max(inside, key=lambda one: (one.end - one.start, one.label != _VAGUE, one.score, one.label))
        kind = get_kind(longest.label)
        # "Mrs." is replaced separately, but tells which Smith is meant
        title = text[result[-1].start : start] if result and (kind, result[-1].kind) == ("PERSON", "TITLE") else ""
        title = title if has_titles and has_gendered_title(title) else ""
        new = MASK if replacer is None else replacer(kind, f"{title}{text[start:end]}")
        new = new.removeprefix(title) if title else new
        result.append(Edit(start, end, new, kind))
    return result


def unify_labels(texts: Sequence[str], found_spans: Sequence[Sequence[ReplacedSpan]]) -> list[list[ReplacedSpan]]:
    """Give equal values in the ``texts`` of one document the same label: the one with the highest sum of scores.

    ``IDENTIFIER``, which says least, gives way to any other.
    """
    totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for text, spans in zip(texts, found_spans, strict=True):
        for span in spans:
            totals[normalize_value(text[span.start : span.end])][span.label] += span.score
    best = {
        value: max(labels, key=lambda label: (label != _VAGUE, labels[label], label))
        for value, labels in totals.items()
    }
    return [
        [span._replace(label=best[normalize_value(text[span.start : span.end])]) for span in spans]
        for text, spans in zip(texts, found_spans, strict=True)
    ]


def collect_values(texts: Sequence[str], found_spans: Sequence[Sequence[ReplacedSpan]]) -> list[tuple[str, str]]:
    """Collect the kind and text of everything that :func:`plan_edits` replaces in ``texts``."""
    values: list[tuple[str, str]] = []

    def collect_value(kind: str, value: str) -> str:
        values.append((kind, value))
        return value

    for text, spans in zip(texts, found_spans, strict=True):
        plan_edits(text, spans, collect_value)
    return values


class Replacement:
    """A way to replace spans. A subclass with a ``name`` registers itself."""

    name: ClassVar[str] = ""
    reveals: ClassVar[str] = ""
    """What readers learn besides that something was there; for the card."""
    needs_key: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if cls.name:
            REPLACEMENTS[cls.name] = cls

    def __init__(self, key: DigestKey, language: str = "en") -> None:
        self._key = key
        self._language = language

    def create_replacer(self, document: str, texts: Sequence[str] = (), values: Values = ()) -> Replacer | None:
        """Return the replacer for one document, given its name, texts and values; None means the mask."""
        raise NotImplementedError

    def _derive_seed(self, *parts: str) -> bytes:
        subkey = self._key.derive_subkey(f"replacement/{self.name}")
        return hmac.digest(subkey, "\x1f".join(parts).encode("utf-8", "surrogatepass"), "sha256")


REPLACEMENTS: dict[str, type[Replacement]] = {}
"""Every replacement by name."""


def load_replacement(name: str, language: str) -> Replacement:
    """Return the replacement ``name`` with the digest key.

    ``ConfigurationError`` for an unknown name, or if it needs a permanent key and none is set.
    """
    if name not in REPLACEMENTS:
        raise ConfigurationError(f"replace: expected one of {join_words(REPLACEMENTS, 'or')}")
    key, kind = load_digest_key(), REPLACEMENTS[name]
    if kind.needs_key and key.is_generated:
        raise ConfigurationError(f"replace: {name} needs a permanent key: set REDACTORY_KEY")
    return kind(key, language)


class Mask(Replacement):
    """``<MASK>`` for everything."""

    name = "mask"

    def create_replacer(self, document: str, texts: Sequence[str] = (), values: Values = ()) -> None:
        """The mask."""


class Label(Replacement):
    """``<PERSON>``."""

    name = "label"
    reveals = "The kind of the replaced value."

    def create_replacer(self, document: str, texts: Sequence[str] = (), values: Values = ()) -> Replacer:
        """The kind by itself."""
        return lambda kind, _: f"<{kind}>"


class Number(Replacement):
    """``<PERSON_1>``: a value has one number within a document, in any spelling."""

    name = "number"
    reveals = "The kind, and which values of one document are equal or parts of the same name."

    def create_replacer(self, document: str, texts: Sequence[str] = (), values: Values = ()) -> Replacer:
        """Number the values in order of appearance."""
        spellings = Spellings(values, self._language)
        numbers: dict[str, int] = {}
        last: dict[str, int] = {}

        def replace_value(kind: str, value: str) -> str:
            kind, key = spellings.get_first_spelling(kind, value)[0], spellings.get_canonical_key(kind, value)
            if key not in numbers:
                numbers[key] = last[kind] = last.get(kind, 0) + 1
            return f"<{kind}_{numbers[key]}>"

        return replace_value


class Pseudonym(Replacement):
    """``<PERSON_k3v…>``: a value has one name in a document, the same everywhere it has the same spelling."""

    name = "pseudonym"
    reveals = (
        "The kind, and which values are equal in everything that was replaced with the same key: the "
        "frequency and co-occurrence of values can reveal whose they are."
    )
    needs_key = True

    def create_replacer(self, document: str, texts: Sequence[str] = (), values: Values = ()) -> Replacer:
        """Use 80 bits of a keyed digest of the document's first spelling."""
        spellings = Spellings(values, self._language)

        def replace_value(kind: str, value: str) -> str:
            # not folded: unmasking returns the original spelling
            kind, value = spellings.get_first_spelling(kind, value)
            digest = self._derive_seed(kind, value)[:10]
            return f"<{kind}_{base64.b32encode(digest).decode().lower()}>"

        return replace_value


class Surrogate(Replacement):
    """An invented value of the same kind and format; equal values get equal surrogates under one key.

    All dates of a document are shifted by the same number of days. Dates, network addresses, cards and IBANs are
    recognized by format or check digits whatever their label. A value without a valid surrogate that reveals nothing of
    it becomes its label.
    """

    name = "surrogate"
    reveals = (
        "The kind and the form of a value (words, letters, digits, check digits), which values are equal "
        "under the same key, the days between two dates of a document, the country of a telephone number, an IBAN or "
        "a national number, the network of a card, whether an IP address is private, titles, and the particles and "
        "implied gender of a name. An invented value may belong to a real person."
    )
    needs_key = True

    def create_replacer(self, document: str, texts: Sequence[str] = (), values: Values = ()) -> Replacer:
        """Replace names token by token, so that a lone surname matches the full name."""
        spellings = Spellings(values, self._language)
        drawn: dict[tuple[str, bool], str] = {}
        days = draw_day_shift(random.Random(self._derive_seed("days", document)))
        dates = DateShifter(
            days, texts, self._language, lambda time: random.Random(self._derive_seed("time", document, time))
        )

        def replace_value(kind: str, value: str) -> str:
            if kind == "DATE" or dates.is_date(value):
                return dates.shift_dates(value) or f"<{kind}>"
            if kind == "TITLE" and is_title(value, self._language):
                return value
            form, key = detect_kind(value) or kind, spellings.get_canonical_key(kind, value)
            for attempt in range(20):
                draw = random.Random(self._derive_seed(form, key, str(attempt)))
                new = (
                    self._replace_name(value, spellings, drawn)
                    if form == "PERSON"
                    else self._invent_value(form, value, key, draw)
                )
                if new is not None and normalize_value(new) != normalize_value(value):
                    return new
            return f"<{kind}>"

        return replace_value

    def _invent_value(self, kind: str, value: str, key: str, draw: random.Random) -> str | None:
        if kind == "AGE":
            return re.sub(r"\d+", lambda age: str(max(int(age[0]) + draw.choice((-3, -2, -1, 1, 2, 3)), 1)), value)
        if kind in STRUCTURED:
            return STRUCTURED[kind](value, draw)
        if kind == "PHONE_NUMBER":
            number = f"+{key}" if key.isdecimal() else value
            return invent_phone(value, parse_phone(number, self._language), draw)
        if kind in _FAKED:
            with _FAKER_LOCK:
                fake = create_faker(choose_faker_locale(value, self._language))
                fake.seed_instance(draw.getrandbits(64))
                invented = str(getattr(fake, _FAKED[kind])())
            return match_case(invented.replace("\n", ", "), value)
        return invent_identifier(value, self._language, draw)

    def _replace_name(self, value: str, spellings: Spellings, drawn: dict[tuple[str, bool], str]) -> str:
        """Replace a name word by word; titles, particles and "Jr." stay, an initial is that of the full name's word."""
        full, pieces, end = spellings.find_full_name(value), list[str](), 0
        surname = {part for word in full.words[full.surname_start :] for part in word.split("-")}
        initials = [part for word in full.words for part in word.split("-") if len(part) > 1]
        for word in split_name_words(value, self._language):
            text = value[word.start : word.end]
            pieces.append(value[end : word.start])
            end = word.end
            if any(map(str.isdigit, text)):
                text = replace_letters(text, random.Random(self._derive_seed("name", word.text)))
            elif word.role in ("word", "initial"):
                meant = word.text
                if word.role == "initial":
                    meant = next((part for part in initials if part.startswith(word.text)), word.text)
                    initials = initials[initials.index(meant) + 1 :] if meant in initials else initials
                is_last = meant in (surname if len(full.words) > 1 else spellings.surnames)
                new = self._invent_name_word(meant, is_last, drawn)
                text = match_case(new[0] if word.role == "initial" else new, text)
            pieces.append(text)
        return "".join((*pieces, value[end:]))

    def _invent_name_word(self, word: str, is_last: bool, drawn: dict[tuple[str, bool], str]) -> str:
        """Return another given name of the same gender or surname; no two words of a document share one."""
        names = load_faker_names(choose_faker_locale(word, self._language))
        genders = [kind for kind in ("female", "male") if word in names[kind]]
        kinds = ["last"] if is_last or not genders else genders
        key = word, kinds == ["last"]
        if key in drawn:
            return drawn[key]
        draw = random.Random(self._derive_seed("name", word))
        pool = [str(name) for name in names["as written"][draw.choice(kinds)]]
        candidates = draw.sample(pool, min(len(pool), 50))
        new = next((new for new in candidates if fold_word(new) != word and new not in drawn.values()), "N")
        drawn[key] = new
        return new


_FAKER_LOCK = threading.Lock()
"""Held between seeding a generator that threads share and drawing from it."""
_FAKED = {
    "LOCATION": "city", "ORGANIZATION": "company", "STREET_ADDRESS": "street_address", "NRP": "country", "TITLE": "job",
}  # fmt: skip
"""Faker's method by kind."""
