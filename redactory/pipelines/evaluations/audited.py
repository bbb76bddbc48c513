"""What the last one-run audit of a model found."""

from __future__ import annotations

from typing import Any

from redactory.redaction import RunFolder, result_of


def audited(run: RunFolder, model: str) -> dict[str, Any] | None:
    """The sealed result of ``evaluate audit``; None where the model was not audited."""
    return result_of(run.model(model), "audit")
