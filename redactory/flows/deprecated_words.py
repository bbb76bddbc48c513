"""Commands and options that still work and will go, and how their use is told: once, on standard error."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import Any, Final

from typer.core import TyperGroup

from redactory.flows import json_log, output
from redactory.foundation.deprecation import Deprecated, DeprecatedUse, with_new_words

DEPRECATED_WORDS: dict[str, Deprecated] = {}
"""Old commands and options: docs/reference/stability.md says how long each of them stays here."""
_DEFAULT: Final = warnings.showwarning


class Commands(TyperGroup):
    """All commands; the old words of one are taken for the new ones."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that ``args`` begin with, and what is left for it; uses to tell of are ``ctx.obj``."""
        # told when it is known where the log goes
        with warnings.catch_warnings(record=True) as uses:
            warnings.simplefilter("always")
            words = with_new_words(args, DEPRECATED_WORDS)
        ctx.obj = [use.message for use in uses]
        return super().resolve_command(ctx, words)


def tell_deprecated_uses() -> None:
    """From now on deprecated keys and words are told in one line each, and not again."""
    warnings.filterwarnings("once", category=DeprecatedUse)
    warnings.showwarning = _show


def tell(uses: Iterable[Warning | str] | None) -> None:
    """Tell of the old words of a command line, as they were noted."""
    for use in uses or ():
        _show(use, DeprecatedUse)


def _show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    if not issubclass(category, DeprecatedUse):
        _DEFAULT(message, category, *place, **more)
        return
    json_log.event("deprecated", logging.WARNING, told=str(message))
    if not json_log.on_terminal():
        output.err.print(f"redactory: {message}", soft_wrap=True, markup=False)
