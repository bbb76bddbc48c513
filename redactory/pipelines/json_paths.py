"""Fields: read the texts of a row by their paths, or replace them in place.

A path names a column or a key, then keys below it: ``notes``, ``ticket.body``, ``turns[].text``,
``messages[*].content``, ``["a.b"]`` for a key with a dot. A path to a conversation (OpenAI's list of ``role`` and
``content``, ShareGPT's of ``from`` and ``value``) reads the speech: the texts of a content list, and the strings
in a tool call's JSON arguments, but not its keys. Changes also apply to every other string of a turn, whatever
its key, and to the parts of any text that is JSON (:func:`transform_json_strings`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from json import decoder, scanner
from typing import Any, Literal

from redactory.foundation.canonical import DuplicateKeyError, reject_duplicate_keys
from redactory.foundation.errors import ConfigurationError, shorten_name
from redactory.redaction.mask import ROLE_MARK, TURN_MARK, Edit, apply_edits

EVERY_ENTRY = None
"""The path step for every entry of a list."""
PathStep = str | None
TextChange = Callable[[str], str]
StringKind = Literal["said", "json", "beside"]
StringVisitor = Callable[[str, StringKind, str | None], str]
"""Called with a string, its kind (only the strings of JSON are text) and the role of its speaker."""
_STEP_PATTERN = re.compile(r"""\[(?:\*)?\]|\["((?:[^"\\]|\\.)*)"\]|\.?([^.\[\]"]+)""")
NOT_TEXT, NOT_UNICODE, EMBEDDED = "text_not_string", "lone_surrogate", "embedded_data"
_NOT_TEXT_CODES: dict[type[Any], str] = {bytes: "text_is_bytes", list: "text_is_list"}
"""Reason codes for values that a cast would turn into text."""
_DATA_URL = re.compile(r"\s*data:[^\s,]*,", re.IGNORECASE)
_LONG_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{512,}={0,2}\s*")
"""A long string beside the speech that contains no words, such as an image or a sound."""
_CONTENT_KEYS = frozenset({"content", "value", "text", "refusal"})
_SPEECH_KEYS = _CONTENT_KEYS | {"tool_calls", "function_call"}
_KIND_KEYS = frozenset({"role", "from", "type", "id", "tool_call_id", "call_id"})
"""Keys of a turn, and inside it, whose values are not text."""


class NoTextError(Exception):
    """A field holds something other than text; the argument is the reason code."""


@dataclass(frozen=True)
class Fields:
    """The paths of a row's texts, as configured."""

    paths: tuple[str, ...]

    @cached_property
    def path_steps(self) -> tuple[tuple[PathStep, ...], ...]:
        """The steps of each path; ``ConfigurationError`` names an invalid path."""
        return tuple(parse_path(path) for path in self.paths)

    @property
    def columns(self) -> tuple[str, ...]:
        """The distinct first columns of the paths."""
        return tuple(dict.fromkeys(str(steps[0]) for steps in self.path_steps))

    def change_texts(self, row: Mapping[str, Any], change: TextChange) -> dict[str, Any]:
        """Return a copy of ``row`` with ``change`` applied to every text that the paths name, in order.

        A missing or null field holds no text. ``NoTextError`` if a field holds anything else.
        """
        return self._visit_strings(row, _make_json_visitor(change))

    def clear_texts(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of ``row`` with every text that the paths name empty, for rows whose text is not read."""
        return self._visit_strings(row, lambda text, kind, role: "")

    def _visit_strings(self, row: Mapping[str, Any], visit: StringVisitor) -> dict[str, Any]:
        result = dict(row)
        for path, steps in zip(self.paths, self.path_steps, strict=True):
            if path in result:
                # the name of a table column may look like a path
                result[path] = _visit_path_target(result[path], visit)
            elif steps[0] in result:
                result[str(steps[0])] = _change_value_at_path(result[str(steps[0])], steps[1:], visit)
        return result

    def read_texts(self, row: Mapping[str, Any]) -> list[str]:
        """Return every text that the paths name, in the order of :meth:`change_texts`."""
        texts: list[str] = []

        def collect_text(text: str) -> str:
            texts.append(text)
            return text

        self.change_texts(row, collect_text)
        return texts

    def read_turns(self, row: Mapping[str, Any]) -> list[tuple[str | None, str]]:
        """Return the speech without other strings, each part with its speaker's role, if known."""
        turns: list[tuple[str | None, str]] = []

        def collect_turn(text: str, kind: StringKind, role: str | None) -> str:
            if kind == "json":
                value = _decode_json(text)
                strings = value if isinstance(value, dict | list | str) else text
                _change_every_string(strings, lambda inner: collect_turn(inner, "said", role))
            elif kind == "said":
                turns.append((role, text))
            return text

        self._visit_strings(row, collect_turn)
        return turns

    def find_missing_paths(self, rows: list[Mapping[str, Any]]) -> list[str]:
        """Return the paths that exist in none of ``rows``."""
        return [
            path
            for path, steps in zip(self.paths, self.path_steps, strict=True)
            if not any(path in row or _has_path(row, steps) for row in rows)
        ]


def join_texts(turns: list[tuple[str | None, str]]) -> str:
    """Join texts and their roles into one document; ``NoTextError`` if one contains a separator."""
    if any(TURN_MARK in part or ROLE_MARK in part for role, text in turns for part in (role or "", text)):
        raise NoTextError("separator_in_text")
    return TURN_MARK.join(f"{role}{ROLE_MARK}{text}" if role else text for role, text in turns)


def strip_roles(document: str) -> str:
    """Return a document of several texts without roles, each text on lines of its own."""
    return "\n".join(part.rpartition(ROLE_MARK)[2] for part in document.split(TURN_MARK))


def parse_path(path: str, key: str = "text") -> tuple[PathStep, ...]:
    """Split a path into keys and :data:`EVERY_ENTRY`; ``ConfigurationError`` names the setting ``key`` if invalid."""
    steps: list[PathStep] = []
    position = 0
    while position < len(path):
        match = _STEP_PATTERN.match(path, position)
        if match is None or (match[0].startswith(".") and not steps):
            break
        quoted, name = match[1], match[2]
        steps.append(json.loads(f'"{quoted}"') if quoted is not None else name)
        position = match.end()
    if position < len(path) or not steps or steps[0] is EVERY_ENTRY:
        raise ConfigurationError(
            f"{key}: '{shorten_name(path)}' is not a path: give a column, or keys and lists inside one, as in "
            "ticket.body or messages[*].content"
        )
    return tuple(steps)


def _has_path(value: Any, steps: tuple[PathStep, ...]) -> bool:
    if not steps:
        return True
    step, rest = steps[0], steps[1:]
    if step is EVERY_ENTRY:
        return isinstance(value, list) and any(_has_path(entry, rest) for entry in value)
    if is_arrow_map(value):
        value = dict(value)
    return isinstance(value, Mapping) and step in value and _has_path(value[step], rest)


def is_arrow_map(value: Any) -> bool:
    """Return whether ``value`` is a map of a table: a list of pairs."""
    return isinstance(value, list) and all(isinstance(entry, tuple) for entry in value)


def _change_value_at_path(value: Any, steps: tuple[PathStep, ...], visit: StringVisitor) -> Any:
    if value is None:
        return None
    if not steps:
        return _visit_path_target(value, visit)
    step, rest = steps[0], steps[1:]
    if step is EVERY_ENTRY:
        if not isinstance(value, list):
            raise NoTextError(NOT_TEXT)
        return [_change_value_at_path(entry, rest, visit) for entry in value]
    if is_arrow_map(value):
        return [(key, _change_value_at_path(child, rest, visit) if key == step else child) for key, child in value]
    if not isinstance(value, Mapping):
        raise NoTextError(NOT_TEXT)
    return {**value, step: _change_value_at_path(value[step], rest, visit)} if step in value else value


def _visit_path_target(value: Any, visit: StringVisitor) -> Any:
    is_conversation = isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)
    if not (value is None or isinstance(value, str) or is_conversation):
        raise NoTextError(get_rejection_code(value))
    return _visit_content(value, visit, None)


