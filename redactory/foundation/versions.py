"""Versions of installed packages: looked up once, for none changes while a process lives."""

from __future__ import annotations

import functools
import importlib.metadata


@functools.cache
def version_of(package: str) -> str:
    """The installed version of ``package``; ``importlib.metadata.PackageNotFoundError`` without one."""
    return importlib.metadata.version(package)
