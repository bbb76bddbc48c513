"""What the policies were measured to miss, kept in the run: training, guarantee and report go by it."""

from __future__ import annotations

from typing import Any

from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import make_private_folder, read_json, write_json
from redactory.redaction import RunFolder, SealedFolder, broken_files, is_finished, seal

RECALL_FORMAT = "redactory-recall/1"


def keep_recall(run: RunFolder, result: dict[str, Any]) -> None:
    """Seal ``result`` as the measurement that holds from now on, and render the report again."""
    seal_result(run.recall, result, {"format": RECALL_FORMAT, "parent": file_sha256(run.manifest)})
    write_report(run)


def kept_recall(run: RunFolder) -> dict[str, Any] | None:
    """The measurement that was kept last; None without one.

    ``CheckFailed`` where it is not as it was sealed: a guarantee must not rest on it.
    """
    if not is_finished(run.recall):
        return None
    if broken := broken_files(run.recall):
        raise CheckFailed(
            f"state/{run.recall.root.name} is not as it was sealed ({broken[0]}): measure again what the "
            "policies miss (redactory audit score, redactory run)"
        )
    result: dict[str, Any] = read_json(run.recall.root / "result.json")
    return result


def replaced(run: RunFolder, result: dict[str, Any]) -> dict[str, Any] | None:
    """Date and bounds of the kept measurement whose place ``result`` takes; None without one, or the same."""
    if not is_finished(run.recall):
        return None
    before: dict[str, Any] = read_json(run.recall.root / "result.json")
    misses = before["misses"]
    if misses == result["misses"] and before.get("left") == result["left"]:
        return None
    date = before.get("date") or before.get("sample", {}).get("date")
    upper = {f"{name}_upper": misses[name]["upper"] for name in ("gamma", "delta_2")}
    return {"date": date, "confidence": misses["confidence"], **upper}


def seal_result(folder: SealedFolder, result: dict[str, Any], body: dict[str, Any]) -> None:
    """Put ``result.json`` into ``folder`` in place of an earlier one, and seal it."""
    make_private_folder(folder.root)
    folder.success.unlink(missing_ok=True)
    out = folder.root / "result.json"
    write_json(out, result)
    seal(folder, body, [out])
