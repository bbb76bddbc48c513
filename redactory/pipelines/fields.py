"""Fields: the texts of a row by their paths, and the row with other texts in their places.

A path names a column or a key, then what lies below it: ``notes``, ``ticket.body``, ``turns[].text``,
``messages[*].content``, ``["a.b"]`` for a key with a dot.  Where it ends in a conversation (OpenAI's list
of ``role`` and ``content``, ShareGPT's of ``from`` and ``value``), what was said is meant; where a content is
a list of parts, their texts; a tool call's arguments are JSON inside of text, of which the strings are meant,
not the keys.  Every other string of a turn is changed too, whatever its key, and is not what was said.  Where
texts are changed, any that is JSON is taken apart like arguments (:func:`changed_json`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from json import decoder, scanner
from typing import Any, Literal

from redactory.foundation.canonical import RepeatedKey, once_each
from redactory.foundation.errors import ConfigurationError, shorten
from redactory.redaction.mask import ROLE_MARK, TURN_MARK

EACH = None
"""The step of a path that means every entry of a list."""
Step = str | None
Change = Callable[[str], str]
Kind = Literal["said", "json", "beside"]
Visit = Callable[[str, Kind, str | None], str]
"""Is given a string, what it is (of JSON only the strings are text), and who said it: their role."""
_STEPS = re.compile(r"""\[(?:\*)?\]|\["((?:[^"\\]|\\.)*)"\]|\.?([^.\[\]"]+)""")
PART, ROLE = TURN_MARK, ROLE_MARK
NOT_TEXT, NOT_UNICODE, EMBEDDED = "text_not_string", "lone_surrogate", "embedded_data"
_NOT_TEXT_OF: dict[type[Any], str] = {bytes: "text_is_bytes", list: "text_is_list"}
"""Reason codes for values that a cast would make texts of."""
UNREAD = b"\xff"
"""What stands for bytes that are no text."""
_DATA = re.compile(r"\s*data:[^\s,]*,", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{512,}={0,2}\s*")
"""A string that stands beside what was said, holds no word and is long: an image, a sound."""
_CONTENT = frozenset({"content", "value", "text", "refusal"})
_SPEAKING = _CONTENT | {"tool_calls", "function_call"}
_KINDS = frozenset({"role", "from", "type", "id", "tool_call_id", "call_id"})
"""Keys of a turn, and of what is in it, whose values are no text."""


class NoText(Exception):
    """A field holds something that is no text; the argument is the reason code."""


@dataclass(frozen=True)
class Fields:
    """The paths of a row's texts, as they were given."""

    paths: tuple[str, ...]

    @cached_property
    def steps(self) -> tuple[tuple[Step, ...], ...]:
        """Each path step by step; ``ConfigurationError`` names the one that cannot be read."""
        return tuple(steps_of(path) for path in self.paths)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the paths begin with, each once."""
        return tuple(dict.fromkeys(str(steps[0]) for steps in self.steps))

    def changed(self, row: Mapping[str, Any], change: Change) -> dict[str, Any]:
        """A copy of ``row`` in which ``change`` was applied to every text that the paths name, in order.

        A missing field, and one that is null, holds no text.  ``NoText`` where one holds anything else.
        """
        return self._visited(row, _deep(change))

    def without(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of ``row`` in which every text that the paths name is empty: what nobody reads."""
        return self._visited(row, lambda text, kind, role: "")

    def _visited(self, row: Mapping[str, Any], visit: Visit) -> dict[str, Any]:
        result = dict(row)
        for path, steps in zip(self.paths, self.steps, strict=True):
            if path in result:
                # a table may have a column whose name looks like a path
                result[path] = _said(result[path], visit)
            elif steps[0] in result:
                result[str(steps[0])] = _changed(result[str(steps[0])], steps[1:], visit)
        return result

    def texts(self, row: Mapping[str, Any]) -> list[str]:
        """Every text that the paths name, in the order in which :meth:`changed` meets them."""
        found: list[str] = []

        def note(text: str) -> str:
            found.append(text)
            return text

        self.changed(row, note)
        return found

    def said(self, row: Mapping[str, Any]) -> list[tuple[str | None, str]]:
        """What was said, not what stands beside it, each with the role of whoever said it, if told."""
        found: list[tuple[str | None, str]] = []

        def note(text: str, kind: Kind, role: str | None) -> str:
            if kind == "json":
                value = _decoded(text)
                strings = value if isinstance(value, dict | list | str) else text
                _every(strings, lambda inner: note(inner, "said", role))
                return text
            if kind == "said":
                found.append((role, text))
            return text

        self._visited(row, note)
        return found

    def missing(self, rows: list[Mapping[str, Any]]) -> list[str]:
        """The paths that name nothing in any of ``rows``."""
        return [
            path
            for path, steps in zip(self.paths, self.steps, strict=True)
            if not any(path in row or _is_there(row, steps) for row in rows)
        ]


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every string, number and date in ``value``, with the path to it; a list's entries are one step.

    Bytes are the text that they are in UTF-8, or :data:`UNREAD`.  Entries of a table's map, which are pairs,
    are like those of an object, and their keys are values too.
    """
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = "\0"
        yield path, UNREAD if "\0" in text else text
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from leaves(below, f"{path}.{key}")
    elif isinstance(value, list):
        for below in value:
            if isinstance(below, tuple):
                yield from leaves(below[0], f"{path}[]")
                yield from leaves(below[1], f"{path}.{below[0]}")
            else:
                yield from leaves(below, path if path.endswith("[]") else f"{path}[]")
    elif value is not None and not isinstance(value, bool):
        yield path, value


def keys_of(value: Any) -> Iterator[str]:
    """Every key in ``value``, at any depth; those of a table's map, which is a list of pairs, too."""
    below = value.items() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for entry in below:
        if isinstance(entry, tuple):
            yield str(entry[0])
            entry = entry[1]
        yield from keys_of(entry)


