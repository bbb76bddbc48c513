"""Find and check the finished models of a run, and seal results."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from redactory.foundation.errors import ConfigurationError, RunStateError, shorten_name
from redactory.foundation.files import make_private_folder, write_json, write_text
from redactory.redaction import RunFolder, SealedFolder, is_finished, read_manifest, read_result, seal_folder

TRAINING_PACKAGES = ("torch", "dp_accounting", "mpmath", "scipy", "safetensors")


def require_training_packages() -> None:
    """Raise ``ConfigurationError`` if packages of the extra ``train`` are not installed."""
    missing = [name for name in TRAINING_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"training needs {', '.join(missing)}, not installed here: pip install 'redactory[train]'"
        )


def resolve_model_name(run: RunFolder, model: str | None) -> str:
    """Return ``model``, or the name of the configured one; ``RunStateError`` if that model is not finished."""
    manifest = read_manifest(run)
    if model is None:
        section = manifest["configuration"]["train"]
        model = str(section["name"] or section["trainer"])
    if not is_finished(run.get_model_folder(model)):
        available = ", ".join(run.list_model_names())
        hint = f"finished models: {available} (--model)" if available else "train one first (redactory train CONFIG)"
        raise RunStateError(f"{run.root} has no finished model '{shorten_name(model)}'; {hint}")
    return model


# The result of the last one-run audit of a model.


def load_audit(run: RunFolder, model: str) -> dict[str, Any] | None:
    """Return the sealed result of ``evaluate audit``; None if the model was not audited."""
    return read_result(run.get_model_folder(model), "audit")


def seal_result(
    folder: SealedFolder, result: Mapping[str, Any], body: dict[str, Any], pictures: Mapping[str, str] | None = None
) -> None:
    """Replace ``result.json`` and ``pictures`` in ``folder``, and seal it."""
    make_private_folder(folder.root)
    folder.success.unlink(missing_ok=True)
    files = [folder.root / "result.json"]
    write_json(files[0], result)
    for old in folder.root.glob("*.svg"):
        old.unlink()
    for name, svg in (pictures or {}).items():
        files.append(folder.root / name)
        write_text(files[-1], svg)
    seal_folder(folder, body, files)