def get_rejection_code(value: Any) -> str:
    """Return the reason code for a non-text value in a text field."""
    return _NOT_TEXT_CODES.get(type(value), NOT_TEXT)


def _require_valid_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NoTextError(NOT_UNICODE) from None
    if _DATA_URL.match(value):
        raise NoTextError(EMBEDDED)
    return value


def _visit_turn(turn: Mapping[str, Any], visit: StringVisitor, role: str | None) -> dict[str, Any]:
    """Visit the speech and every other string of a turn, or of one part of its content."""
    if not _SPEECH_KEYS & set(turn) and turn.get("type") in (None, "text"):
        raise NoTextError(NOT_TEXT)
    turn_role = turn.get("role", turn.get("from"))
    role = turn_role if isinstance(turn_role, str) else role
    return _visit_object_members(turn, visit, role, is_turn=True)


def _visit_content(value: Any, visit: StringVisitor, role: str | None) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return visit(_require_valid_text(value), "said", role)
    if isinstance(value, list):
        return [_visit_content(entry, visit, role) for entry in value]
    if isinstance(value, Mapping):
        return _visit_turn(value, visit, role)
    raise NoTextError(NOT_TEXT)


def _visit_object_members(
    value: Mapping[str, Any], visit: StringVisitor, role: str | None, is_function: bool = False, is_turn: bool = False
) -> dict[str, Any]:
    """Visit every string except those that tell the kind of an object, and a function's name."""
    result = dict(value)
    for key, child in value.items():
        if is_turn and key in _CONTENT_KEYS:
            result[key] = _visit_content(child, visit, role)
        elif key == "arguments":
            if isinstance(child, str):
                result[key] = visit(_require_valid_text(child), "json", role)
            else:
                result[key] = _change_every_string(child, lambda text: visit(text, "said", role))
        elif not (isinstance(child, str) and (key in _KIND_KEYS or (is_function and key == "name"))):
            result[key] = _visit_other_value(child, visit, role, key in ("function", "function_call"))
    return result


