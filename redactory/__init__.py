"""Redactory: audited training shards from raw text, and models trained on them with a guarantee.

The public functions are the commands of the command line, with the same names.  The one list of all public
names, with their types, is the stub beside this file (``__init__.pyi``).
"""

from __future__ import annotations

import sys as _sys
from pathlib import Path as _Path
from typing import Any as _Any

if _sys.version_info < (3, 11):  # noqa: UP036 (a source tree can be run by any Python)
    _sys.stderr.write(
        "redactory: Python 3.11 or newer is needed, and this is "
        + _sys.version.split()[0]
        + ": install it there "
        "(python3.11 -m pip install redactory)\n"
    )
    raise SystemExit(2)

from redactory.foundation.deprecation import Deprecated as _Deprecated
from redactory.foundation.public_names import look_up as _look_up
from redactory.foundation.public_names import names_in as _names_in

_PUBLIC = _names_in(_Path(__file__).with_suffix(".pyi"))
_DEPRECATED: dict[str, _Deprecated] = {}
"""Names that were public once: docs/reference/stability.md says how long each of them stays here."""

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        # of the installed package, as it stands in every manifest; looked up when somebody asks
        from importlib.metadata import version

        return version(__name__)
    # imported on first use: spaCy and torch take seconds, a version number should not
    return _look_up(__name__, name, _PUBLIC, _DEPRECATED)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
