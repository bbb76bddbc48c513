"""The folder of an export, declared once: what left a run, and what it is checked by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.foundation.files import read_json, why_not_in
from redactory.redaction.folder import ModelFolder, RunFolder, SealedFolder

FORMAT = "redactory-export/1"
PUBLIC_FOLDER = 0o755
"""The mode of its folders: nothing in it is private."""


@dataclass(frozen=True)
class ExportFolder(SealedFolder):
    """``DIR/``: the public side of a run, models that leave under their own guarantee, and nothing else."""

    @property
    def public(self) -> Path:
        """The shards of the public side, byte for byte those of the run."""
        return self.root / "public"

    @property
    def card(self) -> Path:
        """The dataset card, with counts of the public side alone."""
        return self.root / "README.md"

    @property
    def croissant(self) -> Path:
        """The data set described for other programs (Croissant, JSON-LD)."""
        return self.root / "croissant.json"

    @property
    def sums(self) -> Path:
        """The sha256 of every file but this one and ``_SUCCESS``, for ``sha256sum -c``."""
        return self.root / "SHA256SUMS"

    def model(self, name: str) -> ModelFolder:
        """The folder of a model that left with it, as in a run."""
        return RunFolder(self.root).model(name)


def is_export_folder(root: Path) -> bool:
    """Whether ``root`` is an export, finished or not; False where its manifest cannot be read."""
    try:
        manifest = SealedFolder(root).manifest
        return why_not_in(root, manifest.name) is None and is_export(read_json(manifest))
    except (OSError, ValueError, AttributeError):
        return False


def is_export(manifest: dict[str, Any]) -> bool:
    """Whether a manifest is that of an export."""
    return manifest.get("format") == FORMAT
