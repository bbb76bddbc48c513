"""A finished run that is asked for again: it stands for what it was made of, and for nothing else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.config import Config, InputSettings
from redactory.pipelines.differences import AnotherRun, difference
from redactory.pipelines.readers import Source, find_sources, size_of
from redactory.redaction import RunFolder, read_manifest


def check_made_of(run: RunFolder, config: Config, sources: list[Source] | None = None) -> None:
    """``RunStateError`` where the finished ``run`` was made by another configuration, or of other files.

    Files (``sources``, or what is found at ``input.path``) are compared by name and size; one that is gone
    by now does not matter.
    """
    manifest = read_manifest(run)
    now = _sizes(_found(config.input) if sources is None else sources)
    names = {entry["path"] for entry in now}
    before = [{k: e[k] for k in ("path", "bytes")} for e in manifest["inputs"] if e["path"] in names]
    differs = difference(
        {"configuration": _curation(manifest), "input": before},
        {"configuration": config.curation(), "input": now},
    )
    if differs is not None:
        raise AnotherRun(
            f"{run.root} holds a finished run of another {differs}: give another output folder, "
            "or ask for it as it was made"
        )


def _curation(manifest: dict[str, Any]) -> dict[str, Any]:
    try:
        return Config.model_validate(manifest["configuration"]).curation()
    except ValidationError:
        # made by a version that had other settings
        return {}


def _found(settings: InputSettings) -> list[Source]:
    try:
        return find_sources(settings.path, settings.format)
    except ConfigurationError:
        # a finished run needs its input no more
        return []


def _sizes(sources: list[Source]) -> list[dict[str, Any]]:
    sizes = []
    for source in sources:
        with suppress(FileNotFoundError):
            sizes.append({"path": source.name, "bytes": size_of(source)})
    return sizes
