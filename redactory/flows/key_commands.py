"""``redactory keys``: make keys, and use the key of an encrypted run outside of Redactory."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Annotated

import typer

from redactory.flows import output
from redactory.flows.options import JsonOption, RunArgument, show
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.keys import Kind, new_key

keys = typer.Typer(no_args_is_help=True, help="Make keys, and read encrypted runs with other programs.")

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
