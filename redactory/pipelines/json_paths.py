"""Fields: the texts of a row by their paths, and the row with other texts in their places.

A path names a column or a key, then what lies below it: ``notes``, ``ticket.body``, ``turns[].text``,
``messages[*].content``, ``["a.b"]`` for a key with a dot.  Where it ends in a conversation (OpenAI's list
of ``role`` and ``content``, ShareGPT's of ``from`` and ``value``), what was said is meant; where a content is
a list of parts, their texts; a tool call's arguments are JSON inside of text, of which the strings are meant,
not the keys.  Every other string of a turn is changed too, whatever its key, and is not what was said.  Where
texts are changed, any that is JSON is taken apart like arguments (:func:`change_json`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from json import decoder, scanner
from typing import Any, Literal

from redactory.foundation.canonical import DuplicateKeyError, reject_duplicate_keys
from redactory.foundation.errors import ConfigurationError, shorten
from redactory.redaction.mask import ROLE_MARK, TURN_MARK

EVERY_ENTRY = None
"""The step of a path that means every entry of a list."""
PathStep = str | None
TextChange = Callable[[str], str]
StringKind = Literal["said", "json", "beside"]
StringVisitor = Callable[[str, StringKind, str | None], str]
"""Is given a string, what it is (of JSON only the strings are text), and who said it: their role."""
_STEP_PATTERN = re.compile(r"""\[(?:\*)?\]|\["((?:[^"\\]|\\.)*)"\]|\.?([^.\[\]"]+)""")
TURN_SEPARATOR, ROLE_SEPARATOR = TURN_MARK, ROLE_MARK
NOT_TEXT, NOT_UNICODE, EMBEDDED = "text_not_string", "lone_surrogate", "embedded_data"
_NOT_TEXT_CODES: dict[type[Any], str] = {bytes: "text_is_bytes", list: "text_is_list"}
"""Reason codes for values that a cast would make texts of."""
UNREADABLE_BYTES = b"\xff"
"""What stands for bytes that are no text."""
_DATA_URL = re.compile(r"\s*data:[^\s,]*,", re.IGNORECASE)
_LONG_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{512,}={0,2}\s*")
"""A string that stands beside what was said, holds no word and is long: an image, a sound."""
_CONTENT_KEYS = frozenset({"content", "value", "text", "refusal"})
_SPEECH_KEYS = _CONTENT_KEYS | {"tool_calls", "function_call"}
_KIND_KEYS = frozenset({"role", "from", "type", "id", "tool_call_id", "call_id"})
"""Keys of a turn, and of what is in it, whose values are no text."""


class NoTextError(Exception):
    """A field holds something that is no text; the argument is the reason code."""


@dataclass(frozen=True)
class Fields:
    """The paths of a row's texts, as they were given."""

    paths: tuple[str, ...]

    @cached_property
    def steps(self) -> tuple[tuple[PathStep, ...], ...]:
        """Each path step by step; ``ConfigurationError`` names the one that cannot be read."""
        return tuple(parse_path(path) for path in self.paths)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the paths begin with, each once."""
        return tuple(dict.fromkeys(str(steps[0]) for steps in self.steps))

    def change_texts(self, row: Mapping[str, Any], change: TextChange) -> dict[str, Any]:
        """A copy of ``row`` in which ``change`` was applied to every text that the paths name, in order.

        A missing field, and one that is null, holds no text.  ``NoTextError`` where one holds anything else.
        """
        return self._visit_strings(row, _make_json_visitor(change))

    def blank_texts(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of ``row`` in which every text that the paths name is empty: what nobody reads."""
        return self._visit_strings(row, lambda text, kind, role: "")

    def _visit_strings(self, row: Mapping[str, Any], visit: StringVisitor) -> dict[str, Any]:
        result = dict(row)
        for path, steps in zip(self.paths, self.steps, strict=True):
            if path in result:
                # a table may have a column whose name looks like a path
                result[path] = _visit_value(result[path], visit)
            elif steps[0] in result:
                result[str(steps[0])] = _change_at_path(result[str(steps[0])], steps[1:], visit)
        return result

    def read_texts(self, row: Mapping[str, Any]) -> list[str]:
        """Every text that the paths name, in the order in which :meth:`change_texts` meets them."""
        texts: list[str] = []

        def note(text: str) -> str:
            texts.append(text)
            return text

        self.change_texts(row, note)
        return texts

    def read_turns(self, row: Mapping[str, Any]) -> list[tuple[str | None, str]]:
        """What was said, not what stands beside it, each with the role of whoever said it, if told."""
        turns: list[tuple[str | None, str]] = []

        def note(text: str, kind: StringKind, role: str | None) -> str:
            if kind == "json":
                value = _decode_json(text)
                strings = value if isinstance(value, dict | list | str) else text
                _change_every_string(strings, lambda inner: note(inner, "said", role))
                return text
            if kind == "said":
                turns.append((role, text))
            return text

        self._visit_strings(row, note)
        return turns

    def find_missing(self, rows: list[Mapping[str, Any]]) -> list[str]:
        """The paths that name nothing in any of ``rows``."""
        return [
            path
            for path, steps in zip(self.paths, self.steps, strict=True)
            if not any(path in row or _has_path(row, steps) for row in rows)
        ]


