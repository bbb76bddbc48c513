"""Conversations for chat models: turns with roles, a template around them, and a mask of the learned tokens.

A conversation is one text, as in the vault: a mark separates a role from its turn, another mark separates turns. Only
the template can write the ids that open and end a turn: no content can open or end one or change its role.
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
_ROLE_ALIASES = {
    ASSISTANT: (
        *("assistant", "ai", "bot", "gpt", "chatgpt", "model", "agent", "operator", "support"),
        *("advisor", "expert", "doctor", "teacher", "function_call"),
    ),
    SYSTEM: ("system", "developer"),
    TOOL: ("tool", "function", "observation"),
}
_ROLE_BY_ALIAS = {name: role for role, names in _ROLE_ALIASES.items() for name in names}
PLAIN_TEMPLATE = (
    "{% for turn in messages %}{{ turn.role + ': ' + turn.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Our template in the form that other libraries read: role, text and end token of each turn."""
LossScope = Literal["assistant", "all"]
Turn = tuple[str, str]


def join_turns(turns: Iterable[tuple[str | None, str]]) -> str:
    """Join turns, each a role and a text, into one text; ``InputError`` if one contains a separator."""
    turn_list = list(turns)
    joined_text = "".join(f"{role or ''}{text}" for role, text in turn_list)
    if TURN_MARK in joined_text or ROLE_MARK in joined_text:
        raise InputError("a turn contains a separator of turns (U+001E or U+001F)")
    return TURN_MARK.join(f"{role}{ROLE_MARK}{text}" if role else text for role, text in turn_list)


def messages_to_text(value: Any) -> str | None:
    """Convert a list of turns (``role``/``content`` or ``from``/``value``) to one text; None for anything else."""
    try:
        pairs = [(turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))) for turn in value]
    except (AttributeError, TypeError):
        return None
    return join_turns(pairs) if pairs and all(isinstance(part, str) for turn in pairs for part in turn) else None


def parse_turns(text: str) -> list[Turn]:
    """Parse the turns of a conversation, with roles that templates know; adjacent turns of one role are joined.

    Unknown and missing roles become the user's. Empty turns are dropped, except the last: it is still to be written.
    """
    parsed: list[Turn] = []
    parts = text.split(TURN_MARK) if text else []
    for number, part in enumerate(parts, 1):
        role_name, _, content = part.rpartition(ROLE_MARK)
        if content.strip() or number == len(parts):
            parsed.append((_ROLE_BY_ALIAS.get(role_name.strip().lower(), USER), content.strip()))
    return [
        (role, "\n".join(content for _, content in group if content)) for role, group in groupby(parsed, itemgetter(0))
    ]


def format_turns(text: str) -> str:
    """Format a conversation with one line per turn, as a vocabulary is built from it."""
    return "\n".join(f"{role}: {content}" for role, content in parse_turns(text)) if ROLE_MARK in text else text


def make_prompt(message: Any) -> str:
    """Make a conversation, next turn the assistant's, from a user's text, a conversation or a list of messages."""
    if not isinstance(message, str):
        message = messages_to_text(message)
        if message is None:
            raise InputError("a prompt must be a text, or a list of turns with role and content")
    elif message and ROLE_MARK not in message:
        message = join_turns([(USER, message)])
    if message and parse_turns(message)[-1][0] == ASSISTANT:
        raise InputError("a prompt must end with a message to the assistant, not with its answer")
    return message and f"{message}{TURN_MARK}{ASSISTANT}{ROLE_MARK}"


class RenderedPart(NamedTuple):
    """Part of a rendered conversation: text or one id; ``turn`` is the turn whose content belongs here, if any."""

    content: str | int
    in_loss: bool
    turn: int | None = None