def joined(said: list[tuple[str | None, str]]) -> str:
    """Texts with their roles as one document; ``NoText`` where one holds a sign that stands between them."""
    if any(PART in one or ROLE in one for role, text in said for one in (role or "", text)):
        raise NoText("separator_in_text")
    return PART.join(f"{role}{ROLE}{text}" if role else text for role, text in said)


def without_roles(document: str) -> str:
    """A document of several texts as one text, each of them on lines of its own."""
    return "\n".join(part.rpartition(ROLE)[2] for part in document.split(PART))


def steps_of(path: str, key: str = "text") -> tuple[Step, ...]:
    """A path, step by step: a key, or :data:`EACH`.  ``ConfigurationError`` where it cannot be read.

    ``key`` is what of the configuration it stands at.
    """
    steps: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEPS.match(path, position)
        if match is None or (match[0].startswith(".") and not steps):
            break
        quoted, plain = match[1], match[2]
        steps.append(json.loads(f'"{quoted}"') if quoted is not None else plain)
        position = match.end()
    if position < len(path) or not steps or steps[0] is EACH:
        raise ConfigurationError(
            f"{key}: '{shorten(path)}' is not a path: give a column, or keys and lists inside one, as in "
            "ticket.body or messages[*].content"
        )
    return tuple(steps)


def _is_there(value: Any, steps: tuple[Step, ...]) -> bool:
    if not steps:
        return True
    step, rest = steps[0], steps[1:]
    if step is EACH:
        return isinstance(value, list) and any(_is_there(entry, rest) for entry in value)
    if _is_map(value):
        value = dict(value)
    return isinstance(value, Mapping) and step in value and _is_there(value[step], rest)


def _is_map(value: Any) -> bool:
    """Whether ``value`` is a table's map, which is read as a list of pairs."""
    return isinstance(value, list) and all(isinstance(entry, tuple) for entry in value)


def _changed(value: Any, steps: tuple[Step, ...], visit: Visit) -> Any:
    """``value`` with the texts changed that lie at the end of ``steps``."""
    if value is None:
        return None
    if not steps:
        return _said(value, visit)
    step, rest = steps[0], steps[1:]
    if step is EACH:
        if not isinstance(value, list):
            raise NoText(NOT_TEXT)
        if not rest:
            return [_said(entry, visit) for entry in value]
        return [_changed(entry, rest, visit) for entry in value]
    if _is_map(value):
        return [(key, _changed(below, rest, visit) if key == step else below) for key, below in value]
    if not isinstance(value, Mapping):
        raise NoText(NOT_TEXT)
    return {**value, step: _changed(value[step], rest, visit)} if step in value else value


