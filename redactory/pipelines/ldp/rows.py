"""What the commands of local privacy are given: the rows of a file, and settings by their keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.keys import forms_of
from redactory.foundation.settings import Settings, plainly

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Example:
    """A row: its text, or its two texts, the name of its class where it has one, and its user."""

    text: str | tuple[str, str]
    label: str | None
    user: str


def read_examples(path: Path, pairs: bool) -> list[Example]:
    """The rows of JSON lines {text, label?, user_id?}, with ``pairs`` also {text_b}; in their order.

    ``InputError`` names file, row and key of a row that is not one, and quotes none of it.
    """
    try:
        with path.open(encoding="utf-8") as file:
            found = [_example(path.name, number, line, pairs) for number, line in _lines(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} cannot be read as JSON lines: {type(error).__name__}") from None
    if not found:
        raise InputError(f"{path.name} holds no rows")
    return found


def numbered(path: Path, examples: Sequence[Example], classes: Sequence[str]) -> list[int]:
    """The number of each row's class; ``InputError`` names the first row without one of ``classes``."""
    numbers = {name: number for number, name in enumerate(classes)}
    for row, example in enumerate(examples, 1):
        if example.label not in numbers:
            raise InputError(f"{path.name}, row {row}: label: none of the service's classes")
    return [numbers[str(example.label)] for example in examples]


def settings_of(kind: type[S], given: Mapping[str, Any] | S | None) -> S:
    """``given`` as settings; ``ConfigurationError`` names the keys that are wrong, and quotes no value."""
    if isinstance(given, kind):
        return given
    try:
        return kind.model_validate(_nested(dict(given or {})))
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        problems = [f"{_key(one['loc'])}: {plainly(one)}" for one in found]
        raise ConfigurationError("; ".join(problems)) from None


def _nested(given: dict[str, Any]) -> dict[str, Any]:
    """Keys with dots as sections: ``participation.rate`` below ``participation``."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        *above, last = str(key).split(".")
        section = found
        for name in above:
            below = section.setdefault(name, {})
            if not isinstance(below, dict):
                raise ConfigurationError(f"{key}: {name} is given twice")
            section = below
        section[last] = value
    return found


def _key(location: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in location) or "settings"


def _lines(file: Any) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(file, 1) if line.strip())


def _example(name: str, number: int, line: str, pairs: bool) -> Example:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise InputError(f"{name}, row {number}: a JSON object is needed")
    for key in ("text", "text_b") if pairs else ("text",):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise InputError(f"{name}, row {number}: {key}: text is needed")
    text = (row["text"], row["text_b"]) if pairs else row["text"]
    label, user = row.get("label"), row.get("user_id")
    return Example(
        text, None if label is None else str(label), "" if user is None else forms_of(str(user))[0]
    )
