"""The base of every room's settings: frozen, unknown keys refused, values never quoted in errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

_NEEDED = {
    "bool": "true or false is needed",
    "date": "a day like 2026-11-03 is needed",
    "dict": "a section of keys is needed",
    "finite": "a finite number is needed",
    "float": "a number is needed",
    "int": "a whole number is needed",
    "list": "a list is needed",
    "model": "a section of keys is needed; remove the line to have what is the default",
    "path": "a path is needed",
    "string": "text is needed; put it in quotation marks",
    "tuple": "a list is needed",
}
"""What a key needs, by how pydantic's name of the error begins."""
_BOUNDS = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
}


def plainly(error: Mapping[str, Any]) -> str:
    """One of pydantic's errors in the words of somebody who writes a configuration; quotes no value."""
    kind, told = str(error["type"]), error.get("ctx", {})
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**{name: str(bound).removesuffix(".0") for name, bound in told.items()})
    if kind == "literal_error":
        return f"must be one of {told['expected']}"
    known = _NEEDED.get(kind.partition("_")[0])
    return known or str(error["msg"]).removeprefix("Value error, ")


class Settings(BaseModel):
    """One description that serves the configuration file, the documentation and the hash."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True, allow_inf_nan=False
    )
