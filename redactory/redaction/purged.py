"""Data folders that were purged: whoever needs one is told so, and never reads it as an empty one."""

from __future__ import annotations

from pathlib import Path

from redactory.foundation.errors import RunStateError
from redactory.foundation.files import read_json
from redactory.redaction.encryption import run_of


def require_there(folder: Path) -> None:
    """``RunStateError`` where the data ``folder`` of a run was purged."""
    run = run_of(folder)
    if run is None or not run.manifest.is_file():
        return
    if folder.name in read_json(run.manifest).get("purged", ()):
        raise RunStateError(
            f"{run.root.name}: {folder.name}/ was purged, and this needs it: take a run that has it, or "
            "what reads the shards alone (train with crt, crt-drop or redact-only)"
        )
