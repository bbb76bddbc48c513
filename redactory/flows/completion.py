"""What a shell offers when Tab is pressed: run folders, folders of jobs, a run's models.

Everything is told by names alone: no file is read, and nothing is imported that takes time.  Where nothing
fits, nothing is offered, and the shell completes files and folders as it always does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from redactory.foundation.files import JOB, MODELS, SUCCESS


def run_folders(incomplete: str) -> list[str]:
    """Finished runs, and exports, whose path begins like ``incomplete``."""
    return _folders(incomplete, lambda folder: (folder / SUCCESS).is_file())


def job_folders(incomplete: str) -> list[str]:
    """Folders of a nightly job's runs whose path begins like ``incomplete``."""
    return _folders(incomplete, lambda folder: (folder / JOB).is_dir())


def runs_and_jobs(incomplete: str) -> list[str]:
    """Both of them."""
    return sorted({*run_folders(incomplete), *job_folders(incomplete)})


def model_folders(incomplete: str) -> list[str]:
    """Finished models, RUN/models/NAME, of the runs whose path begins like ``incomplete``."""
    runs = run_folders(incomplete.partition(f"/{MODELS}/")[0])
    found = (f"{run}/{MODELS}/{name}" for run in runs for name in _models(Path(run)))
    return sorted(path for path in found if path.startswith(incomplete))


def models_of_run(context: typer.Context, incomplete: str) -> list[str]:
    """The names of the finished models of the runs that stand before on the line."""
    given: Any = context.params.get("run") or context.params.get("runs") or ()
    # a line that ends within an option is not parsed to its end: what stands before is left over
    runs = [*(given if isinstance(given, list | tuple) else [given]), *context.args]
    names = {name for run in runs for name in _models(Path(run))}
    return sorted(name for name in names if name.startswith(incomplete))


def _models(run: Path) -> list[str]:
    return [path.parent.name for path in run.glob(f"{MODELS}/*/{SUCCESS}")]


def _folders(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    """Folders in the one that ``incomplete`` is in, written as it is written."""
    written, slash, begun = incomplete.rpartition("/")
    try:
        inside = sorted(path for path in Path(f"{written}{slash}" or ".").iterdir() if path.is_dir())
        found = [path for path in inside if path.name.startswith(begun) and wanted(path)]
    except OSError:
        return []
    return [f"{written}{slash}{path.name}" for path in found]
