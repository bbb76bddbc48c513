"""The JSON Schemas (draft 2020-12) of what Redactory writes, for other programs to check it by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.config import Config

_ENDING = ".schema.json"
_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE / "schemas", _PACKAGE / "training" / "ldp")
CONFIGURATION = "configuration"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """The name of every schema, with its title."""
    found = {
        name: str(json.loads(path.read_text(encoding="utf-8"))["title"]) for name, path in _files().items()
    }
    return dict(sorted({**found, CONFIGURATION: _configuration()["title"]}.items()))


def schema(name: str) -> dict[str, Any]:
    """One JSON Schema; ``ConfigurationError`` that names those there are where ``name`` is none of them."""
    if name == CONFIGURATION:
        return _configuration()
    path = _files().get(name)
    if path is None:
        raise ConfigurationError(f"there is no schema '{name}'; there are: {', '.join(schemas())}")
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def _files() -> dict[str, Path]:
    found = (path for folder in _FOLDERS for path in sorted(folder.glob(f"*{_ENDING}")))
    names = ((path.name.removesuffix(_ENDING), path) for path in found)
    # beside its module it is the message, and nothing else
    return {("ldp-message" if name == "message" else name): path for name, path in names}


def _configuration() -> dict[str, Any]:
    """Of the settings themselves: one description serves them, the documentation and this."""
    return {"$schema": _DIALECT, **Config.model_json_schema(), "title": "A configuration of Redactory"}
