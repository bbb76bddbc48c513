"""Compute and state the guarantee of a training: one spec, two accountants, one card.

``spec`` holds the inputs of every epsilon and ``metrics`` computes them.  ``plan`` runs before a training and
``budget`` at its start; ``card`` reads the finished ledger, and ``compose`` covers several models together.
The sentences are in ``words.toml``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
