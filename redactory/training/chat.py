"""Conversations as a chat model reads them: turns with roles, a template around them, what of it is learnt.

A conversation is one text, as the vault holds it: before what is said stands its role with a mark, between
two turns another.  What opens and ends a turn are ids that the template alone can write: nothing that was
said can open a turn, end one or change its role.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.redaction.mask import ROLE_MARK, TURN_MARK
from redactory.training.tokenizer import FolderTokenizer, TextCodec

USER, ASSISTANT, SYSTEM, TOOL = "user", "assistant", "system", "tool"
_CALLED = {
    ASSISTANT: (
        *("assistant", "ai", "bot", "gpt", "chatgpt", "model", "agent", "operator", "support"),
        *("advisor", "expert", "doctor", "teacher", "function_call"),
    ),
    SYSTEM: ("system", "developer"),
    TOOL: ("tool", "function", "observation"),
}
_ROLES = {name: role for role, names in _CALLED.items() for name in names}
PLAIN = (
    "{% for turn in messages %}{{ turn.role + ': ' + turn.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""The template of ours, as other libraries read it: role, text and the end token, turn by turn."""
Learn = Literal["assistant", "all"]
Turn = tuple[str, str]


def joined(said: Iterable[tuple[str | None, str]]) -> str:
    """Turns, each a role and a text, as one text; ``InputError`` where one holds a mark."""
    found = list(said)
    parts = "".join(f"{role or ''}{text}" for role, text in found)
    if TURN_MARK in parts or ROLE_MARK in parts:
        raise InputError("a turn contains a separator of turns (U+001E or U+001F)")
    return TURN_MARK.join(f"{role}{ROLE_MARK}{text}" if role else text for role, text in found)


def said_in(value: Any) -> str | None:
    """A list of turns (``role`` and ``content``, ``from`` and ``value``) as one text; None for all else."""
    try:
        said = [(one.get("role", one.get("from")), one.get("content", one.get("value"))) for one in value]
    except (AttributeError, TypeError):
        return None
    return joined(said) if said and all(isinstance(part, str) for one in said for part in one) else None


def turns(text: str) -> list[Turn]:
    """The turns of a conversation, each with the role that templates know; a neighbour of one role joins it.

    A role that nobody knows, and one that was left out, is a user's.  A turn without a word is none, but for
    the last: it is one that is to be said.
    """
    found: list[Turn] = []
    parts = text.split(TURN_MARK) if text else []
    for number, part in enumerate(parts, 1):
        told, _, said = part.rpartition(ROLE_MARK)
        if said.strip() or number == len(parts):
            found.append((_ROLES.get(told.strip().lower(), USER), said.strip()))
    return [(role, "\n".join(said for _, said in of_it if said)) for role, of_it in groupby(found, itemgetter(0))]


def as_lines(text: str) -> str:
    """A conversation with a line for each turn: what a vocabulary is made of."""
    return "\n".join(f"{role}: {said}" for role, said in turns(text)) if ROLE_MARK in text else text


def prompt(given: Any) -> str:
    """What a model is asked, as a conversation in which the assistant is next; "" is the very beginning.

    ``given`` is what a user says, a conversation, or a list of ``{"role", "content"}``.
    """
    if not isinstance(given, str):
        given = said_in(given)
        if given is None:
            raise InputError("a prompt must be a text, or a list of turns with role and content")
    elif given and ROLE_MARK not in given:
        given = joined([(USER, given)])
    if given and turns(given)[-1][0] == ASSISTANT:
        raise InputError("a prompt must end with a message to the assistant, not with its answer")
    return given and f"{given}{TURN_MARK}{ASSISTANT}{ROLE_MARK}"


class Piece(NamedTuple):
    """A part of a rendered conversation: text, or one id; ``of`` is the turn that it is said in, if any."""

    part: str | int
    learnt: bool
    of: int | None = None


