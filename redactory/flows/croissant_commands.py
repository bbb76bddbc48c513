"""``redactory croissant``: a run or an export described for catalogues and other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import redactory
from redactory.flows import output
from redactory.flows.options import JsonOption, show
from redactory.foundation.wording import some


def croissant(
    place: Annotated[Path, typer.Argument(metavar="PLACE", help="A run folder or an export.")],
    out: Annotated[Path | None, typer.Option("--out", help="A new .json file beside PLACE or above.")] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Describe private/ too; keep the result where the run is.")
    ] = False,
    license_url: Annotated[
        str | None, typer.Option("--license", help="URL of the data set's licence.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Where the data set is published.")] = None,
    creator: Annotated[str | None, typer.Option(help="Name of the organisation that made it.")] = None,
    cite_as: Annotated[str | None, typer.Option(help="How it is to be cited.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print Croissant metadata (JSON-LD): the shards with their sha256, the record sets and their fields."""
    asked = {"license": license_url, "url": url, "creator": creator, "citeAs": cite_as}
    more = {name: value for name, value in asked.items() if value is not None}
    document = redactory.croissant(place, out=out, private=private, more=more)
    if out is None:
        output.print_indented(document)
        return
    count = sum("contentUrl" in entry for entry in document["distribution"])
    told = {"out": str(out), "files": count, "record_sets": [own["name"] for own in document["recordSet"]]}
    show(
        told,
        as_json,
        lambda _: output.out.print(f"Wrote {out}: {some(count, 'file')}", soft_wrap=True, markup=False),
    )