def _visit_other_value(value: Any, visit: StringVisitor, role: str | None, is_function: bool = False) -> Any:
    if isinstance(value, bytes) or (isinstance(value, str) and _LONG_BASE64.fullmatch(value)):
        raise NoTextError(EMBEDDED)
    if isinstance(value, str):
        return visit(_require_valid_text(value), "beside", role)
    if isinstance(value, Mapping):
        return _visit_object_members(value, visit, role, is_function)
    return [_visit_other_value(entry, visit, role) for entry in value] if isinstance(value, list) else value


def _change_every_string(value: Any, change: TextChange) -> Any:
    if isinstance(value, str):
        return change(_require_valid_text(value))
    if isinstance(value, Mapping):
        return {key: _change_every_string(child, change) for key, child in value.items()}
    return [_change_every_string(child, change) for child in value] if isinstance(value, list) else value


# JSON text: only changed strings are rewritten.


class LocatedString(str):
    """A string of a JSON text with the position of its literal, quotation marks included."""

    start: int
    end: int


class _LocatedStringDecoder(decoder.JSONDecoder):
    """The standard decoder with :class:`LocatedString` values; keys are plain strings."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=reject_duplicate_keys)
        self.parse_string = _parse_located_string
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _parse_located_string(text: str, start: int, strict: bool) -> tuple[LocatedString, int]:
    value, end = decoder.scanstring(text, start, strict)  # type: ignore[attr-defined]
    located = LocatedString(value)
    located.start, located.end = start - 1, end
    return located, end


_DECODER = _LocatedStringDecoder()


class KeyedText(str):
    """A text in JSON with the key before it, which hints at its meaning."""

    key: str = ""


def change_json_object(text: str, fields: Fields, change: TextChange) -> str:
    """Change the texts of ``fields`` in the JSON object ``text``; all other characters stay the same.

    ``NoTextError`` if a field holds no text.
    """
    row: dict[str, Any] = _DECODER.decode(text)
    visit, changed_literals = _make_json_visitor(change), list[Edit]()

    def record_change(old: str, kind: StringKind, role: str | None) -> str:
        new = visit(old, kind, role)
        if new != old and isinstance(old, LocatedString):
            literal = text[old.start : old.end]
            changed_literals.append(Edit(old.start, old.end, json.dumps(new, ensure_ascii=literal.isascii())))
        return new

    fields._visit_strings(row, record_change)
    return apply_edits(text, sorted(changed_literals))


def transform_json_strings(text: str, change: TextChange, is_json: bool = True) -> str:
    """Change ``text``; in JSON, change its strings, long integers, and the keys that are not names.

    A key is a name if it is one word of ASCII letters (``date_of_birth``); any other key may be data, such as an
    address. A changed number becomes a string unless the result is a number. Without ``is_json``, a text counts as
    JSON if it is an object or a list with a string in it. ``NoTextError`` for a duplicate key, because one of its
    values would survive unread, and for too deep nesting.
    """
    is_json = is_json or ('"' in text and text.lstrip()[:1] in ("{", "["))
    if not is_json or not isinstance(_decode_json(text), dict | list | str):
        return _change_escaped_text(text, change)
    last_key = ""

    def attach_last_key(value: str) -> KeyedText:
        keyed = KeyedText(value)
        keyed.key = last_key
        return keyed

    def change_literal(match: re.Match[str]) -> str:
        nonlocal last_key
        literal, string, is_key = match[0], match["string"], match["key"] is not None
        if string is None:
            new = transform_json_strings(attach_last_key(literal), change, is_json=False)
            return new if new == literal or _NUMBER.fullmatch(new) else json.dumps(new)
        old = json.loads(string)
        if is_key:
            last_key = ""
        if is_key and _KEY.fullmatch(old):
            last_key = old.replace("_", " ")
            return literal
        new = transform_json_strings(attach_last_key(_require_valid_text(old)), change, is_json=False)
        rendered = string if new == old else json.dumps(new, ensure_ascii=string.isascii())
        return rendered + literal[len(string) :]

    return _LITERAL.sub(change_literal, text)


_NUMBER = re.compile(r"-?[1-9]\d*")
_LITERAL = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*")(?P<key>\s*:)?|(?<![\w.+-])-?[1-9]\d{4,}(?![\w.])', re.DOTALL)
_KEY = re.compile(r"[A-Za-z_$][\w$.-]*", re.ASCII)


def _decode_json(text: str) -> Any:
    """Decode JSON with :class:`LocatedString` values; None if ``text`` is not JSON."""
    try:
        return _DECODER.decode(text)
    except DuplicateKeyError:
        raise NoTextError("repeated_key") from None
    except RecursionError:
        raise NoTextError("broken_json") from None
    except ValueError:
        return None


_ESCAPE_RUN = re.compile(r"(?:\\u(?!00[0-7])[0-9a-fA-F]{4})+")


def _change_escaped_text(text: str, change: TextChange) -> str:
    """Change ``text``, read with ``\\u00d3`` as the letter that it encodes; keep its way of writing.

    Log lines contain such escapes. If only some letters were escaped, none is after a change.
    """
    unescaped = _ESCAPE_RUN.sub(_decode_escapes, text)
    if unescaped == text:
        return change(text)
    changed = change(unescaped)
    if changed == unescaped:
        return text
    for upper in (False, True):
        if _escape_non_ascii(unescaped, upper) == text:
            return _escape_non_ascii(changed, upper)
    return changed


def _decode_escapes(match: re.Match[str]) -> str:
    try:
        return json.loads(f'"{match[0]}"').encode().decode()  # type: ignore[no-any-return]
    except UnicodeEncodeError:
        return match[0]


def _escape_non_ascii(text: str, upper: bool) -> str:
    def escape_run(match: re.Match[str]) -> str:
        escapes = json.dumps(match[0])[1:-1]
        return escapes.upper().replace("\\U", "\\u") if upper else escapes

    return re.sub(r"[^\x00-\x7f]+", escape_run, text)


def _make_json_visitor(change: TextChange) -> StringVisitor:
    return lambda text, kind, role: transform_json_strings(text, change, kind == "json")