@dataclass(frozen=True)
class ChatCodec:
    """A tokenizer that writes conversations in a chat template: the folder's ``own``, or the plain one.

    ``learn`` says on what the loss is: on what the assistant says and the end of its turn, or on everything.
    A text whose last turn is an assistant's without a word is a prompt: the template opens that turn.

    Formal guarantees: ids and what is learnt of them are functions of one conversation and of constants; a
    token that holds a part of another's turn is never learnt with ``learn`` "assistant".
    """

    inner: TextCodec
    own: bool
    learn: Learn

    @classmethod
    def of(cls, tokenizer: TextCodec, template: str, learn: Learn) -> ChatCodec:
        """The codec of a ``template`` setting; ``ConfigurationError`` where the folder's own does not fit."""
        own = template == "auto" and getattr(getattr(tokenizer, "inner", None), "chat_template", None)
        found = cls(tokenizer, bool(own), learn)
        found.end_id  # noqa: B018 (it is looked for)
        return found

    @property
    def template(self) -> str:
        """As :meth:`of` takes it."""
        return "auto" if self.own else "plain"

    def bare(self) -> TextCodec:
        """The tokenizer, which other libraries then read with this template."""
        if isinstance(self.inner, FolderTokenizer) and not self.own:
            self.inner.inner.chat_template = PLAIN
        return self.inner

    @property
    def size(self) -> int:
        """Number of ids."""
        return self.inner.size

    @property
    def pad_id(self) -> int:
        """As in the tokenizer, like begin, mask and digest."""
        return self.inner.pad_id

    @property
    def begin_id(self) -> int:
        """Stands before a conversation; a template's own is not written twice."""
        return self.inner.begin_id

    @property
    def mask_id(self) -> int:
        """``<MASK>``, in whatever turn."""
        return self.inner.mask_id

    @property
    def digest(self) -> str:
        """The tokenizer's alone: what the template is, settings and the folder's digest say."""
        return self.inner.digest

    @cached_property
    def end_id(self) -> int:
        """What an assistant's turn ends with, and so what a model has written."""
        *_, last = (one.part for one in self._pieces((USER, ASSISTANT), ("a", "b")) if one.learnt)
        assert isinstance(last, int)
        return last

    def encode(self, text: str) -> list[int]:
        """The ids of a conversation without the begin token."""
        return self.encoded(text)[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, the template's own among it; begin and the end of a turn are left out."""
        return self.inner.decode([number for number in ids if number != self.end_id])

    def spelled(self, number: int) -> str:
        """What one id stands for."""
        return self.inner.spelled(number)

    def places(self, text: str) -> list[tuple[int, int]]:
        """Of a text by itself, as in the tokenizer."""
        return self.inner.places(text)

    def learnt(self, text: str) -> list[str]:
        """The turns of a conversation that are learnt."""
        return [said for role, said in turns(text) if self.learn == "all" or role == ASSISTANT]

    def words(self, text: str) -> int:
        """How many words of a conversation are learnt."""
        return sum(len(said.split()) for said in self.learnt(text))

    def encoded(self, text: str) -> tuple[list[int], list[bool]]:
        """The ids of a conversation, and which of them are learnt."""
        found = turns(text)
        if opens := found[-1:] == [(ASSISTANT, "")]:
            del found[-1]
        if not found:
            return [], []
        ids: list[int] = []
        learnt: list[bool] = []
        pieces = self._pieces(tuple(role for role, _ in found), tuple(one for _, one in found), opens)
        # what stands between two tokens of the template is one text, as the template's own library reads it
        for is_text, group in groupby(pieces, lambda one: isinstance(one.part, str)):
            own = list(group)
            if not is_text:
                ids += [int(one.part) for one in own]
                learnt += [one.learnt for one in own]
                continue
            whole = "".join(str(one.part) for one in own)
            marks = [one.learnt for one in own for _ in str(one.part)]
            inner = self.inner
            ids += inner.encode(whole)
            # a token counts with its first character: what follows it in its text is learnt too
            learnt += [marks[min(start, len(marks) - 1)] for start, _ in inner.places(whole)]
        if ids and self.own and ids[0] == self.begin_id and isinstance(pieces[0].part, int):
            ids, learnt = ids[1:], learnt[1:]
        return ids, [True] * len(ids) if self.learn == "all" else learnt

    def _pieces(self, roles: tuple[str, ...], said: tuple[str, ...], opens: bool = False) -> list[Piece]:
        """The rendered conversation, with the assistant's next turn opened where it ``opens``."""
        if not (self.own and isinstance(self.inner, FolderTokenizer)):
            return list(self._plain(roles, said, opens))
        rendered = _rendered(self.inner, roles, opens)
        return [
            one if one.of is None else Piece(said[one.of], one.learnt)
            for one in rendered
            if one.of is None or said[one.of]
        ]

    def _plain(self, roles: tuple[str, ...], said: tuple[str, ...], opens: bool) -> Iterator[Piece]:
        for role, text in zip(roles, said, strict=True):
            learnt = role == ASSISTANT
            yield Piece(f"{role}:", False)
            yield Piece(f" {text}", learnt)
            yield Piece(self.inner.end_id, learnt)
        if opens:
            yield Piece(f"{ASSISTANT}:", False)


# A folder's own template: rendered once for each order of roles, with a sign in the place of what is said.


_SIGN = "\ue000{}\ue001"


@lru_cache(maxsize=4096)
def _rendered(tokenizer: FolderTokenizer, roles: tuple[str, ...], opens: bool) -> tuple[Piece, ...]:
    """The template around turns of ``roles``; a piece with ``of`` stands for what is said there.

    ``ConfigurationError`` where the template refuses these roles, repeats or leaves out a turn, or has no
    token that ends an assistant's.
    """
    signs = [_SIGN.format(number) for number in range(len(roles))]
    text = _applied(tokenizer, roles, signs, opens)
    found = [text.count(sign) for sign in signs]
    places = [text.find(sign) for sign in signs]
    if found != [1] * len(roles) or places != sorted(places):
        raise _unfit("leaves out, repeats or moves a turn")
    header = _applied(tokenizer, (USER,), "a", True).removeprefix(_applied(tokenizer, (USER,), "a", False))
    special = _special(tokenizer)
    parts = re.split("|".join(map(re.escape, signs)), text) if signs else [text]
    pieces: list[Piece] = []
    for number, part in enumerate(parts):
        ends, begins = 0, len(part)
        if number and roles[number - 1] == ASSISTANT:
            end = special.search(part)
            if end is None:
                raise _unfit("has no token that ends an assistant's turn")
            ends = end.end()
        if number < len(roles) and roles[number] == ASSISTANT and header in part[ends:]:
            begins = part.rindex(header) + len(header)
        for chunk, learnt in ((part[:ends], True), (part[ends:begins], False), (part[begins:], True)):
            pieces += _split(tokenizer, special, chunk, learnt)
        if number < len(roles):
            pieces.append(Piece("", roles[number] == ASSISTANT, number))
    return tuple(pieces)


def _split(tokenizer: FolderTokenizer, special: re.Pattern[str], text: str, learnt: bool) -> Iterator[Piece]:
    """``text`` of a template: its special tokens as ids, the rest as text."""
    end = 0
    for match in special.finditer(text):
        if match.start() > end:
            yield Piece(text[end : match.start()], learnt)
        yield Piece(int(tokenizer.inner.convert_tokens_to_ids(match[0])), learnt)
        end = match.end()
    if text[end:]:
        yield Piece(text[end:], learnt)


def _applied(tokenizer: FolderTokenizer, roles: Sequence[str], said: Sequence[str], opens: bool) -> str:
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    try:
        return str(tokenizer.inner.apply_chat_template(messages, tokenize=False, add_generation_prompt=opens))
    except ImportError:
        raise ConfigurationError("train.chat: a folder's template needs jinja2: pip install jinja2") from None
    # a template is a program of its own, and may stop with any error
    except Exception:
        raise _unfit(f"refuses a conversation of the roles {', '.join(roles)}") from None


def _special(tokenizer: FolderTokenizer) -> re.Pattern[str]:
    added: Mapping[int, Any] = tokenizer.inner.added_tokens_decoder
    names = sorted((token.content for token in added.values() if token.special), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)) or r"(?!)")


def _unfit(what: str) -> ConfigurationError:
    return ConfigurationError(f"train.chat.template: the folder's {what}; set template to plain")
