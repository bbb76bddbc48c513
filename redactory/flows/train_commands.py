"""``redactory train``, and what is odd about a training's batches, on standard error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import json_log, output, pages
from redactory.flows.options import (
    ConfigArgument,
    JsonOption,
    OutOption,
    PrefectOption,
    carry_out,
    show,
)
from redactory.foundation.keys import load_encryption_key


def train(
    config: ConfigArgument,
    out: OutOption = None,
    trainer: Annotated[
        str | None, typer.Option(help="A trainer (train.trainer), instead of the configured one.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The model's folder (train.name), instead of the configured one.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes that share a step; the same model.")
    ] = None,
    prefect: PrefectOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model on a finished run."""
    asked: dict[str, Any] = {"trainer": trainer, "name": name, "workers": workers}
    changes = {key: value for key, value in asked.items() if value}
    say_remarks(config, out, **changes)
    plain = None if prefect else redactory.train
    show(carry_out(plain, "train", config, out, **changes), as_json, pages.trained)


def say_open(result: Mapping[str, Any]) -> None:
    """A line where a run that was asked for again is open, though a key to encrypt with is configured."""
    if not result["encrypted"] and load_encryption_key() is not None:
        output.err.print(
            "Mind: this run is not encrypted although a key is configured: curate anew with --out.",
            soft_wrap=True,
        )


def say_remarks(config: str, out: str | None, **changes: Any) -> None:
    """A line for each remark on the training; nothing where standard error holds a log for machines."""
    if json_log.on_terminal():
        return
    # Arrow comes with it, and every command would wait for that
    from redactory.pipelines.train_checks import train_remarks

    for remark in train_remarks(config, output=out, **changes):
        output.err.print(f"Mind: {remark}.", soft_wrap=True, markup=False)