def _said(value: Any, visit: Visit) -> Any:
    """The text at the end of a path changed, or the texts of the conversation there."""
    if value is None:
        return None
    if isinstance(value, str):
        return visit(_text(value), "said", None)
    if isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
        return [_turn(entry, visit, None) for entry in value]
    raise NoText(code_of_value(value))


def code_of_value(value: Any) -> str:
    """The reason code for a value in a field of the text that is no text."""
    return _NOT_TEXT_OF.get(type(value), NOT_TEXT)


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NoText(NOT_UNICODE) from None
    if _DATA.match(value):
        raise NoText(EMBEDDED)
    return value


def _turn(turn: Mapping[str, Any], visit: Visit, role: str | None) -> dict[str, Any]:
    """One turn of a conversation, or one part of a turn's content: what it says, and every other string."""
    if not _SPEAKING & set(turn) and turn.get("type") in (None, "text"):
        raise NoText(NOT_TEXT)
    told = turn.get("role", turn.get("from"))
    role = told if isinstance(told, str) else role
    return _members(turn, visit, role, speaks=True)


def _content(value: Any, visit: Visit, role: str | None) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return visit(_text(value), "said", role)
    if isinstance(value, list):
        return [_content(entry, visit, role) for entry in value]
    if isinstance(value, Mapping):
        return _turn(value, visit, role)
    raise NoText(NOT_TEXT)


def _members(
    value: Mapping[str, Any], visit: Visit, role: str | None, is_function: bool = False, speaks: bool = False
) -> dict[str, Any]:
    """Every string but those that say of what kind a thing is, and a function's name."""
    result = dict(value)
    for key, below in value.items():
        if speaks and key in _CONTENT:
            result[key] = _content(below, visit, role)
        elif key == "arguments":
            if isinstance(below, str):
                result[key] = visit(_text(below), "json", role)
            else:
                result[key] = _every(below, lambda text: visit(text, "said", role))
        elif not (isinstance(below, str) and (key in _KINDS or (is_function and key == "name"))):
            result[key] = _beside(below, visit, role, key in ("function", "function_call"))
    return result


def _beside(value: Any, visit: Visit, role: str | None, is_function: bool = False) -> Any:
    if isinstance(value, bytes) or (isinstance(value, str) and _BASE64.fullmatch(value)):
        raise NoText(EMBEDDED)
    if isinstance(value, str):
        return visit(_text(value), "beside", role)
    if isinstance(value, Mapping):
        return _members(value, visit, role, is_function)
    return [_beside(entry, visit, role) for entry in value] if isinstance(value, list) else value


def _every(value: Any, change: Change) -> Any:
    """``value`` with every string in it changed, keys kept."""
    if isinstance(value, str):
        return change(_text(value))
    if isinstance(value, Mapping):
        return {key: _every(below, change) for key, below in value.items()}
    return [_every(below, change) for below in value] if isinstance(value, list) else value


# JSON as it stands in a file: only the strings that change are written anew.


class Placed(str):
    """A string of a JSON text that knows where its literal stands, quotation marks included."""

    start: int
    end: int


