"""The base of every room's settings: frozen, unknown keys refused, values never quoted in errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from redactory.foundation.errors import RunStateError, did_you_mean

_NEEDED = {
    "bool": "true or false",
    "date": "a day like 2026-11-03",
    "dict": "a section of keys",
    "finite": "a finite number",
    "float": "a number like 0.5",
    "int": "an integer like 10",
    "list": "a list like [one, two]",
    "model": "a section of keys",
    "path": "a path",
    "string": "a string",
    "tuple": "a list like [one, two]",
}
"""What a key needs, by how pydantic's name of the error begins."""
_CHOICES = ("literal_error", "enum")
_WRONG_KIND = ("_type", "_parsing", "_from_float", "_number", "_inexact")
"""How pydantic's names of errors end that are about the kind of a value."""
_FOUND: dict[type, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number with a fraction",
    str: "a string",
    list: "a list",
    tuple: "a list",
    dict: "a section of keys",
    type(None): "nothing",
}
"""What a configuration may have in a key's place, in words."""
_BOUNDS = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
}


def format_validation_error(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors in the words of somebody who writes a configuration.

    Where the error has its input, its kind is named and, of a number that is out of bounds, the number;
    no other value is quoted, for it may be text.
    """
    kind, context = str(error["type"]), error.get("ctx", {})
    if kind in _BOUNDS:
        bound = _BOUNDS[kind].format(**{name: str(bound).removesuffix(".0") for name, bound in context.items()})
        value = error.get("input")
        return f"{bound}, got {value}" if type(value) in (int, float) else bound
    if kind in _CHOICES:
        value, choices = error.get("input"), re.findall(r"'([^']*)'", context["expected"])
        near = did_you_mean(value, choices, 0.5) if isinstance(value, str) else ""
        return f"must be one of {context['expected']}{near}"
    needed = _NEEDED.get(kind.partition("_")[0])
    if needed is None or not kind.endswith(_WRONG_KIND):
        return str(error["msg"]).removeprefix("Value error, ")
    return f"expected {needed}{_describe_input(error)}"


def _describe_input(error: Mapping[str, Any]) -> str:
    """What stands in the key's place, where the error has its input, and the mend."""
    value = error.get("input", ...)
    if type(value) not in _FOUND:
        return ""
    mend = "; remove the line to use the default" if value is None else ""
    if error["type"] == "string_type" and isinstance(value, int | float):
        mend = "; put it in quotation marks"
    return f", got {_FOUND[type(value)]}{mend}"


class Settings(BaseModel):
    """One description that serves the configuration file, the documentation and the hash."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True, allow_inf_nan=False
    )

    @classmethod
    def read_back(cls, written: Mapping[str, Any]) -> Self:
        """Settings from a manifest; ``RunStateError`` where another version of Redactory wrote them."""
        try:
            return cls.model_validate(written)
        except ValidationError:
            raise RunStateError(
                "the configuration in the manifest was written by another version of Redactory: use "
                "that version, or curate the input again as a new run"
            ) from None


class FileRecord(Settings):
    """What a command wrote and nobody writes by hand: in its place may stand the path of its JSON file."""

    @model_validator(mode="before")
    @classmethod
    def _load_file(cls, value: Any) -> Any:
        if not isinstance(value, str | Path):
            return value
        try:
            return json.loads(Path(value).read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"its file cannot be read: {error.strerror}") from None
        except ValueError:
            raise ValueError("its file is not JSON") from None


def nested_settings(annotation: Any) -> Iterator[type[Settings]]:
    """The settings, with keys of their own to write, that a type holds at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        if not issubclass(annotation, FileRecord):
            yield annotation
        return
    for part in get_args(annotation):
        yield from nested_settings(part)
