"""Turn functions into commands, with shared options and parsers of their values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from typer.models import ArgumentInfo, OptionInfo

from redactory.flows.show import CommandResult, show_progress, show_result
from redactory.foundation.errors import ConfigurationError, InputError, shorten_name


@dataclass(frozen=True)
class Option:
    """An option or an argument: its type, its default, and its settings for Typer."""

    value_type: Any
    default: Any
    typer_info: OptionInfo | ArgumentInfo


REQUIRED = inspect.Parameter.empty


def option(help_text: str, kind: Any, default: Any = None, *, flag: str = "", **typer_settings: Any) -> Option:
    """Return an option of type ``kind``; its flag is its name unless ``flag`` is set."""
    kind = kind | None if default is None else kind
    return Option(kind, default, typer.Option(..., *filter(None, [flag]), help=help_text, **typer_settings))


def switch(help_text: str, **typer_settings: Any) -> Option:
    """Declare an option that is on when present."""
    return option(help_text, bool, False, **typer_settings)


def argument(metavar: str, help_text: str, kind: Any, default: Any = REQUIRED, **typer_settings: Any) -> Option:
    """Declare a positional argument."""
    kind = kind | None if default is None else kind
    return Option(kind, default, typer.Argument(metavar=metavar, help=help_text, **typer_settings))


RUN_ARGUMENT = argument("RUN", "A run folder.", Path)
SHARED_OPTIONS = {
    "config": argument("CONFIG", "A configuration (.yaml), or an input file, folder or URL.", str),
    "own_config": option(
        "A configuration (.yaml); default: the built-in or the run's.", str, flag="--config", metavar="CONFIG"
    ),
    "run": RUN_ARGUMENT,
    "job": argument("JOB|RUN", "A job's folder of runs, or a run.", Path),
    "places": argument("PLACE...", "Run folders, or jobs' folders with all their runs.", list[Path]),
    "model": option("A trained model; default: from the configuration.", str),
    "output": option("The run folder, or a URL; default: output in the configuration.", str, flag="--out"),
    "resume": switch("Resume an interrupted run."),
    "workers": option("Number of processes.", int, min=1),
    "prefect": switch("Run as a Prefect flow."),
    "dask": option(
        "Curate on a Dask cluster: local (--workers processes), or a scheduler's address, tls://HOST:PORT.", str
    ),
    "set_": option(
        "A setting, in YAML; a.b is b in section a. Repeatable.", list[str], flag="--set", metavar="KEY=VALUE"
    ),
    "seed": option("The same seed gives the same random draws.", int),
    "confidence": option("Confidence level of each bound.", float, 0.95),
    "name": option("Name of the sample.", str, "sample", flag="--sample"),
    "by": option("Who is responsible; recorded in the release log.", str),
    "reason": option("The reason; recorded in the release log.", str, REQUIRED),
    "encoder": option("The users' encoder: a public folder, or RUN/models/NAME.", Path, REQUIRED),
    "declared_public": switch("Declare that a Hugging Face folder was trained on public text only."),
    "as_json": switch("Print one JSON object on standard output.", flag="--json"),
}
REQUIRED_BY_OPTION = dataclasses.replace(SHARED_OPTIONS["by"], value_type=str, default=REQUIRED)
CommandBody = Callable[..., CommandResult | None]

_COMMAND_PANELS = {
    "Begin": ("demo", "init", "scan", "simulate"),
    "Mask": ("redact", "unmask"),
    "Curate": ("curate", "verify", "quarantine", "run"),
    "Train": ("plan", "train", "guarantee", "budget", "predict", "synthesize"),
    "Measure, and improve detection": ("evaluate", "label", "fit"),
    "Operate": ("nightly", "schedule", "release", "index", "keys"),
    "Share, erase": ("export", "fetch", "erase", "purge"),
    "Local privacy": ("ldp",),
}
_PANEL_BY_COMMAND = {name: panel for panel, names in _COMMAND_PANELS.items() for name in names}


class _OrderedGroup(typer.core.TyperGroup):
    """The commands in the order of their panels, independent of import order."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=list(_PANEL_BY_COMMAND).index)