@dataclass(frozen=True)
class ChatCodec:
    """A tokenizer that encodes conversations in a chat template: the folder's own, or the plain one.

    ``loss_scope``: the loss is on the assistant's turns and their ends, or on everything. A text whose last turn is an
    empty one of the assistant is a prompt: the template opens that turn.

    Formal guarantees: ids and loss mask are functions of one conversation and of constants; with ``loss_scope``
    "assistant" a token that contains a part of another's turn is never in the loss.
    """

    inner: TextCodec
    uses_folder_template: bool
    loss_scope: LossScope

    @classmethod
    def from_template(cls, tokenizer: TextCodec, template: str, loss_scope: LossScope) -> ChatCodec:
        """Make the codec of a ``template`` setting; ``ConfigurationError`` if the folder's template is unsuitable."""
        uses_folder_template = template == "auto" and getattr(getattr(tokenizer, "inner", None), "chat_template", None)
        codec = cls(tokenizer, bool(uses_folder_template), loss_scope)
        codec.end_id  # noqa: B018 (raises if the template has no end token)
        return codec

    @property
    def template(self) -> str:
        """The ``template`` argument of :meth:`from_template`."""
        return "auto" if self.uses_folder_template else "plain"

    def export_tokenizer(self) -> TextCodec:
        """Return the tokenizer with this template for other libraries."""
        if isinstance(self.inner, FolderTokenizer) and not self.uses_folder_template:
            self.inner.inner.chat_template = PLAIN_TEMPLATE
        return self.inner

    @property
    def size(self) -> int:
        """Number of ids."""
        return self.inner.size

    @property
    def pad_id(self) -> int:
        """The inner tokenizer's padding token."""
        return self.inner.pad_id

    @property
    def begin_id(self) -> int:
        """The token before a conversation; one that the template writes is not repeated."""
        return self.inner.begin_id

    @property
    def mask_id(self) -> int:
        """``<MASK>``, in any turn."""
        return self.inner.mask_id

    @property
    def digest(self) -> str:
        """The inner tokenizer's; settings and the folder's digest identify the template."""
        return self.inner.digest

    @cached_property
    def end_id(self) -> int:
        """The token that ends an assistant's turn, and so a generated text."""
        parts = self._render_conversation((USER, ASSISTANT), ("a", "b"))
        *_, final_id = (part.content for part in parts if part.in_loss)
        assert isinstance(final_id, int)
        return final_id

    def encode(self, text: str) -> list[int]:
        """Encode a conversation without the begin token."""
        return self.encode_with_loss_mask(text)[0]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ``ids``, including the template's text; begin and end of a turn are omitted."""
        return self.inner.decode([token_id for token_id in ids if token_id != self.end_id])

    def decode_token(self, token_id: int) -> str:
        """Decode one id."""
        return self.inner.decode_token(token_id)

    def token_offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the inner tokenizer's offsets of a single text."""
        return self.inner.token_offsets(text)

    def extract_turns_in_loss(self, text: str) -> list[str]:
        """Return the turns of a conversation that are in the loss."""
        return [content for role, content in parse_turns(text) if self.loss_scope == "all" or role == ASSISTANT]

    def encode_with_loss_mask(self, text: str) -> tuple[list[int], list[bool]]:
        """Encode a conversation; also return which ids are in the loss."""
        turn_list = parse_turns(text)
        if has_open_turn := turn_list[-1:] == [(ASSISTANT, "")]:
            del turn_list[-1]
        if not turn_list:
            return [], []
        ids: list[int] = []
        loss_mask: list[bool] = []
        roles, contents = tuple(role for role, _ in turn_list), tuple(part for _, part in turn_list)
        parts = self._render_conversation(roles, contents, has_open_turn)
        # text between two template tokens is encoded as one text, as the template's library does
        for is_text, group in groupby(parts, lambda part: isinstance(part.content, str)):
            group_parts = list(group)
            if not is_text:
                ids += [int(part.content) for part in group_parts]
                loss_mask += [part.in_loss for part in group_parts]
                continue
            joined_text = "".join(str(part.content) for part in group_parts)
            character_mask = [part.in_loss for part in group_parts for _ in str(part.content)]
            tokenizer = self.inner
            ids += tokenizer.encode(joined_text)
            # a token is in the loss if its first character is, even if it extends beyond the learned part
            loss_mask += [
                character_mask[min(start, len(character_mask) - 1)] for start, _ in tokenizer.token_offsets(joined_text)
            ]
        if ids and self.uses_folder_template and ids[0] == self.begin_id and isinstance(parts[0].content, int):
            ids, loss_mask = ids[1:], loss_mask[1:]
        return ids, [True] * len(ids) if self.loss_scope == "all" else loss_mask

    def _render_conversation(
        self, roles: tuple[str, ...], contents: tuple[str, ...], add_generation_prompt: bool = False
    ) -> list[RenderedPart]:
        """Render the conversation; ``add_generation_prompt`` opens the assistant's next turn."""
        if not (self.uses_folder_template and isinstance(self.inner, FolderTokenizer)):
            return list(self._render_plain_template(roles, contents, add_generation_prompt))
        rendered = _render_template(self.inner, roles, add_generation_prompt)
        return [
            part if part.turn is None else RenderedPart(contents[part.turn], part.in_loss)
            for part in rendered
            if part.turn is None or contents[part.turn]
        ]

    def _render_plain_template(
        self, roles: tuple[str, ...], contents: tuple[str, ...], add_generation_prompt: bool
    ) -> Iterator[RenderedPart]:
        for role, text in zip(roles, contents, strict=True):
            in_loss = role == ASSISTANT
            yield RenderedPart(f"{role}:", False)
            yield RenderedPart(f" {text}", in_loss)
            yield RenderedPart(self.inner.end_id, in_loss)
        if add_generation_prompt:
            yield RenderedPart(f"{ASSISTANT}:", False)


