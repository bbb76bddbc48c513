"""Where a run is worked on whose output is a URL: in a folder on this machine; from there it is published."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.stores.fetch import WORK_VARIABLE
from redactory.pipelines.stores.store import is_url


def worked_on_here(value: Mapping[str, Any], changes: Mapping[str, Any], beside: Path) -> dict[str, Any]:
    """The configuration ``value`` with ``changes``; an ``output`` at a URL becomes a folder and ``store``.

    The folder is named after the run, below ``work``, ``$REDACTORY_WORK`` or ``beside``, the configuration's
    own folder.  An ``output`` on this machine that is asked for instead of a URL is not published.
    """
    changed = {**_placed(value, beside)}
    if "output" in changes and not is_url(changes["output"]):
        if changed.get("store") and Path(changes["output"]) != Path(changed["output"]):
            changed["store"] = None
        return {**changed, **changes}
    return _placed({**changed, **changes}, beside)


def _placed(value: Mapping[str, Any], beside: Path) -> dict[str, Any]:
    output = value.get("output")
    if output is None or not is_url(output):
        return dict(value)
    url = str(output).rstrip("/")
    name = url.rpartition("/")[2]
    if not name or name in (".", "..") or is_url(f"{name}//"):
        raise ConfigurationError(f"output: {url} names no folder: give one below the bucket")
    work = value.get("work") or os.environ.get(WORK_VARIABLE) or beside
    return {**value, "output": str(Path(work) / name), "store": url}
