"""The command groups, the options that several commands share, and the parsers of their values."""

import re
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
import typer.core
import typer.main
from typer import Argument, Option

from redactory.flows.show import Shown, report_progress, show_result
from redactory.foundation.errors import ConfigurationError, InputError, shorten_name

Config = Annotated[str, Argument(metavar="CONFIG", help="A configuration (.yaml), or an input file, folder or URL.")]
OwnConfig = Annotated[
    str | None, Option("--config", metavar="CONFIG", help="A configuration; default: the built-in or the run's.")
]
Run = Annotated[Path, Argument(metavar="RUN", help="A run folder.")]
Job = Annotated[Path, Argument(metavar="JOB|RUN", help="A job's folder of runs, or a run.")]
Places = Annotated[list[Path], Argument(metavar="PLACE...", help="Run folders, or jobs' folders with all their runs.")]
Only = Annotated[
    list[str] | None, Option(metavar="KIND,…", help="Only these kinds, like PERSON; all others are public. Repeatable.")
]
Except = Annotated[
    list[str] | None, Option("--except", metavar="KIND,…", help="Kinds that are public and stay readable. Repeatable.")
]
Allow = Annotated[
    list[str] | None, Option(metavar="FILE", help="Public terms, one a line, or re:EXPRESSION. Repeatable.")
]
Deny = Annotated[
    list[str] | None, Option(metavar="[LABEL=]FILE", help="Terms to mask always, one a line, or re:EXPRESSION.")
]
Sensitivity = Annotated[float | None, Option(help="How much to mask, from 0.1 to 0.75; default: 0.5.")]
Language = Annotated[str | None, Option(help="Language code, or auto: detect it for each text.")]
LanguageColumn = Annotated[str | None, Option(metavar="NAME", help="Column with each row's language.")]
Model = Annotated[str | None, Option(help="A trained model; default: from the configuration.")]
Output = Annotated[str | None, Option("--out", help="The run folder, or a URL; default: output in the configuration.")]
Resume = Annotated[bool, Option("--resume", help="Resume an interrupted run.")]
Workers = Annotated[int | None, Option(help="Number of processes.", min=1)]
Prefect = Annotated[bool, Option("--prefect", help="Run as a Prefect flow.")]
Dask = Annotated[str | None, Option(help="A Dask cluster: local, or its address, tls://HOST:PORT.")]
Settings = Annotated[
    list[str] | None, Option("--set", metavar="KEY=VALUE", help="A setting, like train.epochs=3. Repeatable.")
]
Encoding = Annotated[
    str | None, Option(help="Encoding of text, CSV and JSON files, like cp1252 or utf-16; default: UTF-8.")
]
Seed = Annotated[int | None, Option(help="The same seed gives the same random draws.")]
Confidence = Annotated[float, Option(help="Confidence level of each bound.")]
Sample = Annotated[str, Option("--sample", help="Name of the sample.")]
By = Annotated[str, Option(help="Who is responsible; recorded in the release log.")]
OptionalBy = Annotated[str | None, Option(help="Who is responsible; recorded in the release log.")]
Reason = Annotated[str, Option(help="The reason; recorded in the release log.")]
Temperature = Annotated[float, Option(help="Below 1 likelier tokens, above 1 rarer ones; 0: the likeliest.", min=0.0)]
Encoder = Annotated[Path, Option(help="The users' encoder: a public folder, or RUN/models/NAME.")]
DeclaredPublic = Annotated[bool, Option("--declared-public", help="The folder was trained on public text.")]

_COMMAND_PANELS = {
    "Begin": ("demo", "init", "scan", "simulate"),
    "Mask": ("redact", "unmask", "serve-http"),
    "Curate": ("curate", "verify", "quarantine", "run"),
    "Train": ("plan", "train", "guarantee", "budget", "predict", "synthesize"),
    "Measure, and improve detection": ("evaluate", "label", "review", "fit"),
    "Operate": ("nightly", "schedule", "release", "index", "keys"),
    "Share, erase": ("export", "fetch", "erase", "access", "purge"),
    "Local privacy": ("ldp",),
}
_PANEL_BY_COMMAND = {name: panel for panel, names in _COMMAND_PANELS.items() for name in names}


_OTHER_NAMES = {"generate": "predict --generate 1", "mask": "redact", "push": "export"}
"""Names that are common elsewhere, and the commands that do this here."""


class _OrderedGroup(typer.core.TyperGroup):
    """The commands in the order of their panels, independent of import order."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in _OTHER_NAMES:
            raise ConfigurationError(f"no command {args[0]}; use redactory {_OTHER_NAMES[args[0]]}")
        return super().resolve_command(ctx, args)

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
    "label": "Have people label a sample, compare and score their labels.",
    "release": "List a job's runs; explain, release or reject a held run.",
    "quarantine": "Inspect and export quarantined rows.",
    "keys": "Create, rotate and shred keys, and read encrypted runs elsewhere.",
    "ldp": "Local privacy: clip and noise sentences before they leave the user.",
}
_groups = {name: typer.Typer(no_args_is_help=True, help=meaning) for name, meaning in _GROUP_HELP.items()}
for _name, _group in _groups.items():
    app.add_typer(_group, name=_name, rich_help_panel=_PANEL_BY_COMMAND[_name])


_json_app = typer.Typer()


@_json_app.command()
def _declare_common_options(
    as_json: Annotated[bool, Option("--json", help="Print one JSON object on standard output.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Show no progress.")] = False,
) -> None: ...


_COMMON_OPTIONS = typer.main.get_command(_json_app).params[:2]


class _Command(typer.core.TyperCommand):
    """A command that returns what is shown: as a page, or with ``--json`` as one object; ``--quiet`` stops progress."""

    def __init__(self, *arguments: Any, params: list[Any], **settings: Any) -> None:
        super().__init__(*arguments, params=[*params, *_COMMON_OPTIONS], **settings)

    def invoke(self, ctx: Any) -> None:
        ctx.obj, report_progress.is_quiet = ctx.params.pop("as_json"), ctx.params.pop("quiet")
        shown = super().invoke(ctx)
        if shown is not None:
            show_result(ctx.obj, *shown)


Function = TypeVar("Function", bound=Callable[..., Shown])


def command(name: str) -> Callable[[Function], Function]:
    """Register a function as the command ``name``, with the common options, in its group or panel."""
    *group, last = name.split()
    if group:
        return _groups[group[0]].command(last, cls=_Command)
    return app.command(last, cls=_Command, rich_help_panel=_PANEL_BY_COMMAND[last])


def drop_unset(**options: Any) -> dict[str, Any]:
    """Drop the options that are None, so that the library's default applies."""
    return {name: value for name, value in options.items() if value is not None}


_NUMBER = re.compile(r"[+-]?(\d+/\d+|\d*\.?\d+[eE][+-]?\d+)")


def parse_settings(entries: list[str] | None) -> dict[str, Any]:
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
