"""What differs between the policies of two configurations, or of a configuration and a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redactory.detectors import differing, policy_records
from redactory.pipelines.loading import Given, load_config
from redactory.redaction import RunFolder, is_finished, read_manifest


def policy_diff(old: Given, new: Given) -> dict[str, list[dict[str, Any]]]:
    """For each policy the keys whose values differ: [{key, old, new}]; empty where the hashes are equal.

    ``old`` and ``new`` are configurations or finished run folders.  A key that only one of them has is null
    in the other.
    """
    before, after = _records(old), _records(new)
    return {name: differing(before[name], after[name]) for name in before}


def _records(given: Given) -> dict[str, Any]:
    if isinstance(given, str | Path) and Path(given).is_dir() and is_finished(RunFolder(Path(given))):
        policies: dict[str, Any] = read_manifest(RunFolder(Path(given)))["policies"]
        return policies
    return policy_records(load_config(given).detect)
