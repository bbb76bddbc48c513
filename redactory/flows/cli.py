"""Entry point of the command line: exit codes, one-line messages, and signal handling."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import (  # noqa: F401
    evaluate_commands,
    http_commands,
    job_commands,
    label_commands,
    ldp_commands,
    log,
    model_commands,
    release_commands,
    run_commands,
    scan_commands,
    show,
)
from redactory.flows.options import app
from redactory.foundation.errors import RedactoryError, shorten_name
from redactory.foundation.processes import forbid_core_dumps

_INTERRUPT_CODE, _SIGTERM_CODE = 130, 128 + signal.SIGTERM
_RESUME_COMMANDS = ("curate", "run")
"""Commands that resume only with ``--resume``; every other one resumes when it is repeated."""
_REWORDED_MESSAGES = {
    "Value error, ": "",
    "Input should be": "it must be",
    ", unable to parse string as an integer": "",
}


def main() -> None:
    """Run the console script: exit code 0 done, 1 a check failed, 2 bad input or configuration."""
    forbid_core_dumps()
    install_stop_handler()
    show.escape_unprintable_output()
    log.stop_log()
    try:
        # not standalone: usage errors are printed like every other error
        code = app(standalone_mode=False, prog_name="redactory") or 0
    except RedactoryError as error:
        _exit_with_error(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPT_CODE
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            # otherwise the interpreter prints it
            _exit_with_error("unexpected SystemExit; please report it", 1)
        code = end.code or 0
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            # a group without a command has shown its help
            raise SystemExit(2) from None
        if hasattr(error, "format_message") and hasattr(error, "ctx"):
            # the parser's errors; Typer has its own classes for them, or uses Click's
            # the log must not quote an argument, which may be a text
            _exit_with_error(_format_usage_error(error), 2, "invalid command line")
        _exit_with_error(_format_unexpected_error(error), 1)
    if code == _INTERRUPT_CODE:
        _exit_with_error(f"interrupted: {_format_resume_hint()}", code)
    log.log_exit(code)
    raise SystemExit(code)


def _exit_with_error(message: str, code: int, log_message: str | None = None) -> None:
    if _stop_requested.is_set():
        # an error after a stop comes from a worker that was stopped, too
        message, code, log_message = f"stopped by SIGTERM: {_format_resume_hint()}", _SIGTERM_CODE, None
    if "--json" in sys.argv:
        show.print_json({"ok": False, "error": message, "exit_code": code})
    show.print_warning(f"redactory: {message}")
    log.log_exit(code, log_message or message)
    sys.stdout.flush()
    raise SystemExit(code)


def _format_resume_hint() -> str:
    command = log.current_command
    if command in sys.argv and "-" in sys.argv[sys.argv.index(command) :]:
        return "standard input and output cannot be resumed; run the command again with the whole input"
    return "run the same command again to continue" + " (with --resume)" * (command in _RESUME_COMMANDS)


def _format_usage_error(error: Any) -> str:
    message = str(error.format_message()).strip().rstrip(".")
    # a misplaced argument can be a secret, and the output may be stored
    for typed in sys.argv[1:]:
        for part in typed.lstrip("-").split("=", 1):
            message = message.replace(part, shorten_name(part))
    for original, ours in _REWORDED_MESSAGES.items():
        message = message.replace(original, ours)
    command = error.ctx.command_path if error.ctx is not None else "redactory"
    return f"{message} See {command} --help" if message.endswith("?") else f"{message}; see {command} --help"


def _format_unexpected_error(error: Exception) -> str:
    """Format kind and location of an unexpected error; its own message may quote the corpus."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    location = f" at {Path(frames[0].filename).name}:{frames[0].lineno}" if frames else ""
    return f"unexpected {type(error).__name__}{location}; please report it"


@app.callback(invoke_without_command=True)
def _handle_global_options(
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
    log.start_log(log_json, context.invoked_subcommand)
    context.call_on_close(show.report_progress.stop)


# Schedulers and service managers stop a process by SIGTERM: handle it like Ctrl-C.


_stop_requested = threading.Event()


class TerminationRequested(KeyboardInterrupt):
    """SIGTERM: stop in the same orderly way as on an interrupt."""


def install_stop_handler() -> None:
    """Make the first SIGTERM raise :class:`TerminationRequested`; a second one ends the process.

    Changes nothing if the signal is ignored or already handled, or outside the main thread.
    """
    _stop_requested.clear()
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _handle_sigterm)


def _handle_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _stop_requested.set()
    raise TerminationRequested