class _Decoder(decoder.JSONDecoder):
    """The standard decoder, whose strings are :class:`Placed`; keys are plain strings."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=once_each)
        self.parse_string = _placed
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]


def _placed(text: str, start: int, strict: bool) -> tuple[Placed, int]:
    value, end = decoder.scanstring(text, start, strict)  # type: ignore[attr-defined]
    placed = Placed(value)
    placed.start, placed.end = start - 1, end
    return placed, end


_DECODER = _Decoder()


class Under(str):
    """A text in JSON that knows the key before it, which says what it may be."""

    key: str = ""


def changed_object(text: str, fields: Fields, change: Change) -> str:
    """The JSON object ``text`` with the texts of ``fields`` changed and every other character as it was.

    ``ValueError`` where it is not JSON, ``NoText`` where it is not an object or a field holds no text.
    """
    row = _DECODER.decode(text)
    if not isinstance(row, dict):
        raise NoText("not_an_object")
    return _spliced(text, lambda visit: fields._visited(row, visit), change)


def changed_json(text: str, change: Change, is_json: bool = True) -> str:
    """``text`` changed: where it is JSON, its strings, long whole numbers, and the keys that are no names.

    A key is a name if it is one word of ASCII letters (``date_of_birth``); any other one may be data, as
    somebody's address is.  A number that changes becomes a string unless it stays a number.  A text that is
    not said to be JSON (``is_json``) is taken for it where it is an object or a list with a string in it.
    ``NoText`` where a key comes twice, of which one value would stay, and where it is nested too deep.
    """
    if not is_json and ('"' not in text or text.lstrip()[:1] not in ("{", "[")):
        return _unescaped(text, change)

    last = ""

    def under(value: str) -> Under:
        told = Under(value)
        told.key = last
        return told

    def piece(match: re.Match[str]) -> str:
        nonlocal last
        literal, string, is_key = match[0], match["string"], match["key"] is not None
        if string is None:
            new = changed_json(under(literal), change, is_json=False)
            return new if new == literal or _NUMBER.fullmatch(new) else json.dumps(new)
        old = json.loads(string)
        if is_key:
            last = ""
        if is_key and _KEY.fullmatch(old):
            last = old.replace("_", " ")
            return literal
        new = changed_json(under(_text(old)), change, is_json=False)
        written = string if new == old else json.dumps(new, ensure_ascii=string.isascii())
        return written + literal[len(string) :]

    value = _decoded(text)
    return _LITERAL.sub(piece, text) if isinstance(value, dict | list | str) else _unescaped(text, change)


_NUMBER = re.compile(r"-?[1-9]\d*")
_LITERAL = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*")(?P<key>\s*:)?|(?<![\w.+-])-?[1-9]\d{4,}(?![\w.])', re.DOTALL)
_KEY = re.compile(r"[A-Za-z_$][\w$.-]*", re.ASCII)


def _decoded(text: str) -> Any:
    """JSON in ``text``, its strings :class:`Placed`; None where it is none."""
    try:
        return _DECODER.decode(text)
    except RepeatedKey:
        raise NoText("repeated_key") from None
    except RecursionError:
        raise NoText("broken_json") from None
    except ValueError:
        return None


_ESCAPED = re.compile(r"(?:\\u(?!00[0-7])[0-9a-fA-F]{4})+")


def _unescaped(text: str, change: Change) -> str:
    """``text`` changed, which is read with ``\\u00d3`` as the letter that is meant, and written as it was.

    Lines of a log have such.  Where only some letters are escaped, none is after a change.
    """
    plain = _ESCAPED.sub(_letters, text)
    if plain == text:
        return change(text)
    new = change(plain)
    if new == plain:
        return text
    for upper in (False, True):
        if _escaped(plain, upper) == text:
            return _escaped(new, upper)
    return new


def _letters(match: re.Match[str]) -> str:
    try:
        return json.loads(f'"{match[0]}"').encode().decode()  # type: ignore[no-any-return]
    except UnicodeEncodeError:
        return match[0]


def _escaped(text: str, upper: bool) -> str:
    def escape(match: re.Match[str]) -> str:
        escapes = json.dumps(match[0])[1:-1]
        return escapes.upper().replace("\\U", "\\u") if upper else escapes

    return re.sub(r"[^\x00-\x7f]+", escape, text)


def _deep(change: Change) -> Visit:
    return lambda text, kind, role: changed_json(text, change, kind == "json")


def _spliced(text: str, tour: Callable[[Visit], object], change: Change) -> str:
    """``text`` in which the literals are written anew that ``change`` changes of those ``tour`` meets."""
    news: list[tuple[int, int, str]] = []

    deep = _deep(change)

    def note(old: str, kind: Kind, role: str | None) -> str:
        new = deep(old, kind, role)
        if new != old and isinstance(old, Placed):
            literal = text[old.start : old.end]
            news.append((old.start, old.end, json.dumps(new, ensure_ascii=literal.isascii())))
        return new

    tour(note)
    pieces, position = list[str](), 0
    for start, end, literal in sorted(news):
        pieces += (text[position:start], literal)
        position = end
    return "".join(pieces) + text[position:]
