"""The public names of a package, taken from its type stub: one list for people, type checkers and Python."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from redactory.foundation.deprecation import Deprecated


class Place(NamedTuple):
    """Where a public name is defined."""

    module: str
    attribute: str


def names_in(stub: Path) -> dict[str, Place]:
    """Every name that the stub makes public, and where it is defined.

    Such a name is an import that says so, ``from module import x as x``, or another name for an import,
    ``y = x``.  These are the two forms that type checkers take for a public name of a stub.
    """
    imported: dict[str, Place] = {}
    public: dict[str, Place] = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                imported[alias.name] = Place(node.module, alias.name)
                if alias.asname == alias.name:
                    public[alias.name] = imported[alias.name]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            place = imported[node.value.id]
            public.update({name.id: place for name in node.targets if isinstance(name, ast.Name)})
    return public


def look_up(
    package: str, name: str, public: Mapping[str, Place], deprecated: Mapping[str, Deprecated]
) -> Any:
    """What ``package.name`` stands for, imported now; ``AttributeError`` where it is no public name.

    For a deprecated name a ``DeprecationWarning`` points at the line that uses it.
    """
    old = deprecated.get(name)
    if old is not None:
        # up to the line that uses the name, over this function and the package's __getattr__
        warnings.warn(old.told(f"{package}.{name}"), DeprecationWarning, stacklevel=3)
        name = old.now
    if name not in public:
        raise AttributeError(f"module '{package}' has no attribute '{name}'")
    return getattr(import_module(public[name].module), public[name].attribute)
