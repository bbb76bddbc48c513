"""What is told of a command that could not be understood, or that met what nobody expected: one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NOT_LOGGED = "the command line was not understood"
"""What a log has of it: an argument may be a text, and the message quotes it."""
_WORDS = {"Value error, ": "", "Input should be": "it must be", ", unable to parse string as an integer": ""}
"""Words of pydantic's that Typer passes on, and what stands for them."""


def is_usage(error: Exception) -> bool:
    """Whether ``error`` is the parser's; Typer has classes of its own for it, or those of Click before."""
    return hasattr(error, "format_message") and hasattr(error, "ctx")


def asks_for_help(error: Any) -> bool:
    """Whether a group was named without a command, which has shown its help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def usage_message(error: Any) -> str:
    """What is wrong, and where the right form stands."""
    what = str(error.format_message()).strip().rstrip(".")
    for theirs, ours in _WORDS.items():
        what = what.replace(theirs, ours)
    command = error.ctx.command_path if error.ctx is not None else "redactory"
    return f"{what} See {command} --help" if what.endswith("?") else f"{what}; see {command} --help"


def unexpected(error: Exception) -> str:
    """The kind and the place of an error that is none of ours: its own message may quote the corpus."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" at {Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
    return f"unexpected {type(error).__name__}{place}; please report it"
