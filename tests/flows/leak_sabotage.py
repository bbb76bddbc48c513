"""What is done to each process of a leak test: all is logged, and a chosen function fails with the corpus.

``LEAK_CORPUS`` names the file whose content goes into the error, ``LEAK_FAIL`` the function
(``module:function`` or ``module:Class.method``) and the kind of error (``…=kind``), ``LEAK_QUIET`` loggers
that are left out, ``LEAK_OPENED`` a file that the path of every file opened for writing is appended to.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import os
import resource
import sys
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def begin() -> None:
    """Set this process up, before anything else is imported."""
    logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s")
    for name in os.environ.get("LEAK_QUIET", "").split():
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.simplefilter("always")
    faulthandler.enable()
    # a machine that keeps the memory of whatever crashes
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
    if os.environ.get("LEAK_OPENED"):
        _note_opened(os.environ["LEAK_OPENED"])
    if os.environ.get("LEAK_FAIL"):
        break_function(os.environ["LEAK_FAIL"])


def _note_opened(path: str) -> None:
    notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            name, mode, flags = args
            if not isinstance(name, int) and (set(mode or "") & set("wax+") or (flags or 0) & _WRITING):
                os.write(notes, os.fsencode(name) + b"\n")
        elif event == "sqlite3.connect":
            os.write(notes, os.fsencode(args[0]) + b"\n")

    sys.addaudithook(heard)


def break_function(where: str) -> Callable[[], None]:
    """Make a function fail, wherever it has been imported to; gives back what mends it again."""
    module, _, rest = where.partition(":")
    owner: Any = importlib.import_module(module)
    for name in rest.partition("=")[0].split("."):
        owner = getattr(owner, name)
    function = getattr(owner, "__wrapped__", owner)
    assert isinstance(function, FunctionType)
    whole = function.__code__
    # a closure's code has free variables, which the new code must have as well
    assert not whole.co_freevars, where
    function.__code__ = _broken.__code__
    return lambda: setattr(function, "__code__", whole)


def _broken(*args: object, **kwargs: object) -> None:
    from tests.flows import leak_sabotage

    leak_sabotage.fail()


def fail() -> None:
    """Raise an error of the chosen kind that holds the corpus in every way it can."""
    with open(os.environ["LEAK_CORPUS"], encoding="utf-8", errors="replace") as file:
        text = file.read()
    raise {**ERRORS, **CRASHES}[os.environ["LEAK_FAIL"].partition("=")[2]](text)


# The kinds of errors.


class CarriesText(Exception):
    """An error whose every part holds text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text, self.rows = text, [text]
        self.add_note(text)

    def __repr__(self) -> str:
        return f"CarriesText({self.text!r})"


class Unpicklable(CarriesText):
    """It cannot be handed to another process."""

    def __reduce__(self) -> Any:
        raise TypeError(self.text)


class Unloadable(CarriesText):
    """It can be handed on, and not be taken."""

    def __reduce__(self) -> Any:
        return _refuse, (self.text,)


def _refuse(text: str) -> None:
    raise CarriesText(text)


def _pydantic(text: str) -> Exception:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeError(TypeAdapter(int).validate_python(text))
    except ValidationError as error:
        return error


def _arrow(text: str) -> Exception:
    import pyarrow as pa

    return pa.ArrowInvalid(f"cannot convert {text}")


def _our_own(text: str) -> Exception:
    from redactory.foundation.errors import InputError

    return _caused(InputError("the input cannot be read"), text)


def _caused(error: Exception, text: str) -> Exception:
    error.__cause__ = ValueError(text)
    return error


ERRORS: dict[str, Callable[[str], BaseException]] = {
    "json": lambda text: json.JSONDecodeError(f"cannot read {text}", text, 3),
    "unicode": lambda text: UnicodeDecodeError("utf-8", text.encode(), 0, 1, f"bad start of {text}"),
    "pydantic": _pydantic,
    "arrow": _arrow,
    "file": lambda text: FileNotFoundError(2, text, text),
    "key": KeyError,
    "chained": lambda text: _caused(CarriesText(text), text),
    "grouped": lambda text: ExceptionGroup(text, [ValueError(text), CarriesText(text)]),
    "our own": _our_own,
    "exit": SystemExit,
    "unpicklable": Unpicklable,
    "unloadable": Unloadable,
}
"""What fails in a way that Python can say."""
CRASHES: dict[str, Callable[[str], Any]] = {"abort": lambda text: os.abort()}
"""What ends the process, with the text in its memory."""
