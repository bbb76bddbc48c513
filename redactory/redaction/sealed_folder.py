"""A folder that says itself when it is finished, and is known by its manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redactory.foundation.folder_names import SUCCESS


@dataclass(frozen=True)
class SealedFolder:
    """A folder that is finished when ``_SUCCESS`` holds the sha256 of its ``manifest.json``."""

    root: Path

    @property
    def manifest(self) -> Path:
        """Counts, versions and the sha256 of every file."""
        return self.root / "manifest.json"

    @property
    def success(self) -> Path:
        """Written last; its text is the sha256 of the manifest."""
        return self.root / SUCCESS

    @property
    def signature(self) -> Path:
        """Ed25519 signature of ``manifest.json``, 64 bytes, where a signing key is configured."""
        return self.root / "manifest.json.sig"
