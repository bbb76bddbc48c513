"""The command line's entry: exit codes, messages of one line, and how a stop ends a command."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import evaluate_commands, job_commands, log, run_commands, show  # noqa: F401
from redactory.flows.options import app
from redactory.foundation.errors import RedactoryError, shorten
from redactory.foundation.processes import forbid_core_dumps

_INTERRUPTED, _STOPPED = 130, 128 + signal.SIGTERM
_RESUMED = ("curate", "run")
"""The commands that go on with ``--resume`` alone; each other one does so when it is given again."""
_NOT_LOGGED = "invalid command line"
"""What a log has of it: an argument may be a text, and the message quotes it."""
_WORDS = {"Value error, ": "", "Input should be": "it must be", ", unable to parse string as an integer": ""}
"""Words of pydantic's that Typer passes on, and what stands for them."""


def main() -> None:
    """The console script: 0 done, 1 a check failed, 2 bad input or configuration."""
    forbid_core_dumps()
    end_in_order()
    show.print_anything()
    # what a command before this one asked for, in one process
    log.end()
    try:
        # not on its own: what it does not understand is said as every other error is
        code = app(standalone_mode=False, prog_name="redactory") or 0
    except RedactoryError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            # the interpreter would print it
            _fail("unexpected SystemExit; please report it", 1)
        code = end.code or 0
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            # a group was named without a command, which has shown its help
            raise SystemExit(2) from None
        if hasattr(error, "format_message") and hasattr(error, "ctx"):
            # the parser's; Typer has classes of its own for it, or those of Click before
            _fail(_usage(error), 2, _NOT_LOGGED)
        _fail(_unexpected(error), 1)
    if code == _INTERRUPTED:
        _fail(f"interrupted: {_how_to_go_on()}", code)
    log.ended(code)
    raise SystemExit(code)


def _fail(message: str, code: int, logged: str | None = None) -> None:
    if _asked.is_set():
        # an error that follows a stop, of a worker that was ended with us, is its doing
        message, code, logged = f"stopped by SIGTERM: {_how_to_go_on()}", _STOPPED, None
    if "--json" in sys.argv:
        show.print_json({"ok": False, "error": message, "exit_code": code})
    show.warn(f"redactory: {message}")
    log.ended(code, logged or message)
    sys.stdout.flush()
    raise SystemExit(code)


def _how_to_go_on() -> str:
    return "run the same command again to continue" + " (with --resume)" * (log.command() in _RESUMED)


def _usage(error: Any) -> str:
    """What is wrong with the command line, and where the right form stands."""
    what = str(error.format_message()).strip().rstrip(".")
    # what was typed in a wrong place can be a secret, and who runs this for others keeps what it prints
    for typed in sys.argv[1:]:
        for part in typed.lstrip("-").split("=", 1):
            what = what.replace(part, shorten(part))
    for theirs, ours in _WORDS.items():
        what = what.replace(theirs, ours)
    command = error.ctx.command_path if error.ctx is not None else "redactory"
    return f"{what} See {command} --help" if what.endswith("?") else f"{what}; see {command} --help"


def _unexpected(error: Exception) -> str:
    """The kind and the place of an error that is none of ours: its own message may quote the corpus."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" at {Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
    return f"unexpected {type(error).__name__}{place}; please report it"


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    log_json: Annotated[
        str | None,
        typer.Option(
            "--log-json", metavar="FILE", help="Write log lines as JSON to FILE (appended); - is standard error."
        ),
    ] = None,
) -> None:
    if version:
        show.out.print(redactory.__version__)
        raise typer.Exit
    log.begin(log_json, context.invoked_subcommand)


# SIGTERM, by which schedulers and service managers stop a process: ended in order, as by Ctrl-C.


_asked = threading.Event()


class Stopped(KeyboardInterrupt):
    """SIGTERM came: whatever ends a work in order where it is interrupted ends it now."""


def end_in_order() -> None:
    """From now on SIGTERM raises :class:`Stopped` where this process is at work; a second one ends it.

    Where the signal is ignored or somebody else answers it, and in any thread but the main one, all stays as
    it is.
    """
    _asked.clear()
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _asked.set()
    raise Stopped
