"""What was measured of a model, sealed in its folder; what was brought from another model is none of it."""

from __future__ import annotations

from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.files import read_json
from redactory.redaction.folder import ModelFolder, SealedFolder
from redactory.redaction.sealing import is_finished, read_manifest


def result_of(model: ModelFolder, evaluation: str) -> dict[str, Any] | None:
    """The sealed result of ``evaluation`` on the finished ``model``; None where it was not made on it."""
    folder = model.result(evaluation)
    if not is_finished(folder) or not measured_on(model, folder):
        return None
    result: dict[str, Any] = read_json(folder.root / "result.json")
    return result


def measured_on(model: ModelFolder, result: SealedFolder) -> bool:
    """Whether a sealed ``result`` names this very ``model``, and its folder the evaluation that it is of."""
    manifest = read_manifest(result)
    own = manifest.get("evaluation", result.root.name) == result.root.name
    return bool(own and manifest.get("parent") == file_sha256(model.manifest))