def iterate_leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every string, number and date in ``value``, with the path to it; a list's entries are one step.

    Bytes are the text that they are in UTF-8, or :data:`UNREADABLE_BYTES`.  Entries of a table's map, which are pairs,
    are like those of an object, and their keys are values too.
    """
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = "\0"
        yield path, UNREADABLE_BYTES if "\0" in text else text
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from iterate_leaves(child, f"{path}.{key}")
    elif isinstance(value, list):
        for child in value:
            if isinstance(child, tuple):
                yield from iterate_leaves(child[0], f"{path}[]")
                yield from iterate_leaves(child[1], f"{path}.{child[0]}")
            else:
                yield from iterate_leaves(child, path if path.endswith("[]") else f"{path}[]")
    elif value is not None and not isinstance(value, bool):
        yield path, value


def iterate_keys(value: Any) -> Iterator[str]:
    """Every key in ``value``, at any depth; those of a table's map, which is a list of pairs, too."""
    entries = value.items() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for entry in entries:
        if isinstance(entry, tuple):
            yield str(entry[0])
            entry = entry[1]
        yield from iterate_keys(entry)


def join_texts(turns: list[tuple[str | None, str]]) -> str:
    """Texts with their roles as one document; ``NoTextError`` where one holds a sign that stands between
    them."""
    if any(TURN_SEPARATOR in part or ROLE_SEPARATOR in part for role, text in turns for part in (role or "", text)):
        raise NoTextError("separator_in_text")
    return TURN_SEPARATOR.join(f"{role}{ROLE_SEPARATOR}{text}" if role else text for role, text in turns)


def strip_roles(document: str) -> str:
    """A document of several texts as one text, each of them on lines of its own."""
    return "\n".join(part.rpartition(ROLE_SEPARATOR)[2] for part in document.split(TURN_SEPARATOR))


def parse_path(path: str, key: str = "text") -> tuple[PathStep, ...]:
    """A path, step by step: a key, or :data:`EVERY_ENTRY`.  ``ConfigurationError`` where it cannot be read.

    ``key`` is what of the configuration it stands at.
    """
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
            f"{key}: '{shorten(path)}' is not a path: give a column, or keys and lists inside one, as in "
            "ticket.body or messages[*].content"
        )
    return tuple(steps)


def _has_path(value: Any, steps: tuple[PathStep, ...]) -> bool:
    if not steps:
        return True
    step, rest = steps[0], steps[1:]
    if step is EVERY_ENTRY:
        return isinstance(value, list) and any(_has_path(entry, rest) for entry in value)
    if _is_map(value):
        value = dict(value)
    return isinstance(value, Mapping) and step in value and _has_path(value[step], rest)


def _is_map(value: Any) -> bool:
    """Whether ``value`` is a table's map, which is read as a list of pairs."""
    return isinstance(value, list) and all(isinstance(entry, tuple) for entry in value)


def _change_at_path(value: Any, steps: tuple[PathStep, ...], visit: StringVisitor) -> Any:
    """``value`` with the texts changed that lie at the end of ``steps``."""
    if value is None:
        return None
    if not steps:
        return _visit_value(value, visit)
    step, rest = steps[0], steps[1:]
    if step is EVERY_ENTRY:
        if not isinstance(value, list):
            raise NoTextError(NOT_TEXT)
        if not rest:
            return [_visit_value(entry, visit) for entry in value]
        return [_change_at_path(entry, rest, visit) for entry in value]
    if _is_map(value):
        return [(key, _change_at_path(child, rest, visit) if key == step else child) for key, child in value]
    if not isinstance(value, Mapping):
        raise NoTextError(NOT_TEXT)
    return {**value, step: _change_at_path(value[step], rest, visit)} if step in value else value