# A folder's template is rendered once per sequence of roles, with placeholders for the contents.


_PLACEHOLDER = "\ue000{}\ue001"


@lru_cache(maxsize=4096)
def _render_template(
    tokenizer: FolderTokenizer, roles: tuple[str, ...], add_generation_prompt: bool
) -> tuple[RenderedPart, ...]:
    """Render the template around turns of ``roles`` with placeholders; ``ConfigurationError`` if it is unsuitable."""
    placeholders = [_PLACEHOLDER.format(number) for number in range(len(roles))]
    text = _apply_template(tokenizer, roles, placeholders, add_generation_prompt)
    counts = [text.count(placeholder) for placeholder in placeholders]
    positions = [text.find(placeholder) for placeholder in placeholders]
    if counts != [1] * len(roles) or positions != sorted(positions):
        raise _make_template_error("leaves out, repeats or moves a turn")
    assistant_header = _apply_template(tokenizer, (USER,), "a", True).removeprefix(
        _apply_template(tokenizer, (USER,), "a", False)
    )
    added: Mapping[int, Any] = tokenizer.inner.added_tokens_decoder
    names = sorted((token.content for token in added.values() if token.special), key=len, reverse=True)
    special_pattern = re.compile("|".join(map(re.escape, names)) or r"(?!)")
    parts = re.split("|".join(map(re.escape, placeholders)), text) if placeholders else [text]
    rendered: list[RenderedPart] = []
    for number, part in enumerate(parts):
        loss_end, loss_start = 0, len(part)
        if number and roles[number - 1] == ASSISTANT:
            end_match = special_pattern.search(part)
            if end_match is None:
                raise _make_template_error("has no token that ends an assistant's turn")
            loss_end = end_match.end()
        if number < len(roles) and roles[number] == ASSISTANT and assistant_header in part[loss_end:]:
            loss_start = part.rindex(assistant_header) + len(assistant_header)
        for chunk, in_loss in ((part[:loss_end], True), (part[loss_end:loss_start], False), (part[loss_start:], True)):
            rendered += _split_at_special_tokens(tokenizer, special_pattern, chunk, in_loss)
        if number < len(roles):
            rendered.append(RenderedPart("", roles[number] == ASSISTANT, number))
    return tuple(rendered)


def _split_at_special_tokens(
    tokenizer: FolderTokenizer, special_pattern: re.Pattern[str], text: str, in_loss: bool
) -> Iterator[RenderedPart]:
    """Split a template's ``text`` into special tokens, as ids, and the text between them."""
    end = 0
    for match in special_pattern.finditer(text):
        if match.start() > end:
            yield RenderedPart(text[end : match.start()], in_loss)
        yield RenderedPart(int(tokenizer.inner.convert_tokens_to_ids(match[0])), in_loss)
        end = match.end()
    if text[end:]:
        yield RenderedPart(text[end:], in_loss)


def _apply_template(
    tokenizer: FolderTokenizer, roles: Sequence[str], contents: Sequence[str], add_generation_prompt: bool
) -> str:
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
    try:
        return str(
            tokenizer.inner.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
        )
    except ImportError:
        raise ConfigurationError("train.chat: a folder's template needs jinja2: pip install jinja2") from None
    # a template is a program and may raise any error
    except Exception:
        raise _make_template_error(f"refuses a conversation of the roles {', '.join(roles)}") from None


def _make_template_error(problem: str) -> ConfigurationError:
    return ConfigurationError(f"train.chat.template: the folder's {problem}; set template to plain")
