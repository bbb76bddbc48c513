"""Redactory: audited training shards from raw text, and models trained on them with a guarantee.

The public functions are the commands of the command line, with the same names.  The stub beside this file
(``__init__.pyi``) lists them all, and where each is defined.
"""

from __future__ import annotations

import sys as _sys
from typing import Any as _Any

if _sys.version_info < (3, 11):  # noqa: UP036 (a source tree can be run by any Python)
    _sys.stderr.write(
        f"redactory: Python 3.11 or newer is needed, and this is {_sys.version.split()[0]}: install it there "
        "(python3.11 -m pip install redactory)\n"
    )
    raise SystemExit(2)

import lazy_loader as _lazy_loader

# imported on first use: spaCy and torch take seconds, a version number should not
_load, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        # of the installed package, as it stands in every manifest; looked up when somebody asks
        from importlib.metadata import version

        return version(__name__)
    return _load(name)