def _visit_value(value: Any, visit: StringVisitor) -> Any:
    """The text at the end of a path changed, or the texts of the conversation there."""
    if value is None:
        return None
    if isinstance(value, str):
        return visit(_check_text(value), "said", None)
    if isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
        return [_visit_turn(entry, visit, None) for entry in value]
    raise NoTextError(reason_for_value(value))


def reason_for_value(value: Any) -> str:
    """The reason code for a value in a field of the text that is no text."""
    return _NOT_TEXT_CODES.get(type(value), NOT_TEXT)


def _check_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NoTextError(NOT_UNICODE) from None
    if _DATA_URL.match(value):
        raise NoTextError(EMBEDDED)
    return value


def _visit_turn(turn: Mapping[str, Any], visit: StringVisitor, role: str | None) -> dict[str, Any]:
    """One turn of a conversation, or one part of a turn's content: what it says, and every other string."""
    if not _SPEECH_KEYS & set(turn) and turn.get("type") in (None, "text"):
        raise NoTextError(NOT_TEXT)
    turn_role = turn.get("role", turn.get("from"))
    role = turn_role if isinstance(turn_role, str) else role
    return _visit_members(turn, visit, role, is_turn=True)


def _visit_content(value: Any, visit: StringVisitor, role: str | None) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return visit(_check_text(value), "said", role)
    if isinstance(value, list):
        return [_visit_content(entry, visit, role) for entry in value]
    if isinstance(value, Mapping):
        return _visit_turn(value, visit, role)
    raise NoTextError(NOT_TEXT)


def _visit_members(
    value: Mapping[str, Any], visit: StringVisitor, role: str | None, is_function: bool = False, is_turn: bool = False
) -> dict[str, Any]:
    """Every string but those that say of what kind a thing is, and a function's name."""
    result = dict(value)
    for key, child in value.items():
        if is_turn and key in _CONTENT_KEYS:
            result[key] = _visit_content(child, visit, role)
        elif key == "arguments":
            if isinstance(child, str):
                result[key] = visit(_check_text(child), "json", role)
            else:
                result[key] = _change_every_string(child, lambda text: visit(text, "said", role))
        elif not (isinstance(child, str) and (key in _KIND_KEYS or (is_function and key == "name"))):
            result[key] = _visit_other(child, visit, role, key in ("function", "function_call"))
    return result


def _visit_other(value: Any, visit: StringVisitor, role: str | None, is_function: bool = False) -> Any:
    if isinstance(value, bytes) or (isinstance(value, str) and _LONG_BASE64.fullmatch(value)):
        raise NoTextError(EMBEDDED)
    if isinstance(value, str):
        return visit(_check_text(value), "beside", role)
    if isinstance(value, Mapping):
        return _visit_members(value, visit, role, is_function)
    return [_visit_other(entry, visit, role) for entry in value] if isinstance(value, list) else value


def _change_every_string(value: Any, change: TextChange) -> Any:
    """``value`` with every string in it changed, keys kept."""
    if isinstance(value, str):
        return change(_check_text(value))
    if isinstance(value, Mapping):
        return {key: _change_every_string(child, change) for key, child in value.items()}
    return [_change_every_string(child, change) for child in value] if isinstance(value, list) else value


# JSON as it stands in a file: only the strings that change are written anew.


class LocatedString(str):
    """A string of a JSON text that knows where its literal stands, quotation marks included."""

    start: int
    end: int


