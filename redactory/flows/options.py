"""How a function becomes a command, and what commands share: options, readers of what was given."""

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

from redactory.flows.show import Shown, show, shown_progress
from redactory.foundation.errors import ConfigurationError, InputError, shorten


@dataclass(frozen=True)
class Option:
    """An option, or an argument: its type, its default, and what Typer is told about it."""

    kind: Any
    default: Any
    known: OptionInfo | ArgumentInfo


NEEDED = inspect.Parameter.empty


def option(meaning: str, kind: Any, default: Any = None, *, flag: str = "", **more: Any) -> Option:
    """An option of type ``kind``, which is its own name unless ``flag`` says otherwise."""
    kind = kind | None if default is None else kind
    return Option(kind, default, typer.Option(..., *filter(None, [flag]), help=meaning, **more))


def switch(meaning: str, **more: Any) -> Option:
    """An option that is on if it is present."""
    return option(meaning, bool, False, **more)


def argument(metavar: str, meaning: str, kind: Any, default: Any = NEEDED, **more: Any) -> Option:
    """What is named by its position."""
    kind = kind | None if default is None else kind
    return Option(kind, default, typer.Argument(metavar=metavar, help=meaning, **more))


RUN = argument("RUN", "A run folder.", Path)
SHARED = {
    "config": argument("CONFIG", "A configuration (.yaml), or an input file, folder or URL.", str),
    "own_config": option(
        "A configuration (.yaml); default: the built-in or the run's.", str, flag="--config", metavar="CONFIG"
    ),
    "run": RUN,
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
    "reason": option("The reason; recorded in the release log.", str, NEEDED),
    "encoder": option("The users' encoder: a public folder, or RUN/models/NAME.", Path, NEEDED),
    "declared_public": switch("Declare that a Hugging Face folder was trained on public text only."),
    "as_json": switch("Print one JSON object on standard output.", flag="--json"),
}
"""Options that several commands have, each with one meaning."""
BY = dataclasses.replace(SHARED["by"], kind=str, default=NEEDED)
Body = Callable[..., Shown | None]

_PANELS = {
    "Begin": ("demo", "init", "scan", "simulate"),
    "Mask": ("redact", "unmask"),
    "Curate": ("curate", "verify", "quarantine", "run"),
    "Train": ("plan", "train", "guarantee", "budget", "predict", "synthesize"),
    "Measure, and improve detection": ("evaluate", "label", "fit"),
    "Operate": ("nightly", "schedule", "release", "index", "keys"),
    "Share, erase": ("export", "fetch", "erase", "purge"),
    "Local privacy": ("ldp",),
}
"""The commands in the order of their help."""
_PANEL_OF = {name: panel for panel, names in _PANELS.items() for name in names}


class _InOrder(typer.core.TyperGroup):
    """The commands in the order of their panels, whichever module was read first."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return sorted(self.commands, key=list(_PANEL_OF).index)


app = typer.Typer(
    name="redactory",
    cls=_InOrder,
    help="Curate raw text into audited training shards, and train models on them with a guarantee.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_GROUPS = {
    "evaluate": "Measure detection, a trained model, or attacks on it.",
    "fit": "Fit a tagger or the conservative policy to labelled rows.",
    "label": "Have people label a sample, and score their labels.",
    "release": "List a job's runs; release or reject a held run.",
    "quarantine": "Inspect and export quarantined rows.",
    "keys": "Create, rotate and shred keys, and read encrypted runs elsewhere.",
    "ldp": "Local privacy: clip and noise sentences before they leave the user.",
}
_groups = {name: typer.Typer(no_args_is_help=True, help=meaning) for name, meaning in _GROUPS.items()}
for _name, _group in _groups.items():
    app.add_typer(_group, name=_name, rich_help_panel=_PANEL_OF[_name])


def command(name: str, /, **own: Option) -> Callable[[Body], Body]:
    """Make a function the command ``name``: what it returns is shown, or printed as JSON (``--json``).

    Behind a colon stand the names of its shared options, which it takes before its own; ``progress`` is a
    listener and ``as_json`` whether JSON was asked for, where it takes them.  Options that it does not name
    (``**given``) are left out where they are None: the library's own default holds.  What returns None has
    shown its result itself.
    """
    names, _, shared = name.partition(":")
    *above, last = names.split()
    group = _groups[above[0]] if above else app
    options = {key: SHARED[key] for key in shared.split()} | own | {"as_json": SHARED["as_json"]}

    def register(body: Body) -> Body:
        known = inspect.signature(body).parameters

        @functools.wraps(body)
        def carried_out(*, as_json: bool, **given: Any) -> None:
            given = {key: value for key, value in given.items() if key in known or value is not None}
            if "as_json" in known:
                given["as_json"] = as_json
            with shown_progress() if "progress" in known else nullcontext() as progress:
                if progress is not None:
                    given["progress"] = progress
                shown = body(**given)
            if shown is not None:
                show(shown, as_json)
                if shown.code:
                    raise SystemExit(shown.code)

        parameters = [_parameter(key, each) for key, each in options.items()]
        carried_out.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        carried_out.__annotations__ = {each.name: each.annotation for each in parameters}
        group.command(last, rich_help_panel=None if above else _PANEL_OF[last])(carried_out)
        return body

    return register


def _parameter(name: str, own: Option) -> inspect.Parameter:
    """What Typer reads of an option; a switch has no --no- beside it."""
    if isinstance(own.known, OptionInfo) and not own.known.param_decls:
        own.known.param_decls = (f"--{name.replace('_', '-')}",)
    kind, annotation = inspect.Parameter.KEYWORD_ONLY, Annotated[own.kind, own.known]
    return inspect.Parameter(name, kind, default=own.default, annotation=annotation)


_NUMBER = re.compile(r"[+-]?(\d+/\d+|\d*\.?\d+[eE][+-]?\d+)")


def settings_of(given: list[str] | None) -> dict[str, Any]:
    """``KEY=VALUE`` entries, each value in YAML; ``1e-5`` and ``50/946`` are numbers, too."""
    import yaml

    found = {}
    for entry in given or ():
        key, sign, value = entry.partition("=")
        if not sign or not key:
            raise ConfigurationError("--set: expected KEY=VALUE, like train.epochs=3")
        try:
            found[key] = float(Fraction(value)) if _NUMBER.fullmatch(value) else yaml.safe_load(value)
        except ZeroDivisionError:
            raise ConfigurationError(f"--set: the value of {shorten(key)} divides by zero") from None
        except yaml.YAMLError:
            raise ConfigurationError(f"--set: the value of {shorten(key)} is not YAML") from None
    return found


def on_terminal() -> bool:
    """Whether standard output is read by a person."""
    return sys.stdout.isatty()


def standard_input() -> str:
    """All of standard input; ``InputError`` where it is not UTF-8."""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8: convert it first (for example with iconv)") from None