app = typer.Typer(
    name="redactory",
    cls=_OrderedGroup,
    help="Curate raw text into audited training shards, and train models on them with a guarantee.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_GROUP_HELP = {
    "evaluate": "Measure detection, a trained model, or attacks on it.",
    "fit": "Fit a tagger or the conservative policy to labelled rows.",
    "label": "Have people label a sample, and score their labels.",
    "release": "List a job's runs; release or reject a held run.",
    "quarantine": "Inspect and export quarantined rows.",
    "keys": "Create, rotate and shred keys, and read encrypted runs elsewhere.",
    "ldp": "Local privacy: clip and noise sentences before they leave the user.",
}
_groups = {name: typer.Typer(no_args_is_help=True, help=meaning) for name, meaning in _GROUP_HELP.items()}
for _name, _group in _groups.items():
    app.add_typer(_group, name=_name, rich_help_panel=_PANEL_BY_COMMAND[_name])


def command(name: str, /, **declared: Option) -> Callable[[CommandBody], CommandBody]:
    """Make a function the command ``name``; its result is shown, or printed as JSON (``--json``).

    ``name`` may be 'cmd: opt1 opt2' to include shared options, which come before the function's own. The parameter
    ``progress`` receives a listener, ``as_json`` whether JSON is requested. Options in ``**kwargs`` that are None are
    left out, so that the library's default applies. A function that returns None has shown its result itself.
    """
    names, _, shared = name.partition(":")
    *parents, last = names.split()
    group = _groups[parents[0]] if parents else app
    options = {key: SHARED_OPTIONS[key] for key in shared.split()} | declared | {"as_json": SHARED_OPTIONS["as_json"]}

    def register(body: CommandBody) -> CommandBody:
        known = inspect.signature(body).parameters

        @functools.wraps(body)
        def run_command(*, as_json: bool, **arguments: Any) -> None:
            arguments = {key: value for key, value in arguments.items() if key in known or value is not None}
            if "as_json" in known:
                arguments["as_json"] = as_json
            with show_progress() if "progress" in known else nullcontext() as progress:
                if progress is not None:
                    arguments["progress"] = progress
                shown = body(**arguments)
            if shown is not None:
                show_result(shown, as_json)
                if shown.exit_code:
                    raise SystemExit(shown.exit_code)

        parameters = [_make_parameter(key, entry) for key, entry in options.items()]
        run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run_command.__annotations__ = {entry.name: entry.annotation for entry in parameters}
        group.command(last, rich_help_panel=None if parents else _PANEL_BY_COMMAND[last])(run_command)
        return body

    return register


def _make_parameter(name: str, declared: Option) -> inspect.Parameter:
    """Convert an option for Typer; a switch has no --no- form."""
    if isinstance(declared.typer_info, OptionInfo) and not declared.typer_info.param_decls:
        declared.typer_info.param_decls = (f"--{name.replace('_', '-')}",)
    kind, annotation = inspect.Parameter.KEYWORD_ONLY, Annotated[declared.value_type, declared.typer_info]
    return inspect.Parameter(name, kind, default=declared.default, annotation=annotation)


_NUMBER = re.compile(r"[+-]?(\d+/\d+|\d*\.?\d+[eE][+-]?\d+)")


def parse_set_options(entries: list[str] | None) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` entries, each value in YAML; ``1e-5`` and ``50/946`` are numbers, too."""
    import yaml

    values = {}
    for entry in entries or ():
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise ConfigurationError("--set: expected KEY=VALUE, like train.epochs=3")
        try:
            values[key] = float(Fraction(value)) if _NUMBER.fullmatch(value) else yaml.safe_load(value)
        except ZeroDivisionError:
            raise ConfigurationError(f"--set: the value of {shorten_name(key)} divides by zero") from None
        except yaml.YAMLError:
            raise ConfigurationError(f"--set: the value of {shorten_name(key)} is not YAML") from None
    return values


def is_stdout_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def read_standard_input() -> str:
    """Read all of standard input; ``InputError`` if it is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8: convert it first (for example with iconv)") from None