class _Decoder(decoder.JSONDecoder):
    """The standard decoder, whose strings are :class:`LocatedString`; keys are plain strings."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=reject_duplicate_keys)
        self.parse_string = _parse_located_string
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _parse_located_string(text: str, start: int, strict: bool) -> tuple[LocatedString, int]:
    value, end = decoder.scanstring(text, start, strict)  # type: ignore[attr-defined]
    located = LocatedString(value)
    located.start, located.end = start - 1, end
    return located, end


_DECODER = _Decoder()


class KeyedText(str):
    """A text in JSON that knows the key before it, which says what it may be."""

    key: str = ""


def change_object(text: str, fields: Fields, change: TextChange) -> str:
    """The JSON object ``text`` with the texts of ``fields`` changed and every other character as it was.

    ``ValueError`` where it is not JSON, ``NoTextError`` where it is not an object or a field holds no text.
    """
    row = _DECODER.decode(text)
    if not isinstance(row, dict):
        raise NoTextError("not_an_object")
    return _splice_literals(text, lambda visit: fields._visit_strings(row, visit), change)


def change_json(text: str, change: TextChange, is_json: bool = True) -> str:
    """``text`` changed: where it is JSON, its strings, long whole numbers, and the keys that are no names.

    A key is a name if it is one word of ASCII letters (``date_of_birth``); any other one may be data, as
    somebody's address is.  A number that changes becomes a string unless it stays a number.  A text that is
    not said to be JSON (``is_json``) is taken for it where it is an object or a list with a string in it.
    ``NoTextError`` where a key comes twice, of which one value would stay, and where it is nested too deep.
    """
    if not is_json and ('"' not in text or text.lstrip()[:1] not in ("{", "[")):
        return _change_unescaped(text, change)

    last_key = ""

    def under(value: str) -> KeyedText:
        keyed = KeyedText(value)
        keyed.key = last_key
        return keyed

    def piece(match: re.Match[str]) -> str:
        nonlocal last_key
        literal, string, is_key = match[0], match["string"], match["key"] is not None
        if string is None:
            new = change_json(under(literal), change, is_json=False)
            return new if new == literal or _NUMBER.fullmatch(new) else json.dumps(new)
        old = json.loads(string)
        if is_key:
            last_key = ""
        if is_key and _KEY.fullmatch(old):
            last_key = old.replace("_", " ")
            return literal
        new = change_json(under(_check_text(old)), change, is_json=False)
        rendered = string if new == old else json.dumps(new, ensure_ascii=string.isascii())
        return rendered + literal[len(string) :]

    value = _decode_json(text)
    return _LITERAL.sub(piece, text) if isinstance(value, dict | list | str) else _change_unescaped(text, change)


_NUMBER = re.compile(r"-?[1-9]\d*")
_LITERAL = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*")(?P<key>\s*:)?|(?<![\w.+-])-?[1-9]\d{4,}(?![\w.])', re.DOTALL)
_KEY = re.compile(r"[A-Za-z_$][\w$.-]*", re.ASCII)


def _decode_json(text: str) -> Any:
    """JSON in ``text``, its strings :class:`LocatedString`; None where it is none."""
    try:
        return _DECODER.decode(text)
    except DuplicateKeyError:
        raise NoTextError("repeated_key") from None
    except RecursionError:
        raise NoTextError("broken_json") from None
    except ValueError:
        return None


_ESCAPE_RUN = re.compile(r"(?:\\u(?!00[0-7])[0-9a-fA-F]{4})+")


def _change_unescaped(text: str, change: TextChange) -> str:
    """``text`` changed, which is read with ``\\u00d3`` as the letter that is meant, and written as it was.

    Lines of a log have such.  Where only some letters are escaped, none is after a change.
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
    def escape(match: re.Match[str]) -> str:
        escapes = json.dumps(match[0])[1:-1]
        return escapes.upper().replace("\\U", "\\u") if upper else escapes

    return re.sub(r"[^\x00-\x7f]+", escape, text)


def _make_json_visitor(change: TextChange) -> StringVisitor:
    return lambda text, kind, role: change_json(text, change, kind == "json")


def _splice_literals(text: str, walk: Callable[[StringVisitor], object], change: TextChange) -> str:
    """``text`` in which the literals are written anew that ``change`` changes of those ``walk`` meets."""
    news: list[tuple[int, int, str]] = []

    visit = _make_json_visitor(change)

    def note(old: str, kind: StringKind, role: str | None) -> str:
        new = visit(old, kind, role)
        if new != old and isinstance(old, LocatedString):
            literal = text[old.start : old.end]
            news.append((old.start, old.end, json.dumps(new, ensure_ascii=literal.isascii())))
        return new

    walk(note)
    pieces, position = list[str](), 0
    for start, end, literal in sorted(news):
        pieces += (text[position:start], literal)
        position = end
    return "".join(pieces) + text[position:]
