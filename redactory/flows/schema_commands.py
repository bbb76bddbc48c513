"""``redactory schema``: the JSON Schemas of what Redactory writes."""

from __future__ import annotations

from typing import Annotated

import typer

import redactory
from redactory.flows import output
from redactory.flows.options import JsonOption


def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which one; without it they are listed.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the JSON Schema of a file that Redactory writes; without NAME, which there are."""
    if name is not None:
        output.print_indented(redactory.schema(name))
        return
    known = redactory.schemas()
    if as_json:
        output.print_json(known)
        return
    output.table("Schemas", list(known.items()), ("name", "of"), text=True)
