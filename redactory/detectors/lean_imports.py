"""spaCy and Presidio without the libraries that they import for what is not used here."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_NOT_USED = ("torch", "transformers", "stanza")
"""spaCy imports the first where it is installed, Presidio all of them: for engines of theirs, where ours has
its own.  They take seconds and hundreds of megabytes in each process."""
_USE_TORCH = ("spacy_transformers", "spacy_curated_transformers")
"""With one of these installed a spaCy pipeline may have layers of PyTorch."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Import spaCy and Presidio in here: what they do not need looks as if it were not installed.

    What is imported already stays, and can be imported afterwards.  Nothing is hidden where spaCy's
    packages for transformers are installed.  Other threads should not import PyTorch at the same time.
    """
    hidden = [] if any(map(importlib.util.find_spec, _USE_TORCH)) else _absent()
    # None in the place of a module is how Python says that it cannot be imported
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def lean_spacy() -> ModuleType:
    """spaCy, to make pipelines with.

    Its first pipeline imports every package that offers it a component; Presidio offers one, and is imported
    here, where it finds only what it needs.
    """
    with lean_imports():
        import presidio_analyzer  # noqa: F401
        import spacy

    return spacy


def _absent() -> list[str]:
    return [name for name in _NOT_USED if name not in sys.modules]
