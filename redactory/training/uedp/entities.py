"""Which mentions are one entity: normalised values, aliases, a client's list, a public allow-list.

Values leave this module as keyed digests only.  What is not folded together here are two entities, each
protected for itself (``docs/explanation/uedp.md``, "Users, entities and points").
"""

from __future__ import annotations

import functools
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import DigestKey

LISTED = "LISTED"
"""The label of an entity that stands on the client's list and was found by looking it up."""
_TITLES = (
    "mr mrs ms miss mx dr doctor prof professor sir dame lord lady madam rev reverend hon "
    "honourable honorable capt captain lt sgt col gen judge justice president senator herr frau mme "
    "mlle señor señora"
)
TITLES = frozenset(_TITLES.split())
_TOKEN = re.compile(r"\w+|[^\w\s]")
_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Mention:
    """An entity in a point: the keyed digest of its value, and the label it goes by there."""

    entity: bytes
    label: str


class EntityNames:
    """What counts as an entity, and the digests of values; equal for two exactly where they are one entity.

    Case, white space, signs at either end and ``titles`` before a name do not tell two values apart; a value
    of ``aliases`` is the one it stands for.  ``categories``: labels whose hits are entities; None: every
    label.  ``listed``: the client's values, found in the texts whether or not a detector saw them.  ``hubs``:
    values that are declared public and are protected by nothing; they must be named without looking at the
    corpus; ``hub_labels``: of some of them, the labels under which they are (every label for the others).
    ``ConfigurationError`` where these contradict each other; the message names the list, never the value.
    """

    def __init__(
        self,
        key: DigestKey,
        *,
        categories: frozenset[str] | None = None,
        listed: Sequence[str] = (),
        hubs: Sequence[str] = (),
        hub_labels: Mapping[str, frozenset[str]] = MappingProxyType({}),
        aliases: Mapping[str, str] = MappingProxyType({}),
        titles: frozenset[str] = TITLES,
    ) -> None:
        self._key, self._purpose, self._titles = key, key.purpose("uedp/entity"), titles
        self.categories = categories
        self._aliases = self._resolved(aliases)
        own = [self._place("listed", row, value) for row, value in enumerate(listed, 1)]
        self._hubs: dict[bytes, frozenset[str] | None] = {}
        for row, value in enumerate(hubs, 1):
            self._hubs[self._digest_of(self._place("high_degree_entities", row, value))] = hub_labels.get(value)
        self._hub_forms = {_words(_tokens(value)) for value in hubs}
        self.listed = frozenset(map(self._digest_of, own))
        if self.listed & self._hubs.keys():
            raise ConfigurationError("entities: a value is in both listed and hubs; keep it in one of them")
        forms = {alias for alias in self._aliases if self._digest_of(alias) in self.listed}
        self._forms = {tokens: self._digest_of(tokens) for tokens in {*own, *forms}}
        self._lengths = sorted({len(tokens) for tokens in self._forms})

    def digest(self, value: str) -> bytes | None:
        """The 16-byte keyed digest of the entity that ``value`` names; None where nothing is left of it."""
        tokens = self.normalised(value)
        return self._digest_of(tokens) if tokens else None

    def mention(self, value: str, label: str) -> Mention | None:
        """The mention of ``value`` under ``label`` where it counts; None where it does not."""
        tokens = self.normalised(value)
        if not tokens:
            return None
        entity = self._digest_of(tokens)
        chosen = self.categories is None or label in self.categories
        labels = self._hubs.get(entity, frozenset())
        hub = labels is None or label in labels
        # with a title it is a person's name, whatever country or month has the same
        titled = _words(_tokens(value)) not in {_words(tokens), *self._hub_forms}
        counts = (chosen and titled) or (not hub and (chosen or entity in self.listed))
        return Mention(entity, label) if counts else None

    def lookup(self, text: str) -> Iterator[Mention]:
        """Every place of ``text`` where a listed value, or an alias of one, stands word for word."""
        for entity, _, _ in self._matches(_tokens(text) if self._lengths else []):
            yield Mention(entity, LISTED)

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where in ``text`` (code points, end exclusive) :meth:`lookup` finds something.

        The whole text where its signs are not those of its normal form, so that places cannot be told.
        """
        tokens = _tokens(text) if self._lengths else []
        matches = [(start, length) for _, start, length in self._matches(tokens)]
        pieces = [(m.start(), m.end(), token) for m in _TOKEN.finditer(text) for token in _tokens(m.group())]
        if matches and [token for _, _, token in pieces] != tokens:
            return [(0, len(text))]
        return [(pieces[start][0], pieces[start + length - 1][1]) for start, length in matches]

    def _matches(self, tokens: list[str]) -> Iterator[tuple[bytes, int, int]]:
        """(entity, first token, number of tokens) of every listed value."""
        for length in self._lengths:
            for start in range(len(tokens) - length + 1):
                entity = self._forms.get(tuple(tokens[start : start + length]))
                if entity is not None:
                    yield entity, start, length

    def normalised(self, value: str) -> tuple[str, ...]:
        """The tokens that tell a value from others: folded, trimmed, without titles before a name."""
        tokens = _trimmed(_tokens(value))
        while len(tokens) > 1 and tokens[0] in self._titles:
            rest = _trimmed(tokens[1:])
            if not rest:
                break
            tokens = rest
        return tuple(tokens)

    def _digest_of(self, tokens: tuple[str, ...]) -> bytes:
        named = self._aliases.get(tokens, tokens)
        return self._key.text_digest(self._purpose, "\x1f".join(named).encode("utf-8"))

    def _resolved(self, aliases: Mapping[str, str]) -> dict[tuple[str, ...], tuple[str, ...]]:
        rows = enumerate(aliases.items(), 1)
        pairs = [(self._place("aliases", row, a), self._place("aliases", row, b)) for row, (a, b) in rows]
        table = {alias: named for alias, named in pairs if alias != named}
        resolved = {}
        for alias in table:
            named, seen = table[alias], {alias}
            while named in table:
                if named in seen:
                    raise ConfigurationError("entities.aliases: the table contains a cycle")
                seen.add(named)
                named = table[named]
            resolved[alias] = named
        return resolved

    def _place(self, name: str, row: int, value: str) -> tuple[str, ...]:
        tokens = self.normalised(value)
        if not tokens:
            raise ConfigurationError(f"entities.{name}: entry {row} contains no letter or digit")
        return tokens


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())


def _words(tokens: Iterable[str]) -> tuple[str, ...]:
    """Without signs anywhere."""
    return tuple(token for token in tokens if _WORD.match(token))


def _trimmed(tokens: list[str]) -> list[str]:
    """Without signs at either end."""
    words = [place for place, token in enumerate(tokens) if _WORD.match(token)]
    return tokens[words[0] : words[-1] + 1] if words else []


@functools.cache
def _hubs() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(files(__package__).joinpath("hubs.toml").read_text("utf-8"))


def hub_list(name: str) -> tuple[str, ...]:
    """One of the ready-made allow-lists by name; ``ConfigurationError`` for another name."""
    if name not in _hubs():
        raise ConfigurationError(f"entities.high_degree_entities: the built-in lists are {', '.join(sorted(_hubs()))}")
    return tuple(_hubs()[name]["values"])


def hub_labels(name: str) -> frozenset[str]:
    """The labels that a list speaks of: April the month stands everywhere, April the person does not."""
    return frozenset(_hubs()[name]["labels"])
