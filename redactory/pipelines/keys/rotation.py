"""Key rotation: another key, or another service, wraps the data keys of runs; no part is written anew."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import read_json
from redactory.foundation.keys import read_encryption_key
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.alone import alone
from redactory.pipelines.keys.shredding import shredded
from redactory.pipelines.releases.log import Event, enter, history
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder
from redactory.redaction.encryption import rewrap
from redactory.redaction.keyservice import KeyService, LocalKey, service_of


def rotate_key(
    *places: str | Path,
    to_key_file: str | Path | None = None,
    to_service: str | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Have another key wrap the data keys of runs; ``places`` are run folders, or folders of runs.

    The configured key opens them, the new one is a local key in ``to_key_file`` or the service that
    ``to_service`` (``package.module:function``) names.  Returns the paths of the runs by what became of
    them: ``rotated``, ``already`` (wrapped by the new one before), ``open`` (not encrypted), ``shredded``
    and ``failed``, a list of {run, error}; ``ok`` is whether there is none.  Whatever stops it, asking
    again goes on.  Raises ``ConfigurationError`` for a new key that is none, ``RunStateError`` for a place
    that holds no run.
    """
    new = _new_service(to_key_file, to_service)
    runs = [run for place in places for run in runs_in(Path(place))]
    told: dict[str, list[Any]] = defaultdict(list)
    for number, run in enumerate(runs, 1):
        try:
            told[sealed(run.state, _rotated, run, new)].append(str(run.root))
        except RedactoryError as error:
            told["failed"].append({"run": str(run.root), "error": str(error)})
        progress("rotate", number, len(runs), "runs")
    listed = {name: told[name] for name in ("rotated", "already", "open", "shredded", "failed")}
    return {"service": new.name, **listed, "ok": not told["failed"]}


def runs_in(place: Path) -> list[RunFolder]:
    """The run that ``place`` is, or the runs that lie in it, by name; ``RunStateError`` where none does."""
    if RunFolder(place).state.is_dir():
        return [RunFolder(place)]
    inside = sorted(place.iterdir()) if place.is_dir() else []
    found = [RunFolder(path) for path in inside if not path.is_symlink() and RunFolder(path).state.is_dir()]
    if not found:
        raise RunStateError(f"{place} is no run folder, and no folder of runs")
    return found


def _new_service(key_file: str | Path | None, function: str | None) -> KeyService:
    if (key_file is None) == (function is None):
        raise ConfigurationError("name the new key: --to-key-file or --to-service, one of the two")
    if function is not None:
        return service_of(function, "--to-service")
    return LocalKey(read_encryption_key(Path(str(key_file))))


def _rotated(run: RunFolder, new: KeyService) -> str:
    """What became of ``run``, in a word."""
    with alone(run):
        if not run.data_key.is_file():
            return _without_key(run)
        wrapping = rewrap(run, new)
        if wrapping.before is not None and _entered(run) != wrapping.service:
            # the key comes first: where a crash parts the two, the record follows when it is asked again
            enter(run, Event.ROTATED, service=wrapping.service, before=wrapping.before)
        return "rotated" if wrapping.changed else "already"


def _entered(run: RunFolder) -> str | None:
    """The service that the log says wraps the key now; None where it says of no rotation."""
    rotations = [record for record in history(run) if record.type == Event.ROTATED]
    return str(rotations[-1].body["service"]) if rotations else None


def _without_key(run: RunFolder) -> str:
    if shredded(run) is not None:
        return "shredded"
    if run.manifest.is_file() and read_json(run.manifest)["encrypted"]:
        raise CheckFailed(f"{run.root.name} is encrypted, and its state/{run.data_key.name} is gone")
    return "open"
