"""Arguments and options that commands share, and how a result is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from redactory.flows import completion, json_log, output


def readable_configuration(given: str | None) -> str | None:
    """``given``; ``ConfigurationError`` for a YAML file that is not there or is no YAML.

    Called while options are read: the settings it would be checked against take a second to import.
    """
    if given is not None and given.endswith((".yaml", ".yml")):
        from redactory.pipelines.yaml_file import read_yaml

        read_yaml(Path(given))
    return given


ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A configuration (.yaml), or an input file, folder or URL.",
        callback=readable_configuration,
    ),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=completion.run_folders)
]
RunsArgument = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="A run folder, or several.", autocompletion=completion.run_folders),
]
PlaceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|JOB", help="A run folder, or a job's folder.", autocompletion=completion.runs_and_jobs
    ),
]
AnyRunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run folder, an export, or the URL of one.",
        autocompletion=completion.run_folders,
    ),
]
OutOption = Annotated[
    str | None, typer.Option("--out", help="The run folder, or a URL; the configuration's by default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, help="Processes for curation.")]
PrefectOption = Annotated[bool, typer.Option("--prefect", help="Run as a Prefect flow.")]
DaskOption = Annotated[
    str | None,
    typer.Option(
        "--dask",
        help="Curate on a Dask cluster: local (--workers processes), or a scheduler's address, tls://HOST:PORT.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A trained model; the configured one by default.",
        autocompletion=completion.models_of_run,
    ),
]

Page = Callable[[dict[str, Any]], None]


def show(result: dict[str, Any], as_json: bool, page: Page) -> None:
    """Print one JSON object, or the page for people; and log what of it is counts."""
    json_log.result(result)
    if as_json:
        output.print_json(result)
    else:
        page(result)


def say_blind(config: str, out: str | None) -> None:
    """What nothing in the policies looks for, before any work; nothing where a log is for machines."""
    if json_log.on_terminal():
        return
    # Arrow comes with it, and every command would wait for that
    from redactory.detectors import blind_words, blindness
    from redactory.pipelines.loading import load_config

    if (words := blind_words(blindness(load_config(config, output=out).detect, {}))) is not None:
        output.err.print(words, style="bold", soft_wrap=True, markup=False)


def carry_out(
    plain: Callable[..., Mapping[str, Any]] | None,
    flow: str,
    config: str,
    out: str | None,
    dask: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Call the plain function, or where there is none, run the flow around it; with ``dask``, over Dask."""
    with output.shown_progress() as progress:
        if plain is not None and dask is not None:
            from redactory.flows.dask_map import over_dask

            plain = over_dask(plain, dask)
        if plain is not None:
            return dict(plain(config, output=out, progress=progress, **settings))
        from redactory.flows.with_prefect import start_flow

        where = {} if dask is None else {"dask": dask}
        return start_flow(flow, config, out, progress, **settings, **where)
