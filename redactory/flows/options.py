"""Arguments and options that commands share, each declared once, and how a function becomes a command."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from redactory.flows.show import Shown, show, shown_progress
from redactory.foundation.errors import ConfigurationError, InputError


def readable_configuration(given: str | None) -> str | None:
    """``given``; ``ConfigurationError`` for a YAML file that is not there or is not YAML.

    Called while options are read: the settings it would be checked against take a second to import.
    """
    if given is not None and given.endswith((".yaml", ".yml")):
        from redactory.pipelines.loading import read_yaml

        read_yaml(Path(given))
    return given


# What a command is about.
_CONFIG = {"metavar": "CONFIG", "callback": readable_configuration}
ConfigArgument = Annotated[
    str, typer.Argument(**_CONFIG, help="A configuration (.yaml), or an input file, folder or URL.")
]
ConfigOption = Annotated[
    str | None,
    typer.Option("--config", **_CONFIG, help="A configuration (.yaml), instead of the default or the run's."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
JobArgument = Annotated[Path, typer.Argument(metavar="JOB|RUN", help="A job's folder of runs, or a run.")]
PlacesArgument = Annotated[
    list[Path], typer.Argument(metavar="PLACE...", help="Run folders, or jobs' folders with all their runs.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="A trained model; the configured one by default.")
]

# How it is carried out.
OutOption = Annotated[
    str | None, typer.Option("--out", help="The run folder, or a URL; the configuration's by default.")
]
NewOption = Annotated[Path, typer.Option("--out", help="A new file or folder.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes that share the work.")]
PrefectOption = Annotated[bool, typer.Option("--prefect", help="Run as a Prefect flow.")]
DaskOption = Annotated[
    str | None,
    typer.Option(
        "--dask",
        help="Curate on a Dask cluster: local (--workers processes), or a scheduler's address, tls://HOST:PORT.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, in YAML; a.b is b below a. Repeatable."),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="The same seed draws the same.")]
ConfidenceOption = Annotated[float, typer.Option("--confidence", help="Confidence of each bound.")]
PlotOption = Annotated[Path | None, typer.Option("--plot", help="SVG file: epsilon against steps.")]

# Who decides, and how it is written down.
ByOption = Annotated[str, typer.Option("--by", help="Who answers for it; goes into the release log.")]
MaybeByOption = Annotated[
    str | None, typer.Option("--by", help="Who answers for it; goes into the release log.")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the log.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def command(group: typer.Typer, name: str | None = None) -> Callable[[Callable[..., Shown | None]], Any]:
    """Add a function to ``group`` as a command: what it returns is shown, or printed as JSON (``--json``).

    A parameter ``progress`` is a listener, not an option; a parameter ``as_json`` is whether JSON was asked
    for.  What returns None has shown its result itself.
    """

    def register(body: Callable[..., Shown | None]) -> Callable[..., Shown | None]:
        signature = inspect.signature(body, eval_str=True)
        known = signature.parameters
        given = [own for name, own in known.items() if name not in ("progress", "as_json")]
        as_json = inspect.Parameter("as_json", _KEYWORD, default=False, annotation=JsonOption)

        @functools.wraps(body)
        def carried_out(*, as_json: bool, **options: Any) -> None:
            if "as_json" in known:
                options["as_json"] = as_json
            if "progress" in known:
                with shown_progress() as progress:
                    shown = body(**options, progress=progress)
            else:
                shown = body(**options)
            if shown is None:
                return
            show(shown, as_json)
            if shown.code:
                raise SystemExit(shown.code)

        parameters = [own.replace(kind=_KEYWORD) for own in given] + [as_json]
        carried_out.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=None
        )
        carried_out.__annotations__ = {own.name: own.annotation for own in parameters}
        group.command(name or body.__name__.replace("_", "-"))(carried_out)
        return body

    return register


_KEYWORD = inspect.Parameter.KEYWORD_ONLY


_NUMBER = re.compile(r"[+-]?(\d+/\d+|\d*\.?\d+[eE][+-]?\d+)")


def settings_of(given: list[str] | None) -> dict[str, Any]:
    """``KEY=VALUE`` entries, each value in YAML; ``1e-5`` and ``50/946`` are numbers, too."""
    import yaml

    found = {}
    for entry in given or ():
        key, sign, value = entry.partition("=")
        if not sign or not key:
            raise ConfigurationError("--set: a key, '=', and its value are needed, like train.epochs=3")
        try:
            found[key] = float(Fraction(value)) if _NUMBER.fullmatch(value) else yaml.safe_load(value)
        except ZeroDivisionError:
            raise ConfigurationError(f"--set: the value of {key} divides by zero") from None
        except yaml.YAMLError:
            raise ConfigurationError(f"--set: the value of {key} is not YAML") from None
    return found


def given_ones(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None and value is not False}


def on_terminal() -> bool:
    """Whether standard output is read by a person."""
    return sys.stdout.isatty()


def standard_input() -> str:
    """All of standard input; ``InputError`` where it is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8: convert it first (for example with iconv)") from None
