"""Base of all settings: frozen, without unknown keys, and with errors that never quote values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from redactory.foundation.errors import RunStateError, did_you_mean

_EXPECTED_VALUES = {
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
"""Expected value, by prefix of pydantic's error type."""
_CHOICE_ERRORS = ("literal_error", "enum")
_TYPE_ERROR_SUFFIXES = ("_type", "_parsing", "_from_float", "_number", "_inexact")
"""Suffixes of pydantic's error types for values of a wrong type."""
_TYPE_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number with a fraction",
    str: "a string",
    list: "a list",
    tuple: "a list",
    dict: "a section of keys",
    type(None): "nothing",
}
"""Names of the types that a configuration value can have."""
_BOUND_MESSAGES = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
}


def format_validation_error(error: Mapping[str, Any]) -> str:
    """Rewrite a pydantic error for somebody who writes a configuration.

    Names the type of the input and, for a number out of bounds, the number; quotes no other value, which may be text.
    """
    kind, context = str(error["type"]), error.get("ctx", {})
    if kind == "extra_forbidden":
        return "this key is not supported"
    if kind in _BOUND_MESSAGES:
        bound = _BOUND_MESSAGES[kind].format(**{name: str(bound).removesuffix(".0") for name, bound in context.items()})
        value = error.get("input")
        return f"{bound}, got {value}" if type(value) in (int, float) else bound
    if kind in _CHOICE_ERRORS:
        value, choices = error.get("input"), re.findall(r"'([^']*)'", context["expected"])
        suggestion = did_you_mean(value, choices, 0.5) if isinstance(value, str) else ""
        return f"must be one of {context['expected']}{suggestion}"
    expected = _EXPECTED_VALUES.get(kind.partition("_")[0])
    if expected is None or not kind.endswith(_TYPE_ERROR_SUFFIXES):
        return str(error["msg"]).removeprefix("Value error, ")
    return f"expected {expected}{_describe_input(error)}"


def _describe_input(error: Mapping[str, Any]) -> str:
    value = error.get("input", ...)
    if type(value) not in _TYPE_NAMES:
        return ""
    fix = "; remove the line to use the default" if value is None else ""
    if error["type"] == "string_type" and isinstance(value, int | float):
        fix = "; put it in quotation marks"
    return f", got {_TYPE_NAMES[type(value)]}{fix}"


class Settings(BaseModel):
    """Base class of settings; serves the configuration file, the documentation and the hash."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True, allow_inf_nan=False
    )

    @classmethod
    def from_manifest(cls, written: Mapping[str, Any]) -> Self:
        """Load settings from a manifest; ``RunStateError`` if another version of Redactory wrote them."""
        try:
            return cls.model_validate(written)
        except ValidationError:
            raise RunStateError(
                "the configuration in the manifest was written by another version of Redactory: use "
                "that version, or curate the input again as a new run"
            ) from None


AbsolutePath = Annotated[str, AfterValidator(lambda path: path if "://" in path else str(Path(path).absolute()))]
"""A URL, or a path made absolute: manifests record it, and workers and later commands start in other folders."""


class FileSettings(Settings):
    """Settings written by a command; a configuration may give the path of their JSON file instead."""

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


def iter_nested_settings(annotation: Any) -> Iterator[type[Settings]]:
    """Yield the settings classes with configuration keys that a type contains at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        if not issubclass(annotation, FileSettings):
            yield annotation
        return
    for part in get_args(annotation):
        yield from iter_nested_settings(part)
