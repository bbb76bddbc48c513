"""A text that a command is given on standard input."""

from __future__ import annotations

import sys

from redactory.foundation.errors import InputError


def standard_input() -> str:
    """All of standard input; ``InputError`` where it is no UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("standard input is no UTF-8: convert it first (for example with iconv)") from None
