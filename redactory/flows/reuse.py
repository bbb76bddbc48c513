"""Caching by content: a run of the same input under the same policies is not made twice.

The key of a curation is what its shards follow from: package version, configuration, policies, input
fingerprints, keys.  Prefect remembers the summary under it and does not look whether the run is still
there: :func:`still_there` does, at each hit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redactory
from redactory.detectors import policy_hashes
from redactory.foundation.canonical import hash_of
from redactory.foundation.errors import RedactoryError
from redactory.foundation.keys import load_digest_key
from redactory.pipelines.config import Config
from redactory.pipelines.readers import find_sources
from redactory.redaction import RunFolder, broken_files, is_finished, read_manifest
from redactory.redaction.keyservice import configured_service
from redactory.redaction.sealing import SIGNED_BY, configured_signer


def content_of(settings: Config) -> dict[str, Any]:
    """What the shards of a curation follow from, as it is now, in the manifest's words."""
    detect, service = settings.detect, configured_service()
    return {
        "version": redactory.__version__,
        "configuration": settings.curation_hash(),
        "policies": policy_hashes(detect),
        "inputs": [s.fingerprint() for s in find_sources(settings.input.path, settings.input.format)],
        "key": load_digest_key().fingerprint,
        "encrypted_by": None if service is None else service.name,
        "signed_by": configured_signer(),
    }


def content_key(content: dict[str, Any], place: str) -> str | None:
    """Hex sha256 of the content and of where its runs are kept; None under a key of this process alone.

    ``place`` may hold placeholders: runs of one template stand in for each other, others do not.
    """
    return None if load_digest_key().fresh else hash_of({**content, "place": place})


def still_there(summary: dict[str, Any], content: dict[str, Any]) -> bool:
    """Whether the run that a remembered summary speaks of is whole and of this content, file by file."""
    run = RunFolder(Path(summary["run"]))
    try:
        if not is_finished(run) or broken_files(run):
            return False
        manifest = read_manifest(run)
    except (RedactoryError, OSError):
        return False
    return content == {
        "version": manifest["versions"]["redactory"],
        "configuration": manifest["configuration_hash"],
        "policies": {name: policy["hash"] for name, policy in manifest["policies"].items()},
        "inputs": [{k: v for k, v in entry.items() if k != "rows"} for entry in manifest["inputs"]],
        "key": manifest["key"]["fingerprint"],
        "encrypted_by": (manifest["encryption"] or {}).get("wrapped_by"),
        "signed_by": manifest.get(SIGNED_BY),
    }
