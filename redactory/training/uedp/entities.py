"""Decide which mentions are one entity: normalised values, aliases, a client's list, a public allow-list.

Values leave this module only as keyed digests. Values that are not folded together here are separate entities,
each with its own protection (``docs/explanation/uedp.md``, "Users, entities and points").
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from redactory.detectors.lists import split_tokens
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import DigestKey
from redactory.training.unit_settings import HighDegreeList

LISTED_LABEL = "LISTED"
"""The label of an entity that stands on the client's list and was found by looking it up."""
_TITLES = (
    "mr mrs ms miss mx dr doctor prof professor sir dame lord lady madam rev reverend hon "
    "honourable honorable capt captain lt sgt col gen judge justice president senator herr frau mme "
    "mlle senor senora"
)
TITLES = frozenset(_TITLES.split())
_WORD_PATTERN = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Mention:
    """An entity in an example: the keyed digest of its value, and its label there."""

    entity: bytes
    label: str


class EntityNames:
    """What counts as an entity, and the digests of values, equal exactly for values of one entity.

    Spelling (:func:`redactory.detectors.lists.fold_text`), signs at either end and titles before a name do not
    distinguish values; a value of ``aliases`` counts as the value it maps to. ``categories``: labels whose spans are
    entities; None: every label. ``listed``: the client's values, found in the texts even if no detector saw them.
    ``hubs``: values that are declared public and not protected, each with the labels under which it is a hub (None:
    every label); name them without looking at the corpus. ``ConfigurationError`` if these contradict each other; the
    message names the list, never the value.
    """

    def __init__(
        self,
        key: DigestKey,
        *,
        categories: frozenset[str] | None = None,
        listed: Sequence[str] = (),
        hubs: Mapping[str, frozenset[str] | None] = MappingProxyType({}),
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._key, self._purpose = key, key.derive_subkey("uedp/entity")
        self.categories = categories
        self._aliases = self._resolve_aliases(aliases)
        listed_values = [self._normalize_entry("listed", row, value) for row, value in enumerate(listed, 1)]
        self._hubs = {
            self._compute_token_digest(self._normalize_entry("high_degree_entities", row, value)): labels
            for row, (value, labels) in enumerate(hubs.items(), 1)
        }
        self._hub_words = {_drop_punctuation(_tokenize(value)) for value in hubs}
        self.listed_digests = frozenset(map(self._compute_token_digest, listed_values))
        if self.listed_digests & self._hubs.keys():
            raise ConfigurationError("entities: a value is in both listed and hubs; keep it in one of them")
        forms = {alias for alias in self._aliases if self._compute_token_digest(alias) in self.listed_digests}
        self._listed_tokens = {tokens: self._compute_token_digest(tokens) for tokens in {*listed_values, *forms}}
        self._lengths = sorted({len(tokens) for tokens in self._listed_tokens})

    def make_mention(self, value: str, label: str) -> Mention | None:
        """Return the mention of ``value`` under ``label`` if it counts, else None."""
        tokens = self.normalize(value)
        if not tokens:
            return None
        entity = self._compute_token_digest(tokens)
        chosen = self.categories is None or label in self.categories
        labels = self._hubs.get(entity, frozenset())
        is_hub = labels is None or label in labels
        # with a title it is a person's name, whatever country or month has the same
        has_title = _drop_punctuation(_tokenize(value)) not in {_drop_punctuation(tokens), *self._hub_words}
        counts = (chosen and has_title) or (not is_hub and (chosen or entity in self.listed_digests))
        return Mention(entity, label) if counts else None

    def find_listed_mentions(self, text: str) -> Iterator[Mention]:
        """Find every place of ``text`` that contains a listed value, or an alias of one, word for word."""
        for entity, *_ in self._find_matches(text):
            yield Mention(entity, LISTED_LABEL)

    def find_listed_spans(self, text: str) -> list[tuple[int, int]]:
        """Return the ranges of ``text`` (code points, end exclusive) that :meth:`find_listed_mentions` finds."""
        return [(start, end) for _, start, end in self._find_matches(text)]

    def _find_matches(self, text: str) -> Iterator[tuple[bytes, int, int]]:
        """Yield (entity, start, end) of every listed value."""
        tokens = split_tokens(text) if self._lengths else []
        for length in self._lengths:
            for first in range(len(tokens) - length + 1):
                piece = tokens[first : first + length]
                entity = self._listed_tokens.get(tuple(token for token, *_ in piece))
                if entity is not None:
                    yield entity, piece[0][1], piece[-1][2]

    def normalize(self, value: str) -> tuple[str, ...]:
        """Return the tokens that distinguish a value: folded, trimmed, without titles before a name."""
        tokens = _trim_punctuation(_tokenize(value))
        while len(tokens) > 1 and tokens[0] in TITLES:
            rest = _trim_punctuation(tokens[1:])
            if not rest:
                break
            tokens = rest
        return tuple(tokens)

    def _compute_token_digest(self, tokens: tuple[str, ...]) -> bytes:
        canonical = self._aliases.get(tokens, tokens)
        return self._key.compute_text_digest(self._purpose, "\x1f".join(canonical).encode("utf-8"))

    def _resolve_aliases(self, aliases: Mapping[str, str]) -> dict[tuple[str, ...], tuple[str, ...]]:
        rows = enumerate(aliases.items(), 1)
        pairs = [
            (self._normalize_entry("aliases", row, a), self._normalize_entry("aliases", row, b)) for row, (a, b) in rows
        ]
        table: dict[tuple[str, ...], tuple[str, ...]] = {}
        for row, (alias, canonical) in enumerate(pairs, 1):
            if alias != canonical and table.setdefault(alias, canonical) != canonical:
                raise ConfigurationError(f"entities.aliases: entry {row} gives an alias above another value; keep one")
        resolved = {}
        for alias in table:
            canonical, seen = table[alias], {alias}
            while canonical in table:
                if canonical in seen:
                    raise ConfigurationError("entities.aliases: the table contains a cycle")
                seen.add(canonical)
                canonical = table[canonical]
            resolved[alias] = canonical
        return resolved

    def _normalize_entry(self, name: str, row: int, value: str) -> tuple[str, ...]:
        tokens = self.normalize(value)
        if not tokens:
            raise ConfigurationError(f"entities.{name}: entry {row} contains no letter or digit")
        return tokens


def _tokenize(text: str) -> list[str]:
    return [token for token, *_ in split_tokens(text)]


def _drop_punctuation(tokens: Iterable[str]) -> tuple[str, ...]:
    """Without signs anywhere."""
    return tuple(token for token in tokens if _WORD_PATTERN.match(token))


def _trim_punctuation(tokens: list[str]) -> list[str]:
    """Without signs at either end."""
    words = [place for place, token in enumerate(tokens) if _WORD_PATTERN.match(token)]
    return tokens[words[0] : words[-1] + 1] if words else []


def load_high_degree_list(name: HighDegreeList) -> dict[str, frozenset[str]]:
    """Load a built-in list: its values, each with the labels it covers: April the month, not the person."""
    hubs = tomllib.loads(files(__package__).joinpath("hubs.toml").read_text("utf-8"))[name]
    return dict.fromkeys(hubs["values"], frozenset(hubs["labels"]))
