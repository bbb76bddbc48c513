"""Redactory: audited training shards from raw text, and models trained on them with a guarantee.

The public functions are the commands of the command line, with the same names.  The stub beside this file
(``__init__.pyi``) lists them all, and where each is defined.
"""

from __future__ import annotations

import re as _re
import sys as _sys
from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import Any as _Any

if _sys.version_info < (3, 11):  # noqa: UP036 (a source tree can be run by any Python)
    _sys.stderr.write(
        f"redactory: Python 3.11 or newer is needed, and this is {_sys.version.split()[0]}: install it there "
        "(python3.11 -m pip install redactory)\n"
    )
    raise SystemExit(2)


_STUB = _Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {name: module for module, name in _re.findall(r"^from (\S+) import (\w+)", _STUB, _re.MULTILINE)}
"""Where each public name is defined."""
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        # of the installed package, as it stands in every manifest; looked up when somebody asks
        from importlib.metadata import version

        return version(__name__)
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    # imported on first use: spaCy and torch take seconds, a version number should not
    return getattr(_import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
