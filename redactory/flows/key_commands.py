"""``redactory keys``: make, rotate and shred keys, and use the key of an encrypted run elsewhere."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output
from redactory.flows.output import JsonOption, RunArgument, show
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import Kind, new_key

keys = typer.Typer(
    no_args_is_help=True, help="Make, rotate and shred keys, and read encrypted runs elsewhere."
)

_VARIABLES = {
    "digest": "REDACTORY_KEY_FILE",
    "encryption": "REDACTORY_ENCRYPTION_KEY_FILE",
    "signing": "REDACTORY_SIGNING_KEY_FILE",
}


@keys.command("new")
def new(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="digest, encryption or signing.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; never overwritten.")],
    as_json: JsonOption = False,
) -> None:
    """Write a fresh key to a new file, mode 0600; for signing also its public key, to FILE.pub."""
    files = [str(path) for path in new_key(kind, file)]
    show(
        {"kind": kind, "files": files, "variable": _VARIABLES[kind]},
        as_json,
        lambda made: output.out.print(
            f"Wrote {' and '.join(made['files'])}. Next: export {made['variable']}={file}", soft_wrap=True
        ),
    )


@keys.command("data-key")
def data_key(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; never overwritten.")],
    as_json: JsonOption = False,
) -> None:
    """Unwrap the data key of an encrypted run into a file (base64, mode 0600), for pyarrow and DuckDB."""
    from redactory.foundation.files import write_bytes
    from redactory.redaction import RunFolder, key_of

    key = key_of(RunFolder(run).vault / "part")
    if key is None:
        raise RunStateError(f"{run} is not encrypted: it has no data key")
    if file.exists() or file.is_symlink():
        raise ConfigurationError(f"{file} exists: a key is never overwritten; give another name")
    write_bytes(file, base64.b64encode(key.secret) + b"\n")
    told = f"Wrote {file}. Whoever has it reads the private part of {run}: remove it when you are done."
    show(
        {"file": str(file), "run": str(run), **key.to_json()},
        as_json,
        lambda _: output.out.print(told, soft_wrap=True),
    )


@keys.command("open")
def open_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A traceback in the state/ of a run.")],
) -> None:
    """Print a sealed file of an encrypted run; it can quote the corpus."""
    from redactory.redaction import read_secret

    if not file.is_file():
        raise ConfigurationError(f"{file} is no file")
    sys.stdout.write(read_secret(file).decode(errors="replace"))


@keys.command("rotate")
def rotate(
    places: Annotated[
        list[Path], typer.Argument(metavar="PLACE...", help="Run folders, or folders of runs (a job's).")
    ],
    to_key_file: Annotated[
        Path | None, typer.Option("--to-key-file", help="The file of the new encryption key.")
    ] = None,
    to_service: Annotated[
        str | None, typer.Option("--to-service", help="The new key service, package.module:function.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Have another key wrap the data keys of runs; the configured key opens them, asking again goes on."""
    with output.shown_progress() as progress:
        told = redactory.rotate_key(
            *places, to_key_file=to_key_file, to_service=to_service, progress=progress
        )
    show(told, as_json, _rotated)
    if not told["ok"]:
        raise SystemExit(1)


@keys.command("shred")
def shred(
    run: RunArgument,
    by: Annotated[str, typer.Option("--by", help="Who answers for it; goes into the release log.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it: nobody can undo it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Destroy the data key of an encrypted run: nobody can read its private part any more."""
    if not yes:
        raise ConfigurationError(
            f"nobody, you included, will be able to read the private part of {run} again: add --yes to do it"
        )
    show(redactory.shred_key(run, by=by), as_json, _shredded)


def _rotated(told: dict[str, Any]) -> None:
    words = {
        "rotated": "wrapped by the new key now",
        "already": "wrapped by it before",
        "open": "not encrypted",
        "shredded": "shredded",
    }
    rows = [(said, str(len(told[name]))) for name, said in words.items() if told[name]]
    rows += [("FAILED", str(len(told["failed"])))] if told["failed"] else []
    output.table(f"Runs under {told['service']}", rows)
    for failed in told["failed"]:
        output.out.print(f"{failed['run']}: {failed['error']}", soft_wrap=True, markup=False)


def _shredded(told: dict[str, Any]) -> None:
    files = ", ".join(told["destroyed"]) or "nothing was left to destroy"
    output.out.print(
        f"Shredded {told['run']} ({files}), entered in the log for {told['by']} at {told['time']}. "
        "Copies of these files in backups and snapshots must go too.",
        soft_wrap=True,
        markup=False,
    )
    for left in told["left"]:
        output.out.print(f"{left} lies open and is still there: redactory purge", soft_wrap=True)
