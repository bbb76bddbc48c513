"""A finished run that is asked for again: it stands for what it was made of, and for nothing else."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.pipelines.config import Config, InputSettings
from redactory.pipelines.differences import difference
from redactory.pipelines.readers import find_sources, size_of
from redactory.redaction import RunFolder, read_manifest


def check_made_of(run: RunFolder, config: Config) -> None:
    """``RunStateError`` where the finished ``run`` was made by another configuration, or of other files.

    Files are compared by name and size; a file that is gone by now does not matter.
    """
    manifest, now = read_manifest(run), _sizes(config.input)
    names = {entry["path"] for entry in now}
    before = [{k: e[k] for k in ("path", "bytes")} for e in manifest["inputs"] if e["path"] in names]
    differs = difference(
        {"configuration": _curation(manifest), "input": before},
        {"configuration": config.curation(), "input": now},
    )
    if differs is not None:
        raise RunStateError(
            f"{run.root} holds a finished run of another {differs}: give another output folder, "
            "or ask for it as it was made"
        )


def _curation(manifest: dict[str, Any]) -> dict[str, Any]:
    try:
        return Config.model_validate(manifest["configuration"]).curation()
    except ValidationError:
        # made by a version that had other settings
        return {}


def _sizes(settings: InputSettings) -> list[dict[str, Any]]:
    try:
        sources = find_sources(settings.path, settings.format)
    except ConfigurationError:
        # a finished run needs its input no more
        return []
    return [{"path": source.name, "bytes": size_of(source)} for source in sources]
