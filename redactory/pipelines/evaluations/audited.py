"""What the last one-run audit of a model found."""

from __future__ import annotations

from typing import Any

from redactory.foundation.files import read_json
from redactory.redaction import RunFolder, is_finished


def audited(run: RunFolder, model: str) -> dict[str, Any] | None:
    """The sealed result of ``evaluate audit``; None where the model was not audited."""
    found = run.model(model).result("audit")
    if not is_finished(found):
        return None
    result: dict[str, Any] = read_json(found.root / "result.json")
    return result
